"""systemd's notification protocol: readiness, reloads, and the watchdog and when it is fed."""

import socket
from collections.abc import Callable, Iterable, Mapping

from agent.core.log import Logger

FEEDS_PER_TIMEOUT = 3
"""The watchdog is fed this often within its timeout, so that one late turn is no death."""


class Notifier:
    """Tells systemd where the service stands (sd_notify(3)); does nothing when ``address`` is None.

    ``address`` is $NOTIFY_SOCKET: a path, or ``@`` and an abstract name. Never blocks and never raises: it logs what
    it could not send.
    """

    def __init__(self, address: str | None, log: Logger) -> None:
        self._log = log
        self._address = f"\0{address[1:]}" if address and address.startswith("@") else address
        self._socket: socket.socket | None = None
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)  # noqa: FBT003  # its only parameter

    def close(self) -> None:
        """Close the socket; nothing is sent afterwards."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def send(self, message: str) -> None:
        """Say where the service stands, as ``READY=1``."""
        if self._socket is None:
            return
        try:
            self._socket.sendto(message.encode("utf-8", "replace"), self._address or "")
        except OSError as error:
            self._log.warning("systemd was not notified", error=error)


def watchdog_interval_seconds(environ: Mapping[str, str], pid: int) -> float | None:
    """Return how often to feed the watchdog that ``environ`` sets for ``pid``, None when there is none.

    $WATCHDOG_USEC and $WATCHDOG_PID as sd_watchdog_enabled(3) has them.
    """
    timeout = environ.get("WATCHDOG_USEC")
    if timeout is None or environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    return int(timeout) / 1_000_000 / FEEDS_PER_TIMEOUT


class WatchdogGate:
    """Lets the watchdog be fed only when every one of ``beats`` was seen since it was last fed."""

    def __init__(self, beats: Iterable[str], monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._last_seen = dict.fromkeys(beats, monotonic())
        self._missing = set(self._last_seen)

    def beat(self, name: str) -> None:
        """Note that ``name`` is alive."""
        self._last_seen[name] = self._monotonic()
        self._missing.discard(name)

    def may_feed(self) -> bool:
        """Return whether the watchdog may be fed now; if so, it waits for every beat again."""
        if self._missing:
            return False
        self._missing = set(self._last_seen)
        return True

    def missing(self) -> dict[str, float]:
        """Return the beats still awaited, with the seconds since each was last seen (or the gate was made)."""
        now = self._monotonic()
        return {name: now - self._last_seen[name] for name in sorted(self._missing)}
