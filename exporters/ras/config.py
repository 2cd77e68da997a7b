"""The exporter's section of the configuration."""

from typing import Annotated, get_args

import msgspec

from agent.sdk.exporter import ExporterConfig
from exporters.ras.local.job_files import Version
from exporters.ras.local.listeners import parse_address
from exporters.ras.protocol.client import Endpoint
from exporters.ras.query.policy import MIN_INTERVAL_SECONDS, Configured

MAX_ADDRESSES = 16


class RasConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``addresses``: addresses of RAS (the jobs' NCCL_RAS_ADDR); ``role``: whether this node sends queries.

    Every role but `off` reads events; `monitor` sends no query. ``oldest_version``: first library version that is
    queried or monitored; versions before 2.29.2 can crash on a query, and send no events. ``min_interval_seconds``:
    shortest interval between queries of a job; ``max_ranks``: a job with more ranks gets no query.
    """

    addresses: Annotated[list[str], msgspec.Meta(min_length=1, max_length=MAX_ADDRESSES)] = msgspec.field(
        default_factory=lambda: ["localhost:28028"]
    )
    role: Configured | bool = "auto"
    oldest_version: Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}$")] = "2.29.2"

    min_interval_seconds: Annotated[float, msgspec.Meta(ge=MIN_INTERVAL_SECONDS)] = MIN_INTERVAL_SECONDS
    max_ranks: Annotated[int, msgspec.Meta(ge=1)] | None = None

    def __post_init__(self) -> None:
        """Refuse an invalid address, and YAML's true as a role."""
        self.endpoints()
        if self.role is True:
            raise ValueError(f"role: true is none of {', '.join(get_args(Configured))}")

    def configured_role(self) -> Configured:
        """Return the role; YAML reads a bare `off` as false."""
        return "off" if isinstance(self.role, bool) else self.role

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the addresses; localhost gives both loopback addresses. A ValueError names an invalid address."""
        return tuple(dict.fromkeys(at for text in self.addresses for at in parse_address(text)))

    def oldest(self) -> Version:
        """Return the first version that the exporter queries."""
        major, minor, patch = map(int, self.oldest_version.split("."))
        return major, minor, patch
