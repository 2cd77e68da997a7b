"""What every exporter's section of the configuration holds."""

from __future__ import annotations

from typing import Literal

import msgspec


class ExporterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every exporter's section of the configuration holds; each exporter extends it.

    ``enabled``: ``auto``: a missing source is not an error. True: it is.
    """

    enabled: bool | Literal["auto"] = "auto"
