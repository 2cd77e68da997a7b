"""What a process' control group says."""

from __future__ import annotations

from pathlib import Path

from exporters.process.cgroups import memory_path, oom_kills


def test_oom_counter_of_both_versions(tmp_path: Path) -> None:
    """Version 1 counts in memory.oom_control, version 2 in memory.events; a missing file counts nothing."""
    assert memory_path({"memory": "/job", "": "/x"}, tmp_path) == str(
        tmp_path / "fs/cgroup/memory/job/memory.oom_control"
    )
    assert memory_path({"": "/x"}, tmp_path) == str(tmp_path / "fs/cgroup/x/memory.events")
    assert memory_path({}, tmp_path) == ""
    control = tmp_path / "memory.oom_control"
    control.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert oom_kills(str(control)) == 3
    assert oom_kills(str(tmp_path / "gone")) is None
