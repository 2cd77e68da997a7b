"""The shipped rules, put to many made-up jobs of which it is known what is wrong, and with which rank or link."""

from __future__ import annotations

import multiprocessing
import os
import random
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby
from pathlib import Path

import pytest
from judged_jobs import FIRST_JOB, Found, judge
from made_kinds import KINDS, Made, make
from made_verdicts import Verdict, job_line, judged, percentile, share_right, table
from reports import VARIABLE
from rules import promtools, why_no_promtool

FULL = os.environ.get("RANKWATCH_TEST_FULL") == "1"
FIXED_SEEDS = 200
NEW_SEEDS = 50
JOBS_PER_ROOM = 16
WORKERS = 2
RIGHT_SHARE = 0.99
NAMED_WITHIN_SECONDS = 240.0
UNLUCKY_SEED = 96877421
"""Its order of turns; found by chance."""
TABLE_SEED = 1
QUICK_KINDS = ("straggler", "healthy")

pytestmark = pytest.mark.skipif(why_no_promtool() is not None, reason=why_no_promtool() or "")
full_only = pytest.mark.skipif(not FULL, reason="only with RANKWATCH_TEST_FULL=1: takes ten minutes")


def rooms_of(jobs: list[Made]) -> list[list[Made]]:
    """Return jobs of one length together, as many as share a room."""
    ordered = sorted(jobs, key=lambda made: (-made.seconds, made.seed))
    rooms: list[list[Made]] = []
    for _, group in groupby(ordered, key=lambda made: made.seconds):
        alike = list(group)
        rooms += [alike[first : first + JOBS_PER_ROOM] for first in range(0, len(alike), JOBS_PER_ROOM)]
    return rooms


def _judge_room(room: int, kinds: list[tuple[str, int]], judges: list[str]) -> list[dict[str, Found]]:
    """Judge jobs by kind and seed (what a worker process is told by)."""
    jobs = [(str(FIRST_JOB + number), make(*each)) for number, each in enumerate(kinds)]
    return judge(jobs, room, judges)


def judge_all(jobs: list[Made], judges: list[str]) -> list[list[Verdict]]:
    """Let all jobs live, rooms side by side, and return what each promtool's rules told of each."""
    rooms = rooms_of(jobs)
    verdicts: list[list[Verdict]] = [[] for _ in judges]
    with ProcessPoolExecutor(min(WORKERS, len(rooms)), multiprocessing.get_context("spawn")) as pool:
        kinds = [[(made.kind, made.seed) for made in room] for room in rooms]
        told = pool.map(_judge_room, range(len(rooms)), kinds, [judges] * len(rooms))
        for room, of_room in zip(rooms, told, strict=True):
            for own, found in zip(verdicts, of_room, strict=True):
                own += [judged(made, each) for made, each in zip(room, found.values(), strict=True)]
    return verdicts


def write_table(name: str, verdicts: list[Verdict]) -> None:
    """Write the table, if a place for tables is given."""
    text = table(verdicts)
    folder = os.environ.get(VARIABLE)
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / name).write_text(text)


@pytest.mark.timeout(120)
def test_a_straggler_is_named_and_a_healthy_job_is_left_alone() -> None:
    """The late rank is named, nobody else in it, and nobody in the healthy job."""
    (verdicts,) = judge_all([make(kind, TABLE_SEED) for kind in QUICK_KINDS], promtools()[:1])
    assert [job_line(each) for each in verdicts if not each.is_right] == []


@pytest.mark.timeout(120)
def test_an_unlucky_order_of_turns_names_nobody() -> None:
    """Ranks that are late in turn, those of one node after each other, are late for other nodes; none is named."""
    (verdicts,) = judge_all([make("turns", UNLUCKY_SEED)], promtools()[:1])
    assert [job_line(each) for each in verdicts if not each.is_right] == []


@full_only
@pytest.mark.timeout(900)
def test_each_kind() -> None:
    """Of one job of each kind just who is to be named is, whatever the version of Prometheus."""
    wrong: list[str] = []
    for number, verdicts in enumerate(judge_all([make(kind, TABLE_SEED) for kind in KINDS], promtools())):
        write_table(f"made-jobs-{number}.md", verdicts)
        wrong += [f"{promtools()[number]}: {job_line(each)}" for each in verdicts if not each.is_right]
    assert wrong == []


@full_only
@pytest.mark.timeout(1200)
def test_hundreds_of_jobs() -> None:
    """Of 200 known and 50 new jobs 99 % are judged right, no innocent is named, and stragglers soon are."""
    seeds = [*range(FIXED_SEEDS), *random.SystemRandom().sample(range(10**6, 10**9), NEW_SEEDS)]
    kinds = list(KINDS)
    jobs = [make(kinds[number % len(kinds)], seed) for number, seed in enumerate(seeds)]
    (verdicts,) = judge_all(jobs, promtools()[:1])
    write_table("made-jobs.md", verdicts)
    assert [job_line(each) for each in verdicts if each.innocents] == []
    wrong = [job_line(each) for each in verdicts if not each.is_right]
    assert share_right(verdicts) >= RIGHT_SHARE, wrong
    stragglers = [each.seconds for each in verdicts if each.made.kind == "straggler"]
    times = [float("inf") if seconds is None else seconds for seconds in stragglers]
    assert percentile(times, 0.9) <= NAMED_WITHIN_SECONDS, times
