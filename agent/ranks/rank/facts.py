"""Facts about a rank process, read from /proc when it was discovered."""

from typing import Literal

import msgspec

from agent.core.checkpoint import SavedSeconds
from agent.core.identity import ProcessKey

OwnerKind = Literal["pod", "job", "container", "user"]
Proof = Literal["cgroup", "parent", "none"]
"""Proof that a process belongs to a job: a control group made by root, the scheduler's daemon as ancestor, or none."""


class Owner(msgspec.Struct, frozen=True):
    """The owner of a process: its proven pod, else the proven job of its scheduler, else its container, else its user.

    ``name``: the pod's uid, ``scheduler/job id``, the container's id or the user's uid; empty if unknown.
    ``namespace``: the pod's namespace; empty if unknown. ``scheduler`` and ``job_id``: the proven job, see ``proof``.
    """

    kind: OwnerKind = "user"
    name: str = ""
    namespace: str = ""
    scheduler: str = ""
    job_id: str = ""
    proof: Proof = "none"

    @property
    def key(self) -> str:
        """Return the owner's key. Pods of one namespace share a key: Kubernetes' border of trust is the namespace."""
        if self.kind == "pod" and self.namespace:
            return f"namespace/{self.namespace}"
        return f"{self.kind}/{self.name}"

    def is_unproven(self) -> bool:
        """Return True for a container or a user: nothing proves a job."""
        return self.kind in ("container", "user")

    def suffix(self, uid: int | None) -> str:
        """Return the suffix for a job id that another owner has: p and 8 digits of the pod's uid, or u and the uid."""
        return f"p{self.name[:8]}" if self.kind == "pod" else f"u{'' if uid is None else uid}"


class ProcessFacts(msgspec.Struct, frozen=True):
    """Facts about one rank process.

    ``start_seconds``: since the epoch. ``namespace_pid``: pid in its own pid namespace. ``user``: name of its real
    ``uid``, or the number as text while the name is unknown. ``evidence``: why it counts as a rank process.
    ``environment``: the kept variables; None if unreadable. ``network_namespace``: inode, 0 if unreadable.
    ``directory``: its working directory at its discovery, in its own mount namespace; empty if unreadable. ``session``:
    session id, 0 if unknown. ``title``: its command line; the process can have changed it.
    """

    key: ProcessKey
    start_seconds: SavedSeconds
    namespace_pid: int
    user: str
    evidence: str
    environment: dict[str, str] | None = None
    cgroup: str = ""
    pod: str = ""
    container: str = ""
    network_namespace: int = 0
    directory: str = ""
    uid: int | None = None
    owner: Owner = Owner()
    parent_pid: int = 0
    session: int = 0
    title: str = ""


UNSEEN = ProcessFacts(ProcessKey(0, 0), 0.0, 0, "", "")
"""Facts that stand for a process that was never seen."""
