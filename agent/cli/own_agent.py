"""Asks the running agent of this node: where it listens, and what it answers."""

from __future__ import annotations

import argparse
import http.client
import urllib.error
import urllib.request
from pathlib import Path

from agent.app.config import DEFAULT_LISTEN_ADDRESS, AgentConfig, Loaded, read_config
from agent.app.yaml_document import ConfigError
from agent.web.listen import parse_listen_address

MAX_BYTES = 64 * 1024 * 1024
CONFIG_FILE = Path("/etc/rankwatch/rankwatch.yml")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say where the agent listens."""
    parser.add_argument(
        "--web.listen-address",
        dest="address",
        metavar="HOST:PORT",
        help=f"where the agent serves (default: as its configuration says, else {DEFAULT_LISTEN_ADDRESS})",
    )
    parser.add_argument(
        "--config.file",
        dest="config_file",
        type=Path,
        metavar="FILE",
        help=f"its configuration (default {CONFIG_FILE})",
    )


def address_of(flags: argparse.Namespace) -> str:
    """Where the agent listens, by the flags of ``add_flags``.

    ConfigError for a configuration that was named and cannot be read; the default one may be missing, and other users
    than the agent's need not be able to read it.
    """
    if flags.address is not None:
        return str(flags.address)
    named: Path | None = flags.config_file
    try:
        path = named or CONFIG_FILE
        config: AgentConfig = Loaded(read_config(path), str(path)).config
        return config.web.listen_address
    except ConfigError:
        if named is not None:
            raise
        return DEFAULT_LISTEN_ADDRESS


def read(listens: str, path: str, seconds: float) -> bytes:
    """What the agent that listens at ``listens`` (HOST:PORT) answers at ``path``, its query included.

    ``seconds``: how long it may be silent. OSError where it does not answer, or not with 200; ValueError where
    ``listens`` is no address.
    """
    address = parse_listen_address(listens)
    url = f"http://{address if address.host else f'127.0.0.1:{address.port}'}{path}"
    # Never by way of a proxy: clusters set http_proxy for everybody, and no proxy reaches this node's loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=seconds) as answer:  # always http, to our own agent
            body: bytes = answer.read(MAX_BYTES)
    except http.client.HTTPException as error:  # which is no OSError
        raise OSError(f"not an answer in HTTP: {error!r}") from error
    return body


def reason_of(error: Exception) -> str:
    """What to say of an agent that does not answer."""
    return str(error.reason if isinstance(error, urllib.error.URLError) else error)
