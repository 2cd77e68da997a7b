"""The ioctl for network devices, with the real kernel."""

import errno
import os

import pytest

from agent.system import ethtool
from agent.system.ethtool import refresh_statistics


def refresh(device: str) -> int:
    """0, or the number of the error."""
    try:
        refresh_statistics(device)
    except OSError as error:
        return error.errno or -1
    return 0


def test_drivers_are_asked() -> None:
    """Each device that there is has statistics or says that it has none; one that is not there is told."""
    assert {refresh(name) for name in os.listdir("/sys/class/net")} <= {0, errno.EOPNOTSUPP}
    assert (refresh("lo"), refresh("none-such0")) == (errno.EOPNOTSUPP, errno.ENODEV)


@pytest.mark.parametrize("name", ["", "x" * 16])
def test_what_is_no_name(name: str) -> None:
    """It is refused before the kernel sees it."""
    with pytest.raises(ValueError, match="not a name"):
        refresh_statistics(name)


def test_room_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """More numbers than there is room for are an error, and nothing else is overwritten."""
    devices = [name for name in os.listdir("/sys/class/net") if refresh(name) == 0]
    monkeypatch.setattr(ethtool, "ROOM_BYTES", 16)
    assert {refresh(name) for name in devices} <= {errno.EFAULT}
