"""Installed in bare Debian trees: from the package to a dead rank, an upgrade, the way back, and nothing left."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs import ROOT
from trees import accept, layered_tree, tree, why_no_trees

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(why_no_trees() is not None, reason=why_no_trees() or ""),
    pytest.mark.timeout(600),
]
full = pytest.mark.skipif("RANKWATCH_TEST_FULL" not in os.environ, reason="only with RANKWATCH_TEST_FULL=1")
BOOT_SECONDS = 300.0

# Parts of the scripts that run in the booted trees; each says what it saw.
HELPERS = r"""
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin PYTHONDONTWRITEBYTECODE=1
fail() { echo "FAILED: $*"; journalctl -u rankwatch --no-pager | tail -20; rankwatch status || true; exit 1; }
wait_for() { # SECONDS WHAT COMMAND...
    local seconds=$1 what=$2 begun=$SECONDS
    shift 2
    until "$@" >/dev/null 2>&1; do
        if ((SECONDS - begun > seconds)); then fail "not within $seconds s: $what"; fi
        sleep 0.2
    done
    echo "after $((SECONDS - begun)) s: $what"
}
kept='^/(proc|sys|tmp|run/systemd|var/(log|cache|lib/(apt|dpkg|systemd)))(/|$)|^/etc/g?(passwd|group|shadow)-$'
files() { find / -xdev -print | grep -vE "$kept" | sort; }
ranks() { [ "$(rankwatch status | awk -v state="$1" '$1 == 77 && $3 == state' | wc -l)" = "$2" ]; }
operations() { curl -s http://127.0.0.1:19028/metrics |
    awk '/^rankwatch_collective_operations_total/ { sum += $NF } END { printf "%d\n", sum }'; }
has_operations() { [ "$(operations)" -gt "${1:-0}" ]; }
is_active() { systemctl is-active -q rankwatch && rankwatch status; }
begin_job() { # of another user, under Slurm's id
    setpriv --reuid=65534 --regid=65534 --clear-groups rankwatch simulate --ranks 4 --scheduler slurm --job-id 77 \
        --job-dir "$(setpriv --reuid=65534 --regid=65534 --clear-groups mktemp -d)" \
        --dump-dir /var/lib/rankwatch/inspector >/dev/null 2>&1 &
}
"""
JOB = r"""
begin_job
wait_for 30 "four ranks of another user's job 77 are alive" ranks alive 4
wait_for 30 "their records are counted" has_operations
rankwatch status
"""
DEATH = r"""
kill -9 "$(rankwatch status | awk '$1 == 77 && $2 == 3 { print $4 }')"
wait_for 40 "rank 3 is dead" ranks dead 1
"""
KILLED_AGENT = r"""
before=$(operations)
kill -9 "$(systemctl show -p MainPID --value rankwatch)"
wait_for 30 "the agent is back after SIGKILL" is_active
wait_for 30 "counters went on" has_operations "$before"
"""


def commands(heading: str) -> str:
    """Return the commands that docs/install.md has under a heading."""
    part = (ROOT / "docs/install.md").read_text().partition(f"### {heading}\n")[2]
    return part.partition("```sh\n")[2].partition("```")[0]


DEB = (
    HELPERS
    + r"""
files >/tmp/before
cd /opt
"""
    + commands("Debian's package")
    + r"""
rankwatch-setup --check
"""
    + JOB
    + r"""
rankwatch doctor || fail "the doctor finds a fault in a good installation"
before=$(operations)
dpkg -i /opt/new.deb
wait_for 30 "the new version runs" is_active
rankwatch-setup --check | tee /tmp/rights
grep -q 'right 50-other-users: yes' /tmp/rights || fail "the upgrade lost a right"
wait_for 30 "counters went on over the upgrade" has_operations "$before"
wait_for 30 "its ranks are alive" ranks alive 4
before=$(operations)
dpkg -i /opt/rankwatch_0.1.0_amd64.deb
wait_for 30 "the old version runs again" is_active
wait_for 30 "counters went on over the way back" has_operations "$before"
"""
    + KILLED_AGENT
    + DEATH
    + r"""
cp /etc/rankwatch/rankwatch.yml /tmp/good.yml
echo 'wbe: {}' >> /etc/rankwatch/rankwatch.yml
! systemctl reload rankwatch 2>/dev/null || fail "a configuration with a mistake was reloaded"
cp /tmp/good.yml /etc/rankwatch/rankwatch.yml
systemctl reload rankwatch || fail "a good configuration was not reloaded"
is_active || fail "the reload ended the agent"
systemd-analyze security --no-pager rankwatch.service | tail -1
kill %1
dpkg --purge rankwatch
files >/tmp/after
diff /tmp/before /tmp/after || fail "the purge left something"
! getent passwd rankwatch || fail "the purge left the user"
"""
)

INSTALLED = (
    HELPERS
    + r"""
cd /tmp && cp /opt/rankwatch-*.tar.gz .
files >/tmp/before
"""
    + commands("The script")
    + r"""
scripts/install --check
"""
    + JOB
    + r"""
before=$(operations)
echo '# of the site' >> /etc/rankwatch/rankwatch.yml
scripts/install --with-other-users --with-hardware
tail -n1 /etc/rankwatch/rankwatch.yml | grep -q 'of the site' || fail "the configuration of the site was replaced"
wait_for 30 "it runs again" is_active
wait_for 30 "counters went on over the second installation" has_operations "$before"
"""
    + DEATH
    + r"""
kill %1
scripts/install --uninstall --purge
! scripts/install --check >/dev/null || fail "--check says that it is installed"
files >/tmp/after
diff /tmp/before /tmp/after || fail "something was left"
! getent passwd rankwatch || fail "the user was left"
"""
)
PIPX = (
    HELPERS
    + r"""
mkdir /tmp/bundle && tar xf /opt/rankwatch-*.tar.gz -C /tmp/bundle --strip-components=1
export HOME=/root PATH=/root/.local/bin:$PATH
pipx install --pip-args="--no-index --find-links=/tmp/bundle/wheels" /tmp/bundle/wheels/rankwatch-*.whl
rankwatch --version
install -d -m 1777 /var/lib/rankwatch/inspector
rankwatch --log.level warn &
wait_for 30 "the agent answers" rankwatch status
begin_job() { cp -r /root/.local/share/pipx /tmp/pipx 2>/dev/null || cp -r /root/.local/pipx /tmp/pipx
    rankwatch simulate --ranks 4 --scheduler slurm --job-id 77 --dump-dir /var/lib/rankwatch/inspector >/dev/null & }
begin_job
wait_for 30 "four ranks are alive" ranks alive 4
wait_for 30 "their records are counted" has_operations
kill %2 %1
"""
)


def build(output: Path, *kinds: str) -> None:
    """Run scripts/package."""
    done = subprocess.run(
        [ROOT / "scripts/package", "--output", output, *kinds], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def debs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The package, and the same with a higher version, as new.deb."""
    directory = tmp_path_factory.mktemp("debs")
    build(directory, "deb")
    [built] = directory.glob("*.deb")
    new, unpacked = directory / "new.deb", directory / "unpacked"
    subprocess.run(["dpkg-deb", "-R", built, unpacked], check=True)
    control = unpacked / "DEBIAN/control"
    control.write_text(re.sub(r"^Version: .*$", r"\g<0>+next", control.read_text(), flags=re.MULTILINE))
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Zxz", "--build", unpacked, new], check=True)
    return built, new


@pytest.fixture(params=["bookworm", pytest.param("trixie", marks=full)])
def booted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A bare Debian tree."""
    with layered_tree(tree(request.param), tmp_path) as root:
        yield root


def test_debians_package(booted: Path, debs: tuple[Path, Path]) -> None:
    """Installed, upgraded and rolled back while a job runs, killed, purged: counters go on, and nothing is left."""
    said = accept(booted, DEB, debs, BOOT_SECONDS)
    print(said)  # noqa: T201  # the times stand in docs/install.md
    assert said.endswith("ACCEPTED\n"), said


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle for nodes without a package index."""
    directory = tmp_path_factory.mktemp("bundle")
    build(directory, "bundle")
    [built] = directory.glob("*.tar.gz")
    return built


@full
@pytest.mark.parametrize("release", ["bookworm", "trixie"])
def test_the_install_script(release: str, bundle: Path, tmp_path: Path) -> None:
    """From the bundle, without a network: installed, again, and taken away; the site's configuration stays."""
    with layered_tree(tree(release), tmp_path) as root:
        said = accept(root, INSTALLED, [bundle], BOOT_SECONDS)
    print(said)  # noqa: T201  # likewise
    assert said.endswith("ACCEPTED\n"), said


@full
def test_pipx(bundle: Path, tmp_path: Path) -> None:
    """The wheel alone is a program: installed by pipx it serves, and simulates."""
    with layered_tree(tree("bookworm", "pipx"), tmp_path) as root:
        said = accept(root, PIPX, [bundle], BOOT_SECONDS)
    print(said)  # noqa: T201  # likewise
    assert said.endswith("ACCEPTED\n"), said


@full
def test_rpms_package(tmp_path: Path) -> None:
    """RPM takes the package into an empty tree, where its files are whole; its scripts are shell that parses."""
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
    assert len(parts) == 3
    for part in parts:
        subprocess.run(["sh", "-n"], input=part, text=True, check=True)


@full
def test_the_same_commit_makes_the_same_bytes(tmp_path: Path) -> None:
    """Built twice, every kind has the same bytes."""
    for name in ("one", "two"):
        build(tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert len(files) == 6
    different = [
        name for name in files if (tmp_path / "one" / name).read_bytes() != (tmp_path / "two" / name).read_bytes()
    ]
    assert different == []
