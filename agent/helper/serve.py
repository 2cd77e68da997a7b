"""Serve calls inside a helper process: one at a time from a stream. No event loop."""

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

from agent.helper.frames import FrameError, FrameKind, frame, read_frame

MAX_ERROR_CHARACTERS = 256


def serve(target: str, memory_bytes: int, requests: BinaryIO, answers: BinaryIO) -> int:
    """Answer calls with ``target`` (MODULE:FUNCTION) until ``requests`` ends; return the exit status.

    FUNCTION takes the request, decoded as the annotated type, and the body (bytes). It returns a value that msgspec can
    encode. An error ends the process, as its state is then unknown. ``memory_bytes``: limit of the memory that calls
    take.
    """
    try:
        function, decoder = _load(target)
        bound_memory(memory_bytes)
        while (call := _read_call(requests)) is not None:
            answer = msgspec.msgpack.encode(function(decoder.decode(call[0]), call[1]))
            del call  # before the next call is read
            answers.write(frame(FrameKind.ANSWER, answer))
            answers.flush()
    except BrokenPipeError:  # the agent has gone
        return 0
    except Exception as error:  # noqa: BLE001  # any error of the target; the agent logs and counts it
        *_, (last_frame, line) = traceback.walk_tb(error.__traceback__)
        text = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARACTERS]
        name = Path(last_frame.f_code.co_filename).name
        print(f"{text} ({name}:{line})", file=sys.stderr)  # noqa: T201  # the agent logs it
        return 1
    return 0


def bound_memory(memory_bytes: int) -> None:
    """Limit this process to ``memory_bytes`` more memory than now; above the limit it gets MemoryError or crashes.

    The limit counts private writable memory (RLIMIT_DATA, VmData): a driver's library maps far more than it uses.
    """
    status = Path("/proc/self/status").read_text()
    limit = 1024 * int(status.partition("VmData:")[2].split()[0]) + memory_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _load(target: str) -> tuple[Callable[[Any, bytes], object], msgspec.msgpack.Decoder[Any]]:
    module_name, _, function_name = target.partition(":")
    function = getattr(_import_alone(module_name), function_name)
    request_type = next(iter(get_type_hints(function).values()))
    return function, msgspec.msgpack.Decoder(request_type)


def _import_alone(name: str) -> ModuleType:
    """Import a module without running the ``__init__`` of its packages.

    An exporter's ``__init__`` imports the whole agent, which would double the process' memory.
    """
    for package in accumulate(name.split(".")[:-1], "{}.{}".format):
        spec = importlib.util.find_spec(package)
        if package not in sys.modules and spec is not None:
            sys.modules[package] = importlib.util.module_from_spec(spec)
    return importlib.import_module(name)


def _read_call(requests: BinaryIO) -> tuple[bytes, bytes] | None:
    """Return the request and the body of the next call; None if the agent has no more calls."""
    try:
        kind, request = read_frame(requests)
        if kind is not FrameKind.REQUEST:
            raise FrameError(f"{kind.name} instead of a request")
        return request, _read_body(requests)
    except EOFError:
        return None


def _read_body(requests: BinaryIO) -> bytes:
    body = io.BytesIO()  # returns its bytes without a copy
    while True:
        kind, piece = read_frame(requests)
        if kind is FrameKind.END:
            return body.getvalue()
        if kind is not FrameKind.BODY:
            raise FrameError(f"{kind.name} instead of a body")
        body.write(piece)
