"""Helpers with real processes: calls, limits, failures and their end."""

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_clock import FakeClock
from helper_targets import Order, Outcome

from agent.helper import client as helper_module, process as helper_process
from agent.helper.client import (
    IDLE_SECONDS,
    KILL_SECONDS,
    MAX_BACK_OFF_SECONDS,
    STOP_SECONDS,
    Helper,
    HelperFailed,
    HelperHung,
    Helpers,
    HelperSpec,
)
from agent.helper.frames import MAX_PAYLOAD_BYTES
from agent.helper.main import NICENESS

ROOT = Path(__file__).parents[2]
MEMORY_BYTES = 32 * 1024 * 1024
SPEC = HelperSpec("test", "helper_targets:obey", Outcome, MEMORY_BYTES)
LONG = 20.0  # Seconds that a successful call never takes, even on a busy machine
SHORT = 0.5
LAST_WORDS = ["\\xff and an unfinished line"]


class Bench:
    """A helper whose back-off uses the test's clock."""

    def __init__(self, spec: HelperSpec[Any] = SPEC) -> None:
        self.clock = FakeClock()
        self.helpers = Helpers(self.clock)
        self.helper: Helper[Any] = self.helpers.lend(spec)

    async def do(self, what: str = "nothing", amount: int = 0, deadline_seconds: float = LONG) -> Outcome:
        outcome = await self.helper.call(Order(what, amount), deadline_seconds)
        assert isinstance(outcome, Outcome)
        return outcome

    async def fails(self, what: str, amount: int = 0) -> str:
        """Make a failing call, let the back-off pass, and return the error."""
        with pytest.raises(HelperFailed) as caught:
            await self.do(what, amount)
        self.clock.advance(MAX_BACK_OFF_SECONDS)
        return str(caught.value)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """Provide a helper; it must leave no process behind when it stops."""
    bench = Bench()
    yield bench
    await bench.helper.stop()
    assert await children() == []


async def children() -> list[int]:
    """Return the pids of this process's children, zombies included."""
    return await asyncio.to_thread(_children)


def _children() -> list[int]:
    children = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that ended
            children += [int(pid) for pid in (task / "children").read_text().split()]
    return children


async def until_gone(pid: int) -> None:
    """Wait until a child has exited and is reaped."""
    async with asyncio.timeout(LONG):
        while pid in await children():
            await asyncio.sleep(0.005)


async def pieces(count: int, length: int) -> AsyncIterator[bytes]:
    """Yield the pieces of a body."""
    for _ in range(count):
        yield bytes(length)


async def test_the_first_call_starts_a_process_and_the_next_uses_it(bench: Bench) -> None:
    """No process runs before the first call; one process answers all calls, even after SIGTERM, and they count."""
    assert await children() == []
    pid = (await bench.do()).pid
    assert await children() == [pid]
    os.kill(pid, signal.SIGTERM)  # as of a stop that signals every process
    assert (await bench.do()).pid == pid
    assert (bench.helper.ok, bench.helper.calls) == (True, {"ok": 2})


async def test_a_body_arrives_whole(bench: Bench) -> None:
    """A body larger than any buffer arrives complete, in pieces of any size; without a body it is empty."""
    for count, length in ((1, 1), (1000, 999), (5, MAX_PAYLOAD_BYTES)):
        assert (await bench.helper.call_with_body(Order(), pieces(count, length), LONG)).body_bytes == count * length
    assert (await bench.do()).body_bytes == 0


async def test_a_process_is_bare(bench: Bench) -> None:
    """A helper process inherits no descriptor, has a nice value and its own session, and imports no event loop."""
    with socket.socket() as inherited:
        inherited.set_inheritable(True)  # the argument is positional only
        descriptors = (await bench.do("say what is open")).found
    assert sorted(name.partition(":")[0] for name in descriptors) == ["/dev/null", "pipe", "pipe", "socket", "socket"]
    outcome = await bench.do("say your niceness")
    assert outcome.found == [str(NICENESS), str(outcome.pid)]
    modules = {*(await bench.do("say what is imported")).found}
    assert not {"asyncio", "prometheus_client", "agent.sdk.exporter"} & modules


async def test_what_it_prints_is_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Standard output and error go to the log by line: long lines in parts, invalid bytes escaped."""
    pid = (await bench.do("talk", 3000)).pid
    bench.helper._process.end()  # type: ignore[union-attr]
    await until_gone(pid)
    async with asyncio.timeout(LONG):
        while (texts := [vars(record)["fields"]["text"] for record in caplog.records])[-1:] != LAST_WORDS:
            await asyncio.sleep(0.005)
    assert "".join(texts[:-1]) == "x" * 3000


@pytest.mark.parametrize(("what", "amount", "said"), [
    ("leave", 3, "exited with status 3"),
    ("crash", 0, "killed by SIGSEGV"),
    ("crash", 40, "killed by signal 40"),
    ("fail", 0, "exited with status 1"),
    ("speak out of turn", 0, "REQUEST instead of an answer"),
    ("speak out of turn", 1, "a payload of 4294967295 bytes"),
    ("no such order", 0, "exited with status 1"),
])  # fmt: skip
async def test_a_failure_costs_its_call_and_its_process(bench: Bench, what: str, amount: int, said: str) -> None:
    """A crash, an error or a protocol violation fails one call with a reason; the next call starts a new process."""
    pid = (await bench.do()).pid
    assert await bench.fails(what, amount) == said
    assert (bench.helper.ok, await children()) == (False, [])
    assert (await bench.do()).pid != pid
    assert (bench.helper.ok, bench.helper.calls) == (True, {"ok": 2, "failed": 1})


@pytest.mark.parametrize(
    ("target", "amount", "said"), [("lie", 0, "Expected `object`, got `str`"), ("nest", 100_000, "")]
)
async def test_an_answer_that_cannot_be_read_fails(target: str, amount: int, said: str) -> None:
    """A reply of another type, or nested too deep, fails the call."""
    bench = Bench(HelperSpec(target, f"helper_targets:{target}", Outcome, MEMORY_BYTES))
    try:
        assert target == "lie" or (await bench.do(amount=10)).pid == 1
        assert said in await bench.fails("nothing", amount)
        assert bench.helper.calls["failed"] == 1
    finally:
        await bench.helper.stop()


async def test_memory_is_bounded(bench: Bench) -> None:
    """Each call can use nearly MEMORY_BYTES, including its body; a call that needs more fails."""
    margin = 1024 * 1024  # memory of the interpreter itself
    assert len({(await bench.do("take memory", MEMORY_BYTES - margin)).pid for _ in range(3)}) == 1
    assert await bench.fails("take memory", MEMORY_BYTES + margin) == "exited with status 1"
    body = pieces(MEMORY_BYTES // MAX_PAYLOAD_BYTES + 1, MAX_PAYLOAD_BYTES)
    with pytest.raises(HelperFailed):
        await bench.helper.call_with_body(Order(), body, LONG)


@pytest.mark.slow
async def test_starts_are_put_off_while_they_fail(bench: Bench) -> None:
    """From the second failure in a row, calls fail at once during a back-off that doubles up to a limit."""
    with pytest.raises(HelperFailed, match="exited with status 1"):
        await bench.do("fail")
    for wait in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        with pytest.raises(HelperFailed, match="exited with status 1"):
            await bench.do("fail")
        bench.clock.advance(wait - 0.001)
        with pytest.raises(HelperFailed, match="starts again in"):
            await bench.do()
        assert await children() == []
        bench.clock.advance(0.001)
    await bench.do()
    with pytest.raises(HelperFailed, match="exited with status 1"):
        await bench.do("fail")
    await bench.do()


async def test_a_process_that_cannot_answer_is_killed_and_replaced(bench: Bench) -> None:
    """A stopped process is killed and reaped at the call's deadline, and the next call starts a new one."""
    pid = (await bench.do()).pid
    with pytest.raises(HelperHung):
        await bench.do("stop", deadline_seconds=SHORT)
    assert await children() == []
    assert (await bench.do()).pid != pid
    assert bench.helper.calls == {"ok": 2, "hung": 1}


async def test_a_process_that_takes_no_body_hangs(bench: Bench) -> None:
    """If the process does not read the request's body, the call ends at its deadline."""
    os.kill((await bench.do()).pid, signal.SIGSTOP)
    with pytest.raises(HelperHung):
        await bench.helper.call_with_body(Order(), pieces(10_000, 65536), SHORT)


async def test_a_cancelled_call_is_not_answered_to_the_next(bench: Bench) -> None:
    """A cancelled call ends its process; the next call gets its own reply from a new one."""
    pid, call = (await bench.do()).pid, asyncio.ensure_future(bench.do("stop"))
    async with asyncio.timeout(LONG):
        while "T (stopped)" not in await asyncio.to_thread(Path(f"/proc/{pid}/status").read_text):
            await asyncio.sleep(0.005)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    outcome = await bench.do("answer at length", 2)
    assert (outcome.found, outcome.pid != pid) == (["xx"], True)


async def test_one_that_died_between_calls_is_replaced(bench: Bench) -> None:
    """If the OOM killer kills an idle process, no call fails."""
    pid = (await bench.do()).pid
    os.kill(pid, signal.SIGKILL)
    await until_gone(pid)
    assert (await bench.do()).pid != pid
    assert bench.helper.calls == {"ok": 2}


@pytest.fixture
def no_kill(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace SIGKILL by nothing, as for a process in uninterruptible sleep; kill the remaining children at the end."""
    send = signal.pidfd_send_signal
    with monkeypatch.context() as patch:
        patch.setattr(helper_process.signal, "pidfd_send_signal", lambda *_: None)
        yield
    assert signal.pidfd_send_signal is send
    for pid in _children():
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
async def test_one_that_cannot_be_killed_is_left_alone(no_kill: None) -> None:
    """While a process cannot be killed, calls fail soon, no second process starts, and ``stop`` returns."""
    bench = Bench()
    pid, loop = (await bench.do()).pid, asyncio.get_running_loop()
    with pytest.raises(HelperHung):
        await bench.do("outlive your parent and stop", deadline_seconds=SHORT)
    for _ in range(3):
        bench.clock.advance(MAX_BACK_OFF_SECONDS)
        began = loop.time()
        with pytest.raises(HelperHung, match="still exists"):
            await bench.do()
        await bench.helper.stop()
        assert loop.time() - began < 2 * KILL_SECONDS + 0.5
        assert await children() == [pid]
        assert bench.helpers.lend(SPEC) is bench.helper
    os.kill(pid, signal.SIGKILL)
    await until_gone(pid)
    assert (await bench.do()).pid != pid
    bench.helper._process.end()  # type: ignore[union-attr]
    await bench.helper.stop()
    assert bench.helper.calls == {"ok": 2, "hung": 4}


async def test_an_executable_that_is_not_there_fails(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that the kernel refuses fails with the reason, and leaves no descriptor open."""
    before = await asyncio.to_thread(os.listdir, "/proc/self/fd")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/no/python")
        assert "No such file" in await bench.fails("nothing")
    assert await asyncio.to_thread(os.listdir, "/proc/self/fd") == before
    await bench.do()


async def test_processes_that_die_leak_no_descriptor(bench: Bench) -> None:
    """After the death of a process the agent has as many open descriptors as before."""
    before = len(await asyncio.to_thread(os.listdir, "/proc/self/fd"))
    for what in ("leave", "fail"):
        await bench.fails(what)
    async with asyncio.timeout(LONG):
        while len(await asyncio.to_thread(os.listdir, "/proc/self/fd")) > before:
            await asyncio.sleep(0.005)  # the output of the last process is read after its end


async def test_an_idle_process_is_ended(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is idle for IDLE_SECONDS ends, and the helper stays `ok`; the next call starts a new process."""
    monkeypatch.setattr(helper_module, "IDLE_SECONDS", 0.05)
    pid = (await bench.do()).pid
    await until_gone(pid)
    assert bench.helper.ok
    assert (await bench.do()).pid != pid
    assert IDLE_SECONDS > 60


async def test_a_stop_lets_the_call_under_way_end(bench: Bench) -> None:
    """A call in progress when its helper is stopped gets its reply; then the process ends."""
    helper = bench.helpers.lend(HelperSpec("other", SPEC.target, Outcome, MEMORY_BYTES))
    await helper.call(Order(), LONG)
    call = asyncio.ensure_future(helper.call(Order("take memory", MEMORY_BYTES // 2), LONG))
    await asyncio.sleep(0)
    _, outcome = await asyncio.gather(helper.stop(), call)
    assert outcome.found == []
    await until_gone(outcome.pid)
    with pytest.raises(HelperFailed, match="stopped"):
        await helper.call(Order(), LONG)


async def test_a_stop_during_a_body_fails_the_call(bench: Bench) -> None:
    """If a helper is stopped before a body is complete, it takes no more pieces and the call fails."""

    async def pieces() -> AsyncIterator[bytes]:
        assert bench.helper._process is not None
        bench.helper._process.end()  # as a stop does
        yield b"x"

    with pytest.raises(HelperFailed):
        await bench.helper.call_with_body(Order(), pieces(), LONG)


async def test_a_stop_during_a_start_leaves_no_process(bench: Bench) -> None:
    """If a helper is stopped while its first call starts the process, the process ends after the call."""
    helper = bench.helpers.lend(HelperSpec("other", SPEC.target, Outcome, MEMORY_BYTES))
    call = asyncio.ensure_future(helper.call(Order(), LONG))
    await asyncio.sleep(0)
    await asyncio.gather(helper.stop(), call)
    await until_gone((await call).pid)


async def test_a_stop_kills_one_that_does_not_leave(bench: Bench) -> None:
    """A process that does not exit at the end of its input is killed; a call of a stopped helper leaves no result."""
    helper = bench.helpers.lend(HelperSpec("other", "helper_targets:stop_at_once", Outcome, MEMORY_BYTES))
    call = asyncio.ensure_future(helper.call({}, LONG))
    await helper.stop()
    await asyncio.wait({call})
    assert (type(call.exception()), helper.ok) == (HelperFailed, None)
    helper = bench.helpers.lend(HelperSpec("another", SPEC.target, Outcome, MEMORY_BYTES))
    pid = (await helper.call(Order(), LONG)).pid
    os.kill(pid, signal.SIGSTOP)
    began = asyncio.get_running_loop().time()
    await helper.stop()
    assert asyncio.get_running_loop().time() - began < STOP_SECONDS + KILL_SECONDS + 0.5
    assert await children() == []


async def test_a_helper_is_ended_by_its_last_user(bench: Bench) -> None:
    """Two users of a helper share one process, which runs until both have stopped; no two helpers share a name."""
    assert bench.helpers.lend(SPEC) is bench.helper
    pid = (await bench.do()).pid
    await bench.helper.stop()
    assert (await bench.do()).pid == pid
    with pytest.raises(ValueError, match="another helper"):
        bench.helpers.lend(HelperSpec("test", "helper_targets:lie", Outcome, 1))


AGENT = """
import asyncio, sys
from helper_targets import Order, Outcome
from agent.core.clock import Clock
from agent.helper.client import Helpers, HelperSpec

async def main():
    helper = Helpers(Clock()).lend(HelperSpec("test", "helper_targets:obey", Outcome, 1 << 25))
    print((await helper.call(Order(), 20.0)).pid, flush=True)
    await helper.call(Order(sys.argv[1]), 60.0)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("what", ["nothing", "stop"])
def test_a_killed_agent_takes_its_helper_along(what: str) -> None:
    """A helper exits within a second of a kill of the agent, even if the helper cannot read the end of its input."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/unit'}"}
    with subprocess.Popen(
        [sys.executable, "-c", AGENT, what], stdout=subprocess.PIPE, text=True, env=environment
    ) as agent:
        pid = int(agent.stdout.readline())
        pidfd = os.pidfd_open(pid)
        try:
            while what == "stop" and "T (stopped)" not in Path(f"/proc/{pid}/status").read_text():
                time.sleep(0.005)
            agent.kill()
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            [(_, events)] = poll.poll(1000)
            assert events & select.POLLIN  # once it is reaped, some kernels add POLLHUP
        finally:
            os.close(pidfd)


def test_a_process_whose_parent_has_gone_already_leaves() -> None:
    """A helper whose parent is not the agent that started it exits at once."""
    main = ROOT / "agent" / "helper" / "main.py"
    command = [sys.executable, "-I", str(main), "no_such_module:none", "1", "1", os.pathsep.join(sys.path)]
    done = subprocess.run(command, stdin=subprocess.PIPE, capture_output=True, timeout=LONG, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_module_is_imported_without_its_packages_code() -> None:
    """A helper imports its own module (here the reader of RAS reports) without the exporter in the same package."""
    load = "from agent.helper.serve import _load; _load('exporters.ras.report.json_report:read')"
    code = f"{load}; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "exporters.ras.report.model" in loaded
    assert not {"agent.sdk.exporter", "asyncio", "prometheus_client", "exporters.ras.exporter"} & loaded
