"""The records of the kernel's log, and the kernel's own lines among them. Pure.

Documentation/ABI/testing/dev-kmsg of the kernel describes the records.

NVIDIA's driver marks each of its lines as a continuation, even whole lines (KERN_CONT, in nv_printf of
kernel-open/nvidia/os-interface.c): an Xid has the same flag as the rest of a line that another line interrupted. Such a
rest can begin with a user's text: the name of a cpuset, in the report of an OOM kill. The kernel always writes the same
text after that name (cpuset_print_current_mems_allowed of kernel/cgroup/cpuset.c), and this text shows the forgery.
"""

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

MAX_TEXT = 1024  # Limit of characters of a record's text. The kernel's own limit is about the same.
MAX_SEQUENCE = 1 << 62  # The greatest plausible number of a record. A line with a greater number is not a record.

_FRAGMENTS = (b"c", b"+")
"""Flags of a record that continues a line, or that its writer calls a continuation (KERN_CONT)."""
_RECORD = re.compile(rb"(\d{1,10}),(\d{1,20}),(\d{1,20}),([^;,\n]{0,16})[^;\n]{0,256};([^\n]{0,8192})")
DRIVER = "NVRM: "  # Lines of NVIDIA's driver begin with this
AFTER_A_NAME = ",mems_allowed="
"""The kernel's text after the name of a cpuset: in the same record or, after an interruption, in another record."""
REST_SECONDS = 1.0  # The kernel writes the rest of an interrupted line within this time
MAX_WAITING = 1024  # Limit of lines that wait for the next poll. Above the limit the oldest lines wait no longer.


class KernelRecord(NamedTuple):
    """A record: its number since the boot, its time (seconds after the boot), its text.

    ``writer``: a user, or the kernel. A fragment is from the kernel, too: the rest of a line that another line
    interrupted, or a whole line that a driver marks as a rest. A rest can begin with a user's text, such as the name of
    a control group.
    """

    sequence: int
    seconds: float
    text: str
    writer: Literal["user", "kernel", "fragment"]


def parse_records(read: bytes) -> list[KernelRecord]:
    """Return the records in ``read``. Lines of a record's dictionary (they begin with a blank) are left out."""
    records = []
    for line in read.split(b"\n"):
        match = _RECORD.match(line)
        if match is not None and int(match[2]) <= MAX_SEQUENCE:
            text = match[5][:MAX_TEXT].decode("utf-8", "replace")
            by_kernel: Literal["kernel", "fragment"] = "fragment" if match[4] in _FRAGMENTS else "kernel"
            writer = by_kernel if int(match[1]) >> 3 == 0 else "user"
            records.append(KernelRecord(int(match[2]), int(match[3]) / 1e6, text, writer))
    return records


class KernelLines:
    """Selects the kernel's lines.

    A line of NVIDIA's driver waits for one poll, because that poll may bring the rest of the line. The lines after it
    wait, too. ``settled``: the last record that no poll needs again, or -1.
    """

    def __init__(self) -> None:
        self.settled = -1
        self._waiting: list[KernelRecord] = []

    def select(
        self, records: Iterable[KernelRecord], last: int, *, wait: bool = True
    ) -> tuple[list[KernelRecord], int]:
        """Return the kernel's lines to classify now, in order, and the number of doubtful lines, which are dropped.

        ``last``: the number of the poll's last record. Without ``wait`` no line waits.
        """
        lines = self._waiting
        waiting: list[KernelRecord] = []
        doubtful = 0
        for record in records:
            is_fragment = record.writer == "fragment"
            is_driver = is_fragment and record.text.startswith(DRIVER)
            if is_driver and AFTER_A_NAME in record.text:
                doubtful += 1
            elif is_fragment and record.text.startswith(AFTER_A_NAME):
                count = len(lines) + len(waiting)
                lines, waiting = ([line for line in some if not _may_end_in(line, record)] for some in (lines, waiting))
                doubtful += count - len(lines) - len(waiting)
            elif is_driver or record.writer == "kernel":
                (waiting if wait and (waiting or is_driver) else lines).append(record)
        over = max(0, len(waiting) - MAX_WAITING)
        lines, self._waiting = lines + waiting[:over], waiting[over:]
        self.settled = self._waiting[0].sequence - 1 if self._waiting else last
        return lines, doubtful


def _may_end_in(line: KernelRecord, rest: KernelRecord) -> bool:
    """Return whether ``line`` may end in a cpuset's name, so that the kernel's line goes on with ``rest``."""
    return line.writer == "fragment" and rest.seconds - line.seconds <= REST_SECONDS
