"""What is known of one rank process from /proc, at the time it was found."""

import msgspec

from agent.core.checkpoint import SavedSeconds
from agent.core.identity import ProcessKey
from agent.ranks.rank.owner import Owner


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

    def place(self, hostname: str) -> str:
        """Where its loopback addresses are: on this node, in its network namespace (each pod has its own 127.0.0.1)."""
        return f"{hostname}/{self.network_namespace}" if self.network_namespace else hostname


UNSEEN = ProcessFacts(ProcessKey(0, 0), 0.0, 0, "", "")
"""Of a process that was never seen."""
