"""Reads AMD's GPUs from /sys/class/drm and /sys/class/kfd (Documentation/gpu/amdgpu of the kernel). Blocking.

Every attribute stands for itself: one that is missing or that the driver refuses costs nothing else.
"""

from __future__ import annotations

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
MAX_FIRMWARES = 64
AMD = "0x1002"

_CARD = re.compile(r"card\d{1,4}")
_BLOCK = re.compile(r"([a-z0-9_]{1,32})_err_count")
_COUNT = re.compile(r"^(ue|ce|de): (\d{1,18})$", re.MULTILINE)
_SPEED = re.compile(r"(\d{1,3}(?:\.\d)?) GT/s")
_VERSION = re.compile(r"[\w.+~-]{1,64}", re.ASCII)
_FIRMWARE = re.compile(r"([a-z0-9_]{1,32})_fw_version")
_UNIQUE_ID = re.compile(r"[0-9a-fA-F]{1,32}")
_LOCATION = re.compile(r"^location_id (\d{1,10})$", re.MULTILINE)
_DOMAIN = re.compile(r"^domain (\d{1,10})$", re.MULTILINE)
_GENERATIONS = {
    "2.5": 1,
    "5.0": 2,
    "5": 2,
    "8.0": 3,
    "8": 3,
    "16.0": 4,
    "16": 4,
    "32.0": 5,
    "32": 5,
    "64.0": 6,
    "64": 6,
}
"""By transfer rate in GT/s (PCI Express Base Specification)."""


class RawGpu(msgspec.Struct, frozen=True):
    """One GPU. ``values``: numbers as the driver gives them, by attribute; what cannot be read is not there.

    ``sensors``: of hwmon by kind and label (temp/junction); ``errors``: by block and kind (ue, ce, de).
    ``firmware``: versions by the part that runs it (smc, sos, mec ...), of the parts that have one.
    """

    pci: str
    pci_path: tuple[str, ...]
    numa: int
    unique_id: str
    name: str
    hive: str
    values: dict[str, float]
    sensors: dict[str, float]
    errors: dict[str, dict[str, int]]
    table: Table | None = None
    vbios: str = ""
    firmware: dict[str, str] = {}


_NUMBERS = {
    "busy_percent": "gpu_busy_percent",
    "memory_busy_percent": "mem_busy_percent",
    "memory_bytes": "mem_info_vram_total",
    "memory_used_bytes": "mem_info_vram_used",
    "pcie_replays": "pcie_replay_count",
    "pcie_width": "current_link_width",
    "pcie_max_width": "max_link_width",
}
_SPEEDS = {"pcie_generation": "current_link_speed", "pcie_max_generation": "max_link_speed"}
_SENSORS = {"temp": ("input", "crit", "emergency"), "power": ("average", "input", "cap"), "freq": ("input",)}


def read_gpus(sys_root: Path, *, firmware: bool = False) -> list[RawGpu]:
    """All of AMD's GPUs by PCI address; with the versions of their firmware where that is asked for."""
    root = sys_root / "class/drm"
    devices = [root / name / "device" for name in sysfs.entries(root) if _CARD.fullmatch(name)]
    ours = [device for device in devices if sysfs.read_text(device / "vendor") == AMD]
    return sorted((_gpu(device, firmware=firmware) for device in ours[:MAX_GPUS]), key=lambda gpu: gpu.pci)


def _gpu(device: Path, *, firmware: bool) -> RawGpu:
    path, numa = pci_path(device), sysfs.read_number(device / "numa_node")
    values = {name: sysfs.read_number(device / file) for name, file in _NUMBERS.items()}
    values |= {name: _generation(sysfs.read_text(device / file)) for name, file in _SPEEDS.items()}
    unique_id = sysfs.read_text(device / "unique_id") or ""
    return RawGpu(
        pci=pci_address(path[-1]) if path else "",
        pci_path=path,
        numa=-1 if numa is None else numa,
        unique_id=unique_id.lower() if _UNIQUE_ID.fullmatch(unique_id) else "",
        name=(sysfs.read_text(device / "product_name") or "")[:64],
        hive=(sysfs.read_text(device / "xgmi_hive_info/xgmi_hive_id") or "")[:32],
        values={name: float(value) for name, value in values.items() if value is not None and value >= 0},
        sensors=_sensors(device / "hwmon"),
        errors=_errors(device / "ras"),
        table=read_table(sysfs.read_bytes(device / "gpu_metrics") or b""),
        vbios=_version(device / "vbios_version"),
        firmware=_firmware(device / "fw_version") if firmware else {},
    )


def read_driver(sys_root: Path) -> str:
    """The driver's version; empty where it is the kernel's own, which has none."""
    return _version(sys_root / "module/amdgpu/version")


def read_rocm(rocm: Path) -> str:
    """The version of the ROCm that is installed in ``rocm``; empty where there is none.

    Its core package writes .info/version there, or below ``core`` from ROCm 7.13 on (ROCm/rocm-systems#7011).
    """
    return _version(rocm / ".info/version") or _version(rocm / "core/.info/version")


def _firmware(folder: Path) -> dict[str, str]:
    """By part; the driver says 0x00000000 of parts that this GPU does not have."""
    found: dict[str, str] = {}
    for name in sysfs.entries(folder)[:MAX_FIRMWARES]:
        part = _FIRMWARE.fullmatch(name)
        version = _version(folder / name) if part is not None else ""
        if part is not None and version.strip("0x"):
            found[part[1]] = version
    return found


def _version(path: Path) -> str:
    text = sysfs.read_text(path) or ""
    return text if _VERSION.fullmatch(text) else ""


def _generation(text: str | None) -> int | None:
    match = _SPEED.match(text or "")
    return _GENERATIONS.get(match[1]) if match else None


def _sensors(root: Path) -> dict[str, float]:
    """By kind, label and what of it: temp/junction/input; without a label, by number."""
    found = {}
    for folder in sysfs.entries(root)[:1]:
        for kind, parts in _SENSORS.items():
            for number in range(1, MAX_SENSORS + 1):
                label = sysfs.read_text(root / folder / f"{kind}{number}_label")
                for part in parts:
                    value = sysfs.read_number(root / folder / f"{kind}{number}_{part}")
                    if value is not None:
                        found[f"{kind}/{(label or str(number)).lower()[:16]}/{part}"] = float(value)
    return found


def _errors(folder: Path) -> dict[str, dict[str, int]]:
    """By block: uncorrected (ue), corrected (ce) and deferred (de) errors since the driver was loaded."""
    found: dict[str, dict[str, int]] = {}
    for name in sysfs.entries(folder)[: 4 * MAX_BLOCKS]:
        block = _BLOCK.fullmatch(name)
        if block is not None and len(found) < MAX_BLOCKS:
            counts = {kind: int(count) for kind, count in _COUNT.findall(sysfs.read_text(folder / name) or "")}
            if counts:
                found[block[1]] = counts
    return found


def read_users(sys_root: Path) -> dict[int, list[str]]:
    """Which processes have memory on which GPUs: PCI addresses by pid, as the kernel's KFD counts."""
    root = sys_root / "class/kfd/kfd"
    addresses = _kfd_addresses(root / "topology/nodes")
    found: dict[int, list[str]] = {}
    for pid in [name for name in sysfs.entries(root / "proc") if name.isdecimal()][:MAX_PROCESSES]:
        used = [
            address
            for gpu_id, address in addresses.items()
            if (sysfs.read_number(root / "proc" / pid / f"vram_{gpu_id}") or 0) > 0
        ]
        if used:
            found[int(pid)] = used
    return found


def _kfd_addresses(nodes: Path) -> Mapping[int, str]:
    found: dict[int, str] = {}
    for node in sysfs.entries(nodes)[: 2 * MAX_GPUS]:
        gpu_id = sysfs.read_number(nodes / node / "gpu_id")
        properties = sysfs.read_text(nodes / node / "properties") or ""
        location, domain = _LOCATION.search(properties), _DOMAIN.search(properties)
        if gpu_id and location:  # 0 is a CPU's
            place, number = int(location[1]), int(domain[1]) if domain else 0
            found[gpu_id] = f"{number:04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"
    return found
