"""Who asks, whether and how often."""

from __future__ import annotations

import pytest

from agent.api import ProcessKey, RankLabel
from exporters.ras.client import Endpoint
from exporters.ras.jobs import LocalProcess, Rules, Standing, owner_of, standings, to_ask
from exporters.ras.listeners import Server, Site
from exporters.ras.policy import (
    MAX_INTERVAL_SECONDS,
    MIN_INTERVAL_SECONDS,
    Configured,
    Pace,
    interval_seconds,
    looks_isolated,
    next_pace,
    role_of,
)
from exporters.ras.report import Communicator, Report

HERE = Endpoint("127.0.0.1", 28028)
ELSEWHERE = Endpoint("127.0.0.1", 28029)
SOUND = Server((2, 29, 2), 1.0)
NOW = 10_000.0
AUTO = Rules("auto", (2, 29, 2), once=False)


def process(pid: int, job: str = "a", rank: int = 0, *, age: float = 1000.0, foreign: bool = False) -> LocalProcess:
    """A rank of a job of four."""
    return LocalProcess(ProcessKey(pid, 1), RankLabel(job, str(rank)), 4, pid, NOW - age, foreign=foreign)


def site(*pids: int, server: Server = SOUND, unowned: int = 0) -> Site:
    """A site that these processes serve."""
    return Site({ProcessKey(pid, 1): server for pid in pids}, unowned)


def report(
    size: int = 8, missing: int = 0, timeouts: int = 0, processes: frozenset[tuple[str, int]] = frozenset()
) -> Report:
    """A report of one communicator."""
    communicator = Communicator("0xab", size, size - missing, missing, missing, 0)
    return Report("2.30.7", (communicator,), processes, timeouts, {})


@pytest.mark.parametrize(
    ("configured", "ranks", "world_size", "role"),
    [
        ("auto", {0, 1}, 4, "reporter"),
        ("auto", {0, 3}, 4, "reporter"),
        ("auto", {2, 3}, 4, "standby"),
        ("auto", {1, 2}, 4, "none"),
        ("auto", {3}, None, "none"),
        ("auto", set(), 4, "none"),
        ("reporter", {1}, 4, "reporter"),
        ("standby", {0}, 4, "standby"),
        ("off", {0}, 4, "none"),
    ],
)
def test_role(configured: Configured, ranks: set[int], world_size: int | None, role: str) -> None:
    """The node of rank 0 reports, that of the last stands by, nobody else asks; the configuration comes first."""
    assert role_of(configured, ranks, world_size) == role


def standing_of(found: LocalProcess, sites: dict[Endpoint, Site], rules: Rules = AUTO) -> Standing:
    """How the one job stands."""
    (standing,) = standings([found], sites, rules, NOW)
    return standing


def test_a_sound_job_is_asked_where_it_listens() -> None:
    """The reporter asks at the address that a process of the job serves."""
    found = standing_of(process(5), {ELSEWHERE: site(6), HERE: site(5)})
    assert found == Standing("a", "reporter", HERE, None)
    assert to_ask([found]) == {HERE: "reporter"}


@pytest.mark.parametrize(
    ("found", "sites", "rules", "why"),
    [
        (process(5, rank=1), {HERE: site(5)}, AUTO, "not_elected"),
        (process(5), {HERE: site(5)}, Rules("auto", (2, 29, 2), once=True), "single_pass"),
        (process(5), {HERE: site(5)}, Rules("standby", (2, 29, 2), once=True), "single_pass"),
        (process(5), {}, AUTO, "no_listener"),
        (process(5), {HERE: site(6)}, AUTO, "no_listener"),
        (process(5, foreign=True), {}, AUTO, "network_namespace"),
        (process(5), {HERE: site(5, unowned=1)}, AUTO, "unowned_listener"),
        (process(5), {HERE: site(5, server=Server(None, 1.0))}, AUTO, "version_unknown"),
        (process(5), {HERE: site(5, server=Server((2, 29, 1), 1.0))}, AUTO, "version_old"),
        (
            process(5, age=119),
            {HERE: site(5, server=Server((2, 27, 3), 1.0))},
            Rules("auto", (2, 27, 3), once=False),
            "process_young",
        ),
        (
            process(5, age=121),
            {HERE: site(5, server=Server((2, 27, 3), 1.0))},
            Rules("auto", (2, 27, 3), once=False),
            None,
        ),
        (process(5, age=0), {HERE: site(5)}, AUTO, None),
        (process(5), {HERE: site(5)}, Rules("reporter", (2, 29, 2), once=True), None),
    ],
)
def test_why_a_job_is_not_asked(
    found: LocalProcess, sites: dict[Endpoint, Site], rules: Rules, why: str | None
) -> None:
    """Each reason not to ask is given as that reason, and nobody refused is asked."""
    standing = standing_of(found, sites, rules)
    assert standing.refusal == why
    assert bool(to_ask([standing])) == (why is None)


def test_one_old_library_or_young_process_holds_back_all_at_its_address() -> None:
    """A connection reaches any process of the address: the least sound of them decides."""
    mixed = Site({ProcessKey(5, 1): SOUND, ProcessKey(6, 1): Server((2, 27, 7), 1.0)}, 0)
    both = [process(5, "a"), process(6, "b", age=1.0)]
    assert [each.refusal for each in standings(both, {HERE: mixed}, AUTO, NOW)] == ["version_old"] * 2
    admitted = Rules("auto", (2, 27, 3), once=False)
    assert [each.refusal for each in standings(both, {HERE: mixed}, admitted, NOW)] == ["process_young"] * 2


def test_a_job_is_asked_at_one_address_and_an_address_once() -> None:
    """Of two addresses of one job one is asked; an address of two jobs at the pace of the more eager one."""
    two_places = standings([process(5), process(6, rank=1)], {HERE: site(5), ELSEWHERE: site(6)}, AUTO, NOW)
    assert to_ask(two_places) == {HERE: "reporter"}
    two_jobs = standings([process(5, "a", rank=3), process(6, "b")], {HERE: site(5, 6)}, AUTO, NOW)
    assert to_ask(two_jobs) == {HERE: "reporter"}


@pytest.mark.parametrize(
    ("role", "pace", "seconds"),
    [
        ("reporter", Pace(), MIN_INTERVAL_SECONDS),
        ("reporter", Pace(ranks=512, cost_seconds=0.05), 10.0),
        ("reporter", Pace(ranks=1000), 30.0),
        ("reporter", Pace(ranks=2000), 120.0),
        ("reporter", Pace(ranks=8, cost_seconds=0.3), 30.0),
        ("reporter", Pace(failures=1), 20.0),
        ("reporter", Pace(failures=3), 80.0),
        ("reporter", Pace(failures=50), MAX_INTERVAL_SECONDS),
        ("reporter", Pace(ranks=1_000_000), MAX_INTERVAL_SECONDS),
        ("standby", Pace(), 40.0),
        ("standby", Pace(missing=True), 10.0),
    ],
)
def test_interval(role: str, pace: Pace, seconds: float) -> None:
    """The interval grows with the job, its cost and its failures, within its bounds, give or take a tenth."""
    assert interval_seconds(role, pace, 0.5) == pytest.approx(seconds)  # type: ignore[arg-type]
    assert interval_seconds(role, pace, 0.0) == pytest.approx(0.9 * seconds)  # type: ignore[arg-type]
    assert interval_seconds(role, pace, 1.0) == pytest.approx(1.1 * seconds)  # type: ignore[arg-type]


def test_pace_learns_from_clean_queries_and_backs_off_from_others() -> None:
    """A clean query sets the cost and ends the back-off; one that waited for peers, or failed, does neither."""
    clean = next_pace(Pace(failures=2), (report(8), 0.25))
    assert clean == Pace(ranks=8, cost_seconds=0.25)
    waited = next_pace(clean, (report(8, missing=1, timeouts=2), 5.0))
    assert waited == Pace(ranks=8, cost_seconds=0.25, failures=1, missing=True)
    assert next_pace(waited, None) == Pace(ranks=8, cost_seconds=0.25, failures=2, missing=True)


@pytest.mark.parametrize(("missing", "isolated"), [(0, False), (4, False), (5, True), (8, True)])
def test_isolated(missing: int, isolated: bool) -> None:
    """A process that misses more than half of a communicator may itself be cut off."""
    assert looks_isolated(report(8, missing)) == isolated


def test_a_report_is_its_only_job_s() -> None:
    """Where one job listens a report is its, even one that names no process."""
    assert owner_of(report(), [process(5), process(6, rank=1)]) == process(5)
    assert owner_of(report(), []) is None


def test_a_report_is_the_job_s_whose_processes_it_names() -> None:
    """Of two jobs it is that with the most pids on one address; on a tie, or without any, it is nobody's."""
    both = [process(5, "a"), process(6, "a", rank=1), process(7, "b"), process(8, "b", rank=1)]
    named = frozenset({("10.0.0.1", 7), ("10.0.0.1", 8), ("10.0.0.2", 5), ("10.0.0.3", 6)})
    found = owner_of(report(processes=named), both)
    assert found is not None
    assert found.job_id == "b"
    assert owner_of(report(processes=frozenset({("10.0.0.1", 5), ("10.0.0.1", 7)})), both) is None
    assert owner_of(report(), both) is None
