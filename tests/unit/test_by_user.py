"""Answers by user: a file system that hangs costs its user the answers, and one thread."""

import threading
from typing import NamedTuple

import pytest

from agent.helper.by_user import ByUser


class Request(NamedTuple):
    """A request of a user."""

    uid: int
    number: int = 0


class Hanging:
    """Hangs for user 1 until it is let go; notes what it was called for."""

    def __init__(self) -> None:
        self.called: list[Request] = []
        self.goes_on = threading.Event()

    def read(self, request: Request) -> int:
        """Answer with the number."""
        self.called.append(request)
        if request.uid == 1:
            self.goes_on.wait(30.0)
        return request.number


def test_answers_are_in_the_order_of_requests() -> None:
    """Each request has its answer at its place, whatever user it is of."""
    assert ByUser(Hanging().read).answers([Request(3, 30), Request(2, 20), Request(3, 31)], 30.0) == [30, 20, 31]


@pytest.mark.slow
def test_a_user_whose_call_hangs_is_asked_for_nothing_more() -> None:
    """While a call hangs its user has no answers, and no second thread is begun; after it has ended there are again."""
    hanging, before = Hanging(), set(threading.enumerate())
    asked = ByUser(hanging.read)
    assert asked.answers([Request(1, 10), Request(2, 20)], 0.05) == [None, 20]
    assert asked.answers([Request(1, 11), Request(2, 21)], 0.05) == [None, 21]
    assert Request(1, 11) not in hanging.called
    hanging.goes_on.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(0.5)
    assert asked.answers([Request(1, 12)], 30.0) == [12]


def test_threads_that_hang_are_bounded() -> None:
    """With so many threads that hang nobody is asked any more, and with one less everybody is."""
    for most, answer in ((2, 20), (1, None)):
        hanging = Hanging()
        asked: ByUser[Request, int] = ByUser(hanging.read, max_waiting=most)
        asked.answers([Request(1)], 0.05)
        assert asked.answers([Request(2, 20)], 0.5) == [answer]
        hanging.goes_on.set()
