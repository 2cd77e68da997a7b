"""A Slurm whose nodes run the scripts of deploy/slurm."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from jobs import ROOT
from slurm import Slurm

SCRIPTS = ROOT / "deploy" / "slurm"
HOOK = """\
#!/bin/sh
export RANKWATCH_JOBS_DIR={jobs} RANKWATCH_SQUEUE={squeue} RANKWATCH_COMMAND={directory}/rankwatch
export LD_LIBRARY_PATH={libraries} PYTHONPATH={root}
RANKWATCH_ADDRESS=$(cat {directory}/address)
export RANKWATCH_ADDRESS
begun=$(date +%s%N)
{script}
echo "{name} $? $(($(date +%s%N) - begun))" >> {directory}/took
"""


class Site:
    """A Slurm whose nodes run the scripts; the files of jobs are in ``jobs``, what jobcomp writes in ``completed``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.jobs = directory / "jobs"
        self.completed = directory / "completed"
        hooks = {"Prolog": "prolog.d/50-rankwatch", "Epilog": "epilog.d/50-rankwatch", "JobComp": "jobcomp/rankwatch"}
        lines = [f"{name}={directory}/{name}" for name in ("Prolog", "Epilog")]
        lines += ["JobCompType=jobcomp/script", f"JobCompLoc={directory}/JobComp"]
        for name in hooks:
            (directory / name).write_text("#!/bin/sh\n")
            (directory / name).chmod(0o755)
        self.slurm = Slurm(directory, "\n".join(lines) + "\n")
        env = self.slurm.environment
        for name, script in hooks.items():
            text = HOOK.format(
                jobs=self.completed if name == "JobComp" else self.jobs,
                squeue=env["PATH"].split(":")[0] + "/squeue",
                directory=directory,
                libraries=env["LD_LIBRARY_PATH"],
                root=ROOT,
                script=SCRIPTS / script,
                name=name,
            )
            (directory / name).write_text(text)
        python = shlex.quote(sys.executable)
        (directory / "rankwatch").write_text(f'#!/bin/sh\nexec {python} -m agent "$@"\n')
        (directory / "rankwatch").chmod(0o755)
        (directory / "address").write_text("127.0.0.1:1\n")

    def took(self) -> list[tuple[str, int, float]]:
        """Return which scripts ran, with which status, and for how many seconds."""
        rows = [line.split() for line in (self.directory / "took").read_text().splitlines()]
        return [(name, int(status), int(nanoseconds) / 1e9) for name, status, nanoseconds in rows]

    def word(self, job_id: str) -> str:
        """Return the state that jobcomp was told of a job; empty before that."""
        path = self.completed / f"{job_id}.json"
        return str(json.loads(path.read_text()).get("state", "")) if path.exists() else ""
