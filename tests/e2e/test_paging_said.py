"""What jobs say themselves, in their logs and plans, and what people are then told; live, from a rank to a page."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator

import pytest
from clusters import Peculiarity
from paging import why_no_pages
from quiet_jobs import QuietJob
from situations import RANK_DEAD
from stages import Cast, Disturbance, Situation, Stage, stage

WHY_NOT = why_no_pages()
pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(360),
    pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or ""),
]

YOUNG = {"page_lived": "long|short", "page_ranks": 4}
READ_SECONDS = 60.0
"""Until a log is found to be a job's and Prometheus has what it says: who writes it is asked four times a minute."""
APART_SECONDS = 4.0
"""Exits of two nodes that are further apart are not one event."""
QUIET_SECONDS = 60.0
"""Longer than the death of a rank that others wait for takes to be told."""
NODES = (0, 1)
OUT = "logs/{job_id}.{node}.out"
EP_LOG = "logs/{job_id}/nixl-ep-node-{node}.log"
PLAN = [[0, 1, 2, 3], [0, 1, 2, -3]]
"""Rank 3 is to be killed in phase 1."""
STARTED = "NCCL INFO NET/IB : Using [0]mlx5_0:1/IB"
TIMED_OUT = (
    "[rank{0}]:[E1119 21:32:35.000000000 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600014 "
    "milliseconds before timing out."
)
MISMATCH = (
    "RuntimeError: Detected mismatch between collectives on ranks. Rank 2 is running collective: "
    "CollectiveFingerPrint(SequenceNumber=5, OpType=ALLREDUCE), but Rank 0 is running collective: "
    "CollectiveFingerPrint(SequenceNumber=5, OpType=BROADCAST)."
)
PORT_ERROR = "{0}: NCCL WARN NET/IB : mlx5_3:1 Got non-fatal async event: port error(10)"


def wait_until_read(stage: Stage, name: str, series: str) -> None:
    """Wait until Prometheus has what the agents read in the logs of a job."""
    watches = stage.site.watches
    stage.wait(lambda: all(each.prometheus.value(series) for each in watches), READ_SECONDS, f"what {name} says")


def fail(rank: int, line: str) -> Callable[[Stage, str], None]:
    """Return the story of a rank that aborts and whose log says why; the others' time is up some seconds later."""

    def story(stage: Stage, name: str) -> None:
        job: QuietJob = stage.jobs[name]
        for each in range(job.ranks):
            job.say(each, STARTED)
        stage.pass_time(READ_SECONDS)
        job.say(rank, line.format(rank))
        with stage.event(name):
            job.signal_rank(rank, signal.SIGABRT)
        stage.pass_time(APART_SECONDS)
        for each in set(range(job.ranks)) - {rank}:
            job.say(each, TIMED_OUT.format(each))
        job.signal_all(signal.SIGABRT)

    return story


def kill_in_phase_1(rank: int) -> Callable[[Stage, str], None]:
    """Return the story of a rank that is killed in phase 1; the others go on."""

    def story(stage: Stage, name: str) -> None:
        job: QuietJob = stage.jobs[name]
        (job.log_of(0).parent / "nixl-ep-plan.json").write_text(json.dumps(PLAN))
        for what in ("start phase 0", "end phase 0", "start phase 1"):
            for each in range(job.ranks):
                job.say(each, f"global_rank={each}, local_rank={each % 2} -> {what}")
        wait_until_read(stage, name, f'sum(rankwatch_nixl_ep_phase{{job_id="{job.job_id}"}}) == {job.ranks}')
        with stage.event(name):
            job.signal_rank(rank, signal.SIGKILL)
        for each in set(range(job.ranks)) - {rank}:
            job.say(each, f"global_rank={each}, local_rank={each % 2} -> detected rank failures: {{{rank}}}")

    return story


SITUATIONS: dict[str, Situation] = {
    "mismatch": Situation(
        "A rank aborts, then the others; its log says that they ran different collectives",
        Cast(NODES, log=OUT),
        fail(2, MISMATCH),
        (RANK_DEAD,),
        (
            "rank 2 on 10.0.0.11 failed",
            "Likely cause: collective mismatch.",
        ),
    ),
    "port": Situation(
        "A rank aborts, then the others; its log says that its port failed",
        Cast(NODES, log=OUT),
        fail(3, PORT_ERROR),
        (RANK_DEAD,),
        (
            "rank 3 on 10.0.0.11 failed",
            "Likely cause: ib error.",
        ),
    ),
    "silent-log": Situation(
        "A rank aborts, then the others; no log says why",
        Cast(NODES, log=OUT),
        fail(0, ""),
        (RANK_DEAD,),
        (
            "rank 0 on 10.0.0.10 failed",
            "an error of the program",
        ),
    ),
    "planned": Situation(
        "SIGKILL for a rank as the plan has it (NIXL-EP)", Cast(NODES, job_id="7001", log=EP_LOG), kill_in_phase_1(3)
    ),
    "unplanned": Situation(
        "SIGKILL for a rank that the plan keeps (NIXL-EP)",
        Cast(NODES, job_id="7002", log=EP_LOG),
        kill_in_phase_1(2),
        (RANK_DEAD,),
        ("rank 2 on 10.0.0.11 was killed (SIGKILL)",),
    ),
}
WAITING = {"waiting": Disturbance("Nothing; a page would have come", lambda _: None, QUIET_SECONDS)}


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Provide what came of all situations."""
    directory = tmp_path_factory.mktemp("said")
    said = Peculiarity(exporters={"nixl_ep": {"paths": [f"{directory}/logs/%j/nixl-ep-node-*.log"]}})
    with stage(directory, len(NODES), SITUATIONS, WAITING, YOUNG, peculiar=dict.fromkeys(NODES, said)) as this:
        yield this


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_job_is_told_by_its_own_words(after: Stage, name: str) -> None:
    """Its log names the cause on the page, and a kill that its plan has is none."""
    after.check(name, after.site.watches[0])
