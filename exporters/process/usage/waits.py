"""The wait of a blocked thread, by functions of the kernel; CPUs and NUMA nodes that a process may use."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from agent.sdk.system import sysfs

Wait = Literal["nfs", "lustre", "fuse", "disk", "gpu", "other"]

# A file system's function may stand above a wait for pages: it tells more.
_KINDS: tuple[tuple[Wait, re.Pattern[str]], ...] = (
    ("nfs", re.compile(r"nfs\d?_|rpc_|xprt_")),
    ("lustre", re.compile(r"ll_(?!back_merge)|cl_(sync|io|lock|page)_|(osc|lov|mdc|lmv|vvp|ldlm|ptlrpc|lnet)_")),
    ("fuse", re.compile(r"_*fuse_|request_wait_answer")),
    ("gpu", re.compile(r"_nv\d+rm|(nv|nvidia|nvkms|uvm|amdgpu|kfd|ttm|drm|dma_fence|dma_resv)_|os_acquire_")),
    (
        "disk",
        re.compile(
            r"(folio|filemap|iomap|swap|blk|blkdev|bio|submit_bio|jbd2|ext4|xfs|xlog|btrfs|f2fs|dm|md|nvme|scsi"
            r"|ceph|netfs|cifs|smb2|beegfs|gpfs|rq_qos|wbt)_|wait_on_(page|buffer)|__wait_on_buffer|bit_wait_io"
            r"|io_schedule|balance_dirty_pages|do_writepages|__?iomap_dio_rw|do_swap_page|__bread"
        ),
    ),
)


def wait_on(file_system: str) -> Wait:
    """Return the kind of wait for a file of a file system of this type."""
    kind = file_system.partition(".")[0]
    if kind in ("nfs", "nfs4"):
        return "nfs"
    if kind in ("fuse", "fuseblk"):
        return "fuse"
    return "lustre" if kind == "lustre" else "disk"


def wait_of(frames: Sequence[str]) -> Wait:
    """Return the kind of wait; ``frames``: kernel functions, innermost first, or only the innermost."""
    for wait, names in _KINDS:
        if any(names.match(frame) for frame in frames):
            return wait
    return "other"


MAX_CPUS = 8192  # The most that Linux can have (NR_CPUS)
_NODE = re.compile(r"node(\d{1,4})")
_LIST = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*")


def parse_cpus(text: str) -> frozenset[int]:
    """Return the CPUs below MAX_CPUS of a list such as `0-3,8` (cpuset(7)); none if the text is no list."""
    if _LIST.fullmatch(text) is None:
        return frozenset()
    cpus: set[int] = set()
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        cpus.update(range(int(first), min(int(last or first), MAX_CPUS - 1) + 1))
    return frozenset(cpus)


def read_nodes(sys_root: Path) -> dict[int, frozenset[int]]:
    """Return the CPUs of each NUMA node (blocking); empty if the kernel lacks that folder."""
    nodes = {}
    for name in sysfs.entries(sys_root / "devices/system/node"):
        if (match := _NODE.fullmatch(name)) is not None:
            text = sysfs.read_text(sys_root / "devices/system/node" / name / "cpulist")
            nodes[int(match[1])] = parse_cpus(text or "")
    return nodes


def nodes_of(cpus: frozenset[int], nodes: Mapping[int, frozenset[int]]) -> str:
    """Return the NUMA nodes that have any of these CPUs, separated by commas."""
    return ",".join(str(node) for node, of_node in sorted(nodes.items()) if cpus & of_node)
