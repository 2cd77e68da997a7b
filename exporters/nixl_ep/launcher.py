"""What the launcher of a NIXL-EP run prints: where it stands, and by which category it failed. Pure.

An ``srun`` that the plan ends is no failure: it names tasks that were terminated, and both steps of its end, and
nothing else.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

MAX_LINE_CHARACTERS = 4096
MAX_PHASE = 1 << 20
MAX_SRUN_LINES = 65_536

Step = Literal["phase_completed", "all_completed", "planned_removal"]

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

_STEPS: tuple[tuple[Step, re.Pattern[str]], ...] = (
    ("phase_completed", re.compile(r"Detected completion of phase ([0-9]{1,7})(?![0-9])", re.ASCII)),
    ("all_completed", re.compile(r"All NIXL EP launches completed successfully()")),
    ("planned_removal", re.compile(r"Ignoring provisional NIXL EP planned-rank-removal exit 143()")),
)
_TERMINATED = re.compile(r"srun: error: [\w.\[\],-]{1,4096}: tasks? [0-9,-]{1,4096}: Terminated\s*$", re.ASCII)
_TERMINATING = "srun: Terminating StepId="
_FORCED = "srun: Force Terminated StepId="


class LauncherStep(msgspec.Struct, frozen=True):
    """A step of the launcher; ``phase`` is that which it names, if any."""

    step: Step
    phase: int | None = None


def read_step(line: str) -> LauncherStep | None:
    """The step that a line tells of; None for most."""
    text = line[:MAX_LINE_CHARACTERS]
    for step, pattern in _STEPS:
        found = pattern.search(text)
        if found is not None and (not found[1] or int(found[1]) <= MAX_PHASE):
            return LauncherStep(step, int(found[1]) if found[1] else None)
    return None


def read_failure(line: str) -> str:
    """The category of CATEGORIES that a line tells of; empty for most."""
    text = line[:MAX_LINE_CHARACTERS]
    return next((category for category, word in _FAILURES if word in text), "")


class SrunEnd(msgspec.Struct):
    """The lines of ``srun`` seen so far: those of a planned end, by kind, and how many there are of others."""

    terminated: int = 0
    terminating: int = 0
    forced: int = 0
    others: int = 0

    def take(self, line: str) -> None:
        """Take in a line; those that are not srun's are passed over."""
        text = line[:MAX_LINE_CHARACTERS]
        if "srun: " not in text:
            return
        if _TERMINATED.search(text):
            self.terminated = min(self.terminated + 1, MAX_SRUN_LINES)
        elif _TERMINATING in text:
            self.terminating = min(self.terminating + 1, MAX_SRUN_LINES)
        elif _FORCED in text:
            self.forced = min(self.forced + 1, MAX_SRUN_LINES)
        else:
            self.others = min(self.others + 1, MAX_SRUN_LINES)

    def is_planned(self, *, plan_kills: bool) -> bool:
        """Whether these lines are a planned end: the plan kills ranks, and there is each of the three and no other."""
        return plan_kills and not self.others and bool(self.terminated and self.terminating and self.forced)
