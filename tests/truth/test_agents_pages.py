"""The agents' series of exits and jobs are right by the scraper's clock, whatever clock errors and faults the nodes
have."""

from __future__ import annotations

from signal import SIGKILL, SIGSEGV, SIGTERM

import pytest
from play import EVENT, Play, Situation
from site_of_agents import Job, Site

EXITS = "rankwatch_exit_age_seconds"


def exits(site: Site, time: float) -> dict[tuple[str, str, str], float]:
    """Return each lead exit's time on the scraper's clock, by node, rank and class; -1 if retracted."""
    seen = site.seen(EXITS, time)
    return {(node, w[1], w[5]): age if age < 0 else time - age for (node, *w), age in seen.items()}


def site_of(seed: int = 0, interval: float = 5.0) -> tuple[Site, Job]:
    """Return a site with the clock errors of a seed, and a job that has run for 100 s."""
    play = Play(seed, Situation("", (), warm_up=100.0), interval)
    return play.site, play.job


@pytest.mark.parametrize("seed", range(8))
def test_a_crash_and_its_teardown(seed: int) -> None:
    """A crash is its node's lead exit, and the first SIGTERM is the other node's; times are exact to 2.1 s."""
    site, job = site_of(seed=seed)
    at = site.now
    job.ranks[1].exit(SIGSEGV)
    job.tear_down()
    site.run(30.0)
    seen = exits(site, EVENT + 25)
    assert seen.keys() == {("n0", "1", "crash"), ("n0", "0", "left"), ("n1", "4", "left")}
    for time in seen.values():
        assert -2.1 <= time - at <= 0.6  # up to 2 s of scrape delay, 50 ppm of 1,000 s
    assert site.seen("rankwatch_job_ranks_live", EVENT + 25) == {("n0", "7"): 0, ("n1", "7"): 0}


@pytest.mark.parametrize("interval", [5.0, 10.0, 15.0, 30.0])
def test_a_kill_while_peers_live(interval: float) -> None:
    """While the others wait, a SIGKILL is a lead exit of class `killed`, and the others still count as live."""
    site, job = site_of(interval=interval)
    job.ranks[5].exit(SIGKILL)
    site.run(120.0)
    assert exits(site, EVENT + 110) == {("n1", "5", "killed"): EVENT}
    assert site.seen("rankwatch_job_ranks_live", EVENT + 110) == {("n0", "7"): 4, ("n1", "7"): 3}


def test_a_cancel_with_ranks_that_stay() -> None:
    """In a cancel a node's only lead exit is its first SIGTERM; the scheduler's record makes all exits `ok`."""
    site, job = site_of()
    job.tear_down(stay={2, 6})
    site.run(10.0)
    job.ended("CANCELLED")
    site.run(20.0)
    assert {key: age < 0 for key, age in exits(site, EVENT + 60).items()} == {
        ("n0", "0", "left"): True, ("n1", "4", "left"): True, ("n0", "0", "ok"): False, ("n1", "4", "ok"): False,
    }  # fmt: skip
    assert {labels[2] for labels in site.seen("rankwatch_job_ended_age_seconds", EVENT + 60)} == {"CANCELLED"}


def test_an_agent_that_is_killed_says_the_same() -> None:
    """An agent with its checkpoint exports the same exits and times after a kill."""
    site, job = site_of()
    job.ranks[0].exit(SIGSEGV)
    site.run(30.0)
    before = exits(site, EVENT + 30)
    site.nodes["n0"].restart_agent()
    site.run(30.0)
    assert exits(site, EVENT + 60) == before == {("n0", "0", "crash"): EVENT}


def test_an_agent_without_its_checkpoint_invents_nothing() -> None:
    """An agent without its checkpoint exports running ranks and no exits."""
    site, job = site_of()
    job.ranks[0].exit(SIGSEGV)
    site.run(30.0)
    site.nodes["n0"].restart_agent(checkpoint=False)
    site.run(30.0)
    assert exits(site, EVENT + 60) == {}
    assert site.seen("rankwatch_job_ranks_live", EVENT + 60) == {("n0", "7"): 3, ("n1", "7"): 4}


def test_a_node_that_is_back_without_its_ranks() -> None:
    """A node that lost power exports `reboot` exits after its return, until a new run retracts them."""
    site, job = site_of()
    site.nodes["n1"].lose_power()
    site.run(10.0)
    for rank in job.ranks[:4]:
        rank.exit(code=1)
    site.run(200.0)
    assert all(site.scrapes["n1"][time] is None for time in (EVENT + 5, EVENT + 100, EVENT + 205))
    site.nodes["n1"].boot()
    site.run(10.0)
    seen = exits(site, EVENT + 220)
    assert seen.keys() == {("n0", "0", "fail"), ("n1", "4", "reboot")}
    assert seen["n1", "4", "reboot"] > seen["n0", "0", "fail"]
    for rank in job.ranks:
        rank.start()
    site.run(20.0)
    assert set(exits(site, EVENT + 240).values()) == {-1.0}


def test_a_job_that_is_requeued_within_seconds() -> None:
    """A new run under the same id has its own age and retracts the old exits on its nodes."""
    site, job = site_of()
    for rank in job.ranks:
        rank.exit(SIGTERM)
    site.run(15.0)
    for rank in job.ranks:
        rank.start(site.nodes["n0"])
    site.run(20.0)
    assert exits(site, EVENT + 35) == {("n0", "0", "left"): -1.0, ("n1", "4", "left"): EVENT}
    assert site.seen("rankwatch_job_start_age_seconds", EVENT + 35)["n0", "7", "live"] == pytest.approx(20.0, abs=0.02)


def test_a_hang_is_an_age_of_progress() -> None:
    """While no operation completes, the age of progress grows and the longest pause stays."""
    site, job = site_of()
    job.progresses = False
    site.run(300.0)
    assert set(site.seen("rankwatch_job_progress_age_seconds", EVENT + 300).values()) == {300.0}
    assert set(site.seen("rankwatch_job_longest_pause_seconds", EVENT + 300).values()) == {1.0}


def test_two_deaths_in_one_minute() -> None:
    """The second death within a minute is the lead exit of its own node."""
    site, job = site_of()
    job.ranks[0].exit(SIGSEGV)
    site.run(20.0)
    job.ranks[1].exit(SIGSEGV)
    site.run(1.0)
    job.ranks[4].exit(SIGSEGV)
    site.run(30.0)
    assert exits(site, EVENT + 50) == {("n0", "0", "crash"): EVENT, ("n1", "4", "crash"): EVENT + 21}
