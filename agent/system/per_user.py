"""Reads that may never come back: a thread for each user's, so that a file system that hangs costs its users alone.

For helper processes. A call to a file system that hangs cannot be ended; its thread is left to itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

GRACE_SECONDS = 1.0
"""A call waits this long for its threads, in all; a healthy file system answers in milliseconds."""
MAX_WAITING = 64
"""Threads that hang; beyond these nothing more is read."""
STACK_BYTES = 256 * 1024

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class PerUser(Generic[Request, Answer]):
    """``uid_of``: whose a request is; ``answer`` reads what it asks for, and must not raise."""

    def __init__(self, uid_of: Callable[[Request], int], answer: Callable[[Request], Answer]) -> None:
        self._uid_of = uid_of
        self._answer = answer
        self._waiting: dict[int, threading.Thread] = {}

    def ask(self, requests: Sequence[Request]) -> list[Answer | None]:
        """Answer each request, None for one whose file system did not, or hangs since an earlier call."""
        threading.stack_size(STACK_BYTES)
        found: list[Answer | None] = [None] * len(requests)
        for uid in [uid for uid, thread in self._waiting.items() if not thread.is_alive()]:
            del self._waiting[uid]
        begun = []
        for uid in dict.fromkeys(map(self._uid_of, requests)):
            if uid in self._waiting or len(self._waiting) >= MAX_WAITING:
                continue
            self._waiting[uid] = threading.Thread(target=self._answer_all, args=(requests, uid, found), daemon=True)
            self._waiting[uid].start()
            begun.append(self._waiting[uid])
        until = time.monotonic() + GRACE_SECONDS
        for thread in begun:
            thread.join(max(until - time.monotonic(), 0.0))
        return list(found)

    def _answer_all(self, requests: Sequence[Request], uid: int, found: list[Answer | None]) -> None:
        for number, request in enumerate(requests):
            if self._uid_of(request) == uid:
                found[number] = self._answer(request)
