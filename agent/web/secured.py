"""Checks of a request: passwords (RFC 7617, bcrypt), headers and rate limit of the web file."""

import base64
import binascii
import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

from agent.core.fair_lane import FairLane
from agent.core.threads import OwnThread
from agent.web.connection import TlsTerms
from agent.web.messages import TEXT, HttpRequest, HttpResponse
from agent.web.web_file import RateLimit

MAX_VALID = 64
"""Limit of cached valid (user, password) pairs; a scraper needs one pair."""
MAX_CLIENTS = 1024
"""Limit of peers whose rate of checks is stored."""
MAX_PASSWORD_BYTES = 72
"""Limit of bcrypt's input; bcrypt ignores further bytes."""
CHECKS_AT_ONCE = 10
CHECKS_PER_SECOND = 2.0
"""Rate of checks of unknown pairs per peer."""
MAX_WAITING = 64
"""Limit of checks of all peers that wait for the thread; peers take turns."""

Verdict = Literal["right", "wrong", "too_many"]
OPEN_PATHS = frozenset({"/-/healthy", "/-/ready"})
"""Paths without a password, for kubelets and load balancers; they show only health and readiness."""
_REALM = (("WWW-Authenticate", 'Basic realm="rankwatch", charset="UTF-8"'),)


class _Bucket:
    """A token bucket: up to ``most`` tokens, refilled at ``per_second``."""

    def __init__(self, most: int, per_second: float, monotonic: Callable[[], float]) -> None:
        self._most, self._per_second, self._monotonic = most, per_second, monotonic
        self._tokens, self._at = float(most), monotonic()

    def take(self) -> bool:
        """Take one token; return False if there is none."""
        now = self._monotonic()
        self._tokens = min(self._most, self._tokens + (now - self._at) * self._per_second)
        self._at = now
        has_one = self._tokens >= 1
        self._tokens -= has_one
        return has_one


class Passwords:
    """Checks passwords. ``users``: hashes by user. ``check_password``: bcrypt's function of password and hash.

    A check takes about 70 ms by design, so it runs in a thread, and valid pairs are cached. A peer with wrong passwords
    gets few checks per second; further requests are refused without a check.
    """

    def __init__(
        self,
        users: Mapping[str, str],
        thread: OwnThread,
        monotonic: Callable[[], float],
        check_password: Callable[[bytes, bytes], bool],
    ) -> None:
        self._users = {name.encode(): hashed.encode() for name, hashed in users.items()}
        self._any_hash = next(iter(self._users.values()), b"")
        self._thread = thread
        self._monotonic = monotonic
        self._check_password = check_password
        self._salt = os.urandom(16)
        self._valid: OrderedDict[bytes, None] = OrderedDict()
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._checks: FairLane[tuple[bytes, bytes], bool] = FairLane(self._matches)
        self._waiting = 0

    async def check(self, authorization: str, client: str) -> Verdict:
        """Return the verdict on the Authorization header of a request from the peer ``client``."""
        pair = _pair(authorization)
        if pair is None:
            return "wrong"
        user, password = pair
        known = hashlib.sha256(self._salt + len(user).to_bytes(4, "big") + user + password).digest()
        if known in self._valid:
            self._valid.move_to_end(known)
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
        self._valid[known] = None
        while len(self._valid) > MAX_VALID:
            self._valid.popitem(last=False)
        return "right"

    async def _matches(self, pair: tuple[bytes, bytes]) -> bool:
        user, password = pair
        hashed = self._users.get(user) or self._any_hash  # checks of unknown users take equal time
        return await self._thread.call(lambda: self._check_password(password[:MAX_PASSWORD_BYTES], hashed))

    def _may_check(self, client: str) -> bool:
        """Count a check of the peer; return False if the peer has reached its rate."""
        bucket = self._buckets.pop(client, None) or _Bucket(CHECKS_AT_ONCE, CHECKS_PER_SECOND, self._monotonic)
        self._buckets[client] = bucket
        while len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return bucket.take()


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


class Secured:
    """Requirements for clients: of the connection (``tls``; None: plain HTTP) and of each request.

    ``passwords`` None: no password needed. ``headers``: sent with every answer. Used on the event loop.
    """

    def __init__(
        self,
        passwords: Passwords | None = None,
        headers: Mapping[str, str] | None = None,
        rate: RateLimit | None = None,
        monotonic: Callable[[], float] | None = None,
        tls: TlsTerms | None = None,
    ) -> None:
        self.tls = tls
        self.passwords = passwords
        self._headers = dict(headers or {})
        self._bucket: _Bucket | None = None
        if rate is not None and rate.seconds and monotonic is not None:
            self._bucket = _Bucket(max(rate.burst, 1), 1 / rate.seconds, monotonic)

    async def refuse(self, request: HttpRequest) -> HttpResponse | None:
        """Return the refusal of a request; None if the request is allowed."""
        if self._bucket is not None and not self._bucket.take():
            return self.finish(HttpResponse(429, TEXT, b"Too many requests\n"))
        if self.passwords is None or request.path in OPEN_PATHS:
            return None
        verdict = await self.passwords.check(request.headers.get("authorization", ""), request.client)
        if verdict == "right":
            return None
        if verdict == "too_many":
            return self.finish(HttpResponse(429, TEXT, b"Too many wrong passwords\n", (("Retry-After", "1"),)))
        return self.finish(HttpResponse(401, TEXT, b"Unauthorized\n", _REALM))

    def finish(self, response: HttpResponse) -> HttpResponse:
        """Return the answer with the web file's headers, which replace headers of the same name."""
        if not self._headers:
            return response
        own_headers = tuple(header for header in response.headers if header[0] not in self._headers)
        return replace(response, headers=(*own_headers, *self._headers.items()))
