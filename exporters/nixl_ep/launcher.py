"""Parses the launcher output of a NIXL-EP run: completed phases and failure categories. Pure.

A planned end of ``srun`` is not a failure. In that case srun logs the terminated tasks and both steps of its end, and
nothing else.
"""

from __future__ import annotations

import re

import msgspec

MAX_LINE_CHARACTERS = 4096
MAX_PHASE = 1 << 20

CATEGORIES = (
    "primary_exited",
    "no_script",
    "traceback",
    "services_timeout",
    "no_plan_phase",
    "receive_timeout",
    "collective_timeout",
    "remote_memory",
    "phase_timeout",
    "early_failure",
    "srun_error",
    "exit_code",
)
_FAILURES: tuple[tuple[str, str], ...] = (
    ("primary_exited", "Primary NIXL EP launch exited before phase "),
    ("no_script", "python3: can't open file"),
    ("traceback", "Traceback (most recent call last):"),
    ("services_timeout", "Timed out waiting for NIXL EP master services"),
    ("no_plan_phase", "no plan phases were found for rank"),
    ("receive_timeout", "recvValueWithTimeout failed"),
    ("collective_timeout", "timed out after 300000ms"),
    ("remote_memory", "Failed to prepare remote memory view"),
    ("phase_timeout", "Timed out waiting for phase "),
    ("early_failure", "Detected an early NIXL EP failure while waiting for phase "),
    ("srun_error", "srun: error:"),
    ("exit_code", "Exited with exit code"),
)
"""The first matching category counts. Most failures also log the later ones."""

_COMPLETED = re.compile(r"Detected completion of phase ([0-9]{1,7})(?![0-9])", re.ASCII)
_EXCUSES = ("All NIXL EP launches completed successfully", "Ignoring provisional NIXL EP planned-rank-removal exit 143")
_TERMINATED = re.compile(r"srun: error: [\w.\[\],-]{1,4096}: tasks? [0-9,-]{1,4096}: Terminated\s*$", re.ASCII)
_TERMINATING = "srun: Terminating StepId="
_FORCED = "srun: Force Terminated StepId="


def read_completed(line: str) -> int | None:
    """Return the phase that this line reports as completed; None for most lines."""
    match = _COMPLETED.search(line[:MAX_LINE_CHARACTERS])
    return int(match[1]) if match is not None and int(match[1]) <= MAX_PHASE else None


def is_excuse(line: str) -> bool:
    """Return whether this launcher line says that srun's end was planned."""
    return any(words in line[:MAX_LINE_CHARACTERS] for words in _EXCUSES)


def read_failure(line: str) -> str:
    """Return the failure category (of CATEGORIES) of this line; an empty text for most lines."""
    text = line[:MAX_LINE_CHARACTERS]
    return next((category for category, word in _FAILURES if word in text), "")


class SrunEnd(msgspec.Struct):
    """Which kinds of ``srun`` lines the log has: three kinds of a planned end, and ``others``."""

    terminated: bool | int = False  # int: a checkpoint of an earlier version
    terminating: bool | int = False
    forced: bool | int = False
    others: bool | int = False

    def take(self, line: str) -> None:
        """Add a line. Lines that are not from srun are ignored."""
        text = line[:MAX_LINE_CHARACTERS]
        if "srun: " not in text:
            return
        if _TERMINATED.search(text):
            self.terminated = True
        elif _TERMINATING in text:
            self.terminating = True
        elif _FORCED in text:
            self.forced = True
        else:
            self.others = True

    def is_planned(self, *, plan_kills: bool) -> bool:
        """Return whether srun ended as planned: the plan kills ranks, and srun logged all three kinds and no others."""
        return plan_kills and not self.others and bool(self.terminated and self.terminating and self.forced)
