"""What a site may say of evidence."""

from typing import Annotated

import msgspec

from agent.sdk.evidence import folder as evidence_folder
from agent.sdk.exporter import ExporterConfig

Seconds = Annotated[float, msgspec.Meta(ge=1, le=3600)]


class EvidenceConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``path``: the directory of bundles, made if need be. ``keep_bundles``: how many of the newest stay.
    Users' only bundles and those of open pages stay too, up to four times as many.

    ``seconds_per_bundle``: how long collecting may take; a part that is not there by then is left out.
    ``megabytes_per_bundle``: of its files, unpacked. ``minutes_between``: no second bundle of a job sooner.
    ``silence_seconds``: a rank that had completed operations and completes none for this long, and for longer than ever
    before, has fallen silent. ``alerts_url``: of a Prometheus, queried once a minute for open pages on jobs here, so
    that nodes whose ranks wait take a bundle, too; empty: no queries. ``alerts_cluster``: this cluster's name in
    the alerts' label ``cluster``, where that Prometheus has several clusters'.
    ``serve``: give files of bundles at /evidence/FILE, over TLS and with a password alone.
    """

    path: Annotated[str, msgspec.Meta(pattern=r"^/[^\0]*$", max_length=4096)] = evidence_folder.DEFAULT_PATH
    keep_bundles: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    seconds_per_bundle: Annotated[float, msgspec.Meta(ge=1, le=60)] = 20.0
    megabytes_per_bundle: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20
    minutes_between: Annotated[float, msgspec.Meta(ge=1, le=1440)] = 10.0
    silence_seconds: Seconds = 180.0
    alerts_url: Annotated[str, msgspec.Meta(pattern=r"^(https?://[^\s]+)?$", max_length=1024)] = ""
    serve: bool = False
    alerts_cluster: Annotated[str, msgspec.Meta(max_length=200)] = ""
