"""What stands between a request and its page: passwords (RFC 7617, bcrypt), headers and rate of the web file."""

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
OPEN_PATHS = frozenset({"/-/healthy", "/-/ready"})
"""Asked by kubelets and load balancers, which have no password; they tell nothing but that."""
_REALM = (("WWW-Authenticate", 'Basic realm="rankwatch", charset="UTF-8"'),)


class _Bucket:
    """Tokens that come back with time: ``most`` at once, ``per_second``."""

    def __init__(self, most: int, per_second: float, now: float) -> None:
        self._most, self._per_second = most, per_second
        self._tokens, self._at = float(most), now

    def take(self, now: float) -> bool:
        """Take one; False where there is none."""
        self._tokens = min(self._most, self._tokens + (now - self._at) * self._per_second)
        self._at = now
        has_one = self._tokens >= 1
        self._tokens -= has_one
        return has_one


class Passwords:
    """``users``: hashes by user. ``check_password`` is bcrypt's (password, hash); ``monotonic`` a clock.

    A check takes some 70 ms by design, so it is made in a thread, and what was right once is remembered. Who sends
    wrong passwords has few checks a second: further ones are refused unseen, by peer.
    """

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
        bucket = self._buckets.pop(client, None) or _Bucket(CHECKS_AT_ONCE, CHECKS_PER_SECOND, now)
        self._buckets[client] = bucket
        while len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return bucket.take(now)


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
    """What clients must meet: at their connection (``tls``; None: plain HTTP), and at each request.

    ``passwords`` None: everybody is let in. ``headers`` go with every answer. Used on the event loop.
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
        self._monotonic = monotonic
        self._bucket: _Bucket | None = None
        if rate is not None and rate.seconds and monotonic is not None:
            self._bucket = _Bucket(max(rate.burst, 1), 1 / rate.seconds, monotonic())

    async def refuse(self, request: HttpRequest) -> HttpResponse | None:
        """Return the refusal of a request, None where it may go on."""
        if self._bucket is not None and self._monotonic is not None and not self._bucket.take(self._monotonic()):
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
        """Return the answer with the file's headers, which take the place of those of the same name."""
        if not self._headers:
            return response
        kept = tuple(header for header in response.headers if header[0] not in self._headers)
        return replace(response, headers=(*kept, *self._headers.items()))
