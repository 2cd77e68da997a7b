"""The systemd files, judged by systemd."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy" / "systemd"
DROP_IN = Path("rankwatch.service.d", "50-other-users.conf")
pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze not found")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command and return its output."""
    return subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True, timeout=30)


def staged(directory: Path, *, drop_in: bool) -> Path:
    """Return a copy of the unit that starts a program which exists, as the real one does where it is installed."""
    unit = directory / "rankwatch.service"
    lines = (DEPLOY / unit.name).read_text().splitlines(keepends=True)
    started = [line for line in lines if line.startswith("ExecStart=")]
    assert started == ["ExecStart=/opt/rankwatch/bin/rankwatch --config.file=/etc/rankwatch/rankwatch.yml\n"]
    unit.write_text("".join("ExecStart=/bin/true\n" if line in started else line for line in lines))
    if drop_in:
        (directory / DROP_IN).parent.mkdir()
        shutil.copy(DEPLOY / DROP_IN, directory / DROP_IN)
    return unit


@pytest.mark.parametrize("drop_in", [False, True])
def test_verify_has_nothing_to_say(tmp_path: Path, drop_in: bool) -> None:
    """`systemd-analyze verify` prints nothing at all: it succeeds with a word on keys that it does not know."""
    done = run("systemd-analyze", "verify", staged(tmp_path, drop_in=drop_in))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("drop_in", "most"), [(False, 20), (True, 25)])
def test_exposure_is_bounded(tmp_path: Path, drop_in: bool, most: int) -> None:
    """The exposure is 2.0 at most; the two capabilities of the drop-in, which are its point, cost another 0.5."""
    unit = staged(tmp_path, drop_in=drop_in)
    done = run("systemd-analyze", "security", "--offline=true", f"--threshold={most}", unit)
    assert done.returncode == 0, done.stdout.splitlines()[-1:]
    exposed = [line for line in done.stdout.splitlines() if line.startswith("✗")]
    assert any("CAP_SYS_PTRACE" in line for line in exposed) == drop_in


def test_nothing_blinds_the_agent() -> None:
    """The unit leaves other users' processes, /tmp, /home, the network and the devices in sight."""
    lines = [line.partition("=") for line in (DEPLOY / "rankwatch.service").read_text().splitlines()]
    found = {key: value for key, _, value in lines if not key.startswith("#")}
    assert found["PrivateTmp"] == "no"
    assert found["ProtectHome"] == "read-only"
    blinding = {"ProtectProc", "ProcSubset", "PrivateUsers", "DynamicUser", "PrivateDevices", "PrivateNetwork"}
    assert not (blinding | {"IPAddressDeny", "InaccessiblePaths", "TemporaryFileSystem"}) & found.keys()


def test_user_and_directories(tmp_path: Path) -> None:
    """The snippets make the user and a sticky directory that every job's user may write to."""
    if os.geteuid() != 0:
        pytest.skip("changing owners needs root")
    (tmp_path / "etc").mkdir()
    made = run("systemd-sysusers", f"--root={tmp_path}", DEPLOY / "rankwatch.sysusers.conf")
    assert made.returncode == 0, made.stderr
    done = run("systemd-tmpfiles", "--create", f"--root={tmp_path}", DEPLOY / "rankwatch.tmpfiles.conf")
    assert (done.returncode, done.stderr) == (0, "")
    users = dict(line.split(":", 1) for line in (tmp_path / "etc/passwd").read_text().splitlines())
    state = (tmp_path / "var/lib/rankwatch").stat()
    assert (str(state.st_uid), state.st_mode & 0o7777) == (users["rankwatch"].split(":")[1], 0o755)
    assert (tmp_path / "var/lib/rankwatch/inspector").stat().st_mode & 0o7777 == 0o1777
    lines = (DEPLOY / "rankwatch.tmpfiles.conf").read_text().splitlines()
    ages = [line.split()[5] for line in lines if not line.startswith("#")]
    assert all(age == "-" or age.isalnum() for age in ages), "systemd 249 refuses an age with a prefix"
