"""Reads /sys/class/infiniband (see Documentation/ABI/stable/sysfs-class-infiniband of the kernel). Blocking.

The attributes are independent: a missing or unreadable attribute loses only its own value.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from agent.sdk.system import pci_address, pci_path, sysfs

MAX_DEVICES = 128
MAX_PORTS = 16
MAX_COUNTERS = 256  # Limit of counters in each folder of a port; mlx5 has about 60
WORD_BYTES = 4  # port_xmit_data and port_rcv_data count words of four bytes (IBTA, PortCounters)

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_COUNTER = re.compile(r"[A-Za-z0-9_]{1,64}")
_VERSION = re.compile(r"[\w.+~-]{1,64}", re.ASCII)
_NUMBERED = re.compile(r"(\d{1,2}): [A-Za-z_]")
_RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec")
_SETTINGS = {"lifespan"}  # Files in the folder of the hardware counters that are not counters


class Port(msgspec.Struct, frozen=True):
    """A port. An unreadable value is None, an unreadable counter is absent.

    ``state``: 4 is ACTIVE. ``rate``: bytes per second. ``netdev``: the network device of an Ethernet port.
    """

    number: int
    state: int | None
    rate: float | None
    link_layer: str
    netdev: str
    counters: dict[str, int]
    hardware_counters: dict[str, int]


class RdmaDevice(msgspec.Struct, frozen=True):
    """An RDMA device: its driver and firmware, its place in the PCI tree, and its ports.

    ``driver_version``: empty for a driver of the kernel itself. ``physical``: the device belongs to a real PCI
    function. It is no SR-IOV virtual function, no subfunction (``pci`` is its parent's), and no software device such as
    rxe and siw (without ``pci``).
    """

    name: str
    driver: str
    firmware: str
    board: str
    pci: str
    pci_path: tuple[str, ...]
    numa: int
    physical: bool
    ports: tuple[Port, ...]
    driver_version: str = ""


def hidden_functions(sys_root: Path, functions: Iterable[str]) -> frozenset[str]:
    """Return the PCI functions whose device may be in another network namespace, where sysfs hides it.

    That is possible only in exclusive mode (see `rdma system`), and only for a function that has a driver.
    """
    if sysfs.read_text(sys_root / "module/ib_core/parameters/netns_mode") != "N":  # Y: all namespaces share the devices
        return frozenset()
    functions_root = sys_root / "bus/pci/devices"
    return frozenset(function for function in functions if os.path.lexists(functions_root / function / "driver"))


def read_devices(sys_root: Path) -> list[RdmaDevice]:
    """Return the devices, physical devices first, then by name."""
    root = sys_root / "class/infiniband"
    names = [name for name in sysfs.entries(root) if _NAME.fullmatch(name)]
    names.sort(key=lambda name: not _is_physical(root / name / "device"))  # there may be hundreds of virtual devices
    return [_device(root / name, name, sys_root / "module") for name in names[:MAX_DEVICES]]


def _device(folder: Path, name: str, modules: Path) -> RdmaDevice:
    driver = _link_name(folder / "device/driver")
    version = sysfs.read_text(modules / driver / "version") or "" if driver else ""
    path = pci_path(folder / "device")
    numbers = sorted(int(number) for number in sysfs.entries(folder / "ports") if number.isdecimal())
    numa = sysfs.read_number(folder / "device/numa_node")
    return RdmaDevice(
        name=name,
        driver=driver,
        driver_version=version if _VERSION.fullmatch(version) else "",
        firmware=(sysfs.read_text(folder / "fw_ver") or "")[:64],
        board=(sysfs.read_text(folder / "board_id") or "")[:64],
        pci=pci_address(path[-1]) if path else "",
        pci_path=path,
        numa=-1 if numa is None else numa,
        physical=_is_physical(folder / "device"),
        ports=tuple(_port(folder / "ports" / str(number), number) for number in numbers[:MAX_PORTS]),
    )


def _is_physical(device: Path) -> bool:
    """Return True when the link leads to a PCI function that is not a virtual function."""
    function = Path(os.path.realpath(device)).name
    return pci_address(function) != "" and not os.path.lexists(device / "physfn")


def _port(folder: Path, number: int) -> Port:
    rate = _RATE.match(sysfs.read_text(folder / "rate") or "")
    return Port(
        number=number,
        state=_numbered(folder / "state"),
        rate=float(rate[1]) * 1e9 / 8 if rate else None,
        link_layer=(sysfs.read_text(folder / "link_layer") or "")[:32],
        netdev=(sysfs.read_text(folder / "gid_attrs/ndevs/0") or "")[:16],
        counters=_counters(folder / "counters"),
        hardware_counters=_counters(folder / "hw_counters"),
    )


def _numbered(path: Path) -> int | None:
    """Return the number of a state: 4 for `4: ACTIVE`."""
    match = _NUMBERED.match(sysfs.read_text(path) or "")
    return int(match[1]) if match else None


def _counters(folder: Path) -> dict[str, int]:
    names = [name for name in sysfs.entries(folder) if _COUNTER.fullmatch(name) and name not in _SETTINGS]
    values = {name: sysfs.read_number(folder / name) for name in names[:MAX_COUNTERS]}
    return {name: value for name, value in values.items() if value is not None and value >= 0}


def _link_name(path: Path) -> str:
    try:
        return path.readlink().name[:32]
    except OSError:
        return ""
