"""RAS on four nodes, end to end: each with its agent, its own network and two ranks of NVIDIA's RAS."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from agents import Agent
from clusters import Cluster, ClusterNode, why_no_cluster
from full import full
from nodes import wait_until
from ras_jobs import POLL_SECONDS, WORLD, RasJob, why_no_ras

WHY_NOT = why_no_ras() or why_no_cluster()
pytestmark = [full, pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")]

FAST = {"NCCL_RAS_TIMEOUT_FACTOR": "0.1"}
"""RAS declares a process dead after 6 s instead of 60 s."""
FIRST_REPORT_SECONDS = 25.0
RANKS_PER_NODE = 2
JOB_IDS = map(str, itertools.count(4801))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Provide four nodes, which the jobs of this module use in turn."""
    with Cluster(tmp_path_factory.mktemp("cluster"), 4) as cluster:
        yield cluster
        for node in cluster.nodes:
            assert "Traceback" not in node.agent.log()


def job_on(cluster: Cluster, directory: Path, env: Mapping[str, str] | None = None) -> RasJob:
    """Start eight ranks, two on each node; the first node reports at once."""
    machines = [(node.name, node.machine) for node in cluster.nodes]
    job = RasJob(directory, 8, ranks_per_node=RANKS_PER_NODE, machines=machines, job_id=next(JOB_IDS), env=env)
    try:
        wait_until(lambda: responding(cluster.nodes[0], job) == 8, FIRST_REPORT_SECONDS, "a report of all ranks")
    except BaseException:
        job.close()
        raise
    return job


def responding(node: ClusterNode, job: RasJob) -> float | None:
    """Return the number of ranks that replied in the node's last report."""
    return node.agent.value("rankwatch_communicator_ranks", job_id=job.job_id, comm=WORLD, state="responding")


def missing(agent: Agent, job: RasJob) -> list[tuple[str, ...]]:
    """Return the world's missing ranks in the agent's last report: rank, node and reason."""
    samples = agent.samples("rankwatch_communicator_rank_missing", job_id=job.job_id, comm=WORLD)
    return sorted(tuple(sample.labels[name] for name in ("rank", "host", "reason")) for sample in samples)


def test_the_first_node_asks_and_the_last_stands_by(cluster: Cluster, tmp_path: Path) -> None:
    """The node of rank 0 is reporter, the node of the last rank is standby, and no other node queries."""
    with job_on(cluster, tmp_path) as job:
        roles = [
            [sample.labels["role"] for sample in node.agent.samples("rankwatch_ras_reporter", job_id=job.job_id)]
            for node in cluster.nodes
        ]
        assert roles == [["reporter"], ["none"], ["none"], ["standby"]]
        wait_until(lambda: responding(cluster.nodes[3], job) == 8, FIRST_REPORT_SECONDS, "the standby's report")
        for node in cluster.nodes[1:3]:
            assert node.agent.value("rankwatch_ras_queries_total") == 0
            assert responding(node, job) is None


@pytest.mark.timeout(150)
def test_when_the_reporters_node_is_lost_the_standby_exports_the_missing_ranks(tmp_path: Path) -> None:
    """If the node of rank 0 loses power, the standby names only that node's ranks."""
    (tmp_path / "cluster").mkdir()
    with Cluster(tmp_path / "cluster", 4) as cluster, job_on(cluster, tmp_path, env=FAST) as job:
        standby = cluster.nodes[3].agent
        wait_until(lambda: responding(cluster.nodes[3], job) == 8, FIRST_REPORT_SECONDS, "the standby's report")
        cluster.nodes[0].lose_power()
        wait_until(lambda: missing(standby, job) != [], 4 * POLL_SECONDS, "the missing ranks")
        named = [each[:2] for each in missing(standby, job)]
        assert named == [(rank, cluster.nodes[0].name) for rank in ("0", "1")]
        wait_until(lambda: {each[2] for each in missing(standby, job)} == {"dead"}, 3 * POLL_SECONDS, "their deaths")
        assert [each[:2] for each in missing(standby, job)] == named
