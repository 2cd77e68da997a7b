"""Asks a running agent of this node for its metrics."""

from __future__ import annotations

import http.client
import urllib.request

from agent.web.listen import parse_listen_address

MAX_BYTES = 64 * 1024 * 1024


def read(listens: str, query: str, seconds: float) -> str:
    """The metrics that ``query`` selects, of the agent that listens at ``listens`` (HOST:PORT).

    ``seconds``: how long it may be silent. OSError or ValueError where it does not answer.
    """
    address = parse_listen_address(listens)
    page = f"http://{address if address.host else f'127.0.0.1:{address.port}'}/metrics"
    # Never by way of a proxy: clusters set http_proxy for everybody, and no proxy reaches this node's loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{page}?{query}", timeout=seconds) as answer:  # always http, to our own agent
            body: bytes = answer.read(MAX_BYTES)
    except http.client.HTTPException as error:  # which is no OSError
        raise OSError(f"not an answer in HTTP: {error!r}") from error
    return body.decode("utf-8", "replace")
