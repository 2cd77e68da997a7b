"""The occasions: events of a job for which a bundle of evidence is taken."""

from typing import Any

import pytest

from agent.core.identity import ProcessKey, RankLabel
from agent.ranks.rank.exit_status import ExitStatus
from agent.ranks.rank.facts import ProcessFacts
from agent.ranks.rank.verdict import RankVerdict
from agent.sdk.ranks import PublishedProcess, RankView
from exporters.evidence.watch import MAX_CHANGES_PER_JOB, MAX_JOBS, Occasion, TroubleWatch

SILENCE = 180.0
KILLED = ExitStatus(known=True, signal=9)


def view(rank: int = 0, job: str = "7", state: str = "alive", reason: str = "running", **more: Any) -> RankView:
    """Return a published rank; its pid is its number plus 100."""
    facts = ProcessFacts(ProcessKey(rank + 100, 5), 1.7e9, rank + 100, "ann", "thread", {})
    process = PublishedProcess(found_at=1.0, facts=facts, verdict=RankVerdict(state, reason), **more)  # type: ignore[arg-type]
    return RankView(RankLabel(job, str(rank)), 0, process)


def gone(rank: int = 0, state: str = "dead", status: ExitStatus = KILLED, job: str = "7") -> RankView:
    """Return a rank that has exited."""
    return view(rank, job, state, "killed_before_peers", exited_at=50.0, exited_seconds=1000.0, exit=status)


DONE = ExitStatus(known=True)
ALIVE, STOPPED = view(0), view(0, state="unresponsive", reason="stopped")
DEAD, STRUCK = Occasion("7", "dead", "0"), Occasion("7", "hardware", "0")


@pytest.mark.parametrize(("looks", "occasions"), [
    pytest.param([[ALIVE], [gone(0)], [gone(0)]], [(), (DEAD,), ()], id="a death once"),
    pytest.param([[ALIVE], [STOPPED], [STOPPED], [ALIVE], [STOPPED]],
     [(), (Occasion("7", "unresponsive", "0"),), (), (), (Occasion("7", "unresponsive", "0"),)], id="each stop once"),
    pytest.param([[ALIVE, view(1)], [gone(0, "finished", DONE), gone(1, "exited")]], [(), ()], id="orderly ends never"),
])  # fmt: skip
def test_states_that_are_occasions(looks: list[list[RankView]], occasions: list[tuple[Occasion, ...]]) -> None:
    """A rank that becomes dead or unresponsive is an occasion at the first look that sees it."""
    watch = TroubleWatch(SILENCE)
    assert [watch.look(views, float(at)).occasions for at, views in enumerate(looks)] == occasions


@pytest.mark.parametrize(("looks", "covered", "occasions"), [
    ([[gone(0)]], 1001.0, [()]), ([[gone(0)]], 999.0, [(DEAD,)]), ([[ALIVE], [gone(0)]], 5000.0, [(), (DEAD,)]),
])  # fmt: skip
def test_deaths_that_an_earlier_bundle_covers(
    looks: list[list[RankView]], covered: float, occasions: list[tuple[Occasion, ...]]
) -> None:
    """A rank found dead at the first look is no occasion if a newer bundle exists; a rank that dies later always is."""
    watch = TroubleWatch(SILENCE)
    watch.covered["7"] = covered
    assert [watch.look(views, float(at)).occasions for at, views in enumerate(looks)] == occasions


def test_hardware_that_fails_under_a_rank_is_an_occasion_once() -> None:
    """A rank whose hardware fails is an occasion once, unless the hardware had failed before the first look."""
    watch, struck = TroubleWatch(SILENCE), {RankLabel("7", "1")}
    looks = (struck, struck | {RankLabel("7", "0")}, struck | {RankLabel("7", "0")})
    occasions = [watch.look([view(0), view(1)], float(at), ranks).occasions for at, ranks in enumerate(looks)]
    assert occasions == [(), (STRUCK,), ()]


def test_two_triggers_of_a_rank_at_once_are_one_occasion() -> None:
    """A rank that stops responding while its hardware fails is one occasion, and none at the next look."""
    watch, struck = TroubleWatch(SILENCE), {RankLabel("7", "0")}
    watch.look([ALIVE], 0.0)
    assert watch.look([STOPPED], 1.0, struck).occasions == (Occasion("7", "unresponsive", "0"),)
    assert watch.look([STOPPED], 2.0, struck).occasions == ()


def test_a_job_is_failing_at_its_first_abnormal_exit() -> None:
    """At the first look after a rank's kill the job is `failing`, whatever the verdict; at the next look it is not."""
    watch = TroubleWatch(SILENCE)
    watch.look([view(0), view(1, "8")], 1.0)
    leaver, well = gone(0, "exited"), gone(1, "exited", ExitStatus(known=True), "8")
    assert watch.look([leaver, well], 2.0).failing == {"7"}
    assert watch.look([leaver, well], 3.0).failing == frozenset()


def test_silence_longer_than_ever_is_an_occasion_once() -> None:
    """If a rank completes nothing for longer than the limit and its longest pause, one bundle (`silent`) is due."""
    watch, quiet = TroubleWatch(SILENCE), [view(0, progress_seconds=1000.0)]
    assert watch.look(quiet, 1000.0 + SILENCE).occasions == ()
    assert watch.look(quiet, 1001.0 + SILENCE).occasions == (Occasion("7", "silent", "0"),)
    assert watch.look(quiet, 1002.0 + SILENCE).occasions == ()
    on = [view(0, progress_seconds=1300.0)]  # went on after 300 s: its longest pause
    assert watch.look(on, 1300.0 + 299).occasions == ()
    assert watch.look(on, 1300.0 + 301).occasions == (Occasion("7", "silent", "0"),)


def test_who_is_never_silent() -> None:
    """A rank is never silent without records, after its exit, or with progress in the future (a changed clock)."""
    leaver = view(1, state="finished", exited_at=50.0, exit=ExitStatus(known=True), progress_seconds=1.0)
    assert TroubleWatch(SILENCE).look([view(0), leaver, view(2, progress_seconds=2e6)], 1e6).occasions == ()


def test_changes_are_bounded() -> None:
    """The newest changes of each job are kept, for a limited number of jobs; ended jobs are dropped."""
    watch = TroubleWatch(SILENCE)
    for at in range(MAX_CHANGES_PER_JOB + 1):
        watch.look([view(0, state="unresponsive" if at % 2 else "alive", reason="stopped")], float(at))
    changes = list(watch.changes("7"))
    assert (len(changes), changes[-1].at) == (MAX_CHANGES_PER_JOB, float(MAX_CHANGES_PER_JOB))
    watch.look([view(number, f"job-{number}") for number in range(MAX_JOBS + 1)], 1.0)
    assert list(watch.changes("7")) == []
    assert sum(bool(list(watch.changes(f"job-{number}"))) for number in range(MAX_JOBS + 1)) == MAX_JOBS


def test_what_stands_still_is_an_occasion_once() -> None:
    """A job that stands still for the silence limit is an occasion once; the next standstill is a new occasion."""
    watch, stalled = TroubleWatch(SILENCE), Occasion("7", "stalled", "")
    assert (watch.stalled({"7": SILENCE}), watch.stalled({"7": SILENCE + 1.0})) == ([], [stalled])
    assert (watch.stalled({"7": SILENCE + 2.0}), watch.stalled({"7": SILENCE + 13.0})) == ([], [])
    assert (watch.stalled({}), watch.stalled({"7": SILENCE + 1.0, "8": SILENCE - 1.0})) == ([], [stalled])


def test_on_which_jobs_a_page_may_be_open() -> None:
    """A job can have a page while a rank is dead, stopped, silent or on failed hardware, or RAS reports a hang."""
    watch = TroubleWatch(SILENCE)
    views = [
        gone(0, job="dead"),
        view(1, "stopped", "unresponsive", "stopped"),
        view(2, "silent", progress_seconds=1000.0),
        view(3, "struck"),
        view(4, "well", progress_seconds=1190.0),
        gone(5, "finished", ExitStatus(known=True), "over"),
    ]
    for _ in range(2):
        watch.look(views, 1200.0, {RankLabel("struck", "3"), RankLabel("over", "5")})
        assert watch.troubled == {"dead", "stopped", "silent", "struck"}
    watch.stalled({"hung": SILENCE + 1})
    assert "hung" in watch.troubled
    watch.stalled({})
    watch.look([view(2, "silent", progress_seconds=1201.0), view(3, "struck")], 1202.0)
    assert watch.troubled == frozenset()
