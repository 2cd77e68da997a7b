"""HTTP messages for the handlers, and refusals of unsupported requests."""

import email.utils
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qs

import h11

TEXT = "text/plain; charset=utf-8"
_SNIFF = ("X-Content-Type-Options", "nosniff")


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A GET or HEAD request. ``path``: as sent, without the query. ``headers``: values by lower-case name.

    ``client``: name of the client's peer (agent/web/peers.py), or empty. ``is_private``: sent over TLS with a password.
    """

    path: str
    query: Mapping[str, list[str]] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    client: str = ""
    scheme: str = "http"
    is_private: bool = False


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response. The server adds the length, the date and headers of the connection."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def request_of(
    head: h11.Request, query_fields: int, client: str = "", scheme: str = "http"
) -> HttpRequest | HttpResponse:
    """Return the request of ``head``, or the response that refuses it.

    The server refuses other methods than GET and HEAD, other versions than HTTP/1.0 and 1.1, bodies, invalid targets,
    and queries with more than ``query_fields`` fields. ``client``: name of the peer. ``scheme``: http or https.
    """
    headers: dict[str, str] = {}
    for raw_name, raw_value in head.headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    if head.http_version not in (b"1.0", b"1.1"):
        return HttpResponse(505, TEXT, b"Only HTTP/1.0 and HTTP/1.1\n")
    if head.method not in (b"GET", b"HEAD"):
        return HttpResponse(405, TEXT, b"Only GET and HEAD\n", (("Allow", "GET, HEAD"),))
    if "transfer-encoding" in headers or headers.get("content-length", "0").strip("0"):
        return HttpResponse(413, TEXT, b"No request bodies\n")
    path, _, query = head.target.decode("latin-1").partition("?")
    if not path.startswith("/") or "#" in path + query:
        return HttpResponse(400, TEXT, b"The target is not a path\n")
    try:
        fields = parse_qs(query, keep_blank_values=True, errors="strict", max_num_fields=query_fields)
    except ValueError:
        return HttpResponse(400, TEXT, b"The query cannot be read\n")
    return HttpRequest(path, fields, headers, client, scheme)


def head_of(response: HttpResponse, connection: str) -> h11.Response:
    """Return the status line and headers of ``response``. ``connection``: value of header Connection, or empty."""
    headers = [
        ("Content-Type", response.content_type),
        ("Content-Length", str(len(response.body))),
        ("Date", email.utils.formatdate(usegmt=True)),
        *response.headers,
    ]
    if _SNIFF[0] not in dict(response.headers):  # the web file can set it
        headers.append(_SNIFF)
    if connection:
        headers.append(("Connection", connection))
    reason = HTTPStatus(response.status).phrase.encode()
    return h11.Response(status_code=response.status, headers=headers, reason=reason)
