import io
import logging
import threading
from collections.abc import Iterator

import pytest
from fake_clock import FakeClock

from agent.core import log
from agent.core.repeat_limit import MAX_MESSAGES, REPEATS_PER_WINDOW, WINDOW_SECONDS, RepeatLimit


class Sink:
    """A configured log, and its output."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.time = FakeClock()

    def configure(self, level: log.Level = "debug", format: log.Format = "logfmt") -> None:
        log.configure(level, format, self.stream, self.time.monotonic)

    def lines(self) -> list[str]:
        log.flush()
        return self.stream.getvalue().splitlines()


@pytest.fixture
def sink() -> Iterator[Sink]:
    """Provide a configured log, and restore the logging of the test run afterwards."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    made = Sink()
    made.configure()
    yield made
    for handler in root.handlers[:]:
        if handler not in handlers:
            root.removeHandler(handler)
            handler.close()
    root.setLevel(level)


def without_time(line: str) -> str:
    """Remove the timestamp of a logfmt line."""
    return line.split(" ", 1)[1]


@pytest.mark.parametrize(("value", "shown"), [
    ("", '""'),
    ("a b", '"a b"'),
    ("a=b", '"a=b"'),
    ('say "x"', r'"say \"x\""'),
    ("back\\slash", r'"back\\slash"'),
    ("line\nlevel=error", r'"line\nlevel=error"'),
    ("\x1b[2J", r'"\x1b[2J"'),
    ("\u202eevil", r'"\u202eevil"'),
    ("\u2028", r'"\u2028"'),
    ("\udc80", r'"\\udc80"'),
    ("Grüße", "Grüße"),
])  # fmt: skip
def test_hostile_values_are_escaped(sink: Sink, value: str, shown: str) -> None:
    """A value can neither end its line, nor forge a field, nor control the terminal."""
    log.Logger("x").info("m", v=value)
    assert without_time(sink.lines()[0]) == f"level=info logger=x msg=m v={shown}"


@pytest.mark.parametrize("line_of", [log.logfmt_line, log.json_line])
def test_value_over_the_bound_is_cut(line_of: object) -> None:
    """A value at the limit is whole; a longer one is cut to the limit, with an ellipsis."""
    assert callable(line_of)
    whole = line_of({"v": "a" * log.MAX_VALUE_CHARACTERS})
    cut = line_of({"v": "a" * (log.MAX_VALUE_CHARACTERS + 1)})
    assert (whole.count("a"), cut.count("a")) == (512, 511)
    assert "…" in cut or "\\u2026" in cut


def test_one_users_lines_do_not_hold_back_anothers(sink: Sink) -> None:
    """Many lines of one user's jobs suppress no line of another user's job."""
    logger = log.Logger("x")
    for number in range(200):
        logger.info("rank {rank} of job {job_id} left", rank=0, job_id=number, user="eve")
    for _ in range(REPEATS_PER_WINDOW + 1):
        logger.info("rank {rank} of job {job_id} left", rank=0, job_id="a", user="ann")
    logger.info("rank {rank} of job {job_id} left", rank=0, job_id="b", user="ann")
    lines = [without_time(line) for line in sink.lines()]
    assert [sum(f"user={user}" in line for line in lines) for user in ("eve", "ann")] == [30, 11]
    assert 'msg="rank 0 of job b left"' in lines[-1]
    sink.time.now += WINDOW_SECONDS
    for job_id, user in (("new", "eve"), ("a", "ann"), ("b", "ann")):
        logger.info("rank {rank} of job {job_id} left", rank=0, job_id=job_id, user=user)
    assert [line.partition("suppressed=")[2] for line in sink.lines()[-3:]] == ["170", "1", ""]


def test_remembered_messages_are_bounded() -> None:
    """At the limit the oldest remembered message is dropped, and its suppressed lines count as ``forgotten``."""
    limit = RepeatLimit(lambda: 0.0)
    for _ in range(REPEATS_PER_WINDOW + 3):
        limit.admit(("x", 20, "0"))
    for i in range(1, MAX_MESSAGES):
        assert limit.admit(("x", 20, str(i))) == 0
    assert limit.admit(("x", 20, "0")) is None
    assert limit.forgotten == 0
    assert (limit.admit(("x", 20, "one more")), limit.forgotten) == (0, 4)
    assert limit.admit(("x", 20, "0")) == 0


def test_logs_of_libraries_take_the_same_form(sink: Sink) -> None:
    """A library's log record, with its traceback, becomes one line."""
    try:
        raise RuntimeError("boom\nboom")
    except RuntimeError:
        logging.getLogger("asyncio").exception("task %s failed", "t1")
    (line,) = sink.lines()
    assert without_time(line).startswith(r'level=error logger=asyncio msg="task t1 failed" error="RuntimeError: boom\n')


class Unshowable:
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_an_invalid_value_is_counted_and_harms_no_other(sink: Sink) -> None:
    """A value that cannot be formatted loses its line, and the next line counts the loss."""
    log.Logger("x").info("bad", v=Unshowable())
    log.Logger("x").info("bad number", v=10**5000)
    log.Logger("x").info("good")
    log.Logger("x").info("better")
    assert [without_time(line) for line in sink.lines()] == [
        "level=info logger=x msg=good lines_lost=2",
        "level=info logger=x msg=better",
    ]


class StuckStream(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.released = threading.Event()

    def write(self, text: str) -> int:
        self.entered.set()
        self.released.wait()
        return super().write(text)


def test_a_stuck_stream_blocks_no_other(sink: Sink) -> None:
    """While the log's reader hangs, callers go on, the queue is limited, and lost lines are counted."""
    sink.stream = stuck = StuckStream()
    sink.configure()
    logger = log.Logger("x")
    logger.info("first")
    assert stuck.entered.wait(10)
    for i in range(log.MAX_QUEUED_LINES + 1):
        sink.time.now += WINDOW_SECONDS
        logger.info("more", i=i)
    stuck.released.set()
    assert len(sink.lines()) == 1001
    logger.info("last")
    assert sink.lines()[-1].endswith("msg=last lines_lost=1")


def test_a_message_names_fields(sink: Sink) -> None:
    """A message contains the value of each field that its template names.

    All messages of one template count as repeats of one message.
    """
    logger = log.Logger("x")
    logger.info("rank {rank} of {job} left{nothing}", rank=3, job="{rank}\nx")
    assert without_time(sink.lines()[0]) == (
        r'level=info logger=x msg="rank 3 of {rank}\nx left{nothing}" rank=3 job="{rank}\nx"'
    )
    for rank in range(20):
        logger.info("rank {rank} of {job} left{nothing}", rank=rank, job="j")
    assert len(sink.lines()) == REPEATS_PER_WINDOW
