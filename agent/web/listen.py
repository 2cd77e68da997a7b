"""Parse listen addresses and open their sockets."""

import errno
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

BACKLOG = 1024
"""Limit of connections that the kernel queues for the server. Above it SYNs are lost, and clients retry after 1 s."""
RECEIVE_BUFFER_BYTES = 64 * 1024
"""Limit of unread data from a client."""
SEND_BUFFER_BYTES = 256 * 1024
"""Limit of a reply's bytes in the kernel for a client that does not read; the kernel's default is megabytes."""

MAX_INHERITED = 64
"""Limit of sockets passed by systemd."""

_FORM = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\[\]:]*)):(?P<port>[0-9]{1,5})", re.ASCII)


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A host (name or address; empty for all addresses of the machine) and a TCP port (0: any free port)."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen_address(text: str) -> ListenAddress:
    """Parse ``host:port``, ``:port`` or ``[v6]:port``; raises ValueError with the reason for any other text."""
    form = _FORM.fullmatch(text)
    if form is None:
        raise ValueError(f"listen address {text!r} is not host:port, :port or [address]:port")
    port = int(form["port"])
    if port > 65535:
        raise ValueError(f"listen address {text!r}: the port is above 65535")
    return ListenAddress(form["v6"] or form["host"] or "", port)


def open_listeners(*addresses: ListenAddress) -> list[socket.socket]:
    """Return at least one listening socket per address; OSError names the address and the reason.

    Accepted connections inherit the buffer limits and TCP_NODELAY. Blocks while a host name is resolved.
    The caller closes the sockets.
    """
    sockets: list[socket.socket] = []
    for address in addresses:
        try:
            for family, host in _targets(address):
                dual = not address.host and family == socket.AF_INET6
                opened = socket.create_server((host, address.port), family=family, backlog=BACKLOG, dualstack_ipv6=dual)
                sockets.append(opened)
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
                # asyncio sets this only for sockets with a protocol number, which sockets of create_server lack.
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            for opened in sockets:
                opened.close()
            reason = (error.strerror or str(error)).split(" (while attempting")[0]
            if error.errno == errno.EADDRINUSE:
                reason = (
                    f"port {address.port} is taken{_owner_of(address.port)}; choose another by --web.listen-address"
                )
            raise OSError(error.errno, f"cannot listen on {address}: {reason}") from error
    return sockets


def _owner_of(port: int) -> str:
    """Return `` by process PID (name)`` for the process that listens at ``port``; empty if it is not visible."""
    import psutil  # noqa: PLC0415  # only for this message

    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.pid and connection.laddr[1:] == (port,):
                unit = Path(f"/proc/{connection.pid}/cgroup").read_text().rpartition("/")[2].strip()
                name = unit if unit.endswith(".service") else psutil.Process(connection.pid).name()
                return f" by process {connection.pid} ({name})"
    return ""


LOCAL_SOCKET = "rankwatch-agent/web.sock"
"""Socket below /run, in the unit's RuntimeDirectory: commands on the node query the agent there without a password."""


def open_local_listener(path: Path) -> socket.socket:
    """Return a socket that listens at ``path`` for its owner, its group and root; raises OSError if that fails.

    The new socket replaces the socket of an earlier run. The caller closes the new socket.
    """
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        opened.bind(str(path))
        path.chmod(0o660)
        opened.listen(BACKLOG)
    except OSError:
        opened.close()
        raise
    return opened


def inherited_listeners(environ: Mapping[str, str], pid: int) -> list[socket.socket]:
    """Return the listening sockets from systemd (sd_listen_fds(3)); raises ValueError if there is none."""
    count = environ.get("LISTEN_FDS", "")
    if environ.get("LISTEN_PID") != str(pid) or not count.isdecimal() or not 0 < int(count) <= MAX_INHERITED:
        raise ValueError("--web.systemd-socket: systemd passes no socket; is rankwatch.socket started?")
    first = 3  # SD_LISTEN_FDS_START
    listeners = [socket.socket(fileno=fd) for fd in range(first, first + int(count))]
    for opened in listeners:
        opened.set_inheritable(False)
        if opened.type != socket.SOCK_STREAM:
            raise ValueError("--web.systemd-socket: a socket of rankwatch.socket is not a ListenStream=")
    return listeners


def _targets(address: ListenAddress) -> list[tuple[socket.AddressFamily, str]]:
    if not address.host:
        return [(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET, "")]
    try:
        resolved = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError:
        raise OSError(errno.EINVAL, "the host's name is not valid") from None
    return list(dict.fromkeys((family, str(where[0])) for family, _, _, _, where in resolved))
