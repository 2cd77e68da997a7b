"""Exposition of families, compared with prometheus-client's encoders, and the selection of a request."""

import pytest
from client_metrics import encode, reference
from hypothesis import example, given, strategies as st
from prometheus_client.utils import floatToGoString

from agent.core.metrics import Family, Metric
from agent.export.exposition import Selection, SelectionError, select
from agent.export.lines import KeptHeads, number

FAMILY = Family("rankwatch_x_seconds_total", "counter", "help", ("b", "a"))


@given(st.one_of(st.floats(), st.integers(-(2**70), 2**70), st.booleans()))
@example(float(2**53))
@example(999_999.5)
@example(1e6)
@example(1e16)
def test_any_number_is_written_as_the_client_does(value: float) -> None:
    """Any number is encoded as by prometheus-client."""
    assert number(value) == floatToGoString(value)


@given(st.text(), st.text(), st.text())
def test_any_text_is_written_as_the_client_does(one: str, other: str, described: str) -> None:
    """Any label and help text is encoded as by prometheus-client."""
    metric = Metric(Family("rankwatch_x", "gauge", described, ("b", "a")), [(one, other)], [1])
    for openmetrics in (False, True):
        assert encode([metric], Selection(openmetrics=openmetrics)).body == reference(
            [metric], openmetrics_format=openmetrics
        )


def test_labels_that_do_not_fit_are_refused() -> None:
    """Too few or too many label values, or values that are no text, are an error."""
    for wrong in (("only",), ("one", "two", "three"), ("one", 2)):
        with pytest.raises((ValueError, TypeError)):
            list(KeptHeads().text("one", Metric(FAMILY, [wrong], [1]), openmetrics=False))  # type: ignore[list-item]


def test_what_is_kept_is_what_was_given_last() -> None:
    """The encoded labels of a series are kept while the series appears in every update, and no longer."""
    heads = KeptHeads()
    series = [(str(number), "x") for number in range(10)]
    for given_now in (series, series, series[3:], [*series[3:], ("new", "y")], [("new", "y")]):
        metric = Metric(FAMILY, given_now, [1.0] * len(given_now))
        assert b"".join(heads.text("one", metric, openmetrics=False)) == reference([metric])
        assert sum(len(kept.heads) for family in heads.by_source.values() for kept in family.values()) == len(given_now)


KNOWN = frozenset({"process", "inspector", "nvml"})
# The Accept headers of Prometheus 2.42 and 3.5, from their documentation.
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;"
    "q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(("accept", "openmetrics"), [
    ("", False), ("*/*", False), ("text/html,*/*;q=0.8", False), (PROMETHEUS_2, True), (PROMETHEUS_3, True),
    ("Application/OpenMetrics-Text; Version=1.0.0", True), (";;,=;q,,", False),
])  # fmt: skip
def test_format_is_negotiated(accept: str, openmetrics: bool) -> None:
    """A client that accepts OpenMetrics gets OpenMetrics, any other the text format; gzip is used only if accepted."""
    assert select({}, {"accept": accept}, KNOWN).openmetrics is openmetrics
    assert select({}, {"accept-encoding": "br, gzip;q=1"}, KNOWN).gzip
    assert not select({}, {"accept-encoding": "br"}, KNOWN).gzip
    assert not select({}, {"accept-encoding": "gzip; q=0.000, br"}, KNOWN).gzip


def test_query_makes_the_selection() -> None:
    """collect[] and exclude[] can be repeated, and their order does not matter."""
    one = select({"collect[]": ["nvml", "process"]}, {}, KNOWN)
    other = select({"collect[]": ["process", "nvml"], "unheard": ["of"]}, {}, KNOWN)
    assert one == other == Selection(collect=frozenset({"nvml", "process"}))
    assert hash(one) == hash(other)
    assert [name for name in sorted(KNOWN) if one.takes(name)] == ["nvml", "process"]
    without = select({"exclude[]": ["nvml"]}, {}, KNOWN)
    assert [name for name in sorted(KNOWN) if without.takes(name)] == ["inspector", "process"]
    assert all(select({}, {}, KNOWN).takes(name) for name in KNOWN)


@pytest.mark.parametrize(("query", "message"), [
    ({"collect[]": ["nvml"], "exclude[]": ["process"]}, "cannot be combined"),
    ({"collect[]": ["nvml", "gone"]}, "gone"),
    ({"exclude[]": ["gone"]}, "gone"),
    ({"collect[]": [""]}, "no such exporter"),
])  # fmt: skip
def test_odd_query_is_refused(query: dict[str, list[str]], message: str) -> None:
    """An unknown exporter, and collect[] together with exclude[], are refused with a reason."""
    with pytest.raises(SelectionError, match=message):
        select(query, {}, KNOWN)
