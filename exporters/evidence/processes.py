"""What the kernel shows of a rank's process, as files of a bundle. Blocking reads, for the thread of their caller.

Only what takes no lock of the process' memory: not its environment, command line or maps, which can hang with it.
"""

from __future__ import annotations

from pathlib import Path

FILES = ("status", "wchan", "syscall", "stack", "stat", "schedstat", "io", "limits", "cgroup", "oom_score")
GROUP_FILES = (
    *("cpu.stat", "cpu.max", "cpu.pressure", "memory.current", "memory.max", "memory.events", "memory.pressure"),
    *("io.stat", "io.pressure", "pids.current", "pids.max", "cgroup.events"),
)
PRESSURE = ("cpu", "memory", "io")
MAX_FILE_BYTES = 64 * 1024
MAX_THREADS = 512
"""Maximum number of a rank's threads, the first ones: NCCL's and PyTorch's are made early."""


def rank_files(proc: Path, cgroups: Path, rank: str, pid: int) -> dict[str, bytes]:
    """Return what there is of a rank's process, by name in the bundle.

    ``proc``, ``cgroups``: /proc and where version 2 of control groups is mounted. What is gone, or may not be read, is
    left out.
    """
    files: dict[str, bytes] = {}
    home = proc / str(pid)
    place = f"ranks/{rank}"
    for name in FILES:
        _put(files, f"{place}/{name}", home / name)
    if threads := _threads(home / "task"):
        files[f"{place}/threads.tsv"] = threads
    group = _group(files.get(f"{place}/cgroup", b""))
    for name in GROUP_FILES if group else ():
        _put(files, f"{place}/group/{name}", cgroups / group / name)
    return files


def node_files(proc: Path) -> dict[str, bytes]:
    """Return what there is of the node, by name in the bundle."""
    files: dict[str, bytes] = {}
    for name in PRESSURE:
        _put(files, f"node/pressure/{name}", proc / "pressure" / name)
    for name in ("loadavg", "meminfo", "uptime"):
        _put(files, f"node/{name}", proc / name)
    return files


def _threads(tasks: Path) -> bytes:
    """A line for each thread: id, name, state, what it waits for in the kernel, CPU time and switches."""
    lines = []
    try:
        ids = sorted((each.name for each in tasks.iterdir()), key=int)[:MAX_THREADS]
    except (OSError, ValueError):
        return b""
    for tid in ids:
        stat = _read(tasks / tid / "stat")
        fields = stat.rpartition(b")")[2].split()
        name = _read(tasks / tid / "comm").strip().replace(b"\t", b" ")
        if len(fields) > 12:
            row = (tid.encode(), name, fields[0], _read(tasks / tid / "wchan").strip(), fields[11], fields[12])
            lines.append(b"\t".join(row))
    return b"\n".join((b"tid\tname\tstate\twait channel\tuser ticks\tsystem ticks", *lines, b"")) if lines else b""


def _group(cgroup: bytes) -> str:
    """Return the path of a process' group of version 2, without the leading slash; empty where it has none."""
    for line in cgroup.decode(errors="replace").splitlines():
        number, _, path = line.partition("::")
        if number == "0" and path.startswith("/") and ".." not in path.split("/"):
            return path.lstrip("/")
    return ""


def _put(found: dict[str, bytes], name: str, path: Path) -> None:
    if data := _read(path):
        found[name] = data


def _read(path: Path) -> bytes:
    try:
        with path.open("rb", buffering=0) as file:
            return file.read(MAX_FILE_BYTES) or b""
    except OSError:
        return b""
