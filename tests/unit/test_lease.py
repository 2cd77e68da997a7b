"""The end of an exporter's run takes back everything the run was lent, even if the run fails."""

import asyncio
import threading
from pathlib import Path

import pytest
import scripted
from helper_targets import Order, Outcome
from lent import children
from pytest import LogCaptureFixture
from scripted import Idle, Section, state_file, supervisor

from agent.app.discovery import ExporterPlan
from agent.core.log import FailureCounter, Logger
from agent.hardware.ledger import CheckState
from agent.sdk.exporter import Context, LeaseEnded
from agent.sdk.hardware import Gpu, Nic, Subject
from agent.sdk.helper import HelperSpec

GPU = Gpu(0, "GPU-0", "0000:19:00.0")
NIC = Nic("mlx5_0", "0000:1a:00.0")
SUBJECT = Subject("gpu", "GPU-0")
HELPER = HelperSpec("lease", "helper_targets:obey", Outcome, memory_bytes=64 * 1024 * 1024)


class Greedy(Idle):
    """An exporter that uses everything it is lent and returns nothing; its update waits for ``go``."""

    def __init__(self, *, refuse: bool = False) -> None:
        self.go = asyncio.Event()
        self.go.set()
        self._refuse = refuse

    async def start(self, ctx: Context) -> None:
        self.ctx = ctx
        await ctx.thread("greedy").call(lambda: None)
        self.helper = ctx.helper(HELPER)
        await self.helper.call(Order(), 10.0)
        if self._refuse:
            raise RuntimeError("refused")

    async def update(self) -> None:
        await self.go.wait()
        self.ctx.hardware.observe_gpus([GPU])
        self.ctx.hardware.observe_nics([NIC])
        self.ctx.hardware.observe_gpu_processes({7: ["GPU-0"]})
        self.ctx.checks.report(SUBJECT, "gpu_lost", CheckState.FAILED)
        self.ctx.state.publish(b"seen")

    async def drain(self) -> None:
        raise RuntimeError("a drain that fails")


def plan(made: Greedy | None = None, number: int = 0) -> ExporterPlan:
    """Return a plan with this exporter as `greedy`, or an empty plan."""
    sections = {} if made is None else {"greedy": Section(number=number)}
    return scripted.plan(lambda *_: made or Idle(), drain=0.1, **sections)


def threads() -> set[str]:
    """Return the names of this process's threads."""
    return {thread.name for thread in threading.enumerate()}


async def until_gone() -> None:
    """Poll until no thread of the exporter and no child is left."""
    async with asyncio.timeout(10.0):
        while "greedy" in threads() or await asyncio.to_thread(children):
            await asyncio.sleep(0.01)


async def test_a_refused_start_leaves_nothing_behind() -> None:
    """If an exporter refuses to start, its thread and helper process end."""
    own = supervisor()
    await own.begin(plan(Greedy(refuse=True)))
    assert own.broken == {"greedy"}
    await until_gone()
    assert {helper.calls["failed"] for helper in own.helpers.all()} == {0}
    await own.stop()


async def test_hardware_stays_while_its_exporter_is_replaced() -> None:
    """When an exporter's configuration changes, its GPUs and NICs stay until the first update of its new run."""
    own = supervisor()
    await own.begin(plan(Greedy()), schedule=False)
    await own.update_once()
    after = Greedy()
    after.go.clear()
    assert await own.apply(plan(after, number=1))
    assert (own.hardware.gpus(), own.hardware.nics()) == ([GPU], [NIC])
    after.go.set()
    await own.stop()


async def test_a_late_update_writes_nothing_after_its_exporter(tmp_path: Path, caplog: LogCaptureFixture) -> None:
    """An update that ends after its run writes to no table and no checkpoint section, and is no error."""
    own = supervisor(state_file(tmp_path))
    late = Greedy()
    late.go.clear()
    await own.begin(plan(late))
    while not own.running["greedy"].late:
        await asyncio.sleep(0.001)
    running = own.running["greedy"]
    assert running._schedule is not None
    assert await own.apply(plan())
    caplog.clear()
    late.go.set()
    await running._schedule
    assert (running.failures, caplog.records) == (0, [])
    assert (own.hardware.gpus(), own.ledger.entries()) == ([], ())
    after = Greedy()
    assert await own.apply(plan(after, number=1))
    assert after.ctx.state.restored is None
    await own.stop()


async def test_what_no_code_awaits_may_meet_the_end(caplog: LogCaptureFixture) -> None:
    """A task that fails because its lease has ended is not logged; a task that fails otherwise is logged."""
    own = supervisor()
    await own.begin(plan())
    for error, lines in ((LeaseEnded(), 0), (RuntimeError("odd"), 1)):
        asyncio.get_running_loop().call_exception_handler({"message": "never retrieved", "exception": error})
        assert len(caplog.records) == lines
    await own.stop()


def test_the_end_of_a_lease_is_no_odd_piece(caplog: LogCaptureFixture) -> None:
    """The end of a lease during a look is neither counted nor logged as a failure."""
    failures = FailureCounter(Logger("late"))

    def late() -> None:
        raise LeaseEnded

    with pytest.raises(LeaseEnded):
        failures.attempt("a record", late)
    assert (failures.skipped, caplog.records) == (0, [])
