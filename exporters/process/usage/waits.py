"""What a thread in uninterruptible sleep waits for, by the names of the kernel's functions it is in; pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

Wait = Literal["nfs", "lustre", "fuse", "disk", "gpu", "other"]

# Above a wait for pages there may be the function of the file system: that one tells more.
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
    """Return the kind of wait; ``frames``: the functions, the innermost first, or that one alone."""
    for wait, names in _KINDS:
        if any(names.match(frame) for frame in frames):
            return wait
    return "other"
