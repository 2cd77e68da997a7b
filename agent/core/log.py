"""Log one line per event: a constant message with fields. Repeats are limited, and writing never blocks."""

import json
import logging
import math
import queue
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TextIO, TypeAlias, TypeVar, get_args

from agent.core.leased import LeaseEnded
from agent.core.repeat_limit import RepeatLimit

T = TypeVar("T")
Level: TypeAlias = Literal["debug", "info", "warn", "error"]
Format: TypeAlias = Literal["logfmt", "json"]
LEVELS: tuple[Level, ...] = get_args(Level)
FORMATS: tuple[Format, ...] = get_args(Format)

MAX_VALUE_CHARACTERS = 512
"""Limit of a value or message; longer text is cut and ends in an ellipsis."""
MAX_QUEUED_LINES = 1000
"""Limit of unwritten lines, if the reader of standard error hangs; further lines are lost and counted."""
FLUSH_SECONDS = 1.0

_PREFIX = "rankwatch."
_NAMED_FIELD = re.compile(r"\{(\w+)\}")
_ESCAPES = {"\\": "\\\\", '"': '\\"'}
_NEEDS_QUOTES = frozenset(" =")
_NUMBERS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}


class Logger:
    """The log of one part of the agent, ``name``; every method takes a constant message and fields.

    Repeats are counted by message, so variable parts must be fields. If a field names a ``user`` (or ``uid``), repeats
    are counted by user and ``job_id``: messages of one user do not suppress messages of another user. ``{name}`` in the
    message is replaced by the field ``name``: "rank {rank} left". Values have any type; an exception is shown by its
    type, its text and, unless it is an OSError, the line that raised it.
    """

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(_PREFIX + name)

    def info(self, message: str, /, **fields: object) -> None:
        """Log at INFO: an expected change."""
        self._log(logging.INFO, message, fields)

    def warning(self, message: str, /, **fields: object) -> None:
        """Log at WARNING: an error that the agent works around."""
        self._log(logging.WARNING, message, fields)

    def error(self, message: str, /, **fields: object) -> None:
        """Log at ERROR: the agent cannot do part of its work."""
        self._log(logging.ERROR, message, fields)

    def _log(self, level: int, message: str, fields: dict[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, message, extra={"fields": fields})


class FailureCounter:
    """Runs work on one item of a source (a record, a process) at a time, so that an error affects only that item.

    ``skipped``: number of items whose work failed; each is logged. Several threads may use one counter: after a race
    ``skipped`` can be one too low, which is harmless.
    """

    def __init__(self, log: Logger) -> None:
        self._log = log
        self.skipped = 0

    def attempt(self, what: str, work: Callable[[], T], **which: object) -> T | None:
        """Return the result of ``work``, or None if it raised; ``what`` and ``which`` name the item in the log."""
        try:
            return work()
        except LeaseEnded:  # not an error of this item: the exporter's run has ended
            raise
        except Exception as error:  # noqa: BLE001  # any error of one item; counted and logged
            self.skipped += 1
            self._log.error("{what} was left out because of an error", what=what, error=error, **which)
            return None


def configure(
    level: Level = "info",
    format: Format = "logfmt",  # the flag's name is --log.format
    stream: TextIO | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Send the log of the process and its libraries, from ``level`` up, to ``stream`` (standard error).

    A later call replaces the settings. ``monotonic``: a clock in seconds, for the limits of repeats.
    """
    root = logging.getLogger()
    for old in _own_handlers():
        root.removeHandler(old)
        old.close()
    root.addHandler(_LineHandler(stream or sys.stderr, logfmt_line if format == "logfmt" else json_line, monotonic))
    root.setLevel(_NUMBERS[level])


def flush() -> None:
    """Wait at most FLUSH_SECONDS until the log is written. Blocks: not for the event loop."""
    for handler in _own_handlers():
        handler.flush()


def logfmt_line(fields: Mapping[str, object]) -> str:
    """Return ``fields`` as one line of key=value without newline, values quoted and escaped if needed."""
    return " ".join(f"{key}={_logfmt_value(_plain(value))}" for key, value in fields.items())


def json_line(fields: Mapping[str, object]) -> str:
    """Return ``fields`` as one line of ASCII JSON without newline."""
    return json.dumps({key: _plain(value) for key, value in fields.items()})


class _LineHandler(logging.Handler):
    """Formats lines in the thread that logs, and writes them in its own thread, which alone waits for the stream.

    ``emit`` runs under the handler's lock on any thread; only ``emit`` uses ``_lost`` and ``_limit``.
    """

    def __init__(
        self, stream: TextIO, line_of: Callable[[Mapping[str, object]], str], monotonic: Callable[[], float]
    ) -> None:
        super().__init__()
        self._stream = stream
        self._line_of = line_of
        self._limit = RepeatLimit(monotonic)
        self._lost = 0
        self._queue: queue.SimpleQueue[str | threading.Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_lines, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        held_back = self._limit.admit((record.name, record.levelno, str(record.msg)), *_about(record))
        if held_back is None:
            return
        if self._queue.qsize() >= MAX_QUEUED_LINES:
            self._lost += 1
            return
        try:
            fields = _fields_of(record)
            if held_back:
                fields["suppressed"] = held_back
            if lost := self._lost + self._limit.forgotten:
                fields["lines_lost"] = lost
            line = self._line_of(fields)
        except Exception:  # noqa: BLE001  # str() of a value can raise, and must not harm the caller; counted
            self._lost += 1
            return
        self._queue.put(line)
        self._lost = self._limit.forgotten = 0

    def flush(self) -> None:
        if self._thread.is_alive():
            written = threading.Event()
            self._queue.put(written)
            written.wait(FLUSH_SECONDS)

    def close(self) -> None:
        self.flush()
        self._queue.put(None)
        super().close()

    def _write_lines(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
                continue
            with suppress(OSError, ValueError):  # the stream is closed, or has no reader: the line is lost
                self._stream.write(item + "\n")
                self._stream.flush()


def _own_handlers() -> list[_LineHandler]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, _LineHandler)]


def _about(record: logging.LogRecord) -> tuple[str, str]:
    fields: Mapping[str, object] = getattr(record, "fields", None) or {}
    user = str(fields.get("user") or fields.get("uid", ""))
    return user[:MAX_VALUE_CHARACTERS], str(fields.get("job_id", ""))[:MAX_VALUE_CHARACTERS]


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    level = next((name for name in reversed(LEVELS) if record.levelno >= _NUMBERS[name]), "debug")
    fields: dict[str, object] = {
        "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": level,
        "logger": record.name.removeprefix(_PREFIX),
        "msg": record.getMessage(),
    }
    if record.exc_info and record.exc_info[1]:
        fields["error"] = record.exc_info[1]
    own_fields: dict[str, object] | None = getattr(record, "fields", None)
    if not own_fields:
        return fields
    fields["msg"] = _NAMED_FIELD.sub(
        lambda match: str(_plain(own_fields[match[1]])) if match[1] in own_fields else match[0], record.getMessage()
    )
    return fields | own_fields


def _plain(value: object) -> str | int | float | bool | None:
    """Return ``value`` for both formats: numbers, bool and None unchanged, other values as text."""
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    text = _error_text(value) if isinstance(value, BaseException) else str(value)
    if len(text) > MAX_VALUE_CHARACTERS:
        text = text[: MAX_VALUE_CHARACTERS - 1] + "…"
    return text.encode("utf-8", "backslashreplace").decode()  # names of files can have lone surrogates


def _error_text(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) or error.__traceback__ is None:
        return text
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    return f"{text} ({Path(frame.f_code.co_filename).name}:{line})"


def _logfmt_value(value: str | float | bool | None) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    # A control, format or separator character could forge a line or control a terminal.
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)
    escaped = "".join(_ESCAPES.get(c, c) for c in shown)
    return escaped if escaped == value and value and not _NEEDS_QUOTES.intersection(value) else f'"{escaped}"'
