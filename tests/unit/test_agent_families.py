"""The metrics of the agent about itself."""

import msgspec
import psutil
from client_metrics import samples

from agent.export.agent_families import FAMILIES, OPEN_FDS, ExporterStatus, SelfSnapshot, families
from agent.export.registry import SourceCounts

SNAPSHOT = SelfSnapshot(
    age_seconds=90.0, exporters=(ExporterStatus("process", up=True, present=True),),
    counts={"process": SourceCounts(3, 3)}, refused=0,
    helpers={"nvml": (True, {"ok": 7})},
    loop_lag_seconds=0.0, reload_ok=True, save_errors=0,
)  # fmt: skip
OWN = psutil.Process()


def shown(snapshot: SelfSnapshot) -> dict[tuple[str, ...], float]:
    """Return the series, keyed by name and label values."""
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples(families(snapshot, OWN))}


def test_all_families_are_declared() -> None:
    """The agent renders each declared family once, and no other family."""
    rendered = [family.family for family in families(SNAPSHOT, OWN)]
    assert sorted(family.name for family in rendered) == sorted(family.name for family in FAMILIES)
    assert set(rendered) == set(FAMILIES)


def test_an_unreadable_figure_is_absent() -> None:
    """If a figure of the agent's process cannot be read, the other families are rendered."""

    class Hidden(psutil.Process):
        def num_fds(self) -> int:
            raise psutil.AccessDenied

    assert {family.family for family in families(SNAPSHOT, Hidden())} == {*FAMILIES} - {OPEN_FDS}


def test_an_exporter_without_a_source_says_little() -> None:
    """An exporter without a source has only `up` and `source_present`; a failing one also has a duration and counts."""
    statuses = (
        ExporterStatus("idle", up=True, present=False),
        ExporterStatus("failing", up=False, present=False, failures=2, skipped=1),
    )
    values = shown(msgspec.structs.replace(SNAPSHOT, exporters=statuses))
    of_exporters = ("up", "source_present", "update_duration_seconds", "updates_late_total")
    assert {name for name, *labels in values if labels == ["idle"]} == {
        f"rankwatch_exporter_{part}" for part in ("up", "source_present")
    }
    assert {name for name, *labels in values if labels == ["failing"]} == {
        f"rankwatch_exporter_{part}" for part in (*of_exporters, "updates_failed_total", "skipped_total")
    }


def test_series_left_out_are_one_count() -> None:
    """Series over the limit and duplicates are one counter; failed updates and renders are another, with `up` 0."""
    counts = {"flood": SourceCounts(5, 8), "broken": SourceCounts(0, 0, 3, is_failing=True)}
    statuses = (ExporterStatus("broken", up=True, present=True, failures=2),)
    values = shown(msgspec.structs.replace(SNAPSHOT, counts=counts, exporters=statuses))
    assert values["rankwatch_exporter_series_dropped_total", "flood"] == 8
    assert values["rankwatch_exporter_up", "broken"] == 0
    failed = {key: value for key, value in values.items() if key[0] == "rankwatch_exporter_updates_failed_total"}
    assert failed == {("rankwatch_exporter_updates_failed_total", "broken"): 5}
