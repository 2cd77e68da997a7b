"""What a scrape asks for, and families as the bytes that answer it. Pure."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import exposition as text
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics

GZIP_LEVEL = 1
"""Metrics shrink tenfold at the cheapest level; more buys little and costs the scraped node."""
_OPENMETRICS_VERSIONS = ("", "1.0.0")


@dataclass(frozen=True, slots=True)
class Selection:
    """What one scrape wants: equal selections get equal bytes.

    ``collect``: these exporters only (None: all); ``exclude``: all but these; ``names``: only series or families of
    these names (empty: all); the format and compression of the answer.
    """

    collect: frozenset[str] | None = None
    exclude: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    openmetrics: bool = False
    gzip: bool = False

    def takes(self, exporter: str) -> bool:
        """Say whether ``exporter`` is wanted."""
        return exporter not in self.exclude and (self.collect is None or exporter in self.collect)


@dataclass(frozen=True, slots=True)
class Rendered:
    """An exposition: its bytes, content type, and content encoding (``gzip`` or empty)."""

    body: bytes
    content_type: str
    encoding: str = ""


class SelectionError(ValueError):
    """A scrape asks for what does not exist or cannot be; the text says what."""


def select(query: Mapping[str, Sequence[str]], headers: Mapping[str, str], exporters: frozenset[str]) -> Selection:
    """Return what a request for metrics wants; SelectionError when it cannot be had.

    ``collect[]`` and ``exclude[]`` name some of ``exporters`` and exclude each other, as in node_exporter; ``name[]``
    names series or families. ``headers`` by lower-case name.
    """
    collect, exclude = frozenset(query.get("collect[]", ())), frozenset(query.get("exclude[]", ()))
    if collect and exclude:
        raise SelectionError("collect[] and exclude[] cannot be combined")
    if unknown := sorted((collect | exclude) - exporters):
        raise SelectionError(f"no such exporter, or not enabled: {', '.join(unknown)}")
    return Selection(
        collect=collect or None,
        exclude=exclude,
        names=frozenset(query.get("name[]", ())),
        openmetrics=wants_openmetrics(headers.get("accept", "")),
        gzip=_quality(headers.get("accept-encoding", ""), ("gzip", "x-gzip")) > 0,
    )


def wants_openmetrics(accept: str) -> bool:
    """Say whether the Accept header prefers OpenMetrics 1.0.0 to the text format; without a word, it does not."""
    versions = [m for m in _media(accept) if m[0] == "application/openmetrics-text" and m[1] in _OPENMETRICS_VERSIONS]
    quality = max((q for _, _, q in versions), default=0.0)
    return quality > 0 and quality >= _quality(accept, ("text/plain",))


def encode(families: Iterable[Metric], selection: Selection) -> Rendered:
    """Return ``families``, cut down to the selection's names, in its format; which exporters is the caller's matter.

    Characters that UTF-8 cannot hold become question marks.
    """
    chosen = [_restricted(family, selection.names) for family in families] if selection.names else list(families)
    chosen = [family for family in chosen if family.samples]
    try:
        body = _generate(chosen, selection)
    except UnicodeEncodeError:  # a lone surrogate, from a name that was no UTF-8
        body = _generate([_encodable(family) for family in chosen], selection)
    content_type = openmetrics.CONTENT_TYPE_LATEST if selection.openmetrics else text.CONTENT_TYPE_PLAIN_0_0_4
    if selection.gzip:
        return Rendered(gzip.compress(body, GZIP_LEVEL, mtime=0), content_type, "gzip")
    return Rendered(body, content_type)


class _Families:
    """As much of a registry as the client's encoders look at."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


def _generate(families: list[Metric], selection: Selection) -> bytes:
    generate = openmetrics.generate_latest if selection.openmetrics else text.generate_latest
    body: bytes = generate(_Families(families))
    return body


def _copy(family: Metric) -> Metric:
    return Metric(family.name, family.documentation, family.type, family.unit)


def _restricted(family: Metric, names: frozenset[str]) -> Metric:
    if family.name in names:
        return family
    cut = _copy(family)
    cut.samples = [sample for sample in family.samples if sample.name in names]
    return cut


def _encodable(family: Metric) -> Metric:
    clean = _copy(family)
    clean.samples = [
        sample._replace(labels={k: v.encode("utf-8", "replace").decode() for k, v in sample.labels.items()})
        for sample in family.samples
    ]
    return clean


def _media(header: str) -> list[tuple[str, str, float]]:
    """Return (value, version, quality) of each entry of an Accept-like header; a quality that is no number is 0."""
    entries = []
    for entry in header.lower().split(","):
        value, *parameters = (part.strip() for part in entry.split(";"))
        named = dict(parameter.partition("=")[::2] for parameter in parameters)
        try:
            quality = float(named.get("q", "1"))
        except ValueError:
            quality = 0.0
        entries.append((value, named.get("version", ""), quality))
    return entries


def _quality(header: str, values: tuple[str, ...]) -> float:
    """Return the greatest quality that ``header`` gives to one of ``values``, 0 when it names none."""
    return max((quality for value, _, quality in _media(header) if value in values), default=0.0)
