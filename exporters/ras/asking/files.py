"""Has the files that jobs name read in a helper process: their file systems may hang."""

from __future__ import annotations

from agent.sdk.exporter import Logger, OwnThread
from agent.sdk.helper import Helper, HelperError, HelperSpec
from agent.sdk.ranks import ProcessKey
from exporters.ras.local.job_files import FileFacts
from exporters.ras.local.listeners import ListenerSearch

MAX_REQUESTS = 256  # In one call; the others wait for the next look, and those that were not answered for all others
CALL_SECONDS = 3.0  # The helper answers in one, whichever file system hangs
FILE_READER = HelperSpec(
    "ras_files", "exporters.ras.local.job_files:read_files", list[FileFacts | None], memory_bytes=192 * 1024 * 1024
)


class JobFiles:
    """See the module; ``thread`` is the search's own."""

    def __init__(self, helper: Helper[list[FileFacts | None]], thread: OwnThread, log: Logger) -> None:
        self._helper = helper
        self._thread = thread
        self._log = log
        self._unanswered: frozenset[ProcessKey] = frozenset()

    async def read_for(self, search: ListenerSearch) -> bool:
        """Read what the last look needs; True when it learnt something."""
        wanted = await self._thread.call(search.wanted)
        if not wanted:
            self._helper.rest()  # the next process to be looked at is long in coming
            return False
        last = self._unanswered
        asked = {key: wanted[key] for key in sorted(wanted, key=lambda key: (key in last, key))[:MAX_REQUESTS]}
        try:
            answers = await self._helper.call(list(asked.values()), CALL_SECONDS)
        except HelperError as error:
            self._log.warning("files of jobs cannot be read", error=error)
            return False
        found = {key: facts for key, facts in zip(asked, answers, strict=False) if facts is not None}
        self._unanswered = last.intersection(wanted).union(asked) - found.keys()
        await self._thread.call(lambda: search.note(asked, found))
        return bool(found)
