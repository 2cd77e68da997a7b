"""The rank table's section of the checkpoint."""

import msgspec

from agent.core.checkpoint import SavedCount, SavedSeconds
from agent.core.identity import WriterKey
from agent.ranks.liveness.job_line import JobLine
from agent.ranks.rank.process import RankProcess
from agent.ranks.writers import WriterRecord


class SavedTable(msgspec.Struct):
    """The saved rank table; ``saved_at`` is monotonic; ``schedulers``: those with a proven job on this node."""

    processes: list[RankProcess]
    writer_keys: list[tuple[WriterKey, WriterRecord]]
    conflicts: SavedCount
    saved_at: SavedSeconds = 0.0
    owner_conflicts: SavedCount = 0
    schedulers: list[str] = []
    jobs: dict[str, JobLine] = {}


def decode(section: bytes) -> SavedTable:
    """Take back what ``RankTable.dump`` gave earlier in this boot; raises ValueError when it cannot be read.

    Processes that ran count as unconfirmed: whether they still do is not known.
    """
    saved = msgspec.msgpack.decode(section, type=SavedTable)
    for process in saved.processes:
        process.confirmed = process.exited_at is not None
        process.silence = None
        if process.slots and not process.shown_job_id:  # from before ids had owners
            shown = next((label.job_id for label in process.slots if label is not None), "")
            process.plain_job_id = process.shown_job_id = shown
        if process.exited_at is None and process.unproven_since is None:
            process.unproven_since = saved.saved_at
    return saved
