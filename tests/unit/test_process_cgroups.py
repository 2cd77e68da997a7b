"""What a process' control group says."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporters.process.cgroups import memory_path, oom_kills, pod_and_container

POD = "c7a3f8b2-1f2e-4d5c-9a8b-7c6d5e4f3a2b"
CONTAINER = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("path", "pod", "container"),
    [
        (f"/kubepods/burstable/pod{POD}/{CONTAINER}", POD, CONTAINER),
        (
            f"/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope",
            POD,
            CONTAINER,
        ),
        (f"/system.slice/docker-{CONTAINER}.scope", "", CONTAINER),
        (f"/docker/{CONTAINER}", "", CONTAINER),
        ("/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", "", ""),
        ("/", "", ""),
    ],
)
def test_pod_and_container(path: str, pod: str, container: str) -> None:
    """Kubernetes and container runtimes name pod and container in the cgroup path."""
    assert pod_and_container({"": path}) == (pod, container)


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
