"""What is known of one rank process from /proc, at the time it was found."""

from typing import Literal

import msgspec

from agent.core.checkpoint import SavedSeconds
from agent.core.identity import ProcessKey

OwnerKind = Literal["pod", "job", "container", "user"]
Proof = Literal["cgroup", "parent", "none"]
"""What names a scheduler's job: a control group that root made, an ancestor that is the scheduler's daemon, nothing."""

_SUFFIX_DIGITS = 8


class Owner(msgspec.Struct, frozen=True):
    """The owner of a process: the first that is proven of its pod, its scheduler's job, its container, its user.

    ``name``: the pod's uid, ``scheduler/job id``, the container's id or the uid. ``namespace`` and ``pod_name`` of a
    pod are empty where they are not known. ``scheduler`` and ``job_id``: the job that ``proof`` names, also where
    another kind of owner comes first. An owner with an empty name is not known.
    """

    kind: OwnerKind = "user"
    name: str = ""
    namespace: str = ""
    pod_name: str = ""
    scheduler: str = ""
    job_id: str = ""
    proof: Proof = "none"

    @property
    def key(self) -> str:
        """Equal for processes of one owner. Pods of one namespace are one: that is Kubernetes' border of trust."""
        if self.kind == "pod" and self.namespace:
            return f"namespace/{self.namespace}"
        return f"{self.kind}/{self.name}"

    def suffix(self, uid: int | None) -> str:
        """What follows a job id that is another owner's: p and 8 digits of the pod's uid, else u and the user's."""
        return f"p{self.name[:_SUFFIX_DIGITS]}" if self.kind == "pod" else f"u{'' if uid is None else uid}"


class ProcessFacts(msgspec.Struct, frozen=True):
    """One rank process.

    ``start_seconds``: since the epoch. ``namespace_pid``: its pid in its own pid namespace. ``user``: the name of its
    real ``uid``, or that number as text while the name is not known. ``evidence``: why it counts as a rank process.
    ``environment``: None where it could not be read, else the variables that are kept. ``network_namespace``: its
    inode, 0 where it could not be read. ``directory``: the one it was found working in, as its mount namespace names
    it; empty where it could not be read. ``session``: its session's id, 0 where it is not known. ``title``: its command
    line, which the process may have changed.
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

    def loopback_host(self, hostname: str) -> str:
        """Where its loopback addresses are: on this node, in its network namespace (each pod has its own 127.0.0.1)."""
        return f"{hostname}/{self.network_namespace}" if self.network_namespace else hostname


UNSEEN = ProcessFacts(ProcessKey(0, 0), 0.0, 0, "", "")
"""Of a process that was never seen."""
