"""Write the Inspector file of one process as the plugin of NCCL 2.30 does."""

import json
import os
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

from agent.simulate.layout import Collective, SimulatedCommunicator
from agent.simulate.physics import bus_factor, moved_bytes

GIT_REV = "v2.30.7-1"


class SimulatedRecord(NamedTuple):
    """A completed collective of one rank. ``sequence``: counts from 0 per communicator and collective."""

    collective: Collective
    sequence: int
    size_bytes: int
    kernel_us: int


def escaped(text: str) -> str:
    """Return ``text`` as a JSON string in the plugin's form: UTF-8 unchanged, ``/`` escaped."""
    return json.dumps(text, ensure_ascii=False).replace("/", "\\/")


def line_start(communicator: SimulatedCommunicator, comm_rank: int) -> str:
    """Return the part of a line before the time of the dump; it is constant for a rank in a communicator."""
    return (
        f'{{"header":{{"id":"{communicator.id}","comm_name":{escaped(communicator.name)},"rank":{comm_rank},'
        f'"n_ranks":{len(communicator.members)},"nnodes":{communicator.nodes}}},'
        f'"metadata":{{"inspector_output_format_version":"v4.0","git_rev":"{GIT_REV}",'
        '"rec_mechanism":"nccl_profiler_interface","dump_timestamp_us":'
    )


def line_middle(hostname: str, pid: int) -> str:
    """Return the part of a line between the time of the dump and the collective; it is constant for a process."""
    return f',"hostname":{escaped(hostname)},"pid":{pid}}},"coll_perf":{{"coll":"'


def line_end(record: SimulatedRecord, ranks: int) -> str:
    """Return the collective's part of a line with its newline; ``ranks``: size of the communicator."""
    # The plugin computes bandwidths from the whole microseconds that it prints.
    algorithm_gbs = moved_bytes(record.collective, record.size_bytes, ranks) / (record.kernel_us * 1e3)
    bus_gbs = algorithm_gbs * bus_factor(record.collective, ranks)
    return (
        f'{record.collective}","coll_sn":{record.sequence},"coll_msg_size_bytes":{record.size_bytes},'
        f'"coll_exec_time_us":{record.kernel_us},"coll_timing_source":"kernel_gpu",'
        f'"coll_algobw_gbs":{algorithm_gbs:.6f},"coll_busbw_gbs":{bus_gbs:.6f}}}}}\n'
    )


RING_RECORDS = 1024
"""Limit of records per communicator between two dump passes: NCCL_INSPECTOR_DUMP_COLL_RING_SIZE's default."""

PIECE_BYTES = 4096
"""Size of the plugin's stdio buffer on ext4: longer output is written in pieces of this size, cut anywhere."""


class CommunicatorLog:
    """The records of one rank in one communicator since the last dump pass.

    Above the limit the oldest record is lost.
    """

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
        """Return and remove all records in order of completion, and count them as written."""
        records = list(self._ring)
        self._ring.clear()
        self.written.update((record.collective, record.size_bytes) for record in records)
        return records


class InspectorFile:
    """The open file ``<dump_dir>/<hostname>-pid<pid>.log``; the caller gets any OSError (a full disk ends the rank)."""

    def __init__(self, dump_dir: str, hostname: str, pid: int) -> None:
        self.path = f"{dump_dir}/{hostname}-pid{pid}.log"
        self.bytes_written = 0
        self._middle = line_middle(hostname, pid)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.fchmod(self._fd, 0o666)  # independent of the umask, as in the plugin

    def dump(self, logs: Sequence[CommunicatorLog]) -> None:
        """Write one dump pass of ``logs`` (in order of creation), the newest communicator first."""
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
        """Close the file; records that were not dumped are lost, as in a real job."""
        os.close(self._fd)

    def _write(self, piece: memoryview) -> None:
        while piece:
            piece = piece[os.write(self._fd, piece) :]
