"""A file that cannot be read any more after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_clock import FakeClock
from test_inspector_failures import EVERYONE, all_of, append, break_read, make, three_files


@pytest.mark.parametrize("error", [RuntimeError("odd"), PermissionError(13, "no")])
def test_one_file_does_not_hide_the_counts_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Ten minutes after a restart the counts of all files are shown again, though one of them fails ever since."""
    clock, paths = FakeClock(), three_files(tmp_path)
    section = all_of(make(tmp_path, clock)).section
    append(paths, 10, 20)
    break_read(monkeypatch, error)
    reader = make(tmp_path, clock, restored=section)
    for _ in range(600):
        clock.advance(1.0)
        turn = reader.turn(EVERYONE)
    assert turn.published is not None
    assert turn.published.caught_up
