"""Counts since the agent's start, by duration and by algorithm: when they are removed, and the limits of series."""

from __future__ import annotations

from pathlib import Path

from inspector_records import append, line
from test_inspector_exporter import OPERATIONS, Bench
from test_inspector_formats import Sink, p2p

from agent.sdk.metrics import COUNT, SUM
from agent.sdk.ranks import WriterKey
from exporters.inspector.families import BY_ALGORITHM, DURATIONS
from exporters.inspector.rendering import InspectorSnapshot, render
from exporters.inspector.totals.aggregate import Aggregate
from exporters.inspector.totals.inheritance import Inheritance
from exporters.inspector.totals.shared import Shared
from exporters.inspector.totals.since_start import BOUND_LABELS, MAX_CHOICES, MAX_HISTOGRAMS, Counted, durations

SERIES = ("job", "AllReduce", "8192")


def buckets(values: dict[tuple[str, ...], float], series: tuple[str, ...] = SERIES) -> dict[str, float]:
    """Return a histogram's series by `le`."""
    return {labels[-1]: value for labels, value in values.items() if labels[:-1] == series}


def test_ranks_of_a_job_are_added_up(tmp_path: Path) -> None:
    """A job's ranks and communicators share one histogram by collective and size class; bounds are inclusive."""
    bench = Bench(tmp_path, operation_histogram=True).following(7)
    append(tmp_path / "here-pid7.log", b"".join(line(sn, coll_exec_time_us=20) for sn in range(3)))
    append(tmp_path / "here-pid7.log", line(0, id="0xdef", coll_exec_time_us=300) + line(1, coll_exec_time_us=0))
    append(tmp_path / "here-pid8.log", line(0, pid=8, coll_exec_time_us=7_000_000))
    bench.look()
    histogram = buckets(bench.look()[DURATIONS.name])
    bench.drain()
    assert list(histogram) == [*BOUND_LABELS, COUNT, SUM]
    counts = {"1e-05": 0, "2e-05": 3, "0.0002": 3, "0.0005": 4, "5.0": 4, "+Inf": 5, COUNT: 5, SUM: 7.00036}
    assert {le: histogram[le] for le in counts} == counts


def test_operations_are_split_by_algorithm(tmp_path: Path) -> None:
    """Timed operations are counted by algorithm and protocol, unknown names as ``other``; totals are not split."""

    def chosen(number: int, algorithm: str, protocol: str, **more: object) -> bytes:
        names = f'"coll_algo":"{algorithm}","coll_proto":"{protocol}","coll_sn"'
        return line(number, **more).replace(b'"coll_sn"', names.encode())

    bench = Bench(tmp_path, by_algorithm=True).following(7)
    mixed = [chosen(0, "RING", "LL"), chosen(1, "TREE", "SIMPLE"), chosen(2, "RING", "LL"), chosen(3, "MINE", "LL")]
    untimed = chosen(5, "RING", "LL", coll_exec_time_us=0)
    append(tmp_path / "here-pid7.log", *mixed, line(4), untimed, chosen(6, "TREE", "LL128"))
    append(tmp_path / "here-pid8.log", chosen(0, "RING", "LL", pid=8))
    bench.look()
    values = bench.look()
    assert values[BY_ALGORITHM.name] == {
        (*SERIES, "RING", "LL"): 3, (*SERIES, "TREE", "SIMPLE"): 1, (*SERIES, "other", "LL"): 1,
        (*SERIES, "TREE", "LL128"): 1,
    }  # fmt: skip
    assert sum(values[OPERATIONS].values()) == 7
    assert {len(labels) for labels in values[OPERATIONS]} == {5}
    bench.drain()


def test_what_left_stays_while_the_job_has_a_rank(tmp_path: Path) -> None:
    """A job's histogram does not fall when one of its ranks ends, and is removed with the job's last rank."""
    bench = Bench(tmp_path, operation_histogram=True).following(7)
    append(tmp_path / "here-pid7.log", line(0))
    append(tmp_path / "here-pid8.log", line(0, pid=8))
    bench.look()
    assert buckets(bench.look()[DURATIONS.name])[COUNT] == 2
    for pid, wanted in ((8, 2), (7, None)):
        bench.ranks.expired.update(one.writer_key for one in bench.exporter._writers() if one.writer_key.pid == pid)
        bench.look()
        assert buckets(bench.look().get(DURATIONS.name, {})).get(COUNT) == wanted
    bench.drain()


def test_communicators_that_end_take_theirs_along() -> None:
    """The durations of a communicator are removed with it; sends and receives have no durations."""
    sink = Sink()
    sink.aggregate = aggregate = Aggregate(
        WriterKey(1, 2, 0, "here", 7), lambda *_: True, from_start=True, shared=Shared(histograms=True)
    )
    sink.take(line(0), p2p(1), line(0, id="0xdef"))
    assert [labels[0] for *_, labels in aggregate.since_start] == ["AllReduce"] * 2
    ended = aggregate.end(frozenset({"abc"}))
    assert [[key[0] for key in counted.since_start] for counted in (ended, aggregate)] == [["abc"], ["def"]]
    assert [sum(counts[:-1]) for counts in ended.since_start.values()] == [1]


def test_no_more_histograms_than_the_bound() -> None:
    """Above the limit, the job with the most histograms loses the last by name; a job with one histogram keeps it."""
    sizes = [f"{number:04}" for number in range(MAX_HISTOGRAMS)]
    names = [("4711", size) for size in sizes] + [("4712", "8192")]
    counts = {(job, Counted.DURATIONS, ("AllReduce", size)): tuple(durations([])) for job, size in names}
    snapshot = InspectorSnapshot((), {}, Inheritance(since_start=counts))
    (metric,) = [metric for metric in render(snapshot) if metric.family is DURATIONS]
    assert len(metric.labels) == MAX_HISTOGRAMS * (len(BOUND_LABELS) + 2)
    assert {labels[:3] for labels in metric.labels} == {
        ("4712", "AllReduce", "8192"), *(("4711", "AllReduce", size) for size in sizes[:-1])
    }  # fmt: skip


def test_no_more_algorithms_than_the_bound() -> None:
    """Above MAX_CHOICES the last series by name are not shown; ``forget`` drops series of its jobs and their groups."""
    names = [f"{number:05}" for number in range(MAX_CHOICES + 1)]
    labels = ("AllReduce", "8192", "RING", "LL")
    inherited = Inheritance(since_start={(name, Counted.ALGORITHMS, labels): (1,) for name in names})
    (metric,) = [metric for metric in render(InspectorSnapshot((), {}, inherited)) if metric.family is BY_ALGORITHM]
    assert [labels[0] for labels in metric.labels] == names[:-1]
    others = {(name, Counted.ALGORITHMS, labels): (1,) for name in ("00001-0a1b2c3d", "00001-2", "00001-0a1b2c3d4")}
    inherited.since_start |= others
    inherited.forget(names[1:])
    assert [job_id for job_id, *_ in inherited.copy().since_start] == [names[0], "00001-2", "00001-0a1b2c3d4"]
