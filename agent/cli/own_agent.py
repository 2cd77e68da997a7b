"""Query the running agent of this node: find its address, check the owner of the port, and read the reply."""

import argparse
import http.client
import os
import socket
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from agent.app.config import DEFAULT_LISTEN_ADDRESS, AgentConfig, Loaded, read_config
from agent.app.yaml_document import ConfigError
from agent.page.ranks_json import PATH, NodeDocument, read as decoded
from agent.web.listen import LOCAL_SOCKET, parse_listen_address

MAX_BYTES = 64 * 1024 * 1024
CONFIG_FILE = Path("/etc/rankwatch/rankwatch.yml")
_UNIX = "unix:"
FIRST_ORDINARY_UID = 1000
"""First uid of people (login.defs(5)); root and services have lower uids."""
_OF_SERVICES = range(61184, 65536)
"""Uids of systemd's services (DynamicUser=), of container images, and the overflow uid of unmapped users."""
_LISTENING = b"0A"
_TABLES = ("net/tcp", "net/tcp6")


class AgentAddress(NamedTuple):
    """Address of the agent: HOST:PORT or unix:FILE.

    ``is_given``: the user gave the address, and so trusts its listener.
    """

    address: str
    is_given: bool = True

    def __str__(self) -> str:
        return self.address

    @property
    def is_local(self) -> bool:
        """Return True for a Unix socket."""
        return self.address.startswith(_UNIX)


DEFAULT_ADDRESS = AgentAddress(DEFAULT_LISTEN_ADDRESS, is_given=False)


class NotReadyError(OSError):
    """The agent replied with HTTP status 503: it is starting, or too slow."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the agent's address."""
    parser.add_argument(
        "--web.listen-address",
        dest="address",
        metavar="HOST:PORT",
        help="the agent's address, or unix:FILE (default: its own socket if you can connect, else the address in its "
        f"configuration, else {DEFAULT_LISTEN_ADDRESS})",
    )
    known = f"its configuration (default {CONFIG_FILE})"
    parser.add_argument("--config.file", dest="config_file", type=Path, metavar="FILE", help=known)


def address_of(flags: argparse.Namespace, local: Path = Path("/run") / LOCAL_SOCKET) -> AgentAddress:
    """Return the agent's address from the flags of ``add_flags``; raises ConfigError as ``configuration`` does."""
    if flags.address is not None:
        return AgentAddress(str(flags.address))
    if flags.config_file is None and _connects(local):
        return AgentAddress(f"{_UNIX}{local}")
    return AgentAddress(configuration(flags.config_file).web.addresses[0], is_given=False)


def configuration(named: Path | None, usual: Path = CONFIG_FILE) -> AgentConfig:
    """Return the configuration in the file ``named``; raises ConfigError if it cannot be read.

    If ``named`` is None, return the configuration in ``usual``, or the defaults if this file is missing or unreadable.
    """
    try:
        path = named or usual
        return Loaded(read_config(path), str(path)).config
    except ConfigError:
        if named is not None:
            raise
        return AgentConfig()


def read(agent: AgentAddress, path: str, seconds: float) -> bytes:
    """Return the agent's reply to a GET of ``path``.

    ``seconds``: timeout without data. Raises OSError if the agent does not reply with status 200, or if another
    ordinary user listens at the port and ``agent.is_given`` is False; ValueError if the address is invalid. Uses no
    proxy: clusters set http_proxy for all users, and no proxy reaches this node.
    """
    connection = _connection(agent, seconds)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read(MAX_BYTES)
        if answer.status != http.HTTPStatus.OK:
            hints = {
                401: "; as root no password is needed",
                404: "; is it an agent of rankwatch?",
                503: "; perhaps it is starting: try again",
            }
            kind = NotReadyError if answer.status == http.HTTPStatus.SERVICE_UNAVAILABLE else OSError
            raise kind(f"HTTP status {answer.status} ({answer.reason}){hints.get(answer.status, '')}")
    except ConnectionRefusedError as error:
        remedy = "systemctl start rankwatch, or rankwatch --config.file FILE; another address: --web.listen-address"
        raise OSError(f"no agent listens there; {remedy}") from error
    except http.client.HTTPException as error:  # not an OSError
        why = "; perhaps it speaks TLS" if isinstance(error, http.client.BadStatusLine) else ""
        raise OSError(f"not an answer in HTTP: {error!r}{why}") from error
    finally:
        connection.close()
    return body


def document(agent: AgentAddress, seconds: float) -> NodeDocument:
    """Return the agent's document about its node; raises OSError or ValueError as ``read`` does."""
    return decoded(read(agent, PATH, seconds))


def is_text(path: Path) -> bool:
    """Return True for a regular file with content, or an inaccessible path.

    The path comes from the agent. The agent of another user can send a device's path, and opening a device can block.
    """
    try:
        status = path.stat()
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size > 0


class _LocalConnection(http.client.HTTPConnection):
    def __init__(self, path: str, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _connection(agent: AgentAddress, seconds: float) -> http.client.HTTPConnection:
    if agent.is_local:
        return _LocalConnection(agent.address.removeprefix(_UNIX), seconds)
    address = parse_listen_address(agent.address)
    if not agent.is_given and (uid := stranger_at(address.port)) is not None:
        raise OSError(f"user {uid} listens at this port; if that is the agent, use --web.listen-address={agent}")
    return http.client.HTTPConnection(address.host or "127.0.0.1", address.port, timeout=seconds)


def _connects(path: Path) -> bool:
    """Return True if an agent listens at this socket and this user has the right to connect."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
        agent.settimeout(1.0)
        try:
            agent.connect(str(path))
        except OSError:
            return False
    return True


def stranger_at(port: int, proc: Path = Path("/proc")) -> int | None:
    """Return the uid of another ordinary user whose process listens at ``port``, or None (blocking)."""
    tables = []
    for name in _TABLES:
        with suppress(OSError):
            tables.append((proc / name).read_bytes())
    return next(
        (
            uid
            for uid in listeners(port, tables)
            if uid >= FIRST_ORDINARY_UID and uid not in _OF_SERVICES and uid != os.geteuid()
        ),
        None,
    )


def listeners(port: int, tables: Iterable[bytes]) -> list[int]:
    """Return the uids of listeners at ``port`` from tables in the format of /proc/net/tcp; skip damaged lines. Pure."""
    uids = []
    for table in tables:
        for line in table.splitlines():
            fields = line.split()
            if len(fields) > 7 and fields[3] == _LISTENING and fields[1].endswith(b":%04X" % port):
                with suppress(ValueError):
                    uids.append(int(fields[7]))
    return uids
