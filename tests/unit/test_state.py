"""The checkpoint file."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest

from agent.core.checkpoint import MAX_BYTES, StateFile
from agent.core.log import Logger

BOOT = "boot-1"


def opened(path: Path | None, boot: str = BOOT) -> StateFile:
    """A state file after its load."""
    state = StateFile(path, boot, Logger("test"))
    state.load()
    return state


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A path whose directory is not there yet."""
    return tmp_path / "state" / "checkpoint"


def save(state: StateFile) -> None:
    """Encode and write."""
    state.write(state.encode(), 1.0)


def test_sections_come_back(path: Path) -> None:
    """What owners published is what they find after a restart, each its own."""
    state = opened(path)
    state.section("a").publish(b"one")
    state.section("b").publish(b"two")
    assert state.changed()
    save(state)
    assert not state.changed()
    assert state.last_saved_seconds == 1.0
    again = opened(path)
    assert (again.section("a").restored, again.section("b").restored) == (b"one", b"two")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_unclaimed_sections_are_kept(path: Path) -> None:
    """A section whose owner is not running now is kept for the time that it is."""
    state = opened(path)
    state.section("a").publish(b"one")
    save(state)
    again = opened(path)
    again.section("b").publish(b"two")
    save(again)
    assert opened(path).section("a").restored == b"one"


def test_reloaded_owner_finds_what_it_published(path: Path) -> None:
    """An owner that starts anew in the same agent finds its newest section."""
    state = opened(path)
    state.section("a").publish(b"one")
    assert state.section("a").restored == b"one"


def test_other_boot_is_forgotten(path: Path) -> None:
    """After a reboot nothing is restored."""
    state = opened(path)
    state.section("a").publish(b"one")
    save(state)
    assert opened(path, "boot-2").section("a").restored is None


@pytest.mark.parametrize(
    "content",
    [b"", b"garbage", b"\x93\x01", msgspec.msgpack.encode({"format": 99, "boot_id": BOOT, "sections": {}})],
)
def test_damaged_file_is_left_aside(path: Path, content: bytes) -> None:
    """A damaged file, or one of another format, costs the past but not the start."""
    path.parent.mkdir()
    path.write_bytes(content)
    assert opened(path).section("a").restored is None


def test_bound_and_link(path: Path) -> None:
    """A file of one byte over the bound, and a link, are not read."""
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert opened(path).section("a").restored is None
    path.unlink()
    path.symlink_to("/etc/hostname")
    assert opened(path).section("a").restored is None


def test_unwritable_path_is_counted(tmp_path: Path) -> None:
    """A checkpoint that cannot be written is counted, and the agent goes on."""
    (tmp_path / "file").touch()
    state = opened(tmp_path / "file" / "checkpoint")
    state.section("a").publish(b"one")
    save(state)
    assert (state.save_errors, state.last_saved_seconds) == (1, None)


def test_checkpoint_over_the_bound_is_not_written(path: Path) -> None:
    """Content of one byte over the bound leaves the older file in place and is counted."""
    state = opened(path)
    state.write(b"x" * MAX_BYTES, 1.0)
    state.write(b"x" * (MAX_BYTES + 1), 2.0)
    assert (path.stat().st_size, state.last_saved_seconds, state.save_errors) == (MAX_BYTES, 1.0, 1)


def test_no_path_keeps_nothing() -> None:
    """Without a path nothing is saved and nothing fails."""
    state = opened(None)
    state.section("a").publish(b"one")
    assert not state.changed()
    save(state)
    assert state.save_errors == 0


def test_durable_is_what_is_on_disk(path: Path) -> None:
    """A section is durable as of the last file written, not what was published since, nor what could not be written."""
    state = opened(path)
    section = state.section("a")
    section.publish(b"one")
    content = state.encode()
    section.publish(b"two")
    assert section.durable is None
    state.write(content, 1.0)
    assert section.durable == b"one"
    state.encode()
    state.write(b"x" * (MAX_BYTES + 1), 2.0)
    assert section.durable == b"one"
    assert opened(path).section("a").durable == b"one"
