"""Write families as lines of Prometheus' text format 0.0.4 and of OpenMetrics 1.0.0.

The result equals prometheus-client's byte for byte: tests compare them. The head of each line (name and escaped labels)
is built once and cached while the series exists: docs/decisions/0053-rendering.md.
"""

import re
from collections.abc import Collection, Iterator

from agent.core.metrics import Family, Metric

_NON_FINITE = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}
_EXACT_INTEGERS = 1 << 53
"""Every smaller integer is exact as a float."""
_EXPONENT_FROM, _EXPONENT_TO = 1e6, 1e16
"""Numbers in this range are written with an exponent, as Go does. Python uses an exponent only above this range."""
_EXPONENTS = ("", *(f"e+{exponent:02d}" for exponent in range(16)))
"""Exponents by the number of digits before the point."""
PIECE_SERIES = 500
"""Series per piece (about 80 kB): larger pieces exceed the CPU cache, and need new memory mappings at each scrape."""
_ODD = re.compile(r'[\\\n"]')


def number(value: float) -> str:
    """Return a sample's value as prometheus-client writes it: Python's shortest text of a float, with Go's exponents.

    Raises TypeError or OverflowError if it is not a float.
    """
    if type(value) is int and 0 <= value < _EXACT_INTEGERS:  # counters: half the cost of a conversion to float
        digits = str(value)
        if value < _EXPONENT_FROM:
            return digits + ".0"
        return _with_exponent(digits, len(digits))
    value = float(value)
    text = repr(value)
    if _EXPONENT_FROM <= value < _EXPONENT_TO:
        whole, _, fraction = text.partition(".")
        return _with_exponent(whole + fraction, len(whole))
    return _NON_FINITE.get(text, text)


def _with_exponent(digits: str, before_point: int) -> str:
    digits = digits.rstrip("0")
    if len(digits) == 1:
        return digits + _EXPONENTS[before_point]
    return f"{digits[0]}.{digits[1:]}{_EXPONENTS[before_point]}"


class Heads:
    """The series of ``family`` in the last scrape, in order, with the head (name and labels) of each line.

    If a scrape has the same series as the last scrape, no head is built: the labels are only compared.
    """

    def __init__(self, family: Family) -> None:
        self.family = family
        self._labels: list[tuple[str, ...]] = []
        self.heads: list[str] = []
        self._lines: dict[str, str] = {}

    def of(self, labels: list[tuple[str, ...]]) -> list[str]:
        """Return the heads of these series, which replace the cached heads.

        Raises ValueError if a series has too many or too few label values, TypeError for a value that is not text.
        """
        if labels != self._labels:
            known = dict(zip(self._labels, self.heads, strict=True))
            self.heads = [known.get(values) or self._new_head(values) for values in labels]
            self._labels = labels.copy()
        return self.heads

    def _new_head(self, values: tuple[str, ...]) -> str:
        if len(values) != len(self.family.labels):
            raise ValueError(f"{self.family.name}: {len(values)} label values for {len(self.family.labels)} labels")
        shown = map(_escaped, values) if _ODD.search("".join(values)) else values
        suffix = self.family.suffix(values)
        line = self._lines.get(suffix) or self._lines.setdefault(suffix, _line(self.family, suffix))
        head = line.format(*shown)
        if head.isascii():
            return head
        return head.encode("utf-8", "replace").decode()  # lone surrogates become question marks


def _line(family: Family, suffix: str) -> str:
    """Return the template of heads for series with this suffix, with placeholders for the label values."""
    shown = [index for index, label in enumerate(family.labels) if label != "le" or suffix in ("", "_bucket")]
    order = sorted(shown, key=family.labels.__getitem__)
    labels = ",".join(f'{family.labels[index]}="{{{index}}}"' for index in order)
    return f"{family.name}{suffix}{{{{{labels}}}}} " if labels else f"{family.name}{suffix} "


class KeptHeads:
    """The cached heads of the series of the last scrape, by source and family.

    Heads of vanished series are dropped, so the sources' limits bound the cache, too. Only the render thread calls
    this.
    """

    def __init__(self) -> None:
        self.by_source: dict[str, dict[str, Heads]] = {}

    def text(self, source: str, metric: Metric, *, openmetrics: bool) -> Iterator[bytes]:
        """Yield the lines of a family in pieces; ``metric`` has all series of ``source`` in the family."""
        families = self.by_source.setdefault(source, {})
        heads = families.get(metric.family.name)
        if heads is None or heads.family is not metric.family:
            heads = families[metric.family.name] = Heads(metric.family)
        return _lines(metric, heads.of(metric.labels), openmetrics=openmetrics)

    def keep_families(self, source: str, names: Collection[str]) -> None:
        """Drop the families of ``source`` except ``names``."""
        families = self.by_source.get(source, {})
        for name in [family for family in families if family not in names]:
            del families[name]

    def keep_sources(self, names: Collection[str]) -> None:
        """Drop all sources except ``names``."""
        for name in [source for source in self.by_source if source not in names]:
            del self.by_source[name]


def _lines(metric: Metric, heads: list[str], *, openmetrics: bool) -> Iterator[bytes]:
    family = metric.family
    name, described = family.name, family.help.replace("\\", r"\\").replace("\n", r"\n")
    if openmetrics:
        name = family.name.removesuffix("_total") if family.kind == "counter" else family.name
        described = described.replace('"', r"\"")
    yield f"# HELP {name} {described}\n# TYPE {name} {family.kind}\n".encode()
    for start in range(0, len(heads), PIECE_SERIES):
        piece = heads[start : start + PIECE_SERIES]
        parts = ["\n"] * (3 * len(piece))
        parts[0::3] = piece
        parts[1::3] = [number(value) for value in metric.values[start : start + PIECE_SERIES]]
        yield "".join(parts).encode()


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
