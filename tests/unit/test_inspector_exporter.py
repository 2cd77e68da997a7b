import asyncio
import errno
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from blockbuster import blockbuster_ctx
from fake_clock import FakeClock
from inspector_records import line
from lent import Admission, lent

from agent.app.lease import end_writers
from agent.ranks.speeds import RankSpeed
from agent.sdk.exporter import NoData, StateSection
from agent.sdk.ranks import Membership, ProcessFacts, ProcessKey, PublishedProcess, RankLabel, RankSnapshot, WriterKey
from exporters.inspector import SPEC, exporter as module
from exporters.inspector.exporter import Checkpoint, InspectorConfig, InspectorExporter
from exporters.inspector.format.records import SeriesKey
from exporters.inspector.reading.reader import DISCOVER_SECONDS
from exporters.inspector.reading.turn import Published
from exporters.inspector.rendering import InspectorSnapshot, render
from exporters.inspector.totals.accumulators import Accumulator
from exporters.inspector.totals.frozen import WriterTotals
from exporters.inspector.totals.inheritance import Inheritance, RankTally, SeriesLabels
from exporters.inspector.totals.losses import Tally


class Ranks:
    """A rank table that labels each writer of records by its pid; ``snapshot_fields``: fields of its snapshot."""

    def __init__(self) -> None:
        self.speeds: dict[RankLabel, RankSpeed] = {}
        self.snapshot_fields: dict[str, Any] = {"hostnames": {"here": frozenset()}}
        self.observed: list[tuple[WriterKey, tuple[Membership, ...], float | None]] = []
        self.expired: set[WriterKey] = set()
        self.settings: dict[int, dict[str, str]] = {}
        self.labels: dict[int, RankLabel] = {7: RankLabel("job", "1"), 8: RankLabel("job", "2")}

    def observe_records(
        self, writer_key: WriterKey, memberships: Any, last_progress_seconds: float | None, uid: int | None
    ) -> None:
        """Record the evidence."""
        self.observed.append((writer_key, tuple(memberships), last_progress_seconds))

    def label(self, writer_key: WriterKey, comm: str, comm_rank: int) -> RankLabel | None:
        """Return the label of the writer's pid; None after its expiry."""
        return None if writer_key in self.expired else self.labels.get(writer_key.pid)

    def snapshot(self) -> RankSnapshot:
        """Return a snapshot with the test's fields."""
        return RankSnapshot(**self.snapshot_fields)

    def observe_speeds(self, speeds: dict[RankLabel, RankSpeed]) -> None:
        """Keep the speeds."""
        self.speeds = speeds

    def keep_variables(self, names: frozenset[str]) -> None:
        """Ignore the names: the test gives every variable."""

    def recording_settings(self, writer_key: WriterKey) -> dict[str, str] | None:
        """Return the test's environment for the writer's pid."""
        return self.settings.get(writer_key.pid)

    def is_expired(self, writer_key: WriterKey) -> bool:
        """Return whether the test let the writer expire."""
        return writer_key in self.expired


class Bench:
    """An exporter with its whole context."""

    def __init__(self, *paths: Path, restored: bytes | None = None, **config: Any) -> None:
        self._runner = asyncio.Runner()
        self.clock = FakeClock()
        self.ranks = Ranks()
        self.state = StateSection("inspector", restored)
        self.admission = Admission()
        self.exporter = InspectorExporter(
            InspectorConfig(paths=[str(path) for path in paths], derived_series=True, **config)
        )
        self.context = lent("inspector", self.clock, ranks=self.ranks, state=self.state, admit=self.admission)

    def start(self) -> "Bench":
        self._run(self.exporter.start(self.context))
        return self

    def following(self, *pids: int) -> "Bench":
        """Start the exporter and look once, with empty files of these processes."""
        for pid in pids:
            Path(self.exporter._config.paths[0], f"here-pid{pid}.log").touch()
        self.start().look()
        return self

    def look(self, seconds: float = 1.0) -> dict[str, dict[tuple[str, ...], float]]:
        """Let time pass, update, and return the values: family -> label values -> value.

        No series counts as new: each has its full value."""
        self.clock.advance(seconds)
        self._run(self.exporter.update())
        return shown(msgspec.structs.replace(self.exporter.snapshot(), young=frozenset()))

    def scrape(self, seconds: float = 1.0) -> dict[str, dict[tuple[str, ...], float]]:
        """Let time pass, update, and return the values of a scrape, in which new series are 0."""
        self.look(seconds)
        return shown(self.exporter.snapshot())

    def settle(self) -> None:
        """Update until every reader has finished a turn that began during this call."""
        self.look()
        running = [directory.running for directory in self.exporter._directories if directory.running is not None]
        if running:
            self._run(self._wait(running))

    def drain(self) -> None:
        """Stop the exporter and close the loop."""
        try:
            self._run(self.exporter.drain())
        finally:
            end_writers(self.context)
            self._runner.close()

    async def _wait(self, tasks: list[Any]) -> None:
        await asyncio.wait(tasks)
        for directory in self.exporter._directories:
            self.exporter._collect(directory)

    def _run(self, work: Any) -> None:
        """Run on the loop, and fail if the work blocks."""
        with blockbuster_ctx():
            self._runner.run(work)


def shown(snapshot: InspectorSnapshot) -> dict[str, dict[tuple[str, ...], float]]:
    """Render a snapshot to plain values; a duplicate label set fails."""
    values: dict[str, dict[tuple[str, ...], float]] = {}
    for metric in render(snapshot):
        for labels, value in zip(metric.labels, metric.values, strict=True):
            family = values.setdefault(metric.family.name, {})
            assert labels not in family
            family[labels] = value
    return values


OPERATIONS = "rankwatch_collective_operations_total"
SERIES = ("job", "1", "abc", "AllReduce", "8192")
BANDWIDTH = "rankwatch_collective_bus_bandwidth_bytes_per_second"


def test_evidence_and_labels(tmp_path: Path) -> None:
    """Memberships reach the rank table; a writer has no series until it has a label, and then keeps that label."""
    bench = Bench(tmp_path).following(7, 9)
    (tmp_path / "here-pid7.log").write_bytes(line(0))
    (tmp_path / "here-pid9.log").write_bytes(line(0, pid=9))
    assert bench.look()[OPERATIONS] == {SERIES: 1}
    assert {writer_key.pid: [member.comm for member in members] for writer_key, members, _ in bench.ranks.observed} == {
        7: ["abc"],
        9: ["abc"],
    }
    bench.ranks.labels[9] = RankLabel("job", "9")
    assert len((bench.look())[OPERATIONS]) == 2
    bench.look()
    assert set(bench.ranks.speeds) == {RankLabel("job", "1"), RankLabel("job", "9")}
    bench.ranks.labels[9] = RankLabel("other", "0")
    assert ("job", "9", *SERIES[2:]) in (bench.look())[OPERATIONS]
    bench.drain()


def test_the_bandwidth_of_ranks_is_that_of_collectives(tmp_path: Path) -> None:
    """The bandwidth in the rank table covers only collectives, without sends and receives; it ends with the rank."""
    bench = Bench(tmp_path).following(7)
    send = {
        "p2p": "Send", "p2p_sn": 1, "p2p_msg_size_bytes": 9, "p2p_exec_time_us": 3, "p2p_timing_source": "kernel_gpu",
    }  # fmt: skip
    record = json.loads(line(0))
    record = {"header": record["header"], "metadata": record["metadata"], "p2p_perf": send}
    (tmp_path / "here-pid7.log").write_bytes(line(0) + json.dumps(record).encode() + b"\n")
    values = bench.look()
    bench.look()
    direction = ("job", "1", "abc", "send", "8192")
    assert values["rankwatch_p2p_bytes_total"] == {direction: 9}
    assert values["rankwatch_p2p_seconds_total"] == {direction: 3e-6}
    assert values["rankwatch_inspector_seen_records_total"] == {("job", "1"): 2}
    assert {label: speed.bus_bandwidth_bytes_per_second for label, speed in bench.ranks.speeds.items()} == {
        RankLabel("job", "1"): 12_288 / 10e-6  # 1.5 x 8192 bytes in 10 us
    }
    assert BANDWIDTH in bench.look(6.0)
    bench.ranks.snapshot_fields["ranks"] = (Mock(label=RankLabel("job", "1")),)
    assert BANDWIDTH not in bench.look()
    bench.drain()


def test_one_directory_is_enough(tmp_path: Path) -> None:
    """The exporter has no data only if none of its directories exists."""
    bench = Bench(tmp_path / "a", tmp_path / "b").start()
    with pytest.raises(NoData):
        bench.look()
    (tmp_path / "b").mkdir()
    assert bench.look()["rankwatch_inspector_files"]["followed",] == 0
    bench.drain()


def test_restarted_rank_is_summed_and_its_past_is_kept(tmp_path: Path) -> None:
    """Two writers of one rank are one series; the sum stays when the older writer expires. After a restart the sum is
    not new: it is shown at once."""
    (tmp_path / "here-pid7.log").touch()
    (tmp_path / "here-pid8.log").touch()
    bench = Bench(tmp_path)
    bench.ranks.labels[8] = bench.ranks.labels[7]
    bench.following()
    untimed = line(4, coll_timing_source="collective_cpu")
    (tmp_path / "here-pid7.log").write_bytes(line(0) + line(3) + untimed + line(1, id="0xdead"))
    (tmp_path / "here-pid8.log").write_bytes(line(0, pid=8) + line(1, pid=8))
    bench.look()
    values = bench.look(2.0)
    dead = ("job", "1", "dead", *SERIES[3:])
    missing = {("job", "1", "filtered_or_lost"): 3, ("job", "1", "overflow"): 0}
    assert (values[OPERATIONS], values["rankwatch_inspector_missing_records_total"]) == ({SERIES: 4, dead: 1}, missing)
    bench.ranks.expired = {writer_key for writer_key, *_ in bench.ranks.observed if writer_key.pid == 7}
    bench.look()
    values = bench.look()
    assert (values[OPERATIONS], values["rankwatch_inspector_missing_records_total"]) == ({SERIES: 4}, missing)
    assert bench.admission.taken == 6  # four counters and two gauges: the expired writer returned its own
    bench.drain()
    second = Bench(tmp_path, restored=bench.state.published)
    second.ranks.labels = bench.ranks.labels
    second.start()
    values = second.scrape()
    assert values[OPERATIONS] == {SERIES: 4}
    assert values["rankwatch_inspector_untimed_operations_total"] == {("job", "1", "collective_cpu"): 1}
    second.drain()


def test_a_restored_past_without_a_writer_is_not_shown(tmp_path: Path) -> None:
    """Totals of ended writers are removed when all readers have published and no writer continues the totals."""
    past = Inheritance({SeriesLabels(*SERIES): Accumulator(5, 5, 5, 5)})
    bench = Bench(tmp_path, restored=msgspec.msgpack.encode(Checkpoint({}, msgspec.Raw(msgspec.msgpack.encode(past)))))
    assert OPERATIONS not in bench.start().look()
    bench.drain()


def test_hung_directory_harms_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The series of a hanging directory are dropped after ten seconds and return later; another directory is read."""
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.1)
    for name, pid in (("good", 7), ("bad", 8)):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"here-pid{pid}.log").touch()
    bench = Bench(tmp_path / "good", tmp_path / "bad").start()
    bench.settle()
    for name, pid in (("good", 7), ("bad", 8)):
        (tmp_path / name / f"here-pid{pid}.log").write_bytes(line(0, pid=pid))
    bench.settle()
    assert len((bench.look())[OPERATIONS]) == 2
    bench.settle()
    reader = bench.exporter._directories[1].reader
    turn, release = reader.turn, threading.Event()

    def hang(*arguments: Any, **options: Any) -> Any:
        release.wait()
        return turn(*arguments, **options)

    monkeypatch.setattr(reader, "turn", hang)
    bench.look()
    values = bench.look(2.0)
    assert len(values[OPERATIONS]) == 2
    values = bench.look(9.0)
    assert list(values[OPERATIONS]) == [SERIES]
    assert set(bench.ranks.speeds) == {RankLabel("job", "1")}
    assert list(values["rankwatch_inspector_seen_records_total"]) == [("job", "1")]
    assert "rankwatch_inspector_records_total" not in values  # a sum over both must not fall
    release.set()
    bench.settle()
    values = bench.look()
    assert (len(values[OPERATIONS]), values["rankwatch_inspector_records_total"][("accepted",)]) == (2, 2)
    bench.settle()
    bench.drain()


def test_poll_interval(tmp_path: Path) -> None:
    """An update before the poll interval has passed does not read."""
    bench = Bench(tmp_path, poll_interval_seconds=1.0).start()
    reader = bench.exporter._directories[0].reader
    reader.turn = turn = Mock(wraps=reader.turn)  # type: ignore[method-assign]
    for _ in range(12):
        bench.look(0.25)
    assert turn.call_count == 3
    bench.drain()


def view(*writers: WriterTotals) -> Published:
    """Return a reader's publication of these writers."""
    return Published(writers, caught_up=True, results={}, files={}, skipped={}, lag_bytes=0)


def writer(
    pid: int, size: str = "8192", comm: str = "abc", *, caught_up: bool = True, progress_us: int = 0
) -> WriterTotals:
    """Return a writer with one accumulator."""
    return WriterTotals(
        WriterKey(1, pid, 0, "here", pid),
        caught_up,
        progress_us,
        frozenset({(comm, 0)}),
        {SeriesKey(comm, 0, "AllReduce", size): Accumulator(pid, 10, 20, 30)},
        {(comm, 0, "AllReduce"): (pid * 5, 10)},
        {(comm, 0, Tally.MISSING_OTHERWISE): pid},
    )


def labelled(*writers: WriterTotals, rank: str = "1") -> dict[tuple[WriterKey, str, int], RankLabel]:
    """Return labels that make these writers one rank."""
    return {(one.writer_key, next(iter(one.totals)).comm, 0): RankLabel("job", rank) for one in writers}


def test_algorithms_are_a_closed_set() -> None:
    """If ranks differ in their algorithm, only the newest choice is shown; unknown words are ``other``."""
    kind = SeriesKey("abc", 0, "AllReduce", "8192")
    older, newer = (
        msgspec.structs.replace(writer(pid, progress_us=pid), algorithms={kind: chosen})
        for pid, chosen in ((1, ("TREE", "LL")), (2, ("RING", "my own words")))
    )
    values = shown(InspectorSnapshot((view(newer, older),), labelled(older, newer), Inheritance(), 0))
    [labels] = values["rankwatch_collective_algorithm_info"]
    assert labels == ("job", "abc", "AllReduce", "8192", "RING", "other")


def test_derived_series_are_shown_where_they_are_asked_for() -> None:
    """Series that PromQL can derive are exported only with the option."""
    one = writer(1)
    snapshot = InspectorSnapshot((view(one),), labelled(one), Inheritance(), 0)
    default, whole = (
        {metric.family.name for metric in render(msgspec.structs.replace(snapshot, derived_series=derived))}
        for derived in (False, True)
    )
    assert default < whole
    assert whole - default == {"rankwatch_collective_bytes_total", "rankwatch_communicator_unmatched_operations_total"}


@pytest.mark.parametrize(("section", "valid"), [
    ({}, True),
    ({"paths": ["/a", "/b"], "poll_interval_seconds": 0.25}, True),
    ({"poll_interval_seconds": 10}, True),
    ({"poll_interval_seconds": 0.24}, False),
    ({"poll_interval_seconds": 10.5}, False),
    ({"paths": []}, False),
    ({"paths": ["relative"]}, False),
    ({"paths": ["/a"] * 65}, False),
    ({"paths": ["/a", "/a"]}, True),
    ({"paths": ["/a", "/a/"]}, False),
    ({"paths": ["/a/b", "/a"]}, False),
    ({"paths": ["/", "/a/b"]}, True),
    ({"path": "/a"}, False),
])  # fmt: skip
def test_config(section: dict[str, Any], valid: bool) -> None:
    """Paths are absolute, limited in number, and apart; the interval has a range; unknown keys are refused."""
    if valid:
        assert msgspec.convert(section, SPEC.config)
    else:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(section, SPEC.config)


def test_nothing_inherited_is_shown_before_every_reader_has_published() -> None:
    """Totals of expired writers are withheld until every reader has published."""
    key = SeriesLabels("job", "1", "abc", "AllReduce", "8192")
    inherited = Inheritance({key: Accumulator(5, 5, 5, 5)}, {RankTally("job", "1", Tally.MISSING_OTHERWISE): 5})
    one = writer(1)
    snapshot = InspectorSnapshot((view(one),), labelled(one), inherited, unpublished=True)
    values = shown(snapshot)
    assert OPERATIONS not in values
    assert "rankwatch_inspector_missing_records_total" not in values
    assert "rankwatch_inspector_records_total" not in values
    values = shown(msgspec.structs.replace(snapshot, unpublished=False))
    assert list(values[OPERATIONS].values()) == [6]
    assert list(values["rankwatch_inspector_missing_records_total"].values()) == [6]


def test_silent_ranks_are_shown_even_without_a_directory(tmp_path: Path) -> None:
    """Ranks that never write records are counted by reason, even if no directory exists."""
    bench, settings = Bench(tmp_path / "missing").start(), {"NCCL_INSPECTOR_ENABLE": "1"}
    silent = PublishedProcess(0.0, facts=ProcessFacts(ProcessKey(9, 1), 0.0, 9, "u", "thread", settings))
    bench.ranks.snapshot_fields["running"] = {silent.key: silent}
    assert bench.look()["rankwatch_inspector_silent_ranks"] == {("no_plugin",): 1}
    bench.ranks.snapshot_fields["running"] = {}
    with pytest.raises(NoData):
        bench.look(seconds=5.0)
    bench.drain()


def test_a_directory_that_the_agent_may_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason of the missing series names the directory and the agent's user; the note has the remedy."""
    directory, record, opened = tmp_path / "d", "here-pid9.log", os.open
    refused = {record}

    def open_(path: Any, *arguments: Any, **more: Any) -> int:
        if os.fspath(path) in refused:
            raise PermissionError(errno.EACCES, "")
        return opened(path, *arguments, **more)

    monkeypatch.setattr(os, "open", open_)
    directory.mkdir()
    (directory / record).write_text("{}\n")
    bench = Bench(directory).start()
    bench.look(DISCOVER_SECONDS)
    shutil.rmtree(directory)  # a file that is not readable says nothing about the directory
    with pytest.raises(NoData, match=r"^$"):
        bench.look(DISCOVER_SECONDS)
    refused.add(str(directory))
    with pytest.raises(NoData, match=rf"\(uid {os.geteuid()}\) may not read {directory}$"):
        bench.look(DISCOVER_SECONDS)
    assert bench.context.note.remedy.startswith(f"chmod 1777 {directory},")
    bench.drain()
