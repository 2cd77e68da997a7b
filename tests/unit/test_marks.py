"""Marks that users set in the time lines of their jobs."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from client_metrics import samples
from fake_clock import FakeClock
from lent import lent
from rank_table import RankTable

from agent.cli.mark import main
from agent.core.identity import ProcessKey
from agent.ranks.mark import MAX_REQUEST_BYTES, MAX_TEXT, SOCKET
from agent.ranks.rank.facts import ProcessFacts
from agent.sdk.exporter import ExporterConfig
from agent.sdk.ranks import MarkRequest
from exporters import marks
from exporters.marks import (
    MARKS_PER_MINUTE,
    MAX_CONNECTIONS,
    MAX_MARKS,
    MAX_MARKS_PER_JOB,
    MINUTE_SECONDS,
    SHOWN_SECONDS,
    Mark,
    MarksExporter,
    RecentMarks,
)

ANN, BOB = 1001, 1002
OWNERS = {"7": frozenset({ANN}), "8": frozenset({BOB})}


def request(job_id: str = "7", text: str = "a new learning rate") -> MarkRequest:
    """Return a request for a mark."""
    return MarkRequest(job_id, text)


@pytest.mark.parametrize(("mark_request", "uid", "refusal"), [
    (request(), ANN, ""),
    (request(), 0, ""),
    (request(), BOB, "job 7 is another user's"),
    (request("9"), ANN, "no rank of job 9 runs on this node"),
    (request(text="two\nlines"), ANN, "the text is not printable"),
    (request(text="  "), ANN, "the text is not printable"),
])  # fmt: skip
def test_who_may_mark_what(mark_request: MarkRequest, uid: int, refusal: str) -> None:
    """A user may mark their own jobs with a line of text, root any job; other requests are refused with a reason."""
    recent = RecentMarks()
    assert recent.add(mark_request, uid, OWNERS, 1.0, 1000.0) == refusal
    assert recent.marks() == ({} if refusal else {Mark(mark_request.job_id, mark_request.text): 1000.0})


def test_a_mark_goes_after_an_hour() -> None:
    """A mark is shown for an hour after it was last set."""
    recent = RecentMarks()
    recent.add(request(), ANN, OWNERS, 0.0, 1000.0)
    recent.add(request(), ANN, OWNERS, 60.0, 1060.0)
    recent.expire(60.0 + SHOWN_SECONDS - 1)
    assert recent.marks() == {Mark("7", "a new learning rate"): 1060.0}
    recent.expire(60.0 + SHOWN_SECONDS)
    assert recent.marks() == {}


def test_marks_are_few() -> None:
    """Marks above the limit per minute are refused; above the limit of a job the oldest mark is replaced."""
    recent = RecentMarks()
    answers = [
        recent.add(request(text=f"mark {number}"), ANN, OWNERS, 0.0, 1000.0) for number in range(MARKS_PER_MINUTE + 1)
    ]
    assert answers == [""] * MARKS_PER_MINUTE + [f"more than {MARKS_PER_MINUTE} marks a minute"]
    for number in range(MARKS_PER_MINUTE, MAX_MARKS_PER_JOB + 1):
        now = (number - MARKS_PER_MINUTE + 1) * MINUTE_SECONDS
        assert recent.add(request(text=f"mark {number}"), ANN, OWNERS, now, 1000.0) == ""
    assert [mark.text for mark in recent.marks()] == [f"mark {number}" for number in range(1, MAX_MARKS_PER_JOB + 1)]


def test_full_marks_are_shared() -> None:
    """At the limit the user with the most marks loses the oldest; among equal users the oldest of all is dropped."""
    recent, owners = RecentMarks(), {f"a{number}": frozenset({ANN}) for number in range(MAX_MARKS)} | OWNERS
    for number in range(MAX_MARKS):
        assert recent.add(request(f"a{number}"), ANN, owners, number * MINUTE_SECONDS, 1000.0) == ""
    assert recent.add(request("8"), BOB, owners, 0.0, 1000.0) == ""
    assert {mark.job_id for mark in recent.marks()} == owners.keys() - {"7", "a0"}
    recent, owners = RecentMarks(), {f"a{uid}": frozenset({uid}) for uid in range(1, MAX_MARKS + 2)}
    for uid in range(1, MAX_MARKS + 2):
        assert recent.add(request(f"a{uid}"), uid, owners, 0.0, 1000.0) == ""
    assert {mark.job_id for mark in recent.marks()} == owners.keys() - {"a1"}


def job_of(uid: int, clock: FakeClock) -> RankTable:
    """Return a table with rank 0 of this user's job 7."""
    ranks = RankTable(clock, "here", settle_at_once=True)
    environment = {"RANK": "0", "WORLD_SIZE": "1", "SLURM_JOB_ID": "7"}
    ranks.observe_process(ProcessFacts(ProcessKey(77, 1), 1.0, 77, "ann", "thread", environment, uid=uid))
    ranks.tick()
    return ranks


@asynccontextmanager
async def listening(folder: Path, uid: int) -> AsyncIterator[MarksExporter]:
    """Start an exporter that listens below ``folder``."""
    clock, exporter = FakeClock(), MarksExporter(ExporterConfig())
    await asyncio.to_thread((folder / "run" / SOCKET).parent.mkdir, parents=True)
    await exporter.start(lent("marks", clock, folder, ranks=job_of(uid, clock)))
    await exporter.update()
    try:
        yield exporter
    finally:
        await exporter.drain()


async def test_a_mark_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`rankwatch mark` marks a job of the caller, whose user id the kernel reports."""
    path = str(tmp_path / "run" / SOCKET)
    async with listening(tmp_path, os.geteuid()) as exporter:
        assert await asyncio.to_thread(main, ["--job", "7", "--socket", path, "new data"]) == 0
        assert await asyncio.to_thread(main, ["--job", "8", "--socket", path, "new data"]) == 1
        assert await asyncio.to_thread(main, ["--job", "7", "--socket", path, "x" * (MAX_TEXT + 1)]) == 1
        [sample] = samples(exporter.families(exporter.snapshot()))
        assert (sample.labels, sample.value) == ({"job_id": "7", "text": "new data"}, FakeClock().time())
        answers = capsys.readouterr().err.splitlines()
        assert answers[0] == "rankwatch mark: no rank of job 8 runs on this node"
        assert "length <= 80" in answers[1]
    assert await asyncio.to_thread(main, ["--job", "7", "--socket", path, "new data"]) == 1
    assert f"listens at {path}: No such file or directory; systemctl start" in capsys.readouterr().err


async def test_requests_of_users_harm_no_other(tmp_path: Path) -> None:
    """An invalid request and an endless request do not keep later requests from being served."""
    path = str(tmp_path / "run" / SOCKET)
    async with listening(tmp_path, os.geteuid()) as exporter:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"nonsense\n")
        assert "malformed" in json.loads(await reader.readline())["refused"]
        writer.close()
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"x" * (MAX_REQUEST_BYTES + 1))
        assert await reader.read() == b""
        writer.close()
        assert not await asyncio.to_thread(main, ["--job", "7", "--socket", path, "new rate"])
        assert [mark.text for mark in exporter.snapshot()] == ["new rate"]


async def test_silent_connections_of_one_user_cost_another_no_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit of connections, the oldest connection of the user with the most connections is closed."""
    uids = [BOB]
    monkeypatch.setattr(marks, "_uid", lambda _writer: uids[-1])
    path = str(tmp_path / "run" / SOCKET)

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        opened = await asyncio.open_unix_connection(path)
        before = len(exporter._open)
        while len(exporter._open) == before < MAX_CONNECTIONS:
            await asyncio.sleep(0)
        return opened

    async with listening(tmp_path, ANN) as exporter:
        silent = [await connect() for _ in range(MAX_CONNECTIONS)]
        uids.append(ANN)
        reader, writer = await connect()
        assert await silent[0][0].read() == b""
        uids.append(BOB)
        silent += [await connect() for _ in range(MAX_CONNECTIONS)]
        assert (await silent[MAX_CONNECTIONS - 1][0].read(), len(exporter._open)) == (b"", MAX_CONNECTIONS)
        writer.write(b'{"job_id": "7", "text": "new rate"}\n')
        assert json.loads(await reader.readline())["refused"] == ""
        for _, stream in (*silent, (reader, writer)):
            stream.close()


async def test_requests_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two limits between updates: requests of each user, and requesting users without ranks on the node."""
    monkeypatch.setattr(marks, "MAX_REQUESTS", 2)
    monkeypatch.setattr(marks, "MAX_REQUESTING_USERS", 2)
    uids = [ANN]
    monkeypatch.setattr(marks, "_uid", lambda _writer: uids[-1])

    async def is_answered() -> bool:
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "run" / SOCKET))
        writer.write(b"nonsense\n")
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            return await reader.readline() != b""
        return False

    async with listening(tmp_path, BOB + 2) as exporter:
        assert [await is_answered() for _ in range(3)] == [True, True, False]
        for uid, answered in ((BOB, True), (BOB + 1, False), (BOB + 2, True), (0, True), (BOB + 1, False)):
            uids.append(uid)
            assert await is_answered() == answered
        await exporter.update()
        assert await is_answered()
