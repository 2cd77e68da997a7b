"""The processes that listen at RAS addresses, from /proc alone, at no cost to a job. Blocking; for one thread.

All processes of a node share one address (SO_REUSEPORT), and a connection reaches any of them. A forked child inherits
its parent's listener but not the thread that serves it. The child keeps the listener when the parent ends, and then no
thread answers.

Jobs name addresses, and the agent can reach more addresses than a job. So an address counts as a site only if an
interface of this network namespace has it, and a rank's process holds a listener there, opened by the process's user.
"""

import math
import os
import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import msgspec

from agent.sdk.ranks import ProcessKey
from agent.sdk.system import ProcFS
from exporters.ras.local.job_files import SETTINGS, FileFacts, FileRequest, Version, files_of, mapped_library, oldest
from exporters.ras.local.sockets import LISTEN, Socket, addresses_in, connection, may_be_named, sockets
from exporters.ras.protocol.client import Endpoint

MAX_FACTOR = 60.0  # At this factor the library's timeouts are five minutes: the longest delay of the next query

_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([0-9.]{7,15}|localhost)):([0-9]{1,5})")
_LOOPBACKS = ("127.0.0.1", "::1")


class Settings(msgspec.Struct, frozen=True):
    """``endpoints``: the addresses in NCCL_RAS_ADDR, empty if unset; ``timeout_factor`` multiplies all timeouts."""

    endpoints: tuple[Endpoint, ...]
    timeout_factor: float


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Return the settings of a process from its environment and settings files.

    RAS also allows an address with a host name, which counts as no address.
    """
    try:
        endpoints = parse_address(environment.get("NCCL_RAS_ADDR", "")[:64])
    except ValueError:
        endpoints = ()
    return Settings(endpoints, timeout_factor(environment))


def parse_address(text: str) -> tuple[Endpoint, ...]:
    """Return the endpoints of localhost:port (both loopbacks), IPv4:port or [IPv6]:port; ValueError for other text."""
    form = _ADDRESS.fullmatch(text)
    if form is None or not 0 < int(form[3]) < 65536:
        raise ValueError(f"{text!r} is not localhost:port, an IPv4 address:port or [an IPv6 address]:port")
    hosts = _LOOPBACKS if form[2] == "localhost" else (str(ip_address(form[1] or form[2])),)
    return tuple(Endpoint(host, int(form[3])) for host in hosts)


def timeout_factor(environment: Mapping[str, str]) -> float:
    """Return NCCL_RAS_TIMEOUT_FACTOR, which multiplies all of the library's timeouts: 1 to MAX_FACTOR."""
    try:
        factor = float(environment.get("NCCL_RAS_TIMEOUT_FACTOR", "1")[:32])
    except ValueError:
        return 1.0
    return min(max(factor, 1.0), MAX_FACTOR) if not math.isnan(factor) else 1.0


MAX_DESCRIPTORS = 16_384
_TABLES = "net"
_VARIABLES = ("NCCL_CONF_FILE", "HOME", *SETTINGS)
_WILDCARDS = {"0.0.0.0": 1, "::": 2}  # noqa: S104  # compared with, not bound to
_SOCKET = re.compile(r"socket:\[(\d{1,20})\]$")
_RAS_THREAD = "NCCL RAS"
_NAMED_BY_NCCL = "NCCL "  # threads have names only with NCCL_SET_THREAD_NAME=1 (src/debug.cc, default 0)


class Server(msgspec.Struct, frozen=True):
    """A rank process with a listener: its library (version None: unknown) and NCCL_RAS_TIMEOUT_FACTOR."""

    version: Version | None
    timeout_factor: float
    flavor: str = "nccl"


class Site(msgspec.Struct, frozen=True):
    """An address: the rank processes that serve it, and how many listeners there belong to no known process."""

    servers: dict[ProcessKey, Server]
    unowned: int


class _ProcessSettings(msgspec.Struct, frozen=True):
    """A process's network namespace and the RAS settings of its environment and files.

    ``settings`` is None until its files are read.
    """

    namespace: int
    environment: dict[str, str]
    settings: Settings | None = None


class _Holder(NamedTuple):
    """The process that holds a listener, and the descriptor."""

    key: ProcessKey
    descriptor: str


class ListenerSearch:
    """Finds listeners at ``endpoints`` and at the addresses that ranks' environments name; remembers their processes.

    It opens no file that a job names: that may hang. ``requests`` lists these files, ``note`` takes their contents.
    """

    def __init__(self, proc_root: Path, endpoints: tuple[Endpoint, ...]) -> None:
        self._root = proc_root
        self._endpoints = tuple(_connectable(endpoint) for endpoint in endpoints)
        self._proc = ProcFS(proc_root)
        self._requests: dict[ProcessKey, FileRequest] = {}
        self._versions: dict[ProcessKey, Version | None] = {}
        self._owners: dict[int, _Holder] = {}
        self._servers: dict[ProcessKey, Server] = {}
        self._settings: dict[ProcessKey, _ProcessSettings] = {}
        self.namespace = self._proc.namespace(os.getpid(), "net")

    def look(self, processes: Iterable[ProcessKey]) -> dict[Endpoint, Site]:
        """Return the sites with a listener; ``processes`` are the running rank processes."""
        known = {key for key in processes if not self._proc.is_in_exec(key.pid)}
        self._requests = {}
        self._settings = {key: self._settings_of(key) for key in sorted(known)}
        for key, process in self._settings.items():
            if process.settings is None:
                self._request(key)
        by_endpoint = self._listeners()
        self._assign({socket.inode: socket.uid for listeners in by_endpoint.values() for socket in listeners}, known)
        holders = {holder.key for holder in self._owners.values()}
        self._versions = {key: version for key, version in self._versions.items() if key in holders}
        self._servers = {key: server for key, server in self._servers.items() if key in holders}
        sites = {at: self._site({socket.inode for socket in listeners}) for at, listeners in by_endpoint.items()}
        return {at: site for at, site in sites.items() if site.servers or at in self._endpoints}

    def server_of(self, site: Site, server: Endpoint, client: Endpoint) -> ProcessKey | None:
        """Return the process of ``site`` that accepted ``client``'s connection; None before that.

        A redirected connection has no server socket in this network namespace, so the result is None.
        """
        remote_end = connection(self._root / _TABLES, server, client)
        if remote_end is None or not remote_end.inode:
            return None
        for key in site.servers:
            if remote_end.inode in self._sockets(key.pid) and self._uid(key) == remote_end.uid:
                return key
        return None

    def requests(self) -> dict[ProcessKey, FileRequest]:
        """Return the files that the last ``look`` needs. Call ``look`` again after ``note``."""
        return dict(self._requests)

    def note(self, requests: Mapping[ProcessKey, FileRequest], answers: Mapping[ProcessKey, FileFacts]) -> None:
        """Store the helper's answers."""
        for key, facts in answers.items():
            if requests[key].libraries:
                self._versions[key] = facts.version
            if requests[key].conf and (process := self._settings.get(key)) is not None:
                settings = read_settings(facts.settings | process.environment)
                self._settings[key] = msgspec.structs.replace(process, settings=settings)

    def _settings_of(self, key: ProcessKey) -> _ProcessSettings:
        """Return the known settings of a server. An exec of any other process can have changed its environment.

        The environment of a process whose main thread is blocked is not read again: the read could hang.
        """
        known, stat = self._settings.get(key), self._proc.stat(key.pid)
        if known is not None and (key in self._servers or stat is None or stat.state == "D"):
            return known
        environment = self._proc.environment(key.pid) or {}
        variables = {name: environment[name] for name in _VARIABLES if name in environment}
        if known is not None and known.environment == variables:
            return known
        settings = None if files_of(variables) else read_settings(variables)
        return _ProcessSettings(self._proc.namespace(key.pid, "net"), variables, settings)

    def _request(self, key: ProcessKey, libraries: tuple[bytes, ...] = ()) -> None:
        process = self._settings[key]
        self._requests[key] = FileRequest(
            str(self._root),
            key.pid,
            -1 if (uid := self._uid(key)) is None else uid,
            files_of(process.environment) if process.settings is None else (),
            libraries,
        )

    def _listeners(self) -> dict[Endpoint, list[Socket]]:
        """Return for each address the listeners that a connection to the address can reach."""
        table = sockets(self._root / _TABLES, LISTEN)
        ports = {listener.local.port for listener in table}
        addresses = [at for at in dict.fromkeys((*self._endpoints, *self._named())) if at.port in ports]
        if not all(ip_address(at.host).is_loopback for at in addresses):
            here = addresses_in(self._root / _TABLES)
            addresses = [at for at in addresses if ip_address(at.host).is_loopback or at.host in here]
        by_endpoint = {at: reachable([one for one in table if one.local.port == at.port], at.host) for at in addresses}
        return {at: listeners for at, listeners in by_endpoint.items() if listeners}

    def _named(self) -> Iterable[Endpoint]:
        """Return the addresses that jobs of this network namespace name, except addresses that no job may name."""
        for process in self._settings.values():
            if process.namespace == self.namespace and process.settings is not None:
                yield from (
                    at for named in process.settings.endpoints if may_be_named((at := _connectable(named)).host)
                )

    def _assign(self, listeners: dict[int, int], processes: set[ProcessKey]) -> None:
        """Find the processes that hold ``listeners`` (uid by inode) that their own user opened."""
        self._owners = {
            inode: holder
            for inode, holder in self._owners.items()
            if inode in listeners and holder.key in processes and self._socket(*holder) == inode
        }
        if not listeners.keys() - self._owners.keys():
            return
        for key in sorted(processes):
            descriptors = {inode: name for inode, name in self._sockets(key.pid).items() if inode in listeners}
            new = {inode for inode in descriptors.keys() - self._owners.keys() if listeners[inode] == self._uid(key)}
            if new and self._may_serve(key):
                self._owners.update({inode: _Holder(key, descriptors[inode]) for inode in new})

    def _site(self, inodes: set[int]) -> Site:
        owners = {self._owners[inode].key for inode in inodes if inode in self._owners}
        unowned = len(inodes - self._owners.keys())
        return Site({key: self._server(key) for key in sorted(owners)}, unowned)

    def _server(self, key: ProcessKey) -> Server:
        """Return a listening process's library and settings; no version until its files are read."""
        if key in self._servers:
            return self._servers[key]
        library, settings = mapped_library(self._root, key.pid), self._settings[key].settings
        if library.files and key not in self._versions:
            self._request(key, library.files)
        if settings is None or key in self._requests:
            return Server(None, 1.0, library.flavor)
        version = oldest([self._versions[key], *filter(None, [library.version])]) if library.files else library.version
        self._servers[key] = Server(version, settings.timeout_factor, library.flavor)
        return self._servers[key]

    def _uid(self, key: ProcessKey) -> int | None:
        status = self._proc.status(key.pid)
        return None if status is None else status.uid

    def _may_serve(self, key: ProcessKey) -> bool:
        """Return False only if the process surely has no RAS thread.

        If NCCL names its threads, one of them must be the RAS thread. Otherwise it may be any thread after the first.
        """
        names = [self._proc.thread_name(key.pid, tid) for tid in self._proc.thread_ids(key.pid)]
        if any(name.startswith(_NAMED_BY_NCCL) for name in names):
            return _RAS_THREAD in names
        return len(names) > 1

    def _sockets(self, pid: int) -> dict[int, str]:
        """Return the sockets that a process holds, and a descriptor of each. Unreadable listeners count as unowned."""
        key, names = ProcessKey(pid, 0), self._proc.names(pid, "fd", MAX_DESCRIPTORS)
        return {inode: name for name in names if (inode := self._socket(key, name)) is not None}

    def _socket(self, key: ProcessKey, descriptor: str) -> int | None:
        try:
            match = _SOCKET.match(os.readlink(f"{self._root}/{key.pid}/fd/{descriptor}"))
        except OSError:  # the descriptor was closed
            return None
        return int(match[1]) if match else None


def reachable(listeners: Iterable[Socket], host: str) -> list[Socket]:
    """Return the ``listeners`` (all on one port) that a connection to ``host`` can reach: the most specific sockets.

    The kernel prefers a socket bound to the address itself, then a socket bound to all IPv4 addresses, then to all
    addresses of both families (inet_lookup_listener). So a listener bound to the address loses no connections to a
    user's wildcard listener.
    """
    by_width: dict[int, list[Socket]] = {}
    for listener in listeners:
        if listener.local.host == host:
            by_width.setdefault(0, []).append(listener)
        elif listener.local.host == "::" or (listener.local.host in _WILDCARDS and ":" not in host):
            by_width.setdefault(_WILDCARDS[listener.local.host], []).append(listener)
    return by_width[min(by_width)] if by_width else []


def _connectable(endpoint: Endpoint) -> Endpoint:
    """Return the address to connect to: the loopback if a job listens on every address."""
    loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(endpoint.host)  # noqa: S104  # compared with
    return Endpoint(loopback, endpoint.port) if loopback else endpoint
