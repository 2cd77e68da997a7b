"""Asks the running agent of this node: where it listens, whose the port is, and what it answers."""

import argparse
import http.client
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from agent.app.config import DEFAULT_LISTEN_ADDRESS, AgentConfig, Loaded, read_config
from agent.app.yaml_document import ConfigError
from agent.web.listen import LOCAL_SOCKET, parse_listen_address

MAX_BYTES = 64 * 1024 * 1024
CONFIG_FILE = Path("/etc/rankwatch/rankwatch.yml")
_UNIX = "unix:"
FIRST_ORDINARY_UID = 1000
"""Of people (login.defs(5)); services and root have less."""
_OF_SERVICES = range(61184, 65536)
"""User ids that systemd makes for a service (DynamicUser=), those of container images, and the overflow user id: that
of users without a number in this user namespace."""
_LISTENING = b"0A"
_TABLES = ("net/tcp", "net/tcp6")


class AgentPlace(NamedTuple):
    """Where the agent listens: HOST:PORT or unix:FILE. ``is_given``: by who asks, who then answers for it."""

    address: str
    is_given: bool = True

    def __str__(self) -> str:
        return self.address


DEFAULT_PLACE = AgentPlace(DEFAULT_LISTEN_ADDRESS, is_given=False)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say where the agent listens."""
    parser.add_argument(
        "--web.listen-address",
        dest="address",
        metavar="HOST:PORT",
        help="where the agent serves, or unix:FILE (default: its own socket where that may be used, else as its "
        f"configuration says, else {DEFAULT_LISTEN_ADDRESS})",
    )
    known = f"its configuration (default {CONFIG_FILE})"
    parser.add_argument("--config.file", dest="config_file", type=Path, metavar="FILE", help=known)


def place_of(flags: argparse.Namespace, local: Path = Path("/run") / LOCAL_SOCKET) -> AgentPlace:
    """Where the agent listens, by the flags of ``add_flags``.

    ConfigError for a configuration that was named and cannot be read; the default one may be missing, and other users
    than the agent's need not be able to read it.
    """
    if flags.address is not None:
        return AgentPlace(str(flags.address))
    named: Path | None = flags.config_file
    if named is None and _connects(local):
        return AgentPlace(f"{_UNIX}{local}")
    try:
        path = named or CONFIG_FILE
        config: AgentConfig = Loaded(read_config(path), str(path)).config
        return AgentPlace(config.web.addresses[0], is_given=False)
    except ConfigError:
        if named is not None:
            raise
        return DEFAULT_PLACE


def read(agent: AgentPlace, path: str, seconds: float) -> bytes:
    """What ``agent`` answers at ``path``, its query included.

    ``seconds``: how long it may be silent. Raise OSError where it does not answer, or not with 200, or an ordinary
    user has the default port; ValueError where its address is no address. It uses no proxy: clusters set http_proxy for
    all users, and no proxy reaches this node.
    """
    connection = _connection(agent, seconds)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read(MAX_BYTES)
        if answer.status != http.HTTPStatus.OK:
            raise OSError(_refusal(answer.status, answer.reason))
    except ConnectionRefusedError as error:
        raise OSError("no agent listens there: systemctl start rankwatch, or rankwatch --config.file FILE") from error
    except http.client.HTTPException as error:  # which is no OSError
        why = "; it may speak TLS" if isinstance(error, http.client.BadStatusLine) else ""
        raise OSError(f"not an answer in HTTP: {error!r}{why}") from error
    finally:
        connection.close()
    return body


def _refusal(status: int, reason: str) -> str:
    hint = "; as root no password is needed" if status == http.HTTPStatus.UNAUTHORIZED else ""
    return f"HTTP status {status} ({reason}){hint}"


class _LocalConnection(http.client.HTTPConnection):
    def __init__(self, path: str, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _connection(agent: AgentPlace, seconds: float) -> http.client.HTTPConnection:
    if agent.address.startswith(_UNIX):
        return _LocalConnection(agent.address.removeprefix(_UNIX), seconds)
    address = parse_listen_address(agent.address)
    if not agent.is_given and (uid := stranger_at(address.port)) is not None:
        raise OSError(f"the port is user {uid}'s; if that is the agent, say --web.listen-address={agent}")
    return http.client.HTTPConnection(address.host or "127.0.0.1", address.port, timeout=seconds)


def _connects(path: Path) -> bool:
    """Return whether an agent listens there, and lets us in."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as tried:
        tried.settimeout(1.0)
        try:
            tried.connect(str(path))
        except OSError:
            return False
    return True


def stranger_at(port: int, proc: Path = Path("/proc")) -> int | None:
    """Return the uid of another ordinary user who listens at ``port``, else None (blocking)."""
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
    """The uids of those who listen at ``port``, by tables as /proc/net/tcp. Lines that are none are left out. Pure."""
    uids = []
    for table in tables:
        for line in table.splitlines():
            fields = line.split()
            if len(fields) > 7 and fields[3] == _LISTENING and fields[1].endswith(b":%04X" % port):
                with suppress(ValueError):
                    uids.append(int(fields[7]))
    return uids
