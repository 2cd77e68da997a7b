"""py-spy's answers: what is kept of them, and which ranks are elsewhere than most."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from exporters.stacks.frames import MAX_FRAMES, MAX_NAME, MAX_TEXT, MAX_THREADS, others, stack_of

RECORDED = (Path(__file__).parents[1] / "data/stacks/py-spy.json").read_bytes()
PID = json.loads(RECORDED)[0]["pid"]


def frame(name: str = "wait", file: str = "a/train.py", line: int = 3) -> dict[str, Any]:
    """A call."""
    return {"name": name, "filename": f"/srv/{file}", "short_filename": file, "line": line}


def answer(*threads: dict[str, Any]) -> bytes:
    """What py-spy would print."""
    return json.dumps(threads).encode()


def thread(*frames: dict[str, Any], number: int = PID, name: str = "MainThread") -> dict[str, Any]:
    """A thread."""
    return {"frames": list(frames), "os_thread_id": number, "thread_name": name, "owns_gil": False, "pid": PID}


def test_a_recorded_stack() -> None:
    """Of a recorded answer the main thread gives the label, though another one comes first; the text has both."""
    found = stack_of(RECORDED, {PID})
    assert found is not None
    assert found.label.startswith("all_reduce (hanging_rank.py) from train from (module) #")
    assert found.text.splitlines()[:2] == [f"thread {PID} MainThread", "    all_reduce (hanging_rank.py:48)"]
    assert "Thread-1 (stay)" in found.text


def test_lines_do_not_tell_stacks_apart() -> None:
    """Two ranks in different lines of one loop have one stack; a caller five calls up makes another."""
    calls = [frame(name) for name in "abcde"]
    one, same = (stack_of(answer(thread(frame("a", line=line), *calls[1:])), {PID}) for line in (3, 4))
    other = stack_of(answer(thread(*calls[:4], frame("z"))), {PID})
    beyond = stack_of(answer(thread(*calls, frame("z"))), {PID})
    assert one is not None
    assert same is not None
    assert other is not None
    assert beyond is not None
    assert one.label == same.label == beyond.label
    assert other.label != one.label


def test_the_main_thread_by_its_name() -> None:
    """Where no thread has the process' number, the one that Python calls the main one counts, else the last."""
    named = stack_of(answer(thread(frame("x"), number=1, name="other"), thread(frame("y"), number=2)), {PID})
    last = stack_of(answer(thread(frame("x"), number=1, name="a"), thread(frame("y"), number=2, name="b")), {PID})
    assert named is not None
    assert last is not None
    assert named.label[0] == last.label[0] == "y"


def test_bounds() -> None:
    """Of names, frames, threads and text no more is kept than the bounds, and nothing that does not print."""
    long = stack_of(answer(thread(frame("n" * (MAX_NAME + 1), "f" * (MAX_NAME + 1)))), {PID})
    deep = stack_of(answer(thread(*[frame()] * (MAX_FRAMES + 1))), {PID})
    wide = stack_of(answer(*[thread(frame(), number=number) for number in range(MAX_THREADS + 1)]), {PID})
    large = stack_of(answer(*[thread(*[frame("n" * MAX_NAME)] * MAX_FRAMES)] * MAX_THREADS), {PID})
    odd = stack_of(answer(thread(frame("a\x1b[31m\n<!channel>"), name="\x07")), {PID})
    assert long is not None
    assert deep is not None
    assert wide is not None
    assert large is not None
    assert odd is not None
    assert long.label.startswith(f"{'n' * MAX_NAME} ({'f' * MAX_NAME}) #")
    assert (deep.text.count("wait"), wide.text.count("thread "), len(large.text)) == (MAX_FRAMES, MAX_THREADS, MAX_TEXT)
    assert odd.label.startswith("a?[31m?(!channel) (train.py) #")
    assert "\x07" not in odd.text


@pytest.mark.parametrize(
    "text",
    [b"", b"Permission Denied", b"{}", b'[{"frames": 1}]', b"[" * 100_000, b'[{"frames": [{"name": 1}]}]', b"\xff"],
)
def test_what_is_no_answer(text: bytes) -> None:
    """What is no answer of py-spy is refused with msgspec's own error."""
    with pytest.raises(msgspec.DecodeError):
        stack_of(text, {1})


def test_no_python() -> None:
    """Without a thread that runs Python there is no stack."""
    assert stack_of(b"[]", {1}) is None
    assert stack_of(answer(thread()), {1}) is None


@pytest.mark.parametrize(("stacks", "elsewhere"), [
    ("aaaaaaab", "7"), ("aaab", "3"), ("aab", ""), ("aabb", ""), ("aaaabb", ""), ("aaaaaabb", "67"), ("aaaaaabc", "67"),
    ("aabcdefg", ""), ("aaaaaaaa", ""), ("", ""),
])  # fmt: skip
def test_who_is_elsewhere(stacks: str, elsewhere: str) -> None:
    """At most a quarter with one stack are elsewhere when more than half share another, of four at least."""
    assert "".join(others({str(rank): stack for rank, stack in enumerate(stacks)})) == elsewhere


@given(st.dictionaries(st.integers(0, 99), st.sampled_from("abc")))
def test_most_are_never_elsewhere(stacks: dict[int, str]) -> None:
    """However the stacks are spread, fewer than half of the ranks are named."""
    assert 2 * len(others({str(rank): stack for rank, stack in stacks.items()})) <= len(stacks)
