"""Writers of records, and the rank table in the checkpoint."""

import msgspec

from agent.core.checkpoint import SavedSeconds
from agent.core.identity import ProcessKey, WriterKey
from agent.ranks.liveness.job_liveness import JobLiveness
from agent.ranks.rank.process import RankProcess

LINK_SECONDS = 60.0
"""How long the agent searches for the process of a new writer."""
WRITER_IDLE_SECONDS = 900.0


def is_record_file(path: str) -> bool:
    """Return True if a file with this name can hold records: `host-pid123.log`, or rotated `host-pid123.log.1`."""
    name = path.rpartition("/")[2]
    return "-pid" in name and (".log" in name or ".jsonl" in name)


class WriterRecord(msgspec.Struct):
    """A writer of records with its process, or the stand-in (``stand_in``) for a process that was never seen.

    ``uid``: owner of its file. An expired writer stays for WRITER_IDLE_SECONDS, so that exporters remove its series.
    """

    seen_at: SavedSeconds
    process: ProcessKey | None = None
    stand_in: RankProcess | None = msgspec.field(default=None, name="unseen")  # its name in checkpoints of 0.1.0
    expired_at: SavedSeconds | None = None
    uid: int | None = None


class SavedTable(msgspec.Struct):
    """The rank table in the checkpoint.

    ``saved_at``: monotonic. ``schedulers``: schedulers with a proven job on this node.
    """

    processes: list[RankProcess]
    writer_keys: list[tuple[WriterKey, WriterRecord]]
    saved_at: SavedSeconds = 0.0
    schedulers: list[str] = []
    jobs: dict[str, JobLiveness] = {}
