# ruff: noqa: INP001  # beside build.py, which imports it: no package
"""The files of the packages: the program with its dependencies, the service, and files that a site may copy."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import NamedTuple

import documents
from documents import ROOT

HERE = ROOT / "deploy" / "package"
PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
PLATFORMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28")
PROGRAM = "/usr/bin/rankwatch"
CHECKOUTS_PROGRAM = "/opt/rankwatch/bin/rankwatch"
"""Path of the program in units, scripts and documents, as scripts/install sets it. Packages replace it by PROGRAM."""


class Build(NamedTuple):
    """One build: version, machine, output directory, and the time of all files (epoch seconds)."""

    version: str
    arch: str
    output: Path
    epoch: int
    work: Path

    @property
    def machine(self) -> str:
        """Return the kernel's name of the machine."""
        return MACHINES[self.arch]


def run(*command: str | Path, **options: object) -> str:
    """Run a command, which must succeed; return its output."""
    done = subprocess.run(  # type: ignore[call-overload]  # options are its own  # noqa: S603  # our own commands
        [str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True, **options
    )
    return str(done.stdout)


def pip(*arguments: str | Path, **options: object) -> None:
    """Run pip quietly."""
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet", *arguments, **options)


def wheels(build: Build) -> Path:
    """Download the locked dependencies for every Python of this machine; return the folder."""
    folder = build.work / "wheels"
    platforms = [f"--platform={platform}_{build.machine}" for platform in PLATFORMS]
    for python in PYTHONS:
        tag = "cp" + python.replace(".", "")
        pip(
            *("download", "--no-deps", "--require-hashes", "--only-binary=:all:", "-r", ROOT / "requirements.lock"),
            *(*platforms, f"--python-version={python}", "--implementation=cp"),
            *(f"--abi={tag}", "--abi=abi3", "--abi=none", "-d", folder),
        )
    return folder


def wheel(build: Build, folder: Path) -> Path:
    """Build rankwatch's wheel into ``folder``; return its path."""
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(build.epoch)}
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT, env=env)
    return folder / f"rankwatch-{build.version}-py3-none-any.whl"


def tree(build: Build, zsh: str) -> Path:
    """Make the files of the packages below a folder; return the folder. ``zsh``: folder of zsh's completions."""
    root = build.work / "tree"
    shutil.copytree(_unpacked(build), root / "usr/lib/rankwatch/lib")
    _put(root, HERE / "start.py", "usr/lib/rankwatch/start.py")
    _put(root, HERE / "rankwatch.sh", "usr/bin/rankwatch", 0o755)
    _put(root, HERE / "rankwatch-setup", "usr/sbin/rankwatch-setup", 0o755)
    _put_service(root)
    _put_shared(root)
    _put_documents(root, build)
    _put_bytes(root, documents.bash_completion().encode(), "usr/share/bash-completion/completions/rankwatch")
    _put_bytes(root, documents.zsh_completion().encode(), f"{zsh}/_rankwatch")
    for path in root.rglob("*"):
        path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        os.utime(path, (build.epoch, build.epoch))
    return root


def _unpacked(build: Build) -> Path:
    """Unpack rankwatch's wheel and the dependencies of all Pythons into one folder; return it."""
    lib = build.work / "lib"
    for path in (*sorted(wheels(build).glob("*.whl")), wheel(build, build.work)):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                target = lib / name
                if name.endswith("/") or ".data/" in name:
                    continue
                data = archive.read(name)
                if ".dist-info/" not in name and target.exists() and target.read_bytes() != data:
                    raise SystemExit(f"{name} differs between wheels of one release: one folder cannot serve all")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
    return lib


def _put(root: Path, source: Path, target: str, mode: int = 0o644) -> None:
    """Copy a text file below ``root``; replace the program's path by the package's path."""
    text = source.read_text().replace(CHECKOUTS_PROGRAM, PROGRAM)
    _put_bytes(root, text.encode(), target, mode)


def _put_bytes(root: Path, data: bytes, target: str, mode: int = 0o644) -> None:
    path = root / target
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)


def _put_service(root: Path) -> None:
    systemd = ROOT / "deploy" / "systemd"
    _put(root, systemd / "rankwatch.service", "usr/lib/systemd/system/rankwatch.service")
    _put(root, systemd / "rankwatch.sysusers.conf", "usr/lib/sysusers.d/rankwatch.conf")
    _put(root, systemd / "rankwatch.tmpfiles.conf", "usr/lib/tmpfiles.d/rankwatch.conf")
    _put(root, systemd / "rankwatch.yml", "etc/rankwatch/rankwatch.yml")


def _put_shared(root: Path) -> None:
    """Add files that a site may copy: drop-ins, socket, Slurm's scripts, rules, routes, dashboards."""
    deploy, share = ROOT / "deploy", "usr/share/rankwatch"
    optional = ("rankwatch.service.d/*", "rankwatch-lldp.*", "rankwatch.socket")
    for path in (path for pattern in optional for path in deploy.glob(f"systemd/{pattern}")):
        _put(root, path, f"{share}/systemd/{path.name}")
    prometheus = (f"prometheus/{folder}" for folder in ("rules", "sources", "scrape", "optional"))
    for folder in ("slurm", "alertmanager", "kubernetes", "container", *prometheus):
        for path in (deploy / folder).rglob("*"):
            if path.is_file() and not {"__pycache__", "chart"} & set(path.parts):  # the chart needs a checkout
                _put(root, path, f"{share}/{path.relative_to(deploy)}", 0o755 if folder == "slurm" else 0o644)
    for path in (deploy / "prometheus").glob("*.*"):
        _put(root, path, f"{share}/prometheus/{path.name}", 0o755 if path.suffix == ".py" else 0o644)
    for path in (ROOT / "grafana" / "dashboards").glob("*.json"):
        _put(root, path, f"{share}/grafana/{path.name}")


def _put_documents(root: Path, build: Build) -> None:
    date = time.strftime("%Y-%m-%d", time.gmtime(build.epoch))
    for path in (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))):
        _put(root, path, f"usr/share/doc/rankwatch/{path.name}")
    _put(root, ROOT / "LICENSE", "usr/share/doc/rankwatch/copyright")
    pages = {
        "man1/rankwatch.1": documents.rankwatch_1(build.version, date),
        "man5/rankwatch.yml.5": documents.rankwatch_yml_5(build.version, date),
        "man8/rankwatch-setup.8": documents.rankwatch_setup_8(build.version, date),
    }
    for name, text in pages.items():
        _put_bytes(root, gzip.compress(text.encode(), mtime=0), f"usr/share/man/{name}.gz")


def version() -> str:
    """Return the version, from agent/__init__.py."""
    [number] = re.findall(r'^__version__ = "(.+)"$', (ROOT / "agent" / "__init__.py").read_text(), re.MULTILINE)
    return str(number)
