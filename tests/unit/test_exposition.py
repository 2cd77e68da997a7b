import gzip

import pytest
from client_metrics import encode

from agent.core.metrics import Family, Metric
from agent.export.exposition import Selection, SelectionError, select

KNOWN = frozenset({"process", "inspector", "nvml"})
# What Prometheus 2.42 and 3.5 send, from their documentation.
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
    """OpenMetrics is given to who names it, the text format to everybody else; likewise gzip."""
    assert select({}, {"accept": accept}, KNOWN).openmetrics is openmetrics
    assert select({}, {"accept-encoding": "br, gzip;q=1"}, KNOWN).gzip
    assert not select({}, {"accept-encoding": "br"}, KNOWN).gzip
    assert not select({}, {"accept-encoding": "gzip; q=0.000, br"}, KNOWN).gzip


def test_query_makes_the_selection() -> None:
    """collect[] and exclude[] may be repeated, and their order does not matter."""
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
    """What cannot be combined or does not exist is refused by name."""
    with pytest.raises(SelectionError, match=message):
        select(query, {}, KNOWN)


RANK_UP = Family("rankwatch_rank_up", "gauge", "Up.", ("rank",))


def families() -> list[Metric]:
    """Make one family of each kind, and an empty one."""
    counter = Family("rankwatch_x_bytes_total", "counter", "Bytes.").single(3.5)
    return [Metric(RANK_UP, [("0",), ("1",)], [1, 0]), counter, Family("rankwatch_empty", "gauge", "E.").rows().metric]


TEXT = """\
# HELP rankwatch_rank_up Up.
# TYPE rankwatch_rank_up gauge
rankwatch_rank_up{rank="0"} 1.0
rankwatch_rank_up{rank="1"} 0.0
# HELP rankwatch_x_bytes_total Bytes.
# TYPE rankwatch_x_bytes_total counter
rankwatch_x_bytes_total 3.5
"""


def test_gzip_holds_the_same() -> None:
    """A compressed exposition decompresses to the plain one, and holds no time: the same bytes each time."""
    rendered = encode(families(), Selection(gzip=True))
    assert (rendered.encoding, gzip.decompress(rendered.body).decode()) == ("gzip", TEXT)
    assert rendered.body[4:8] == bytes(4)  # MTIME of RFC 1952
