"""Files that raise an error when they are looked at or read: counted, left alone for a while, and tried again."""

from __future__ import annotations

import contextlib
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from agent.sdk.exporter import Logger
from agent.sdk.files import FollowedFile

RETRY_SECONDS = 1.0
"""After the first error; after each further one in a row twice as long."""
MAX_RETRY_SECONDS = 60.0
_MAX_DOUBLINGS = 6


class Trouble:
    """How often in a row one file has failed, and when (monotonic seconds) it is tried again.

    ``told``: an error of it was logged.
    """

    __slots__ = ("failures", "retry_at", "told")

    def __init__(self) -> None:
        self.failures = 0
        self.retry_at = float("-inf")
        self.told = False

    def is_over(self, now: float) -> bool:
        """Return whether the file may be tried (again)."""
        return now >= self.retry_at


class FileFailures:
    """Takes errors so that each costs its file alone. Counted in ``counts`` by the error's name."""

    def __init__(self, counts: Counter[str], log: Logger) -> None:
        self._counts = counts
        self._log = log

    @contextlib.contextmanager
    def of(self, file: FollowedFile | None, trouble: Trouble, now: float) -> Iterator[None]:
        """Do something with a file (None: one that is gone); an error is noted and goes no further."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # whatever it is
            if not trouble.told:
                trouble.told = True
                self._tell(error, file)
            self._counts[type(error).__name__] += 1
            seconds = RETRY_SECONDS * 2 ** min(trouble.failures, _MAX_DOUBLINGS)
            trouble.retry_at = now + min(MAX_RETRY_SECONDS, seconds)
            trouble.failures += 1
        else:
            trouble.failures = 0

    def _tell(self, error: Exception, file: FollowedFile | None) -> None:
        """Log what went wrong and where; not the error's own text, which may quote the file."""
        path, offset = ("", 0) if file is None else (file.path, file.offset)
        places = traceback.extract_tb(error.__traceback__)
        at = f"{Path(places[-1].filename).name}:{places[-1].lineno}" if places else ""
        name = type(error).__name__
        self._log.warning("inspector file failed, it is tried again later", path=path, offset=offset, error=name, at=at)
