"""One Inspector record as a line of JSON: the 2.30 plugin's keys, order and number formats. Pure."""

import json
from typing import NamedTuple

from agent.simulate.layout import Collective, SimulatedCommunicator
from agent.simulate.physics import bus_factor, moved_bytes

GIT_REV = "v2.30.7-1"


class SimulatedRecord(NamedTuple):
    """One completed collective of one rank; ``sequence`` counts from 0 per communicator and collective."""

    collective: Collective
    sequence: int
    size_bytes: int
    kernel_us: int


def escaped(text: str) -> str:
    """Return ``text`` as a JSON string as the plugin writes it: UTF-8 left alone, ``/`` escaped."""
    return json.dumps(text, ensure_ascii=False).replace("/", "\\/")


def line_start(communicator: SimulatedCommunicator, comm_rank: int) -> str:
    """Return what every line of this rank in this communicator begins with, up to the time of the dump."""
    return (
        f'{{"header":{{"id":"{communicator.id}","comm_name":{escaped(communicator.name)},"rank":{comm_rank},'
        f'"n_ranks":{len(communicator.members)},"nnodes":{communicator.nodes}}},'
        f'"metadata":{{"inspector_output_format_version":"v4.0","git_rev":"{GIT_REV}",'
        '"rec_mechanism":"nccl_profiler_interface","dump_timestamp_us":'
    )


def line_middle(hostname: str, pid: int) -> str:
    """Return what stands between the time of the dump and the collective in every line of a process."""
    return f',"hostname":{escaped(hostname)},"pid":{pid}}},"coll_perf":{{"coll":"'


def line_end(record: SimulatedRecord, ranks: int) -> str:
    """Return the collective's part of the line, newline included; ``ranks`` is the communicator's size."""
    # The plugin computes bandwidths from the whole microseconds that it prints.
    algorithm_gbs = moved_bytes(record.collective, record.size_bytes, ranks) / (record.kernel_us * 1e3)
    bus_gbs = algorithm_gbs * bus_factor(record.collective, ranks)
    return (
        f'{record.collective}","coll_sn":{record.sequence},"coll_msg_size_bytes":{record.size_bytes},'
        f'"coll_exec_time_us":{record.kernel_us},"coll_timing_source":"kernel_gpu",'
        f'"coll_algobw_gbs":{algorithm_gbs:.6f},"coll_busbw_gbs":{bus_gbs:.6f}}}}}\n'
    )
