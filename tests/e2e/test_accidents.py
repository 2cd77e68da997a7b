"""What happens to Inspector's files under a live job: nothing is lost, and nothing is counted twice."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from agents import Agent
from jobs import ROOT, SimulatedJob
from machines import Machine, alive, records
from nodes import Node, wait_until, why_no_nodes

from exporters.inspector.totals.inheritance import BIRTH_SECONDS

DATA = Path(__file__).parents[1] / "data" / "inspector"
RANKS = 4
BUSY = ("--ranks", str(RANKS), "--tp", "2", "--records-per-second", "200", "--flush-at-end")
OPERATIONS = "rankwatch_collective_operations_total"
RECORDS = "rankwatch_inspector_records_total"
SAVED = "rankwatch_checkpoint_last_save_timestamp_seconds"
SAVE_SECONDS = 8.0
Accident = Callable[[SimulatedJob, Agent], None]


def written(job: SimulatedJob) -> Counter[str]:
    """How many records each rank wrote, by its own account."""
    counts: Counter[str] = Counter()
    for path in job.job_dir.glob("written-*.json"):
        summary = json.loads(path.read_text())
        counts[str(summary["rank"])] += sum(each["records"] for each in summary["records"])
    return counts


def shown(agent: Agent, job_id: str) -> Counter[str]:
    """How many operations of each rank the agent counts."""
    counts: Counter[str] = Counter()
    for each in agent.samples(OPERATIONS, job_id=job_id):
        counts[each.labels["rank"]] += int(each.value)
    return counts


def wait_for_checkpoint(agent: Agent) -> None:
    """Wait until a checkpoint holds what was read up to now."""
    since = time.time() + SAVE_SECONDS
    wait_until(lambda: (agent.value(SAVED) or 0) > since, 25.0, "a checkpoint")


def end(job: SimulatedJob) -> Counter[str]:
    """End the job in order; return what its ranks wrote."""
    job.signal_launcher(signal.SIGUSR1)
    assert job.wait() == 0
    return written(job)


def wait_for_exactly(agent: Agent, job_id: str, expected: Counter[str]) -> None:
    """Wait until the agent counts just this, and see that it stays so."""
    wait_until(
        lambda: shown(agent, job_id) == expected, BIRTH_SECONDS + 30.0, f"{expected}, it is {shown(agent, job_id)}"
    )
    time.sleep(1.0)
    assert shown(agent, job_id) == expected


def go_on(job: SimulatedJob, agent: Agent) -> None:
    """Wait until two hundred more records are counted."""
    before = agent.value(RECORDS, result="accepted") or 0.0
    wait_until(lambda: (agent.value(RECORDS, result="accepted") or 0.0) > before + 200, 15.0, "more records")


def rename(job: SimulatedJob, agent: Agent) -> None:
    """As logrotate's default does, to a name that is Inspector's still."""
    for path in list(job.dump_dir.iterdir()):
        path.rename(path.with_suffix(".1.log"))


def rename_out_of_sight(job: SimulatedJob, agent: Agent) -> None:
    """To a name that is no log's: the open file is read on."""
    for path in list(job.dump_dir.iterdir()):
        path.rename(path.with_suffix(".log.1"))


def nameless(job: SimulatedJob, agent: Agent) -> int:
    """How many files of the job without a name the agent holds open: it has no other way to them."""
    targets = []
    for entry in Path(f"/proc/{agent.pid()}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            targets.append(os.readlink(entry))
    return sum(target.startswith(str(job.dump_dir)) and target.endswith(" (deleted)") for target in targets)


def unlink(job: SimulatedJob, agent: Agent) -> None:
    """The names go, the writers write on."""
    for path in list(job.dump_dir.iterdir()):
        path.unlink()
    assert nameless(job, agent) == RANKS


def remove_directory(job: SimulatedJob, agent: Agent) -> None:
    """The directory goes with its files, and is made anew."""
    shutil.rmtree(job.dump_dir)
    job.dump_dir.mkdir()
    assert nameless(job, agent) == RANKS


def copytruncate(job: SimulatedJob, agent: Agent) -> None:
    """As logrotate's copytruncate does, once all is read; the writers go on behind a hole."""
    pids = [job.pid(rank) for rank in range(RANKS)]
    for pid in pids:
        job.kill(pid, signal.SIGSTOP)
    whole = sum(len(records(path)) for path in job.dump_dir.iterdir())
    agent.wait_for(RECORDS, whole, result="accepted")
    for path in job.dump_dir.iterdir():
        os.truncate(path, 0)
    for pid in pids:
        job.kill(pid, signal.SIGCONT)


def kill_agent(job: SimulatedJob, agent: Agent) -> None:
    """The agent dies, long after its last checkpoint, and comes back."""
    wait_for_checkpoint(agent)
    go_on(job, agent)
    agent.kill9()
    agent.start()


def both(*accidents: Accident) -> Accident:
    """One after the other."""

    def happen(job: SimulatedJob, agent: Agent) -> None:
        for accident in accidents:
            accident(job, agent)

    return happen


ACCIDENTS = {
    "rename": rename,
    "rename_out_of_sight": rename_out_of_sight,
    "unlink": unlink,
    "remove_directory": remove_directory,
    "copytruncate": copytruncate,
    "kill_then_rename": both(kill_agent, rename),
    "rename_then_kill": both(rename, kill_agent),
    "kill_then_unlink": both(kill_agent, go_on, unlink),
    "kill_then_remove_directory": both(kill_agent, go_on, remove_directory),
    "copytruncate_then_kill": both(copytruncate, kill_agent),
}


@pytest.mark.timeout(150)
@pytest.mark.parametrize("name", ACCIDENTS)
def test_a_live_job_loses_and_doubles_nothing(tmp_path: Path, name: str) -> None:
    """Whatever happens to the files, every rank's operations are those that it wrote."""
    machine = Machine(tmp_path)
    with machine.agent(dump_dir=tmp_path / "job" / "inspector") as agent, machine.job(*BUSY) as job:
        job.wait_for("ready")
        agent.wait_for_states(alive(RANKS))
        go_on(job, agent)
        ACCIDENTS[name](job, agent)
        go_on(job, agent)
        wait_for_exactly(agent, machine.job_id, end(job))


REMADE_STEPS = 60
RECORDS_PER_STEP = 8


def by_communicator(job: SimulatedJob) -> Counter[tuple[str, str]]:
    """How many records each rank wrote in each communicator, those of former fillings too, by its own account."""
    counts: Counter[tuple[str, str]] = Counter()
    for path in job.job_dir.glob("written-*.json"):
        summary = json.loads(path.read_text())
        for each in summary["records"]:
            counts[str(summary["rank"]), each["comm"].removeprefix("0x")] += each["records"]
    return counts


def by_place(agent: Agent, job_id: str) -> Counter[tuple[str, str]]:
    """How many operations of each rank and communicator the agent counts."""
    counts: Counter[tuple[str, str]] = Counter()
    for each in agent.samples(OPERATIONS, job_id=job_id):
        counts[each.labels["rank"], each.labels["comm"]] += int(each.value)
    return counts


def in_files(job: SimulatedJob) -> Counter[tuple[str, str]]:
    """How many records of each rank and communicator the files hold now."""
    rank_of = {job.pid(rank): str(rank) for rank in range(RANKS)}
    return Counter(
        (rank_of[each["metadata"]["pid"]], each["header"]["id"].removeprefix("0x"))
        for path in job.dump_dir.iterdir()
        for each in records(path)
    )


@pytest.mark.timeout(130)
@pytest.mark.parametrize("stopped", [False, True])
def test_communicators_made_anew_in_the_same_process(tmp_path: Path, stopped: bool) -> None:
    """The plugin empties its file and goes on in it, while an agent looks on or is away: each filling counts once."""
    machine = Machine(tmp_path)
    options = (*BUSY, "--recreate-every", str(REMADE_STEPS), "--recreate-seconds", "3")
    with machine.agent(dump_dir=tmp_path / "job" / "inspector") as agent, machine.job(*options) as job:
        job.wait_for("ready")
        inodes = {path: path.stat().st_ino for path in job.dump_dir.iterdir()}
        filling = RANKS * REMADE_STEPS * RECORDS_PER_STEP
        agent.wait_for(RECORDS, filling, result="accepted", seconds=20.0)
        former = in_files(job)
        assert former.total() == filling
        if stopped:
            assert agent.stop() == 0
            wait_until(lambda: len(in_files(job)) == len(former) and not in_files(job).keys() & former.keys())
            agent.start()
        agent.wait_for(RECORDS, 2 * filling, result="accepted", seconds=20.0)
        # Series are there, at 0 first, once a writer is seen alive: later the job may end before the next one is.
        wait_until(lambda: len(by_place(agent, machine.job_id)) >= 3 * len(former), 15.0, "the third filling")
        expected = end(job)
        account, last = by_communicator(job), in_files(job)
        assert {path: path.stat().st_ino for path in job.dump_dir.iterdir()} == inodes
        assert len(account) >= 3 * len(former)
        assert {key: account[key] for key in former | last} == former | last
        wait_for_exactly(agent, machine.job_id, expected)
        assert by_place(agent, machine.job_id) == account


@pytest.mark.timeout(90)
def test_two_jobs_share_a_directory(tmp_path: Path) -> None:
    """Two jobs with one dump directory are counted apart, over a kill of the agent."""
    first, second = Machine(tmp_path), Machine(tmp_path)
    shared = tmp_path / "shared"
    shared.mkdir()
    options = (*BUSY, "--dump-dir", str(shared))
    with (
        first.agent(dump_dir=shared) as agent,
        first.job(*options, name="first") as one,
        second.job(*options, "--master-port", "29501", name="second") as two,
    ):
        two.wait_for("ready")
        one.wait_for("ready")
        agent.wait_for_states(alive(RANKS))
        kill_agent(one, agent)
        go_on(one, agent)
        counts = end(one), end(two)
        wait_for_exactly(agent, first.job_id, counts[0])
        wait_for_exactly(agent, second.job_id, counts[1])


@pytest.mark.timeout(120)
def test_reclaim_is_nothing_to_a_live_writer(tmp_path: Path) -> None:
    """Holes below the durable offset free disk under a live job, lose nothing, and outlive a kill of the agent."""
    machine = Machine(tmp_path)
    dump_dir = tmp_path / "job" / "inspector"
    section = {"paths": [str(dump_dir)], "reclaim": {"enabled": True}}
    fast = ("--ranks", "2", "--tp", "2", "--records-per-second", "1500", "--flush-at-end")
    with (
        Agent(tmp_path, {"exporters": {"inspector": section}}, job_id=machine.job_id) as agent,
        machine.job(*fast) as job,
    ):
        job.wait_for("ready")
        freed = "rankwatch_inspector_reclaimed_bytes_total"
        for _ in range(2):
            wait_until(lambda: (agent.value(freed, how="punched") or 0) > 2_000_000, 40.0, "holes")
            agent.kill9()
            agent.start()
        wait_until(lambda: (agent.value(freed, how="punched") or 0) > 0, 40.0, "holes after the kill")
        wait_for_exactly(agent, machine.job_id, end(job))
        for path in dump_dir.iterdir():
            status = path.stat()
            assert status.st_blocks * 512 < status.st_size / 2
            assert path.read_bytes().startswith(b'{"header"')
        assert not agent.samples("rankwatch_inspector_reclaim_errors_total")
        assert (agent.value("rankwatch_inspector_hole_bytes_total"), agent.value(RECORDS, result="malformed")) == (0, 0)


WRITER = """
import os, sys
from agent.simulate.layout import SimulatedCommunicator
from agent.simulate.rank import start_library_thread
from agent.simulate.records import SimulatedRecord
from agent.simulate.writer import CommunicatorLog, InspectorFile
log = CommunicatorLog(SimulatedCommunicator("world", sys.argv[3], int(sys.argv[2], 16), (0, 1), 1, network=False), 0)
file = InspectorFile(sys.argv[1], os.uname().nodename, os.getpid())
start_library_thread("NCCL RAS")
print(os.getpid(), flush=True)
number = 0
for command in sys.stdin:
    for _ in range(int(command)):
        log.add(SimulatedRecord("AllReduce", number, 16384, 100))
        number += 1
    file.dump([log])
    print(number, flush=True)
"""
"""Opens its Inspector file, prints its pid, and writes as many records as each line of its input says."""


class LoneWriter:
    """One rank of its own job in a node of the name "twin", writing the records of communicator ``comm`` on demand."""

    def __init__(self, node: Node, dump_dir: Path, comm: str, name: str) -> None:
        argv = [sys.executable, "-S", "-c", WRITER, str(dump_dir), comm, name]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "RANK": "0", "WORLD_SIZE": "2", "SLURM_JOB_ID": comm}
        self._process = node.popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = int(self._answer())

    def write(self, count: int) -> None:
        """Write so many records at once, at the writer's own offset; return when they are in the file."""
        self._process.stdin.write(f"{count}\n")  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]
        self._answer()

    def _answer(self) -> str:
        return str(self._process.stdout.readline())  # type: ignore[union-attr]


def whole_lines(data: bytes) -> tuple[Counter[str], int]:
    """How many records of each communicator are in ``data``, and how many lines in it are none."""
    counts: Counter[str] = Counter()
    broken = 0
    for line in data.replace(b"\0", b"\n").split(b"\n"):
        try:
            counts[json.loads(line)["header"]["id"]] += 1
        except ValueError:
            broken += line != b""
    return counts, broken


@pytest.mark.root
@pytest.mark.skipif(why_no_nodes() is not None, reason=why_no_nodes() or "")
@pytest.mark.timeout(150)
@pytest.mark.parametrize("kill", [False, True])
def test_two_live_writers_of_one_file(tmp_path: Path, kill: bool) -> None:
    """Same host name and pid in two containers: what one cuts of the other is counted, no record counts twice."""
    dump_dir = tmp_path / "inspector"
    dump_dir.mkdir()
    one, two = "0xaaaaaaaa", "0xbbbbbbbb"

    def counted(agent: Agent) -> Counter[str]:
        totals: Counter[str] = Counter()
        for each in agent.samples(OPERATIONS):
            if each.labels["comm"] in (one[2:], two[2:]):
                totals["0x" + each.labels["comm"]] += int(each.value)
        return totals

    def wait_for_counts(agent: Agent, expected: dict[str, int], broken: int) -> None:
        wait_until(lambda: counted(agent) == expected, BIRTH_SECONDS + 15.0, f"{expected}")
        agent.wait_for(RECORDS, broken, result="malformed")

    with (
        Node("twin") as first_node,
        Node("twin") as second_node,
        Agent(tmp_path, {"exporters": {"inspector": {"paths": [str(dump_dir)]}}}) as agent,
    ):
        first = LoneWriter(first_node, dump_dir, one, "short")
        first.write(100)
        wait_for_counts(agent, {one: 100}, 0)
        second = LoneWriter(second_node, dump_dir, two, "a name of another length")
        assert second.pid == first.pid
        (path,) = dump_dir.iterdir()
        first.write(100)  # behind the hole that the second one's opening made
        wait_for_counts(agent, {one: 200}, 0)
        if kill:
            wait_for_checkpoint(agent)
        second.write(5)  # at the front, and far from the place where reading stands
        if kill:
            agent.kill9()
            agent.start()
        first.write(10)
        wait_for_counts(agent, {one: 210}, 0)
        read_bytes = path.stat().st_size
        agent.signal(signal.SIGSTOP)
        second.write(300)  # over all of the first one's and beyond
        first.write(20)  # into these
        second.write(5)
        agent.signal(signal.SIGCONT)
        counts, broken = whole_lines(path.read_bytes()[read_bytes:])
        assert counts[one] > 0 < counts[two]
        assert broken > 0
        wait_for_counts(agent, {one: 210 + counts[one], two: counts[two]}, broken)
        time.sleep(1.0)
        wait_for_counts(agent, {one: 210 + counts[one], two: counts[two]}, broken)
        assert agent.value("rankwatch_inspector_skipped_total", reason="overwritten") == 1
        assert agent.value("rankwatch_exporter_updates_failed_total", exporter="inspector") is None


@pytest.mark.timeout(120)
def test_files_of_a_finished_job_are_deleted(tmp_path: Path) -> None:
    """Old, saved and nobody's: deleted, with no series falling; a live writer's and another host's stay as they are."""
    over, live = Machine(tmp_path), Machine(tmp_path)
    shared = tmp_path / "shared"
    shared.mkdir()
    foreign = shared / "another-host-pid7.log"
    [source, *_] = sorted((DATA / "base8").glob("*.log"))
    foreign.write_text(source.read_text().replace("gpu-node-00", "another-host"))
    reclaim = {"enabled": True, "punch_holes": False, "delete_after_seconds": 60.0}
    section = {"paths": [str(shared)], "reclaim": reclaim}
    options = (*BUSY, "--dump-dir", str(shared))
    with (
        Agent(tmp_path, {"exporters": {"inspector": section}}) as agent,
        over.job(*options, name="over") as finished,
        live.job(*options, "--master-port", "29502", name="live") as running,
    ):
        finished.wait_for("ready")
        running.wait_for("ready")
        agent.wait_for_states(alive(RANKS), job_id=over.job_id)
        agent.wait_for_states(alive(RANKS), job_id=live.job_id)
        go_on(running, agent)
        expected = end(finished)
        pids = [running.pid(rank) for rank in range(RANKS)]
        for pid in pids:
            running.kill(pid, signal.SIGSTOP)
        wait_for_exactly(agent, over.job_id, expected)
        paths = {path: path.read_bytes() for path in shared.iterdir()}
        gone = {path for path in paths if any(path.name.endswith(f"-pid{finished.pid(n)}.log") for n in range(RANKS))}
        assert (len(gone), len(paths)) == (RANKS, 2 * RANKS + 1)
        long_ago = time.time() - 61.0
        for path in sorted(paths, key=lambda path: path in gone):  # theirs come last: when they go, all were judged
            os.utime(path, (long_ago, long_ago))
        wait_until(lambda: not any(path.exists() for path in gone), 25.0, "the end of the finished job's files")
        assert {path: path.read_bytes() for path in shared.iterdir()} == {p: paths[p] for p in paths.keys() - gone}
        freed = "rankwatch_inspector_reclaimed_bytes_total"
        agent.wait_for(freed, sum(-(-len(paths[path]) // 4096) * 4096 for path in gone), how="deleted")
        wait_for_exactly(agent, over.job_id, expected)
        agent.kill9()
        agent.start()
        wait_for_exactly(agent, over.job_id, expected)
        for pid in pids:
            running.kill(pid, signal.SIGCONT)
        wait_for_exactly(agent, live.job_id, end(running))
        assert foreign.exists()
        assert not agent.samples("rankwatch_inspector_reclaim_errors_total")


@pytest.mark.timeout(90)
@pytest.mark.parametrize("kill", [False, True])
def test_a_writer_that_begins_its_file_anew(tmp_path: Path, kill: bool) -> None:
    """Re-creation in one process, or a restart under the same name: every filling that was read counts once."""
    dump_dir = tmp_path / "inspector"
    dump_dir.mkdir()
    [source, *_] = sorted((DATA / "base8").glob("*.log"))
    lines = source.read_text().replace("gpu-node-00", os.uname().nodename).splitlines(keepends=True) * 40
    log = dump_dir / f"{os.uname().nodename}-pid23932.log"
    with Agent(tmp_path, {"exporters": {"inspector": {"paths": [str(dump_dir)]}}}) as agent:
        agent.wait_for("rankwatch_inspector_files", 0, state="followed")  # what is there at its first look is old
        total = 0
        for filling in range(4):
            # Each first line is another, as its time is; each filling is longer than the one before.
            text = lines[filling : filling + 200 + 100 * filling]
            log.write_text("".join(text))
            total += len(text)
            agent.wait_for(RECORDS, total, result="accepted", seconds=15.0)
            if kill and filling % 2:
                wait_for_checkpoint(agent)
                agent.kill9()
                agent.start()
                agent.wait_for(RECORDS, total, result="accepted", seconds=15.0)
        time.sleep(1.0)
        assert agent.value(RECORDS, result="accepted") == total
