"""What RAS's reports tell the evidence: since when a job stands still."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from test_ras_hangs import read, reduced

from agent.api import EvidenceBoard, ProcessKey
from exporters.ras.report.hangs import Watch, watch
from exporters.ras.report.job_report import JobReport
from exporters.ras.show import evidence

HELD_UP = read(reduced(1, {0: 8, 1: 7}))


def told(report_seconds: list[float]) -> JobReport:
    """The last of equal reports of a job of which one rank has launched less."""
    watches: dict[str, Watch] = {}
    for seconds in report_seconds:
        watches = watch(watches, HELD_UP.communicators, seconds)
    return JobReport(ProcessKey(1, 1), HELD_UP, 0.0, 2, watches, report_seconds[-1])


def test_a_job_stands_still_since_its_first_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job is told of from the second equal report on, since the first; what a report means is found out once."""
    board, kept = EvidenceBoard(), {"7": told([1000.0])}
    ras = board.of("ras")

    def named(_processes: object) -> Mapping[str, JobReport]:
        return kept

    evidence.offer_reports(ras, named, dict)
    assert ras.stalls() == {}
    kept["7"] = told([1000.0, 1030.0])
    assert ras.stalls() == {"7": 1000.0}
    monkeypatch.setattr(evidence, "stalled_since", None)
    assert ras.stalls() == {"7": 1000.0}
    kept.clear()
    assert ras.stalls() == {}


def test_the_first_of_two_exporters_counts() -> None:
    """Of two exporters that tell of a job the earlier time counts, until that one has ended."""
    board = EvidenceBoard()
    ras, other = board.of("ras"), board.of("other")
    ras.tell_stalls(lambda: {"7": 10.0})
    other.tell_stalls(lambda: {"7": 5.0, "8": 20.0})
    assert ras.stalls() == {"7": 5.0, "8": 20.0}
    other.close()
    assert ras.stalls() == {"7": 10.0}
    other.tell_stalls(lambda: {"7": 5.0})
    assert ras.stalls() == {"7": 10.0}
