"""The log of a restart cycle, as NVRx's cycle file names it (cycle_info_writer.py: cycle_log_file). Blocking.

A rank's environment names the cycle file. A job's user controls both paths and the content. So both files must be
regular files of the rank's user, as the rank's process sees them, and nothing else is opened.
"""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from agent.helper.by_user import ByUser
from agent.sdk.exporter import Outputs
from agent.sdk.files import in_turns
from agent.sdk.ranks import RankView
from agent.sdk.system import OpenFile
from agent.system.inside import open_inside, read_bounded, stat_inside
from exporters.job_log.jobs import LoggedJob
from exporters.job_log.ownership import ClaimedLog, Identity

CYCLE_FILE = "NVRX_CURRENT_CYCLE_INFO"  # NVRx's variable for the path of the job's current cycle file
MAX_BYTES = 256 * 1024  # A larger cycle file is not read. One for 10,000 nodes whose names form no ranges has 150 KB.
MAX_PATH = 1024
MAX_JOBS = 64  # Limit of cycle files per search
GRACE_SECONDS = 0.2  # A search waits this long for all files. One whose file system hangs costs its user alone.


class _CycleFile(msgspec.Struct):
    cycle_log_file: Annotated[str, msgspec.Meta(pattern=r"^/[^\0]*\Z", max_length=MAX_PATH)]


class CycleLogs:
    """Finds the logs of current cycles. Used from one thread."""

    def __init__(self, proc: Path) -> None:
        self._root = proc
        self._outputs = Outputs(proc)
        self._readers: ByUser[RankView, tuple[Identity, ClaimedLog] | None] = ByUser(self._read)

    def of(self, jobs: Iterable[LoggedJob]) -> dict[Identity, ClaimedLog]:
        """Return the log of each job's current cycle, for at most MAX_JOBS jobs. One that two jobs name is left out."""
        first = {view.label.job_id: view for job in jobs for view in reversed(job.ranks) if _cycle_file(view)}
        views = in_turns(list(first.values()), lambda view: view.uid, MAX_JOBS)
        logs = [log for log in self._readers.answers(views, GRACE_SECONDS) if log is not None]
        names = Counter(identity for identity, _ in logs)
        return {identity: claim for identity, claim in logs if names[identity] == 1}

    def _read(self, view: RankView) -> tuple[Identity, ClaimedLog] | None:
        """Return the log that a rank's cycle file names; None without a file of the rank's user."""
        pid, uid = view.process.facts.key.pid, view.uid
        root = f"{self._root}/{pid}/root"
        try:
            with open_inside(root, _cycle_file(view), uid) as fd:
                raw = read_bounded(fd, MAX_BYTES)
            named = msgspec.json.decode(raw if len(raw) <= MAX_BYTES else b"", type=_CycleFile).cycle_log_file
            status = stat_inside(root, named)
        except (OSError, ValueError):  # ValueError: a NUL in the path; msgspec's errors are ValueErrors
            return None
        path = self._outputs.path_of(pid, OpenFile(0, named, status.st_dev, status.st_ino))
        if path is None or status.st_uid != uid or not stat.S_ISREG(status.st_mode):
            return None
        return (status.st_dev, status.st_ino), ClaimedLog(view.label.job_id, path=path, has_ranks=True)


def _cycle_file(view: RankView) -> str:
    """Return the path that a running rank's environment names; empty if none."""
    is_known = view.process.exited_at is None and view.uid is not None
    return (view.process.facts.environment or {}).get(CYCLE_FILE, "") if is_known else ""
