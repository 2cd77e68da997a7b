"""systemd's notification protocol: readiness, reloads, and the watchdog."""

import socket
from collections.abc import Callable, Iterable, Mapping

from agent.core.log import Logger

FEEDS_PER_TIMEOUT = 3
"""Watchdog notifications per timeout: a single late notification does not end the agent."""


class Notifier:
    """Notifies systemd of the service's state (sd_notify(3)); does nothing if ``address`` is None.

    ``address``: $NOTIFY_SOCKET, a path or ``@`` and an abstract name. No method blocks or raises: errors are logged.
    """

    def __init__(self, address: str | None, log: Logger) -> None:
        self._log = log
        self._address = f"\0{address[1:]}" if address and address.startswith("@") else address
        self._socket: socket.socket | None = None
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)  # noqa: FBT003  # its only parameter

    def close(self) -> None:
        """Close the socket; later messages are dropped."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def send(self, message: str) -> None:
        """Send the service's state, such as ``READY=1``."""
        if self._socket is None:
            return
        try:
            self._socket.sendto(message.encode("utf-8", "replace"), self._address or "")
        except OSError as error:
            self._log.warning("systemd was not notified", error=error)


def watchdog_interval_seconds(environ: Mapping[str, str], pid: int) -> float | None:
    """Return the interval of watchdog notifications for ``pid``, by ``environ``; None without a watchdog.

    $WATCHDOG_USEC and $WATCHDOG_PID: see sd_watchdog_enabled(3).
    """
    timeout = environ.get("WATCHDOG_USEC")
    if timeout is None or environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    return int(timeout) / 1_000_000 / FEEDS_PER_TIMEOUT


class WatchdogGate:
    """Allows a watchdog notification if every part of the agent in ``beats`` was alive since the last one."""

    def __init__(self, beats: Iterable[str], monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._last_seen = dict.fromkeys(beats, monotonic())
        self._missing = set(self._last_seen)

    def beat(self, name: str) -> None:
        """Note that ``name`` is alive."""
        self._last_seen[name] = self._monotonic()
        self._missing.discard(name)

    def may_feed(self) -> bool:
        """Return True if the watchdog may be notified now; then wait for every part again."""
        if self._missing:
            return False
        self._missing = set(self._last_seen)
        return True

    def missing(self) -> dict[str, float]:
        """Return the missing parts, each with the seconds since it was last alive (or since the start)."""
        now = self._monotonic()
        return {name: now - self._last_seen[name] for name in sorted(self._missing)}
