"""Admission, own threads, loop lag, families and labels."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fake_clock import FakeClock
from lent import Admission

from agent.cli.main import _may_serve_tls, _parser
from agent.core.clock import WINDOW_SECONDS, LoopLag
from agent.core.identity import comm_label
from agent.core.threads import OwnThread

ROOT = Path(__file__).parents[2]


def test_admission_per_owner() -> None:
    """One series over an owner's budget is refused and counted; another owner's is not touched; release gives back."""
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
    """The worst lag is shown for a minute, then the worst that came after it."""
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
    """The daemon's modules load no OpenSSL; the command that asks a running agent does what it needs."""
    code = (
        "import sys; import agent.cli.main as m; m.leave_out_openssl(); import agent.app.run; print(sys.modules['ssl'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"
    command = [sys.executable, "-m", "agent", "status", "--web.listen-address=127.0.0.1:9"]
    asked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (asked.returncode, asked.stderr.split(": ", 1)[1][:24]) == (1, "no answer from 127.0.0.1")


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("0x82bdbf0ea6cd18", "82bdbf0ea6cd18"),
        ("0x82bdbf0ea6cd18ff", "82bdbf0ea6cd18"),  # Inspector cuts, RAS does not
        ("82BDBF0EA6CD18FF", "82bdbf0ea6cd18"),
        ("0x1234", "1234"),
        ("0000000000001234", "1234"),  # RAS pads
        ("0x0", "0"),
    ],
)
def test_comm_label(text: str, label: str) -> None:
    """The same communicator gets the same label from every source."""
    assert comm_label(text) == label


async def test_calls_on_a_thread() -> None:
    """A call runs on its own thread; a StopIteration, which no future can carry, is an error and not silence."""
    thread = OwnThread("own")
    assert await thread.call(lambda: threading.current_thread().name) == "own"
    async with asyncio.timeout(5):
        with pytest.raises(RuntimeError, match="StopIteration"):
            await thread.call(lambda: next(iter(())))
        assert await thread.call(lambda: 1) == 1
    thread.stop()
