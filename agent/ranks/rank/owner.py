"""Whose process it is, by what a job cannot forge. Pure; what is read for it: exporters/process/ownership.py."""

from typing import Literal

import msgspec

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
