"""The histogram of collective durations: the counts, when they are removed, and the limit of series."""

from __future__ import annotations

from pathlib import Path

from inspector_records import append, line
from test_inspector_exporter import Bench
from test_inspector_formats import Sink, p2p

from agent.sdk.metrics import COUNT, SUM
from agent.sdk.ranks import RankLabel, WriterKey
from exporters.inspector.exporter import InspectorConfig, InspectorExporter
from exporters.inspector.rendering import InspectorSnapshot, render
from exporters.inspector.totals.aggregate import Aggregate
from exporters.inspector.totals.inheritance import Inheritance
from exporters.inspector.totals.shared import Shared
from exporters.inspector.totals.since_start import BOUND_LABELS, BOUNDS_US, MAX_HISTOGRAMS, Counted, durations

FAMILY = "rankwatch_collective_operation_duration_seconds"
SERIES = ("job", "AllReduce", "8192")


def bench(path: Path, restored: bytes | None = None) -> Bench:
    """Return an exporter with the histogram, and rank 1 of a job with pid 7."""
    (path / "here-pid7.log").touch()
    made = Bench(path, restored=restored)
    made.exporter = InspectorExporter(InspectorConfig(paths=[str(path)], operation_histogram=True))
    made.ranks.labels[7] = RankLabel("job", "1")
    made.start().look()
    return made


def buckets(values: dict[tuple[str, ...], float], series: tuple[str, ...] = SERIES) -> dict[str, float]:
    """Return a histogram's series by `le`."""
    return {labels[-1]: value for labels, value in values.items() if labels[:-1] == series}


def test_bounds_are_inclusive() -> None:
    """A time equal to a bound is in that bucket, a longer time in the next; every time is in a bucket."""
    counts = durations([BOUNDS_US[0], BOUNDS_US[0] + 1, BOUNDS_US[-1], BOUNDS_US[-1] + 1, 0])[:-1]
    assert (counts[0], counts[1], counts[-2], counts[-1]) == (2, 1, 1, 1)
    assert BOUND_LABELS[0] == "1e-05"
    assert BOUND_LABELS[-2:] == ("5.0", "+Inf")
    assert [float(label) for label in BOUND_LABELS] == sorted(map(float, BOUND_LABELS))


def test_ranks_of_a_job_are_added_up(tmp_path: Path) -> None:
    """A job's ranks and communicators on a node share one histogram for each collective and size class."""
    made = bench(tmp_path)
    made.ranks.labels[9] = RankLabel("job", "9")
    append(tmp_path / "here-pid7.log", b"".join(line(sn, coll_exec_time_us=15) for sn in range(3)))
    append(tmp_path / "here-pid7.log", line(0, id="0xdef", coll_exec_time_us=300) + line(1, coll_exec_time_us=0))
    append(tmp_path / "here-pid9.log", line(0, pid=9, coll_exec_time_us=7_000_000))
    made.look()
    histogram = buckets(made.look()[FAMILY])
    made.drain()
    assert list(histogram) == [*BOUND_LABELS, COUNT, SUM]
    counts = {"1e-05": 0, "2e-05": 3, "0.0002": 3, "0.0005": 4, "5.0": 4, "+Inf": 5, COUNT: 5, SUM: 7.000345}
    assert {le: histogram[le] for le in counts} == counts


def test_what_left_stays_while_the_job_has_a_rank(tmp_path: Path) -> None:
    """A job's histogram does not fall when one of its ranks ends, and is removed with the job's last rank."""
    made = bench(tmp_path)
    made.ranks.labels[9] = RankLabel("job", "9")
    append(tmp_path / "here-pid7.log", line(0))
    append(tmp_path / "here-pid9.log", line(0, pid=9))
    made.look()
    assert buckets(made.look()[FAMILY])[COUNT] == 2
    for pid, wanted in ((9, 2), (7, None)):
        made.ranks.expired.update(one.writer_key for one in made.exporter._writers() if one.writer_key.pid == pid)
        made.look()
        values = made.look()
        assert buckets(values.get(FAMILY, {})).get(COUNT) == wanted
    made.drain()


def test_communicators_that_end_take_theirs_along() -> None:
    """The durations of a communicator are removed with it; sends and receives have no durations."""
    aggregate = Aggregate(
        WriterKey(1, 2, 0, "here", 7), lambda *_: True, from_start=True, shared=Shared(histograms=True)
    )
    sink = Sink()
    sink.aggregate = aggregate
    sink.take(line(0), p2p(1))
    assert [labels[0] for *_, labels in aggregate.since_start] == ["AllReduce"]
    ended = aggregate.end(frozenset({"abc"}))
    assert not aggregate.since_start
    assert [sum(counts[:-1]) for counts in ended.since_start.values()] == [1]


def test_no_more_histograms_than_the_bound() -> None:
    """Above the limit, the job with the most histograms loses the last by name; a job with one histogram keeps it."""
    sizes = [f"{number:04}" for number in range(MAX_HISTOGRAMS)]
    names = [("4711", size) for size in sizes] + [("4712", "8192")]
    counts = {(job, Counted.DURATIONS, ("AllReduce", size)): tuple(durations([])) for job, size in names}
    snapshot = InspectorSnapshot((), {}, Inheritance(since_start=counts))
    (metric,) = [metric for metric in render(snapshot) if metric.family.name == FAMILY]
    assert len(metric.labels) == MAX_HISTOGRAMS * (len(BOUND_LABELS) + 2)
    assert {labels[:3] for labels in metric.labels} == {
        ("4712", "AllReduce", "8192"), *(("4711", "AllReduce", size) for size in sizes[:-1])
    }  # fmt: skip
