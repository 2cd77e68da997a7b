"""The switch and switch port of each port of the node, from a file that the site provides.

The file is CSV with a header line: the columns device, port, switch and switch_port. A file for many nodes also has the
column node. Lines of other nodes are ignored.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

MAX_BYTES = 16 * 1024 * 1024
"""Room for about 200,000 lines."""
MAX_ROWS = 512
"""Lines for this node."""
MAX_NAME = 128
_COLUMNS = {"device", "port", "switch", "switch_port"}

T = TypeVar("T")
Place = tuple[str, str]
"""A device and one of its ports, or a switch and one of its ports."""


class Wiring(NamedTuple):
    """The switch and switch port by device and port, and the numbers of invalid lines (from 1)."""

    switches: Mapping[Place, Place]
    bad_lines: tuple[int, ...] = ()


def read_wiring(text: str, hostname: str) -> Wiring:
    """Return the wiring of this node from the file's text. Raise ValueError for a missing column or invalid CSV."""
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
    """A file that the site provides, read again after a change. Blocking; for one thread.

    An empty ``path`` means that there is no file. ``read`` converts the file's content, at most ``max_bytes`` bytes.
    """

    def __init__(self, path: str, read: Callable[[bytes], T], max_bytes: int) -> None:
        self._path = path
        self._read = read
        self._max_bytes = max_bytes
        self._seen: tuple[int, ...] | None = None

    def changed(self) -> T | None:
        """Return the converted content after a change, else None. Raise OSError or ValueError once per change."""
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
        """The file's modification time at the last look, in epoch seconds; None without a file."""
        return self._seen[3] / 1e9 if self._seen else None

    def _look(self) -> tuple[int, ...]:
        try:
            info = os.stat(self._path)
        except OSError:
            return ()
        return (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)
