"""Base class of writers into the agent's tables; a writer is valid for one run of one exporter."""

from typing import Generic, TypeVar

T = TypeVar("T")


class LeaseEnded(RuntimeError):  # noqa: N818  # stops a late update: not an error
    """A write after the lease ended. The agent ignores such a write."""


class Leased(Generic[T]):
    """Writer into ``table`` for exporter ``source``. After ``close`` reads still work, but writes raise LeaseEnded."""

    def __init__(self, table: T, source: str = "") -> None:
        self._table = table
        self._source = source
        self._closed = False

    @property
    def _lent(self) -> T:
        self.ensure_open()
        return self._table

    def ensure_open(self) -> None:
        """Raise LeaseEnded after ``close``."""
        if self._closed:
            raise LeaseEnded("the exporter's run has ended")

    def close(self) -> None:
        """Refuse further writes. A subclass also withdraws evidence that is valid only while its exporter runs."""
        self._closed = True
