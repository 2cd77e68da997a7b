"""The Inspector file of one process, written as the 2.30 plugin writes it."""

import os
import time
from collections import Counter, deque
from collections.abc import Sequence

from agent.simulate.layout import SimulatedCommunicator
from agent.simulate.records import SimulatedRecord, line_end, line_middle, line_start

RING_RECORDS = 1024
"""Records kept per communicator between two dump passes: NCCL_INSPECTOR_DUMP_COLL_RING_SIZE's default."""

PIECE_BYTES = 4096
"""The plugin's stdio buffer on ext4: longer output goes out in pieces of this, cut anywhere."""


class CommunicatorLog:
    """What one rank completed in one communicator since the last dump pass; the oldest is lost when it overflows."""

    def __init__(self, communicator: SimulatedCommunicator, rank: int) -> None:
        self.communicator = communicator
        self.rank = rank
        self.ranks = len(communicator.members)
        self.line_start = line_start(communicator, communicator.members.index(rank))
        self.written: Counter[tuple[str, int]] = Counter()
        self.overflowed = 0
        self._ring: deque[SimulatedRecord] = deque(maxlen=RING_RECORDS)

    def add(self, record: SimulatedRecord) -> None:
        """Keep ``record`` for the next pass."""
        self.overflowed += len(self._ring) == RING_RECORDS
        self._ring.append(record)

    def drain(self) -> list[SimulatedRecord]:
        """Return what is kept, in order of completion, count it as written and keep nothing."""
        records = list(self._ring)
        self._ring.clear()
        self.written.update((record.collective, record.size_bytes) for record in records)
        return records


class InspectorFile:
    """The open file ``<dump_dir>/<hostname>-pid<pid>.log``; OSError passes through (a full disk ends the rank)."""

    def __init__(self, dump_dir: str, hostname: str, pid: int) -> None:
        self.path = f"{dump_dir}/{hostname}-pid{pid}.log"
        self.bytes_written = 0
        self._middle = line_middle(hostname, pid)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.fchmod(self._fd, 0o666)  # whatever the umask says: so does the plugin

    def dump(self, logs: Sequence[CommunicatorLog]) -> None:
        """Make one dump pass over ``logs``, given in the order of creation: the newest communicator goes first."""
        text = "".join(
            f"{log.line_start}{time.time_ns() // 1000}{self._middle}{line_end(record, log.ranks)}"
            for log in reversed(logs)
            for record in log.drain()
        )
        output = memoryview(text.encode())
        for start in range(0, len(output), PIECE_BYTES):
            self._write(output[start : start + PIECE_BYTES])
        self.bytes_written += len(output)

    def close(self) -> None:
        """Close the file; what was not dumped is lost, as in life."""
        os.close(self._fd)

    def _write(self, piece: memoryview) -> None:
        while piece:
            piece = piece[os.write(self._fd, piece) :]
