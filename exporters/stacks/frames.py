"""Parses py-spy's answer about one process (`py-spy dump --json`, 0.4), with bounds, and compares stacks. Pure.

The job's user chooses the names of functions, files and threads.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import msgspec

TOP_FRAMES = 5  # Number of compared frames per stack: the outer frames are the same in all ranks
MAX_THREADS = 64
MAX_FRAMES = 64
MAX_NAME = 48
MAX_TEXT = 32 * 1024
HASH_DIGITS = 8
LEAST_VOTERS = 4  # With fewer known stacks no rank is called different


class Frame(msgspec.Struct, frozen=True):
    """A call: the function's name and its file."""

    name: str
    filename: str
    line: int
    short_filename: str | None = None


class Thread(msgspec.Struct, frozen=True):
    """A thread that runs Python, its innermost call first."""

    frames: list[Frame]
    thread_name: str | None = None
    os_thread_id: int | None = None
    owns_gil: bool = False


_BRACKETS = str.maketrans("<>&", "()+")
_DECODER = msgspec.json.Decoder(list[Thread])


class Stack(msgspec.Struct, frozen=True):
    """The stacks of a process: ``label``: the main thread's top calls; ``text``: the stacks of all threads."""

    label: str
    text: str


def stack_of(answer: bytes, main_ids: Collection[int]) -> Stack | None:
    """Return a process's stacks; None if no thread runs Python. ``main_ids``: the pid, also as the process sees it.

    Raise msgspec.DecodeError (ValidationError) for text that is not py-spy's answer.
    """
    threads = [thread for thread in _DECODER.decode(answer) if thread.frames]
    if not threads:
        return None
    main = next((thread for thread in threads if thread.os_thread_id in main_ids), None)
    main = main or next((thread for thread in threads if thread.thread_name == "MainThread"), threads[-1])
    rest = [thread for thread in threads if thread is not main]
    text = "\n".join(_text(thread) for thread in [main, *rest][:MAX_THREADS])
    return Stack(_label(main.frames), text[:MAX_TEXT])


def others(stacks: Mapping[str, str]) -> dict[str, str]:
    """Return the ranks whose stack differs from most stacks, with their stacks; ``stacks``: by rank of a job.

    A rank differs only if over half of the ranks share one stack and at most a quarter have this rank's stack. The
    rules judge the ranks of all nodes in the same way (deploy/prometheus/sources/hangs.yml).
    """
    counts = Counter(stacks.values())
    total = len(stacks)
    if total < LEAST_VOTERS or 2 * max(counts.values()) <= total:
        return {}
    return {rank: stack for rank, stack in stacks.items() if 4 * counts[stack] <= total}


def _label(frames: Sequence[Frame]) -> str:
    """Return the top frames in short, innermost first, and a hash of them; without line numbers: loops change them."""
    top = frames[:TOP_FRAMES]
    names = [_clean(frame.name) for frame in top]
    names[0] += f" ({_file(top[0])})"
    whole = "\n".join(f"{frame.name}\t{frame.short_filename or frame.filename}" for frame in top)
    return f"{' from '.join(names)} #{hashlib.sha256(whole.encode(errors='replace')).hexdigest()[:HASH_DIGITS]}"


def _text(thread: Thread) -> str:
    name = _clean(thread.thread_name or "unnamed")
    holds = ", holds the GIL" if thread.owns_gil else ""
    lines = [f"thread {thread.os_thread_id or '?'} {name}{holds}"]
    frames = [f"    {_clean(frame.name)} ({_file(frame)}:{frame.line})" for frame in thread.frames[:MAX_FRAMES]]
    return "\n".join([*lines, *frames, ""])


def _file(frame: Frame) -> str:
    return _clean((frame.short_filename or frame.filename).rpartition("/")[2])


def _clean(text: str) -> str:
    """Return a name without unprintable characters, and without markup for the chat that gets alerts."""
    text = text.translate(_BRACKETS)
    return "".join(letter if letter.isprintable() else "?" for letter in text[:MAX_NAME])
