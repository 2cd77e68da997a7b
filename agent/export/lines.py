"""Families as lines of Prometheus' text format 0.0.4 and of OpenMetrics 1.0.0.

Byte for byte what prometheus-client writes, which is the reference of the tests. What the line of a series begins with
(name and escaped labels) is made once and kept for as long as the series is given: docs/decisions/0053-rendering.md.
"""

import re
from collections.abc import Collection, Iterator

from agent.core.metrics import Family, Metric

_NON_FINITE = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}
_EXACT_INTEGERS = 1 << 53
"""Every whole number below it is a float of its own."""
_EXPONENT_FROM, _EXPONENT_TO = 1e6, 1e16
"""Numbers between are written with an exponent, as Go does; those above Python writes so by itself."""
_EXPONENTS = ("", *(f"e+{exponent:02d}" for exponent in range(16)))
"""By the number of digits before the point."""
PIECE_SERIES = 500
"""Pieces of about 80 kB: larger ones leave the CPU cache, and the allocator maps them again at each scrape."""
_ODD = re.compile(r'[\\\n"]')


def number(value: float) -> str:
    """Return a sample's value as the reference writes it: Python's shortest text of the float, with Go's exponents.

    TypeError or OverflowError for what is no float.
    """
    if type(value) is int and 0 <= value < _EXACT_INTEGERS:  # counters: half the cost of the way by a float
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
    """The series of ``family`` as last given, in their order, and the head of each: name and labels, as lines begin.

    Series mostly come as they came before: then comparing their labels is all there is to do.
    """

    def __init__(self, family: Family) -> None:
        self.family = family
        self._labels: list[tuple[str, ...]] = []
        self._heads: list[str] = []
        self._lines: dict[str, str] = {}

    def __len__(self) -> int:
        """Return how many series are kept."""
        return len(self._heads)

    def of(self, labels: list[tuple[str, ...]]) -> list[str]:
        """Return the heads of these series, and keep them instead of those of before.

        ValueError where a series has not as many values as the family has labels, TypeError where one is no text.
        """
        if labels != self._labels:
            known = dict(zip(self._labels, self._heads, strict=True))
            self._heads = [known.get(values) or self._made(values) for values in labels]
            self._labels = labels.copy()
        return self._heads

    def _made(self, values: tuple[str, ...]) -> str:
        if len(values) != len(self.family.labels):
            raise ValueError(f"{self.family.name}: {len(values)} label values for {len(self.family.labels)} labels")
        shown = map(_escaped, values) if _ODD.search("".join(values)) else values
        suffix = self.family.suffix(values)
        line = self._lines.get(suffix) or self._lines.setdefault(suffix, _line(self.family, suffix))
        made = line.format(*shown)
        if made.isascii():
            return made
        return made.encode("utf-8", "replace").decode()  # lone surrogates become question marks


def _line(family: Family, suffix: str) -> str:
    """Return the head of a series whose name has this suffix, with places for the label values."""
    shown = [index for index, label in enumerate(family.labels) if label != "le" or suffix == "_bucket"]
    order = sorted(shown, key=family.labels.__getitem__)
    labels = ",".join(f'{family.labels[index]}="{{{index}}}"' for index in order)
    return f"{family.name}{suffix}{{{{{labels}}}}} " if labels else f"{family.name}{suffix} "


class KeptHeads:
    """The heads of all series that sources gave last: of those given no more nothing is kept.

    Bounded, therefore, by the sources' caps. Owned by the render thread: every method is called there.
    """

    def __init__(self) -> None:
        self._by_source: dict[str, dict[str, Heads]] = {}

    def __len__(self) -> int:
        """Return how many series are kept."""
        return sum(len(heads) for families in self._by_source.values() for heads in families.values())

    def text(self, source: str, metric: Metric, *, openmetrics: bool) -> Iterator[bytes]:
        """Yield the lines of a family in pieces: the series in ``metric``, all that ``source`` has of it."""
        families = self._by_source.setdefault(source, {})
        heads = families.get(metric.family.name)
        if heads is None or heads.family is not metric.family:
            heads = families[metric.family.name] = Heads(metric.family)
        return _lines(metric, heads.of(metric.labels), openmetrics=openmetrics)

    def keep_families(self, source: str, names: Collection[str]) -> None:
        """Forget the families of ``source`` but those named."""
        families = self._by_source.get(source, {})
        for name in [family for family in families if family not in names]:
            del families[name]

    def keep_sources(self, names: Collection[str]) -> None:
        """Forget all sources but those named."""
        for name in [source for source in self._by_source if source not in names]:
            del self._by_source[name]


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
