"""What a job's environment says of its RAS, and the form of an address in it and in the configuration. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from ipaddress import ip_address

import msgspec

from exporters.ras.protocol.client import Endpoint

MAX_FACTOR = 60.0  # Five minutes, which is as long as a query may hold up the next

_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([0-9.]{7,15}|localhost)):([0-9]{1,5})")
_LOOPBACKS = ("127.0.0.1", "::1")


class Settings(msgspec.Struct, frozen=True):
    """``endpoints``: where NCCL_RAS_ADDR has RAS listen, none where it is not set; ``timeout_factor``: of all times."""

    endpoints: tuple[Endpoint, ...]
    timeout_factor: float


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Return the settings of a process, by what it sees of its environment (nccl_conf.py).

    An address that names a host, as RAS allows, counts as none.
    """
    try:
        endpoints = parse_address(environment.get("NCCL_RAS_ADDR", "")[:64])
    except ValueError:
        endpoints = ()
    return Settings(endpoints, timeout_factor(environment))


def parse_address(text: str) -> tuple[Endpoint, ...]:
    """Return the endpoints of localhost:port (both loopbacks), IPv4:port or [IPv6]:port; ValueError when it is none."""
    form = _ADDRESS.fullmatch(text)
    if form is None or not 0 < int(form[3]) < 65536:
        raise ValueError(f"{text!r} is not localhost:port, an IPv4 address:port or [an IPv6 address]:port")
    hosts = _LOOPBACKS if form[2] == "localhost" else (str(ip_address(form[1] or form[2])),)
    return tuple(Endpoint(host, int(form[3])) for host in hosts)


def timeout_factor(environment: Mapping[str, str]) -> float:
    """NCCL_RAS_TIMEOUT_FACTOR, which multiplies all of the library's timeouts; at least 1, at most MAX_FACTOR."""
    try:
        factor = float(environment.get("NCCL_RAS_TIMEOUT_FACTOR", "1")[:32])
    except ValueError:
        return 1.0
    return min(max(factor, 1.0), MAX_FACTOR) if not math.isnan(factor) else 1.0
