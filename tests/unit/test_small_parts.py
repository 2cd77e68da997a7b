"""Admission, own threads, loop lag, labels, OpenSSL, and notifications to systemd."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_clock import FakeClock
from lent import Admission

from agent.cli.main import _may_serve_tls, _parser
from agent.core.clock import WINDOW_SECONDS, LoopLag
from agent.core.identity import comm_label
from agent.core.log import Logger
from agent.core.systemd import Notifier, WatchdogGate, watchdog_interval_seconds
from agent.core.threads import OwnThread

ROOT = Path(__file__).parents[2]


def test_admission_per_owner() -> None:
    """Above an owner's budget a series is refused and counted; other owners are unaffected; a release frees budget."""
    admission = Admission(per_rank=10, in_all=100)
    assert admission.admit("a", 10)
    assert not admission.admit("a", 1)
    assert admission.admit("b", 10)
    assert admission.refused == 1
    admission.release("a")
    assert admission.admit("a", 10)
    assert admission.admit("a", 10, ranks=2)
    assert not admission.admit("a", 1, ranks=2)


def test_loop_lag_is_the_last_minutes_worst() -> None:
    """The highest lag of the last minute is shown."""
    clock = FakeClock()
    lag = LoopLag(clock)
    assert lag.seconds() == 0.0
    for value in (0.01, 0.5, 0.02, 0.03, 0.001):
        clock.advance(1.0)
        lag.note(value, clock.now)
    assert lag.seconds() == 0.5
    clock.advance(WINDOW_SECONDS - 2.9)
    assert lag.seconds() == 0.03
    clock.advance(WINDOW_SECONDS)
    assert lag.seconds() == 0.0


@pytest.mark.parametrize(("text", "expected"), [
    ("web: {config_file: /etc/web.yml}", True),
    ("web:\n  config_file: '/etc/web.yml'", True),
    ('web:\n  "config_file" : "/etc/web.yml"', True),
    ("web:\n  config_file: >-\n    /etc/web.yml", True),
    ("web:\n  config_file:\n    /etc/web.yml", True),
    ("web:\n  config_file: !!str /etc/web.yml", True),
    ('web:\n  config_file: ""', False),
    ("", False),
])  # fmt: skip
def test_when_openssl_may_be_needed(tmp_path: Path, text: str, expected: bool) -> None:
    """OpenSSL is left out unless the command line or the configuration names a web file."""
    config = tmp_path / "r.yml"
    config.write_text(text)
    flags = _parser().parse_args(["--config.file", str(config)])
    assert _may_serve_tls(flags) is expected
    assert _may_serve_tls(_parser().parse_args(["--web.config.file", "x"]))
    assert not _may_serve_tls(_parser().parse_args(["--config.file", str(tmp_path / "none")]))


@pytest.mark.slow
def test_the_daemon_does_without_openssl() -> None:
    """Neither the daemon nor the command that queries a running agent loads OpenSSL."""
    code = (
        "import sys; import agent.cli.main as m; m.leave_out_openssl(); import agent.app.run; print(sys.modules['ssl'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"
    command = [sys.executable, "-m", "agent", "status", "--web.listen-address=127.0.0.1:9"]
    asked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (asked.returncode, asked.stderr.split(": ", 1)[1][:24]) == (1, "no answer from 127.0.0.1")


@pytest.mark.parametrize(("text", "label"), [
    ("0x82bdbf0ea6cd18", "82bdbf0ea6cd18"),
    ("0x82bdbf0ea6cd18ff", "82bdbf0ea6cd18"),  # Inspector shortens the hash, RAS does not
    ("82BDBF0EA6CD18FF", "82bdbf0ea6cd18"),
    ("0x1234", "1234"),
    ("0000000000001234", "1234"),  # RAS pads
    ("0x0", "0"),
])  # fmt: skip
def test_comm_label(text: str, label: str) -> None:
    """A communicator gets the same label from every source."""
    assert comm_label(text) == label


async def test_calls_on_a_thread() -> None:
    """A call runs on its own thread; a StopIteration, which a future cannot hold, raises a RuntimeError."""
    thread = OwnThread("own")
    assert await thread.call(lambda: threading.current_thread().name) == "own"
    async with asyncio.timeout(5):
        with pytest.raises(RuntimeError, match="StopIteration"):
            await thread.call(lambda: next(iter(())))
        assert await thread.call(lambda: 1) == 1
    thread.stop()


LOG = Logger("notify")
FAILED = "systemd was not notified"


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """Provide systemd's end of the notification socket and its $NOTIFY_SOCKET."""
    address = str(tmp_path / "n") if request.param == "path" else f"@rankwatch-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(address if request.param == "path" else f"\0{address[1:]}")
        end.settimeout(5)
        yield end, address


async def test_notifying_does_not_block_the_loop(
    systemd: tuple[socket.socket, str], caplog: pytest.LogCaptureFixture
) -> None:
    """A notification never blocks the event loop, even if systemd does not read."""
    notifier = Notifier(systemd[1], LOG)
    for _ in range(2000):
        notifier.send("WATCHDOG=1")
    assert FAILED in caplog.text
    notifier.close()


@pytest.mark.parametrize(("environ", "seconds"), [
    ({}, None),
    ({"WATCHDOG_PID": "7"}, None),
    ({"WATCHDOG_USEC": "30000000"}, 10.0),
    ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 10.0),
    ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None),
])  # fmt: skip
def test_watchdog_interval(environ: dict[str, str], seconds: float | None) -> None:
    """The watchdog is fed at a third of its timeout, if it is meant for this process."""
    assert watchdog_interval_seconds(environ, 7) == seconds


def test_watchdog_is_fed_only_by_all() -> None:
    """The watchdog is fed when all threads have sent a beat; before that, `missing` gives the other threads' ages."""
    now = 100.0
    gate = WatchdogGate(["loop", "render", "supervisor"], lambda: now)
    assert not gate.may_feed()
    gate.beat("loop")
    now = 101.0
    gate.beat("supervisor")
    gate.beat("supervisor")
    assert not gate.may_feed()
    assert gate.missing() == {"render": 1.0}
    gate.beat("render")
    assert gate.missing() == {}
    assert gate.may_feed()
    assert not gate.may_feed()
    now = 103.5
    assert gate.missing() == {"loop": 3.5, "render": 2.5, "supervisor": 2.5}
