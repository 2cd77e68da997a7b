"""Answer requests about users' files, in one thread per user (root: per process). Imports only the standard library.

A call to a hung file system never returns. While a call hangs, requests about files of the same owner get no answer. Of
the requests about root's files, only those about the same process get no answer.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

MAX_WAITING = 64  # Limit of hung threads, half of it for root's; at the limit no file is read
STACK_BYTES = 512 * 1024  # JSON of 10,000 levels, the limit of Python 3.13, needs 350 KiB: a smaller stack crashes

_User = tuple[int, int]
R = TypeVar("R", bound=Any)
A = TypeVar("A")


class ByUser(Generic[R, A]):
    """Answers requests with ``read``, which may hang; a request's ``uid`` is the owner of its file.

    Root's requests have a thread for each process, ``pid``: most pods and containers run as root.
    """

    def __init__(self, read: Callable[[R], A]) -> None:
        self._read = read
        self._waiting: dict[_User, threading.Thread] = {}

    def answers(self, requests: Sequence[R], grace_seconds: float) -> list[A | None]:
        """Return the answer to each request; None for a request without an answer ``grace_seconds`` after the call."""
        default_bytes = threading.stack_size(STACK_BYTES)
        results: list[A | None] = [None] * len(requests)
        until = time.monotonic() + grace_seconds
        started: list[threading.Thread] = []
        for user in sorted(dict.fromkeys(map(_user_of, requests)), key=lambda user: not user[0]):  # root's last
            if self._is_full(user):
                _join(started, until)  # threads that do not hang end now
            if self._is_full(user) or user in self._waiting:
                continue
            thread = threading.Thread(target=self._read_all, args=(requests, user, results), daemon=True)
            self._waiting[user] = thread
            thread.start()
            started.append(thread)
        threading.stack_size(default_bytes)
        _join(started, until)
        return list(results)

    def _is_full(self, user: _User) -> bool:
        """Forget threads that have ended; return True if this user may have no further thread."""
        self._waiting = {user: thread for user, thread in self._waiting.items() if thread.is_alive()}
        of_root = sum(not uid for uid, _ in self._waiting)
        return len(self._waiting) >= MAX_WAITING or (not user[0] and of_root >= MAX_WAITING // 2)

    def _read_all(self, requests: Sequence[R], user: _User, results: list[A | None]) -> None:
        for number, request in enumerate(requests):
            if _user_of(request) == user:
                results[number] = self._read(request)


def _user_of(request: Any) -> _User:
    return request.uid, 0 if request.uid else request.pid


def _join(threads: Sequence[threading.Thread], until: float) -> None:
    """Wait for the threads until this monotonic time."""
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0.0))
