"""The inside of a helper process: takes calls from a stream, one at a time, and answers each. No event loop."""

from __future__ import annotations

import importlib
import importlib.util
import io
import resource
import sys
import traceback
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, get_type_hints

import msgspec

from agent.helper_frames import FrameError, Kind, frame, read_frame

MAX_ERROR_CHARACTERS = 256
_DATA_FIELD = 5
"""Of /proc/self/statm: the pages that RLIMIT_DATA counts."""


def serve(target: str, memory_bytes: int, requests: BinaryIO, answers: BinaryIO) -> int:
    """Answer calls with ``target`` (MODULE:FUNCTION) until ``requests`` ends; return the exit status.

    FUNCTION takes the request, whose type its annotation tells, and the body (bytes), and returns what msgspec can
    encode. An error ends the process: who knows what state it left. ``memory_bytes`` is what the calls may take
    beyond what the imports took.
    """
    try:
        function, decoder = _load(target)
        bound_memory(memory_bytes)
        while (call := _read_call(requests)) is not None:
            answer = msgspec.msgpack.encode(function(decoder.decode(call[0]), call[1]))
            del call  # before the next one is read
            answers.write(frame(Kind.ANSWER, answer))
            answers.flush()
    except BrokenPipeError:  # the agent has gone
        return 0
    except Exception as error:  # noqa: BLE001  # whatever the target raises; the agent logs and counts it
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARACTERS]
        print(f"{text} ({Path(place.filename).name}:{place.lineno})", file=sys.stderr)  # noqa: T201  # its log
        return 1
    return 0


def bound_memory(memory_bytes: int) -> None:
    """Let this process take ``memory_bytes`` more than it has, and not a page beyond: MemoryError then.

    Counts what is written to (RLIMIT_DATA), not what is mapped: a driver's library maps much more than it uses.
    """
    pages = int(Path("/proc/self/statm").read_text().split()[_DATA_FIELD])
    limit = pages * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _load(target: str) -> tuple[Callable[[Any, bytes], object], msgspec.msgpack.Decoder[Any]]:
    module_name, _, function_name = target.partition(":")
    function = getattr(_import_alone(module_name), function_name)
    request_type = next(iter(get_type_hints(function).values()))
    return function, msgspec.msgpack.Decoder(request_type)


def _import_alone(name: str) -> ModuleType:
    """Import a module without running the ``__init__`` of its packages.

    An exporter's imports the whole agent, which would be twice the memory of the process, for nothing.
    """
    for package in accumulate(name.split(".")[:-1], "{}.{}".format):
        spec = importlib.util.find_spec(package)
        if package not in sys.modules and spec is not None:
            sys.modules[package] = importlib.util.module_from_spec(spec)
    return importlib.import_module(name)


def _read_call(requests: BinaryIO) -> tuple[bytes, bytes] | None:
    """The request and the body of the next call that is not aborted; None when the agent has no more."""
    while True:
        try:
            kind, request = read_frame(requests)
            if kind is not Kind.REQUEST:
                raise FrameError(f"{kind.name} in the place of a request")
            body = io.BytesIO()  # gives its bytes away without a copy
            kind, piece = read_frame(requests)
            while kind is Kind.BODY:
                body.write(piece)
                kind, piece = read_frame(requests)
        except EOFError:
            return None
        if kind is Kind.END:
            return request, body.getvalue()
        if kind is not Kind.ABORT:
            raise FrameError(f"{kind.name} in the place of a body")
