"""Reads the GPUs through the helper, and reports devices, users, checks and faults to the agent."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from agent.sdk.exporter import MAX_SECTION_BYTES, Context, ExporterConfig, NoData, OwnThread, Spec
from agent.sdk.hardware import NODE, CheckState, Gpu, Subject, gpu_faults
from agent.sdk.helper import HelperFailed, HelperHung, HelperSpec
from agent.sdk.metrics import Metric
from agent.sdk.system import pci_address, pci_path, sysfs
from exporters.nvml.families import FAMILIES, NvmlSnapshot, render
from exporters.nvml.gpus import Gpus, GpuVerdict, Remembered
from exporters.nvml.reading import LookAnswer, LookRequest

NAME = "nvml"
INTERVAL_SECONDS = 10.0
START_FACTOR = 3.0
"""The first poll may take this many times ``hang_seconds``: NVML needs seconds to initialise each GPU.

An update must end before the series of the previous update go stale.
"""
ABSENT_SECONDS = 300.0
"""The time between two polls of a node without NVIDIA's driver. The helper ends in between, to free its memory."""
REOPEN_SECONDS = 60.0
"""How often the helper initialises NVML again while a GPU is lost: only this shows whether the GPU is back."""
_ABSENT = frozenset({"library_not_found", "driver_not_loaded"})
HELPER = HelperSpec(NAME, "exporters.nvml.library:look", LookAnswer, memory_bytes=512 * 1024 * 1024)


MAX_HANG_SECONDS = 10.0
"""The greatest ``hang_seconds``. While the driver hangs, a new helper gets START_FACTOR times this.

The series must not go stale in that time.
"""


class NvmlConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``library``: the path of libnvidia-ml.so.1 if the loader does not find it, as with a driver in a container.

    ``hang_seconds``: a poll that takes longer means that the driver hangs. ``hot_celsius``: a GPU is hot when its core
    has at least this temperature in most polls.
    """

    library: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    hang_seconds: Annotated[float, msgspec.Meta(ge=0.5, le=MAX_HANG_SECONDS)] = MAX_HANG_SECONDS
    hot_celsius: Annotated[float, msgspec.Meta(ge=30.0, le=150.0)] = 85.0


class NvmlFailed(Exception):  # noqa: N818  # named like NVML's own errors
    """NVML cannot be initialised, and the exporter has seen no GPU since the boot."""


class NvmlExporter:
    """Exports GPUs with their checks and faults."""

    def __init__(self, config: NvmlConfig) -> None:
        self._config = config
        self._warm = False
        self._hung = False
        self._looked_at: float | None = None
        self._reopened_at = float("-inf")
        self._absent_until = float("-inf")
        self._observed: tuple[tuple[str, int, str], ...] = ()
        self._answer = LookAnswer(error="uninitialized")

    async def start(self, ctx: Context) -> None:
        """Restore the GPUs of this boot and prepare the helper. This does not call the driver yet."""
        self._ctx = ctx
        self._thread: OwnThread = ctx.thread(NAME)
        self._gpus = Gpus(self._config.hot_celsius, ctx.state.restore(dict[str, Remembered], ctx.log) or {})
        await self._thread.call(gpu_faults.read_table)
        self._helper = ctx.helper(HELPER)

    async def update(self) -> None:
        """Poll once. Raise NoData if the driver is absent or shows no GPU, and no GPU was seen since the boot."""
        clock = self._ctx.clock
        if clock.monotonic() < self._absent_until:
            raise NoData(self._answer.error)
        try:
            answer = await self._look()
        except HelperHung:
            self._note_hung()
            return
        except HelperFailed:
            self._warm = False
            if not self._hung:
                raise
            return  # the helper waits for its next start: the driver still counts as hung
        self._warm = True
        self._hung = False
        self._answer = answer
        now = clock.monotonic()
        elapsed = now - self._looked_at if self._looked_at is not None else 0.0
        if not answer.error:
            self._looked_at = now
        self._report(self._gpus.observe(answer, elapsed, clock.time()))
        self._ctx.hardware.observe_faults(self._gpus.faults(clock.time()))
        self._remember()
        if answer.error:
            self._note_error(answer.error)
        elif not self._gpus.views:
            raise NoData("the driver shows no GPU")
        else:
            await self._observe(answer)

    def snapshot(self) -> NvmlSnapshot:
        """Return a copy of the state of the last poll."""
        if self._hung or self._answer.error:
            return NvmlSnapshot(errors=dict(self._gpus.errors))
        return NvmlSnapshot(self._gpus.views, dict(self._gpus.errors), (self._answer.driver, self._answer.cuda))

    def families(self, snapshot: NvmlSnapshot) -> Iterable[Metric]:
        """Return the metric families of a snapshot. Pure."""
        return render(snapshot)

    async def drain(self) -> None:
        """Save the state for the next run. When the lease ends, the helper closes NVML and ends."""
        self._gpus.keep_signs()
        self._remember()

    async def _look(self) -> LookAnswer:
        now = self._ctx.clock.monotonic()
        reopen = self._warm and self._gpus.any_lost() and now - self._reopened_at >= REOPEN_SECONDS
        if reopen:
            self._reopened_at = now
        request = LookRequest(self._config.library, reopen)
        patience = self._config.hang_seconds * (1.0 if self._warm and not reopen else START_FACTOR)
        return await self._helper.call(request, patience)

    def _note_hung(self) -> None:
        if not self._hung:
            self._ctx.log.error("the GPU driver has not answered for {seconds} s", seconds=self._config.hang_seconds)
        self._hung = True
        self._warm = False
        self._looked_at = None
        self._ctx.checks.report(NODE, "gpu_driver_hung", CheckState.FAILED)

    def _note_error(self, error: str) -> None:
        """Handle an NVML that cannot be initialised: log a warning if a GPU was seen since the boot.

        Otherwise raise NoData without a driver, NvmlFailed for any other error.
        """
        if self._gpus.remembered:
            self._ctx.log.warning("NVML cannot be initialised", error=error)
        elif error in _ABSENT:
            self._absent_until = self._ctx.clock.monotonic() + ABSENT_SECONDS
            self._warm = False
            self._helper.rest()
            raise NoData(error)
        else:
            raise NvmlFailed(error)

    def _report(self, verdicts: Iterable[GpuVerdict]) -> None:
        checks = self._ctx.checks
        checks.report(NODE, "gpu_driver_hung", CheckState.OK)
        subjects = [NODE]
        for verdict in verdicts:
            subject = Subject("gpu", verdict.subject)
            subjects.append(subject)
            checks.clear(subject, verdict.recovered)
            for check, state in verdict.levels.items():
                checks.report(subject, check, state)
            for check in verdict.faults:
                checks.latch(subject, check)
        checks.forget(subjects)

    async def _observe(self, answer: LookAnswer) -> None:
        users: dict[int, list[str]] = {}
        unseen = set(self._gpus.remembered)
        for reading in answer.gpus:
            if reading.pids is not None:
                unseen.discard(reading.uuid)
            for pid in reading.pids or ():
                users.setdefault(pid, []).append(reading.uuid)
        divided = [reading.uuid for reading in answer.gpus if reading.values.get("mig_enabled")]
        self._ctx.hardware.observe_gpu_processes(users, unseen, divided)
        known = tuple((uuid, gpu.index, gpu.pci) for uuid, gpu in self._gpus.remembered.items())
        if known != self._observed:
            devices = self._ctx.roots.sys / "bus/pci/devices"
            self._ctx.hardware.observe_gpus(await self._thread.call(lambda: _placed(known, devices)))
            self._observed = known

    def _remember(self) -> None:
        if self._gpus.changed:
            self._gpus.changed = False
            self._ctx.state.publish(msgspec.msgpack.encode(self._gpus.remembered))


def _placed(known: Iterable[tuple[str, int, str]], devices: Path) -> list[Gpu]:
    """Return the GPUs with their PCI paths and NUMA nodes. Blocking."""
    gpus = []
    for uuid, index, bus_id in known:
        pci = pci_address(bus_id)
        numa = sysfs.read_number(devices / pci / "numa_node") if pci else None
        gpus.append(Gpu(index, uuid, pci, pci_path(devices / pci) if pci else (), -1 if numa is None else numa))
    return gpus


SPEC = Spec(
    name=NAME,
    config=NvmlConfig,
    build=NvmlExporter,
    interval_seconds=INTERVAL_SECONDS,
    deadline_seconds=20.0,
    families=FAMILIES,
    checkpoint_bytes=MAX_SECTION_BYTES,
    drain_seconds=5.0,
    series_cap=20_000,
    keeps_past=True,
)
