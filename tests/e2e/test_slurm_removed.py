"""On a node under a real Slurm without the scripts, jobs still run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from jobs import ROOT
from nodes import wait_until
from slurm import END_SECONDS, Slurm, why_no_slurm

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(why_no_slurm() is not None, reason=why_no_slurm() or ""),
    pytest.mark.timeout(120),
]


def test_a_removal_drains_no_node(tmp_path: Path) -> None:
    """After `rankwatch-setup --remove` a job runs to its end, although slurm.conf still names the scripts."""
    root, share = tmp_path / "root", tmp_path / "share"
    shutil.copytree(ROOT / "deploy/slurm", share / "slurm")
    (root / "etc/slurm").mkdir(parents=True)
    lines = f"Prolog={root}/etc/slurm/prolog.d/*\nEpilog={root}/etc/slurm/epilog.d/*\n"
    (root / "etc/slurm/slurm.conf").write_text(lines)
    for option in ("--slurm", "--remove"):
        command = ["sh", ROOT / "deploy/package/rankwatch-setup", "--root", root, option]
        subprocess.run(command, check=True, env={"PATH": os.environ["PATH"], "RANKWATCH_SHARE": str(share)})
    with Slurm(tmp_path, lines) as slurm:
        job_id = slurm.submit("echo ran")
        wait_until(lambda: not slurm.ask("squeue", "--noheader"), END_SECONDS, "the job's end")
        assert slurm.output(job_id) == "ran\n"
        assert slurm.ask("sinfo", "--noheader", "--format=%T").strip() == "idle"
