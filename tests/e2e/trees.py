"""Minimal Debian trees, booted by systemd, for packages that are installed as on a node."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from booted import boot_for, nspawn
from jobs import ROOT

TREES = ROOT / ".cache" / "trees"
INCLUDED = ("python3-minimal", "python3", "python3-venv", "systemd", "systemd-sysv", "passwd", "procps", "curl")
_UNIT = """\
[Unit]
After=basic.target
SuccessAction=poweroff-force
FailureAction=poweroff-force
[Service]
Type=oneshot
TimeoutStartSec=infinity
ExecStart=/bin/bash /opt/acceptance.sh
StandardOutput=file:/opt/said.txt
StandardError=file:/opt/said.txt
"""


def why_no_trees() -> str | None:
    """Return the reason to skip, or None."""
    if os.geteuid() != 0:
        return "booting a machine needs root"
    missing = [name for name in ("mmdebstrap", "dpkg-deb") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} not found: scripts/test installs it"
    return None if nspawn() is not None else "no systemd-nspawn: scripts/test fetches it"


def tree(release: str, *packages: str) -> Path:
    """Return a tree of a Debian release with these additional packages; it is made once and never changed."""
    name = "-".join((release, *packages))
    TREES.mkdir(parents=True, exist_ok=True)
    tree = TREES / name
    with (TREES / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not tree.exists():
            draft = TREES / f"{name}.draft"
            shutil.rmtree(draft, ignore_errors=True)
            included = ",".join((*INCLUDED, *packages))
            options = ["--quiet", "--variant=minbase", f"--include={included}"]
            subprocess.run(["mmdebstrap", *options, release, str(draft), mirror()], check=True)
            draft.rename(tree)
    return tree


def mirror() -> str:
    """Return this machine's package mirror."""
    targets = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    mirrors = subprocess.run(targets, check=True, capture_output=True, text=True).stdout.split()
    return next(mirror for mirror in mirrors if mirror.rstrip("/").endswith("/debian"))


def accept(root: Path, script: str, files: Sequence[Path], seconds: float) -> str:
    """Boot a tree, run a script in it with ``files`` in /opt, and return its output; the machine stops afterwards."""
    for path in files:
        (shutil.copytree if path.is_dir() else shutil.copy)(path, root / "opt" / path.name)  # type: ignore[operator]
    (root / "opt/acceptance.sh").write_text(f"set -eu\n{script}\necho ACCEPTED\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    return boot_for(root, _UNIT, seconds)
