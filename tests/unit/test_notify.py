import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.core.log import Logger
from agent.core.systemd import Notifier, WatchdogGate, watchdog_interval_seconds

LOG = Logger("notify")
FAILED = "systemd was not notified"


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """Give systemd's end of the notification socket and its $NOTIFY_SOCKET."""
    address = str(tmp_path / "n") if request.param == "path" else f"@rankwatch-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(address if request.param == "path" else f"\0{address[1:]}")
        end.settimeout(5)
        yield end, address


async def test_notifying_does_not_block_the_loop(
    systemd: tuple[socket.socket, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing that is sent from the event loop can block it, also when systemd reads nothing."""
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
    """The gate opens once every beat was seen since it last opened, and says who is missing for how long."""
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
