"""What the agent says of itself."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from client_metrics import client_metric, samples
from prometheus_client.platform_collector import PlatformCollector

from agent.export import usage as usage_families
from agent.export.agent_families import FAMILIES, SelfSnapshot, families, self_source
from agent.export.exporter_families import ExporterStatus
from agent.export.registry import SourceCounts
from agent.export.usage import HelperStatus, OwnUsage, ProcessReader, ProcessUsage, Usage

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SNAPSHOT = SelfSnapshot(
    age_seconds=90.0, exporters=(ExporterStatus("process", up=True, present=True, last_success_seconds=5.0),),
    counts={"process": SourceCounts(3, 2, 1, 0)}, refused=0,
    helpers=(HelperStatus("nvml", ok=True, calls={"ok": 7}, pid=11), HelperStatus("ras", None, {})),
    loop_lag_seconds=0.0, reload_ok=True, save_errors=0, responses={200: 1},
)  # fmt: skip
OWN = OwnUsage(ProcessUsage(1.5, 30_000_000), 17, 1000.25)


def shown(snapshot: SelfSnapshot, usage: Usage) -> dict[tuple[str, ...], float]:
    """The series by name and label values."""
    return {(each.name, *each.labels.values()): each.value for each in samples(families(snapshot, usage))}


def stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def cpu_seconds(pid: int) -> float:
    """The process' own CPU time as the kernel counts it."""
    return (int(stat(pid)[11]) + int(stat(pid)[12])) / TICKS_PER_SECOND


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours that has used some CPU and then waits."""
    spin = "import sys, time\nwhile time.process_time() < 0.1: pass\nprint(flush=True)\nsys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.communicate()


def test_all_families_are_declared() -> None:
    """What is rendered is what is declared, each family once."""
    rendered = [each.family for each in families(SNAPSHOT, Usage(OWN, {11: ProcessUsage(0.5, 9)}))]
    assert sorted(family.name for family in rendered) == sorted(family.name for family in FAMILIES)
    assert set(rendered) == set(FAMILIES)


def test_own_process_goes_by_the_standard_names() -> None:
    """The agent's process has the series, without labels, that Prometheus' own libraries give of any process."""
    found = shown(SNAPSHOT, Usage(OWN))
    assert (found["process_cpu_seconds_total",], found["process_resident_memory_bytes",]) == (1.5, 30_000_000)
    assert (found["process_open_fds",], found["process_start_time_seconds",]) == (17, 1000.25)


def test_python_is_told_as_the_client_tells_it() -> None:
    """python_info has the labels and values that prometheus-client gives it."""
    (expected,) = PlatformCollector(registry=None).collect()
    (found,) = [each for each in usage_families.render_own(OWN) if each.family is usage_families.PYTHON_INFO]
    assert client_metric(found).samples == expected.samples


def test_what_cannot_be_read_is_absent() -> None:
    """A figure that cannot be had has no series; the others have theirs."""
    found = shown(SNAPSHOT, Usage(OwnUsage(None, None, None)))
    assert [name for name, *_ in found if name.startswith("process_")] == []
    assert ("rankwatch_helper_resident_memory_bytes", "nvml") not in found
    found = shown(SNAPSHOT, Usage(OwnUsage(OWN.process, None, OWN.start_seconds)))
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
    found = shown(msgspec.structs.replace(SNAPSHOT, exporters=statuses), Usage(OWN))
    of_exporters = ("up", "source_present", "update_duration_seconds", "updates_late_total")
    assert {name for name, *labels in found if labels == ["idle"]} == {
        f"rankwatch_exporter_{each}" for each in ("up", "source_present")
    }
    assert {name for name, *labels in found if labels == ["failing"]} == {
        f"rankwatch_exporter_{each}" for each in (*of_exporters, "updates_failed_total", "skipped_total")
    }


def test_series_left_out_are_one_count() -> None:
    """Those over the cap and those given twice are added up; updates and renders that failed are, too."""
    counts = {"flood": SourceCounts(5, 2, 6, 0), "broken": SourceCounts(0, 0, 0, 3)}
    statuses = (ExporterStatus("broken", up=False, present=True, failures=2),)
    found = shown(msgspec.structs.replace(SNAPSHOT, counts=counts, exporters=statuses), Usage(OWN))
    assert found["rankwatch_exporter_series_dropped_total", "flood"] == 8
    failed = {key: value for key, value in found.items() if key[0] == "rankwatch_exporter_updates_failed_total"}
    assert failed == {("rankwatch_exporter_updates_failed_total", "broken"): 5}


def test_a_helper_that_was_never_called_has_no_series() -> None:
    """Of two helpers only the one that was called has series, with its calls by result."""
    found = shown(SNAPSHOT, Usage(OWN))
    assert {labels[0] for name, *labels in found if name.startswith("rankwatch_helper_")} == {"nvml"}
    calls = {key[1:]: value for key, value in found.items() if key[0] == "rankwatch_helper_calls_total"}
    assert calls == {("nvml", "ok"): 7}


def test_helpers_with_a_process_have_its_figures() -> None:
    """The memory of a helper's process has the helper's name; a helper without a process has no such series."""
    found = shown(SNAPSHOT, Usage(OWN, {11: ProcessUsage(0.5, 9_000_000), 12: ProcessUsage(1.0, 1)}))
    assert {key: value for key, value in found.items() if "helper_resident" in key[0]} == {
        ("rankwatch_helper_resident_memory_bytes", "nvml"): 9_000_000
    }


def test_own_figures_are_the_kernels() -> None:
    """CPU time, memory, descriptors and start are what /proc says of this process."""
    own = ProcessReader().read(()).own
    assert own.process is not None
    assert own.process.cpu_seconds == pytest.approx(cpu_seconds(os.getpid()), abs=0.5)
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
    assert reader.read(()).own.start_seconds == reader.read(()).own.start_seconds


def test_figures_of_a_child_are_the_kernels(child: subprocess.Popen[bytes]) -> None:
    """A child's CPU time and memory are what /proc says of it."""
    used = ProcessReader().read([child.pid]).children[child.pid]
    assert used.cpu_seconds == pytest.approx(cpu_seconds(child.pid), abs=0.05)
    assert used.cpu_seconds >= 0.05
    resident_pages = int(Path(f"/proc/{child.pid}/statm").read_text().split()[1])
    assert used.resident_bytes == pytest.approx(resident_pages * PAGE_BYTES, rel=0.1)


def test_a_process_that_is_no_child_is_not_told() -> None:
    """Of a number that is free, or another's by now, nothing is told."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert ProcessReader().read([gone.pid, os.getppid(), 1]).children == {}


def test_what_may_not_be_read_costs_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one figure of the own process may not be read, the others are."""

    def denied(_: psutil.Process) -> int:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil.Process, "num_fds", denied)
    own = ProcessReader().read(()).own
    assert own.open_fds is None
    assert own.process is not None
    assert own.start_seconds is not None


def test_the_source_reads_its_helpers(child: subprocess.Popen[bytes]) -> None:
    """The agent as a source of series tells of the processes that its snapshot names."""
    status = HelperStatus("nvml", ok=True, calls={}, pid=child.pid)
    snapshot = msgspec.structs.replace(SNAPSHOT, helpers=(status,))
    source = self_source(lambda: snapshot)
    found = {(each.name, *each.labels.values()): each.value for each in samples(source.families(source.snapshot()))}
    assert found["rankwatch_helper_resident_memory_bytes", "nvml"] > 0
    assert found["process_open_fds",] > 0
