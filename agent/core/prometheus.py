"""Query a Prometheus through its HTTP API, version 1."""

import base64
import http.client
import math
import re
import ssl
import urllib.parse
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

ASK_SECONDS = 10.0
_PORT = re.compile(r"(?:[^:\[\]]*|\[[^\[\]]*\])(?::[0-9]*)?")
"""Matches a host with an optional port in an address."""
_LOOPBACK = re.compile(r"localhost|127(\.\d{1,3}){3}|::1")
MAX_ANSWER_BYTES = 64 * 1024 * 1024
NOT_PROMETHEUS = "this is not the answer of a Prometheus; is the URL right?"


class Sample(NamedTuple):
    """A series of an instant query: its labels and its value."""

    labels: Mapping[str, str]
    value: float


class Line(NamedTuple):
    """A series of a range query: its labels and its points (epoch seconds, value) in ascending order."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


class _Answer(msgspec.Struct):
    status: str
    data: Any = None


class _Series(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str] = (0.0, "nan")
    values: list[tuple[float, str]] = []


class _Result(msgspec.Struct):
    result: list[_Series]


def samples(url: str, expression: str, at_seconds: float | None = None) -> list[Sample]:
    """Return the finite samples of an instant query at ``at_seconds`` (None: now); raises the errors of ``get``."""
    at = {} if at_seconds is None else {"time": f"{at_seconds:.3f}"}
    answer = _query(url, "query", {"query": expression, **at})
    return [Sample(line.labels, line.points[0][1]) for line in answer if line.points]


def lines(url: str, expression: str, start_seconds: float, end_seconds: float, step_seconds: float) -> list[Line]:
    """Return the series of a range query with their finite points; raises the errors of ``get``."""
    times = {"start": f"{start_seconds:.3f}", "end": f"{end_seconds:.3f}", "step": f"{step_seconds:.3f}"}
    return _query(url, "query_range", {"query": expression, **times})


def _query(url: str, path: str, query: Mapping[str, str]) -> list[Line]:
    series = []
    for line in get(url, f"/api/v1/{path}", query, _Result).result:
        points = ((at, float(value)) for at, value in line.values or [line.value])
        series.append(Line(line.metric, tuple(point for point in points if math.isfinite(point[1]))))
    return series


def get(url: str, path: str, query: Mapping[str, str], type_: Any = Any) -> Any:
    """Return the data of Prometheus' answer; ``url`` is http or https, optionally with path, user and password.

    Raises OSError unless a status 200 comes back; ValueError if ``url`` is invalid or the data is not a ``type_``.
    """
    parts = _parts(url)
    host = parts.hostname or ""
    connection = http.client.HTTPConnection(host, parts.port, timeout=ASK_SECONDS)
    if parts.scheme == "https":
        tls = ssl.create_default_context()
        connection = http.client.HTTPSConnection(host, parts.port, timeout=ASK_SECONDS, context=tls)
    try:
        target = f"{parts.path.rstrip('/')}{path}?{urllib.parse.urlencode(query)}"
        connection.request("GET", target, headers=_headers(parts))
        answer = connection.getresponse()
        body = answer.read(MAX_ANSWER_BYTES)
        if answer.status != http.HTTPStatus.OK:
            hint = ": no Prometheus? (an agent: rankwatch status)" if answer.status == http.HTTPStatus.NOT_FOUND else ""
            raise OSError(f"HTTP status {answer.status} ({answer.reason}){hint}")
        return msgspec.convert(msgspec.json.decode(body, type=_Answer).data, type_)
    except msgspec.MsgspecError:
        raise ValueError(NOT_PROMETHEUS) from None
    except ConnectionRefusedError as error:
        raise OSError("no Prometheus listens there") from error
    except TimeoutError as error:
        raise OSError(f"timed out after {ASK_SECONDS:g} s; a firewall, or another service?") from error
    except http.client.HTTPException as error:  # not an OSError
        raise OSError(f"not an answer in HTTP: {error!r}") from error
    finally:
        connection.close()


def shown(url: str) -> str:
    """Return the address without user and password; of an invalid address return only the text after the last @."""
    scheme, mark, rest = url.partition("//") if "//" in url else ("", "", url)
    host, slash, path = rest.partition("/")
    if "@" not in host and _PORT.fullmatch(host) is None:  # a slash in the password
        return f"{scheme}{mark}{rest.rpartition('@')[2]}"
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}"


def shows_password(url: str) -> bool:
    """Return True if a user and password in the address would cross the network unencrypted."""
    parts = _parts(url)
    is_near = _LOOPBACK.fullmatch(parts.hostname or "") is not None
    return parts.scheme == "http" and parts.username is not None and not is_near


def _parts(url: str) -> urllib.parse.SplitResult:
    try:
        parts = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the error's text can contain part of the password
        is_address = False
    if not is_address:
        raise ValueError(f"{shown(url)!r} is no address such as http://prometheus:9090") from None
    return parts


def _headers(parts: urllib.parse.SplitResult) -> dict[str, str]:
    if parts.username is None:
        return {}
    pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
    return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
