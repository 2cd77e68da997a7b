"""How a process ended."""

from __future__ import annotations

from signal import Signals

import msgspec

CRASHES = frozenset({"SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS", "SIGABRT"})
"""Signals of a process' own faults."""


class ExitStatus(msgspec.Struct, frozen=True):
    """How a process ended. ``known`` False: its status could not be read. ``oom``: the OOM killer sent the signal."""

    known: bool
    signal: int = 0
    code: int = 0
    oom: bool = False

    @classmethod
    def from_wait(cls, status: int) -> ExitStatus:
        """Read a status in waitpid's form."""
        return cls(known=True, signal=status & 0x7F, code=(status >> 8) & 0xFF)

    @property
    def signal_name(self) -> str:
        """Return the name of the signal, such as SIGKILL; its number where it has no name; empty without a signal."""
        if not self.signal:
            return ""
        try:
            return Signals(self.signal).name
        except ValueError:
            return str(self.signal)


def ending(status: ExitStatus | None) -> tuple[str, str, str]:
    """Return how a process ended: reason, signal's name, status; what is not known or does not apply is empty."""
    if status is None or not status.known:
        return "unknown", "", ""
    if status.signal:
        return ("oom_killed" if status.oom else "signaled"), status.signal_name, ""
    return "exited", "", str(status.code)


def in_words(reason: str, signal: str, code: str) -> str:
    """Word what ``ending`` returns, to stand after a rank: ``killed (SIGKILL)``. Logs, pages and commands use it."""
    if reason == "oom_killed":
        return "killed by the OOM killer"
    if signal:
        return f"{'crashed' if signal in CRASHES else 'killed'} ({signal})"
    return f"exited with status {code}" if code else "exited, status unknown"
