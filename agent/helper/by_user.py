"""Answer requests about users' files, in one thread per user. Imports only the standard library.

A call to a hung file system never returns. Then only requests about files of the same owner get no answer.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

MAX_WAITING = 64  # Limit of hung threads; at the limit no file is read
STACK_BYTES = 512 * 1024  # A user's JSON of 10,000 levels, the limit of Python 3.13, takes 350 KiB: less is a crash

_User = tuple[int, int]
R = TypeVar("R", bound=Any)
A = TypeVar("A")


class ByUser(Generic[R, A]):
    """Answers requests with ``read``, which may hang; a request's ``uid`` is the owner of its file.

    Root's requests have a thread for each process, ``pid``: most pods and containers run as root.
    """

    def __init__(self, read: Callable[[R], A], max_waiting: int = MAX_WAITING) -> None:
        self._read = read
        self._max_waiting = max_waiting
        self._waiting: dict[_User, threading.Thread] = {}

    def answers(self, requests: Sequence[R], grace_seconds: float) -> list[A | None]:
        """Return the answer to each request; None for a request without an answer ``grace_seconds`` after the call."""
        default_bytes = threading.stack_size(STACK_BYTES)
        results: list[A | None] = [None] * len(requests)
        self._waiting = {user: thread for user, thread in self._waiting.items() if thread.is_alive()}
        begun = []
        for user in dict.fromkeys(map(_user_of, requests)):
            if user in self._waiting or len(self._waiting) >= self._max_waiting:
                continue
            thread = threading.Thread(target=self._read_all, args=(requests, user, results), daemon=True)
            self._waiting[user] = thread
            thread.start()
            begun.append(thread)
        threading.stack_size(default_bytes)
        until = time.monotonic() + grace_seconds
        for thread in begun:
            thread.join(max(until - time.monotonic(), 0.0))
        return list(results)

    def _read_all(self, requests: Sequence[R], user: _User, results: list[A | None]) -> None:
        for number, request in enumerate(requests):
            if _user_of(request) == user:
                results[number] = self._read(request)


def _user_of(request: Any) -> _User:
    return request.uid, 0 if request.uid else request.pid
