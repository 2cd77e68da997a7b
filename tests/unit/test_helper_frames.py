"""Frames between the agent and a helper, and a helper with a thread for each user."""

import io
import threading
from typing import NamedTuple

import pytest
from hypothesis import given, strategies as st

from agent.helper import by_user
from agent.helper.by_user import ByUser
from agent.helper.frames import HEADER_BYTES, MAX_PAYLOAD_BYTES, FrameError, FrameKind, frame, parse_header, read_frame


@given(st.binary(max_size=40), st.data())
def test_a_cut_frame_is_an_end(payload: bytes, data: st.DataObject) -> None:
    """A stream that ends within a frame raises EOFError."""
    whole = frame(FrameKind.BODY, payload)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(EOFError):
        read_frame(io.BytesIO(whole[:cut]))


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_any_header_is_a_frame_or_refused(header: bytes) -> None:
    """Any header of five bytes gives a known kind and a valid length, or raises FrameError."""
    length, number = int.from_bytes(header[:4], "little"), header[4]
    if length <= MAX_PAYLOAD_BYTES and 1 <= number <= 5:
        assert parse_header(header) == (number, length)
    else:
        with pytest.raises(FrameError):
            parse_header(header)


def test_a_payload_is_bounded() -> None:
    """A payload of MAX_PAYLOAD_BYTES passes in both directions; a longer one is refused."""
    assert parse_header(frame(FrameKind.ANSWER, bytes(MAX_PAYLOAD_BYTES))[:HEADER_BYTES]) == (
        FrameKind.ANSWER,
        MAX_PAYLOAD_BYTES,
    )
    with pytest.raises(FrameError):
        frame(FrameKind.ANSWER, bytes(MAX_PAYLOAD_BYTES + 1))
    with pytest.raises(FrameError):
        parse_header((MAX_PAYLOAD_BYTES + 1).to_bytes(4, "little") + b"\5")


class Request(NamedTuple):
    """A user's request."""

    uid: int
    number: int = 0
    pid: int = 0


class Hanging:
    """Hangs for user 1 until the test releases it; records the requests."""

    def __init__(self) -> None:
        self.called: list[Request] = []
        self.goes_on = threading.Event()

    def read(self, request: Request) -> int:
        """Return the number of the request."""
        self.called.append(request)
        if request.uid == 1:
            self.goes_on.wait(30.0)
        return request.number


def test_each_process_of_root_is_a_user_of_its_own() -> None:
    """While a call for one process of root hangs, another process of root, as in another pod, gets its reply."""
    goes_on = threading.Event()
    requests: ByUser[Request, bool] = ByUser(lambda request: request.pid == 8 or goes_on.wait(30.0))
    asked = [Request(0, pid=7), Request(0, pid=8), Request(5, pid=7), Request(5, pid=8)]
    assert requests.answers(asked, 0.5) == [None, True, None, None]
    goes_on.set()


@pytest.mark.slow
def test_a_user_whose_call_hangs_is_asked_for_nothing_more() -> None:
    """While a user's call hangs, the user gets no replies and no second thread; later the user gets replies again."""
    hanging, before = Hanging(), set(threading.enumerate())
    requests = ByUser(hanging.read)
    assert requests.answers([Request(1, 10), Request(2, 20)], 0.05) == [None, 20]
    assert requests.answers([Request(1, 11), Request(2, 21)], 0.05) == [None, 21]
    assert Request(1, 11) not in hanging.called
    hanging.goes_on.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(0.5)
    assert requests.answers([Request(1, 12)], 30.0) == [12]


def test_threads_that_hang_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit of hanging threads no new call starts; below the limit each user's call starts."""
    for most, answer in ((2, 20), (1, None)):
        monkeypatch.setattr(by_user, "MAX_WAITING", most)
        hanging = Hanging()
        requests = ByUser(hanging.read)
        requests.answers([Request(1)], 0.05)
        assert requests.answers([Request(2, 20)], 0.5) == [answer]
        hanging.goes_on.set()


@pytest.mark.slow
def test_processes_of_root_take_half_of_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if many processes of root hang, other users get replies; if none hangs, all root processes get replies."""
    monkeypatch.setattr(by_user, "MAX_WAITING", 8)
    goes_on = threading.Event()
    requests: ByUser[Request, bool] = ByUser(lambda request: request.uid != 0 or goes_on.wait(30.0))
    assert requests.answers([Request(0, pid=pid) for pid in range(9)], 0.05) == [None] * 9
    assert requests.answers([Request(5, pid=1)], 0.5) == [True]
    goes_on.set()
    well: ByUser[Request, bool] = ByUser(lambda _: True)
    assert well.answers([Request(0, pid=pid) for pid in range(200)], 30.0) == [True] * 200
