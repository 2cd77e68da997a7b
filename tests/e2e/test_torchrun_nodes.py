"""Real torchrun on two nodes, each with its agent, and the shipped rules: the ranks that pages name, and the exits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from clusters import Peculiarity
from nodes import wait_until
from paging import Site, site, why_no_pages
from torch_jobs import WITHOUT_NCCL, TorchJob, ends, needs_torch
from watches import Page

from agent.evidence.folder import bundles, read_summary

WHY_NOT = why_no_pages()
pytestmark = [*needs_torch, pytest.mark.root, pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")]
LARGE_AND_OLD = {"page_lived": "long|short", "page_ranks": 2}
STARTED_SECONDS = 300.0
SETTLED_SECONDS = 120.0
"""Time from a launcher's start until its ranks, which use no NCCL, are known."""
ENDED_SECONDS = 60.0
PAGE_SECONDS = 120.0
OVER_SECONDS = 180.0
SEPARATE_STORES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Without this setting torchrun 2.13 hangs when a node joins: the node waits for an address that is never written."""
HEAD, OTHER = "10.0.0.10", "10.0.0.11"


def all_are(state: str, *ranks: int) -> dict[str, str]:
    """Return this state for all these ranks."""
    return {str(rank): state for rank in ranks}


QUIET = {
    "ended": (all_are("finished", *range(4)), all_are("finished", *range(4, 8))),
    "again-end": (all_are("finished", 0, 1), {}),
}
"""The states of jobs that ended with status 0."""


class Jobs(NamedTuple):
    """The running site with its jobs."""

    site: Site
    jobs: dict[str, TorchJob]
    folders: tuple[Path, Path]
    """The directories of bundles."""

    def states(self, job_id: str) -> list[dict[str, str]]:
        """Return the states of a job's ranks, by node."""
        return [node.agent.states(job_id=job_id) for node in self.site.cluster.nodes]

    def wait_for(self, job_id: str, *states: Mapping[str, str], seconds: float = ENDED_SECONDS) -> None:
        """Wait until a job's ranks have these states, by node."""
        wait_until(lambda: self.states(job_id) == [*states], seconds, f"{job_id}: {states}, not {self.states(job_id)}")

    def page(self, job_id: str, receiver: str = "page") -> Page:
        """Wait for the first notification about a job, and return it."""
        return next(iter(wait_until(lambda: self.site.pages(job_id, receiver), PAGE_SECONDS, f"a page for {job_id}")))

    def alerts(self, job_id: str) -> list[str]:
        """Return the alerts that have fired for a job."""
        fired = f'count by (alertname) (last_over_time(ALERTS{{alertstate="firing", job_id="{job_id}"}}[1h]))'
        return [series["metric"]["alertname"] for series in self.site.watches[0].prometheus.query(fired)]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """Provide all jobs after their events, which start once all ranks are known."""
    directory = tmp_path_factory.mktemp("torchrun")
    folders = directory / "evidence0", directory / "evidence1"
    peculiar = {
        number: Peculiarity(exporters={**WITHOUT_NCCL, "evidence": {"path": str(folder)}})
        for number, folder in enumerate(folders)
    }
    with site(directory, 2, LARGE_AND_OLD, peculiar=peculiar) as running, contextlib.ExitStack() as stack:
        both, first = running.cluster.nodes, running.cluster.nodes[:1]
        more = ("--max-restarts=3",)
        made = [
            TorchJob(directory, "elastic", 2, *more, nodes=first, nnodes="1:2", env=SEPARATE_STORES),
            TorchJob(directory, "killed", 4, nodes=both, reduces=False),
            TorchJob(directory, "raised", 4, nodes=both),
            TorchJob(directory, "ended", 4, nodes=both),
            TorchJob(directory, "early", 2, nodes=first, reduces=False),
            TorchJob(directory, "again-key", 2, nodes=first, reduces=False),
            TorchJob(directory, "again-end", 2, nodes=first, reduces=False),
        ]
        for job in made:
            stack.enter_context(job)
        jobs = Jobs(running, {job.job_id: job for job in made}, folders)
        jobs.wait_for("elastic", all_are("alive", 0, 1), {}, seconds=STARTED_SECONDS)
        jobs.jobs["elastic"].join(both[1])
        for job in made[1:]:
            halves = (range(4), range(4, 8)) if job.ranks_per_node == 4 else (range(2), ())
            jobs.wait_for(job.job_id, *(all_are("alive", *half) for half in halves), seconds=STARTED_SECONDS)
        assert jobs.jobs["ended"].end() == [0, 0]
        jobs.jobs["killed"].order(5, "SIGKILL")
        jobs.jobs["raised"].order(5, "key")
        jobs.jobs["early"].order(1, "early")
        jobs.jobs["again-key"].order(1, "key")
        assert jobs.jobs["again-end"].end() == [0]
        for job_id, first_run in QUIET.items():
            jobs.wait_for(job_id, *first_run)
        jobs.wait_for("again-key", {"0": "exited", "1": "dead"}, {})
        for how in ("key", "end"):
            again = TorchJob(jobs.jobs["early"].orders, f"again-{how}", 2, nodes=first, reduces=False)
            jobs.jobs[again.job_id] = stack.enter_context(again)
        yield jobs


def test_a_killed_rank_of_eight_is_paged_on_its_node(jobs: Jobs) -> None:
    """If rank 5 is killed by SIGKILL, its node's agent reports it, and one page has the rank and the node."""
    jobs.wait_for("killed", all_are("alive", *range(4)), all_are("exited", 4, 6, 7) | {"5": "dead"})
    other = jobs.site.cluster.nodes[1].agent
    assert {words for words, _ in ends(other, "killed").values()} == {"killed (SIGKILL)", "killed (SIGTERM)"}
    assert ends(other, "killed")["5"] == ("killed (SIGKILL)", "dead")
    page = jobs.page("killed")
    assert [alert["labels"]["rank"] for alert in page.alerts] == ["5"]
    assert page.says(f"rank 5 on {OTHER} was killed, and others ended after it; 4 ranks still run")
    assert page.says("DO: If the job does not restart by itself, cancel and requeue it.")


def test_an_exception_of_one_of_eight_is_paged_on_its_node(jobs: Jobs) -> None:
    """A KeyError of rank 5 is paged; the page names at most one of the ranks that fail because of it."""
    page = jobs.page("raised")
    assert page.says(f"rank 5 on {OTHER} failed", "CAUSE: program error", "no rank runs any more")
    named = {(alert["labels"]["rank"], alert["labels"]["node"]) for alert in page.alerts}
    assert {node for rank, node in named if rank != "5"} <= {HEAD}
    assert ends(jobs.site.cluster.nodes[1].agent, "raised")["5"] == ("exited with status 1, raised KeyError", "dead")
    assert {state for _, state in ends(jobs.site.cluster.nodes[0].agent, "raised").values()} <= {"dead", "exited"}


def test_a_rank_that_leaves_early_is_information(jobs: Jobs) -> None:
    """If one rank exits with status 0 while its peer waits, RankDead is information, not a page."""
    jobs.wait_for("early", {"0": "alive", "1": "dead"}, {}, seconds=PAGE_SECONDS)
    assert jobs.page("early", "info").says(f"rank 1 on {HEAD} exited before the others; 1 ranks still run")
    assert jobs.site.pages("early") == []


def test_an_elastic_job_grows_and_shrinks(jobs: Jobs) -> None:
    """A node joins and leaves: four ranks, then two; torchrun counts one restart, and none for the joining node."""
    elastic = jobs.jobs["elastic"]
    head = jobs.site.cluster.nodes[0].agent
    jobs.wait_for("elastic", all_are("alive", 0, 1), all_are("alive", 2, 3), seconds=SETTLED_SECONDS)
    assert head.value("rankwatch_job_expected_ranks", job_id="elastic", source="environment") == 4
    assert head.value("rankwatch_job_restarts_left", job_id="elastic") == 3
    elastic.terminate(1)
    head.wait_for("rankwatch_job_restarts_left", 2, job_id="elastic", seconds=SETTLED_SECONDS)
    jobs.wait_for("elastic", all_are("alive", 0, 1), all_are("exited", 2, 3))
    assert head.value("rankwatch_job_expected_ranks", job_id="elastic", source="environment") == 2
    [info] = head.samples("rankwatch_job_info", job_id="elastic")
    assert info.labels["restarts"] == "1"


@pytest.mark.parametrize("how", ["key", "end"])
def test_a_second_run_has_the_id_of_the_first(jobs: Jobs, how: str) -> None:
    """Both ranks of the second run are alive; exits of the first run are retracted, and its page ends."""
    job_id = f"again-{how}"
    jobs.wait_for(job_id, all_are("alive", 0, 1), {}, seconds=SETTLED_SECONDS)
    exits = jobs.site.cluster.nodes[0].agent.samples("rankwatch_exit_age_seconds", job_id=job_id)
    assert {series.value for series in exits} == {-1.0}
    if how == "key":
        jobs.page(job_id)
        wait_until(
            lambda: jobs.site.watches[0].notifications(job_id)[-1].alerts == [], OVER_SECONDS, "the end of the page"
        )
    assert jobs.jobs[job_id].end() == [0]
    jobs.wait_for(job_id, *QUIET["again-end"])
    assert jobs.alerts(job_id) == (["RankDead"] if how == "key" else [])


@pytest.mark.parametrize("job_id", ["ended", "elastic"])
def test_no_alert_fires(jobs: Jobs, job_id: str) -> None:
    """At the end no alert has fired for the job that ended, nor for the job that grew and shrank."""
    assert jobs.alerts(job_id) == []
    assert jobs.site.pages(job_id) == jobs.site.pages(job_id, "info") == []


def test_a_clean_end_leaves_no_bundle(jobs: Jobs) -> None:
    """The job with a killed rank has a bundle; the job whose eight ranks ended with status 0 has none."""
    owners = {read_summary(folder, name).job_id for folder in jobs.folders for name in bundles(folder)}
    assert "killed" in owners
    assert "ended" not in owners
