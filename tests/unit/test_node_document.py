"""The document of a node, for people and scripts."""

from signal import SIGSEGV

import msgspec
import pytest
from rank_table import WORLD, Table, environment

from agent.app import front
from agent.app.front import node_document
from agent.core.identity import Membership
from agent.hardware.inventory import Gpu, Hardware
from agent.hardware.ledger import NODE, CheckState, HealthLedger, Subject
from agent.page import describe
from agent.page.ranks_json import Configuration, NodeDocument, Rank, RankEnd, read
from agent.ranks.health import HealthSnapshot
from agent.ranks.rank.exit_status import ExitStatus
from agent.ranks.rank.process import RankGpu


def document(table: Table, ledger: HealthLedger | None = None, counted: frozenset[str] = frozenset()) -> NodeDocument:
    """Return the document of a node with this rank table and ledger."""
    entries = () if ledger is None else ledger.entries()
    return node_document(
        HealthSnapshot(table.ranks.timed_snapshot(), entries, counted), table.ranks.speeds, (), "here",
        up_seconds=60.0, ready=True, configuration=Configuration("/etc/rankwatch.yml"),
    )  # fmt: skip


def test_a_job_with_a_dead_rank() -> None:
    """Each rank has process, GPU and health, even when dead; the dead rank is first, and the job's text names it."""
    table = Table()
    keys = [table.add(pid, environment(pid)) for pid in (1, 2, 3)]
    table.record(2, [Membership(WORLD, 2, 8, "world", 2)], keys[1], table.clock.time())
    hardware = Hardware()
    hardware.of("nvml").observe_gpus([Gpu(0, "GPU-a", "0000:3b:00.0")])
    hardware.of("nvml").observe_gpu_processes({2: ["GPU-a"]}, set())
    table.tick(1.0)
    table.ranks.observe_gpus(hardware)
    ledger = HealthLedger(table.clock)
    checks = ledger.of("nvml")
    checks.report(Subject("gpu", "GPU-a"), "gpu_xid", CheckState.FAILED)
    checks.report(NODE, "pcie_errors", CheckState.FAILED)
    table.ranks.observe_exit(keys[1], ExitStatus(known=True, signal=SIGSEGV))
    table.ranks.judge_changed()
    died = table.clock.time()
    table.clock.advance(360.0)
    page = document(table, ledger, frozenset({"gpu_xid"}))
    assert [(rank.rank, rank.state) for rank in page.ranks] == [("2", "dead"), ("1", "alive"), ("3", "alive")]
    dead = page.ranks[0]
    assert (dead.job_id, dead.pid, dead.user, dead.local_rank) == ("4711", 2, "alice", "2")
    assert dead.gpus == (RankGpu(0, "GPU-a", "0000:3b:00.0"),)
    assert (dead.ended, dead.state_reason) == (RankEnd(died, "signaled", "SIGSEGV"), "fatal_signal")
    assert dead.unhealthy == ("gpu_xid",)
    assert page.ranks[1].unhealthy == ()
    [job] = page.jobs
    assert (job.job_id, job.user, job.world_size, job.states) == ("4711", "alice", 8, {"dead": 1, "alive": 2})
    assert job.sentence == "rank 2 crashed (SIGSEGV), 6 min 0 s ago; 2 ranks run"
    assert page.configuration.file == "/etc/rankwatch.yml"


def ranks(state: str, count: int, reason: str = "", ended: RankEnd | None = None) -> list[Rank]:
    """Return ranks in one state."""
    return [
        Rank(job_id="1", rank=str(number), state=state, state_reason=reason, ended=ended) for number in range(count)
    ]


@pytest.mark.parametrize(("members", "expected"), [
    (ranks("alive", 1), "1 rank runs"),
    (ranks("alive", 8), "8 ranks run"),
    (ranks("finished", 8), "8 finished"),
    (ranks("exited", 1), "1 exited"),
    (ranks("dead", 1, ended=RankEnd(940.0, "oom_killed", "SIGKILL")), "rank 0 killed by the OOM killer, 1 min 0 s ago"),
    (ranks("dead", 1, ended=RankEnd(990.0, "signaled", "SIGKILL")), "rank 0 killed (SIGKILL), 10 s ago"),
    (ranks("dead", 1, ended=RankEnd(990.0, "exited", "", 7)), "rank 0 exited with status 7, 10 s ago"),
    (ranks("dead", 4, ended=RankEnd(990.0, "unknown")), "ranks 0, 1, 2 and 1 more exited, status unknown, 10 s ago"),
    ([rank for at in (940.0, 990.0) for rank in ranks("dead", 1, ended=RankEnd(at, "signaled", "SIGKILL"))],
     "ranks 0, 0 killed (SIGKILL), the last 10 s ago"),
    (ranks("unresponsive", 1, "stopped"), "rank 0 stopped by a signal"),
    (ranks("unresponsive", 2, "blocked"), "ranks 0, 1 blocked in the kernel"),
    (ranks("unresponsive", 1, "unanswered"), "rank 0 not answering NCCL's RAS"),
    (ranks("unknown", 1), "rank 0 cannot be judged"),
    ([*ranks("alive", 2), *ranks("dead", 1)], "rank 0 exited, status unknown; 2 ranks run"),
    ([*ranks("unresponsive", 1, "stopped"), *ranks("dead", 1, ended=RankEnd(990.0, "signaled", "SIGKILL")),
      *(rank for code in (7, 8, 9) for rank in ranks("dead", 1, ended=RankEnd(940.0, "exited", "", code)))],
     "rank 0 killed (SIGKILL), 10 s ago; rank 0 exited with status 7, 1 min 0 s ago; "
     "rank 0 exited with status 8, 1 min 0 s ago; 2 more in trouble"),
])  # fmt: skip
def test_sentences(members: list[Rank], expected: str) -> None:
    """A job's sentence names the ranks in trouble, with cause and time, and then counts the others."""
    assert describe.sentence(members, 1000.0) == expected


def test_why_processes_are_not_identified() -> None:
    """The note on unidentified processes has the number of processes that the agent may not read."""
    nodes = [msgspec.structs.replace(Table().ranks.snapshot(), unidentified=5, unreadable=count) for count in (1, 0)]
    assert [note for node in nodes for note in describe.notes(node)] == [
        f"5 rank processes, not identified: no right to read the environment of 1; {describe.OTHER_USERS}",
        "5 rank processes, not identified: nothing names their ranks yet",
    ]


def test_no_more_ranks_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit, the last ranks are left out and counted; a dead rank stays."""
    table = Table()
    keys = [table.add(pid, environment(pid)) for pid in (1, 2)]
    table.tick(1.0)
    table.ranks.observe_exit(keys[1], ExitStatus(known=True, signal=SIGSEGV))
    table.ranks.judge_changed()
    for bound, shown in ((2, ["2", "1"]), (1, ["2"])):
        monkeypatch.setattr(front, "MAX_RANKS", bound)
        page = document(table)
        assert ([rank.rank for rank in page.ranks], page.ranks_left_out) == (shown, 2 - bound)


@pytest.mark.parametrize(("text", "expected"), [
    (b"# HELP node_load1", "not rankwatch's"),
    (b'{"status": "success"}', "not rankwatch's"),
    (b'{"rankwatch": "9.0", "api": 2, "hostname": "h", "now_seconds": 1, "up_seconds": 1, "ready": true}',
     "rankwatch 9.0, whose interface has version 2"),
    (b'{"rankwatch": "9.0", "api": 1, "ranks": 7}', "another version's"),
])  # fmt: skip
def test_what_is_no_document(text: bytes, expected: str) -> None:
    """The reply of another program or version, or a damaged reply, is refused with a reason."""
    with pytest.raises(ValueError, match=expected):
        read(text)
