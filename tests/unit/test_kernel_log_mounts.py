"""Whether a file system that went read-only still is, by mountinfo and sysfs."""

from pathlib import Path

import pytest

from agent.sdk.exporter import Roots
from exporters.kernel_log import mounts as module
from exporters.kernel_log.mounts import BlockDevice, mounted_devices, read_mounted, still_failed

MOUNTINFO = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw,discard,errors=remount-ro
31 22 8:17 / /data rw,relatime shared:2 master:7 - ext4 /dev/sdb1 ro,errors=remount-ro
32 22 253:0 / /scratch ro,relatime - xfs /dev/mapper/vg-scratch rw,attr2
33 22 0:45 /home /home rw,relatime - btrfs /dev/mapper/vg-home ro,space_cache=v2
34 22 8:33 / /new rw,relatime - ext4 /dev/sdc1 rw,emergency_ro
35 22 8:17 / /again\\040here rw,relatime - ext4 /dev/sdb1 rw
torn line
"""


def test_what_is_mounted_and_how() -> None:
    """A file system is read-only by its own options, not a mount's; btrfs is known by its device's path alone."""
    names = {"sda1": ("8:1", ""), "sdb1": ("8:17", ""), "dm-0": ("253:0", "vg-scratch")}
    names |= {"dm-1": ("253:1", "vg-home"), "sdc1": ("8:33", ""), "sdz9": ("", "")}
    asked = {name: BlockDevice(number, frozenset({name, other} - {""})) for name, (number, other) in names.items()}
    assert mounted_devices(MOUNTINFO, asked) == {"sda1": False, "sdb1": True, "dm-0": False, "dm-1": True, "sdc1": True}


def test_when_a_file_system_is_well_again() -> None:
    """Unmounted, or writable after it was seen read-only; one that never showed so waits to be unmounted."""
    cases: list[tuple[bool, dict[str, bool], dict[str, bool]]] = [
        (False, {"a": True}, {"a": True}),
        (True, {"a": True}, {"a": True}),
        (True, {"a": False}, {}),
        (False, {"a": False}, {"a": False}),
        (False, {}, {}),
        (True, {"b": True}, {}),
    ]
    for was, mounted, after in cases:
        assert still_failed({"a": was}, mounted) == after


def test_the_nodes_mounts_are_asked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Init's mounts are the node's, else our own are read; without either, or beyond the limit, there is no answer."""
    roots = Roots(tmp_path / "proc", tmp_path / "sys", tmp_path / "run")
    assert read_mounted(roots, ["dm-1"]) is None
    named = roots.sys / "class/block/dm-1/dm/name"
    named.parent.mkdir(parents=True)
    named.write_text("vg-home\n")
    (roots.proc / "self").mkdir(parents=True)
    (roots.proc / "self/mountinfo").write_text(MOUNTINFO)
    assert read_mounted(roots, ["dm-1", "sdb1"]) == {"dm-1": True, "sdb1": True}
    (roots.proc / "1").mkdir()
    (roots.proc / "1/mountinfo").write_text("")
    assert read_mounted(roots, ["dm-1"]) == {}
    (roots.proc / "1/mountinfo").write_text(MOUNTINFO)
    (roots.proc / "self/mountinfo").unlink()
    monkeypatch.setattr(module, "MAX_BYTES", len(MOUNTINFO))
    assert read_mounted(roots, ["sdb1"]) == {"sdb1": True}
    monkeypatch.setattr(module, "MAX_BYTES", len(MOUNTINFO) - 1)
    assert read_mounted(roots, ["sdb1"]) is None
