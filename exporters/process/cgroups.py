"""How often the OOM killer struck in a process' control group. Blocking."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_OOM_KILL = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_READ_BYTES = 4096


def memory_path(paths: Mapping[str, str], sys_root: Path) -> str:
    """The file that counts OOM kills for these cgroup paths; empty where there is none.

    Version 2: memory.events of the unified hierarchy; version 1: memory.oom_control (both have an `oom_kill` line,
    the latter since Linux 4.13).
    """
    base = sys_root / "fs" / "cgroup"
    for controllers, path in paths.items():
        if "memory" in controllers.split(","):
            return str(base / "memory" / path.lstrip("/") / "memory.oom_control")
    return str(base / paths[""].lstrip("/") / "memory.events") if "" in paths else ""


def oom_kills(counter_file: str) -> int | None:
    """The number of OOM kills counted; None when it cannot be read (the group may be gone with its process)."""
    if not counter_file:
        return None
    try:
        with open(counter_file, encoding="ascii", errors="replace") as file:
            found = _OOM_KILL.search(file.read(_READ_BYTES))
    except OSError:
        return None
    return int(found.group(1)) if found else None
