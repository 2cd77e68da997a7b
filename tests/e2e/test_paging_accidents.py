"""All that can befall a job, side by side, and who is told: with thresholds and windows that fit in two minutes."""

from __future__ import annotations

import contextlib
import functools
import signal
from collections.abc import Iterator

import pytest
from clusters import ClusterJob
from drills import Accident, Drill, drill
from memory_groups import NoMemoryGroupError, small_group
from paging import FULL, WATCHES, why_no_pages
from quiet_jobs import QuietJob

WHY_NOT = why_no_pages()
if not FULL:
    WHY_NOT = "only with RANKWATCH_TEST_FULL=1: takes three minutes"
pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(300),
    pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or ""),
]

SETTLE_SECONDS = 140.0
THRESHOLDS = {
    "page_lived": "long|short",
    "page_ranks": 4,
    "unreachable_seconds": 60,
    "stalled_seconds": 50,
    "slow_for": "10s",
    "slow_min_operations": 20,
    "slow_min_share": 0.001,
}
SHORTER = {
    "interval: 30s": "interval: 5s",
    "interval: 45s": "interval: 5s",
    "interval: 1m": "interval: 5s",
    "interval: 2m": "interval: 5s",
    "for: 45s": "for: 10s",
    "total[1m]": "total[30s]",
    'other"}[1m]': 'other"}[30s]',
    "[200s]": "[20s]",
    "total[5m]": "total[30s]",
    'other"}[5m]': 'other"}[30s]',
    "seconds[10m]": "seconds[30s]",
    "[6h:4m] offset 15m": "[1h:5s] offset 40s",
    "[6h:4m]": "[1h:5s]",
}


OPTIONS = {"shorter": SHORTER, "ticket_wait": "1m"}


def nothing(job: ClusterJob) -> None:
    """The accident is in the job's options."""


def stop_rank(job: ClusterJob) -> None:
    """SIGSTOP for rank 2."""
    job.signal_rank(2, signal.SIGSTOP)


def hoard(job: QuietJob) -> None:
    """Rank 0 takes all the memory there is."""
    job.grow(0)


def cancel(job: ClusterJob) -> None:
    """SIGTERM for all launchers, which pass it on."""
    job.signal_launchers(signal.SIGTERM)


def kill_agent(job: ClusterJob) -> None:
    """The agent of the second node dies and does not come back."""
    job.nodes[1].agent.kill9()


def kill_agent_and_rank(job: ClusterJob) -> None:
    """The agent of the second node and a rank there die; the agent comes back."""
    job.nodes[1].agent.kill9()
    job.signal_rank(2)
    job.nodes[1].agent.start()


def kill_agent_and_ranks(job: ClusterJob) -> None:
    """The agent of the second node and all ranks there die; the agent comes back."""
    job.nodes[1].agent.kill9()
    job.signal_rank(2)
    job.signal_rank(3)
    job.nodes[1].agent.start()


def lose_first_node(job: ClusterJob) -> None:
    """The power of rank 0's node fails."""
    job.nodes[0].lose_power()


def crash_and_requeue(job: ClusterJob) -> None:
    """SIGSEGV ends the job, which is started anew on the same nodes in the other order."""
    job.signal_rank(1, signal.SIGSEGV)
    job.requeue(job.nodes[::-1])


SLOW_HALF = ("--slow-sigterm-ranks", "0,2")
CALM = ("--records-per-second", "20")
LATE_SIGTERM = (*CALM, *SLOW_HALF, "--slow-sigterm-seconds")
ACCIDENTS = {
    "stopped": Accident(
        (0, 1), stop_rank, (*CALM, "--grace", "1"), what="SIGSTOP for one rank", to_be_told="RankUnresponsive (page)"
    ),
    "stuck": Accident(
        (0, 1),
        nothing,
        ("--stuck", "3", "--stuck-at-step", "300", "--grace", "1"),
        what="A rank does not reach the next collective, and nothing shows why",
        to_be_told="JobStalled (ticket)",
    ),
    "slow": Accident(
        (0, 1),
        nothing,
        ("--slow-link", "1", "--slow-link-factor", "8", "--from-step", "300"),
        what="A link is eight times slower than before",
        to_be_told="SlowCommunicator (ticket)",
    ),
    "late": Accident(
        (0, 1),
        nothing,
        ("--straggler", "2", "--straggler-delay-us", "4000"),
        what="The others wait for one rank in each step",
        to_be_told="StragglerRank (ticket)",
    ),
    "blind": Accident(
        (2, 3),
        kill_agent,
        CALM,
        what="An agent dies for good; its node and job go on",
        to_be_told="NodeLost (page)",
        about="NodeLost",
    ),
    "blinded": Accident(
        (4, 5),
        kill_agent_and_rank,
        CALM,
        what="An agent and a rank die at once; the agent comes back",
        to_be_told="RankDead (page)",
    ),
    "halved": Accident(
        (6, 7),
        kill_agent_and_ranks,
        CALM,
        what="An agent and all ranks of its node die at once; the agent comes back",
        to_be_told="JobStalled (page)",
    ),
    "beheaded": Accident(
        (8, 9),
        lose_first_node,
        CALM,
        what="The power of rank 0's node fails",
        to_be_told="NodeLost (page)",
        about="NodeLost",
    ),
    "cancelled": Accident(
        (0, 1), cancel, (*LATE_SIGTERM, "30", "--grace", "40"), what="Cancelled; half of the ranks save for 30 s"
    ),
    "preempted": Accident(
        (0, 1), cancel, (*LATE_SIGTERM, "60", "--grace", "5"), what="Preempted; SIGKILL after 5 s for half of the ranks"
    ),
    "timed-out": Accident(
        (0, 1),
        cancel,
        (*CALM, "--slow-sigterm-ranks", "1", "--slow-sigterm-seconds", "60", "--grace", "30"),
        what="Time limit; SIGKILL after 30 s for one rank",
    ),
    "requeued": Accident(
        (0, 1),
        crash_and_requeue,
        (*CALM, "--teardown", "torchrun", "--grace", "1"),
        what="SIGSEGV ends the job, which runs again at once",
    ),
}


@pytest.fixture(scope="module")
def drills(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Drill]]:
    """Provide what came of all accidents, by watch; without memory groups there is one fewer."""
    with contextlib.ExitStack() as stack:
        accidents = dict(ACCIDENTS)
        with contextlib.suppress(NoMemoryGroupError):
            job = functools.partial(QuietJob, group=stack.enter_context(small_group()))
            what = "The OOM killer takes a rank; the other waits"
            accidents["hoarded"] = Accident((0, 1), hoard, ranks=2, job=job, what=what, to_be_told="RankDead (page)")
        directory = tmp_path_factory.mktemp("accidents")
        yield stack.enter_context(drill(directory, 10, accidents, SETTLE_SECONDS, THRESHOLDS, WATCHES, **OPTIONS))


@pytest.fixture(params=WATCHES)
def after(drills: dict[str, Drill], request: pytest.FixtureRequest) -> Drill:
    """Provide what one watch told."""
    return drills[request.param]


@pytest.mark.parametrize(
    ("job_id", "alert", "words"),
    [
        ("stopped", "RankUnresponsive", ["rank 2 on 10.0.0.11 does not respond", "SIGSTOP"]),
        ("blinded", "RankDead", ["rank 2 on 10.0.0.15 exited before the others; 3 ranks still run"]),
        ("halved", "JobStalled", ["Job halved makes no progress"]),
    ],
)
def test_an_accident_is_one_page(after: Drill, job_id: str, alert: str, words: list[str]) -> None:
    """One notification, of the cause alone, that names job, rank, node and cause."""
    page = after.the_page(job_id)
    assert page.names == [alert]
    assert page.says(job_id, *words)


def test_lost_nodes_are_one_page(after: Drill) -> None:
    """Nodes without power or without an agent are one page, and their jobs raise no other alert."""
    pages = [page for page in after.watch.told("NodeLost") if page.alerts]
    assert {page.receiver for page in pages} == {"page"}
    assert {name for page in pages for name in page.names} == {"NodeLost"}
    assert pages[-1].says("10.0.0.18 is lost, with ranks of job beheaded", "10.0.0.13 is lost, with ranks of job blind")
    assert after.fired("beheaded") == after.fired("blind") == {"NodeLost"}


def test_what_the_oom_killer_did_is_one_page(after: Drill) -> None:
    """A rank that grew over its memory group's limit: one page, and it says who killed it."""
    if not after.has("hoarded"):
        pytest.skip("no memory group can be made")
    page = after.the_page("hoarded")
    assert page.names == ["RankDead"]
    assert page.says("rank 0 on 10.0.0.10 was killed by the OOM killer")


@pytest.mark.parametrize(
    ("job_id", "alert", "words"),
    [
        ("late", "StragglerRank", ["rank 2 on 10.0.0.11", "the program itself"]),
        ("stuck", "JobStalled", ["Job stuck makes no progress", "does not reach the next one"]),
        ("slow", "SlowCommunicator", ["too little bandwidth", "a link"]),
    ],
)
def test_what_may_be_no_fault_is_a_ticket(after: Drill, job_id: str, alert: str, words: list[str]) -> None:
    """A late rank, a slow link and a silence without a cause are tickets with the alert of their own."""
    assert after.told(job_id, "page") == []
    [ticket] = after.told(job_id, "ticket")
    assert ticket.names == [alert]
    assert ticket.says(job_id, *words)


@pytest.mark.parametrize("job_id", ["cancelled", "preempted", "timed-out", "requeued"])
def test_a_normal_end_is_silence(after: Drill, job_id: str) -> None:
    """SIGTERM that half of the ranks heed late or never, and a crash after which the job runs again: no alert."""
    assert after.fired(job_id) == set()
    assert [after.told(job_id, receiver) for receiver in ("page", "ticket", "info")] == [[], [], []]
