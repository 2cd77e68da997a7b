"""What NCCL's own files of settings add to a process' environment, as far as RAS reads it. Blocking.

NCCL sets what they hold as it starts (src/misc/param.cc: setEnvFile), which /proc/PID/environ does not show: first the
file of NCCL_CONF_FILE, or ~/.nccl.conf without it, then /etc/nccl.conf; what is set already stays.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

MAX_FILE_BYTES = 64 * 1024
MAX_LINE = 4096
_SYSTEM_FILE = "/etc/nccl.conf"
_WANTED = ("NCCL_RAS_ADDR", "NCCL_RAS_TIMEOUT_FACTOR")


def effective_environment(proc_root: Path, pid: int, environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` with RAS's settings from the files, as the process sees them; what cannot be read is left out."""
    user_file = environment.get("NCCL_CONF_FILE") or f"{environment.get('HOME', '')}/.nccl.conf"
    found = dict(environment)
    for path in (user_file, _SYSTEM_FILE):
        if os.path.isabs(path):
            for name, value in parse(_read(f"{proc_root}/{pid}/root{path}")).items():
                found.setdefault(name, value)
    return found


def parse(text: str) -> dict[str, str]:
    """RAS's settings in such a file: NAME=VALUE, a line each; comments begin with #."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        name, is_set, value = line[:MAX_LINE].rstrip("\r").partition("=")
        if is_set and name in _WANTED:
            found.setdefault(name, value)
    return found


def _read(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return ""
    try:
        return os.read(fd, MAX_FILE_BYTES).decode("utf-8", "replace") if stat.S_ISREG(os.fstat(fd).st_mode) else ""
    except OSError:
        return ""
    finally:
        os.close(fd)
