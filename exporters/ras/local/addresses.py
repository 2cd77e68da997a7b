"""The addresses of a process' network namespace, from /proc alone: which hosts are this one. Blocking."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Address, ip_address
from pathlib import Path

MAX_TABLE_BYTES = 4 * 1024 * 1024
MAX_ADDRESSES = 1024
"""Of a namespace; a node of a cluster has a few."""

_BROADCAST = "255.255.255.255"
_LOCAL = re.compile(r"\|-- ([0-9.]{7,15})\n\s+/(\d{1,2}) host LOCAL$", re.MULTILINE)
_IPV6 = re.compile(r"^([0-9a-f]{32}) ", re.MULTILINE)


class Addresses:
    """What belongs to one network namespace: single addresses, and the networks that are local as a whole (127/8)."""

    def __init__(self, networks: Iterable[IPv4Network], addresses: Iterable[IPv6Address]) -> None:
        self._networks = list(networks)
        self._addresses = set(addresses)

    def __contains__(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return False
        return address in self._addresses or any(address in network for network in self._networks)


def addresses_of(proc_root: Path, pid: int) -> Addresses:
    """The addresses of the namespace of ``pid``; none where its tables cannot be read (fib_trie, if_inet6 of proc)."""
    return addresses_in(proc_root / f"{pid}/net")


def addresses_in(folder: Path) -> Addresses:
    """Likewise, of the namespace whose tables are in ``folder``."""
    return Addresses(parse_fib_trie(_read(folder / "fib_trie")), parse_if_inet6(_read(folder / "if_inet6")))


def may_be_named(host: str) -> bool:
    """Return False for an address that no job's settings can bring the agent to.

    Those mean another one (IPv4 in IPv6), depend on the interface, or are no single machine's.
    """
    address = ip_address(host)
    return not (
        getattr(address, "ipv4_mapped", None) is not None
        or address.is_link_local
        or address.is_multicast
        or address.is_unspecified
        or host == _BROADCAST
    )


def parse_fib_trie(table: str) -> list[IPv4Network]:
    """Return the local networks of a table like /proc/net/fib_trie, each once."""
    found: dict[IPv4Network, None] = {}
    for address, length in _LOCAL.findall(table):
        try:
            found[IPv4Network(f"{address}/{length}", strict=False)] = None
        except ValueError:
            continue
    return list(found)[:MAX_ADDRESSES]


def parse_if_inet6(table: str) -> list[IPv6Address]:
    """Return the addresses of a table like /proc/net/if_inet6."""
    return [IPv6Address(int(digits, 16)) for digits in _IPV6.findall(table)[:MAX_ADDRESSES]]


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_TABLE_BYTES).decode("ascii", "replace")
    except OSError:
        return ""
