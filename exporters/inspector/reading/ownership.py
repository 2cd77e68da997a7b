"""Which files are this node's to export: on a shared file system many agents see the same ones. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

SUFFIXES = (".log", ".jsonl")
_NAME = re.compile(r"(?P<hostname>.+)-pid\d+\.(?:log|jsonl)", re.ASCII)
_METADATA_HOSTNAME = re.compile(rb'"metadata":\{[^{}]{0,2048}?"hostname":"([^"\\]{1,255})"')


class FileState(StrEnum):
    """What is done with a file; ``writable_by_others`` are those of the followed that others may write or replace."""

    FOLLOWED = "followed"
    FOREIGN = "foreign"
    UNIDENTIFIED = "unidentified"
    WRITABLE_BY_OTHERS = "writable_by_others"


class Ownership(NamedTuple):
    """What is this node's: files that local rank processes hold open, and host names of local UTS namespaces.

    ``held``: the path of each held file, as its process names it, by device and inode. ``everyone``: every host's files
    are ours (a single pass over recorded data).
    """

    held: Mapping[tuple[int, int], str] = {}
    hostnames: frozenset[str] = frozenset()
    everyone: bool = False


def is_log(name: str) -> bool:
    """Return whether a file name can be Inspector's: `<hostname>-pid<pid>.log`, or renamed with its end kept."""
    return "-pid" in name and name.endswith(SUFFIXES)


def named_hostname(path: str) -> str | None:
    """Return the host name in a file's name, if it is there."""
    match = _NAME.fullmatch(path.rpartition("/")[2])
    return None if match is None else match["hostname"]


def written_hostname(head: bytes) -> str | None:
    """The host name in the metadata of the first record, which may be longer than ``head``; None if not there."""
    match = _METADATA_HOSTNAME.search(head)
    return None if match is None else match[1].decode(errors="replace")


def is_local(hostname: str, hostnames: frozenset[str]) -> bool:
    """Whether ``hostname`` is one of ``hostnames``, also when one of the two is written short and the other whole."""
    if hostname in hostnames:
        return True
    short = hostname.partition(".")[0]
    return any(name.partition(".")[0] == short and ("." not in name or "." not in hostname) for name in hostnames)


def state_of(identity: tuple[int, int], hostname: str | None, ownership: Ownership) -> FileState:
    """Return what to do with a file by its writer's host name, or None for an unknown one."""
    if ownership.everyone or identity in ownership.held:
        return FileState.FOLLOWED
    if hostname is None:
        return FileState.UNIDENTIFIED
    return FileState.FOLLOWED if is_local(hostname, ownership.hostnames) else FileState.FOREIGN


def is_foreign(ownership: Ownership, name: str, identity: tuple[int, int]) -> bool:
    """Return whether a file's name alone says that another host writes it, and no local process holds it open."""
    if ownership.everyone or identity in ownership.held:
        return False
    hostname = named_hostname(name)
    return hostname is not None and not is_local(hostname, ownership.hostnames)
