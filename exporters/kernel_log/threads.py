"""Whose thread a number is: the kernel's log calls threads and processes both by such numbers. Blocking."""

from __future__ import annotations

import re
from typing import NamedTuple

from agent.sdk.exporter import Roots
from agent.sdk.system import sysfs

_THREAD_GROUP = re.compile(r"^Tgid:\s*(\d{1,10})$", re.MULTILINE)
_USER = re.compile(r"^Uid:\s*(\d{1,10})\s", re.MULTILINE)


class Process(NamedTuple):
    """A process, and its real user id; -1 where it is not known."""

    pid: int
    user: int


def process_of(roots: Roots, number: int) -> Process:
    """The process of a thread while it is there, else what was given."""
    status = sysfs.read_text(roots.proc / str(number) / "status") if number else None
    group, user = _THREAD_GROUP.search(status or ""), _USER.search(status or "")
    return Process(int(group[1]) if group else number, int(user[1]) if user else -1)
