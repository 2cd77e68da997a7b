"""What NCCL's own files of settings add to a process' environment, as far as RAS reads it. Blocking.

NCCL sets what they hold as it starts (src/misc/param.cc: setEnvFile), which /proc/PID/environ does not show: first the
file of NCCL_CONF_FILE, or ~/.nccl.conf without it, then /etc/nccl.conf; what is set already stays.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from agent.system.inside import open_inside

MAX_FILE_BYTES = 64 * 1024
MAX_LINE = 4096
WANTED = ("NCCL_RAS_ADDR", "NCCL_RAS_TIMEOUT_FACTOR")
_SYSTEM_FILE = "/etc/nccl.conf"


def files_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the files that a process with this environment reads, none where they can add nothing."""
    if all(name in environment for name in WANTED):
        return ()
    user_file = environment.get("NCCL_CONF_FILE") or f"{environment.get('HOME', '')}/.nccl.conf"
    return tuple(path for path in (user_file, _SYSTEM_FILE) if os.path.isabs(path))


def read_conf(root: str, paths: tuple[str, ...]) -> dict[str, str]:
    """RAS's settings in files under ``root``, the first that has one counts; what cannot be read is left out."""
    found: dict[str, str] = {}
    for path in paths:
        for name, value in parse(_read(root, path)).items():
            found.setdefault(name, value)
    return found


def parse(text: str) -> dict[str, str]:
    """RAS's settings in such a file: NAME=VALUE, a line each; comments begin with #."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        name, is_set, value = line[:MAX_LINE].rstrip("\r").partition("=")
        if is_set and name in WANTED:
            found.setdefault(name, value)
    return found


def _read(root: str, path: str) -> str:
    """The text of a file; of one that says it is empty nothing: the kernel's own (/proc) have effects when read."""
    try:
        fd = open_inside(root, path)
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return ""
    try:
        return os.read(fd, MAX_FILE_BYTES).decode("utf-8", "replace") if os.fstat(fd).st_size else ""
    except OSError:
        return ""
    finally:
        os.close(fd)
