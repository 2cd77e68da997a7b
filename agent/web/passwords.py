"""Users and passwords of HTTP's basic authentication (RFC 7617), against hashes by bcrypt.

A check takes some 70 ms by design, so it is made in a thread, and what was right once is remembered. Who sends wrong
passwords has few checks a second: further ones are refused unseen, by peer, and the right password that is remembered
is still let in.
"""

import base64
import binascii
import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from agent.core.fair_lane import FairLane
from agent.core.threads import OwnThread

MAX_GOOD = 64
"""Right pairs that are remembered; what scrapers need is one each."""
MAX_CLIENTS = 1024
"""Peers whose failures are counted."""
MAX_PASSWORD_BYTES = 72
"""More than bcrypt looks at; the hash of a longer one would be that of its beginning."""
CHECKS_AT_ONCE = 10
CHECKS_PER_SECOND = 2.0
"""Of one peer, of pairs that are not known to be right."""
MAX_WAITING = 64
"""Checks of all peers that wait for the thread, in turns by peer."""

Verdict = Literal["right", "wrong", "too_many"]


class _Bucket(NamedTuple):
    checks: float
    at: float


class Passwords:
    """``users``: hashes by user. ``check_password`` is bcrypt's (password, hash); ``monotonic`` a clock."""

    def __init__(
        self,
        users: Mapping[str, str],
        thread: OwnThread,
        monotonic: Callable[[], float],
        check_password: Callable[[bytes, bytes], bool],
    ) -> None:
        self._users = {name.encode(): hashed.encode() for name, hashed in users.items()}
        self._anybody = next(iter(self._users.values()), b"")
        self._thread = thread
        self._monotonic = monotonic
        self._check_password = check_password
        self._salt = os.urandom(16)
        self._good: OrderedDict[bytes, None] = OrderedDict()
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._checks: FairLane[tuple[bytes, bytes], bool] = FairLane(self._matches)
        self._waiting = 0

    async def check(self, authorization: str, client: str) -> Verdict:
        """Judge the header of a request from the peer ``client``."""
        pair = _pair(authorization)
        if pair is None:
            return "wrong"
        user, password = pair
        known = hashlib.sha256(self._salt + len(user).to_bytes(4, "big") + user + password).digest()
        if known in self._good:
            self._good.move_to_end(known)
            return "right"
        if self._waiting >= MAX_WAITING or not self._may_check(client):
            return "too_many"
        self._waiting += 1
        try:
            matches = await self._checks.get(client, pair)
        finally:
            self._waiting -= 1
        if not matches or user not in self._users:
            return "wrong"
        self._good[known] = None
        while len(self._good) > MAX_GOOD:
            self._good.popitem(last=False)
        return "right"

    async def _matches(self, pair: tuple[bytes, bytes]) -> bool:
        user, password = pair
        hashed = self._users.get(user) or self._anybody  # for who is no user it must take as long
        return await self._thread.call(lambda: self._check_password(password[:MAX_PASSWORD_BYTES], hashed))

    def _may_check(self, client: str) -> bool:
        """Take one of the checks that the peer has now; False where there is none."""
        now = self._monotonic()
        before = self._buckets.pop(client, _Bucket(CHECKS_AT_ONCE, now))
        checks = min(CHECKS_AT_ONCE, before.checks + (now - before.at) * CHECKS_PER_SECOND)
        self._buckets[client] = _Bucket(checks - 1 if checks >= 1 else checks, now)
        while len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return checks >= 1


def _pair(authorization: str) -> tuple[bytes, bytes] | None:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        text = base64.b64decode(encoded.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None
    user, colon, password = text.partition(b":")
    return (user, password) if colon else None
