"""RAS queries: the node that sends them, the conditions for them, and their intervals."""

import math
from random import Random

import pytest
from msgspec.structs import replace

from agent.ranks.rank.environment import Claim
from agent.sdk.ranks import Owner, ProcessFacts, ProcessKey, PublishedProcess, RankLabel
from exporters.ras.local.listeners import Server, Site
from exporters.ras.protocol.client import Endpoint
from exporters.ras.query.jobs import OwnedJob, QueryPlan, Rules, Schedules, query_plans
from exporters.ras.query.policy import (
    MAX_INTERVAL_SECONDS,
    MIN_INTERVAL_SECONDS,
    Configured,
    Role,
    Schedule,
    first_wait_seconds,
    may_monitor,
    role_of,
)
from exporters.ras.report.model import Communicator, Report

HERE = Endpoint("127.0.0.1", 28028)
ELSEWHERE = Endpoint("127.0.0.1", 28029)
SOUND = Server((2, 29, 2), 1.0)
NOW = 10_000.0
OWNER = Owner("user", "1000")
A = OwnedJob("a", OWNER.key)
AUTO = Rules("auto", (2, 29, 2), once=False)


def process(pid: int, job: str = "a", rank: int = 0, *, age: float = 1000.0, namespace: int = 0) -> PublishedProcess:
    """Return a rank of a job of four."""
    facts = ProcessFacts(ProcessKey(pid, 1), NOW - age, pid, "ann", "thread", owner=OWNER, network_namespace=namespace)
    return PublishedProcess(0.0, facts=facts, claim=Claim(world_size=4), slots=[RankLabel(job, str(rank))])


def site(*pids: int, server: Server = SOUND, unowned: int = 0) -> Site:
    """Return a site that these processes serve."""
    return Site({ProcessKey(pid, 1): server for pid in pids}, unowned)


def report(
    size: int = 8, missing: int = 0, timeouts: int = 0, processes: frozenset[tuple[str, int]] = frozenset()
) -> Report:
    """Return a report of one communicator."""
    communicator = Communicator("0xab", size, size - missing, missing, missing, 0)
    return Report("2.30.7", (communicator,), processes, timeouts, {})


@pytest.mark.parametrize(("configured", "ranks", "world_size", "role"), [
    ("auto", {0, 1}, 4, "reporter"), ("auto", None, None, "labels"), ("reporter", None, None, "reporter"),
    ("monitor", None, None, "none"), ("auto", {0, 3}, 4, "reporter"), ("auto", {2, 3}, 4, "standby"),
    ("auto", {1, 2}, 4, "none"), ("auto", {3}, None, "none"), ("auto", set(), 4, "none"),
    ("reporter", {1}, 4, "reporter"), ("standby", {0}, 4, "standby"), ("monitor", {0}, 4, "none"),
    ("off", {0}, 4, "none"),
])  # fmt: skip
def test_role(configured: Configured, ranks: set[int] | None, world_size: int | None, role: str) -> None:
    """The node of rank 0 is reporter, the node of the last rank standby; a configured role wins."""
    assert role_of(configured, ranks, world_size) == role


def plan_of(subject: PublishedProcess, sites: dict[Endpoint, Site], rules: Rules = AUTO) -> QueryPlan:
    """Return the plan for the only job."""
    (plan,) = query_plans([subject], sites, rules, NOW)
    return plan


@pytest.mark.parametrize(("subject", "sites", "rules", "why"), [
    (process(5, rank=1), {HERE: site(5)}, AUTO, "not_elected"),
    (process(5), {HERE: site(5)}, Rules("auto", (2, 29, 2), once=True), "single_pass"),
    (process(5), {HERE: site(5)}, Rules("standby", (2, 29, 2), once=True), "single_pass"),
    (process(5), {}, AUTO, "no_listener"),
    (process(5), {HERE: site(6)}, AUTO, "no_listener"),
    (process(5, namespace=4026531840), {}, AUTO, "network_namespace"),
    (process(5), {HERE: site(5, unowned=1)}, AUTO, "unowned_listener"),
    (process(5), {HERE: site(5, server=Server(None, 1.0))}, AUTO, "version_unknown"),
    (process(5), {HERE: site(5, server=Server((2, 29, 1), 1.0))}, AUTO, "version_old"),
    (process(5, age=119), {HERE: site(5, server=Server((2, 27, 3), 1.0))}, Rules("auto", (2, 27, 3), once=False),
     "process_young"),
    (process(5, age=121), {HERE: site(5, server=Server((2, 27, 3), 1.0))}, Rules("auto", (2, 27, 3), once=False), None),
    (process(5, age=0), {HERE: site(5)}, AUTO, None),
    (process(5), {HERE: site(5)}, Rules("reporter", (2, 29, 2), once=True), None),
    (process(5), {HERE: site(5)}, replace(AUTO, max_ranks=4), None),
    (process(5), {HERE: site(5)}, replace(AUTO, max_ranks=3), "too_large"),
    (replace(process(5), slots=[RankLabel("a", "2"), RankLabel("a", "3")]), {HERE: site(5)}, AUTO, None),
])  # fmt: skip
def test_why_a_job_is_not_asked(
    subject: PublishedProcess, sites: dict[Endpoint, Site], rules: Rules, why: str | None
) -> None:
    """Each reason against a query has its label, and a refused job gets no query."""
    plan = plan_of(subject, sites, rules)
    schedules = Schedules(1.0, Random(7), once=True)  # noqa: S311  # no secret
    assert (plan.refusal, schedules.due([plan], 0.0) is None) == (why, why is not None)


def test_one_old_library_or_young_process_holds_back_all_at_its_address() -> None:
    """One old library or young process stops all queries at its address, because a connection can reach any process."""
    mixed = Site({ProcessKey(5, 1): SOUND, ProcessKey(6, 1): Server((2, 27, 7), 1.0)}, 0)
    both = [process(5, "a"), process(6, "b", age=1.0)]
    assert [plan.refusal for plan in query_plans(both, {HERE: mixed}, AUTO, NOW)] == ["version_old"] * 2
    admitted = Rules("auto", (2, 27, 3), once=False)
    assert [plan.refusal for plan in query_plans(both, {HERE: mixed}, admitted, NOW)] == ["process_young"] * 2


def test_a_job_is_asked_at_one_address_and_two_jobs_there_each_in_its_role() -> None:
    """A job gets its queries at one of its addresses; two jobs at one address each get their own queries."""
    two_places = query_plans([process(5), process(6, rank=1)], {HERE: site(5), ELSEWHERE: site(6)}, AUTO, NOW)
    assert two_places == [QueryPlan(HERE, A, "reporter")]
    two_jobs = query_plans([process(5, "a", rank=3), process(6, "b")], {HERE: site(5, 6)}, AUTO, NOW)
    assert two_jobs == [QueryPlan(HERE, A, "standby"), QueryPlan(HERE, OwnedJob("b", OWNER.key), "reporter")]


@pytest.mark.parametrize("jitter", [0.0, 0.999])
def test_the_first_query_for_labels_waits(jitter: float) -> None:
    """The first query for labels waits for other sources of names; nodes spread their first queries over minutes."""
    assert first_wait_seconds("labels", jitter) == pytest.approx(60.0 + 300.0 * jitter)
    assert first_wait_seconds("reporter", jitter) == pytest.approx(7.0 * jitter)


@pytest.mark.parametrize(("role", "schedule", "seconds"), [
    ("reporter", Schedule(), MIN_INTERVAL_SECONDS),
    ("labels", Schedule(), 600.0),
    ("labels", Schedule(ranks=10_000), 3000.0),
    ("reporter", Schedule(ranks=480, cost_seconds=0.05), 7.0),
    ("reporter", Schedule(ranks=1000), 30.0),
    ("reporter", Schedule(ranks=2000), 120.0),
    ("reporter", Schedule(ranks=8, cost_seconds=0.3), 30.0),
    ("reporter", Schedule(delays=1), 14.0),
    ("reporter", Schedule(delays=3), 56.0),
    ("reporter", Schedule(delays=5000), MAX_INTERVAL_SECONDS),
    ("reporter", Schedule(ranks=10_000), 3000.0),
    ("reporter", Schedule(ranks=10_000, delays=3), 3000.0),
    ("standby", Schedule(), 7.0),
    ("standby", Schedule(ranks=240), 7.0),
    ("standby", Schedule(ranks=480), 27.648),
    ("standby", Schedule(ranks=480, missing=True), 7.0),
])  # fmt: skip
def test_interval(role: Role, schedule: Schedule, seconds: float) -> None:
    """The interval grows with the job's size, the query's cost and the failures, within limits, with 10 % jitter."""
    assert schedule.next_interval_seconds(role, 0.5) == pytest.approx(seconds)
    assert schedule.next_interval_seconds(role, 0.0) == pytest.approx(0.9 * seconds)
    assert schedule.next_interval_seconds(role, 1.0) == pytest.approx(1.1 * seconds)


@pytest.mark.parametrize(("subject", "oldest", "may"), [
    (site(5), (2, 29, 2), True),
    (site(5), (2, 27, 3), True),
    (site(5, unowned=1), (2, 29, 2), False),
    (site(5, server=Server(None, 1.0)), (2, 29, 2), False),
    (site(5, server=Server((2, 29, 1), 1.0)), (2, 27, 3), False),
    (site(5, server=Server((2, 30, 7), 1.0)), (2, 31, 0), False),
    (Site({ProcessKey(5, 1): SOUND, ProcessKey(6, 1): Server((2, 28, 9), 1.0)}, 0), (2, 27, 3), False),
])  # fmt: skip
def test_who_is_listened_to(subject: Site, oldest: tuple[int, int, int], may: bool) -> None:
    """An address is monitored if all listening processes there are ranks whose library has MONITOR."""
    assert may_monitor(subject, oldest) == may


def schedule(due_at: float, queried_at: float = -math.inf, hastened_at: float = -math.inf, **costs: float) -> Schedule:
    """Return a schedule with this time of the next query and these times of earlier ones."""
    return Schedule(due_at, queried_at=queried_at, hastened_at=hastened_at, **costs)  # type: ignore[arg-type]


@pytest.mark.parametrize(("known", "due"), [
    pytest.param(schedule(140.0, 70.0), 102.0, id="soon"),
    pytest.param(schedule(101.5, 70.0), 101.5, id="not later than it would be"),
    pytest.param(schedule(140.0, 97.0), 104.0, id="not right after the last query"),
    pytest.param(schedule(140.0), 102.0, id="before the first query"),
    pytest.param(schedule(900.0, 50.0, 40.0, ranks=2000), 160.0, id="once in the interval of a large job"),
    pytest.param(schedule(900.0, 50.0, -60.0, ranks=2000), 102.0, id="again in the next one"),
    pytest.param(schedule(900.0, 50.0, 0.0, cost_seconds=1.5), 150.0, id="once in the interval of a dear job"),
    pytest.param(schedule(3500.0, 50.0, 0.0, ranks=10_000), 3000.0, id="never more than a job can afford"),
    pytest.param(schedule(700.0, 80.0, 70.0, delays=9), 102.0, id="in spite of failures"),
    pytest.param(schedule(200.0, 90.0, least_seconds=60.0), 150.0, id="not sooner than the site allows"),
])  # fmt: skip
def test_a_wake_brings_the_next_query_soon(known: Schedule, due: float) -> None:
    """A wake at 100 s moves the next query to about 102 s, or to when the query's cost allows, but never later."""
    queried_at, due_at, hastened_at = known.queried_at, known.due_at, known.hastened_at
    known.hasten(100.0, 0.5)
    assert (known.due_at, known.queried_at, known.alert_until) == (pytest.approx(due), queried_at, 400.0)
    assert known.hastened_at == (known.due_at if known.due_at < due_at else hastened_at)  # the next wake counts it


@pytest.mark.parametrize(("role", "due"), [("reporter", True), ("standby", True), ("labels", False)])
def test_an_alarm_hastens_no_query_for_labels(role: Role, due: bool) -> None:
    """An alarm reaches all nodes, so nodes that query only for labels do not query because of an alarm."""
    plan, schedules = QueryPlan(HERE, A, role), Schedules(7.0, Random(7), once=False)  # noqa: S311  # no secret
    schedules.due([plan], 0.0)
    schedules.reschedule_after_events([plan], {HERE}, 0.0)
    assert (schedules.due([plan], 10.0) is not None) == due


def test_users_take_turns() -> None:
    """While one user's jobs are always due, a job of another user waits for one query of theirs at most."""
    plans = [QueryPlan(HERE, OwnedJob(str(number), "uid/1"), "reporter") for number in range(9)]
    schedules, owners = Schedules(7.0, Random(7), once=True), []  # noqa: S311  # no secret
    for now in range(0, 900, 100):
        if result := schedules.due([*plans, QueryPlan(HERE, A, "reporter")][: 9 + (now > 300)], now):
            result[1].note("reporter", None, 0, now, 0.5)
            owners.append(result[0].job.owner)
    assert owners == ["uid/1"] * 4 + [OWNER.key, "uid/1"] * 2 + [OWNER.key]


def test_queries_slow_down_after_those_that_failed_or_waited() -> None:
    """A clean query sets the cost and ends the back-off; a query that waited for peers, or failed, does neither."""
    known = Schedule(delays=2)
    for answer, world_size, expected in (
        ((report(8), 0.25), 0, (8, 0.25, 0, False, True, 0)),
        ((report(8, missing=1, timeouts=2), 5.0), 0, (8, 0.25, 1, True, True, 0)),
        (None, 0, (8, 0.25, 2, True, False, 1)),
        (None, 4096, (4096, 0.25, 3, True, False, 2)),
        ((report(8), 0.25), 4096, (4096, 0.25, 0, False, True, 0)),
    ):
        known.note("reporter", answer, world_size, 100.0, 0.5)
        shown = (known.ranks, known.cost_seconds, known.delays, known.missing, known.up, known.failures)
        assert shown == expected
        assert known.interval_seconds == pytest.approx(known.next_interval_seconds("reporter", 0.5))
    assert Schedule(least_seconds=60.0).next_interval_seconds("reporter", 0.5) == pytest.approx(60.0)
