"""A node with the kernel log exporter, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from client_metrics import samples
from fake_clock import FakeClock
from lent import failed, lent
from rank_table import RankTable, environment, facts

from agent.hardware.inventory import Hardware
from agent.hardware.ledger import HealthLedger
from agent.sdk.exporter import StateSection
from agent.sdk.hardware import Gpu, Nic
from exporters.kernel_log import KernelLogConfig, KernelLogExporter

XID = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
MLX5 = "mlx5_core 0000:19:00.0: poll_health:955:(pid 0): device's health compromised"
GPUS = (Gpu(0, "GPU-a", "0000:3b:00.0"), Gpu(1, "GPU-b", "0000:18:00.0"))
Series = dict[tuple[str, ...], float]


class Node:
    """The exporter with a kernel log. The GPUs and the NIC are known from the start, unless ``named`` is False."""

    def __init__(self, log: Path, before: Node | None = None, *, wanted: bool = False, named: bool = True) -> None:
        self.clock = FakeClock()
        self.clock.now = 7040.0
        self.ledger, self.hardware = HealthLedger(self.clock), Hardware()
        self.section: StateSection = StateSection("kernel_log", before.section.published if before else None)
        if before:
            self.clock.now = before.clock.now
            self.ledger.load(before.ledger.dump())
        if named:
            self.name_hardware()
        self.log, self.written = log, before.written if before else 0
        self.changes: list[tuple[Path, str, str]] = []
        self.root = log.parent / "root"
        self.ranks = RankTable(self.clock, "here", settle_at_once=True)
        config = KernelLogConfig(path=str(log), enabled=wanted or "auto")
        self.exporter = KernelLogExporter(config)
        self.context = lent(
            "kernel_log",
            self.clock,
            self.root,
            ranks=self.ranks,
            state=self.section,
            checks=self.ledger.of("kernel_log"),
            hardware=self.hardware,
        )

    def name_hardware(self) -> None:
        """Report the GPUs and the NIC, as their exporters would."""
        self.hardware.of("nvml").observe_gpus(GPUS)
        self.hardware.of("rdma").observe_nics([Nic("mlx5_0", "0000:19:00.0")])

    def add_rank(self, pid: int, rank: int) -> None:
        assert self.ranks.observe_process(facts(pid, environment(rank)))
        self.ranks.tick()

    def write(self, *lines: str, seconds: float = 7039.0) -> None:
        """Add lines to the kernel log, all with one time."""
        added = [f"4,{number},{int(seconds * 1e6)},-;{text}\n" for number, text in enumerate(lines, self.written)]
        self.written += len(added)
        self.put(self.log, "".join(added), "a")

    def mount(self, mountinfo: str) -> None:
        self.put(self.root / "proc/1/mountinfo", mountinfo)

    def put(self, path: Path, text: str, mode: str = "w") -> None:
        """Write this text into a file just before the exporter's next update."""
        self.changes.append((path, text, mode))

    def change(self) -> None:
        for path, text, mode in self.changes:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open(mode) as file:
                file.write(text)
        self.changes = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.exporter.start(self.context)
        try:
            yield
        finally:
            await self.exporter.drain()

    async def look(self) -> Series:
        """Start the exporter, update it once and stop it; return the series by family (without prefix) and labels."""
        async with self.running():
            return await self.look_again()

    async def look_again(self) -> Series:
        """Update the running exporter, and return the series."""
        await asyncio.to_thread(self.change)
        await self.exporter.update()
        return {
            (sample.name.removeprefix("rankwatch_"), *sample.labels.values()): sample.value
            for sample in samples(self.exporter.families(self.exporter.snapshot()))
        }

    def failed(self) -> set[tuple[str, str]]:
        return {(entry.subject.name, entry.check) for entry in failed(self.ledger)}
