"""Pages of metrics for dashboards: failed hardware, RAS, and logs of jobs and launchers.

Hardware and jobs are rendered by the exporters' own code, from recorded trees and additional values."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

from client_metrics import encode

from agent.hardware.fault_table import GpuFault
from agent.hardware.ledger import NODE, CheckState, Entry, Finding, Subject
from agent.ranks import families as rank_families, health
from agent.ranks.health import HealthSnapshot, counted_checks
from agent.ranks.snapshot import RankSnapshot
from agent.sdk.hardware import DriverReport, TimedFault, gpu_families, gpu_faults
from agent.sdk.metrics import Family, Metric
from exporters import netdev
from exporters.flight_recorder import registry as flight_recorder
from exporters.inspector_prom import families as inspector_prom
from exporters.job_log import families as job_log
from exporters.madengine import exporter as madengine
from exporters.nixl_ep import exporter as nixl_ep
from exporters.nvml import families as nvml
from exporters.nvrx import exporter as nvrx
from exporters.process.foreign import FOREIGN
from exporters.process.usage import totals as usage
from exporters.rdma import families as rdma
from exporters.stacks import exporter as stacks
from exporters.storage import StorageConfig, StorageExporter
from exporters.storage.probe import Probe

BEHIND, SILENT = "5", "7"
"""The rank that is ten launches behind and has left another communicator, and the silent rank."""
RAS = """\
rankwatch_ras_up{endpoint="127.0.0.1:28028"} 1
rankwatch_ras_queries_total 2
rankwatch_ras_query_errors_total{stage="cut"} 0
rankwatch_ras_reporter{job_id="JOB",role="reporter"} 1
rankwatch_ras_reporter{job_id="JOB",role="none"} 1
rankwatch_ras_not_asked{job_id="JOB",reason="not_elected"} 1
rankwatch_ras_report_timestamp_seconds{job_id="JOB"} NOW
rankwatch_ras_failures{job_id="JOB"} 0
rankwatch_ras_interval_seconds{job_id="JOB"} 7
rankwatch_library_info{flavor="nccl",job_id="JOB",version="2.30.7"} 1
rankwatch_communicator_ranks{comm="aa01",job_id="JOB",state="expected"} 8
rankwatch_communicator_ranks{comm="aa01",job_id="JOB",state="responding"} 7
rankwatch_communicator_ranks{comm="aa01",job_id="JOB",state="missing"} 1
rankwatch_communicator_ranks{comm="aa01",job_id="JOB",state="unresponsive"} 1
rankwatch_communicator_ranks{comm="aa01",job_id="JOB",state="dead"} 0
rankwatch_communicator_ranks{comm="aa01",job_id="JOB",state="initializing"} 1
rankwatch_communicator_ranks{comm="aa01",job_id="JOB",state="finalizing"} 0
rankwatch_communicator_ranks{comm="aa01",job_id="JOB",state="aborted"} 1
rankwatch_communicator_ranks{comm="bb01",job_id="JOB",state="expected"} 2
rankwatch_communicator_ranks{comm="bb01",job_id="JOB",state="responding"} 1
rankwatch_communicator_ranks{comm="bb01",job_id="JOB",state="missing"} 1
rankwatch_communicator_ranks{comm="bb01",job_id="JOB",state="unresponsive"} 0
rankwatch_communicator_ranks{comm="bb01",job_id="JOB",state="dead"} 0
rankwatch_communicator_ranks{comm="bb01",job_id="JOB",state="initializing"} 0
rankwatch_communicator_ranks{comm="bb01",job_id="JOB",state="finalizing"} 0
rankwatch_communicator_ranks{comm="bb01",job_id="JOB",state="aborted"} 0
rankwatch_communicator_rank_missing{comm="aa01",comm_rank="7",gpu="3",host="n1",job_id="JOB",rank="7",reason="unresponsive"} 1
rankwatch_communicator_rank_missing{comm="bb01",comm_rank="1",gpu="1",host="n1",job_id="JOB",rank="5",reason="no_communicator"} 1
rankwatch_communicator_launched_max{collective="AllReduce",comm="aa01",job_id="JOB"} 50
rankwatch_communicator_launched_max{collective="AllReduce",comm="bb01",job_id="JOB"} 50
rankwatch_communicator_last_launch_timestamp_seconds{comm="aa01",job_id="JOB"} NOW
rankwatch_communicator_last_launch_timestamp_seconds{comm="bb01",job_id="JOB"} NOW
rankwatch_communicator_stalled{comm="aa01",job_id="JOB"} 1
rankwatch_communicator_stalled{comm="bb01",job_id="JOB"} 0
rankwatch_communicator_suspect{comm="aa01",comm_rank="7",gpu="3",host="n1",job_id="JOB",rank="7",reason="missing"} 1
rankwatch_communicator_rank_lag{collective="AllReduce",comm="aa01",comm_rank="5",job_id="JOB",rank="5"} 10
rankwatch_communicator_async_error{comm="aa01",comm_rank="1",error="remote_error",job_id="JOB",phase="run",rank="1"} 1
rankwatch_communicator_async_error{comm="aa01",comm_rank="3",error="system_error",job_id="JOB",phase="init",rank="3"} 1
rankwatch_communicator_aborted{comm="aa01",comm_rank="2",job_id="JOB",rank="2"} 1
rankwatch_ras_events_total{event="PEER_DEAD"} 0
"""  # noqa: E501  # lines of a page


def ras_page(job_id: str) -> bytes:
    """Return the page."""
    return RAS.replace("JOB", job_id).replace("NOW", f"{time.time()}").encode()


DATA = Path(__file__).parents[1] / "data"
RECORDED = ("amdgpu", "nvml", "rdma", "netdev", "kernel_log")
XID, HUNG_PATH = "79", "/data"
FAILED_SECONDS_AGO = 3600
STRUCK = ("gpu_xid", "nvlink_down")
"""The failed checks of GPU 0, which affect the rank on it."""


def hardware_page(job_id: str, rank: str) -> bytes:
    """Return the page; ``rank`` of the job is on the failed GPU."""
    recorded = [
        line
        for name in RECORDED
        for line in (DATA / name / "expected.prom").read_text().splitlines()
        if not line.startswith("#")
    ]
    return "\n".join(recorded).encode() + b"\n" + encode(_hardware(job_id, rank)).body


def _hardware(job_id: str, rank: str) -> Iterable[Metric]:
    gpu = Subject("gpu", "GPU-0")
    since = time.time() - FAILED_SECONDS_AGO
    failed = [Entry("nvml", gpu, check, Finding(CheckState.FAILED, since)) for check in STRUCK]
    well = Entry("nvml", NODE, "gpu_driver_hung", Finding(CheckState.OK, since))
    no_ranks = RankSnapshot(taken_seconds=time.time())
    seen = TimedFault(gpu_faults.judge("nvidia", DriverReport(XID)).fault, since)
    faults = (GpuFault("0", "GPU-0", "0000:3b:00.0", seen),)
    for family in health.families(HealthSnapshot(no_ranks, (*failed, well), counted_checks((), ()), faults)):
        if family.family not in (health.RANK_HEALTHY, health.RANK_UNHEALTHY):
            yield family
    yield _rows(health.RANK_HEALTHY, ((job_id, rank), 0.0))
    yield _rows(health.RANK_UNHEALTHY, *(((job_id, rank, check), 1.0) for check in STRUCK))
    yield _rows(nvml.LINK_FLAGGED, (("0", "GPU-0", "3"), 0.6))
    yield _rows(rank_families.RANK_INFO, ((job_id, rank, "0", "0", "GPU-0", "", "", "1", "", "", ""), 1.0))
    yield _rows(gpu_families.ACTIVE, *((("0", "GPU-0", unit), 0.1) for unit in ("sm", "tensor", "dram")))
    yield _rows(FOREIGN, (("0", "GPU-0", "ann"), 1.0))
    yield _rows(job_log.EVENTS, ((job_id, rank, "port_error", "root"), 2.0))
    yield _rows(job_log.FIRST_ROOT, ((job_id, "port_error", rank, "here", "restart_elsewhere"), since))
    yield _rows(netdev.FRAMES, (("eth0", "receive", "3"), 7.0))
    yield _rows(rdma.SWITCH_INFO, (("mlx5_0", "1", "leaf1", "7"), 1.0))
    for family in (usage.MAJOR_FAULTS, usage.CHILDREN_STOPPED):
        yield _rows(family, ((job_id, rank), 1.0))
    yield _rows(usage.WAIT, ((job_id, rank, "io"), 1.0))
    yield _rows(usage.MEMORY, ((job_id, rank, "swapped"), 1.0))
    yield _rows(usage.BLOCKED_THREADS, ((job_id, rank, "nfs"), 2.0))
    yield _rows(usage.PRESSURE_WAITING, ((job_id, "memory"), 3.0))
    yield _rows(usage.THROTTLED, ((job_id,), 4.0))
    hung = Probe(HUNG_PATH, ok=True, seconds=0.1, under_way_seconds=60.0)
    well_answered = Probe("/home", ok=True, seconds=0.1, under_way_seconds=0.0)
    yield from StorageExporter(StorageConfig()).families((hung, well_answered))


def _rows(family: Family, *series: tuple[tuple[str, ...], float]) -> Metric:
    rows = family.rows()
    for labels, value in series:
        rows.add(labels, value)
    return rows.metric


NOT_BEGUN, AHEAD = "0", "1"
"""In the flight recorders: the rank that has not started an operation, and the rank that waits in it."""
LOADS, WAITS = "next_batch (loader.py) #1", "all_reduce (train.py) #2"
"""The position of the rank's Python code, and that of other ranks."""


def said_page(job_id: str, measured: str) -> bytes:
    """Return the page. Rank 0 has ended a phase with a measurement, rank 1 without one; rank 2 is in no log.

    The rank ``measured`` has a mean of Inspector's Prometheus mode."""
    return encode(_said(job_id, measured)).body


def _said(job_id: str, measured: str) -> Iterable[Metric]:
    phases = [(rank, event, phase) for rank in "01" for event, phase in (("begun", 1.0), ("ended", 0.0))]
    phases.append(("", "completed", 0.0))
    yield _rows(nixl_ep.PHASE, *(((job_id, rank, event), phase) for rank, event, phase in phases))
    yield _rows(nixl_ep.BANDWIDTH, ((job_id, "0", "combined"), 4e10))
    yield _rows(nixl_ep.EXPECTED, ((job_id,), 3.0))
    yield _rows(nixl_ep.FAILED, ((job_id, "phase_timeout"), 1.0))
    yield _rows(flight_recorder.ENQUEUED, ((job_id, NOT_BEGUN, "0"), 4.0), ((job_id, AHEAD, "0"), 5.0))
    waits_in = (job_id, AHEAD, "0", "default_pg", "all_reduce", "Float", "16", "started")
    yield _rows(flight_recorder.UNFINISHED, (waits_in, 5.0))
    yield _rows(stacks.STACK, *(((job_id, rank, LOADS if rank == NOT_BEGUN else WAITS), 1.0) for rank in "0123"))
    mean = dict.fromkeys(inspector_prom.BANDWIDTH.labels, "1") | {"job_id": job_id, "rank": measured}
    yield _rows(inspector_prom.BANDWIDTH, (tuple(mean.values()), 3e10))
    yield from _launchers(job_id, measured)


def _launchers(job_id: str, slow: str) -> Iterable[Metric]:
    yield _rows(nvrx.CYCLE, ((job_id,), 2.0))
    yield _rows(nvrx.NODES, ((job_id, "active"), 2.0), ((job_id, "standby"), 1.0))
    yield _rows(nvrx.RECOVERY, ((job_id, "started"), 21.0), ((job_id, "progress"), 64.0))
    yield _rows(nvrx.EVENTS, ((job_id, "failure_detected"), 2.0))
    yield _rows(nvrx.TIMEOUTS, ((job_id, slow, "subsequent"), 1.0))
    yield _rows(nvrx.SCORE, ((job_id, slow, "relative"), 0.61))
    yield _rows(madengine.STATE, ((job_id, "0", "running", ""), 1.0))
    yield _rows(madengine.PERFORMANCE, ((job_id, "0", "llama", "tokens_per_second"), 8123.0))
    yield _rows(madengine.CONTRADICTED, ((job_id, "0", "rank_dead"), 1.0))


class FixedPage:
    """A server of the page; a context manager."""

    def __init__(self, body: bytes | Callable[[], bytes]) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(body if isinstance(body, bytes) else body())

            def log_message(self, format: str, *arguments: Any) -> None:
                """Log nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
