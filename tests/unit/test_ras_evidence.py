"""What RAS's reports tell the evidence: for how long a job stood still."""

from test_ras_hangs import read, reduced

from agent.sdk.evidence import EvidenceBoard
from agent.sdk.ranks import ProcessKey
from exporters.ras.report.hangs import JobReport, Watch, suspects, watch
from exporters.ras.show import evidence

HELD_UP = read(reduced(1, {0: 8, 1: 7}))


def told(report_seconds: list[float]) -> JobReport:
    """The last of equal reports of a job of which one rank has launched less."""
    watches: dict[str, Watch] = {}
    for seconds in report_seconds:
        watches = watch(watches, HELD_UP.communicators, seconds)
    blamed = suspects(HELD_UP.communicators, watches)
    return JobReport(ProcessKey(1, 1), HELD_UP, 0.0, 2, watches, report_seconds[-1], suspects=blamed)


def test_a_job_stood_still_until_its_last_report() -> None:
    """A job is told of with the time between equal reports, however long ago."""
    assert evidence.stalls({"7": told([1000.0])}) == {}
    assert evidence.stalls({"7": told([1000.0, 1030.0])}) == {"7": 30.0}


def test_a_suspect_without_a_number_is_not_named() -> None:
    """A bundle names the suspects whose rank in the job is known; without a report it has nothing."""
    report = told([1000.0, 1030.0])
    assert [(word.rank, word.blames) for word in evidence.bundle_part(report).words] == [("1", True)]
    for suspect in (one for ranks in report.suspects.values() for one in ranks):
        suspect.rank.rank = None
    part = evidence.bundle_part(report)
    assert (part.files.keys(), list(part.words)) == ({"report.json"}, [])
    assert evidence.bundle_part(None).files == {}


def test_the_longer_of_two_stalls_counts() -> None:
    """Of two exporters that tell of a job the longer time counts, until that one has ended."""
    board = EvidenceBoard()
    ras, other = board.of("ras"), board.of("other")
    ras.tell_stalls(lambda: {"7": 10.0})
    other.tell_stalls(lambda: {"7": 15.0, "8": 20.0})
    assert ras.stalls() == {"7": 15.0, "8": 20.0}
    other.close()
    assert ras.stalls() == {"7": 10.0}
