"""The ends of a job's Inspector files, for a bundle of evidence: each rank's last operations, as the plugin wrote them.

The files are the history, so the agent keeps nothing in memory. Blocking; runs in the reader's thread.
"""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from agent.sdk.evidence import Offered, summary
from agent.sdk.files import FollowedFile
from agent.sdk.ranks import RankLabel
from exporters.inspector.format.records import P2PPerf, communicator, decode_lines
from exporters.inspector.totals.accumulators import Member

TAIL_BYTES = 64 * 1024  # Read from a file's end: about 200 operations
MAX_FILES = 64
MAX_TRIED_LINES = 256
"""Limit of a file's last lines that are searched for an operation: users can write other short lines."""
MAX_STATEMENT_CHARACTERS = 200
SHOWN_SHARE, BLAMED_SHARE = 0.03, 0.1
"""A rank is shown or blamed if the other ranks waited for it alone for at least this share of the last minute."""
UNNAMED = "unknown"  # The plugin's name of a communicator that the program did not name


class RankFile(NamedTuple):
    """A rank's file. ``members``: each (communicator, rank in it) of the rank, if its process has other ranks too."""

    identity: tuple[int, int]
    members: Collection[tuple[str, int]] = ()


def ends(files: Mapping[tuple[int, int], FollowedFile], ranks: Mapping[str, RankFile]) -> dict[str, bytes]:
    """Return the last lines of each rank's file; a file's last line can be incomplete."""
    last_lines: dict[str, bytes] = {}
    for rank, rank_file in list(ranks.items())[:MAX_FILES]:
        file = files.get(rank_file.identity)
        if file is not None and (end := _end(file)):
            last_lines[rank] = end
    return last_lines


def last_operation(lines: bytes, members: Collection[tuple[str, int]] = ()) -> str:
    """Return the last operation in a file's end, in words; "" if the last lines have none.

    ``members``: if not empty, only lines whose header names one of these (communicator, rank in it) count.
    """
    for line in reversed(lines.rsplit(b"\n", MAX_TRIED_LINES)[-MAX_TRIED_LINES:]):
        for record in decode_lines(line):
            perf, header = record.coll_perf or record.p2p_perf, record.header
            member = header and (communicator(header.id, header.rank, header.n_ranks), header.rank)
            if perf is not None and (not members or member in members):
                is_named = header is not None and header.comm_name not in (None, "", UNNAMED)
                comm = "" if header is None else f", in {header.comm_name if is_named else header.id}"
                about = f" with {perf.peer}" if isinstance(perf, P2PPerf) else f", {perf.coll_msg_size_bytes} bytes"
                return f"{perf.coll} no. {perf.coll_sn}{about}{comm}"[:MAX_STATEMENT_CHARACTERS]
    return ""


def files_of(labels: Mapping[Member, RankLabel], job_id: str) -> dict[str, RankFile]:
    """Return by rank the newest file of each rank of a job."""
    members: defaultdict[tuple[int, int], defaultdict[str, list[tuple[str, int]]]]
    members = defaultdict(lambda: defaultdict(list))
    for (key, comm, comm_rank), label in labels.items():
        if label.job_id == job_id:
            members[key.device, key.inode][label.rank].append((comm, comm_rank))
    return {
        rank: RankFile(identity, of_rank if len(ranks) > 1 else ())
        for identity, ranks in members.items()
        for rank, of_rank in ranks.items()
    }


def offered(
    last_lines: Mapping[str, bytes],
    late_shares: Mapping[str, float],
    unread: Iterable[str],
    files: Mapping[str, RankFile],
) -> Offered:
    """Return the ends of files by rank, as a part of a bundle, and each rank's last operation in words.

    ``late_shares``: by rank, the share of the last minute in which the other ranks waited for it alone, 0 to 1.
    ``unread``: directories that do not answer; a file of the bundle names them.
    """
    words = [
        summary.Word(rank, "records", f"last completed {what}", blames=False)
        for rank, data in last_lines.items()
        if (what := last_operation(data, files[rank].members))
    ]
    words += [
        summary.Word(rank, "records", f"the others waited for it {share:.0%} of the last minute", share >= BLAMED_SHARE)
        for rank, share in late_shares.items()
        if share >= SHOWN_SHARE
    ]
    contents = {f"rank-{rank}.jsonl": data for rank, data in last_lines.items()}
    if lines := "".join(f"{path} does not answer\n" for path in unread):
        contents["unread.txt"] = lines.encode(errors="replace")
    return Offered(contents, words, why="" if contents else "no records of this job")


def _end(file: FollowedFile) -> bytes:
    """Return a file's end, from the start of a line on; b"" if the path has another file now, or cannot be read."""
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) != file.identity:
            return b""
        offset = max(0, status.st_size - TAIL_BYTES)
        data = os.pread(descriptor, TAIL_BYTES, offset)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
    return data.partition(b"\n")[2] if offset else data
