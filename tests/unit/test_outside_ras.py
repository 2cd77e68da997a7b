"""RAS: damaged reports and events."""

import itertools
import re
from collections.abc import Iterable

import msgspec
import pytest
import ras_reports
from hypothesis import given, settings, strategies as st
from lent import Admission
from odd_values import damaged, shown
from test_ras_client import TEXT
from test_ras_transcripts import transcripts

from agent.sdk.ranks import ProcessFacts, ProcessKey, PublishedProcess
from exporters.ras.protocol.client import EVENTS, MAX_EVENT_BYTES, MAX_REPORT_BYTES, OTHER, split_events
from exporters.ras.query.reports import Reports
from exporters.ras.query.runner import READER
from exporters.ras.query.witness import named_here, silences
from exporters.ras.report.json_report import ReadRequest, ReportReading, read
from exporters.ras.show import render_reports

MAX_BODY = 6_000


def telling(bodies: Iterable[bytes]) -> list[bytes]:
    """Return as few texts as possible that together have every line of all texts; numbers count as equal."""
    unchosen = {body: {re.sub(rb"[0-9a-f]+", b"0", line) for line in body.splitlines()} for body in sorted(bodies)}
    chosen: list[bytes] = []
    while best := max(unchosen, key=lambda body: len(unchosen[body]), default=None):
        lines = unchosen.pop(best)
        chosen.append(best)
        unchosen = {body: rest for body, own in unchosen.items() if (rest := own - lines)}
    return chosen


REPORTS = [body for body in transcripts().values() if len(body) < MAX_BODY]
JSON_REPORTS = telling(body for body in REPORTS if body.startswith(b"{"))
TEXT_REPORTS = telling(body for body in REPORTS if b"CL version" in body[:12])
ME = PublishedProcess(0.0, facts=ProcessFacts(ProcessKey(1, 1), 0.0, 1, "ann", "thread"))


def keep(reports: Reports, body: bytes, at: float) -> ReportReading:
    """Read a reply as in a helper process, keep its report, render it, and name the silent ranks."""
    reading = read(ReadRequest(body.startswith(b"{"), frozenset(range(1, 3000))), body)
    reading = msgspec.msgpack.decode(msgspec.msgpack.encode(reading), type=ReportReading)
    if reading.report is not None:
        reports.keep(ME, reading.report, at, at)
        hosts = dict(named_here(reading.report, {pid: [ProcessKey(pid, 1)] for pid in (1, 1234)}))
        silences({}, reading.report, [], hosts, (at, at))
    shown(render_reports({job.job_id: job_report for job, job_report in reports.by_job.items()}))
    return reading


@pytest.mark.slow
@pytest.mark.parametrize(("bodies", "odd"), [
    (JSON_REPORTS, damaged(*JSON_REPORTS)), (TEXT_REPORTS, damaged(*TEXT_REPORTS)),
], ids=["json", "text"])  # fmt: skip
@settings(max_examples=250, deadline=None)
@given(data=st.data())
def test_any_reply_is_a_report_or_a_reason(
    bodies: list[bytes], odd: st.SearchStrategy[bytes], data: st.DataObject
) -> None:
    """A damaged report is read or refused; one that is read can be compared and shown."""
    reports = Reports(Admission())
    first, reading = keep(reports, bodies[0], 1.0), keep(reports, data.draw(odd), 2.0)
    assert (reading.report is None) == bool(reading.error)
    if reading.report is not None:
        names = [reading.report.version, *(communicator.hash for communicator in reading.report.communicators)]
        assert all(len(name) <= 64 and name.isprintable() for name in names)
    assert keep(reports, bodies[0], 3.0) == first


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given(damaged(TEXT, TEXT + TEXT), st.lists(st.integers(0, 3000), max_size=4))
def test_any_stream_is_events_or_counted(stream: bytes, cuts: list[int]) -> None:
    """A damaged stream gives only known events, within the limits, and the next event is read."""
    rest = b""
    for begin, end in itertools.pairwise([0, *sorted(cuts), len(stream)]):
        events, rest = split_events(rest + stream[begin:end])
        assert set(events) <= {*EVENTS, OTHER, ""}
        assert len(rest) <= MAX_EVENT_BYTES
    assert split_events(rest + b"\n" + TEXT)[0][-1:] == ["PEER_DEAD"]


def test_launches_of_a_text_beyond_64_bits_are_none() -> None:
    """A launch count above 64 bits is skipped; the other counts of the report are read."""
    [body] = [body for body in TEXT_REPORTS if b"have launched up to operation 999\n" in body][:1]
    odd = body.replace(b"operation 999\n", b"operation 18446744073709551616\n")
    assert odd != body
    assert keep(Reports(Admission()), odd, 1.0).error == ""


def test_a_name_does_not_end_in_a_line_break() -> None:
    """A hash or a version that ends in a line break is refused."""
    body = JSON_REPORTS[0]
    for name in (b'"nccl_version": "', b'"hash": "'):
        at = body.index(b'"', body.index(name) + len(name))
        reading = keep(Reports(Admission()), body[:at] + b"\\n" + body[at:], 1.0)
        assert reading.report is None or reading.report.skipped == {"unreadable": 1}


@pytest.mark.slow
def test_the_bound_of_a_report_lets_the_largest_job_through_and_fits_the_helper() -> None:
    """A report of 7,200 ranks in ten communicators is below the limit, and the limit is below the helper's memory."""
    largest = sum(map(len, ras_reports.report(7200, 10)))
    assert largest < MAX_REPORT_BYTES < READER.memory_bytes
