"""The checkpoint file."""

import os
import stat
from pathlib import Path

import pytest

from agent.core import checkpoint as module
from agent.core.checkpoint import MAX_BYTES, Draft, StateFile
from agent.core.log import Logger

BOOT = "boot-1"


def opened(path: Path | None) -> StateFile:
    """Return a loaded state file."""
    state = StateFile(path, BOOT, Logger("test"))
    state.load()
    return state


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a path in a directory that does not exist yet."""
    return tmp_path / "state" / "checkpoint"


def save(state: StateFile) -> None:
    """Encode and write the sections."""
    draft = state.encode()
    state.note(draft, written=state.write(draft))


def saved(path: Path) -> None:
    """Save one section."""
    state = opened(path)
    state.section("a").publish(b"one")
    save(state)
    assert (state.save_errors, stat.S_IMODE(path.stat().st_mode)) == (0, 0o600)


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x93\x01"])
def test_damaged_file_is_left_aside(path: Path, content: bytes) -> None:
    """A damaged file is ignored, and the agent starts without saved state."""
    path.parent.mkdir()
    path.write_bytes(content)
    assert opened(path).section("a").restored is None


def test_bound_and_link(path: Path) -> None:
    """A file above the limit, and a link, are not read."""
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert opened(path).section("a").restored is None
    path.unlink()
    path.symlink_to("/etc/hostname")
    assert opened(path).section("a").restored is None


def test_a_pipe_in_its_place_is_not_waited_for(path: Path) -> None:
    """FIFOs in place of the file and of its draft do not block, and the next save is complete."""
    path.parent.mkdir()
    for pipe in (path, path.with_name("checkpoint.new")):
        os.mkfifo(pipe)
    assert opened(path).section("a").restored is None
    saved(path)
    assert opened(path).section("a").restored == b"one"


@pytest.mark.parametrize(("mode", "is_read"), [(0o600, True), (0o644, True), (0o620, False), (0o602, False)])
def test_what_others_can_write_is_not_read(path: Path, mode: int, is_read: bool) -> None:
    """A checkpoint that its group or other users may write is not read, and the agent starts."""
    saved(path)
    path.chmod(mode)
    assert (opened(path).section("a").restored == b"one") is is_read


@pytest.mark.parametrize(("owner", "is_read"), [(0, True), (1234, True), (1235, False)])
def test_whose_checkpoint_is_read(path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, is_read: bool) -> None:
    """A checkpoint is read only if the agent's user or root owns it."""
    saved(path)
    real = os.fstat

    def of_another(fd: int) -> os.stat_result:
        fields = list(real(fd))
        fields[stat.ST_UID] = owner
        return os.stat_result(fields)

    monkeypatch.setattr(module.os, "fstat", of_another)
    monkeypatch.setattr(module.os, "geteuid", lambda: 1234)
    assert (opened(path).section("a").restored == b"one") is is_read


def test_what_lies_where_it_is_written_is_not_written_to(path: Path, tmp_path: Path) -> None:
    """A file with a hard link at the draft's path keeps its content."""
    saved(path)
    other = tmp_path / "other"
    other.write_bytes(b"kept")
    path.with_name("checkpoint.new").hardlink_to(other)
    saved(path)
    assert other.read_bytes() == b"kept"


def test_unwritable_path_is_counted(tmp_path: Path) -> None:
    """A checkpoint that cannot be written is counted, and the agent goes on."""
    (tmp_path / "file").touch()
    state = opened(tmp_path / "file" / "checkpoint")
    state.section("a").publish(b"one")
    save(state)
    assert state.save_errors == 1


def test_checkpoint_over_the_bound_is_not_written(path: Path) -> None:
    """Content above the limit is counted, and the older file stays."""
    state = opened(path)
    for size_bytes in (MAX_BYTES, MAX_BYTES + 1):
        draft = Draft(b"x" * size_bytes, {})
        state.note(draft, written=state.write(draft))
    assert (path.stat().st_size, state.save_errors) == (MAX_BYTES, 1)


def test_durable_is_what_is_on_disk(path: Path) -> None:
    """``durable`` is the section's content in the file that was written last."""
    state = opened(path)
    section = state.section("a")
    section.publish(b"one")
    draft = state.encode()
    section.publish(b"two")
    assert section.durable is None
    state.note(draft, written=state.write(draft))
    assert section.durable == b"one"
    state.note(state.encode(), written=False)
    assert section.durable == b"one"
    assert opened(path).section("a").durable == b"one"


@pytest.mark.parametrize("over", [0, 1])
def test_a_section_over_its_budget_keeps_what_it_published_before(path: Path, over: int) -> None:
    """If a section is larger than its budget, its older content stays in memory and on disk; others are saved."""
    state = opened(path)
    large, other = state.section("large", max_bytes=100), state.section("other")
    large.publish(b"small")
    save(state)
    large.publish(b"x" * (100 + over))
    other.publish(b"new")
    save(state)
    again = opened(path)
    assert again.section("other").restored == b"new"
    assert again.section("large").restored == (b"small" if over else b"x" * 100)
    assert (large.durable, state.save_errors) == (again.section("large").restored, over)


def test_sections_without_an_exporter_never_displace_others(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If all sections together are too large, those that do not fit and have no running owner are dropped."""
    state = opened(path)
    state.section("old").publish(b"x" * 600)
    state.section("older").publish(b"y" * 100)
    save(state)
    again = opened(path)
    monkeypatch.setattr(module, "MAX_BYTES", 1000 + module.ENVELOPE_BYTES)
    again.section("new").publish(b"z" * 900)
    save(again)
    last = opened(path)
    assert (last.section("new").restored, last.section("older").restored) == (b"z" * 900, b"y" * 100)
    assert last.section("old").restored is None
    assert again.save_errors == 0


@pytest.mark.parametrize(
    "error", [ValueError("v"), RecursionError("r"), MemoryError(), TypeError("t"), OverflowError()]
)
def test_whatever_decoding_raises_sets_the_past_aside(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Any error in a file or section sets it aside, and the agent starts."""
    state = opened(path)
    state.section("a").publish(b"one")
    save(state)
    section = opened(path).section("a")

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(module.msgspec.msgpack, "decode", fail)
    assert section.restore(dict, Logger("test")) is None
    assert opened(path).section("a").restored is None
