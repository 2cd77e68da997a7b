"""Bundles for an open page in Prometheus: the nodes, the interval of queries, and failures."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from fake_clock import FakeClock
from lent import lent
from rank_table import environment, owned

from agent.ranks.rank.facts import Owner
from agent.ranks.rank.process import RankProcess
from agent.sdk.helper import HelperHung
from agent.sdk.ranks import RankLabel, RankView
from exporters.evidence import EvidenceConfig, alerts as helper_side
from exporters.evidence.alert_messages import MAX_ALERTS, MAX_JOBS, MAX_LABEL, AlertsAnswer, AlertsRequest, OpenAlert
from exporters.evidence.asking import ASK_SECONDS, AlertAsker, AlertWatch, asked_about, chosen_rank
from exporters.evidence.story import user_of
from exporters.evidence.watch import Occasion

URL = "http://prometheus:9090"


def node(number: int, size: int = 24, job: str = "7") -> list[RankView]:
    """Return a node's eight ranks of a job."""
    return [view(rank, size, job) for rank in range(8 * number, 8 * number + 8)]


def view(rank: int, size: int | None, job: str = "7", uid: int = 7) -> RankView:
    """Return a running rank."""
    known = owned(100 + rank, environment(rank, size or 1, job), Owner("user", str(uid)), uid=uid)
    known = msgspec.structs.replace(known, user=f"user {uid}")
    process = RankProcess(found_at=1.0, facts=known)
    if size is not None:
        process.claim = msgspec.structs.replace(process.claim, world_size=size)
    return RankView(RankLabel(job, str(rank)), 0, process)


@pytest.mark.parametrize(("blamed", "chosen"), [
    ({"9"}, ["0", "9", "23"]),
    ({"0"}, ["0", "", "23"]),
    ({"23"}, ["0", "", "23"]),
    ({str(rank) for rank in range(8)}, ["0", "8", "23"]),
    (set(), ["0", "", "23"]),
    ({"77"}, ["0", "", "23"]),
])  # fmt: skip
def test_which_nodes_take_one(blamed: set[str], chosen: list[str]) -> None:
    """The nodes of blamed ranks, and the nodes of the first and last other rank, take a bundle."""
    assert [chosen_rank(node(number), blamed) for number in range(3)] == chosen
    assert chosen_rank([view(rank, None) for rank in (0, 3)], blamed) == ("0" if "0" in blamed else "")


def test_a_page_is_one_occasion() -> None:
    """The open pages of a job are one occasion; a page that opens after all have closed is a new one."""
    watch = AlertWatch()
    stalled, dead = OpenAlert("7", "JobStalled", ""), OpenAlert("7", "RankDead", "3")
    assert watch.look([stalled], node(0)) == [Occasion("7", "alert", "0")]
    assert watch.look([stalled, dead], node(0)) == []
    assert (watch.look([dead, OpenAlert("8", "RankDead", "1")], node(0)), watch.open_jobs) == ([], {"7", "8"})
    assert (watch.look([], node(0)), watch.open_jobs) == ([], frozenset())
    assert watch.look([dead], node(0)) == [Occasion("7", "alert", "3")]


def test_a_rank_that_is_blamed_later_is_an_occasion() -> None:
    """If an alert names a rank minutes after the job's first alert, the rank's node takes one bundle then."""
    watch = AlertWatch()
    stalled, blaming = OpenAlert("7", "JobStalled", ""), OpenAlert("7", "RankUnresponsive", "9")
    assert watch.look([stalled], node(1)) == []
    assert watch.look([stalled, blaming], node(1)) == [Occasion("7", "alert", "9")]
    assert watch.look([stalled, blaming], node(1)) == []


def test_one_users_jobs_keep_no_others_from_the_question() -> None:
    """At the limits, the query has jobs of each user and the reply has alerts of each job."""
    views = [view(0, 1, f"0{number}", uid=1) for number in range(MAX_JOBS + 1)]
    jobs = asked_about([*views, view(0, 1, "z", uid=2)])
    assert len(jobs) == MAX_JOBS
    assert "z" in jobs


@pytest.mark.parametrize(("owner", "name", "whose"), [
    (Owner("pod", "0123", "team-a"), "root", "namespace/team-a"),
    (Owner("pod", "0123"), "root", "root"),
    (Owner("user", "1000"), "ann", "ann"),
    (Owner("user", "1000"), "", "uid 1000"),
])  # fmt: skip
def test_whose_a_job_is(owner: Owner, name: str, whose: str) -> None:
    """A pod's job belongs to its namespace, whatever its uid; a user without a name appears by number."""
    known = owned(100, environment(0, 1, "7"), owner, uid=1000, user=name)
    assert user_of([RankView(RankLabel("7", "0"), 0, RankProcess(found_at=1.0, facts=known))]) == whose
    assert user_of([]) == ""


class Answers:
    """Stands in for the helper, and replies at once with the test's answer."""

    def __init__(self) -> None:
        self.requests: list[AlertsRequest] = []
        self.answer: AlertsAnswer | Exception = AlertsAnswer()

    async def call(self, request: AlertsRequest, _seconds: float) -> AlertsAnswer:
        self.requests.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Asking:
    """An asker and its clock."""

    def __init__(self, **settings: Any) -> None:
        self.clock, self.helper = FakeClock(), Answers()
        config = EvidenceConfig(alerts_url=URL, **settings)
        lend: Callable[[object], Answers] = lambda _spec: self.helper  # noqa: E731  # what a context has in this place
        self.asker = AlertAsker(config, lent("evidence", self.clock, helper=lend))

    async def look(self, views: list[RankView], seconds: float) -> list[Occasion]:
        """Let time pass with a look each second, and return the occasions."""
        occasions: list[Occasion] = []
        for _ in range(int(seconds)):
            self.clock.advance(1.0)
            occasions += self.asker.look(views)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return occasions


async def test_prometheus_is_asked_once_a_minute_while_there_are_jobs() -> None:
    """A node with ranks queries Prometheus once in ASK_SECONDS about its jobs; a node without ranks never does."""
    asking = Asking(alerts_cluster="here")
    assert (await asking.look([], 5 * ASK_SECONDS), asking.helper.requests) == ([], [])
    await asking.look([*node(0), *node(1, job="8")], 10 * ASK_SECONDS)
    assert (len(asking.helper.requests), asking.helper.requests[0]) == (10, AlertsRequest(URL, "here", ["7", "8"]))


async def test_questions_begin_at_different_times() -> None:
    """Agents that start together do not query at the same time."""
    begun = set()
    for _ in range(8):
        asking = Asking()
        while not asking.helper.requests:
            await asking.look(node(0), 1)
        begun.add(asking.clock.monotonic())
    assert len(begun) > 2


async def test_what_fails_is_counted_and_tried_again() -> None:
    """A Prometheus that does not reply and a helper that hangs count as failures; the next query is made as usual."""
    asking = Asking()
    asking.helper.answer = HelperHung("late")
    await asking.look(node(0), ASK_SECONDS)
    asking.helper.answer = AlertsAnswer(error="ConnectionRefusedError")
    await asking.look(node(0), ASK_SECONDS + 1)  # the first query is due after a random part of ASK_SECONDS
    assert asking.asker.failures == 2
    asking.helper.answer = AlertsAnswer([OpenAlert("7", "JobStalled", "")])
    assert await asking.look(node(0), ASK_SECONDS + 1) == [Occasion("7", "alert", "0")]
    await asking.asker.close()


async def test_one_question_at_a_time() -> None:
    """No query starts while another one is under way."""
    asking, never = Asking(), asyncio.get_running_loop().create_future()

    async def call(request: AlertsRequest, _seconds: float) -> AlertsAnswer:
        asking.helper.requests.append(request)
        return await never

    asking.helper.call = call  # type: ignore[method-assign]
    await asking.look(node(0), 5 * ASK_SECONDS)
    assert len(asking.helper.requests) == 1
    await asking.asker.close()


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Query and reply are cut at the limits of jobs, alerts and characters."""
    expressions: list[str] = []

    def samples(_url: str, expression: str) -> list[Any]:
        expressions.append(expression)
        sample = type("Sample", (), {"labels": {"job_id": "7" * (MAX_LABEL + 1), "alertname": "A"}})
        return [sample] * (MAX_ALERTS + 1)

    monkeypatch.setattr(helper_side, "samples", samples)
    answer = helper_side.open_alerts(AlertsRequest(URL, "", [f"job{number}" for number in range(MAX_JOBS + 1)]))
    assert (len(answer.alerts), answer.alerts[0]) == (MAX_ALERTS, OpenAlert("7" * MAX_LABEL, "A", ""))
    assert expressions[0].count("job") == MAX_JOBS + len(["job_id"])


def test_a_prometheus_that_does_not_listen() -> None:
    """If no Prometheus listens, the result has the error."""
    assert helper_side.open_alerts(AlertsRequest("http://127.0.0.1:9", "", ["7"])).error.endswith("listens there")
