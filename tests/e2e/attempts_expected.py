"""The expected replies to ``attempts.py`` under the system call filters of the unit and of the container."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

OTHER_USERS = "50-other-users.conf"
FILTER = "ENOANO"
"""The errno of the filter in this test; no attempt gets it from the kernel."""


class Way(NamedTuple):
    """The drop-in that permits an attempt (None: none), the reply without the drop-in, the reply without the filter."""

    opened_by: str | None
    refusal: str
    unfiltered: str

    def answer(self, drop_ins: Collection[str]) -> str:
        """Return the expected reply if the unit has these drop-ins."""
        return "done" if self.opened_by in drop_ins else self.refusal


WAYS = {
    "process_vm_writev": Way(None, FILTER, "done"),
    "process_vm_readv": Way(None, FILTER, "done"),
    "process_madvise": Way(None, FILTER, "EPERM"),
    "process_mrelease": Way(None, FILTER, "EINVAL"),
    "kcmp": Way(None, FILTER, "done"),
    "pidfd_getfd": Way(None, FILTER, "done"),
    "ptrace": Way(None, FILTER, "done"),
    "perf_event_open": Way(None, FILTER, "done"),
    "bpf": Way(None, FILTER, "E2BIG"),
    "userfaultfd": Way(None, FILTER, "done"),
    "keyctl": Way(None, FILTER, "done"),
    "add_key": Way(None, FILTER, "done"),
    "request_key": Way(None, FILTER, "done"),
    "io_uring_setup": Way(None, FILTER, "done"),
    "open_by_handle_at": Way(None, FILTER, "done"),
    "mount": Way(None, FILTER, "EPERM"),
    "setuid": Way(None, FILTER, "EPERM"),
    "unshare": Way(None, "EPERM", "EPERM"),
    "setns": Way(None, "EPERM", "EPERM"),
    "kill": Way(None, "EPERM", "EPERM"),
    "setpriority": Way(None, "EPERM", "EPERM"),
    "prlimit": Way(None, "EPERM", "EPERM"),
    "memory, written as a file": Way(None, "EACCES", "EACCES"),
    "memory, read as a file": Way(OTHER_USERS, "EACCES", "done"),
    "environment": Way(OTHER_USERS, "EACCES", "done"),
    "memory file, written": Way(OTHER_USERS, "EACCES", "done"),
    "root's file, written": Way(None, "EACCES", "EACCES"),
    "root's file by its root, written": Way(None, "EACCES", "EACCES"),
    "root's file by its root, read": Way(OTHER_USERS, "EACCES", "done"),
    "all users' file, written": Way(None, "EROFS", "EROFS"),
    "all users' file by its root, written": Way(OTHER_USERS, "EACCES", "done"),
}
