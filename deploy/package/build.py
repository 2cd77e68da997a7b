#!/usr/bin/env python3
"""Builds what rankwatch is installed from (run by `scripts/package`). It is reproducible: same commit, same bytes.

    scripts/package [--output DIR] [--arch amd64|arm64] [wheel] [sdist] [deb] [rpm] [bundle] [sbom]

Without a kind all are built. The package holds the dependencies for every Python from 3.11 to 3.13: modules that are
compiled carry their Python's name, so that one folder serves all. pip must reach a package index; dpkg-deb and rpmbuild
must be there for their kinds.
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
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "deploy" / "package"
PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
PLATFORMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28")
KINDS = ("wheel", "sdist", "deb", "rpm", "bundle", "sbom")
COMMANDS = ("", "status", "doctor", "healthy", "mark", "simulate")
SUMMARY = "Per-rank bandwidth, liveness and health of NCCL and RCCL jobs, for Prometheus"
SCRIPTS = ("postinst", "prerm", "postrm")


class Build(NamedTuple):
    """What is built: the version, for which machine, to where, and the time that all files have (seconds)."""

    version: str
    arch: str
    output: Path
    epoch: int
    work: Path

    @property
    def machine(self) -> str:
        """The kernel's name of the machine."""
        return MACHINES[self.arch]


def run(*command: str | Path, **options: object) -> str:
    """Run a command to a good end; return what it printed."""
    done = subprocess.run(  # type: ignore[call-overload]  # options are its own  # noqa: S603  # our own commands
        [str(each) for each in command], check=True, stdout=subprocess.PIPE, text=True, **options
    )
    return str(done.stdout)


def pip(*arguments: str | Path) -> None:
    """Run pip quietly."""
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet", *arguments)


def wheels(build: Build) -> Path:
    """Download the locked dependencies for every Python of this machine; return the folder."""
    folder = build.work / "wheels"
    platforms = [f"--platform={each}_{build.machine}" for each in PLATFORMS]
    for python in PYTHONS:
        tag = "cp" + python.replace(".", "")
        pip(
            *("download", "--no-deps", "--require-hashes", "--only-binary=:all:", "-r", ROOT / "requirements.lock"),
            *(*platforms, f"--python-version={python}", "--implementation=cp"),
            *(f"--abi={tag}", "--abi=abi3", "--abi=none", "-d", folder),
        )
    return folder


def wheel(build: Build) -> Path:
    """Build our own wheel."""
    before = set(build.output.glob("*.whl"))
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(build.epoch)}
    command = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "wheel", "--no-deps")
    run(*command, "--no-build-isolation", "--wheel-dir", build.output, ROOT, env=env)
    found = sorted(set(build.output.glob("*.whl")) - before) or sorted(before)
    return found[-1]


def sdist(build: Build) -> None:
    """Build the archive of the sources."""
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(build.epoch)}
    code = "import sys; from hatchling.build import build_sdist; print(build_sdist(sys.argv[1]))"
    run(sys.executable, "-c", code, build.output, cwd=ROOT, env=env)


def unpacked(build: Build) -> Path:
    """Unpack our wheel and the dependencies of all Pythons into one folder; return it."""
    lib = build.work / "lib"
    for path in (*sorted(wheels(build).glob("*.whl")), wheel(build)):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                target = lib / name
                if name.endswith("/") or ".data/" in name:
                    continue
                data = archive.read(name)
                if target.exists() and target.suffix == ".py" and target.read_bytes() != data:
                    raise SystemExit(f"{name} differs between wheels of one release: one folder cannot serve all")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
    return lib


def tree(build: Build) -> Path:
    """Make the files of the packages below a folder; return it."""
    root = build.work / "tree"

    shutil.copytree(unpacked(build), root / "usr/lib/rankwatch/lib")
    put(root, HERE / "start.py", "usr/lib/rankwatch/start.py")
    put(root, HERE / "rankwatch.sh", "usr/bin/rankwatch", 0o755)
    put(root, HERE / "rankwatch-setup", "usr/sbin/rankwatch-setup", 0o755)
    put_service(root)
    put_shared(root)
    for path in (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))):
        put(root, path, f"usr/share/doc/rankwatch/{path.name}")
    put(root, ROOT / "LICENSE", "usr/share/doc/rankwatch/copyright")
    put_bytes(root, completion().encode(), "usr/share/bash-completion/completions/rankwatch")
    put_bytes(root, gzip.compress(manual(build).encode(), mtime=0), "usr/share/man/man1/rankwatch.1.gz")
    for path in root.rglob("*"):
        if path.is_dir() or os.access(path, os.X_OK):
            path.chmod(0o755)
        else:
            path.chmod(0o644)
        os.utime(path, (build.epoch, build.epoch))
    return root


def put(root: Path, source: Path, place: str, mode: int = 0o644) -> None:
    """Copy a file to its place below ``root``."""
    put_bytes(root, source.read_bytes(), place, mode)


def put_bytes(root: Path, data: bytes, place: str, mode: int = 0o644) -> None:
    """Write a file at its place below ``root``."""
    target = root / place
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    target.chmod(mode)


def put_service(root: Path) -> None:
    """The unit, its user, directories and configuration."""
    systemd = ROOT / "deploy" / "systemd"
    unit = (systemd / "rankwatch.service").read_text().replace("/opt/rankwatch/bin/rankwatch", "/usr/bin/rankwatch")
    put_bytes(root, unit.encode(), "usr/lib/systemd/system/rankwatch.service")
    put(root, systemd / "rankwatch.sysusers.conf", "usr/lib/sysusers.d/rankwatch.conf")
    put(root, systemd / "rankwatch.tmpfiles.conf", "usr/lib/tmpfiles.d/rankwatch.conf")
    put(root, systemd / "rankwatch.yml", "etc/rankwatch/rankwatch.yml")


def put_shared(root: Path) -> None:
    """What a site takes what it needs of: drop-ins, Slurm's scripts, rules, routes, dashboards."""
    deploy, share = ROOT / "deploy", "usr/share/rankwatch"
    units = (*deploy.glob("systemd/rankwatch-lldp.*"), deploy / "systemd/rankwatch.socket")
    for path in (*deploy.glob("systemd/rankwatch.service.d/*"), *units):
        text = path.read_text().replace("/opt/rankwatch/bin/rankwatch", "/usr/bin/rankwatch")
        put_bytes(root, text.encode(), f"{share}/systemd/{path.name}")
    for place in ("slurm", "prometheus/rules", "prometheus/scrape", "prometheus/optional", "alertmanager"):
        for path in (deploy / place).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                put(root, path, f"{share}/{path.relative_to(deploy)}", 0o755 if place == "slurm" else 0o644)
    for path in (deploy / "prometheus/prometheus.yml", deploy / "prometheus/thresholds.yml"):
        put(root, path, f"{share}/prometheus/{path.name}")
    for path in (ROOT / "grafana" / "dashboards").glob("*.json"):
        put(root, path, f"{share}/grafana/{path.name}")


def help_of(command: str) -> str:
    """What a command says of itself, 80 characters wide."""
    env = {**os.environ, "COLUMNS": "80"}
    return run(sys.executable, "-m", "agent", *filter(None, [command]), "--help", cwd=ROOT, env=env)


def manual(build: Build) -> str:
    """The manual page: what each command says of itself."""
    lines = [f'.TH RANKWATCH 1 "" "rankwatch {build.version}"', ".SH NAME", f"rankwatch \\- {SUMMARY}"]
    for command in COMMANDS:
        said = help_of(command).replace("\\", "\\\\").replace("-", "\\-")
        body = ["\\&" + line if line.startswith((".", "'")) else line for line in said.splitlines()]
        lines += [f'.SH "{f"rankwatch {command}".strip().upper()}"', ".nf", *body, ".fi"]
    lines += [".SH FILES", "/etc/rankwatch/rankwatch.yml, /var/lib/rankwatch, /usr/share/rankwatch"]
    lines += [".SH SEE ALSO", ".BR rankwatch-setup (8): rankwatch-setup --help; /usr/share/doc/rankwatch"]
    return "\n".join(lines) + "\n"


def completion() -> str:
    """Words that bash completes: commands, and the options of each."""
    options = {command: sorted(set(re.findall(r"--[a-z][a-z.-]*[a-z]", help_of(command)))) for command in COMMANDS}
    cases = [f"        {command}) words='{' '.join(words)}' ;;" for command, words in options.items() if command]
    commands = " ".join(filter(None, COMMANDS))
    return "\n".join(
        [
            "_rankwatch() {",
            "    local words",
            "    COMPREPLY=()",
            "    case ${COMP_WORDS[1]} in",
            *cases,
            f"        *) words='{commands} {' '.join(options[''])}' ;;",
            "    esac",
            '    mapfile -t COMPREPLY < <(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}")',
            "}",
            "complete -o default -F _rankwatch rankwatch",
            "",
        ]
    )


def deb(build: Build) -> None:
    """Build Debian's package."""
    root = build.work / "deb"
    shutil.copytree(tree(build), root, symlinks=True)
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
Requires: (python3.13 or python3.12 or python3.11 or python312 or python311 or python3 >= 3.11)
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
    root = tree(build)
    files = [f"/{path.relative_to(root)}" for path in sorted(root.rglob("*")) if path.is_file()]
    folders = ["%dir /etc/rankwatch", "%dir /usr/lib/rankwatch", "%dir /usr/share/rankwatch"]
    scripts = {name: _without_first_line((HERE / name).read_text()) for name in SCRIPTS}
    (build.work / "rankwatch.spec").write_text(
        SPEC.format(
            version=build.version,
            summary=SUMMARY,
            tree=root,
            files="\n".join([*folders, *(f'"{each}"' for each in files if not each.startswith("/etc/"))]),
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


def _without_first_line(text: str) -> str:
    return text.split("\n", 1)[1]


def bundle(build: Build) -> None:
    """Pack what a node without a package index needs: wheels of all dependencies, scripts, and what they install."""
    name = f"rankwatch-{build.version}-{build.machine}"
    folder = build.work / name
    folder.mkdir()
    shutil.copytree(wheels(build), folder / "wheels")
    shutil.copyfile(wheel(build), folder / "wheels" / wheel(build).name)
    for place in ("scripts/install", "scripts/environment.sh", "requirements.lock", "README.md", "LICENSE"):
        (folder / place).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / place, folder / place)
    for place in ("deploy", "docs", "grafana/dashboards"):
        shutil.copytree(ROOT / place, folder / place, ignore=shutil.ignore_patterns("__pycache__", "tests"))
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
    """Write what the package is made of: CycloneDX 1.5, from the lock."""
    lock = (ROOT / "requirements.lock").read_text()
    found = re.findall(r"^([a-zA-Z0-9_.-]+)==(\S+) ((?:.|\n)*?)(?=^\S|\Z)", lock, re.MULTILINE)
    components = [
        {
            "type": "library",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name}@{version}",
            "hashes": [{"alg": "SHA-256", "content": each} for each in re.findall(r"sha256:([0-9a-f]{64})", rest)],
        }
        for name, version, rest in found
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
    """Build what the command line asks for."""
    parser = argparse.ArgumentParser(prog="scripts/package", description="Build packages of rankwatch.")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", metavar="DIR", help="to where (default dist)")
    parser.add_argument("--arch", choices=MACHINES, default="amd64" if os.uname().machine == "x86_64" else "arm64")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)} (default: all)")
    flags = parser.parse_args()
    if unknown := set(flags.kinds) - set(KINDS):
        parser.error(f"no kind {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    [version] = re.findall(r'^__version__ = "(.+)"$', (ROOT / "agent" / "__init__.py").read_text(), re.MULTILINE)
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or run("git", "-C", ROOT, "log", "-1", "--format=%ct").strip()
    flags.output.mkdir(parents=True, exist_ok=True)
    makers: dict[str, Callable[[Build], object]] = {
        "wheel": wheel, "sdist": sdist, "deb": deb, "rpm": rpm, "bundle": bundle, "sbom": sbom
    }  # fmt: skip
    for kind in flags.kinds or KINDS:
        with tempfile.TemporaryDirectory() as work:
            makers[kind](Build(version, flags.arch, flags.output.resolve(), int(epoch), Path(work)))
    for path in sorted(flags.output.iterdir()):
        print(path)  # noqa: T201  # what it made


if __name__ == "__main__":
    main()
