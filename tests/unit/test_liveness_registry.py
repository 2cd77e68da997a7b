"""Job families for the rules: live ranks, ages, lead exits and their retraction."""

from signal import SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGINT, SIGKILL, SIGSEGV

import msgspec
import pytest
from rank_table import ABORTED, CRASHED, FAILED, KILLED, TERMINATED, WELL, Table, environment, facts

from agent.core.identity import ProcessKey, RankLabel
from agent.ranks.liveness import causes, job_liveness, registry
from agent.ranks.liveness.job_liveness import (
    ENDED_JOB_SECONDS,
    EXPLAINS_SECONDS,
    LEAD_SECONDS,
    MAX_LEADS,
    MAX_RETRACTED,
    RETRACTED_SECONDS,
)
from agent.ranks.liveness_families import families
from agent.ranks.rank.exit_status import ExitStatus, JobEnd
from agent.ranks.rank.facts import Owner
from exporters.job_log.catalogue import failures

CRASHES = (SIGSEGV, SIGBUS, SIGILL, SIGFPE)
SETTLED = registry.CAUSE_SECONDS


class Job:
    """One job of ranks on a node; each rank starts when it is added."""

    def __init__(
        self, ranks: int = 4, job: str = "4711", world: int = 8, user: str = "alice", scheduler: str = ""
    ) -> None:
        self.table = Table()
        self.job = job
        self.world = world
        self.user = user
        self.owner = Owner("job", f"{scheduler}/{job}", scheduler=scheduler, job_id=job) if scheduler else Owner()
        self.keys: dict[int, ProcessKey] = {}
        self.pid = 0
        for rank in range(ranks):
            self.start(rank)
        self.table.tick()

    def start(self, rank: int) -> None:
        """Start a process of this rank."""
        self.pid += 1
        key = ProcessKey(self.pid, int(self.table.clock.now * 100))
        claim = environment(rank, self.world, self.job)
        self.table.add_facts(msgspec.structs.replace(facts(self.pid, claim), key=key, user=self.user, owner=self.owner))
        self.keys[rank] = key

    def exit(self, rank: int, status: ExitStatus | None, after: float = 0.0, then: float | None = None) -> None:
        """Wait ``after`` seconds, end a rank, then wait ``then`` seconds."""
        self.tick(after)
        self.table.ranks.observe_exit(self.keys[rank], status)
        if then is not None:
            self.tick(then)

    def tick(self, seconds: float = 0.0) -> None:
        """Let seconds pass, and update the table."""
        self.table.tick(seconds)

    def shown(self, name: str) -> dict[tuple[str, ...], float]:
        """Return the series of a family, without the job id."""
        for metric in families(self.table.ranks.timed_snapshot()):
            if metric.family.name == f"rankwatch_{name}":
                return {labels[1:]: value for labels, value in zip(metric.labels, metric.values, strict=True)}
        raise AssertionError(name)

    def leads(self) -> dict[tuple[str, str], float]:
        """Return the age of each lead exit (-1 if retracted), keyed by rank and class."""
        return {(labels[0], labels[4]): age for labels, age in self.shown("exit_age_seconds").items()}


def test_ranks_that_live() -> None:
    """The number of live ranks leaves out ranks with a pending SIGKILL; it is 0 for 15 minutes after the last exit."""
    job = Job(ranks=3)
    job.tick(1.0)
    assert job.shown("job_ranks_live") == {(): 3}
    job.table.ranks.observe_state(job.keys[1], "D", None, kill_pending=True, finalized=False)
    job.tick()
    assert job.shown("job_ranks_live") == {(): 2}
    for rank in range(3):
        job.exit(rank, WELL)
    job.tick(ENDED_JOB_SECONDS)
    assert job.shown("job_ranks_live") == {(): 0}
    job.tick(1.0)
    assert job.shown("job_ranks_live") == {}


def test_a_job_whose_last_ranks_have_a_pending_kill_has_just_ended() -> None:
    """The 15 minutes begin once, when the last running ranks get SIGKILL, not at the earlier exit of another rank."""
    job = Job(ranks=2)
    job.exit(0, WELL, then=60.0)
    job.table.ranks.observe_state(job.keys[1], "D", None, kill_pending=True, finalized=False)
    job.tick()
    for seconds, live in ((ENDED_JOB_SECONDS, {(): 0}), (EXPLAINS_SECONDS, {}), (1.0, {})):
        job.tick(seconds)
        assert job.shown("job_ranks_live") == live


@pytest.mark.parametrize(
    ("scheduler", "first", "expected"), [("", 0, {(): 0}), ("slurm", 0, {(): 1}), ("slurm", 1, {})]
)
def test_where_a_job_is_proven(scheduler: str, first: int, expected: dict[tuple[str, ...], float]) -> None:
    """`job_proven` is 0 without a proof, 1 if rank 0 has or had one, and absent if only other ranks have one."""
    job = Job(ranks=0, scheduler=scheduler)
    for step in (job.start, lambda rank: job.exit(rank, CRASHED)):
        for rank in (first, first + 1):
            step(rank)
        job.tick(SETTLED)
        assert job.shown("job_proven") == expected


def test_ranks_that_are_not_seen_are_not_counted_as_gone() -> None:
    """While no scan of processes succeeds, the number of live ranks is absent."""
    job = Job()
    job.table.ranks.lose_sight()
    job.tick(6.0)
    assert job.shown("job_ranks_live") == {}


def test_the_age_of_a_run_is_that_of_its_oldest_rank() -> None:
    """A rank that restarts does not make the run younger; when all ranks are new, the run is new."""
    job = Job(ranks=2)
    job.exit(1, CRASHED, after=100.0)
    job.tick(1.0)
    job.start(1)
    job.tick(9.0)
    assert job.shown("job_start_age_seconds") == {("live",): 110.0}
    for rank in (1, 0):
        job.exit(rank, WELL)
    job.tick(5.0)
    assert job.shown("job_start_age_seconds") == {("ended",): 115.0}
    for rank in range(2):
        job.start(rank)
    job.tick(3.0)
    assert job.shown("job_start_age_seconds") == {("live",): 3.0}


def test_progress_and_its_longest_pause() -> None:
    """Progress is an age by the node's clock; the longest pause so far stays. The agent's downtime is no pause."""
    job = Job(ranks=1)
    process = job.table.ranks.processes[job.keys[0]]
    assert job.shown("job_progress_age_seconds") == {}
    for seconds in (1.0, 20.0, 2.0):
        job.table.clock.advance(seconds)
        process.note_progress(job.table.clock.time() - 0.5, job.table.clock.time())
        job.tick()
    assert (job.shown("job_progress_age_seconds"), job.shown("job_longest_pause_seconds")) == ({(): 0.5}, {(): 20.0})
    job.tick(7.0)
    assert job.shown("job_progress_age_seconds") == {(): 7.5}
    job.table = job.table.restarted(600.0)
    job.table.ranks.observe_state(job.keys[0])
    job.table.ranks.processes[job.keys[0]].note_progress(job.table.clock.time(), job.table.clock.time())
    job.tick(1.0)
    assert (job.shown("job_progress_age_seconds"), job.shown("job_longest_pause_seconds")) == ({(): 1.0}, {(): 20.0})


@pytest.mark.parametrize("step", [-3600.0, -400.0, 400.0, 3600.0])
def test_a_step_of_the_clock_is_no_pause(step: float) -> None:
    """After the node's clock is set back or forward, ranks that progress have no long pause, and a crash is a death."""
    job = Job(ranks=2)
    clock = job.table.clock
    job.tick(4000.0)
    for second in range(20):
        written = clock.time()
        clock.advance(1.0)
        clock.epoch += step if second == 10 else 0.0  # between an operation and the reading of its record
        for key in job.keys.values():
            job.table.ranks.processes[key].note_progress(written, clock.time())
        job.tick()
    assert job.shown("job_progress_age_seconds")[()] <= 1.0
    assert job.shown("job_longest_pause_seconds")[()] <= 4.0
    job.exit(1, ExitStatus(known=True, signal=SIGSEGV), then=SETTLED)
    assert job.table.states()["1"] == "dead"


@pytest.mark.parametrize(("status", "exit_class", "labels"), [
    (ExitStatus(known=True, signal=SIGKILL, oom=True), "oom", ("oom_killed", "SIGKILL", "")),
    *((ExitStatus(known=True, signal=s), "crash", ("signaled", s.name, "")) for s in CRASHES),
    (ExitStatus(known=True, signal=SIGABRT), "fail", ("signaled", "SIGABRT", "")),
    (ExitStatus(known=True, code=1), "fail", ("exited", "", "1")),
    (ExitStatus(known=True, code=127), "fail", ("exited", "", "127")),
    (ExitStatus(known=True, code=128), "left", ("exited", "", "128")),
    (ExitStatus(known=True, code=143), "left", ("exited", "", "143")),
    (ExitStatus(known=True, signal=SIGINT), "left", ("signaled", "SIGINT", "")),
    (KILLED, "killed", ("signaled", "SIGKILL", "")),
    (TERMINATED, "left", ("signaled", "SIGTERM", "")),
    (WELL, "left", ("exited", "", "0")),
    (None, "left", ("unknown", "", "")),
])  # fmt: skip
def test_the_class_of_an_exit(status: ExitStatus | None, exit_class: str, labels: tuple[str, str, str]) -> None:
    """Each kind of exit has one class while peers live, with labels for reason, user and lifetime."""
    job = Job()
    job.exit(2, status, after=30.0, then=SETTLED)
    cause = "oom" if exit_class == "oom" else ""
    assert job.shown("exit_age_seconds") == {("2", *labels, exit_class, "short", cause, "alice"): SETTLED}


@pytest.mark.parametrize(("exits", "leads"), [
    pytest.param([(1.0, CRASHED), (30.0, FAILED), (59.0, FAILED)], {("0", "crash")}, id="the first of an episode"),
    pytest.param([(1.0, CRASHED), (30.0, FAILED), (59.0, FAILED), (61.0, FAILED)], {("0", "crash"), ("3", "fail")},
     id="after 60 s another episode begins"),
    pytest.param([(1.0, KILLED), (0.05, ABORTED)], {("0", "torn")}, id="who is killed, and not the peer that aborts"),
    pytest.param([(1.0, KILLED), (0.0, KILLED), (0.5, ABORTED)], {("0", "killed"), ("2", "fail")},
     id="of several killed at once the first, and the peer that aborts"),
    pytest.param([(1.0, FAILED), (1.0, TERMINATED), (1.0, TERMINATED), (1.0, CRASHED), (1.0, CRASHED)],
     {("0", "fail"), ("1", "left"), ("3", "crash")}, id="the first by SIGTERM and the first that struck, too"),
])  # fmt: skip
def test_which_exits_lead(exits: list[tuple[float, ExitStatus]], leads: set[tuple[str, str]]) -> None:
    """In an episode (no gap over 60 s) the lead exits are the first, the first by SIGTERM and the first struck exit."""
    job = Job(ranks=8)
    for rank, (after, status) in enumerate(exits):
        job.exit(rank, status, after=after)
    job.tick(SETTLED)
    assert job.leads().keys() == leads


def test_a_kill_before_a_teardown_changes_its_class_once() -> None:
    """A SIGKILL within 10 s before a launcher's SIGTERM becomes `torn`; the series of class `killed` becomes -1."""
    job = Job(ranks=4)
    job.exit(0, KILLED, after=1.0, then=SETTLED)
    assert job.leads() == {("0", "killed"): SETTLED}
    job.exit(1, TERMINATED, after=4.0, then=SETTLED)
    assert job.leads() == {("0", "killed"): -1.0, ("0", "torn"): 14.0, ("1", "left"): 5.0}
    job.tick(RETRACTED_SECONDS)
    assert job.leads().keys() == {("0", "killed"), ("0", "torn"), ("1", "left")}
    job.tick(6.0)
    assert job.leads().keys() == {("0", "torn"), ("1", "left")}


def test_a_rank_that_runs_again_is_retracted() -> None:
    """When a rank runs again, the age of its lead exit is -1 for five minutes; other lead exits stay."""
    job = Job(ranks=4)
    job.exit(0, CRASHED, after=1.0)
    job.exit(1, TERMINATED, after=1.0, then=SETTLED)
    job.start(0)
    job.tick(1.0)
    assert job.leads() == {("0", "crash"): -1.0, ("1", "left"): 6.0}
    job.tick(RETRACTED_SECONDS + 1.0)
    assert job.leads().keys() == {("1", "left")}


def test_the_schedulers_word() -> None:
    """A cancelled job's end is exported for 30 minutes, and its exits become `ok`."""
    job = Job(ranks=2)
    for rank in range(2):
        job.exit(rank, TERMINATED, after=1.0)
    job.tick(SETTLED)
    assert job.leads() == {("0", "left"): 6.0}
    ended = job.table.clock.time() - 2.0
    job.table.ranks.observe_job_ends([JobEnd("4711", 0.0, ended, "CANCELLED")])
    job.tick(1.0)
    assert job.leads() == {("0", "left"): -1.0, ("0", "ok"): 7.0}
    assert job.shown("job_ended_age_seconds") == {("CANCELLED",): 3.0}
    job.tick(EXPLAINS_SECONDS)
    assert job.shown("job_ended_age_seconds") == {}


def test_an_end_that_a_rank_outlives() -> None:
    """The scheduler's end of a job whose rank still runs is exported for 30 minutes, and not again when repeated."""
    job = Job(ranks=1)
    job.tick(1.0)
    end = JobEnd("4711", 0.0, job.table.clock.time(), "CANCELLED")
    for seconds, states in ((EXPLAINS_SECONDS - 1.0, ["CANCELLED"]), (2.0, [""])):
        job.table.ranks.observe_job_ends([end])
        job.tick(seconds)
        assert [line.end_state for line in job.table.ranks.snapshot().jobs.values()] == states
        job.table.ranks.observe_job_ends([end])
        assert [line.end_state for line in job.table.ranks.snapshot().jobs.values()] == states


def test_an_orderly_end_is_ok() -> None:
    """If all local ranks exit with status 0, the lead exit becomes `ok` for 30 minutes."""
    job = Job(ranks=2, world=2)
    for rank in range(2):
        job.exit(rank, WELL, after=1.0)
    job.tick(SETTLED)
    assert job.leads() == {("0", "ok"): 6.0}
    job.tick(EXPLAINS_SECONDS)
    assert job.leads() == {("0", "ok"): -1.0}


@pytest.mark.parametrize(("world", "seconds"), [(8, LEAD_SECONDS), (4, EXPLAINS_SECONDS)])
def test_how_long_a_death_is_exported(world: int, seconds: float) -> None:
    """A death is exported for a day if its job can run on other nodes, for 30 minutes if all of it ran here."""
    job = Job(ranks=4, world=world)
    job.exit(0, CRASHED, after=1.0)
    for rank in (1, 2, 3):
        job.exit(rank, TERMINATED, after=0.1)
    job.tick(seconds - 0.3)
    assert job.leads()["0", "crash"] == seconds
    job.tick(1.0)
    assert job.leads()["0", "crash"] == -1.0


def test_three_leads_per_job() -> None:
    """At the limit, a lead exit by a failure replaces one of class `left`; another exit of class `left` is dropped."""
    job = Job(ranks=8)
    for rank in range(MAX_LEADS):
        job.exit(rank, TERMINATED, after=61.0)
    job.tick(SETTLED)
    job.exit(3, TERMINATED, after=61.0, then=SETTLED)
    assert [age for age in job.leads().values() if age >= 0] == [193.0, 132.0, 71.0]
    job.exit(4, CRASHED, after=61.0, then=SETTLED)
    assert job.leads()["0", "left"] == -1.0
    assert {key for key, age in job.leads().items() if age >= 0} == {("1", "left"), ("2", "left"), ("4", "crash")}


def test_retracted_leads_are_bounded() -> None:
    """A rank that dies again and again in different ways leaves at most MAX_RETRACTED series of -1."""
    job = Job()
    for code in range(1, MAX_RETRACTED + 3):
        job.exit(0, ExitStatus(known=True, code=code), after=1.0, then=SETTLED)
        job.start(0)
        job.tick(1.0)
    assert sorted(int(labels[3]) for labels in job.shown("exit_age_seconds")) == list(range(3, MAX_RETRACTED + 3))


def test_ended_jobs_of_a_user_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retracted lead exits do not keep a user's ended jobs beyond the limit; valid lead exits do."""
    monkeypatch.setattr(registry, "MAX_ENDED_JOBS", 2)
    job = Job(ranks=1)
    job.exit(0, CRASHED, then=SETTLED)
    for number in range(5):
        job.job = f"9{number}"
        job.start(0)
        job.start(1)
        job.tick(1.0)
        job.exit(0, CRASHED, then=SETTLED)
        job.start(0)
        job.tick(1.0)
        for rank in (1, 0):
            job.exit(rank, FAILED, after=0.5, then=SETTLED)
    assert set(job.table.ranks.snapshot().jobs) == {"4711", "93", "94"}


def test_leads_of_a_node_have_fair_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the node's limit a new lead exit retracts the oldest one of the user with the most; other users keep theirs.

    An exit that its own job's limit excludes takes no other exit's place."""
    monkeypatch.setattr(registry, "MAX_LEADS_PER_NODE", 4)
    monkeypatch.setattr(registry, "MAX_ENDED_JOBS", 1)
    monkeypatch.setattr(job_liveness, "MAX_LEADS", 1)
    job = Job(ranks=3, user="victim")
    job.exit(0, CRASHED, after=1.0, then=SETTLED)
    for number in range(6):
        job.job, job.user = f"9{number}", "mallory"
        job.start(0)
        job.exit(0, CRASHED, after=1.0, then=SETTLED)
    job.exit(2, CRASHED, after=61.0, then=SETTLED)
    lines = job.table.ranks.snapshot().jobs
    held = {job_id: [lead.retracted_at is None for lead in line.leads] for job_id, line in lines.items()}
    assert held == {"4711": [True], "92": [False], "93": [True], "94": [True], "95": [True]}


def test_a_late_fact_changes_a_class_once() -> None:
    """A late OOM line of the kernel log changes the class once; later facts do not."""
    job = Job()
    job.exit(0, KILLED, after=1.0, then=SETTLED)
    job.table.ranks.observe_oom_kill(job.keys[0])
    job.tick(1.0)
    assert job.leads() == {("0", "killed"): -1.0, ("0", "oom"): 6.0}
    job.exit(1, TERMINATED, then=SETTLED)
    assert job.leads()["0", "oom"] == 11.0


def test_an_exit_waits_for_its_status_and_its_cause() -> None:
    """An exit is exported once its cause is known, at the latest after 5 s."""
    job = Job()
    job.exit(0, ExitStatus(known=True, signal=SIGKILL, oom=True), after=1.0)
    job.tick()
    assert job.leads() == {("0", "oom"): 0.0}
    other = Job()
    other.exit(0, None, after=1.0)
    other.tick(SETTLED - 0.5)
    assert other.leads() == {}
    other.table.ranks.observe_exit(other.keys[0], CRASHED)
    other.tick(0.5)
    assert other.leads() == {("0", "crash"): SETTLED}


def test_a_retracted_exit_stays_retracted() -> None:
    """An exit of an earlier run is not exported again when its retraction is no longer exported."""
    job = Job(ranks=2)
    job.exit(0, CRASHED, after=1.0, then=SETTLED)
    job.exit(1, TERMINATED, then=1.0)
    job.start(2)  # the restart moves other ranks to this node
    job.tick(1.0)
    assert job.leads()["0", "crash"] == -1.0
    job.exit(2, WELL, then=RETRACTED_SECONDS)
    for _ in range(3):
        job.tick(1.0)
    assert ("0", "crash") not in job.leads()


def test_a_restart_of_the_agent_changes_nothing() -> None:
    """Job families, lead exits and retractions go on after a restart, even long after a death in a job of one node."""
    job = Job(ranks=5, world=5)
    job.exit(4, CRASHED, after=1.0, then=EXPLAINS_SECONDS)
    job.exit(0, KILLED, after=1.0, then=SETTLED)
    job.exit(1, TERMINATED, then=SETTLED)
    before = {name: job.shown(name) for name in ("exit_age_seconds", "job_start_age_seconds", "job_ranks_live")}
    job.table = job.table.restarted()
    for key in (job.keys[2], job.keys[3]):
        job.table.ranks.observe_state(key)
    job.table.tick()
    assert {name: job.shown(name) for name in before} == before
    assert -1.0 in before["exit_age_seconds"].values()


def test_the_cause_of_an_exit_is_kept() -> None:
    """The cause that is known when an exit is first exported stays its label."""
    job = Job()
    log = job.table.ranks.liveness.facts.of("job_log")
    job.exit(0, CRASHED, after=1.0, then=1.0)
    assert job.leads() == {}
    for causes_of_log in ({RankLabel("4711", "0"): "ib_retry_exceeded"}, {RankLabel("4711", ""): "a text of the job"}):
        log.set_causes(causes_of_log)
        job.tick(1.0)
        [labels] = job.shown("exit_age_seconds")
        assert labels[6] == "ib_error"


def test_failed_hardware_is_a_cause_before_a_log() -> None:
    """A failed check of a rank's hardware is the exit's cause, even if the job's log names another."""
    job = Job()
    job.table.ranks.liveness.facts.of("job_log").set_causes({RankLabel("4711", ""): "cuda_error"})
    job.table.ranks.liveness.facts.hardware = lambda: {RankLabel("4711", "0"): "gpu_xid"}
    job.exit(0, CRASHED, after=1.0)
    job.exit(2, CRASHED, after=61.0)
    job.tick()
    assert {labels[0]: labels[6] for labels in job.shown("exit_age_seconds")} == {"0": "gpu_xid", "2": "cuda_error"}


def test_a_planned_exit_is_ok() -> None:
    """A rank that exits as its launcher planned is `ok`."""
    job = Job()
    writer = job.table.ranks.liveness.facts.of("nixl_ep")
    writer.set_planned({RankLabel("4711", "3")})
    job.exit(3, TERMINATED, after=1.0, then=SETTLED)
    assert job.leads() == {("3", "ok"): SETTLED}
    writer.close()
    job.tick()
    assert job.leads() == {("3", "ok"): SETTLED}


def test_the_table_of_causes() -> None:
    """At most 40 causes of at most 32 bytes exist, from checks that make a rank unhealthy and from root categories."""
    assert len(causes.CAUSES) <= 40
    assert max(len(word.encode()) for word in causes.CAUSES) <= 32
    roots = {entry.category for entry in failures().entries if entry.role == "root"}
    assert {causes.cause(category) for category in roots} - {""} - causes.HARDWARE == causes.LOG
    without = {category for category in roots if not causes.cause(category)}
    assert without == {"restart_refused", "unkillable", "worker_exit"}
