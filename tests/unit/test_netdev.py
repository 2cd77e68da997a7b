"""Network devices: which are looked at, and what each value is."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporters.netdev import NetdevConfig, NetdevExporter, devices as module
from exporters.netdev.devices import NetworkDevice, read_devices
from exporters.netdev.exporter import NetdevFound

PREFIX = "rankwatch_netdev_"


def values(device: NetworkDevice) -> dict[str, float]:
    """A device's values by family, without the prefix."""
    return {name.removeprefix(PREFIX): value for name, value in device.values.items()}


def test_the_values_of_the_made_up_node() -> None:
    """Only devices with hardware are there; speeds are bytes per second, and absent without a link."""
    found = {each.name: values(each) for each in read_devices(Path(__file__).parents[1] / "data/netdev/sys")}
    assert list(found) == ["ens1f0np0", "ens1f1np1", "ib0"]
    assert found["ens1f0np0"] == {
        "up": 1,
        "speed_bytes_per_second": 25e9,
        "carrier_changes_total": 3,
        "mtu_bytes": 9000,
        "received_bytes_total": 1000,
        "transmitted_bytes_total": 2000,
        "receive_errors_total": 3000,
        "transmit_errors_total": 4000,
        "receive_dropped_total": 5000,
        "transmit_dropped_total": 6000,
    }
    assert found["ens1f1np1"]["up"] == 0
    assert "speed_bytes_per_second" not in found["ens1f1np1"]
    assert {"up", "speed_bytes_per_second"} & found["ib0"].keys() == set()


@pytest.mark.parametrize(
    ("asked", "shown"),
    [(False, {"up", "carrier_changes_total", "receive_errors_total", "receive_dropped_total"}), (True, None)],
)
def test_which_values_have_series(asked: bool, shown: set[str] | None) -> None:
    """By default what rules and dashboards ask for, and whether it is up; with all_values all that was read."""
    found = read_devices(Path(__file__).parents[1] / "data/netdev/sys")
    rendered = NetdevExporter(NetdevConfig(all_values=asked)).render(NetdevFound(found, {}))
    names = {metric.family.name.removeprefix(PREFIX) for metric in rendered if ("ens1f0np0",) in metric.labels}
    assert names == (values(found[0]).keys() if shown is None else shown)


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
        (tmp_path / "class/net" / name / "mtu").write_text("many\n")
    assert [(each.name, each.values) for each in read_devices(tmp_path)] == [("a", {}), ("b", {})]
    monkeypatch.setattr(module, "MAX_DEVICES", 1)
    assert [each.name for each in read_devices(tmp_path)] == ["a"]
