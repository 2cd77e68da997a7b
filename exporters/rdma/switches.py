"""Which port of which switch each port of the node is connected to, from a file of the site's.

The file is CSV with a header: the columns device, port, switch and switch_port, and node where one file is made for
many nodes. Lines of other nodes are passed over.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

MAX_BYTES = 16 * 1024 * 1024
"""Some 200,000 lines."""
MAX_ROWS = 512
"""Of the node itself."""
MAX_NAME = 128
_COLUMNS = {"device", "port", "switch", "switch_port"}

T = TypeVar("T")
Place = tuple[str, str]
"""A device and a port of it, or a switch and one of its."""


class Wiring(NamedTuple):
    """The switch and its port by device and port, and which lines are not as they should be (by number, from 1)."""

    switches: Mapping[Place, Place]
    bad_lines: tuple[int, ...] = ()


def read_wiring(text: str, hostname: str) -> Wiring:
    """Read the file's text for this node. ValueError where a column is missing, or it is no CSV."""
    try:
        return _read(text, hostname)
    except csv.Error as error:
        raise ValueError(str(error)) from None


def _read(text: str, hostname: str) -> Wiring:
    rows = csv.DictReader(text.splitlines(), skipinitialspace=True)
    if missing := _COLUMNS - set(rows.fieldnames or ()):
        raise ValueError(f"columns are missing: {', '.join(sorted(missing))}")
    switches: dict[Place, Place] = {}
    bad = []
    for row in rows:
        if row.get("node") and _short(row["node"]) != _short(hostname):
            continue
        device, port, switch, switch_port = (row[name] or "" for name in ("device", "port", "switch", "switch_port"))
        if all(map(_is_name, (device, port, switch))) and len(switches) < MAX_ROWS:
            switches[device, port] = (switch, switch_port[:MAX_NAME])
        else:
            bad.append(rows.line_num)
    return Wiring(switches, tuple(bad))


def _short(hostname: str) -> str:
    return hostname.partition(".")[0]


def _is_name(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME and text.isprintable()


class SiteFile(Generic[T]):
    """A file of the site's, read again when it was changed (blocking); used from one thread.

    A ``path`` that is empty is no file. ``read`` makes what it says of its bytes, at most ``max_bytes``.
    """

    def __init__(self, path: str, read: Callable[[bytes], T], max_bytes: int) -> None:
        self._path = path
        self._read = read
        self._max_bytes = max_bytes
        self._seen: tuple[int, ...] | None = None

    def changed(self) -> T | None:
        """What it says, where it is new; None where nothing changed. OSError and ValueError once per change."""
        if not self._path:
            return None
        seen = self._look()
        if seen == self._seen:
            return None
        self._seen = seen
        with Path(self._path).open("rb") as file:
            raw = file.read(self._max_bytes + 1)
        if len(raw) > self._max_bytes:
            raise ValueError(f"it is larger than {self._max_bytes} bytes")
        return self._read(raw)

    @property
    def written_seconds(self) -> float | None:
        """When it was written, since the epoch, as of the last look; None where there is none."""
        return self._seen[3] / 1e9 if self._seen else None

    def _look(self) -> tuple[int, ...]:
        try:
            info = os.stat(self._path)
        except OSError:
            return ()
        return (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)
