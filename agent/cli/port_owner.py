"""Whose a listening port of this node is: any user may take the agent's while that does not run."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

FIRST_ORDINARY_UID = 1000
"""Of people (login.defs(5)); services and root have less."""
_OF_SERVICES = range(61184, 65536)
"""User ids that systemd makes for a service (DynamicUser=), those of container images, and the overflow user id: that
of users without a number in this user namespace."""
_LISTENING = b"0A"
_TABLES = ("net/tcp", "net/tcp6")


def stranger_at(port: int, proc: Path = Path("/proc")) -> int | None:
    """Return the uid of another ordinary user who listens at ``port``, else None (blocking)."""
    tables = []
    for name in _TABLES:
        with suppress(OSError):
            tables.append((proc / name).read_bytes())
    return next((uid for uid in listeners(port, tables) if _is_ordinary(uid) and uid != os.geteuid()), None)


def listeners(port: int, tables: Iterable[bytes]) -> list[int]:
    """The uids of those who listen at ``port``, by tables as /proc/net/tcp. Lines that are none are left out. Pure."""
    uids = []
    for table in tables:
        for line in table.splitlines():
            fields = line.split()
            if len(fields) > 7 and fields[3] == _LISTENING and fields[1].endswith(b":%04X" % port):
                with suppress(ValueError):
                    uids.append(int(fields[7]))
    return uids


def _is_ordinary(uid: int) -> bool:
    return uid >= FIRST_ORDINARY_UID and uid not in _OF_SERVICES
