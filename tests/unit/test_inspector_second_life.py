"""While the agent is down, another job's processes with the same host name and pids write into a job's files."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from fake_clock import FakeClock
from inspector_records import line
from lent import lent
from rank_table import RankTable, environment, facts
from test_inspector_exporter import OPERATIONS, shown

from agent.ranks.expiry import ENDED_RANK_SECONDS
from agent.sdk.exporter import StateSection
from agent.sdk.ranks import ProcessKey
from exporters.inspector.exporter import InspectorConfig, InspectorExporter

RANKS = (1, 2)
SEEN = "rankwatch_inspector_seen_records_total"


class Agent:
    """A start of the agent: its rank table and exporter, restored from the previous checkpoint."""

    def __init__(self, path: Path, clock: FakeClock, before: Agent | None = None) -> None:
        self.clock = clock
        self.table = RankTable(clock, "here")
        if before is not None:
            self.table.load(before.saved)
        self.state = StateSection("inspector", None if before is None else before.state.published)
        self.exporter = InspectorExporter(InspectorConfig(paths=[str(path)]))
        self._runner = asyncio.Runner()
        self._runner.run(self.exporter.start(lent("inspector", clock, ranks=self.table, state=self.state)))

    def look(self, seconds: float = 1.0) -> dict[str, dict[tuple[str, ...], float]]:
        """Let time pass, read, and return the series. New series have their full value, not 0."""
        self.clock.advance(seconds)
        self._runner.run(self.exporter.update())
        self.table.tick()
        return shown(msgspec.structs.replace(self.exporter.snapshot(), young=frozenset()))

    def scan(self, job: Job, ended: Job | None = None) -> None:
        """Report the processes of one job, which hold their files, as the process exporter would."""
        for key in job.keys:
            known = facts(key.pid, environment(key.pid, job=job.job_id))
            self.table.observe_process(msgspec.structs.replace(known, key=key))
            self.table.observe_state(key)
        key_of_pid = {key.pid: key for key in job.keys}
        for writer_key in self.table.unlinked_writers():
            if job.holds(writer_key.device, writer_key.inode):
                self.table.link(writer_key, key_of_pid[writer_key.pid])
        for key in () if ended is None else ended.keys:
            self.table.observe_exit(key, None)

    def end(self) -> None:
        """Stop the agent and save the rank table."""
        self._runner.run(self.exporter.drain())
        self._runner.close()
        self.saved = self.table.dump()


class Job:
    """Processes with the pids of RANKS and these start times in ticks after the boot, each with its file."""

    def __init__(self, path: Path, job_id: str, started: int, comm: str) -> None:
        self.job_id, self.comm = job_id, comm
        self.keys = [ProcessKey(pid, started) for pid in RANKS]
        self._paths = {pid: path / f"here-pid{pid}.log" for pid in RANKS}
        self._number = 0

    def begin(self, *, new_inode: bool) -> None:
        """Open the files as the plugin does."""
        for path in self._paths.values():
            if new_inode and path.exists():
                path.rename(path.parent.parent / path.name)  # so that its inode is not reused
            path.write_bytes(b"")

    def write(self, clock: FakeClock, count: int) -> None:
        """Write ``count`` records of each process with the current time."""
        for pid, path in self._paths.items():
            with path.open("ab") as log:
                for number in range(self._number, self._number + count):
                    now_us = int(clock.time() * 1_000_000) + number
                    log.write(line(number, pid=pid, rank=pid, id=self.comm, dump_timestamp_us=now_us))
        self._number += count

    def holds(self, device: int, inode: int) -> bool:
        """Return whether the job has a file with this device and inode."""
        return any((known.st_dev, known.st_ino) == (device, inode) for known in map(Path.stat, self._paths.values()))


@pytest.mark.parametrize("new_inode", [False, True])
@pytest.mark.parametrize("scan_first", [False, True])
@pytest.mark.parametrize(("comm", "count"), [("0xbbb", 3), ("0xaaa", 50)])
def test_the_records_of_a_second_job_are_its_own(
    tmp_path: Path, new_inode: bool, scan_first: bool, comm: str, count: int
) -> None:
    """After a truncation or in a new file, every record counts once, for the second job only."""
    logs = tmp_path / "logs"
    logs.mkdir()
    clock = FakeClock()
    first, second = Job(logs, "100", 5000, "0xaaa"), Job(logs, "200", 9000, comm)
    agent = Agent(logs, clock)
    agent.look()
    first.begin(new_inode=False)
    agent.scan(first)
    first.write(clock, 10)
    agent.look()
    agent.scan(first)
    of_first = {("100", str(rank)): 10 for rank in RANKS}
    assert agent.look(10.0)[SEEN] == of_first
    agent.end()
    clock.advance(30.0)
    second.begin(new_inode=new_inode)
    second.write(clock, count)
    clock.advance(5.0)
    again = Agent(logs, clock, agent)
    if scan_first:
        again.scan(second, ended=first)
    again.look()
    again.scan(second, ended=first)
    second.write(clock, 4)
    for _ in range(3):
        again.look()
        again.scan(second)
    values = again.look(10.0)
    assert values[SEEN] == of_first | {("200", str(rank)): count + 4 for rank in RANKS}
    assert sum(values[OPERATIONS].values()) == sum(values[SEEN].values())
    clock.advance(ENDED_RANK_SECONDS)
    for _ in range(3):
        values = again.look()
    assert values[SEEN] == {("200", str(rank)): count + 4 for rank in RANKS}
    again.end()
