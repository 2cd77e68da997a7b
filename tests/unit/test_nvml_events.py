"""How many events of the driver are taken at one look."""

from types import SimpleNamespace

import pynvml
import pytest

from exporters.nvml import library
from exporters.nvml.asking import Asker
from exporters.nvml.reading import XidEvent


@pytest.fixture
def storm(monkeypatch: pytest.MonkeyPatch) -> library.NvmlLibrary:
    """NVML, whose driver always has one more Xid 31 of a GPU that nobody knows."""
    event = SimpleNamespace(device=None, eventType=pynvml.nvmlEventTypeXidCriticalError, eventData=31)
    monkeypatch.setattr(pynvml, "nvmlEventSetWait", lambda *_: event)
    monkeypatch.setattr(library, "_address", lambda _: 0)
    found = library.NvmlLibrary()
    found._events = object()
    return found


def test_a_storm_is_bounded(storm: library.NvmlLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly the bound is taken, alike events as one with their count."""
    monkeypatch.setattr(library, "MAX_EVENTS", 7)
    assert storm._drain(Asker()) == [XidEvent("", 31, 7)]


def test_a_slow_driver_does_not_hold_the_look(storm: library.NvmlLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the time for events is over no more are taken."""
    monkeypatch.setattr(library, "DRAIN_SECONDS", -1.0)
    assert storm._drain(Asker()) == []
