"""Faults that the kernel's log tells of: of which piece of hardware they are, and what ends them."""

from pathlib import Path

import pytest
from kernel_log_node import MLX5, XID, Node

from agent.sdk.exporter import NoData
from agent.sdk.hardware import Gpu
from exporters.kernel_log import exporter as module


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """An empty log."""
    (tmp_path / "kmsg").write_text("")
    return tmp_path / "kmsg"


async def test_faults_of_hardware_without_a_name_yet(log: Path) -> None:
    """A fault told before the hardware was found goes by its address, and to the name as soon as there is one."""
    node = Node(log, named=False)
    node.write(XID, MLX5)
    async with node.running():
        await node.look_again()
        assert node.failed() == {("0000:3b:00.0", "gpu_xid"), ("0000:19:00.0", "nic_fatal")}
        node.hardware.of("nvml").observe_gpus([Gpu(0, "0", "0000:3b:00.0")])
        await node.look_again()
        assert ("0000:3b:00.0", "gpu_xid") in node.failed()
        node.name_hardware()
        await node.look_again()
        assert node.failed() == {("GPU-a", "gpu_xid"), ("mlx5_0", "nic_fatal")}


async def test_faults_get_their_name_after_a_restart_and_without_a_log(log: Path) -> None:
    """Latched under an address in the checkpoint, a fault is renamed by the next agent, even if the log is gone."""
    first = Node(log, named=False)
    first.write(XID)
    await first.look()
    again = Node(log.with_name("none"), first)
    with pytest.raises(NoData):
        await again.look()
    assert again.failed() == {("GPU-a", "gpu_xid")}


async def test_a_loaded_driver_ends_what_it_mends(log: Path) -> None:
    """It ends Xids, lost GPUs (those known by address alone too) and fatal NVSwitch errors, and no NIC's fault."""
    node = Node(log)
    node.write(XID, "NVRM: GPU 0000:86:00.0: GPU has fallen off the bus.", MLX5)
    node.write("nvidia-nvswitch0: SXid (PCI:0000:59:00.0): 23001, Fatal, Link 12 Always Fatal")
    async with node.running():
        await node.look_again()
        nic = ("mlx5_0", "nic_fatal")
        assert node.failed() == {("GPU-a", "gpu_xid"), ("0000:86:00.0", "gpu_lost"), ("", "nvswitch_fatal"), nic}
        node.write("NVRM: loading NVIDIA UNIX x86_64 Kernel Module")
        await node.look_again()
        assert node.failed() == {nic}


@pytest.mark.parametrize(
    "recovery",
    [
        "mlx5_core 0000:19:00.0: mlx5_health_try_recover:338:(pid 9): health recovery succeeded",
        "mlx5_core 0000:19:00.0: firmware version: 16.35.4506",
    ],
)
async def test_a_nic_that_recovers_or_is_probed_anew_is_well(log: Path, recovery: str) -> None:
    """The driver's word of one device ends the fault of that device alone; a recovery that failed fails it again."""
    node = Node(log)
    node.write(MLX5, MLX5.replace("19:", "77:"), "amdgpu 0000:18:00.0: GPU reset begin!. Source:  4", recovery)
    node.write("amdgpu 0000:18:00.0: GPU reset(1) succeeded!")
    async with node.running():
        await node.look_again()
        assert node.failed() == {("0000:77:00.0", "nic_fatal")}
        node.write("mlx5_core 0000:19:00.0: mlx5_health_try_recover:334:(pid 9): health recovery failed")
        await node.look_again()
        assert node.failed() == {("0000:77:00.0", "nic_fatal"), ("mlx5_0", "nic_fatal")}


async def test_each_nfs_server_answers_for_itself(log: Path) -> None:
    """One server's OK does not end another's silence, and a soft mount's timeout is counted alone."""
    node = Node(log)
    node.write("nfs: server a not responding, still trying", "nfs: server b not responding, still trying")
    node.write("nfs: server c not responding, timed out", "nfs: server a OK")
    async with node.running():
        found = await node.look_again()
        assert node.failed() == {("", "nfs_not_responding")}
        assert found["kernel_events_total", "nfs_timed_out", ""] == 1
        node.write("nfs: server b OK")
        await node.look_again()
        assert node.failed() == set()


async def test_a_file_system_is_read_only_until_it_is_not(log: Path) -> None:
    """Mounted read-only it is not well; writable again, unmounted or, by its driver's word, mounted anew it is."""
    node = Node(log)
    bad = {("", "filesystem_read_only")}
    node.mount("22 1 8:1 / / rw - ext4 /dev/sda1 ro\n33 22 253:0 / /x rw - xfs /dev/dm-0 rw\n")
    node.write("EXT4-fs (sda1): Remounting filesystem read-only", "XFS (dm-0): Shutting down filesystem.")
    node.write("BTRFS info (device loop7): forced readonly")
    async with node.running():
        for mounts, lines, failed in (
            ("22 1 8:1 / / rw - ext4 /dev/sda1 ro\n33 22 253:0 / /x rw - xfs /dev/dm-0 rw\n", [], bad),
            ("22 1 8:1 / / rw - ext4 /dev/sda1 ro\n33 22 253:0 / /x rw - xfs /dev/dm-0 rw\n", [], bad),
            ("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n33 22 253:0 / /x rw - xfs /dev/dm-0 rw\n", [], bad),
            ("33 22 253:0 / /x rw - xfs /dev/dm-0 rw\n", ["XFS (dm-0): Unmounting Filesystem"], set()),
            ("", ["XFS (dm-0): Filesystem has been shut down due to log error (0x2)."], bad),
            ("", [], set()),
        ):
            node.mount(mounts)
            node.write(*lines)
            await node.look_again()
            assert node.failed() == failed


async def test_file_systems_stay_failed_while_mounts_cannot_be_read(log: Path) -> None:
    """Without mountinfo nothing is known to be well, also by the next agent."""
    node = Node(log)
    node.write("EXT4-fs (sda1): Remounting filesystem read-only")
    await node.look()
    again = Node(log, node)
    await again.look()
    assert again.failed() == {("", "filesystem_read_only")}


async def test_parts_beyond_the_limit_are_not_followed(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One server more than the limit is counted, and the check ends with those that are followed."""
    monkeypatch.setattr(module, "MAX_PARTS", 2)
    node = Node(log)
    node.write(*(f"nfs: server {name} not responding, still trying" for name in "abc"))
    node.write("nfs: server a OK")
    async with node.running():
        assert (await node.look_again())["kernel_events_total", "nfs_not_responding", ""] == 3
        assert node.failed() == {("", "nfs_not_responding")}
        node.write("nfs: server b OK")
        await node.look_again()
        assert node.failed() == set()
