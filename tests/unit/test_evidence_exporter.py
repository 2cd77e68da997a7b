"""The evidence exporter: contents of a bundle, failures, and intervals."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from evidence_site import TOLD, Site
from fake_clock import FakeClock
from lent import lent
from rank_table import KILLED, environment
from test_evidence_bundle import summary

from agent.cli.evidence import main
from agent.evidence import folder
from agent.evidence.summary import MAX_LISTED, Event, Word
from agent.ranks.rank.facts import ProcessFacts
from agent.sdk.evidence import Offered, Wanted
from agent.sdk.exporter import NoData
from agent.sdk.ranks import ProcessKey
from exporters.evidence import EvidenceConfig, EvidenceExporter, exporter as module, processes
from exporters.evidence.bundle import bundle_name
from exporters.evidence.watch import Occasion


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Provide a site."""
    made = Site(tmp_path, seconds_per_bundle=1.0)
    yield made
    made.close()


@pytest.mark.slow
async def test_a_thousand_verdicts_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """If 499 jobs of one user die at once, MAX_WAITING_PER_USER of them get a bundle; so does another user's job."""
    monkeypatch.setattr(processes, "rank_files", lambda *_: {})
    await site.start()
    keys = [ProcessKey(2**22 + number, 5) for number in range(1000)]
    for number, key in enumerate(keys):
        known = environment(number % 2, 2, str(1000 + number // 2), port=str(number // 2))
        user = "ben" if number >= 998 else "ann"
        site.ranks.observe_process(ProcessFacts(key, 1.7e9, key.pid, user, "thread", known))
    await site.look(1)
    for key in keys[1::2]:
        site.ranks.observe_exit(key, KILLED)
    await site.look(60)
    taken = await site.summaries()
    assert [summary.user for summary in taken] == ["ann"] * module.MAX_WAITING_PER_USER + ["ben"]
    assert len({summary.job_id for summary in taken}) == len(taken)
    assert len(site.exporter._frozen) <= module.MAX_FROZEN
    assert len(site.exporter._waiting) <= module.MAX_WAITING


async def test_the_directory_is_there_before_the_first_bundle(site: Site) -> None:
    """The first update makes the directory, where root can request bundles; only the agent's user can read it."""
    await site.start()
    assert await asyncio.to_thread(lambda: site.folder.stat().st_mode & 0o777) == 0o700


async def test_a_death_leaves_a_bundle(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """The bundle of a killed rank has the suspect, its exit, and the processes of the remaining ranks."""
    await site.start_and_kill(1)
    [summary] = await site.summaries()
    assert (summary.trigger, summary.suspects, summary.because) == ("dead", ["1"], "rank 1 is dead")
    assert [(word.rank, word.says) for word in summary.words] == [("1", "killed (SIGKILL)")]
    names = (await site.members()).keys()
    assert {
        "ranks.json", "summary.json", "ranks/0/status", "ranks/0/threads.tsv", "at-first-exit/ranks/0/stat",
    } <= names  # fmt: skip
    assert await asyncio.to_thread(main, ["--path", str(site.folder), "show", "7"]) == 0
    said = capsys.readouterr().out
    assert "Suspects\n  rank 1: killed (SIGKILL) (verdict)\n" in said
    assert "rank 1: dead (verdict)\n" in said
    assert f"rank 0, pid {site.keys[0].pid}, alive" in said


async def test_secrets_are_not_taken(site: Site) -> None:
    """A bundle has only the listed environment variables, and no command line."""
    await site.start_and_kill(1)
    members = await site.members()
    assert b'"NCCL_ALGO": "Ring"' in members["ranks.json"]
    assert not [name for name, data in members.items() if TOLD.encode() in data]


async def test_a_part_that_hangs_or_fails_costs_itself(site: Site) -> None:
    """A part that hangs or raises is listed as failed; the bundle has all other parts."""

    async def hangs(_: Wanted) -> Offered:
        await asyncio.Event().wait()
        raise AssertionError

    async def fails(_: Wanted) -> Offered:
        raise OSError("broken")

    async def works(wanted: Wanted) -> Offered:
        words = [Word("0", "ras", f"is behind in job {wanted.job_id}", blames=True)]
        return Offered({"report.json": b"{}"}, words, [Event(1.0, "0", "was missed", "ras")], "no events")

    for name, make in (("slow", hangs), ("odd", fails), ("ras", works)):
        site.registry.of(name).offer(make)
    await site.start_and_kill(1)
    [summary] = await site.summaries()
    parts = {part.name: part.failed for part in summary.parts}
    assert parts == {"processes": "", "odd": "OSError: broken", "ras": "no events", "slow": "not there within 1 s"}
    assert (summary.suspects, summary.timeline[0].what) == (["1", "0"], "was missed")
    assert (await site.members())["ras/report.json"] == b"{}"
    assert site.exporter.snapshot() == {"bundle": 0, "odd": 1, "slow": 1}


async def test_suspects_are_bounded(site: Site) -> None:
    """The summary can be read even if its parts blame more than MAX_LISTED ranks together."""

    async def blame(_: Wanted) -> Offered:
        return Offered({}, [Word(str(rank), "ras", "is behind", blames=True) for rank in range(2, MAX_LISTED + 2)])

    site.registry.of("ras").offer(blame)
    await site.start_and_kill(1)
    assert [len(entry.suspects) for entry in await site.summaries()] == [MAX_LISTED]


async def test_one_bundle_in_ten_minutes(site: Site) -> None:
    """A second death within ten minutes gives no bundle; a request always gives a bundle."""
    await site.start_and_kill(1)
    site.kill(0)
    await site.look(30)
    assert len(await site.summaries()) == 1
    await asyncio.to_thread(folder.request_bundle, site.folder, "7")
    await site.look(1)
    assert [entry.trigger for entry in await site.summaries()] == ["dead", "asked"]


@pytest.mark.parametrize("minutes", [0, 11])
async def test_a_restarted_agent_takes_no_bundle_again(site: Site, minutes: int) -> None:
    """After a restart, a rank that was dead before gives no second bundle, even after ``minutes_between``."""
    await site.start_and_kill(1)
    site.clock.advance(60.0 * minutes)
    site.exporter = EvidenceExporter(site.config)
    await site.exporter.start(lent("evidence", site.clock, ranks=site.ranks))
    await site.look(5)
    assert len(await site.summaries()) == 1


async def test_a_restarted_agent_knows_a_jobs_newest_bundle(site: Site) -> None:
    """After a restart, a job with an old and a new bundle gets no further bundle within ten minutes."""
    await site.start_and_kill(1)
    site.clock.advance(3600.0)
    for _ in range(2):
        site.exporter._wait_for(Occasion("7", "silent", "0"), "ann")
        await site.look(1)
        assert len(await site.summaries()) == 2
        site.exporter = EvidenceExporter(site.config)
        await site.exporter.start(lent("evidence", site.clock, ranks=site.ranks))
        await site.look(1)


async def test_a_requested_bundle_holds_back_none_after_a_restart(site: Site) -> None:
    """A death after a restart has its bundle, even if a bundle was requested minutes before."""
    await site.start()
    await asyncio.to_thread(folder.request_bundle, site.folder, "7")
    await site.look(1)
    site.exporter = EvidenceExporter(site.config)
    await site.exporter.start(lent("evidence", site.clock, ranks=site.ranks))
    site.kill(1)
    await site.look(30)
    assert [entry.trigger for entry in await site.summaries()] == ["asked", "dead"]


@pytest.mark.parametrize(("error", "failures"), [
    (OSError(28, "No space left on device"), {"bundle": 1}),
    (module.bundle.FolderFullError("other users' bundles of open pages"), {"bundle": 0, "places": 1}),
])  # fmt: skip
async def test_a_bundle_that_cannot_be_written_is_counted(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: Exception, failures: dict[str, int]
) -> None:
    """If the disk is full, or no bundle can be evicted, the failure is counted and the exporter goes on."""

    def fail(*_: object) -> str:
        raise error

    monkeypatch.setattr(module.bundle, "write", fail)
    await site.start_and_kill(1)
    assert site.exporter.snapshot() == failures


async def test_many_jobs_in_trouble_at_once_wait_in_a_bounded_line(site: Site) -> None:
    """Above the limit of waiting requests, the user with most requests loses its newest one, and this is counted."""
    await site.start()
    request = module._Due(module.Occasion("7", "asked", ""), "")
    site.exporter._waiting.append(request)
    for user in range(module.MAX_WAITING):
        for number in range(module.MAX_WAITING_PER_USER + 1):
            site.exporter._wait_for(module.Occasion(f"job-{user}-{number}", "dead", "0"), f"user-{user}")
    waiting = site.exporter._waiting
    assert len(waiting) == module.MAX_WAITING
    first = [f"job-{user}-0" for user in range(module.MAX_WAITING - 1)]
    assert sorted(due.occasion.job_id for due in waiting) == sorted(["7", *first])
    tried = module.MAX_WAITING * (module.MAX_WAITING_PER_USER + 1)
    assert site.exporter.snapshot() == {"bundle": 0, "places": tried - len(first)}
    assert set(first) == site.exporter._begun.keys()


async def test_the_bundle_of_a_job_in_trouble_outlives_a_flood(site: Site) -> None:
    """The bundle of a job with a dead rank stays when jobs of many other users die later."""
    await site.start_and_kill(1)
    users = 4 * site.config.keep_bundles
    for user in range(users):
        job_id, at = f"job-{user}", 1.8e9 + user
        bundle = (bundle_name(job_id, at, "here"), {}, summary(job_id, at, f"user-{user}"))
        limits = (site.config.keep_bundles, site.exporter._watch.troubled)
        await asyncio.to_thread(module.bundle.write, site.folder, *bundle, *limits)
    summaries = await site.summaries()
    assert (len(summaries), [entry.job_id for entry in summaries if entry.user == "ann"]) == (users, ["7"])
    assert "job-0" not in {entry.job_id for entry in summaries}


async def test_what_is_frozen_of_one_user_outlives_anothers_crash_loop(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above MAX_FROZEN jobs with files read early, the user with the most such jobs loses the oldest job's files.

    If more jobs fail at once, users take turns.
    """
    monkeypatch.setattr(processes, "rank_files", lambda *_: {})
    await site.start()
    for number in range(module.MAX_FROZEN + 3):
        known = environment(0, 2, str(500 + number), port=str(number))
        user = "ben" if number in (0, module.MAX_FROZEN + 2) else "ann"
        key = ProcessKey(2**22 + number, 5)
        site.ranks.observe_process(ProcessFacts(key, 1.7e9, key.pid, user, "thread", known))
    await site.look(1)
    views = site.ranks.snapshot().ranks
    for number in range(module.MAX_FROZEN + 2):
        await site.exporter._freeze(str(500 + number), views)
    assert (len(site.exporter._frozen), list(site.exporter._frozen)[:2]) == (module.MAX_FROZEN, ["500", "503"])
    site.exporter._frozen.clear()
    for number in range(module.MAX_FROZEN + 3):
        site.ranks.observe_exit(ProcessKey(2**22 + number, 5), KILLED)
    await site.look(1)
    assert {"500", "510"} <= site.exporter._frozen.keys()


async def test_without_a_directory_there_is_nothing_to_do(tmp_path: Path) -> None:
    """If neither the directory nor its parent exists, the exporter has no source."""
    exporter = EvidenceExporter(EvidenceConfig(path=str(tmp_path / "none" / "evidence")))
    await exporter.start(lent("evidence", FakeClock()))
    with pytest.raises(NoData):
        await exporter.update()
