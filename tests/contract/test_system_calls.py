"""The list of system calls that the service is refused: one list, in the unit."""

from __future__ import annotations

from pathlib import Path

SYSTEMD = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
UNIT = SYSTEMD / "rankwatch.service"
REFUSED = {
    "process_vm_readv",
    "process_vm_writev",
    "process_madvise",
    "kcmp",
    "pidfd_getfd",
    "ptrace",
    "perf_event_open",
    "bpf",
    "userfaultfd",
    "open_by_handle_at",
    "@keyring",
    "@aio",
    "@privileged",
    "@resources",
}


def filters(path: Path) -> list[str]:
    """The values of SystemCallFilter= in order."""
    lines = path.read_text().splitlines()
    return [line.partition("=")[2] for line in lines if line.startswith("SystemCallFilter=")]


def test_the_unit_refuses_what_reads_and_writes_other_processes() -> None:
    """The whole list is refused by name, whatever groups of this systemd hold; setpriority alone is given back."""
    first, *rest = filters(UNIT)
    assert first == "@system-service"
    assert {name for value in rest if value.startswith("~") for name in value[1:].split()} == REFUSED
    assert [value for value in rest if not value.startswith("~")] == ["setpriority"]


def test_no_drop_in_gives_a_call_back() -> None:
    """No drop-in changes the filter."""
    assert [path.name for path in (SYSTEMD / "rankwatch.service.d").iterdir() if filters(path)] == []
