"""The hardware of ranks: GPUs, the NICs near them, and the PCI tree."""

import pytest

from agent.hardware.inventory import MAX_GPU_PROCESSES, MAX_GPUS, MAX_NICS, Gpu, Hardware, Nic, nearest_nics
from agent.system.sysfs import pci_address

ROOT, SWITCH, OTHER_SWITCH = "pci0000:00", "0000:00:01.0", "0000:00:02.0"


def gpu(index: int, *path: str, numa: int = -1) -> Gpu:
    """Return a GPU below these bridges."""
    address = f"0000:{0x10 + index:02x}:00.0"
    return Gpu(index, f"GPU-{index}", address, (*path, address) if path else (), numa)


def nic(number: int, *path: str, numa: int = -1) -> Nic:
    """Return a NIC below these bridges."""
    address = f"0000:{0x80 + number:02x}:00.0"
    return Nic(f"mlx5_{number}", address, (*path, address) if path else (), numa)


@pytest.mark.parametrize(
    ("gpus", "nics", "expected"),
    [([], [], {}), ([gpu(0, ROOT)], [], {}),
     ([gpu(0, ROOT, SWITCH, "0000:02:00.0"), gpu(1, ROOT, OTHER_SWITCH, "0000:03:00.0")],
     [nic(0, ROOT, OTHER_SWITCH, "0000:03:01.0"), nic(1, ROOT, SWITCH, "0000:02:01.0")],
     {"GPU-0": "mlx5_1", "GPU-1": "mlx5_0"}),
     ([gpu(0, ROOT, SWITCH, "0000:02:00.0", "0000:03:00.0", "0000:04:00.0")], [nic(0, ROOT, SWITCH, "0000:02:01.0")],
     {"GPU-0": "mlx5_0"}), ([gpu(0, ROOT, SWITCH)], [nic(0, ROOT, OTHER_SWITCH)], {"GPU-0": "mlx5_0"}),
     ([gpu(0, "pci0000:40", numa=1)], [nic(0, "pci0000:60", numa=1)], {"GPU-0": "mlx5_0"}),
     ([gpu(0, "pci0000:40", numa=0)], [nic(0, "pci0000:60", numa=1)], {}),
     ([gpu(0, "pci0000:40")], [nic(0, "pci0000:60")], {}), ([gpu(0)], [nic(0)], {}),
     ([gpu(0, ROOT, SWITCH), gpu(1, ROOT, SWITCH), gpu(2, ROOT, SWITCH)],
     [nic(0, ROOT, SWITCH), nic(1, ROOT, OTHER_SWITCH)],
     {"GPU-0": "mlx5_0", "GPU-1": "mlx5_1", "GPU-2": "mlx5_0"})],
    ids=["nothing", "no NIC", "each its own switch", "switch below switch", "over the host bridge",
     "two roots of one NUMA node", "two NUMA nodes", "two roots, NUMA unknown", "no tree", "more GPUs than NICs"],
)  # fmt: skip
def test_the_nearest_nic(gpus: list[Gpu], nics: list[Nic], expected: dict[str, str]) -> None:
    """A GPU gets the nearest free NIC or shares the nearest if none is free; a NIC of another NUMA node is not near."""
    assert nearest_nics(gpus, nics) == expected


def test_what_lies_beyond_the_limits_is_ignored() -> None:
    """GPUs, NICs and processes above their limits are ignored."""
    hardware = Hardware()
    hardware.of("nvml").observe_gpus([Gpu(index, f"GPU-{index}", "") for index in range(MAX_GPUS + 1)])
    hardware.of("rdma").observe_nics([Nic(f"n{number}", "") for number in range(MAX_NICS + 1)])
    hardware.of("nvml").observe_gpu_processes({pid: ["GPU-0"] for pid in range(1, MAX_GPU_PROCESSES + 2)})
    assert (len(hardware.gpus()), len(hardware.nics())) == (MAX_GPUS, MAX_NICS)
    assert [len(hardware.gpus_of(pid)) for pid in (MAX_GPU_PROCESSES, MAX_GPU_PROCESSES + 1)] == [1, 0]


@pytest.mark.parametrize(("text", "expected"), [
    ("00000000:3B:00.0", "0000:3b:00.0"), ("0000:3b:00.0", "0000:3b:00.0"), ("00010000:3B:00.0\n", "10000:3b:00.0"),
    ("3b:00.0", ""), ("0000:3b:00.8", ""), ("", ""),
])  # fmt: skip
def test_addresses_as_sysfs_writes_them(text: str, expected: str) -> None:
    """NVML's address with eight domain digits and capitals becomes sysfs's form; other text becomes empty."""
    assert pci_address(text) == expected
