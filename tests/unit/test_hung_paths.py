"""File systems that hang: which are left out, for which paths, and until when."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest
from lent import until
from scripted import Idle, Section, plan, state_file, supervisor

from agent.sdk.exporter import Context
from agent.tail import hung_paths
from agent.tail.hung_paths import HungDevices, PathGuard

OWN = """1 0 8:1 / / rw - ext4 /dev/sda1 rw
2 1 0:41 / /lustre rw,relatime shared:1 - lustre mds:/fs rw
3 1 0:42 / /mnt/a\\040b rw - nfs4 server:/ rw
4 2 0:43 / /lustre/inner rw - tmpfs t rw
5 4 0:44 / /lustre/inner rw - tmpfs over rw
"""
CONTAINER = "7 0 0:50 / / rw - overlay o rw\n8 7 0:41 /jobs /data rw - lustre mds:/fs rw\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Provide a /proc with the mounts of the agent and of a container's process."""
    for name, text in {
        "self/mountinfo": OWN,
        "9/mountinfo": CONTAINER,
        "9/fdinfo/1": "pos:\t0\nflags:\t0100001\nmnt_id:\t8\n",
        "9/fdinfo/2": "pos:\t0\nmnt_id:\t7\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_path_has_the_device_of_its_mount(proc: Path) -> None:
    """The device of a path is that of the innermost, last mount; 0 for the root file system and for unknown mounts."""
    expected = {
        "/lustre/x/y": 41, "/lustre": 41, "/lustrex": 0, "/mnt/a b/x": 42, "/lustre/inner/x": 44, "/var/log": 0,
        f"{proc}/9/root/data/x": 41, f"{proc}/9/root/x": 0, f"{proc}/9/fd/1": 41, f"{proc}/9/fd/2": 0,
        f"{proc}/9/fd/3": 0, f"{proc}/8/root/data/x": 0, f"{proc}/9": 0,
    }  # fmt: skip
    devices = HungDevices(proc)
    assert {path: devices.device_of(path) for path in expected} == {
        path: os.makedev(0, minor) if minor else 0 for path, minor in expected.items()
    }


def test_a_hung_file_system_is_left_out_until_it_answers(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a hung call, all guards refuse paths of its file system, and accept them when the call has returned."""
    monkeypatch.setattr(hung_paths, "HUNG_SECONDS", -1.0)
    devices = HungDevices(proc)
    hung, other = PathGuard(devices), PathGuard(devices)
    with hung.using("/lustre/outer"):
        with hung.using("/lustre/x"):
            use = hung.hung()
            assert use is not None and hung.leave_out(use)
            assert devices.add("/lustre/x", time.monotonic()) is None, "this call should have been refused"
            for path in ("/lustre/y", f"{proc}/9/fd/1"):
                with pytest.raises(OSError, match="down"), other.using(path):
                    pass
            assert other.why().startswith(f"{proc}/9/fd/1 is not read")
            with other.using("/lustre/inner/x"):
                pass
        assert hung.hung() is not None, "the outer call is still running"
    assert (hung.hung(), other.why()) == (None, "")
    with other.using("/lustre/y"):
        pass


def test_only_the_call_that_hangs_is_left_out(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The root file system, and a call that has returned meanwhile, are not left out; an answer begins a new call."""
    guard = PathGuard(HungDevices(proc))
    with guard.using("/var/log/x"):
        assert guard.hung() is None
        monkeypatch.setattr(hung_paths, "HUNG_SECONDS", -1.0)
        use = guard.hung()
        assert use is not None and not guard.leave_out(use) and guard.hung() is None
        guard.note_answer()
        assert guard.hung() is not None
    assert not guard.leave_out(use)
    guard.close()
    with pytest.raises(OSError, match="down"), guard.using("/lustre/x"):
        pass


def test_calls_that_hang_at_once_are_limited(proc: Path) -> None:
    """Two exporters that hang in one file system each get a new run; calls beyond the limit do not."""
    devices = HungDevices(proc)
    calls = [devices.add("/lustre/x", since=-1.0) for _ in range(hung_paths.MAX_HUNG)]
    assert None not in calls and devices.add("/mnt/a b/x", since=-1.0) is None
    for call in calls[1:]:
        devices.remove(call)
    assert devices.has("/lustre/y") and devices.add("/mnt/a b/x", since=-1.0) is not None


class Reader(Idle):
    """An exporter whose thread reads one path after the other; a path below /lustre hangs until ``released``."""

    def __init__(self, released: threading.Event) -> None:
        self._released = released
        self.calls: list[str] = []

    async def start(self, ctx: Context) -> None:
        self.ctx = ctx
        self._thread = ctx.thread("reader")

    async def update(self) -> None:
        await self._thread.call(self._read)

    def _read(self) -> None:
        for path in ("/var/log/x", "/lustre/x", "/var/log/y"):
            try:
                with self.ctx.paths.using(path):
                    hangs = path.startswith("/lustre") and not self._released.wait(30.0)
                    assert not hangs
                    self.calls.append(path)
            except OSError:
                self.calls.append(f"not {path}")


async def test_an_exporter_that_hangs_is_renewed(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new run reads the other file systems, and the hung one when the old run's call has returned."""
    monkeypatch.setattr(hung_paths, "HUNG_SECONDS", 0.02)
    monkeypatch.setattr("agent.app.supervisor.TICK_SECONDS", 0.01)
    released, runs = threading.Event(), list[Reader]()

    def make(_name: str, _section: Section) -> Reader:
        runs.append(Reader(released))
        return runs[-1]

    agent = supervisor(state_file())
    agent._lender.hung_devices._proc = os.fsencode(proc)
    await agent.begin(plan(make, interval=0.01, drain=0.05, a=Section()))
    ticks = asyncio.ensure_future(agent.run(lambda: None))
    await until(lambda: len(runs) == 2 and len(runs[1].calls) >= 6)
    assert runs[0].calls == ["/var/log/x"]
    assert set(runs[1].calls) == {"/var/log/x", "not /lustre/x", "/var/log/y"}
    assert "/lustre/x is not read" in agent.running["a"].why
    released.set()
    await until(lambda: "/lustre/x" in runs[1].calls and len(runs[0].calls) == 3)
    assert runs[0].calls == ["/var/log/x", "/lustre/x", "not /var/log/y"], "a run that has ended reads nothing more"
    assert (len(runs), agent.running["a"].why) == (2, "")
    ticks.cancel()
    await asyncio.wait({ticks})
    await agent.stop()
