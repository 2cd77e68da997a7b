"""Bare Debian trees, booted by systemd, in which packages are installed as on a node."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from booted import UNPACKED, nspawn
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
_TARGET = "[Unit]\nRequires=basic.target\nWants=acceptance.service\nAfter=basic.target\nAllowIsolate=yes\n"


def why_no_trees() -> str | None:
    """Return the reason to skip, or None."""
    if os.geteuid() != 0:
        return "booting a machine needs root"
    missing = [name for name in ("mmdebstrap", "dpkg-deb") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} not found: scripts/test installs it"
    return None if nspawn() is not None else "no systemd-nspawn: scripts/test fetches it"


def tree(release: str, *packages: str) -> Path:
    """Return a tree of a release of Debian with these packages besides a bare system's; made once, never written to."""
    name = "-".join((release, *packages))
    TREES.mkdir(parents=True, exist_ok=True)
    place = TREES / name
    with (TREES / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            draft = TREES / f"{name}.draft"
            shutil.rmtree(draft, ignore_errors=True)
            included = ",".join((*INCLUDED, *packages))
            command = [
                "mmdebstrap",
                "--quiet",
                "--variant=minbase",
                f"--include={included}",
                release,
                str(draft),
                mirror(),
            ]
            subprocess.run(command, check=True)
            draft.rename(place)
    return place


def mirror() -> str:
    """Return where this machine has its packages from."""
    targets = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    found = subprocess.run(targets, check=True, capture_output=True, text=True).stdout.split()
    return next(each for each in found if each.rstrip("/").endswith("/debian"))


@contextlib.contextmanager
def layered_tree(below: Path, directory: Path) -> Iterator[Path]:
    """Yield a root directory: the tree's files, and what is written goes into memory."""
    layer, root = directory / "layer", directory / "root"
    layer.mkdir()
    root.mkdir()
    with contextlib.ExitStack() as stack:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", layer], check=True)
        stack.callback(subprocess.run, ["umount", layer], check=True)
        for name in ("upper", "work"):
            (layer / name).mkdir()
        options = f"lowerdir={below},upperdir={layer / 'upper'},workdir={layer / 'work'}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, root], check=True)
        stack.callback(subprocess.run, ["umount", root], check=True)
        yield root


def accept(root: Path, script: str, files: Sequence[Path], seconds: float) -> str:
    """Boot a tree, run a script in it with ``files`` in /opt, and return all that it said; it ends with its script."""
    for path in files:
        (shutil.copytree if path.is_dir() else shutil.copy)(path, root / "opt" / path.name)  # type: ignore[operator]
    (root / "opt/acceptance.sh").write_text(f"set -eu\n{script}\necho ACCEPTED\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    system = root / "etc/systemd/system"
    (system / "acceptance.service").write_text(_UNIT)
    (system / "default.target").unlink(missing_ok=True)
    (system / "default.target").write_text(_TARGET)
    libraries = UNPACKED / "usr/lib" / f"{os.uname().machine}-linux-gnu"
    env = os.environ | {"LD_LIBRARY_PATH": f"{libraries / 'systemd'}:{libraries}"}
    container = [str(nspawn()), "-q", "-D", str(root), "--boot", "--register=no", "--keep-unit", "--private-network"]
    command = [*container, "--kill-signal=SIGKILL"]
    told = subprocess.run(
        command, check=False, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds
    )
    out = root / "opt/said.txt"
    assert out.exists(), told.stdout[-2000:] + told.stderr[-2000:]
    return out.read_text()
