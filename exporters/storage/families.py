"""The metric families of the exporter, and how a snapshot becomes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agent.sdk.metrics import Family, Metric
from exporters.storage.probe import Probe

_PATH = ("path",)
_EACH = "1 per path"

SUCCESS = Family(
    "rankwatch_storage_probe_success",
    "gauge",
    "1 when the last probe of the path (the first entry of a directory, the first bytes of a file) was answered, 0 "
    "when it failed or hangs; absent before the first has ended.",
    _PATH,
    _EACH,
)
DURATION = Family(
    "rankwatch_storage_probe_duration_seconds",
    "gauge",
    "How long the last probe took, or how long the one under way has been, whichever is more.",
    _PATH,
    _EACH,
)
HUNG = Family(
    "rankwatch_storage_probe_hung",
    "gauge",
    "1 while a probe has been under way for longer than its deadline, else 0.",
    _PATH,
    _EACH,
)
SIZE = Family("rankwatch_storage_size_bytes", "gauge", "The size of the path's file system.", _PATH, _EACH)
AVAILABLE = Family(
    "rankwatch_storage_available_bytes", "gauge", "What users may still write to the path's file system.", _PATH, _EACH
)
INODES = Family("rankwatch_storage_inodes", "gauge", "Inodes of the path's file system.", _PATH, _EACH)
INODES_AVAILABLE = Family(
    "rankwatch_storage_inodes_available", "gauge", "Inodes that users may still use there.", _PATH, _EACH
)
LUSTRE = Family(
    "rankwatch_lustre_healthy",
    "gauge",
    "1 while Lustre's health_check says healthy, else 0; absent where there is no Lustre.",
)
FAMILIES = (SUCCESS, DURATION, HUNG, SIZE, AVAILABLE, INODES, INODES_AVAILABLE, LUSTRE)


class StorageSnapshot(msgspec.Struct, frozen=True):
    """What ``render`` needs; ``hung``: the paths whose probe is over its deadline."""

    probes: tuple[Probe, ...]
    hung: frozenset[str]
    lustre: bool | None


def render(snapshot: StorageSnapshot) -> Iterable[Metric]:
    """The families of a snapshot."""
    rows = {family.name: family.rows() for family in FAMILIES}
    for each in snapshot.probes:
        place, hung = (each.path,), each.path in snapshot.hung
        rows[HUNG.name].add(place, float(hung))
        if each.ok is not None or hung:
            rows[SUCCESS.name].add(place, float(bool(each.ok) and not hung))
            rows[DURATION.name].add(place, max(each.seconds, each.under_way_seconds))
        if each.room is not None:
            rows[SIZE.name].add(place, each.room.size_bytes)
            rows[AVAILABLE.name].add(place, each.room.available_bytes)
            rows[INODES.name].add(place, each.room.inodes)
            rows[INODES_AVAILABLE.name].add(place, each.room.inodes_available)
    if snapshot.lustre is not None:
        rows[LUSTRE.name].add((), float(snapshot.lustre))
    return [found.metric for found in rows.values()]
