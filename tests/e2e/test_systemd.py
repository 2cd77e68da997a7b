"""The systemd files, checked by systemd."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy" / "systemd"
OTHER_USERS = "50-other-users.conf"
HARDWARE = "55-hardware.conf"
RECLAIM = "60-reclaim.conf.example"
pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze not found")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command and return its output."""
    return subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True, timeout=30)


def staged(directory: Path, *drop_ins: str) -> Path:
    """Return a copy of the unit with an existing program instead of the installed one.

    The copy has these ``drop_ins``, examples too."""
    unit = directory / "rankwatch.service"
    text = (DEPLOY / unit.name).read_text()
    program = "/opt/rankwatch/bin/rankwatch --config.file=/etc/rankwatch/rankwatch.yml"
    started = [line for line in text.splitlines() if program in line]
    assert started == [f"ExecStart={program}", f"ExecReload={program} --check-config"]
    unit.write_text(text.replace(program, "/bin/true"))
    for name in drop_ins:
        (directory / "rankwatch.service.d").mkdir(exist_ok=True)
        shutil.copy(
            DEPLOY / "rankwatch.service.d" / name, directory / "rankwatch.service.d" / name.removesuffix(".example")
        )
    return unit


def settings(path: Path) -> list[tuple[str, str]]:
    """Return the keys of a unit or drop-in with their values, in order."""
    lines = [line.partition("=") for line in path.read_text().splitlines()]
    return [(key, value) for key, equals, value in lines if equals and not key.startswith("#")]


@pytest.mark.parametrize("drop_ins", [(), (OTHER_USERS,), (HARDWARE,), (RECLAIM,), (OTHER_USERS, HARDWARE, RECLAIM)])
def test_verify_has_nothing_to_say(tmp_path: Path, drop_ins: tuple[str, ...]) -> None:
    """`systemd-analyze verify` must print nothing, because it exits with 0 even for unknown keys."""
    done = run("systemd-analyze", "verify", staged(tmp_path, *drop_ins))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("drop_ins", "most"), [((), 20), ((RECLAIM,), 20), ((OTHER_USERS,), 25), ((HARDWARE,), 25)])
def test_exposure_is_bounded(tmp_path: Path, drop_ins: tuple[str, ...], most: int) -> None:
    """The exposure is at most 2.0, and at most 0.5 higher with each drop-in."""
    unit = staged(tmp_path, *drop_ins)
    done = run("systemd-analyze", "security", "--offline=true", f"--threshold={most}", unit)
    assert done.returncode == 0, done.stdout.splitlines()[-1:]
    exposed = [line for line in done.stdout.splitlines() if line.startswith("✗")]
    assert any("CAP_SYS_PTRACE" in line for line in exposed) == (OTHER_USERS in drop_ins)


def test_the_service_for_lldpd_is_confined() -> None:
    """The service for lldpd is root with one capability and all of systemd's restrictions."""
    unit = DEPLOY / "rankwatch-lldp.service"
    assert [value for key, value in settings(unit) if key == "CapabilityBoundingSet"] == ["CAP_DAC_OVERRIDE"]
    done = run("systemd-analyze", "security", "--offline=true", "--threshold=10", unit)
    assert done.returncode == 0, done.stdout.splitlines()[-1:]


def test_reclaim_may_write_only_to_the_configured_directories() -> None:
    """60-reclaim.conf.example permits writes only to its named directories, which need not exist."""
    unit, example = settings(DEPLOY / "rankwatch.service"), settings(DEPLOY / "rankwatch.service.d" / RECLAIM)
    assert {("ProtectSystem", "strict"), ("StateDirectory", "rankwatch")} <= {*unit}
    assert example
    assert all(key == "ReadWritePaths" and value.startswith("-/") for key, value in example)
    assert not any(Path(value[1:]).is_relative_to("/var/lib/rankwatch") for _, value in example)
    assert not [value for key, value in unit if key in {"ReadOnlyPaths", "ReadWritePaths"}]


def test_nothing_blinds_the_agent() -> None:
    """The unit hides neither other users' processes nor /tmp, /home, the network and the devices."""
    found = dict(settings(DEPLOY / "rankwatch.service"))
    assert found["PrivateTmp"] == "no"
    assert found["ProtectHome"] == "read-only"
    blinding = {"ProtectProc", "ProcSubset", "PrivateUsers", "DynamicUser", "PrivateDevices", "PrivateNetwork"}
    assert not (blinding | {"IPAddressDeny", "InaccessiblePaths", "TemporaryFileSystem"}) & found.keys()


def test_user_and_directories(tmp_path: Path) -> None:
    """sysusers and tmpfiles create the user and its sticky directory, to which every user can write."""
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
    files = (tmp_path / "var/lib/rankwatch/inspector").stat()
    assert (files.st_uid, files.st_mode & 0o7777) == (state.st_uid, 0o1777)
    lines = (DEPLOY / "rankwatch.tmpfiles.conf").read_text().splitlines()
    ages = [line.split()[5] for line in lines if not line.startswith("#")]
    assert all(age == "-" or age.isalnum() for age in ages), "systemd 249 refuses an age with a prefix"
