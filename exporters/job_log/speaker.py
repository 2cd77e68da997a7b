"""Who wrote a line, as far as what it begins with says. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_PREFIX_BYTES = 256
MAX_RANK = 1 << 20

_RANK = re.compile(rb"\[rank(\d{1,7})\]:")
_TASK = re.compile(rb"^(?:\s{0,8}(\d{1,7}): |\[[\w.@-]{1,128},(\d{1,7})\]<std(?:out|err)>:)")
"""As srun's --label, or mpirun's --tag-output, writes it."""
_WORLD_GROUP = re.compile(
    rb"\[PG (?:ID )?\d{1,6} (?:PG GUID [^( \]]{1,64}\(default_pg\)|\(default_pg\)) Rank (\d{1,7})\]"
)
_LIBRARY = re.compile(rb"(?:^|[\s\]])([A-Za-z0-9][\w.-]{0,62}):(\d{1,10}):\d{1,10} \[-?\d{1,4}\] ")
_ACTOR = re.compile(rb"^(?:\x1b\[[0-9;]{1,12}m)?\([\w.-]{1,64} pid=(\d{1,10})(?:, ip=[\w.:]{1,45})?\)")
_LOCAL = re.compile(rb"^\[(?:default|trainer|worker)(\d{1,4})\]:")


class Speaker(NamedTuple):
    """``rank``: the global rank, where the line says that; ``task``: the number of the scheduler's task, which is the
    rank where each task is one. ``host`` and ``pid``: of the process, by its own words. ``local``: its rank on the
    node.
    """

    rank: int | None = None
    task: int | None = None
    host: str = ""
    pid: int | None = None
    local: int | None = None


def speaker_of(line: bytes) -> Speaker:
    """Read the beginning of a line. The rank in a process group is a global one in the group of all alone."""
    head = line[:MAX_PREFIX_BYTES]
    found = _RANK.search(head) or _WORLD_GROUP.search(head)
    task, local, library = _TASK.match(head), _LOCAL.match(head), _LIBRARY.search(head)
    actor = None if library else _ACTOR.match(head)
    pid = library[2] if library else actor[1] if actor else None
    return Speaker(
        rank=_number(found[1]) if found else None,
        task=_number(task[1] or task[2]) if task else None,
        host=library[1].decode("ascii") if library else "",
        pid=None if pid is None else int(pid),
        local=int(local[1]) if local else None,
    )


def _number(text: bytes) -> int | None:
    number = int(text)
    return number if number < MAX_RANK else None
