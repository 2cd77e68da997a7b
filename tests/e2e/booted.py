"""A machine that systemd boots with the shipped unit: this machine's files below an overlay (systemd-nspawn).

Needs root, overlayfs and the package systemd-container, installed or unpacked in .cache/nspawn."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "deploy" / "systemd"
UNPACKED = ROOT / ".cache" / "nspawn"
BOOT_SECONDS = 120.0
PACKAGES = ("aiofiles", "h11", "msgspec", "pynvml.py", "prometheus_client", "psutil", "yaml", "_yaml")
_PROGRAM = "#!/opt/rankwatch/bin/python\nimport sys\nfrom agent.cli.main import main\nsys.exit(main())\n"
_TARGET = "[Unit]\nRequires=basic.target\nWants=test.service\nAfter=basic.target\nAllowIsolate=yes\n"
_LOOK = """\
[Unit]
After={wanted}
Wants={wanted}
SuccessAction=poweroff-force
FailureAction=poweroff-force
[Service]
Type=oneshot
ExecStart=/bin/bash -c 'sleep {seconds}; {command}'
StandardOutput=file:/opt/said.txt
StandardError=file:/opt/said.txt
"""


def nspawn() -> str | None:
    """Return the path of systemd-nspawn, or None."""
    unpacked = UNPACKED / "usr/bin/systemd-nspawn"
    return shutil.which("systemd-nspawn") or (str(unpacked) if unpacked.exists() else None)


def why_not_booted() -> str | None:
    """Return the reason to skip, or None."""
    if os.geteuid() != 0:
        return "booting a machine needs root"
    if nspawn() is None:
        return "no systemd-nspawn: scripts/test --full fetches it"
    return None


@contextlib.contextmanager
def layered(directory: Path, below: Path = Path("/")) -> Iterator[Path]:
    """Yield a root directory with the files of ``below`` (this machine's); writes go into memory."""
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


def install(root: Path, drop_ins: Sequence[str]) -> None:
    """Install the agent in /opt/rankwatch, and its unit, user and directories for systemd."""
    environment = Path(sys.prefix)
    home = root / "opt/rankwatch"
    packages = home / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    (home / "bin").mkdir()
    for python in (environment / "bin").glob("python*"):
        shutil.copy(python, home / "bin", follow_symlinks=False)
    shutil.copy(environment / "pyvenv.cfg", home)
    installed = environment / packages.relative_to(home)
    for name in (*PACKAGES, *(path.name for path in installed.glob("rankwatch-*.dist-info"))):
        _copy(installed / name, packages)
    for name in ("agent", "exporters"):
        _copy(ROOT / name, packages)
    program = home / "bin/rankwatch"
    program.write_text(_PROGRAM)
    program.chmod(0o755)
    system = root / "etc/systemd/system"
    beside = system / "rankwatch.service.d"
    beside.mkdir(parents=True)
    (root / "etc/rankwatch").mkdir()
    for place in ("sysusers.d", "tmpfiles.d"):
        (root / "etc" / place).mkdir(exist_ok=True)
    shutil.copy(UNITS / "rankwatch.yml", root / "etc/rankwatch")
    shutil.copy(UNITS / "rankwatch.service", system)
    shutil.copy(UNITS / "rankwatch.sysusers.conf", root / "etc/sysusers.d/rankwatch.conf")
    shutil.copy(UNITS / "rankwatch.tmpfiles.conf", root / "etc/tmpfiles.d/rankwatch.conf")
    for name in drop_ins:
        shutil.copy(UNITS / "rankwatch.service.d" / name, beside / name.removesuffix(".example"))


def boot(root: Path, units: Mapping[str, str], command: str, after_seconds: int) -> str:
    """Boot the root with these units and the agent's; return the output of ``command`` after ``after_seconds``."""
    system = root / "etc/systemd/system"
    for name, text in units.items():
        (system / name).write_text(text)
    wanted = " ".join(["rankwatch.service", *units])
    look = _LOOK.format(wanted=wanted, seconds=after_seconds, command=command)
    rights = ("--bind=/dev/fuse", "--property=DeviceAllow=/dev/fuse", "--capability=CAP_SYS_ADMIN")
    return boot_for(root, look, BOOT_SECONDS, *rights, "--system-call-filter=@known")


def boot_for(root: Path, unit: str, seconds: float, *options: str) -> str:
    """Boot the root with a unit that writes to /opt/said.txt and stops the machine; return that text."""
    system = root / "etc/systemd/system"
    (system / "test.service").write_text(unit)
    (system / "default.target").unlink(missing_ok=True)
    (system / "default.target").write_text(_TARGET)
    libraries = UNPACKED / "usr/lib" / f"{os.uname().machine}-linux-gnu"
    env = os.environ | {"LD_LIBRARY_PATH": f"{libraries / 'systemd'}:{libraries}"}
    container = [str(nspawn()), "-q", "-D", str(root), "--boot", "--register=no", "--keep-unit", "--private-network"]
    command = [*container, "--kill-signal=SIGKILL", *options]
    done = subprocess.run(
        command, check=False, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds
    )
    out = root / "opt/said.txt"
    assert out.exists(), done.stdout[-2000:] + done.stderr[-2000:]
    return out.read_text()


def _copy(path: Path, to: Path) -> None:
    if path.is_dir():
        shutil.copytree(path, to / path.name, ignore=shutil.ignore_patterns("__pycache__"))
    elif path.exists():
        shutil.copy(path, to)
