"""Reads AMD GPUs from /sys/class/drm and /sys/class/kfd (see Documentation/gpu/amdgpu of the kernel). Blocking.

The attributes are independent: a missing or unreadable attribute loses only its own value.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from agent.sdk.system import pci_address, pci_path, sysfs
from exporters.amdgpu.metrics_table import Table, read_table

MAX_GPUS = 128
MAX_BLOCKS = 64
MAX_SENSORS = 16
MAX_PROCESSES = 1024
AMD = "0x1002"

_VERSION = re.compile(r"[\w.+~-]{1,64}", re.ASCII)
_CARD = re.compile(r"card\d{1,4}")
_BLOCK = re.compile(r"([a-z0-9_]{1,32})_err_count")
_COUNT = re.compile(r"^(ue|ce|de): (\d{1,18})$", re.MULTILINE)
_UNIQUE_ID = re.compile(r"[0-9a-fA-F]{1,32}")
_LOCATION = re.compile(r"^location_id (\d{1,10})$", re.MULTILINE)
_DOMAIN = re.compile(r"^domain (\d{1,10})$", re.MULTILINE)


class RawGpu(msgspec.Struct, frozen=True):
    """One GPU. ``values``: the driver's numbers by attribute; an unreadable number is absent.

    ``sensors``: hwmon values by kind, label and part (temp/junction/input). ``errors``: counts by block and kind.
    """

    pci: str
    pci_path: tuple[str, ...]
    numa: int
    unique_id: str
    name: str
    values: dict[str, float]
    sensors: dict[str, float]
    errors: dict[str, dict[str, int]]
    table: Table | None = None


_NUMBERS = {
    "busy_percent": "gpu_busy_percent",
    "memory_bytes": "mem_info_vram_total",
    "memory_used_bytes": "mem_info_vram_used",
    "pcie_replays": "pcie_replay_count",
    "pcie_width": "current_link_width",
    "pcie_max_width": "max_link_width",
}
_SENSORS = {"temp": ("input", "crit"), "power": ("average", "input", "cap"), "freq": ("input",)}


def read_gpus(sys_root: Path) -> list[RawGpu]:
    """Return all AMD GPUs, in the order of their PCI addresses."""
    root = sys_root / "class/drm"
    devices = [root / name / "device" for name in sysfs.entries(root) if _CARD.fullmatch(name)]
    amd_devices = [device for device in devices if sysfs.read_text(device / "vendor") == AMD]
    return sorted(map(_gpu, amd_devices[:MAX_GPUS]), key=lambda gpu: gpu.pci)


def _gpu(device: Path) -> RawGpu:
    path, numa = pci_path(device), sysfs.read_number(device / "numa_node")
    values = {name: sysfs.read_number(device / file) for name, file in _NUMBERS.items()}
    unique_id = sysfs.read_text(device / "unique_id") or ""
    return RawGpu(
        pci=pci_address(path[-1]) if path else "",
        pci_path=path,
        numa=-1 if numa is None else numa,
        unique_id=unique_id.lower() if _UNIQUE_ID.fullmatch(unique_id) else "",
        name=(sysfs.read_text(device / "product_name") or "")[:64],
        values={name: float(value) for name, value in values.items() if value is not None and value >= 0},
        sensors=_sensors(device / "hwmon"),
        errors=_errors(device / "ras"),
        table=read_table(sysfs.read_bytes(device / "gpu_metrics") or b""),
    )


def _sensors(root: Path) -> dict[str, float]:
    """Return the values by kind, label and part (temp/junction/input). Without a label: the sensor's number."""
    sensors = {}
    for folder in sysfs.entries(root)[:1]:
        for kind, parts in _SENSORS.items():
            for number in range(1, MAX_SENSORS + 1):
                label = sysfs.read_text(root / folder / f"{kind}{number}_label")
                for part in parts:
                    value = sysfs.read_number(root / folder / f"{kind}{number}_{part}")
                    if value is not None:
                        sensors[f"{kind}/{(label or str(number)).lower()[:16]}/{part}"] = float(value)
    return sensors


def _errors(folder: Path) -> dict[str, dict[str, int]]:
    """Return each block's uncorrected (ue), corrected (ce) and deferred (de) errors since the driver was loaded."""
    errors: dict[str, dict[str, int]] = {}
    for name in sysfs.entries(folder)[: 4 * MAX_BLOCKS]:
        block = _BLOCK.fullmatch(name)
        if block is not None and len(errors) < MAX_BLOCKS:
            counts = {kind: int(count) for kind, count in _COUNT.findall(sysfs.read_text(folder / name) or "")}
            if counts:
                errors[block[1]] = counts
    return errors


def read_versions(sys_root: Path, rocm: Path) -> tuple[str, str]:
    """Return the versions of the driver (empty if it is the kernel's own) and of ROCm in the directory ``rocm``.

    ROCm writes its version to .info/version; ROCm 7.13 and newer to core/.info/version (ROCm/rocm-systems#7011).
    """
    driver = sys_root / "module/amdgpu/version"
    return _version(driver), _version(rocm / ".info/version") or _version(rocm / "core/.info/version")


def _version(path: Path) -> str:
    text = sysfs.read_text(path) or ""
    return text if _VERSION.fullmatch(text) else ""


def read_users(sys_root: Path) -> dict[int, list[str]]:
    """Return for each pid the PCI addresses of the GPUs on which the process has memory (from the kernel's KFD)."""
    root = sys_root / "class/kfd/kfd"
    addresses = _kfd_addresses(root / "topology/nodes")
    users: dict[int, list[str]] = {}
    for pid in filter(str.isdecimal, sysfs.entries(root / "proc")):
        used = [
            address
            for gpu_id, address in addresses.items()
            if (sysfs.read_number(root / "proc" / pid / f"vram_{gpu_id}") or 0) > 0
        ]
        if used and len(users) < MAX_PROCESSES:  # any process that opens /dev/kfd is listed
            users[int(pid)] = used
    return users


def _kfd_addresses(nodes: Path) -> Mapping[int, str]:
    addresses: dict[int, str] = {}
    for node in sysfs.entries(nodes)[: 2 * MAX_GPUS]:
        gpu_id = sysfs.read_number(nodes / node / "gpu_id")
        properties = sysfs.read_text(nodes / node / "properties") or ""
        location, domain = _LOCATION.search(properties), _DOMAIN.search(properties)
        if gpu_id and location:  # a CPU has gpu_id 0
            bdf, number = int(location[1]), int(domain[1]) if domain else 0
            addresses[gpu_id] = f"{number:04x}:{bdf >> 8 & 0xFF:02x}:{bdf >> 3 & 0x1F:02x}.{bdf & 7}"
    return addresses
