"""The configuration of evidence."""

from typing import Annotated

import msgspec

from agent.sdk.evidence import folder as evidence_folder
from agent.sdk.exporter import ExporterConfig


class EvidenceConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``path``: the directory of bundles, created if missing. ``keep_bundles``: number of the newest bundles that stay.
    A user's only bundle and bundles of jobs with an open page stay too, up to four times ``keep_bundles`` bundles.

    ``seconds_per_bundle``: time limit of collecting; parts that take longer are left out. ``megabytes_per_bundle``:
    limit of the unpacked size. ``minutes_between``: least time between two bundles of a job. ``silence_seconds``: a
    rank that completed operations is silent if its present pause is longer than this time and than all its earlier
    pauses. ``serve``: serve files of bundles at /evidence/FILE, only over TLS and with a password.
    """

    path: Annotated[str, msgspec.Meta(pattern=r"^/[^\0]*$", max_length=4096)] = evidence_folder.DEFAULT_PATH
    keep_bundles: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    seconds_per_bundle: Annotated[float, msgspec.Meta(ge=1, le=60)] = 20.0
    megabytes_per_bundle: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20
    minutes_between: Annotated[float, msgspec.Meta(ge=1, le=1440)] = 10.0
    silence_seconds: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 180.0
    serve: bool = False
