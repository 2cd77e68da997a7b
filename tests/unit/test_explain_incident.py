"""The incidents in a time range: when work stopped, how many GPU-hours it cost, and the blamed ranks."""

import pytest

from agent.cli.explain.culprit import MAX_CULPRITS, judge
from agent.cli.explain.incident import APART_SECONDS, NODE_SECONDS, Cost, cost, incidents
from agent.cli.explain.model import Course, Said, Span
from agent.evidence.summary import Witness

STEP = 15.0
END = 10_000.0


def course(*spans: Span, **more: object) -> Course:
    """Return a course of 10,000 s with these spans."""
    return Course(0.0, END, STEP, tuple(spans), **more)  # type: ignore[arg-type]  # the fields of a dataclass


def working(*stretches: tuple[float, float]) -> tuple[tuple[float, float], ...]:
    """Return progress samples every 15 s of a job that works only in these intervals."""
    times = [number * STEP for number in range(int(END / STEP))]
    begun = {at: [min(at, end) for start, end in stretches if start <= at] for at in times}
    return tuple((at, max(ends)) for at, ends in begun.items() if ends)


def held(gpus: float) -> tuple[tuple[float, float], ...]:
    """Return samples of the GPUs that the job held over the whole course."""
    return tuple((number * STEP, gpus) for number in range(int(END / STEP) + 1))


def test_nothing_happened() -> None:
    """A range without symptoms, or with only a log line, has no incident."""
    assert (incidents(course()), incidents(course(Span("log", 50.0, 50.0)))) == ([], [])


DIED = Span("died", 1000.0, END)


@pytest.mark.parametrize(("known", "since", "back", "what"), [
    pytest.param(course(Span("died", 1000.0, 1280.0), progress=working((0.0, 1001.0), (1300.0, END)),
     running_since=((900.0, 10.0), (1290.0, 1290.0))), 1000.0, 1305.0, "died", id="a death and a restart"),
    pytest.param(course(DIED, progress=working((0.0, 400.0))), 400.0, None, "hung",
     id="a death 600 s after the last progress is the end of a hang"),
    pytest.param(course(DIED, progress=working((0.0, 1020.0))), 1000.0, None, "died",
     id="progress of survivors while the death is shown is no recovery"),
    pytest.param(course(Span("unresponsive", 1010.0, 1200.0), progress=working((0.0, 1000.0), (1200.0, END))),
     1000.0, 1200.0, "hung", id="progress after the last symptom ends a hang without a restart"),
    pytest.param(course(Span("died", 1000.0, 1070.0), Span("died", 1200.0, 1280.0),
     progress=working((0.0, 1000.0), (1100.0, 1200.0), (1300.0, END)),
     running_since=((0.0, 1.0), (1080.0, 1080.0), (1290.0, 1290.0))), 1000.0, 1305.0, "died",
     id="the restart before the second death of a crash loop ends nothing"),
    pytest.param(course(Span("late", 1000.0, 2000.0), progress=working((0.0, END))), 1000.0, 2000.0, "went_on",
     id="a job that waits for a late rank works on"),
])  # fmt: skip
def test_when_work_stopped_and_was_done_again(known: Course, since: float, back: float | None, what: str) -> None:
    """An incident has its kind and the times when work stopped and resumed."""
    [incident] = incidents(known)
    assert (incident.start, incident.since, incident.back, incident.what) == (since, since, back, what)
    assert incident.stopped == (what != "went_on")


def test_a_pause_before_a_death_is_no_hang() -> None:
    """A pause of 120 s or more before a death makes the incident a hang."""
    for pause, what in ((119.0, "died"), (120.0, "hung")):
        progress = working((0.0, 1000.0 - pause))
        [incident] = incidents(course(Span("died", 1000.0, END), progress=progress))
        assert incident.what == what, pause


def test_symptoms_far_apart_are_two_incidents() -> None:
    """Symptoms at most APART_SECONDS apart are one incident."""
    early = Span("unresponsive", 100.0, 200.0)
    for seconds, count in ((200.0, 1), (201.0, 2)):
        assert len(incidents(course(early, Span("died", seconds + APART_SECONDS, 2000.0)))) == count


def test_gpu_hours_of_a_stop() -> None:
    """GPU-hours of 64 GPUs: 5.42 for a 305 s stop, 16 for 900 s of lost work, 0.64 for 180 s with a 20 % late rank."""
    known = course(
        Span("late", 820.0, 1000.0),
        Span("died", 1000.0, 1280.0),
        progress=working((0.0, 1000.0), (1295.0, END)),
        running_since=((1290.0, 1290.0),),
        gpus=held(64.0),
        checkpoints=(50.0, 100.0, 1500.0),
        late=tuple((820.0 + 15 * number, 0.2) for number in range(12)),
    )
    [incident] = incidents(known)
    spent = cost(known, incident, 64)
    assert (spent.seconds, spent.stopped, spent.again) == (305.0, pytest.approx(5.422, abs=0.001), pytest.approx(16.0))
    assert spent.late == pytest.approx(0.64)
    assert not spent.is_guess


def test_what_goes_on_costs_until_now() -> None:
    """A job that still holds its GPUs and does not work costs GPU-hours until the end of the range."""
    known = course(Span("died", 1000.0, 2000.0), gpus=held(8.0))
    [incident] = incidents(known)
    assert cost(known, incident, 8) == Cost(9000.0, 20.0, None, 0.0, is_guess=False, goes_on=True)


def test_a_lost_node() -> None:
    """A node lost within NODE_SECONDS of the last progress is the cause; a node lost later follows a hang."""
    for lost, what in ((1000.0 + NODE_SECONDS, "node_lost"), (1001.0 + NODE_SECONDS, "hung")):
        [incident] = incidents(course(Span("node_lost", lost, END), progress=working((0.0, 1000.0))))
        assert (incident.what, incident.since) == (what, 1000.0)


def word(rank: str, witness: Witness, source: str = "metrics", *, blames: bool = True, says: str = "") -> Said:
    """Return a witness's statement about a rank."""
    return Said(rank, "a", witness, says or f"{witness} of {rank}", blames, source)


TIE = [word("3", "verdict"), word("5", "flight_recorder")]
COPIES = [word("0", "job_log", f"node{number}") for number in range(50)]


@pytest.mark.parametrize(("said", "is_hang", "culprits", "against", "other"), [
    pytest.param([word("1", "verdict", blames=False)], False, (), [], "1", id="words that blame nobody"),
    pytest.param([word("3", "verdict"), word("5", "ras"), word("5", "records")], False, ("5",), [("3", "verdict")], "",
     id="two witnesses of less trust outweigh one of more"),
    pytest.param(TIE, False, ("3",), [("5", "flight_recorder")], "", id="after a death the process is trusted more"),
    pytest.param(TIE, True, ("5",), [("3", "verdict")], "", id="after a hang the flight recorder is trusted more"),
    pytest.param([*COPIES, word("7", "verdict"), word("7", "ras")], False, ("7",), [("0", "job_log")], "",
     id="fifty bundles that repeat one witness are one: a forged source outvotes nobody"),
    pytest.param([word("3", "verdict"), word("9", "verdict", "n2"), word("8", "verdict", "n2"),
     word("9", "stacks", "n2")], False, ("3",), [("9", "stacks")], "89",
     id="what a node says of its own ends blames nobody where metrics know the first rank of the whole job"),
    pytest.param([word(rank, "flight_recorder") for rank in ("12", "9", "100", "14")], True, ("9", "12", "14", "100"),
     [], "", id="ranks that are blamed alike, by number"),
    pytest.param([word("", "kernel_log"), word("2", "records")], False, ("2",), [("", "kernel_log")], "",
     id="a word of no rank is no vote"),
])  # fmt: skip
def test_the_culprit(
    said: list[Said], is_hang: bool, culprits: tuple[str, ...], against: list[tuple[str, Witness]], other: str
) -> None:
    """The culprit is the rank that most independent witnesses blame; statements that blame no rank are kept."""
    guess = judge(said, is_hang=is_hang)
    assert guess.ranks == culprits
    assert [(entry.rank, entry.witness) for entry in guess.against] == against
    assert ([entry.rank for entry in guess.other], [entry for entry in guess.other if entry.blames]) == (
        list(other),
        [],
    )


def test_equal_statements_are_shown_once() -> None:
    """Equal statements of metrics and a bundle are one line; a different statement is a second line."""
    for says, lines in (("died", 1), ("died of SIGSEGV", 2)):
        said = [word("1", "verdict", says="died"), word("1", "verdict", "n1", says=says)]
        assert len(judge(said, is_hang=False).for_them) == lines


def test_a_bound_on_culprits() -> None:
    """At most MAX_CULPRITS ranks are named as culprits."""
    guess = judge([word(str(rank), "ras") for rank in range(MAX_CULPRITS + 1)], is_hang=False)
    assert len(guess.ranks) == MAX_CULPRITS
