"""Operations by NCCL's algorithm and protocol: the counts, when they are removed, and the limit of series."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspector_records import line
from test_inspector_durations import append
from test_inspector_exporter import Bench
from test_inspector_formats import Sink

from agent.sdk.ranks import RankLabel, WriterKey
from exporters.inspector.exporter import InspectorConfig, InspectorExporter
from exporters.inspector.rendering import InspectorSnapshot, render
from exporters.inspector.totals.aggregate import Aggregate
from exporters.inspector.totals.inheritance import Inheritance
from exporters.inspector.totals.shared import Shared
from exporters.inspector.totals.since_start import MAX_CHOICES, Counted

FAMILY = "rankwatch_collective_algorithm_operations_total"
TOTALS = "rankwatch_collective_operations_total"


def bench(path: Path, restored: bytes | None = None, *, by_algorithm: bool = True) -> Bench:
    """Return an exporter with the option, and ranks 1 and 9 of a job with pids 7 and 9."""
    (path / "here-pid7.log").touch()
    made = Bench(path, restored=restored)
    made.exporter = InspectorExporter(InspectorConfig(paths=[str(path)], by_algorithm=by_algorithm))
    made.ranks.labels |= {7: RankLabel("job", "1"), 9: RankLabel("job", "9")}
    made.start().look()
    return made


def chosen(number: int, algorithm: str, protocol: str, **more: object) -> bytes:
    """Return a record of an operation with an algorithm and a protocol."""
    names = f'"coll_algo":"{algorithm}","coll_proto":"{protocol}","coll_sn"'
    return line(number, **more).replace(b'"coll_sn"', names.encode())


def test_operations_are_split_by_algorithm(tmp_path: Path) -> None:
    """Timed operations are counted by algorithm and protocol, unknown names as ``other``; totals are not split."""
    made = bench(tmp_path)
    mixed = [chosen(0, "RING", "LL"), chosen(1, "TREE", "SIMPLE"), chosen(2, "RING", "LL"), chosen(3, "MINE", "LL")]
    untimed = chosen(5, "RING", "LL", coll_exec_time_us=0)
    append(tmp_path / "here-pid7.log", *mixed, line(4), untimed, chosen(6, "TREE", "LL128"))
    append(tmp_path / "here-pid9.log", chosen(0, "RING", "LL", pid=9))
    made.look()
    values = made.look()
    assert {labels[3:]: value for labels, value in values[FAMILY].items()} == {
        ("RING", "LL"): 3, ("TREE", "SIMPLE"): 1, ("other", "LL"): 1, ("TREE", "LL128"): 1,
    }  # fmt: skip
    assert {labels[:3] for labels in values[FAMILY]} == {("job", "AllReduce", "8192")}
    assert sum(values[TOTALS].values()) == 7
    assert {len(labels) for labels in values[TOTALS]} == {5}
    made.drain()


@pytest.mark.parametrize(("leavers", "wanted"), [((9,), 2), ((9, 7), None)])
def test_what_left_stays_while_the_job_has_a_rank(tmp_path: Path, leavers: tuple[int, ...], wanted: int | None) -> None:
    """A job's count does not fall when one of its ranks ends, and is removed with the job's last rank."""
    made = bench(tmp_path)
    append(tmp_path / "here-pid7.log", chosen(0, "RING", "LL"))
    append(tmp_path / "here-pid9.log", chosen(0, "RING", "LL", pid=9))
    made.look()
    for pid in leavers:
        made.look()
        made.ranks.expired.update(one.writer_key for one in made.exporter._writers() if one.writer_key.pid == pid)
        made.look()
    assert made.look().get(FAMILY, {}).get(("job", "AllReduce", "8192", "RING", "LL")) == wanted
    made.drain()


def test_communicators_that_end_take_theirs_along() -> None:
    """The counts of a communicator end with it, and are part of its final totals."""
    sink = Sink()
    shared = Shared(by_algorithm=True)
    sink.aggregate = Aggregate(WriterKey(1, 2, 0, "here", 7), lambda *_: True, from_start=True, shared=shared)
    sink.take(chosen(0, "RING", "LL"), chosen(0, "RING", "LL", id="0xdef"))
    ended = sink.aggregate.end(frozenset({"abc"}))
    assert [[key[0] for key in counted.since_start] for counted in (ended, sink.aggregate)] == [["abc"], ["def"]]


def test_no_more_series_than_the_bound() -> None:
    """Above MAX_CHOICES the last series by name are not shown; ``forget`` drops series of its jobs and their groups."""
    names = [f"{number:05}" for number in range(MAX_CHOICES + 1)]
    labels = ("AllReduce", "8192", "RING", "LL")
    inherited = Inheritance(since_start={(name, Counted.ALGORITHMS, labels): (1,) for name in names})
    (metric,) = [one for one in render(InspectorSnapshot((), {}, inherited)) if one.family.name == FAMILY]
    assert [labels[0] for labels in metric.labels] == names[:-1]
    others = {(name, Counted.ALGORITHMS, labels): (1,) for name in ("00001-0a1b2c3d", "00001-2", "00001-0a1b2c3d4")}
    inherited.since_start |= others
    inherited.forget(names[1:])
    assert [job_id for job_id, *_ in inherited.copy().since_start] == [names[0], "00001-2", "00001-0a1b2c3d4"]
