"""Network devices: which are looked at, and what each value is."""

from pathlib import Path

import pytest

from exporters.netdev import exporter as module
from exporters.netdev.exporter import read_devices


def test_the_driver_of_a_device(tmp_path: Path) -> None:
    """It is told by the name of its folder; a device without one has none."""
    for name, driver in (("a", "mlx5_core"), ("b", "")):
        device = tmp_path / "class/net" / name / "device"
        device.mkdir(parents=True)
        if driver:
            (device / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
    assert [device.driver for device in read_devices(tmp_path)] == ["mlx5_core", ""]


def test_what_is_odd_or_too_much_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that are none, values that are none, and one device more than the limit are not there."""
    for name in ("a", "b", 'c"} 1'):
        (tmp_path / "class/net" / name / "device").mkdir(parents=True)
        (tmp_path / "class/net" / name / "carrier_changes").write_text("many\n")
    assert [(device.name, device.values) for device in read_devices(tmp_path)] == [("a", {}), ("b", {})]
    monkeypatch.setattr(module, "MAX_DEVICES", 1)
    assert [device.name for device in read_devices(tmp_path)] == ["a"]
