"""What one exporter run writes with into the agent's tables, until its lease ends."""

from typing import Generic, TypeVar

T = TypeVar("T")


class LeaseEnded(RuntimeError):  # noqa: N818  # a signal to a late update, not an error
    """Raised by every write of an exporter run whose lease has ended: it reaches the agent no more."""


class Leased(Generic[T]):
    """Writes into ``table`` for a run of exporter ``source``. After ``close`` reads go on; writes raise LeaseEnded."""

    def __init__(self, table: T, source: str = "") -> None:
        self._table = table
        self._source = source
        self._closed = False

    @property
    def _lent(self) -> T:
        """The table, to write into."""
        self.check()
        return self._table

    def check(self) -> None:
        """Raise LeaseEnded after ``close``."""
        if self._closed:
            raise LeaseEnded("the exporter's run has ended")

    def close(self) -> None:
        """Take no more; a subclass also takes back what it wrote that holds only while its exporter runs."""
        self._closed = True
