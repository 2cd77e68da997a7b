"""Inspector's Prometheus mode, live: processes that rewrite their files as the plugin does, and an agent."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from agents import Agent
from neighbours import JOB, VICTIM, SharedNode, as_user, shared_node
from nodes import wait_until, why_no_nodes

from exporters.inspector_prom.exporter import INTERVAL_SECONDS

DATA = Path(__file__).parents[1] / "data/inspector_prom/dump"
NEW, OLD = (
    (DATA / f"nccl_inspector_metrics_{uuid}.prom").read_text()
    for uuid in ("193bc814-ba61-ffc0-146a-09076de46a7e", "24152eea-db09-2408-9201-e151b03450cd")
)
"""As 2.30 and 2.29 wrote them."""
GATHER = ("tensor_model_parallel_group_1", "AllGather", "8-9MB")
OLD_BANDWIDTHS = {
    ("1fa4c2eba3da83", "ReduceScatter", "6.00MB"): 224.695,
    ("82bdbf0ea6cd18", "AllReduce", "4.00MB"): 182.361,
}
PROM_RANK = Path(__file__).with_name("prom_rank.py").read_text()
MODE = {
    "NCCL_PROFILER_PLUGIN": "libnccl-profiler-inspector.so",
    "NCCL_INSPECTOR_ENABLE": "1",
    "NCCL_INSPECTOR_PROM_DUMP": "1",
}
INTERVAL = {"NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "30000000"}
BANDWIDTH = "rankwatch_inspector_mean_bus_bandwidth_bytes_per_second"
RANKS = "rankwatch_inspector_means_ranks"
SILENT = "rankwatch_inspector_silent_ranks"
LOOKS_SECONDS = 3 * INTERVAL_SECONDS + 10.0
"""A look that finds the file, one that finds that it stood still, and what the machine's other work takes."""
HASTY_AGENT = """
import sys
from agent.cli.main import main
from exporters.inspector import exporter
exporter.GRACE_SECONDS = 0.0
sys.exit(main())
"""
"""The agent, but that it says at once, not after a minute, whose records will never come."""

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(why_no_nodes() is not None, reason=why_no_nodes() or ""),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv (util-linux) not found"),
]


class MeansRank:
    """A rank of the job, of four, and its file in a directory that no configuration names."""

    def __init__(self, shared: SharedNode, rank: int, settings: dict[str, str]) -> None:
        self.path = (
            shared.directory / f"victim-job/nccl_inspector_metrics_00000000-0000-4000-8000-00000000000{rank}.prom"
        )
        names = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "4", "SLURM_JOB_ID": JOB}
        command = [*as_user(VICTIM), sys.executable, "-S", "-c", PROM_RANK, str(self.path)]
        self._process = shared.start(command, names | settings)

    def write(self, text: str) -> None:
        """Have it write this."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{text!r}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "written\n"


def bandwidths(agent: Agent, rank: int) -> dict[tuple[str, str, str], float]:
    """What is shown of a rank of the job: gigabytes per second by communicator, operation and size of its messages."""
    return {
        (each.labels["comm_name"] or each.labels["comm"], each.labels["operation"], each.labels["message_size"]): (
            each.value / 1e9
        )
        for each in agent.samples(BANDWIDTH, job_id=JOB, rank=str(rank))
    }


def test_means_are_shown_as_long_as_their_rank_lives() -> None:
    """Ranks in Prometheus mode have what they wrote last, and are not silent; one that is killed has nothing."""
    with shared_node() as shared:
        ranks = [MeansRank(shared, rank, MODE | INTERVAL) for rank in (0, 1)]
        ranks[0].write(NEW)
        ranks[1].write(OLD)
        with shared.agent("-c", HASTY_AGENT) as agent:
            wait_until(lambda: bandwidths(agent, 0) and bandwidths(agent, 1), LOOKS_SECONDS, "means of both")
            first = bandwidths(agent, 0)
            assert len(first) == 9
            assert first[GATHER] == pytest.approx(155.809)
            assert bandwidths(agent, 1) == pytest.approx(OLD_BANDWIDTHS)
            assert agent.value(RANKS, state="read") == 2.0

            ranks[0].write(NEW.replace(" 155.809\n", " 77.5\n"))
            MeansRank(shared, 2, MODE)  # without an interval: it will never write
            wait_until(lambda: bandwidths(agent, 0).get(GATHER) == pytest.approx(77.5), LOOKS_SECONDS, "the next means")
            assert bandwidths(agent, 0).keys() == first.keys()
            agent.wait_for(SILENT, 1.0, seconds=LOOKS_SECONDS, reason="prometheus_mode")

            info = agent.samples("rankwatch_rank_info", rank="0")
            shared.node.kill(int(info[0].labels["pid"]))
            wait_until(lambda: not bandwidths(agent, 0), LOOKS_SECONDS, "the end of its series")
            assert ranks[0].path.stat().st_size > 0
            assert len(bandwidths(agent, 1)) == 2
            assert agent.value(RANKS, state="read") == 1.0
            assert agent.value(SILENT, reason="prometheus_mode") == 1.0
            assert agent.value("rankwatch_exporter_up", exporter="inspector_prom") == 1.0
