"""The selections of the scrape jobs in deploy/prometheus: their renders wait for no others."""

from __future__ import annotations

from agent.export.exposition import Scrape

LIVENESS = frozenset({"liveness"})
"""What the job rankwatch-liveness collects, and the job rankwatch excludes."""
SHIPPED = frozenset({(None, frozenset[str]()), (LIVENESS, frozenset[str]()), (None, LIVENESS)})
"""`collect[]` and `exclude[]` of a plain scrape and of each job. With format and compression: 12 different renders."""


def is_shipped(scrape: Scrape) -> bool:
    """Say whether a shipped scrape job, or a plain scrape, asks for this."""
    return not scrape.names and (scrape.selection.collect, scrape.selection.exclude) in SHIPPED
