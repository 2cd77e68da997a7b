"""All situations, with the expected alerts. docs/ends.md describes them."""

from __future__ import annotations

import borrowed_ids
import deaths
import ends
import lost_nodes
import lost_scrapes
from play import Situation

SITUATIONS: tuple[Situation, ...] = (
    *deaths.SITUATIONS,
    *ends.ENDS,
    *ends.RESTARTS,
    *lost_nodes.SITUATIONS,
    *lost_scrapes.SITUATIONS,
    *borrowed_ids.SITUATIONS,
)
