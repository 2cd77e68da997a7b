#!/usr/bin/env python3
"""Build rankwatch's packages (run by `scripts/package`). The build is reproducible: same commit, same bytes.

    scripts/package [--output DIR] [--arch amd64|arm64] [wheel] [sdist] [deb] [rpm] [bundle] [sbom]

Without KIND it builds all kinds. A package holds the dependencies for every Python from 3.11 to 3.13: the names of
compiled modules contain the Python version, so one folder serves all. pip must reach a package index; deb needs
dpkg-deb, rpm needs rpmbuild.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from contents import HERE, MACHINES, Build, run, tree, version, wheel, wheels
from documents import ROOT, SUMMARY

KINDS = ("wheel", "sdist", "deb", "rpm", "bundle", "sbom")
SCRIPTS = ("preinst", "postinst", "prerm", "postrm")


def sdist(build: Build) -> None:
    """Build the archive of the sources."""
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(build.epoch)}
    code = "import sys; from hatchling.build import build_sdist; print(build_sdist(sys.argv[1]))"
    run(sys.executable, "-c", code, build.output, cwd=ROOT, env=env)


def deb(build: Build) -> None:
    """Build Debian's package."""
    root = build.work / "deb"
    shutil.copytree(tree(build, "usr/share/zsh/vendor-completions"), root)
    control = root / "DEBIAN"
    control.mkdir()
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) // 1024
    (control / "control").write_text(
        f"Package: rankwatch\nVersion: {build.version}\nArchitecture: {build.arch}\n"
        "Maintainer: The rankwatch developers <rankwatch@localhost>\n"
        f"Installed-Size: {size}\nDepends: python3 (>= 3.11), python3 (<< 3.14), systemd, passwd\n"
        "Section: net\nPriority: optional\n"
        f"Description: {SUMMARY}\n One small daemon per GPU node: which ranks of which jobs live, how they ended, how\n"
        " fast their collectives are, and which rank the others wait for. On systems with\n"
        " an older Python use the container.\n"
    )
    (control / "conffiles").write_text("/etc/rankwatch/rankwatch.yml\n")
    for name in SCRIPTS:
        shutil.copyfile(HERE / name, control / name)
        (control / name).chmod(0o755)
    for path in (control, *control.iterdir()):
        os.utime(path, (build.epoch, build.epoch))
    name = f"rankwatch_{build.version}_{build.arch}.deb"
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(build.epoch)}
    run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", root, build.output / name, env=env)


SPEC = """\
Name: rankwatch
Version: {version}
Release: 1
Summary: {summary}
License: Apache-2.0
AutoReqProv: no
Requires: (python3.13 or python3.12 or python3.11 or python313 or python312 or python311 or python3 >= 3.11)
Requires: systemd
%global debug_package %{{nil}}
%global __os_install_post %{{nil}}
%global _build_id_links none
%global use_source_date_epoch_as_buildtime 1
%global clamp_mtime_to_source_date_epoch 1
%global _buildhost reproducible
%description
One small daemon per GPU node: which ranks of which jobs live, how they ended, how fast their collectives are, and which
rank the others wait for.
%install
cp -a {tree}/. %{{buildroot}}/
%pre
{preinst}
%post
{postinst}
%preun
if [ "$1" != 0 ]; then exit 0; fi
{prerm}
%postun
if [ "$1" != 0 ]; then exit 0; fi
{postrm}
%files
%config(noreplace) /etc/rankwatch/rankwatch.yml
{files}
"""


def rpm(build: Build) -> None:
    """Build RPM's package."""
    root = tree(build, "usr/share/zsh/site-functions")
    files = [f"/{path.relative_to(root)}" for path in sorted(root.rglob("*")) if path.is_file()]
    folders = ["%dir /etc/rankwatch", "%dir /usr/lib/rankwatch", "%dir /usr/share/rankwatch"]
    scripts = {name: (HERE / name).read_text().split("\n", 1)[1] for name in SCRIPTS}  # without their first line
    (build.work / "rankwatch.spec").write_text(
        SPEC.format(
            version=build.version,
            summary=SUMMARY,
            tree=root,
            files="\n".join([*folders, *(f'"{file}"' for file in files if not file.startswith("/etc/"))]),
            **scripts,
        )
    )
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(build.epoch)}
    run(
        *("rpmbuild", "-bb", "--quiet", f"--target={build.machine}", f"--define=_topdir {build.work}/rpm"),
        *(f"--define=_rpmdir {build.output}", "--define=_rpmfilename %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm"),
        build.work / "rankwatch.spec",
        env=env,
        stderr=subprocess.STDOUT,
    )


def bundle(build: Build) -> None:
    """Pack wheels of rankwatch and its dependencies, and scripts/install with its files, for nodes without an index."""
    name = f"rankwatch-{build.version}-{build.machine}"
    folder = build.work / name
    folder.mkdir()
    shutil.copytree(wheels(build), folder / "wheels")
    wheel(build, folder / "wheels")
    for source in ("scripts/install", "scripts/environment.sh", "requirements.lock", "README.md", "LICENSE"):
        (folder / source).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / source, folder / source)
    for source in ("deploy", "docs", "grafana/dashboards"):
        shutil.copytree(ROOT / source, folder / source, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            info = archive.gettarinfo(path, f"{name}/{path.relative_to(folder)}")
            info.uid = info.gid = 0
            info.uname = info.gname = "root"
            info.mtime = build.epoch
            info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
            archive.addfile(info, path.open("rb") if info.isreg() else None)
    (build.output / f"{name}.tar.gz").write_bytes(gzip.compress(buffer.getvalue(), mtime=0))


def sbom(build: Build) -> None:
    """Write the list of the package's components (CycloneDX 1.5), from the lock."""
    lock = (ROOT / "requirements.lock").read_text()
    packages = re.findall(r"^([a-zA-Z0-9_.-]+)==(\S+) ((?:.|\n)*?)(?=^\S|\Z)", lock, re.MULTILINE)
    components = [
        {
            "type": "library",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name}@{version}",
            "hashes": [{"alg": "SHA-256", "content": sha} for sha in re.findall(r"sha256:([0-9a-f]{64})", hashes)],
        }
        for name, version, hashes in packages
    ]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "rankwatch", "version": build.version}},
        "components": components,
    }
    (build.output / f"rankwatch-{build.version}.cdx.json").write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    """Build the kinds that the command line names."""
    parser = argparse.ArgumentParser(prog="scripts/package", description="Build packages of rankwatch.")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "dist", metavar="DIR", help="output folder (default dist)"
    )
    parser.add_argument("--arch", choices=MACHINES, default="amd64" if os.uname().machine == "x86_64" else "arm64")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)} (default: all)")
    flags = parser.parse_args()
    if unknown := set(flags.kinds) - set(KINDS):
        parser.error(f"no kind {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    try:
        epoch = os.environ.get("SOURCE_DATE_EPOCH") or run("git", "-C", ROOT, "log", "-1", "--format=%ct").strip()
    except (OSError, subprocess.CalledProcessError):
        sys.exit("scripts/package: git cannot read the time of the last commit; install git, or set SOURCE_DATE_EPOCH")
    flags.output.mkdir(parents=True, exist_ok=True)
    makers: dict[str, Callable[[Build], object]] = {
        "wheel": lambda build: wheel(build, build.output),
        "sdist": sdist,
        "deb": deb,
        "rpm": rpm,
        "bundle": bundle,
        "sbom": sbom,
    }
    for kind in flags.kinds or KINDS:
        with tempfile.TemporaryDirectory() as work:
            makers[kind](Build(version(), flags.arch, flags.output.resolve(), int(epoch), Path(work)))
    for path in sorted(flags.output.iterdir()):
        print(path)  # noqa: T201  # what it made


if __name__ == "__main__":
    main()
