"""Families as lines of Prometheus' text format 0.0.4 and of OpenMetrics 1.0.0.

Byte for byte what prometheus-client writes, which is the reference of the tests. What the line of a series begins with
(name and escaped labels) is made once and kept for as long as the series is given: docs/decisions/0050-rendering.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from agent.core.metrics import Family, Metric

_NON_FINITE = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}
_EXACT_INTEGERS = 1 << 53
"""Every whole number below it is a float of its own."""
_PLAIN_DIGITS = 6
_EXPONENT_FROM, _EXPONENT_TO = 1e6, 1e16
"""Numbers between are written with an exponent, as Go does; those above Python writes so by itself."""


def number(value: float) -> str:
    """Return a sample's value as the reference writes it: Python's shortest text of the float, with Go's exponents.

    TypeError or OverflowError for what is no float.
    """
    if type(value) is int and 0 <= value < _EXACT_INTEGERS:  # counters: half the cost of the way by a float
        digits = str(value)
        if len(digits) <= _PLAIN_DIGITS:
            return f"{digits}.0"
        return f"{f'{digits[0]}.{digits[1:]}'.rstrip('0.')}e+{len(digits) - 1:02d}"
    value = float(value)
    text = repr(value)
    if _EXPONENT_FROM <= value < _EXPONENT_TO:
        whole, _, fraction = text.partition(".")
        return f"{f'{whole[0]}.{whole[1:]}{fraction}'.rstrip('0.')}e+{len(whole) - 1:02d}"
    return _NON_FINITE.get(text, text)


class Heads(dict[tuple[str, ...], str]):
    """By label values, in the declared order: a newline, the name and the labels of a series of ``family``.

    One that is not there is made when it is asked for; ValueError when there are not as many values as labels.
    """

    def __init__(self, family: Family) -> None:
        super().__init__()
        self.family = family

    def __missing__(self, values: tuple[str, ...]) -> str:
        pairs = sorted(zip(self.family.labels, values, strict=True))
        labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs)
        made = self[values] = f"\n{self.family.name}{{{labels}}} " if labels else f"\n{self.family.name} "
        return made

    def only(self, labels: Iterable[tuple[str, ...]]) -> Heads:
        """Return the heads of these series alone."""
        fresh = Heads(self.family)
        fresh.update((values, self[values]) for values in labels)
        return fresh


class KeptHeads:
    """The heads of all series that sources gave last: of those given no more nothing is kept.

    Bounded, therefore, by the sources' caps. Owned by the render thread: every method is called there.
    """

    def __init__(self) -> None:
        self._by_source: dict[str, dict[str, Heads]] = {}

    def __len__(self) -> int:
        """How many series are known."""
        return sum(len(heads) for families in self._by_source.values() for heads in families.values())

    def text(self, source: str, metric: Metric, *, openmetrics: bool) -> bytes:
        """Return the lines of a family of which ``source`` gives these series, each once, and no others."""
        families = self._by_source.setdefault(source, {})
        heads = families.get(metric.family.name)
        if heads is None or heads.family is not metric.family:
            heads = families[metric.family.name] = Heads(metric.family)
        text = text_of(metric, heads, openmetrics=openmetrics)
        if len(heads) > len(metric.labels):  # all of these are known now: what is known beyond them is gone
            families[metric.family.name] = heads.only(metric.labels)
        return text

    def keep_families(self, source: str, names: Collection[str]) -> None:
        """Forget the families of ``source`` but those named."""
        families = self._by_source.get(source, {})
        for name in [each for each in families if each not in names]:
            del families[name]

    def keep_sources(self, names: Collection[str]) -> None:
        """Forget all sources but those named."""
        for name in [each for each in self._by_source if each not in names]:
            del self._by_source[name]


def text_of(metric: Metric, heads: Heads, *, openmetrics: bool) -> bytes:
    """Return the lines of a family with at least one series, each given once; ``heads`` takes those it has not yet."""
    family = metric.family
    name, described = family.name, family.help.replace("\\", r"\\").replace("\n", r"\n")
    if openmetrics:
        name, described = family.openmetrics_name, described.replace('"', r"\"")
    parts = [f"# HELP {name} {described}\n# TYPE {name} {family.kind}"] * (1 + 2 * len(metric.labels))
    parts[1::2] = [heads[values] for values in metric.labels]
    parts[2::2] = [number(value) for value in metric.values]
    parts.append("\n")
    return "".join(parts).encode()


def _escaped(value: str) -> str:
    """Return a label's value as it stands between quotes; what UTF-8 cannot hold becomes question marks."""
    escaped = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return escaped.encode("utf-8", "replace").decode()
