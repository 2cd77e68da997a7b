"""What the launcher of a NIXL-EP run prints: where it stands, and by which category it failed. Pure.

An ``srun`` that the plan ends is no failure: it names tasks that were terminated, and both steps of its end, and
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
"""In this order, and the first that fits counts: the later ones are said of most failures too."""

_COMPLETED = re.compile(r"Detected completion of phase ([0-9]{1,7})(?![0-9])", re.ASCII)
_EXCUSES = ("All NIXL EP launches completed successfully", "Ignoring provisional NIXL EP planned-rank-removal exit 143")
_TERMINATED = re.compile(r"srun: error: [\w.\[\],-]{1,4096}: tasks? [0-9,-]{1,4096}: Terminated\s*$", re.ASCII)
_TERMINATING = "srun: Terminating StepId="
_FORCED = "srun: Force Terminated StepId="


def read_completed(line: str) -> int | None:
    """Return the phase that a line reports as completed; None for most lines."""
    match = _COMPLETED.search(line[:MAX_LINE_CHARACTERS])
    return int(match[1]) if match is not None and int(match[1]) <= MAX_PHASE else None


def is_excuse(line: str) -> bool:
    """Whether the launcher says that srun's end was planned."""
    return any(words in line[:MAX_LINE_CHARACTERS] for words in _EXCUSES)


def read_failure(line: str) -> str:
    """The category of CATEGORIES that a line tells of; empty for most."""
    text = line[:MAX_LINE_CHARACTERS]
    return next((category for category, word in _FAILURES if word in text), "")


class SrunEnd(msgspec.Struct):
    """Lines of ``srun``: those of a planned end, by kind, and ``others``."""

    terminated: bool | int = False  # a number: of an earlier version
    terminating: bool | int = False
    forced: bool | int = False
    others: bool | int = False

    def take(self, line: str) -> None:
        """Take in a line; those that are not srun's are passed over."""
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
        """Whether these lines are a planned end: the plan kills ranks, and there is each of the three and no other."""
        return plan_kills and not self.others and bool(self.terminated and self.terminating and self.forced)
