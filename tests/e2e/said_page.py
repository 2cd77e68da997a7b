"""A page with what a job and its launchers say: NIXL-EP in trouble, flight recorders, means, NVRx, madengine."""

from __future__ import annotations

from collections.abc import Iterable

from client_metrics import encode

from agent.sdk.metrics import Family, Metric
from exporters.flight_recorder import book as flight_recorder
from exporters.inspector_prom import families as inspector_prom
from exporters.madengine import families as madengine
from exporters.nixl_ep import families as nixl_ep
from exporters.nvrx import families as nvrx
from exporters.stacks import families as stacks

BEHIND, AHEAD = "0", "1"
"""By the flight recorders: the rank that had not begun what the other waited in."""
LOADS, WAITS = "next_batch (loader.py) #1", "all_reduce (train.py) #2"
"""Where its Python code is, and that of others."""


def said_page(job_id: str, measured: str) -> bytes:
    """Return the text; rank 0 has ended a phase and measured, rank 1 has ended one alone, of rank 2 no log tells.

    Of the rank ``measured`` there is a mean of Inspector's Prometheus mode.
    """
    return encode(_families(job_id, measured)).body


def _families(job_id: str, measured: str) -> Iterable[Metric]:
    yield _rows(nixl_ep.PHASE, ((job_id, "0"), 1.0), ((job_id, "1"), 1.0))
    yield _rows(nixl_ep.ENDED, ((job_id, "0"), 0.0), ((job_id, "1"), 0.0))
    yield _rows(nixl_ep.BANDWIDTH, ((job_id, "0", "combined"), 4e10))
    yield _rows(nixl_ep.EXPECTED, ((job_id,), 3.0))
    yield _rows(nixl_ep.COMPLETED, ((job_id,), 0.0))
    yield _rows(nixl_ep.FAILED, ((job_id, "phase_timeout"), 1.0))
    yield _rows(flight_recorder.ENQUEUED, ((job_id, BEHIND, "0"), 4.0), ((job_id, AHEAD, "0"), 5.0))
    waits_in = (job_id, AHEAD, "0", "default_pg", "all_reduce", "Float", "16", "started")
    yield _rows(flight_recorder.UNFINISHED, (waits_in, 5.0))
    yield _rows(stacks.STACK, *(((job_id, rank, LOADS if rank == BEHIND else WAITS), 1.0) for rank in "0123"))
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
    yield _rows(madengine.STATE, ((job_id, "0", "running"), 1.0))
    yield _rows(madengine.PERFORMANCE, ((job_id, "0", "llama", "tokens_per_second"), 8123.0))
    yield _rows(madengine.CONTRADICTED, ((job_id, "0", "rank_dead"), 1.0))


def _rows(family: Family, *series: tuple[tuple[str, ...], float]) -> Metric:
    rows = family.rows()
    for labels, value in series:
        rows.add(labels, value)
    return rows.metric
