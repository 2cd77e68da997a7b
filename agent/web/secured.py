"""What stands between a request and its page: the web file's passwords, headers and rate."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from agent.web.connection import TlsTerms
from agent.web.messages import TEXT, HttpRequest, HttpResponse
from agent.web.passwords import Passwords
from agent.web.web_file import RateLimit

OPEN_PATHS = frozenset({"/-/healthy", "/-/ready"})
"""Asked by kubelets and load balancers, which have no password; they tell nothing but that."""
_REALM = (("WWW-Authenticate", 'Basic realm="rankwatch", charset="UTF-8"'),)


class Secured:
    """``passwords`` None: everybody is let in. ``headers`` go with every answer. Used on the event loop."""

    def __init__(
        self,
        passwords: Passwords | None = None,
        headers: Mapping[str, str] | None = None,
        rate: RateLimit | None = None,
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        self._passwords = passwords
        self._headers = dict(headers or {})
        self._interval = 0.0 if rate is None else rate.seconds
        self._burst = 0 if rate is None else max(rate.burst, 1)
        self._monotonic = monotonic
        self._tokens = float(self._burst)
        self._at: float | None = None

    async def refuse(self, request: HttpRequest) -> HttpResponse | None:
        """Return the refusal of a request, None where it may go on."""
        if not self._is_in_rate():
            return self.finish(HttpResponse(429, TEXT, b"Too many requests\n"))
        if self._passwords is None or request.path in OPEN_PATHS:
            return None
        verdict = await self._passwords.check(request.headers.get("authorization", ""), request.client)
        if verdict == "right":
            return None
        if verdict == "too_many":
            return self.finish(HttpResponse(429, TEXT, b"Too many wrong passwords\n", (("Retry-After", "1"),)))
        return self.finish(HttpResponse(401, TEXT, b"Unauthorized\n", _REALM))

    @property
    def asks_for_passwords(self) -> bool:
        """Return whether all paths but OPEN_PATHS need a password."""
        return self._passwords is not None

    def finish(self, response: HttpResponse) -> HttpResponse:
        """Return the answer with the file's headers, which take the place of those of the same name."""
        if not self._headers:
            return response
        kept = tuple(each for each in response.headers if each[0] not in self._headers)
        return replace(response, headers=(*kept, *self._headers.items()))

    def _is_in_rate(self) -> bool:
        if not self._interval or self._monotonic is None:
            return True
        now = self._monotonic()
        if self._at is not None:
            self._tokens = min(self._burst, self._tokens + (now - self._at) / self._interval)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


@dataclass(frozen=True, slots=True)
class Terms:
    """What clients must meet: at their connection (``tls``; None: plain HTTP), and at each request."""

    secured: Secured = field(default_factory=Secured)
    tls: TlsTerms | None = None
