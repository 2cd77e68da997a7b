"""The agent's own tables as sources of series: the ranks, their jobs, and the health of what they stand on."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agent.core.metrics import Metric
from agent.hardware.inventory import Hardware
from agent.hardware.ledger import HealthLedger
from agent.ranks import families as rank_families, health, liveness_page
from agent.ranks.health import HealthSnapshot
from agent.ranks.snapshot import RankSnapshot
from agent.ranks.table import RankTable

RANK_SERIES_CAP = 50_000
LIVENESS_SERIES_CAP = 10_000
HEALTH_SERIES_CAP = 50_000


class RankSource:
    """The rank table, called ``ranks``."""

    name = "ranks"
    series_cap = RANK_SERIES_CAP

    def __init__(self, table: RankTable) -> None:
        self._table = table

    def shown(self) -> bool:
        """Always: the table is the agent's own."""
        return True

    def snapshot(self) -> RankSnapshot:
        """Copy the table."""
        return self._table.snapshot()

    def families(self, snapshot: RankSnapshot) -> Iterable[Metric]:
        """Render the table."""
        return rank_families.families(snapshot)


class LivenessSource(RankSource):
    """The rank table by job, for rules, called ``liveness``."""

    name = "liveness"
    series_cap = LIVENESS_SERIES_CAP

    def families(self, snapshot: RankSnapshot) -> Iterable[Metric]:
        """Render the jobs."""
        return liveness_page.families(snapshot)


class HealthSource:
    """The health ledger rolled up over the ranks, called ``health``; ``counted`` gives the checks that count."""

    name = "health"
    series_cap = HEALTH_SERIES_CAP

    def __init__(
        self, table: RankTable, ledger: HealthLedger, hardware: Hardware, counted: Callable[[], frozenset[str]]
    ) -> None:
        self._table = table
        self._ledger = ledger
        self._hardware = hardware
        self._counted = counted

    def shown(self) -> bool:
        """Always: the ledger is the agent's own."""
        return True

    def snapshot(self) -> HealthSnapshot:
        """Copy the tables."""
        return HealthSnapshot(
            ranks=self._table.snapshot(),
            entries=self._ledger.entries(),
            counted=self._counted(),
            refused=self._ledger.refused,
            faults=self._hardware.faults(),
        )

    def families(self, snapshot: HealthSnapshot) -> Iterable[Metric]:
        """Render the roll-up."""
        return health.families(snapshot)
