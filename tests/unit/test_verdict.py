"""The verdicts on processes, row by row."""

from signal import SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGSEGV, SIGTERM
from typing import Any

import pytest
from call_counts import count_calls
from rank_table import OOM, UNKNOWN, WELL

from agent.core.identity import ProcessKey
from agent.ranks.rank import verdict as module
from agent.ranks.rank.evidence import RankVerdict, RasSilence
from agent.ranks.rank.exit_status import ExitStatus
from agent.ranks.rank.facts import ProcessFacts
from agent.ranks.rank.process import RankProcess
from agent.ranks.rank.verdict_thresholds import DEFAULTS, Thresholds

NOW = 1000.0
SEGV = ExitStatus(known=True, signal=SIGSEGV)
KILL = ExitStatus(known=True, signal=SIGKILL)
TERM = ExitStatus(known=True, signal=SIGTERM)
ABRT = ExitStatus(known=True, signal=SIGABRT)
RAYS = ExitStatus(known=True, code=1, by_launcher=True)


def code(number: int) -> ExitStatus:
    """Return an exit with the status ``number``."""
    return ExitStatus(known=True, code=number)


def judge_job(
    processes: list[RankProcess], now: float, thresholds: Thresholds = DEFAULTS
) -> dict[ProcessKey, RankVerdict]:
    """Return the verdicts by process."""
    return dict(zip([p.key for p in processes], module.judge_job(processes, now, thresholds), strict=True))


def made(
    key: ProcessKey, found_at: float, exited_at: float | None = None, exit: ExitStatus | None = None, state: str = "S",
    *, before: str | None = None, progress_after_exit_seconds: float | None = None,
    kind: type[RankProcess] = RankProcess, **facts: Any,
) -> RankProcess:  # fmt: skip
    """Return a rank process. ``before``: the reason of its last verdict."""
    if progress_after_exit_seconds is not None:
        facts |= {"exited_seconds": 1e9, "progress_seconds": 1e9 + progress_after_exit_seconds}
    verdict = None if before is None else RankVerdict("exited", before)  # type: ignore[arg-type]
    known = ProcessFacts(key, 0.0, key.pid, "", "")
    return kind(found_at, known, exited_at=exited_at, exit=exit, state=state, verdict=verdict, **facts)


def running(pid: int = 9, **facts: object) -> RankProcess:
    """Return a running process that was found long ago."""
    return made(ProcessKey(pid, 1), found_at=0.0, **facts)  # type: ignore[arg-type]


def gone(ago: float, status: ExitStatus | None, pid: int = 1, **facts: object) -> RankProcess:
    """Return a process that exited ``ago`` seconds before NOW."""
    return made(ProcessKey(pid, 1), found_at=0.0, exited_at=NOW - ago, exit=status, **facts)  # type: ignore[arg-type]


def silence(ago: float, reports: int, contradicted: bool = False) -> RasSilence:
    """Return a silence: the first RAS report without the process came ``ago`` seconds before NOW."""
    return RasSilence(NOW - ago, NOW - ago, reports, contradicted)


def missed(ago: float, reports: int, contradicted: bool = False, **facts: object) -> RankProcess:
    """Return a running process that RAS misses."""
    return running(silence=silence(ago, reports, contradicted), **facts)


ROWS: list[tuple[str, list[RankProcess], str, str]] = [
    ("an exit that is the job's end is finished", [gone(90, KILL, ended_by_scheduler=True), running()], "finished",
     "ended_by_scheduler"),
    ("it is also after a verdict", [gone(90, KILL, ended_by_scheduler=True, before="killed_before_peers")], "finished",
     "ended_by_scheduler"),
    ("a process that sleeps is alive", [running(state="S")], "alive", "running"),
    ("a process under a debugger is alive", [running(state="t")], "alive", "running"),
    ("a zombie leader with other threads is alive", [running(state="Z")], "alive", "running"),
    ("a stopped process is unresponsive", [running(state="T")], "unresponsive", "stopped"),
    ("61 s in D without a switch is unresponsive", [running(blocked_since=NOW - 61)], "unresponsive", "blocked"),
    ("60 s in D is still alive", [running(state="D", blocked_since=NOW - 60)], "alive", "running"),
    ("missed by two reports over 15 s is unresponsive", [missed(15, 2)], "unresponsive", "unanswered"),
    ("missed by two reports over 14.9 s is alive: a neighbour of a dead rank is", [missed(14.9, 2)], "alive",
     "running"),
    ("missed by one report 60 s ago is alive", [missed(60, 1)], "alive", "running"),
    ("missed by all others, and heard itself, is alive", [missed(60, 5, contradicted=True)], "alive", "cut_off"),
    ("heard itself, and missed for 14 s, is alive", [missed(14, 5, contradicted=True)], "alive", "running"),
    ("stopped and missed is stopped", [missed(60, 5, state="T")], "unresponsive", "stopped"),
    ("a process that left is judged by its exit", [gone(0, SEGV, silence=silence(60, 5))], "dead", "fatal_signal"),
    *[(f"signal {int(s)} alone is dead at once", [gone(0, ExitStatus(known=True, signal=s))], "dead",
     "fatal_signal") for s in (SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE)],
    ("an OOM kill is dead at once", [gone(0, OOM), running()], "dead", "oom_killed"),
    ("status 127 is dead at once", [gone(0, code(127)), running()], "dead", "failure_status"),
    ("status 128 is not yet a death", [gone(0, code(128)), running()], "exited", "left"),
    ("a crash with the whole job following is dead", [gone(1, SEGV), gone(0.5, TERM, 2)], "dead", "fatal_signal"),
    ("a victim of the teardown is exited", [gone(0.5, TERM), gone(1, SEGV, 2)], "exited", "left"),
    ("a second crash is exited", [gone(0.5, SEGV), gone(1, SEGV, 2)], "exited", "followed"),
    ("a crash 61 s after an exit is a first one", [gone(0, SEGV), gone(61, WELL, 2), running()], "dead",
     "fatal_signal"),
    ("a crash 59 s after an exit may be a victim", [gone(0, SEGV), gone(59, TERM, 2), running()], "exited", "followed"),
    ("a crash noticed 0.05 s after a TERM came first", [gone(0, SEGV), gone(0.05, TERM, 2)], "dead", "fatal_signal"),
    ("status 1 noticed 0.05 s after a TERM did not", [gone(0, code(1)), gone(0.05, TERM, 2)], "exited", "followed"),
    ("of two crashes at once the earlier is dead", [gone(0.05, SEGV), gone(0, SEGV, 2)], "dead", "fatal_signal"),
    ("SIGKILL with a peer alive 14.9 s later is exited", [gone(14.9, KILL), running()], "exited", "left"),
    ("SIGKILL with a peer alive 15 s later is dead", [gone(15, KILL), running()], "dead", "killed_before_peers"),
    ("SIGKILL, the peer left 14 s later: exited", [gone(100, KILL), gone(86, KILL, 2)], "exited", "left"),
    ("SIGKILL, the peer left 16 s later: dead", [gone(100, KILL), gone(84, KILL, 2)], "dead", "killed_before_peers"),
    ("SIGKILL with only peers being killed is exited", [gone(40, KILL), running(kill_pending=True)], "exited", "left"),
    ("SIGKILL, and SIGTERM for a peer 30 s later: dead", [gone(50, KILL), gone(20, TERM, 2)], "dead",
     "killed_before_teardown"),
    ("SIGKILL, and status 1 of a peer 30 s later: dead", [gone(50, KILL), gone(20, code(1), 2)], "dead",
     "killed_before_teardown"),
    ("SIGKILL, and SIGABRT of a peer 0.05 s later: dead", [gone(50, KILL), gone(49.95, ABRT, 2)], "dead",
     "killed_before_teardown"),
    ("SIGABRT of a peer after the SIGKILL is a victim's", [gone(49.95, ABRT), gone(50, KILL, 2)], "exited", "followed"),
    ("SIGABRT beside the SIGKILLs of two peers is the death",
     [gone(49.95, ABRT), gone(50, KILL, 2), gone(50, KILL, 3)], "dead", "fatal_signal"),
    ("SIGABRT noticed 0.05 s after a TERM came first", [gone(0, ABRT), gone(0.05, TERM, 2)], "dead", "fatal_signal"),
    ("SIGKILL, and Ray ends a peer: dead", [gone(50, KILL), gone(49, RAYS, 2)], "dead", "killed_before_teardown"),
    ("a worker that Ray ended is exited", [gone(50, RAYS), gone(50, RAYS, 2)], "exited", "left"),
    ("two SIGKILLs at once, and status 1 of a peer: a person ended the job",
     [gone(50, KILL), gone(49.9, KILL, 2), gone(49, code(1), 3)], "exited", "left"),
    ("two SIGKILLs at once, and SIGTERM for a peer: dead", [gone(50, KILL), gone(49.9, KILL, 2), gone(49, TERM, 3)],
     "dead", "killed_before_teardown"),
    ("status 1 noticed 0.05 s before the SIGKILL came first", [gone(50, KILL), gone(50.05, code(1), 2)], "exited",
     "left"),
    ("SIGKILL, and status 0 of a peer: exited", [gone(50, KILL), gone(49, WELL, 2)], "exited", "left"),
    ("a peer whose SIGTERM was noticed 0.05 s before the SIGKILL came after it", [gone(50, KILL), gone(50.05, TERM, 2)],
     "dead", "killed_before_teardown"),
    ("SIGTERM first, then SIGKILL: a cancel", [gone(50, KILL), gone(50.2, TERM, 2)], "exited", "left"),
    ("SIGTERM 30 s before the SIGKILL, and 1 s after it: a cancel",
     [gone(50, KILL), gone(80, TERM, 2), gone(49, TERM, 3)], "exited", "left"),
    ("all by SIGKILL at once is no death", [gone(50, KILL), gone(49.9, KILL, 2)], "exited", "left"),
    ("the second of two SIGKILLs before a teardown is a victim", [gone(49, KILL), gone(50, KILL, 2), gone(48, TERM, 3)],
     "exited", "left"),
    ("a crash at the time of the SIGKILL outranks it", [gone(50, KILL), gone(49.95, SEGV, 2), gone(49, TERM, 3)],
     "exited", "left"),
    ("SIGTERM for a process of a later restart proves nothing",
     [gone(50, KILL), made(ProcessKey(9, 9), NOW - 49, exited_at=NOW - 45, exit=TERM)], "exited", "left"),
    ("a SIGKILL that was seen after the agent was away has no order",
     [gone(50, KILL, unproven_since=NOW - 90), gone(49, TERM, 2)], "exited", "left"),
    ("a death before a teardown stays one when the peers are forgotten",
     [gone(99, KILL, before="killed_before_teardown")], "dead", "killed_before_teardown"),
    ("who was terminated is no death", [gone(49, TERM), gone(50, KILL, 2)], "exited", "left"),
    ("status 1 of a peer after the SIGKILL is a victim's", [gone(49.5, code(1)), gone(50, KILL, 2), gone(49, TERM, 3)],
     "exited", "followed"),
    ("SIGKILL without peers is exited", [gone(100, KILL)], "exited", "left"),
    ("TERM with a peer alive 44 s later is exited", [gone(44, TERM), running()], "exited", "left"),
    ("TERM with a peer alive 45 s later is dead", [gone(45, TERM), running()], "dead", "left_before_peers"),
    ("status 0 with a peer alive 45 s later is dead", [gone(45, WELL), running()], "dead", "left_before_peers"),
    ("status unknown with a peer alive 45 s later is dead", [gone(45, UNKNOWN), running()], "dead",
     "left_before_peers"),
    ("a peer not seen since before the exit proves nothing", [gone(60, TERM), running(unproven_since=NOW - 61)],
     "exited", "left"),
    ("a peer that left while nobody looked proves only what was seen",
     [gone(60, TERM), gone(0, UNKNOWN, 2, unproven_since=NOW - 59)], "exited", "left"),
    ("a second crash stays one when the first is forgotten", [gone(899, SEGV, before="followed")], "exited",
     "followed"),
    ("a death stays one when its peers are forgotten", [gone(99, KILL, before="killed_before_peers")], "dead",
     "killed_before_peers"),
    ("an end stays one when the job begins anew", [gone(50, WELL, before="all_left_well"), running()], "finished",
     "all_left_well"),
    ("status not asked yet is exited", [gone(0, None), running()], "exited", "left"),
    ("a peer found after the exit proves nothing", [gone(60, TERM), made(ProcessKey(9, 9), NOW - 10)],
     "exited", "left"),
    ("all left with status 0: finished", [gone(3, WELL), gone(0, WELL, 2)], "finished", "all_left_well"),
    ("one of all left otherwise: not finished", [gone(3, WELL), gone(0, TERM, 2)], "exited", "left"),
    ("status 0 with a live peer is not finished yet", [gone(3, WELL), running()], "exited", "left"),
    ("communicators destroyed before SIGKILL: finished", [gone(99, KILL, finalized=True), running()], "finished",
     "finalized"),
    ("records 6 s after the exit contradict it", [gone(9, SEGV, progress_after_exit_seconds=6.0), running()], "unknown",
     "progress_after_exit"),
    ("records 5 s after the exit do not", [gone(9, SEGV, progress_after_exit_seconds=5.0)], "dead", "fatal_signal"),
]  # fmt: skip


@pytest.mark.parametrize(("processes", "state", "reason"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_rows(processes: list[RankProcess], state: str, reason: str) -> None:
    """Each row of the table of states gives its state and reason."""
    assert judge_job(processes, NOW)[processes[0].key] == RankVerdict(state, reason)  # type: ignore[arg-type]


def test_wait_status() -> None:
    """A status in waitpid's form splits into signal and code; the core flag is part of neither."""
    assert (ExitStatus.from_wait(9), ExitStatus.from_wait(11 | 0x80)) == (KILL, SEGV)
    assert (ExitStatus.from_wait(3 << 8), ExitStatus.from_wait(0)) == (code(3), WELL)


CRASHED_AT_ONCE = [made(ProcessKey(n, 1), 0.0, NOW - 1, SEGV) for n in range(1024)]
CRASHED_IN_TWO_WAYS = [made(ProcessKey(n, 1), 0.0, NOW - 1, SEGV if n % 2 else code(1)) for n in range(1024)]
RESTARTED_AS_OTHERS = [
    made(ProcessKey(n, 1), 0.0, NOW - 20, KILL) if n % 2 else made(ProcessKey(n, 1), NOW - 10) for n in range(1024)
]
TORN_DOWN = [made(ProcessKey(n, 1), 0.0, NOW - 20 + n / 1024, TERM if n else KILL) for n in range(1024)]


@pytest.mark.parametrize("processes", [CRASHED_AT_ONCE, CRASHED_IN_TWO_WAYS, RESTARTED_AS_OTHERS, TORN_DOWN])
def test_no_process_is_compared_with_all_others(processes: list[RankProcess]) -> None:
    """Twice the processes take at most 2.5 times the work, with simultaneous crashes or with restarts among them."""
    half = count_calls(lambda: judge_job(processes[:512], NOW))
    assert count_calls(lambda: judge_job(processes, NOW)) < 2.5 * half
    assert half < 512 * 100


@pytest.mark.parametrize(
    ("title", "number", "ended"),
    [("ray::Rank.work", 1, RAYS), ("ray::Rank.work", 2, code(2)), ("python train.py ray::", 1, code(1))],
)
def test_ray_ends_workers_with_status_1(title: str, number: int, ended: ExitStatus) -> None:
    """Status 1 of a process with the title of a Ray worker comes from Ray; other statuses come from the program."""
    process = RankProcess(0.0, ProcessFacts(ProcessKey(1, 1), 0.0, 1, "", "", title=title))
    process.note_status(code(number))
    assert process.exit == ended


def test_a_site_judges_by_its_own_thresholds() -> None:
    """Each threshold of the configuration changes its own limit and no other."""
    thresholds = Thresholds(killed_behind_seconds=20, left_behind_seconds=90)
    rows = [(KILL, 19, "exited"), (KILL, 20, "dead"), (TERM, 89, "exited"), (TERM, 90, "dead")]
    for status, ago, state in rows:
        process = gone(ago, status)
        assert judge_job([process, running()], NOW, thresholds)[process.key].state == state
