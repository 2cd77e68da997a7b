"""The judge of made-up jobs is right itself: what was told, against who is to be named."""

from __future__ import annotations

import pytest
from judged_jobs import Found, answers, questions
from made_kinds import Made, Truth, make
from made_lines import Losses
from made_verdicts import judged, percentile, share_right, table

SAID = """  FAILED:
    expr: "min_over_time(x)", time: 15m,
        exp: {asked="yes"} 1E+00
        got: {alertname="StragglerRank", job_id="4000"} 4.8E+02, {job_id="4001", rank="3"} 6E+02
"""
LATE = make("straggler", 1)._replace(truth=Truth(late=frozenset({3}), late_onset=300.0))
WELL = make("healthy", 1)
SLOW = make("slow fabric", 1)._replace(truth=Truth(slow=frozenset({"ab"}), behind=frozenset({5})))


def told(alert: str, *names: tuple[str, ...], at: float = 1000.0) -> Found:
    """Return that an alert fired and named these."""
    named: dict[str, dict[tuple[str, ...], float]] = {"StragglerRank": {}, "SlowCommunicator": {}, "SlowPair": {}}
    if names:
        named[alert] = dict.fromkeys(names, at)
    return Found({alert: at}, named)


NOTHING = Found({}, told("Watchdog").named)


def test_answers_are_read_from_what_promtool_got() -> None:
    """Labels and values are those of the samples that it got, not of those that it was to expect."""
    assert list(answers(SAID)) == [
        ({"alertname": "StragglerRank", "job_id": "4000"}, 480.0),
        ({"job_id": "4001", "rank": "3"}, 600.0),
    ]
    assert list(answers("exp: {} 1E+00\n got: nil\n")) == []


def test_names_are_asked_of_the_alert_or_of_a_recording() -> None:
    """What an alert's labels name is asked of it, and communicators of the recording while it fires."""
    asked = questions(900)
    assert 'ALERTS{alertname="StragglerRank"' in asked["StragglerRank names"]
    assert "comm_size:rankwatch_slow:ratio and on (job_id) ALERTS" in asked["SlowCommunicator names"]


@pytest.mark.parametrize(
    ("made", "found", "missed", "innocents", "seconds"),
    [
        (WELL, NOTHING, [], [], None),
        (LATE, told("StragglerRank", ("3",), at=500.0), [], [], 200.0),
        (LATE, told("StragglerRank", ("3",)), [], [], 700.0),
        (LATE, NOTHING, ["rank 3"], [], None),
        (LATE, told("StragglerRank", ("3",), ("13",)), [], ["rank 13"], 700.0),
        (LATE, told("StragglerRank", ("3",), at=240.0), [], ["rank 3 before it began"], -60.0),
        (LATE, told("RecordsLost"), ["rank 3"], ["RecordsLost"], None),
        (WELL, told("StragglerRank"), [], ["StragglerRank"], None),
        (SLOW, told("SlowCommunicator", ("ab",)), [], [], 100.0),
        (SLOW, told("SlowCommunicator", ("cd",)), ["communicator ab"], ["communicator cd"], None),
        (SLOW, told("StragglerRank", ("4",)), ["communicator ab"], ["rank 4"], None),
        (SLOW, told("StragglerRank", ("5",)), ["communicator ab"], [], None),
    ],
)
def test_jobs_are_judged(
    made: Made, found: Found, missed: list[str], innocents: list[str], seconds: float | None
) -> None:
    """Who is to be named and was not is missed, whoever else was is innocent, and time counts from the onset."""
    verdict = judged(made, found)
    assert (verdict.missed, verdict.innocents, verdict.seconds) == (missed, innocents, seconds)


def test_too_few_records_may_be_told_of_instead() -> None:
    """Where records are so few, that alert is as good as the name of the late rank; but no innocent is."""
    thin = LATE._replace(truth=LATE.truth._replace(thin=True), losses=Losses(one_slot=True))
    assert judged(thin, told("RecordsLost")).is_right
    assert not judged(thin, NOTHING).is_right
    assert judged(thin, told("StragglerRank", ("2",))).innocents == ["rank 2"]


def test_a_pair_has_no_order() -> None:
    """The two ranks of a slow pair may be named in either order."""
    pair = make("slow pair", 1)._replace(truth=Truth(pair=frozenset({2, 10})))
    assert judged(pair, told("SlowPair", ("10", "2"), ("2", "10"))).is_right
    assert judged(pair, told("SlowPair", ("2", "1"))).innocents == ["pair 1-2"]


def test_the_table_counts() -> None:
    """A kind has a line with its counts, a job of which something wrong was told one with its seed."""
    verdicts = [judged(LATE, told("StragglerRank", ("3",))), judged(LATE, NOTHING), judged(WELL, NOTHING)]
    text = table(verdicts)
    assert "| straggler | 2 | 1 | 1 | 0 | 0 | 700, 700, 700 |" in text
    assert "| healthy | 1 | 1 | 0 | 0 | 0 | - |" in text
    assert text.count("seed 1 ") == 1
    assert share_right(verdicts) == pytest.approx(2 / 3)
    assert percentile([3.0, 1.0, 2.0], 0.9) == 3.0
    assert percentile([], 0.9) == float("inf")
