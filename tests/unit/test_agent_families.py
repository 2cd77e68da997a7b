"""What the agent says of itself."""

import os
import time
from pathlib import Path

import msgspec
import psutil
import pytest
from client_metrics import client_metric, samples
from prometheus_client.platform_collector import PlatformCollector

from agent.export import usage as usage_families
from agent.export.agent_families import FAMILIES, SelfSnapshot, families
from agent.export.exporter_families import ExporterStatus
from agent.export.registry import SourceCounts
from agent.export.usage import HelperStatus, OwnUsage, ProcessReader, ProcessUsage

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SNAPSHOT = SelfSnapshot(
    age_seconds=90.0, exporters=(ExporterStatus("process", up=True, present=True, last_success_seconds=5.0),),
    counts={"process": SourceCounts(3, 2, 1, 0)}, refused=0,
    helpers=(HelperStatus("nvml", ok=True, calls={"ok": 7}), HelperStatus("ras", None, {})),
    loop_lag_seconds=0.0, reload_ok=True, reload_seconds=1.0, saved_seconds=2.0, save_errors=0, responses={200: 1},
    closed={"malformed": 0}, web_failures=0,
)  # fmt: skip
OWN = OwnUsage(ProcessUsage(1.5, 30_000_000), 17, 1000.25)


def shown(snapshot: SelfSnapshot, usage: OwnUsage) -> dict[tuple[str, ...], float]:
    """The series by name and label values."""
    return {(each.name, *each.labels.values()): each.value for each in samples(families(snapshot, usage))}


def stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def test_all_families_are_declared() -> None:
    """What is rendered is what is declared, each family once."""
    rendered = [each.family for each in families(SNAPSHOT, OWN)]
    assert sorted(family.name for family in rendered) == sorted(family.name for family in FAMILIES)
    assert set(rendered) == set(FAMILIES)


def test_own_process_goes_by_the_standard_names() -> None:
    """The agent's process has the series, without labels, that Prometheus' own libraries give of any process."""
    found = shown(SNAPSHOT, OWN)
    assert (found["process_cpu_seconds_total",], found["process_resident_memory_bytes",]) == (1.5, 30_000_000)
    assert (found["process_open_fds",], found["process_start_time_seconds",]) == (17, 1000.25)


def test_python_is_told_as_the_client_tells_it() -> None:
    """python_info has the labels and values that prometheus-client gives it."""
    (expected,) = PlatformCollector(registry=None).collect()
    (found,) = [each for each in usage_families.render_own(OWN) if each.family is usage_families.PYTHON_INFO]
    assert client_metric(found).samples == expected.samples


def test_what_cannot_be_read_is_absent() -> None:
    """A figure that cannot be had has no series; the others have theirs."""
    found = shown(SNAPSHOT, OwnUsage(None, None, None))
    assert [name for name, *_ in found if name.startswith("process_")] == []
    found = shown(SNAPSHOT, OwnUsage(OWN.process, None, OWN.start_seconds))
    assert [name for name, *_ in found if name.startswith("process_")] == [
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
    ]


def test_an_exporter_without_a_source_says_little() -> None:
    """It is up, and has neither a duration nor counts of what never happened; one that fails has both."""
    statuses = (
        ExporterStatus("idle", up=True, present=False),
        ExporterStatus("failing", up=False, present=False, failures=2, skipped=1),
    )
    found = shown(msgspec.structs.replace(SNAPSHOT, exporters=statuses), OWN)
    of_exporters = ("up", "source_present", "update_duration_seconds", "updates_late_total")
    assert {name for name, *labels in found if labels == ["idle"]} == {
        f"rankwatch_exporter_{each}" for each in ("up", "source_present")
    }
    assert {name for name, *labels in found if labels == ["failing"]} == {
        f"rankwatch_exporter_{each}" for each in (*of_exporters, "updates_failed_total", "skipped_total")
    }


def test_series_left_out_are_one_count() -> None:
    """Those over the cap and those given twice are added up; renders that failed show once one did."""
    counts = {"flood": SourceCounts(5, 2, 6, 0), "broken": SourceCounts(0, 0, 0, 3)}
    found = shown(msgspec.structs.replace(SNAPSHOT, counts=counts), OWN)
    assert found["rankwatch_exporter_series_dropped_total", "flood"] == 8
    failed = {key: value for key, value in found.items() if key[0] == "rankwatch_exporter_renders_failed_total"}
    assert failed == {("rankwatch_exporter_renders_failed_total", "broken"): 3}


def test_connections_closed_show_by_the_reasons_seen() -> None:
    """A reason for which no connection was closed has no series."""
    found = shown(msgspec.structs.replace(SNAPSHOT, closed={"malformed": 0, "slow": 2}), OWN)
    closed = {key: value for key, value in found.items() if key[0] == "rankwatch_web_connections_closed_total"}
    assert closed == {("rankwatch_web_connections_closed_total", "slow"): 2}


def test_a_helper_that_was_never_called_has_no_series() -> None:
    """Of two helpers only the one that was called has series, with its calls by result."""
    found = shown(SNAPSHOT, OWN)
    assert {labels[0] for name, *labels in found if name.startswith("rankwatch_helper_")} == {"nvml"}
    calls = {key[1:]: value for key, value in found.items() if key[0] == "rankwatch_helper_calls_total"}
    assert calls == {("nvml", "ok"): 7}


def test_own_figures_are_the_kernels() -> None:
    """CPU time, memory, descriptors and start are what /proc says of this process."""
    own = ProcessReader().read()
    assert own.process is not None
    ticks = int(stat(os.getpid())[11]) + int(stat(os.getpid())[12])
    assert own.process.cpu_seconds == pytest.approx(ticks / TICKS_PER_SECOND, abs=0.5)
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    assert own.process.resident_bytes == pytest.approx(resident_pages * PAGE_BYTES, rel=0.1)
    assert own.open_fds == pytest.approx(len(os.listdir("/proc/self/fd")), abs=2)
    booted = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    started = int(stat(os.getpid())[19]) / TICKS_PER_SECOND + int(booted.split()[1])
    assert own.start_seconds == pytest.approx(started, abs=1.5)
    assert own.start_seconds < time.time()


def test_the_start_does_not_move() -> None:
    """Read again, the start is the same to the last digit: a change would look like a restart."""
    reader = ProcessReader()
    assert reader.read().start_seconds == reader.read().start_seconds


def test_what_may_not_be_read_costs_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one figure of the own process may not be read, the others are."""

    def denied(_: psutil.Process) -> int:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil.Process, "num_fds", denied)
    own = ProcessReader().read()
    assert own.open_fds is None
    assert own.process is not None
    assert own.start_seconds is not None
