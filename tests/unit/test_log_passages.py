"""Log lines around an event, as a bundle can contain them, and the masking of these lines."""

import pytest

from agent.sdk.evidence import Wanted
from exporters.job_log.catalogue import catalogue
from exporters.job_log.matcher import MAX_LINE_BYTES, events
from exporters.job_log.passages import (
    MAX_MASKED_TEXT,
    MAX_OF_A_CATEGORY,
    MAX_PASSAGES,
    MAX_PER_JOB,
    MAX_TEXT,
    OLD_SECONDS,
    LogPassages,
    log_part,
)
from exporters.job_log.tally import ShownLog, TrainingProgress

FILE = (1, 2)
CUDA = b"RuntimeError: CUDA error: an illegal memory access was encountered\n"
OOM = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


class Log:
    """A log that grows."""

    def __init__(self) -> None:
        self.passages = LogPassages()

    def write(self, *lines: bytes, job_id: str = "7", seconds: float = 100.0, file: tuple[int, int] = FILE) -> None:
        """Read these lines together."""
        data = b"".join(lines)
        errors = [(event, "3") for event in events(data, catalogue())]
        self.passages.take(file, data, errors, job_id, seconds)

    def lines(self, job_id: str = "7") -> list[tuple[str, ...]]:
        """Return the passages of a job."""
        return [tuple(passage.lines) for passage in self.passages.of().get(job_id, ())]


def numbered(*numbers: int) -> list[bytes]:
    """Return lines without an event."""
    return [b"line %d\n" % number for number in numbers]


def texts(*lines: bytes) -> tuple[str, ...]:
    """Return lines as the passages keep them."""
    return tuple(line.decode().rstrip("\n") for line in lines)


@pytest.mark.parametrize("split", range(8))
def test_two_before_and_two_after(split: int) -> None:
    """An event is kept with two lines before and two after it, wherever a read ended."""
    log, whole = Log(), [*numbered(1, 2, 3), CUDA, *numbered(4, 5, 6)]
    log.write(*whole[:split])
    log.write(*whole[split:])
    assert log.lines() == [texts(*whole[1:6])]


def test_in_words() -> None:
    """The part has the job's lines as text, with the event marked; without the setting it has no lines."""
    log = Log()
    log.write(*numbered(1), CUDA, b"next\x1b[31m red\n")
    log.write(OOM, job_id="8", file=(1, 3))
    shown = ShownLog("7", {}, None, None, (), TrainingProgress())
    part = log_part([shown], log.passages.of(), Wanted("7", {}, ()))
    assert part.files["lines.txt"].decode() == (
        "cuda_illegal_access, rank 3, 1970-01-01 00:01:40 UTC\n"
        "  line 1\n"
        "> RuntimeError: CUDA error: an illegal memory access was encountered\n"
        "  next red\n"
    )
    assert log_part([shown], {}, Wanted("7", {}, ())).files.keys() == {"log.json"}


def test_the_first_of_a_category() -> None:
    """A category's first MAX_OF_A_CATEGORY events are kept, until an event comes OLD_SECONDS after the last of them."""
    log = Log()
    for number in range(MAX_OF_A_CATEGORY + 1):
        log.write(b"before %d\n" % number, CUDA, b"\n", b"\n")
    assert [lines[-4] for lines in log.lines()] == [f"before {number}" for number in range(MAX_OF_A_CATEGORY)]
    log.write(CUDA, seconds=100.0 + OLD_SECONDS - 1)
    assert len(log.lines()) == MAX_OF_A_CATEGORY
    log.write(b"later\n", CUDA, b"\n", seconds=100.0 + OLD_SECONDS)
    assert [lines[-3] for lines in log.lines()] == ["later"]


@pytest.mark.slow
def test_a_job_that_floods_leaves_room_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job keeps MAX_PER_JOB; above MAX_PASSAGES, the job with most passages loses one."""
    monkeypatch.setattr("exporters.job_log.passages.MAX_OF_A_CATEGORY", 10 * MAX_PASSAGES)
    log = Log()
    log.write(*[CUDA] * (MAX_PER_JOB + 1))
    assert len(log.lines()) == MAX_PER_JOB
    for job in range(2 * MAX_PASSAGES // MAX_PER_JOB):
        log.write(*[CUDA] * MAX_PER_JOB, job_id=f"many-{job}", file=(2, job))
    log.write(CUDA, job_id="last", file=(3, 0))
    passages = log.passages.of()
    assert (sum(map(len, passages.values())), len(passages["last"])) == (MAX_PASSAGES, 1)
    assert min(len(passage) for job_id, passage in passages.items() if job_id != "last") >= MAX_PER_JOB // 2 - 1
    log.passages.keep({FILE}, {"7"})
    assert log.passages.of().keys() == {"7"}


def test_long_lines() -> None:
    """A line keeps MAX_TEXT characters; a secret at the cut is masked first."""
    log, secret = Log(), "hf_" + "a1B2" * 6
    start = CUDA.rstrip() + b" "
    line = start + b"x " * ((MAX_TEXT - len(start) - 10) // 2) + secret.encode() + b"\n"
    log.write(line, b"y " * MAX_LINE_BYTES + b"\n")
    [(first, second)] = log.lines()
    assert len(second) == MAX_TEXT
    assert len(first) <= MAX_TEXT
    assert "hf_" not in first


def test_no_part_of_a_long_line_is_kept_unmasked() -> None:
    """A secret at the place where a long line is cut before masking leaves no part in the kept text."""
    words = [b"key=" + b"x" * 380] * 5
    start = CUDA.rstrip() + b" " + b" ".join(words)
    filler = b"y " * ((MAX_MASKED_TEXT - len(start) - 12) // 2)
    log = Log()
    log.write(start + b" " + filler + b" 8412345678:AAHdqTcvCH1vGWJxfSeofSAs0K5P-hunter2\n")
    [[line]] = log.lines()
    assert "8412345678" not in line
    assert "y y y" in line
