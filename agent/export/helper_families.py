"""What the agent says of its helper processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from agent.core.metrics import Family, Metric
from agent.export.usage import ProcessUsage
from agent.helper.client import CALL_RESULTS, CallResult

HELPER_UP = Family(
    "rankwatch_helper_up",
    "gauge",
    "1 when the helper process answered its last call, 0 when it failed or hung; absent before the first.",
    ("helper",),
    "1 per helper",
)
HELPER_CALLS = Family(
    "rankwatch_helper_calls_total",
    "counter",
    "Calls by what became of them: ok, failed (the process crashed, ran out of memory, or was not to be started again "
    "yet) or hung (no answer in time, or an earlier process is still there); absent before the first of its kind.",
    ("helper", "result"),
    "1 per helper and result seen, at most 3",
)
HELPER_MEMORY = Family(
    "rankwatch_helper_resident_memory_bytes",
    "gauge",
    "Resident memory of the helper's process; absent while there is none.",
    ("helper",),
    "1 per helper with a process",
)
FAMILIES: tuple[Family, ...] = (HELPER_UP, HELPER_CALLS, HELPER_MEMORY)


class HelperStatus(msgspec.Struct, frozen=True):
    """How one helper fares; ``ok`` None: it was not called yet; ``pid`` None: it has no process now."""

    name: str
    ok: bool | None
    calls: Mapping[CallResult, int]
    pid: int | None = None


def render(helpers: Sequence[HelperStatus], usage: Mapping[int, ProcessUsage]) -> Iterable[Metric]:
    """Render how the helpers fare; ``usage`` by process id."""
    up, calls, memory = HELPER_UP.rows(), HELPER_CALLS.rows(), HELPER_MEMORY.rows()
    for helper in helpers:
        if helper.ok is None:
            continue
        up.add((helper.name,), float(helper.ok))
        for result in filter(helper.calls.get, CALL_RESULTS):
            calls.add((helper.name, result), helper.calls[result])
        used = usage.get(helper.pid) if helper.pid is not None else None
        if used is not None:
            memory.add((helper.name,), used.resident_bytes)
    return [rows.metric for rows in (up, calls, memory)]
