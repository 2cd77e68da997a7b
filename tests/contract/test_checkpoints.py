"""Checkpoints of earlier versions: after an upgrade counters and ranks continue."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from bench import DATA, HOSTNAME, Bench
from fake_clock import FakeClock
from filled import filled, lost, read_again
from rank_table import RankTable

from agent import __version__
from agent.app.discovery import exporter_names, load_spec
from agent.app.lease import Lease, Lender
from agent.core.checkpoint import StateFile
from agent.hardware.ledger import Entry
from agent.ranks.records import SavedTable
from agent.sdk.exporter import Logger, NoData, Roots
from agent.sdk.metrics import Metric
from exporters.amdgpu.baseline import Known
from exporters.inspector.exporter import Checkpoint
from exporters.inspector.format.passes import FileContext
from exporters.inspector.reading.turn import Section
from exporters.inspector.totals.inheritance import Inheritance
from exporters.job_log.reader import LogSection
from exporters.kernel_log.exporter import Past
from exporters.madengine.exporter import SavedTasks
from exporters.nixl_ep.job_run import SavedRuns
from exporters.nvml.gpus import Remembered
from exporters.nvrx.events import SavedLines
from exporters.ras.query.reports import SavedJob
from exporters.rdma.baseline import Baseline

RECORDED = DATA / "checkpoint"
BOOT = "recorded"
NO_LONGER_READ = {
    "barrier", "conflicts", "ecc_events", "hole_bytes", "notices", "owner_conflicts", "pod_name", "resets", "restarted",
    "vanished",
}  # fmt: skip
"""Fields of metrics that no longer exist."""
SECTIONS: Mapping[str, Any] = {
    "ranks": SavedTable,
    "checks": list[Entry],
    "exporter amdgpu": dict[str, Known],
    "exporter inspector": Checkpoint,
    "exporter inspector, a directory": Section,
    "exporter inspector, a file": FileContext,
    "exporter inspector, of ranks that left": Inheritance,
    "exporter job_log": LogSection,
    "exporter kernel_log": Past,
    "exporter madengine": SavedTasks,
    "exporter nixl_ep": SavedRuns,
    "exporter nvml": dict[str, Remembered],
    "exporter nvrx": SavedLines,
    "exporter ras": list[SavedJob],
    "exporter rdma": Baseline,
}
DROPPED = {
    "exporter inspector, a directory": ("writers[0][4][0][1][4]",),  # five of six numbers of matched operations
    "exporter inspector, of ranks that left": ("[4]", ".durations", ".proxies"),  # two were always empty
    "exporter kernel_log": (".ranks",),
    "exporter madengine": (".test_seconds"),
    "exporter nixl_ep": (
        ".exits", ".failures", ".mean_seconds", ".min_seconds", ".max_seconds", ".send_seconds", ".receive_seconds",
    ),
    "exporter nvrx": (".stragglers", ".interruptions", ".phase_seconds", ".last"),
}  # fmt: skip
"""In recorded checkpoints, the paths of values without a metric today end like this."""
RUN = ("amdgpu", "inspector", "kernel_log", "process", "rdma")
"""Exporters whose checkpoint comes from recorded sources. The process exporter's data is in the rank table."""
INSPECTOR = 'paths: ["{root}/base8"]'
LOOKS = 3


def versions(suffix: str) -> list[str]:
    """Return the recorded versions."""
    return sorted(path.stem for path in RECORDED.glob(f"*{suffix}"))


def bench(name: str, root: Path, state: StateFile) -> Bench:
    """Return an exporter on the sources in ``root``, with its section of this checkpoint."""
    made = Bench(name, root, INSPECTOR if name == "inspector" else "")
    roots = Roots(root / "proc", root / "sys", root / "run")
    lender = Lender(roots=roots, clock=made.clock, hostname=HOSTNAME, ranks=made.ranks, state=state, once=False)
    made._lease = Lease(lender, name, made.spec.checkpoint_bytes)
    return made


async def looked(made: Bench, arrive: Callable[[], object] = lambda: None) -> list[Metric]:
    """Run some updates of an exporter, and ``arrive`` after the first; return its families if it has a source."""
    await made.begin()
    with suppress(NoData):
        for number in range(LOOKS):
            await made.exporter.update()
            if number == 0:
                arrive()
            made.ranks.tick()
            made.clock.advance(5.0)
    shown = made.families(made.exporter.snapshot())
    await made.end()
    return shown


def record_run(path: Path) -> None:
    """Write the checkpoint of an agent that reads recorded sources."""
    state = StateFile(path, BOOT, Logger("test"))
    for name in RUN:
        with TemporaryDirectory() as folder:
            root, source = Path(folder), DATA / name
            if name == "inspector":  # records of before a first start do not count, so they arrive later
                (root / "base8").mkdir()
                arrive = partial(shutil.copytree, source / "base8", root / "base8", dirs_exist_ok=True)
            else:
                shutil.copytree(source, root, symlinks=True, dirs_exist_ok=True)
                arrive = bool
            made = bench(name, root, state)
            asyncio.run(looked(made, arrive))
            if name == "process":
                state.section("ranks").publish(made.ranks.dump())
    assert state.write(state.encode())


@pytest.fixture(autouse=True, scope="module")
def this_version(request: pytest.FixtureRequest) -> None:
    """Record this version's checkpoint if the option is given and none exists."""
    fields, run = (RECORDED / f"{__version__}{suffix}" for suffix in (".fields", ".run"))
    if request.config.getoption("--update-golden") and not fields.exists():
        sections = {name: msgspec.msgpack.encode(filled(kind, {})) for name, kind in SECTIONS.items()}
        fields.write_bytes(msgspec.msgpack.encode(sections))
        record_run(run)


def test_this_version_is_recorded() -> None:
    """Checkpoints of this version are recorded (--update-golden), with each exporter's section."""
    assert __version__ in versions(".fields")
    assert __version__ in versions(".run")
    keep = {f"exporter {name}" for name in exporter_names() if load_spec(name).checkpoint_bytes}
    assert keep | {"ranks", "checks"} == {name.partition(",")[0] for name in SECTIONS}


@pytest.mark.parametrize("version", versions(".fields"))
def test_every_field_is_read(version: str) -> None:
    """Each recorded field that is still needed is read, and written unchanged."""
    recorded = msgspec.msgpack.decode((RECORDED / f"{version}.fields").read_bytes(), type=dict[str, bytes])
    assert len(recorded) >= 15
    gone = {
        name: [
            path
            for path in lost(msgspec.msgpack.decode(section), read_again(SECTIONS[name], section))
            if not path.endswith(DROPPED.get(name, ()))
        ]
        for name, section in recorded.items()
    }
    unread = {path.rpartition(".")[2] for paths in gone.values() for path in paths}
    assert unread <= NO_LONGER_READ


def elsewhere(recorded: Path, root: Path) -> StateFile:
    """Return a recorded checkpoint with ``root``/base8 as Inspector's directory."""
    file = msgspec.msgpack.decode(recorded.read_bytes())
    inspector = msgspec.msgpack.decode(file["sections"]["exporter inspector"])
    [directory] = inspector["sections"].values()
    inspector["sections"] = {str(root / "base8"): directory}
    file["sections"]["exporter inspector"] = msgspec.msgpack.encode(inspector)
    copy = root / "checkpoint"
    copy.write_bytes(msgspec.msgpack.encode(file))
    copy.chmod(0o600)  # the agent's own mode, whatever the umask
    state = StateFile(copy, BOOT, Logger("test"))
    state.load()
    return state


@pytest.mark.parametrize("version", versions(".run"))
def test_a_run_goes_on(version: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An agent without sources exports the counts of an earlier version's checkpoint, and refuses no section of it."""
    caplog.set_level(logging.WARNING)
    (tmp_path / "base8").mkdir()
    state = elsewhere(RECORDED / f"{version}.run", tmp_path)
    shown = {name: asyncio.run(looked(bench(name, tmp_path, state))) for name in RUN}
    saved = state.section("ranks").restored
    assert saved is not None
    ranks = RankTable(FakeClock(), HOSTNAME)
    ranks.load(saved)
    assert {record.getMessage() for record in caplog.records} == {"RDMA devices have vanished: {missing}"}
    lines = [
        line for path in (DATA / "inspector/base8").glob("gpu-node-00-*") for line in path.read_text().splitlines()
    ]
    assert sum(value_of(shown, "inspector", "rankwatch_collective_operations_total").values()) == len(lines) == 104
    assert value_of(shown, "kernel_log", "rankwatch_kernel_events_total")["gpu_xid", "79"] == 1
    assert len(value_of(shown, "amdgpu", "rankwatch_gpu_info")) == 2
    assert len(msgspec.msgpack.decode(ranks.dump(), type=SavedTable).processes) == 4


def value_of(shown: Mapping[str, list[Metric]], name: str, family: str) -> dict[tuple[str, ...], float]:
    """Return the values of a family, keyed by their labels."""
    [metric] = [metric for metric in shown[name] if metric.family.name == family]
    return {tuple(labels): value for labels, value in zip(metric.labels, metric.values, strict=True)}


@pytest.mark.parametrize(("changed", "restored"), [({}, b"kept"), ({"format": 99}, None), ({"boot_id": "x"}, None)])
def test_a_file_of_another_format_or_boot_restores_nothing(
    changed: dict[str, Any], restored: bytes | None, tmp_path: Path
) -> None:
    """The agent restores nothing from a checkpoint of another format or boot."""
    path = tmp_path / "checkpoint"
    whole = {"format": 1, "boot_id": BOOT, "sections": {"ranks": b"kept"}, **changed}
    path.write_bytes(msgspec.msgpack.encode(whole))
    path.chmod(0o600)
    state = StateFile(path, BOOT, Logger("test"))
    state.load()
    assert state.section("ranks").restored == restored
