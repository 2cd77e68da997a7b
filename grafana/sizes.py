"""Sizes of messages in legends: series have a limit in bytes, people read KiB, MiB and GiB."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as models

SIZE = "≤ {{size}} B"
"""Legend of a size class."""
SMALLEST = 8192
NAMES = (
    *(f"{count} KiB" for count in (8, 32, 128, 512)),
    *(f"{count} MiB" for count in (2, 8, 32, 128, 512)),
    *(f"{count} GiB" for count in (2, 8, 32)),
)
"""Limits of the size classes: powers of four from ``SMALLEST`` bytes on."""


def readable_sizes() -> list[models.DataTransformerConfig]:
    """Return the overrides that rename series whose legends have ``SIZE``."""
    return [
        models.DataTransformerConfig(
            id_val="renameByRegex", options={"regex": f"/≤ {SMALLEST * 4**step} B/", "renamePattern": f"≤ {name}"}
        )
        for step, name in enumerate(NAMES)
    ]
