"""Which processes listen where RAS threads do, from /proc alone: it costs a job nothing. Blocking; for one thread.

All processes of a node share one address (SO_REUSEPORT) and a connection reaches any of them. A forked child holds its
parent's listener without a thread to serve it, and keeps it when the parent is gone: nobody ever answers there.

A job in a network namespace of its own (a pod) can be reached where it listens on an address that is not the
namespace's loopback. Only addresses with a rank's listener are sites there: what else listens is nobody's business.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path

import msgspec

from agent.api import ProcessKey, ProcFS
from exporters.ras.local.addresses import first_address
from exporters.ras.local.library import Libraries, Version
from exporters.ras.local.nccl_conf import effective_environment
from exporters.ras.local.settings import Settings, read_settings
from exporters.ras.local.sockets import ESTABLISHED, LISTEN, sockets
from exporters.ras.protocol.client import Endpoint

MAX_DESCRIPTORS = 16_384
MAX_NAMESPACES = 64
"""Network namespaces of pods that are looked into."""
_OWN = "net"
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
    """One address: the rank processes that serve it, and how many listeners there belong to no known process.

    ``tables``: the folder with the namespace's tables, below the root of /proc.
    """

    servers: dict[ProcessKey, Server]
    unowned: int
    tables: str = _OWN

    @property
    def is_own(self) -> bool:
        """True in the agent's own network namespace."""
        return self.tables == _OWN


class _Place(msgspec.Struct, frozen=True):
    """Where a process listens, if it does: its network namespace, and what its environment says."""

    namespace: int
    settings: Settings


class ListenerSearch:
    """Finds listeners at ``endpoints`` and at the addresses of the ranks' environments; remembers their processes."""

    def __init__(self, proc_root: Path, endpoints: tuple[Endpoint, ...]) -> None:
        self._root = proc_root
        self._endpoints = tuple(_reachable(endpoint) for endpoint in endpoints)
        self._proc = ProcFS(proc_root)
        self._libraries = Libraries(proc_root)
        self._owners: dict[int, ProcessKey] = {}
        self._servers: dict[ProcessKey, Server] = {}
        self._places: dict[ProcessKey, _Place] = {}
        self.namespace = self._proc.namespace(os.getpid(), "net")

    def look(self, processes: Iterable[ProcessKey]) -> dict[Endpoint, Site]:
        """The sites that have a listener; ``processes`` are the rank processes that run."""
        known = set(processes)
        self._servers = {key: server for key, server in self._servers.items() if key in known}
        self._places = {key: self._places.get(key) or self._place(key) for key in sorted(known)}
        foreign: dict[int, list[ProcessKey]] = {}
        for key, place in self._places.items():
            if place.namespace not in (0, self.namespace):
                foreign.setdefault(place.namespace, []).append(key)
        found = {endpoint: (_OWN, inodes) for endpoint, inodes in self._listeners_here().items()}
        for members in list(foreign.values())[:MAX_NAMESPACES]:
            tables = f"{members[0].pid}/net"
            listeners = self._listeners_elsewhere(tables, members)
            found.update({at: (tables, inodes) for at, inodes in listeners.items() if at not in found})
        self._assign({inode for _, inodes in found.values() for inode in inodes}, known)
        sites = {endpoint: self._site(tables, inodes) for endpoint, (tables, inodes) in found.items()}
        return {endpoint: site for endpoint, site in sites.items() if site.servers or self._is_ours(endpoint, site)}

    def server_of(self, site: Site, server: Endpoint, client: Endpoint) -> ProcessKey | None:
        """The process of ``site`` that has accepted the connection from ``client``; None when it cannot be told."""
        for each in sockets(self._root / site.tables, ESTABLISHED):
            if (each.local, each.remote) == (server, client) and each.inode:
                return next((key for key in site.servers if each.inode in self._sockets(key.pid)), None)
        return None

    def _place(self, key: ProcessKey) -> _Place:
        environment = effective_environment(self._root, key.pid, self._proc.environment(key.pid) or {})
        return _Place(self._proc.namespace(key.pid, "net"), read_settings(environment))

    def _is_ours(self, endpoint: Endpoint, site: Site) -> bool:
        """True for an address of the configuration: there listeners of unknown processes count too."""
        return site.is_own and endpoint in self._endpoints

    def _listeners_here(self) -> dict[Endpoint, set[int]]:
        declared = {
            at: None
            for place in self._places.values()
            if place.namespace in (0, self.namespace)
            for at in place.settings.endpoints
        }
        found: dict[Endpoint, set[int]] = {}
        for each in sockets(self._root / _OWN, LISTEN):
            for endpoint in dict.fromkeys((*self._endpoints, *declared)):
                if each.local.port == endpoint.port and _covers(each.local.host, endpoint.host):
                    found.setdefault(_reachable(endpoint), set()).add(each.inode)
        return found

    def _listeners_elsewhere(self, tables: str, members: Iterable[ProcessKey]) -> dict[Endpoint, set[int]]:
        """Listeners of another namespace at RAS's ports, but for its loopback, by an address that leads there."""
        ports = {at.port for key in members for at in self._places[key].settings.endpoints}
        ports |= {at.port for at in self._endpoints}
        found: dict[Endpoint, set[int]] = {}
        for each in sockets(self._root / tables, LISTEN):
            host = each.local.host
            if each.local.port not in ports or ip_address(host).is_loopback:
                continue
            if host in _WILDCARDS:
                host = first_address(self._root / tables)
            if host:
                found.setdefault(Endpoint(host, each.local.port), set()).add(each.inode)
        return found

    def _assign(self, inodes: set[int], processes: set[ProcessKey]) -> None:
        self._owners = {inode: key for inode, key in self._owners.items() if inode in inodes and key in processes}
        if not inodes - self._owners.keys():
            return
        for key in sorted(processes):
            held = self._sockets(key.pid) & inodes
            if held - self._owners.keys() and self._may_serve(key):
                self._owners.update(dict.fromkeys(held, key))

    def _site(self, tables: str, inodes: set[int]) -> Site:
        owners = {self._owners[inode] for inode in inodes if inode in self._owners}
        for key in owners - self._servers.keys():
            library = self._libraries.of(key)
            factor = self._places[key].settings.timeout_factor
            self._servers[key] = Server(library.version, factor, library.flavor)
        unowned = len(inodes - self._owners.keys())
        return Site({key: self._servers[key] for key in sorted(owners)}, unowned, tables)

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


def _covers(listening: str, host: str) -> bool:
    """True where a listener at the one address takes connections to the other; :: takes IPv4's too, as by default."""
    return listening in (host, "::") or (listening == "0.0.0.0" and ":" not in host)  # noqa: S104  # compared with


def _reachable(endpoint: Endpoint) -> Endpoint:
    """An address to connect to: a job that listens on every one is asked over the loopback."""
    loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(endpoint.host)  # noqa: S104  # compared with
    return Endpoint(loopback, endpoint.port) if loopback else endpoint
