"""The service's rights: capabilities of its drop-ins, and the system calls that its unit refuses."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SYSTEMD = ROOT / "deploy" / "systemd"
PROFILE = ROOT / "deploy" / "container" / "seccomp.json"
UNIT = SYSTEMD / "rankwatch.service"
DROP_INS = sorted((SYSTEMD / "rankwatch.service.d").iterdir())
REFUSED = {
    "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd", "ptrace", "perf_event_open",
    "bpf", "userfaultfd", "open_by_handle_at", "@keyring", "@aio", "@privileged", "@resources",
}  # fmt: skip


def values(path: Path, key: str) -> list[str]:
    """Return the values of a key, in order."""
    lines = path.read_text().splitlines()
    return [line.partition("=")[2] for line in lines if line.startswith(f"{key}=")]


def test_the_unit_refuses_what_reads_and_writes_other_processes() -> None:
    """The unit names and refuses all listed system calls; only setpriority is permitted again."""
    first, *rest = values(UNIT, "SystemCallFilter")
    assert first == "@system-service"
    assert {name for value in rest if value.startswith("~") for name in value[1:].split()} == REFUSED
    assert [value for value in rest if not value.startswith("~")] == ["setpriority"]


def test_no_drop_in_gives_a_call_back() -> None:
    """No drop-in changes the filter."""
    assert [path.name for path in DROP_INS if values(path, "SystemCallFilter")] == []


def test_the_containers_profile_refuses_the_same() -> None:
    """The container's profile permits no call that the unit refuses by name."""
    rules = json.loads(PROFILE.read_text())["syscalls"]
    allowed = {name for rule in rules if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]}
    assert {"read", "execve", "capset"} <= allowed
    assert (
        allowed & (REFUSED | {"add_key", "request_key", "keyctl", "io_uring_setup", "unshare", "setns", "mount"})
        == set()
    )


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze not found")
def test_the_containers_profile_is_the_units() -> None:
    """The profile permits the calls of the unit's groups and of runtimes, and no other calls."""
    done = subprocess.run([ROOT / "scripts/seccomp-profile", "--check"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("key", ["CapabilityBoundingSet", "AmbientCapabilities"])
def test_capabilities_of_the_drop_ins(key: str) -> None:
    """No drop-in has a capability that overrides file permissions for writing."""
    assert values(UNIT, key) == [""]
    given = {path.name: values(path, key) for path in DROP_INS if values(path, key)}
    assert given == {"50-other-users.conf": ["CAP_SYS_PTRACE CAP_DAC_READ_SEARCH"], "55-hardware.conf": ["CAP_SYSLOG"]}
