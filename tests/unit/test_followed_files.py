import os
from pathlib import Path

import pytest
from fake_clock import FakeClock
from test_follow import begun, drain, follow, poll

from agent.tail.follower import IDLE_SECONDS
from agent.tail.listing import FollowLimits


def write(path: Path, text: bytes, modified_seconds: int) -> None:
    """Append to a file and set its modification time."""
    with path.open("ab") as file:
        file.write(text)
    os.utime(path, (modified_seconds, modified_seconds))


def test_foreign_files_cost_no_place(tmp_path: Path) -> None:
    """Files of other hosts are counted and do not count against the limit of files."""
    for number in range(20):
        (tmp_path / f"foreign-{number:02}.log").write_bytes(b"foreign\n")
    (tmp_path / "local.log").write_bytes(b"local\n")
    follower = follow(tmp_path, limits=FollowLimits(files=1))
    (file,) = follower.discover(lambda name, _: name.startswith("foreign"))
    assert (drain(follower, file), follower.passed_over) == (b"local\n", 20)
    assert not +follower.skipped


def test_the_files_written_to_last_are_followed(tmp_path: Path) -> None:
    """At the limit a newer file replaces the longest idle one; when the replaced file grows, reading goes on there."""
    clock = FakeClock()
    follower = follow(tmp_path, clock=clock, limits=FollowLimits(files=2))
    write(tmp_path / "a.log", b"a1\n", 10)
    write(tmp_path / "b.log", b"b1\n", 20)
    assert poll(follower) == b"a1\nb1\n"
    write(tmp_path / "c.log", b"c1\n", 30)
    assert poll(follower) == b""  # no file is idle
    clock.now += IDLE_SECONDS
    follower.discover()  # closes the files
    assert poll(follower) == b"c1\n"
    assert follower.skipped["file_limit"] >= 1
    write(tmp_path / "d.log", b"d1\n", 5)
    assert poll(follower) == b""
    clock.now += IDLE_SECONDS
    follower.discover()
    write(tmp_path / "a.log", b"a2\n", 40)
    assert poll(follower) == b"a2\n"


@pytest.mark.parametrize("restarted", [False, True])
def test_file_out_of_sight_goes_on_where_it_was(tmp_path: Path, restarted: bool) -> None:
    """A file that is renamed away and back is not read twice, even if the agent restarts."""
    clock = FakeClock()
    path, follower = begun(tmp_path, b"one\n", clock=clock)
    generation = follower.files()[0].generation
    path.rename(tmp_path / "a.renamed")
    clock.now += IDLE_SECONDS
    assert follower.discover() == []
    if restarted:
        follower = follow(tmp_path, resume=follower.positions(), lost_positions=follower.lost_positions())
    (tmp_path / "a.renamed").rename(path)
    assert (poll(follower), [file.generation for file in follower.files()]) == (b"", [generation])
    write(path, b"two\n", 9)
    assert poll(follower) == b"two\n"


def test_directory_away_and_back(tmp_path: Path) -> None:
    """Files on a mount that was empty for one poll are read from their saved offsets."""
    root, away = tmp_path / "root", tmp_path / "away"
    root.mkdir()
    _, first = begun(root, b"one\n")
    root.rename(away)
    root.mkdir()
    second = follow(root, resume=first.positions())
    assert poll(second) == b""
    root.rmdir()
    away.rename(root)
    write(root / "a.log", b"two\n", 9)
    assert poll(second) == b"two\n"
