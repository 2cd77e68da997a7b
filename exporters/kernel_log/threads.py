"""Which process a thread belongs to: the kernel's log calls both by such numbers. Blocking."""

from __future__ import annotations

import re

from agent.api import Roots, sysfs

_THREAD_GROUP = re.compile(r"^Tgid:\s*(\d{1,10})$", re.MULTILINE)


def process_of(roots: Roots, number: int) -> int:
    """The process of a thread while it is there, else what was given."""
    status = sysfs.read_text(roots.proc / str(number) / "status") if number else None
    group = _THREAD_GROUP.search(status or "")
    return int(group[1]) if group else number
