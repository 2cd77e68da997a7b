"""Installation in minimal Debian trees: package, dead rank, upgrade, rollback, and complete removal."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from acceptance import ANSIBLE, DEB, INSTALLED, PIPX
from booted import layered
from full import full
from jobs import ROOT
from trees import accept, tree, why_no_trees

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(why_no_trees() is not None, reason=why_no_trees() or ""),
    pytest.mark.timeout(1800),
]
BOOT_SECONDS = 420.0
WATCHERS = ("prometheus", "prometheus-alertmanager", "python3-yaml")


def build(output: Path, *kinds: str) -> None:
    """Run scripts/package."""
    done = subprocess.run(
        [ROOT / "scripts/package", "--output", output, *kinds], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def debs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Provide this commit's package, and the previous commit's package with a lower version, as previous.deb."""
    directory = tmp_path_factory.mktemp("debs")
    previous, changed = directory / "previous.deb", directory / "changed"
    build_of_previous_commit(directory)
    [built] = directory.glob("*.deb")
    subprocess.run(["dpkg-deb", "-R", built, changed], check=True)
    built.unlink()
    control = changed / "DEBIAN/control"
    control.write_text(re.sub(r"^Version: .*$", r"\g<0>~previous", control.read_text(), flags=re.MULTILINE))
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Zgzip", "--build", changed, previous], check=True)
    build(directory, "deb")
    [built] = directory.glob("rankwatch_*.deb")
    return built, previous


def build_of_previous_commit(output: Path) -> None:
    """Build the Debian package of the previous commit, or of this commit if there is no history."""
    archive = subprocess.run(["git", "-C", ROOT, "archive", "HEAD~1"], check=False, capture_output=True)
    if archive.returncode != 0:
        build(output, "deb")
        return
    sources = output / "previous"
    sources.mkdir()
    subprocess.run(["tar", "x", "-C", sources], input=archive.stdout, check=True)
    command = [ROOT / ".venv/bin/python", "deploy/package/build.py", "--output", output, "deb"]
    env = os.environ | {"SOURCE_DATE_EPOCH": "1700000000"}
    done = subprocess.run(command, check=False, cwd=sources, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def unpacked(debs: tuple[Path, Path]) -> Path:
    """Provide the files of this commit's package."""
    files = debs[0].with_name("unpacked")
    subprocess.run(["dpkg-deb", "-x", debs[0], files], check=True)
    return files


def test_every_python_runs_the_same_files(unpacked: Path) -> None:
    """The package's single directory serves each installed Python, with its compiled modules."""
    find = "source scripts/environment.sh; for minor in 11 12 13; do find_python $minor || true; done"
    pythons = subprocess.run(["bash", "-c", find], check=True, cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert pythons
    lib = unpacked / "usr/lib/rankwatch/lib"
    load = "import sys; sys.path[:0] = sys.argv[1:]; import _bcrypt, msgspec._core, psutil, yaml._yaml"
    for python in pythons:
        start = [python, "-I", lib.parent / "start.py", "--version"]
        assert subprocess.run(start, check=True, capture_output=True, text=True).stdout.startswith("rankwatch ")
        subprocess.run([python, "-I", "-c", load.replace("_bcrypt", "bcrypt._bcrypt"), lib], check=True)


def test_nothing_in_the_package_names_the_checkouts_program(unpacked: Path) -> None:
    """Units, scripts and documents name /usr/bin/rankwatch; the package has no file in /opt."""
    done = subprocess.run(
        ["grep", "-rlI", "/opt/rankwatch/bin/rankwatch", unpacked / "usr", unpacked / "etc"],
        check=False,
        capture_output=True,
        text=True,
    )
    ours = "usr/lib/rankwatch/lib/rankwatch-"  # README.md is the wheel's own description
    assert [path for path in done.stdout.split() if ours not in path] == []


def test_manual_pages_and_completions_know_every_command(unpacked: Path) -> None:
    """The manual page and the completion have each command with its options."""
    said = subprocess.run(
        [ROOT / ".venv/bin/python", "-m", "agent", "--help"], check=True, cwd=ROOT, capture_output=True, text=True
    ).stdout
    commands = set(re.findall(r"^  (\w+) ", said.partition("commands:")[2].partition("examples:")[0], re.MULTILINE))
    assert {"status", "healthy"} <= commands
    pages = {path.name for path in (unpacked / "usr/share/man").rglob("*.gz")}
    assert pages == {"rankwatch.1.gz", "rankwatch.yml.5.gz", "rankwatch-setup.8.gz"}
    page = subprocess.run(
        ["zcat", unpacked / "usr/share/man/man1/rankwatch.1.gz"], check=True, capture_output=True, text=True
    ).stdout
    assert {heading.lower() for heading in re.findall(r'^.SH "RANKWATCH (\w+)"$', page, re.MULTILINE)} == commands
    script = "source $0; COMP_WORDS=(rankwatch $1 $2); COMP_CWORD=$#; _rankwatch; echo ${COMPREPLY[@]}"
    completion = unpacked / "usr/share/bash-completion/completions/rankwatch"
    for words, expected in (([""], commands), (["status", "--j"], {"--job", "--json"})):
        done = subprocess.run(["bash", "-c", script, completion, *words], check=True, capture_output=True, text=True)
        assert expected <= set(done.stdout.split())
    zsh = (unpacked / "usr/share/zsh/vendor-completions/_rankwatch").read_text()
    assert all(f"    {command}) compadd -- " in zsh for command in commands)


@pytest.fixture(params=["bookworm", pytest.param("trixie", marks=full)])
def booted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Provide a minimal Debian tree with Debian's Prometheus and Alertmanager, not started."""
    with layered(tmp_path, tree(request.param, *WATCHERS)) as root:
        yield root


def test_debians_package(booted: Path, debs: tuple[Path, Path]) -> None:
    """The package works through upgrade, rollback, kill and stop while a job runs; a purge leaves no file."""
    said = accept(booted, DEB, debs, BOOT_SECONDS)
    print(said)  # noqa: T201  # the times stand in docs/install.md
    assert said.endswith("ACCEPTED\n"), said


@full
def test_ansibles_role(debs: tuple[Path, Path], tmp_path: Path) -> None:
    """Ansible's role installs the agent with its rights and configuration; a second run changes nothing."""
    with layered(tmp_path, tree("bookworm", "ansible-core", "python3-apt")) as root:
        said = accept(root, ANSIBLE, [debs[0], ROOT / "deploy/ansible"], BOOT_SECONDS)
    assert said.endswith("ACCEPTED\n"), said


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide the bundle for nodes without a package index."""
    directory = tmp_path_factory.mktemp("bundle")
    build(directory, "bundle")
    [built] = directory.glob("*.tar.gz")
    return built


@full
@pytest.mark.parametrize("release", ["bookworm", "trixie"])
def test_the_install_script(release: str, bundle: Path, tmp_path: Path) -> None:
    """The script installs twice from the bundle without a network, and uninstalls; the site's configuration stays."""
    with layered(tmp_path, tree(release)) as root:
        said = accept(root, INSTALLED, [bundle], BOOT_SECONDS)
    print(said)  # noqa: T201  # likewise
    assert said.endswith("ACCEPTED\n"), said


@full
def test_pipx(bundle: Path, tmp_path: Path) -> None:
    """The wheel that pipx installs serves metrics and simulates a job."""
    with layered(tmp_path, tree("bookworm", "pipx")) as root:
        said = accept(root, PIPX, [bundle], BOOT_SECONDS)
    print(said)  # noqa: T201  # likewise
    assert said.endswith("ACCEPTED\n"), said


@full
def test_uv(bundle: Path, tmp_path: Path) -> None:
    """`uv tool install` of the bundle's wheel, without an index, gives a program that prints its help."""
    subprocess.run(["tar", "xf", bundle, "-C", tmp_path, "--strip-components=1"], check=True)
    subprocess.run([ROOT / ".venv/bin/python", "-m", "venv", tmp_path / "uv"], check=True)
    pip = [tmp_path / "uv/bin/python", "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "uv"]
    subprocess.run(pip, check=True)
    env = os.environ | {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    [wheel] = (tmp_path / "wheels").glob("rankwatch-*.whl")
    install = [tmp_path / "uv/bin/uv", "tool", "install", "--no-index", "--find-links", tmp_path / "wheels", wheel]
    subprocess.run(install, check=True, env=env, cwd=tmp_path)
    once = [tmp_path / "bin/rankwatch", "--once"]
    said = subprocess.run(once, check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    assert 'rankwatch_rank_identity_problems{problem="duplicate"}' in said  # ranks of other tests can be duplicates


@full
def test_arm64(tmp_path: Path) -> None:
    """The arm64 package has the same compiled modules, each for that machine (ELF's e_machine 183)."""
    build(tmp_path, "--arch", "arm64", "deb")
    [built] = tmp_path.glob("*_arm64.deb")
    subprocess.run(["dpkg-deb", "-x", built, tmp_path / "root"], check=True)
    modules = {path.name: path.read_bytes()[18:20] for path in (tmp_path / "root").rglob("*.so")}
    assert {name.split(".")[0] for name in modules} == {"_bcrypt", "_core", "_psutil_linux", "_yaml"}
    assert {int.from_bytes(machine, "little") for machine in modules.values()} == {183}


@full
def test_the_list_of_what_is_in_it(tmp_path: Path) -> None:
    """The SBOM has each locked dependency once, with its version and at least one digest."""
    build(tmp_path, "sbom")
    [built] = tmp_path.glob("*.cdx.json")
    components = json.loads(built.read_text())["components"]
    locked = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert [(component["name"], component["version"]) for component in components] == locked
    assert all(component["hashes"] for component in components)


def test_rpms_package(tmp_path: Path) -> None:
    """RPM installs the package into an empty tree with all files; its scripts are valid shell."""
    build(tmp_path / "out", "rpm")
    [built] = (tmp_path / "out").glob("*.rpm")
    root = tmp_path / "root"
    root.mkdir()
    rpm = ("rpm", "--root", str(root), "--dbpath", "/var/lib/rpm")
    subprocess.run([*rpm, "-i", "--nodeps", "--noscripts", str(built)], check=True)
    subprocess.run([*rpm, "-V", "--nodeps", "--noscripts", "rankwatch"], check=True)
    assert (root / "usr/bin/rankwatch").stat().st_mode & 0o111
    assert "/usr/bin/rankwatch" in (root / "usr/lib/systemd/system/rankwatch.service").read_text()
    scripts = subprocess.run([*rpm, "-q", "--scripts", "rankwatch"], check=True, capture_output=True, text=True).stdout
    parts = re.split(r"^\w+ scriptlet \(using /bin/sh\):\n", scripts, flags=re.MULTILINE)[1:]
    assert len(parts) == 4
    for part in parts:
        subprocess.run(["sh", "-n"], input=part, text=True, check=True)


@full
def test_the_same_commit_makes_the_same_bytes(tmp_path: Path) -> None:
    """Two builds of one commit give the same bytes."""
    for name in ("one", "two"):
        build(tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert len(files) == 6
    different = [
        name for name in files if (tmp_path / "one" / name).read_bytes() != (tmp_path / "two" / name).read_bytes()
    ]
    assert different == []
