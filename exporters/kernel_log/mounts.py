"""Finds devices that are still read-only and silent servers that are still mounted (proc_pid_mountinfo(5))."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from agent.sdk.exporter import Roots
from agent.sdk.system import sysfs

MAX_BYTES = 8 * 1024 * 1024  # The greatest size of mountinfo. A node with ten thousand mounts has about 2 MB.

_READ_ONLY = {"ro", "emergency_ro", "shutdown"}
"""Options of a read-only file system; ext4 shows the last two. Options of a single mount do not count."""


def still_failed(read_only: Mapping[str, bool], mounted: Mapping[str, bool]) -> dict[str, bool]:
    """Return the devices that have not recovered, each with True if mountinfo shows it as read-only.

    ``read_only``: the last result, with new devices added. ``mounted``: mounted devices, and whether each is read-only.
    A device has recovered when it was read-only and is writable now, or when it is not mounted. A device that
    mountinfo never showed as read-only (xfs after a shutdown; ext4 of Linux 6.12 to 6.14) stays until it is unmounted.
    """
    return {name: mounted[name] for name, was in read_only.items() if name in mounted and (mounted[name] or not was)}


def still_silent(servers: Mapping[str, bool], mounted: Mapping[str, bool]) -> dict[str, bool]:
    """Return the servers that have not recovered, each with True if mountinfo showed a mount of it.

    ``servers``: the last result, with new servers added. After its last unmount a silent server no longer matters, and
    the kernel logs no answer. A server stays that mountinfo never showed: other namespaces can have its mounts.
    """
    return {name: was or name in mounted for name, was in servers.items() if name in mounted or not was}


def mounted_devices(mountinfo: str, devices: Mapping[str, Iterable[str]]) -> dict[str, bool]:
    """Return the devices and NFS servers that are mounted, each with True if a mount of it is read-only.

    ``devices``: the words of each in mountinfo: number (major:minor), last part of the path, or the server's name.
    """
    by_word = {word: name for name, words in devices.items() for word in words if word}
    states: dict[str, bool] = {}
    for line in mountinfo.splitlines():
        mount, _, filesystem = line.partition(" - ")
        fields, right = mount.split(" "), filesystem.split(" ")
        if len(fields) > 2 and len(right) > 2:
            named = right[1].partition(":/")[0] if right[0].startswith("nfs") else right[1].rpartition("/")[2]
            is_chosen = right[0].startswith("fuse")  # by the user of the mount
            name = by_word.get(fields[2]) or by_word.get("" if is_chosen else named)
            if name is not None:
                states[name] = states.get(name, False) or not _READ_ONLY.isdisjoint(right[2].split(","))
    return states


def read_mounted(roots: Roots, names: Iterable[str]) -> dict[str, bool] | None:
    """Return ``mounted_devices`` of the node; None if mountinfo cannot be read. Blocking."""
    devices = {name: _words(roots.sys / "class/block" / name) for name in names}
    for process in ("1", "self"):  # init has the node's mounts; without ptrace rights only the agent's own are readable
        text = _read(roots.proc / process / "mountinfo")
        if text is not None:
            return mounted_devices(text, devices)
    return None


def _words(path: Path) -> tuple[str, ...]:
    return sysfs.read_text(path / "dev") or "", path.name, sysfs.read_text(path / "dm/name") or ""


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError:
        return None
    return raw.decode("utf-8", "replace") if len(raw) <= MAX_BYTES else None
