"""Which NCCL or RCCL a process runs, learnt without asking it: from the name of the library it maps. Blocking."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

Version = tuple[int, int, int]

MAX_MAPS_BYTES = 8 * 1024 * 1024

_MAPPED = re.compile(
    rb"^([0-9a-f]+-[0-9a-f]+) [^/\n]*(/[^\n]*/lib(?:nccl|rccl)\.so[.0-9]{0,32})( \(deleted\))?$", re.MULTILINE
)
"""Of the plugins, whose names begin alike, none is the library."""
_NAME = re.compile(r"/libnccl\.so\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})$")  # RCCL's carries the version of ROCm


class NcclLibrary(NamedTuple):
    """What a process maps: nccl or rccl (empty: neither is seen), and the version, None where the name has none.

    Then it is in the text of the file: at ``path`` as the process sees it, or, as that was replaced since, ``mapping``.
    """

    flavor: str
    version: Version | None = None
    path: str = ""
    mapping: str = ""


def mapped_library(proc_root: Path, pid: int) -> NcclLibrary:
    """What a process runs."""
    try:
        with (proc_root / f"{pid}/maps").open("rb") as file:
            mapped = _MAPPED.search(file.read(MAX_MAPS_BYTES))
    except OSError:
        return NcclLibrary("")
    if mapped is None:
        return NcclLibrary("")
    path = os.fsdecode(mapped[2])
    flavor = "rccl" if "/librccl" in path else "nccl"
    if named := _NAME.search(path):
        return NcclLibrary(flavor, (int(named[1]), int(named[2]), int(named[3])))
    if mapped[3]:
        return NcclLibrary(flavor, mapping=mapped[1].decode())
    return NcclLibrary(flavor, path=path)
