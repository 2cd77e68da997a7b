"""Pods as kubelet runs them: with their own namespaces and control group, and a log directory by their name."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from jobs import ROOT
from nodes import Node, wait_until

NAMESPACES = ("--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--net", "--ipc", "--uts", "--cgroup")
USER = 65534
CGROUPS = Path("/sys/fs/cgroup")
_START = """
set -e
echo 0 > "$1/cgroup.procs"
exec unshare {namespaces} sh -ec 'mount --bind "$1" "$2"; shift 2; exec "$@"' sh "$2" "$3" \\
    setpriv --reuid={user} --regid={user} --clear-groups \\
    "$4" -B -m agent.simulate --job-dir "$5" --dump-dir "$3" "${{@:6}}"
"""


class PodPlaces:
    """``dumps``: the node's directory that the pod mounts; ``logs``: kubelet's; ``home``: the pod's own."""

    def __init__(self, dumps: Path, logs: Path, home: Path) -> None:
        self.dumps, self.logs, self.home = dumps, logs, home


@contextlib.contextmanager
def pod(node: Node, places: PodPlaces, namespace: str, job_id: str, *options: str) -> Iterator[str]:
    """Run a job of another user in a pod; yield the pod's uid. The job's Inspector files are in a hostPath."""
    uid = str(uuid.uuid4())
    (places.logs / f"{namespace}_{job_id}-0_{uid}").mkdir(parents=True)
    inside = places.home / "inspector-in-the-pod"
    inside.mkdir(parents=True)
    places.home.chmod(0o1777)
    top = CGROUPS if (CGROUPS / "cgroup.controllers").exists() else CGROUPS / "pids"
    group = top / "kubepods" / "burstable" / f"pod{uid}" / (uuid.uuid4().hex * 2)
    group.mkdir(parents=True)
    script = _START.format(namespaces=" ".join(NAMESPACES), user=USER)
    given = [group, places.dumps, inside, sys.executable, places.home / "job", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RANKWATCH_JOB_ID": job_id}
    process = node.popen(["bash", "-c", script, "bash", *given], env=environment, stdout=subprocess.DEVNULL)
    try:
        yield uid
    finally:
        for word in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(word), 9)
        process.wait(10)
        wait_until(lambda: not (group / "cgroup.procs").read_text(), 10, "the end of the pod")
        for each in (group, *group.parents[:3]):
            with contextlib.suppress(OSError):  # another pod's
                each.rmdir()
