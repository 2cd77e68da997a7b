"""Requests for a dump: the ranks that get one, and the pipe that the agent writes to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import msgspec
import pytest
from fake_clock import FakeClock
from lent import lent
from rank_table import environment, owned

from agent.ranks.rank.facts import Owner
from agent.sdk.helper import HelperError
from agent.sdk.ranks import ProcessFacts, ProcessKey, PublishedProcess, RankLabel, RankSnapshot, RankView
from exporters.flight_recorder.exporter import LOOK_SECONDS, PIPES, READER, FlightRecorderConfig, FlightRecorderExporter
from exporters.flight_recorder.pipe import AskResult, PipeRequest, ask_for_dumps
from exporters.flight_recorder.places import AGAIN_SECONDS, MAX_ASKED, PIPE_VARIABLE, DumpAsker

SILENCE = 180.0
ME = os.getuid()
NOT_OURS = ProcessFacts(ProcessKey(1, 1), 0.0, 1, "", "")
"""Facts of a process of an unknown user."""


def view(rank: int = 0, progress: float | None = 1000.0, prefix: str = "/tmp/fr_", **more: Any) -> RankView:  # a job's
    """Return a rank that completed its last operation at ``progress`` seconds."""
    facts = owned(100 + rank, environment(rank) | {PIPE_VARIABLE: prefix}, Owner("user", "7"), uid=7)
    process = PublishedProcess(found_at=1.0, facts=facts, progress_seconds=progress)
    return RankView(RankLabel("4711", str(rank)), 0, msgspec.structs.replace(process, **more))


def test_a_silent_rank_is_asked_once_in_ten_minutes() -> None:
    """A rank that is silent for longer than the limit gets a request through its pipe, at most every ten minutes."""
    asker = DumpAsker(SILENCE)
    assert not asker.due([view(3)], "/proc", 1000.0 + SILENCE, 0.0)
    [[key, request]] = asker.due([view(3)], "/proc", 1001.0 + SILENCE, 1.0).items()
    assert request == PipeRequest("/tmp/fr_3.pipe", "/proc", 103, 7)  # a job's path
    asker.asked[key] = 1.0
    assert not asker.due([view(3)], "/proc", 1900.0, AGAIN_SECONDS)
    assert len(asker.due([view(3)], "/proc", 1901.0, AGAIN_SECONDS + 1.0)) == 1


async def test_a_request_that_failed_is_made_again() -> None:
    """After a failed call of the helper, the next search makes the same requests."""
    answers: list[list[PipeRequest]] = []

    async def ask(requests: list[PipeRequest], _seconds: float) -> list[AskResult]:
        answers.append(requests)
        if len(answers) == 1:
            raise HelperError("no memory")
        return ["asked"]

    clock, helpers = FakeClock(), {PIPES: Mock(call=ask), READER: Mock(call=AsyncMock(return_value=[None]))}
    exporter = FlightRecorderExporter(FlightRecorderConfig(ask=True))
    ranks = Mock(snapshot=lambda: RankSnapshot(ranks=(view(3),)))
    await exporter.start(lent("flight_recorder", clock, ranks=ranks, helper=helpers.__getitem__))
    with pytest.raises(HelperError):
        await exporter.update()
    for _ in range(2):
        clock.advance(LOOK_SECONDS)
        await exporter.update()
    assert len(answers) == 2
    assert answers[0] == answers[1]


def test_who_is_not_asked() -> None:
    """A rank without a completed operation, an ended rank, and a rank without an absolute path get no request."""
    for odd in ({"progress": None}, {"exited_at": 5.0}, {"prefix": ""}, {"prefix": "relative"}, {"facts": NOT_OURS}):
        assert not DumpAsker(SILENCE).due([view(**odd)], "/proc", 5000.0, 1.0)


def test_so_many_in_one_look() -> None:
    """At most MAX_ASKED ranks get a request at one update; the other ranks get it at the next update."""
    asker = DumpAsker(SILENCE)
    views = [view(rank) for rank in range(MAX_ASKED + 1)]
    for at, count in ((1.0, MAX_ASKED), (2.0, 1), (3.0, 0)):
        due = asker.due(views, "/proc", 5000.0, at)
        assert len(due) == count
        asker.asked |= dict.fromkeys(due, at)


class Pipe:
    """The root directory of a process, with a FIFO in it."""

    def __init__(self, proc: Path) -> None:
        self.inside = proc / "inside"
        self.inside.mkdir()
        (proc / "5").mkdir()
        (proc / "5" / "root").symlink_to(self.inside)
        self.proc = proc
        self.path = self.inside / "fr_0.pipe"
        os.mkfifo(self.path)

    def ask(self, path: str = "/fr_0.pipe", uid: int = ME) -> AskResult:
        """Send a request, as the helper does."""
        [result] = ask_for_dumps([PipeRequest(path, str(self.proc), 5, uid)], b"")
        return result


@pytest.fixture
def pipe(tmp_path: Path) -> Pipe:
    """Provide a pipe."""
    return Pipe(tmp_path)


def test_a_byte_is_written(pipe: Pipe) -> None:
    """A pipe that a process has open for reading gets one byte."""
    reader = os.open(pipe.path, os.O_RDONLY | os.O_NONBLOCK)
    assert pipe.ask() == "asked"
    assert os.read(reader, 100) == b"1"
    os.close(reader)


def test_what_is_not_written_to(pipe: Pipe) -> None:
    """Nothing is written without a reader, to another user's pipe, to a file, through a link, or to a missing path."""
    assert pipe.ask() == "no_reader"
    reader = os.open(pipe.path, os.O_RDONLY | os.O_NONBLOCK)
    assert pipe.ask(uid=ME + 1) == "other_user"
    (pipe.inside / "file").write_bytes(b"")
    (pipe.inside / "link").symlink_to("fr_0.pipe")
    for path in ("/file", "/link", "/none", "/a\0b", "/" + "x" * 5000, "/fr_0.pipe/x"):
        assert pipe.ask(path) == "no_pipe"
    assert (pipe.inside / "file").read_bytes() == b""
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_a_full_pipe_is_not_waited_for(pipe: Pipe) -> None:
    """Nothing is written to a full pipe."""
    reader = os.open(pipe.path, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(pipe.path, os.O_WRONLY | os.O_NONBLOCK)
    for size in (65536, 1):
        with pytest.raises(BlockingIOError):
            while True:
                os.write(writer, b"x" * size)
    assert pipe.ask() == "full"
    os.close(reader)
    os.close(writer)
