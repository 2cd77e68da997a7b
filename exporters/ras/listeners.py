"""Who listens where RAS threads do, from /proc alone: it costs a job nothing. Blocking; for one thread.

All processes of a node share one address (SO_REUSEPORT) and a connection reaches any of them. A forked child holds its
parent's listener without a thread to serve it, and keeps it when the parent is gone: nobody ever answers there.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path

import msgspec

from agent.api import ProcessKey, ProcFS
from exporters.ras.client import Endpoint
from exporters.ras.library import Libraries, Version

MAX_TABLE_BYTES = 8 * 1024 * 1024
"""Listening sockets come first in it (tcp_seq_start of the kernel)."""
MAX_DESCRIPTORS = 16_384
MAX_FACTOR = 60.0
"""Five minutes, which is as long as a query may hold up the next."""
_LISTEN = "0A"
_WILDCARDS = {"0.0.0.0", "::"}  # noqa: S104  # compared with, not bound to
_SOCKET = re.compile(r"socket:\[(\d{1,20})\]$")
_RAS_THREAD = "NCCL RAS"
_NAMED_BY_NCCL = "NCCL "  # threads have names only with NCCL_SET_THREAD_NAME=1 (src/debug.cc, default 0)


class Server(msgspec.Struct, frozen=True):
    """A rank process with a listener: its library (no version: not known) and NCCL_RAS_TIMEOUT_FACTOR."""

    version: Version | None
    timeout_factor: float
    flavor: str = "nccl"


class Site(msgspec.Struct, frozen=True):
    """One address: the rank processes that serve it, and how many listeners there are nobody is known to serve."""

    servers: dict[ProcessKey, Server]
    unowned: int


class ListenerSearch:
    """Looks for listeners at ``endpoints`` in the agent's own network namespace; remembers whose they are."""

    def __init__(self, proc_root: Path, endpoints: tuple[Endpoint, ...]) -> None:
        self._root = proc_root
        self._endpoints = endpoints
        self._proc = ProcFS(proc_root)
        self._libraries = Libraries(proc_root)
        self._owners: dict[int, ProcessKey] = {}
        self._servers: dict[ProcessKey, Server] = {}
        self.namespace = self._proc.namespace(os.getpid(), "net")

    def look(self, processes: Iterable[ProcessKey]) -> dict[Endpoint, Site]:
        """The sites that have a listener; ``processes`` are the rank processes that run."""
        listeners = self._listeners()
        known = set(processes)
        inodes = {inode for found in listeners.values() for inode in found}
        self._owners = {inode: key for inode, key in self._owners.items() if inode in inodes and key in known}
        self._servers = {key: server for key, server in self._servers.items() if key in known}
        if inodes - self._owners.keys():
            self._find_owners(inodes, known)
        return {endpoint: self._site(found) for endpoint, found in listeners.items()}

    def _site(self, inodes: set[int]) -> Site:
        owners = {self._owners[inode] for inode in inodes if inode in self._owners}
        for key in owners - self._servers.keys():
            factor = timeout_factor(self._proc.environment(key.pid) or {})
            library = self._libraries.of(key)
            self._servers[key] = Server(library.version, factor, library.flavor)
        return Site({key: self._servers[key] for key in sorted(owners)}, len(inodes - self._owners.keys()))

    def _listeners(self) -> dict[Endpoint, set[int]]:
        found: dict[Endpoint, set[int]] = {}
        for name in ("net/tcp", "net/tcp6"):
            for address, inode in parse_listeners(_read(self._root / name)):
                for endpoint in self._endpoints:
                    if address.port == endpoint.port and address.host in {endpoint.host, *_WILDCARDS}:
                        found.setdefault(endpoint, set()).add(inode)
        return found

    def _find_owners(self, inodes: set[int], processes: set[ProcessKey]) -> None:
        for key in sorted(processes):
            held = self._sockets(key.pid) & inodes
            if held - self._owners.keys() and self._may_serve(key):
                self._owners.update(dict.fromkeys(held, key))

    def _may_serve(self, key: ProcessKey) -> bool:
        """True unless it certainly has no RAS thread: where NCCL names threads, none of that name; else, only one."""
        names = [self._proc.thread_name(key.pid, tid) for tid in self._proc.thread_ids(key.pid)]
        if any(name.startswith(_NAMED_BY_NCCL) for name in names):
            return _RAS_THREAD in names
        return len(names) > 1

    def _sockets(self, pid: int) -> set[int]:
        found = set()
        try:
            for name in os.listdir(self._root / f"{pid}/fd")[:MAX_DESCRIPTORS]:
                try:
                    match = _SOCKET.match(os.readlink(self._root / f"{pid}/fd/{name}"))
                except OSError:  # closed since
                    continue
                if match:
                    found.add(int(match[1]))
        except OSError:  # gone, or not ours to read: nobody is known to serve its listeners
            pass
        return found


def parse_listeners(table: str) -> list[tuple[Endpoint, int]]:
    """The listening sockets of a table like /proc/net/tcp: address and inode. Lines that are none are left out."""
    found = []
    for line in table.splitlines():
        fields = line.split()
        if len(fields) < 10 or fields[3] != _LISTEN:
            continue
        host, _, port = fields[1].partition(":")
        try:
            packed = b"".join(int(host[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(host), 8))
            found.append((Endpoint(str(ip_address(packed)), int(port, 16)), int(fields[9])))
        except (ValueError, OverflowError):
            continue
    return found


def timeout_factor(environment: Mapping[str, str]) -> float:
    """NCCL_RAS_TIMEOUT_FACTOR, which multiplies all of the library's timeouts; at least 1, at most MAX_FACTOR."""
    try:
        factor = float(environment.get("NCCL_RAS_TIMEOUT_FACTOR", "1")[:32])
    except ValueError:
        return 1.0
    return min(max(factor, 1.0), MAX_FACTOR) if not math.isnan(factor) else 1.0


def _read(path: Path) -> str:
    """A table of /proc, without what lies beyond the bound; empty when there is none."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_TABLE_BYTES).decode("ascii", "replace")
    except OSError:
        return ""
