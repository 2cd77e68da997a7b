"""Network devices: which are looked at, and what each value is."""

from pathlib import Path

import pytest
from client_metrics import samples

from exporters.netdev import NetdevConfig, NetdevExporter, exporter as module
from exporters.netdev.exporter import NetdevFound, read_devices


def test_the_values_of_the_made_up_node() -> None:
    """Only devices with hardware are there; each value has a series."""
    found = read_devices(Path(__file__).parents[1] / "data/netdev/sys")
    assert [each.name for each in found] == ["ens1f0np0", "ens1f1np1", "ib0"]
    rendered = NetdevExporter(NetdevConfig()).render(NetdevFound(found, {}))
    shown = {each.name: each.value for each in samples(rendered) if each.labels["device"] == "ens1f0np0"}
    assert shown == {
        "rankwatch_netdev_carrier_changes_total": 3,
        "rankwatch_netdev_receive_errors_total": 3000,
        "rankwatch_netdev_receive_dropped_total": 5000,
    }


def test_the_driver_of_a_device(tmp_path: Path) -> None:
    """It is told by the name of its folder; a device without one has none."""
    for name, driver in (("a", "mlx5_core"), ("b", "")):
        device = tmp_path / "class/net" / name / "device"
        device.mkdir(parents=True)
        if driver:
            (device / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
    assert [each.driver for each in read_devices(tmp_path)] == ["mlx5_core", ""]


def test_what_is_odd_or_too_much_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that are none, values that are none, and one device more than the limit are not there."""
    for name in ("a", "b", 'c"} 1'):
        (tmp_path / "class/net" / name / "device").mkdir(parents=True)
        (tmp_path / "class/net" / name / "carrier_changes").write_text("many\n")
    assert [(each.name, each.values) for each in read_devices(tmp_path)] == [("a", {}), ("b", {})]
    monkeypatch.setattr(module, "MAX_DEVICES", 1)
    assert [each.name for each in read_devices(tmp_path)] == ["a"]
