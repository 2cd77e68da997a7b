"""The package's scripts: a first installation starts the service, and an upgrade keeps the site's choice."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "deploy" / "package"
_PROGRAM = '#!/bin/sh\n[ "$1" = is-enabled ] && {{ cat {root}/state; exit; }}\necho {name} "$@" >> {root}/said\n{end}\n'


class Machine:
    """A machine with a fake systemd; ``state``: the output of `systemctl is-enabled`."""

    def __init__(self, root: Path, state: str, setup: str = "exit 0") -> None:
        self.root = root
        (root / "state").write_text(f"{state}\n")
        for name in ("etc/rankwatch", "run/systemd/system", "usr/lib/rankwatch", "bin"):
            (root / name).mkdir(parents=True)
        ends = {"rankwatch-setup": setup}
        for name in ("systemctl", "systemd-sysusers", "systemd-tmpfiles", "rankwatch-setup"):
            program = root / "bin" / name
            program.write_text(_PROGRAM.format(root=root, name=name, end=ends.get(name, "exit 0")))
            program.chmod(0o755)

    def run(self, script: str, *arguments: str) -> list[str]:
        """Run a script, which must succeed; return its systemctl verbs for the service, in order."""
        text = (PACKAGE / script).read_text()
        for folder in ("/etc/", "/run/", "/usr/lib/", "/usr/sbin/", "/usr/bin/"):
            text = text.replace(f" {folder}", f" {self.root}{folder}").replace(f"={folder}", f"={self.root}{folder}")
        text = text.replace(">/etc/", f">{self.root}/etc/")
        env = {"PATH": f"{self.root / 'bin'}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["sh", "-c", text, script, *arguments], check=False, capture_output=True, text=True, env=env
        )
        assert done.returncode == 0, done.stderr
        said = self.root / "said"
        lines = said.read_text().splitlines() if said.exists() else []
        said.unlink(missing_ok=True)
        verbs = ("enable", "disable", "restart", "try-restart", "stop", "start")
        return [line.split()[1] for line in lines if line.startswith("systemctl") and line.split()[1] in verbs]


@pytest.mark.parametrize("arguments", [("configure",), ("configure", ""), ("1",)])
def test_a_first_installation_starts_the_service(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """A first installation of the Debian or RPM package enables and starts the service."""
    assert Machine(tmp_path, "disabled").run("postinst", *arguments) == ["enable", "restart"]


@pytest.mark.parametrize("state", ["enabled", "disabled", "masked"])
@pytest.mark.parametrize("arguments", [("configure", "0.1.0"), ("2",)])
def test_an_upgrade_leaves_the_service_as_it_is(tmp_path: Path, state: str, arguments: tuple[str, ...]) -> None:
    """An upgrade restarts a running service; it never starts or enables one that is stopped, disabled or masked."""
    assert Machine(tmp_path, state).run("postinst", *arguments) == ["try-restart"]


@pytest.mark.parametrize("state", ["masked", "masked-runtime"])
def test_a_mask_outlives_the_first_installation(tmp_path: Path, state: str) -> None:
    """A service that was masked before the installation stays masked, and the installation succeeds."""
    assert Machine(tmp_path, state).run("postinst", "configure") == ["try-restart"]


@pytest.mark.parametrize(("state", "after"), [("enabled", ["enable", "restart"]), ("disabled", ["try-restart"])])
def test_what_was_removed_comes_back_as_it_was(tmp_path: Path, state: str, after: list[str]) -> None:
    """If the Debian package is removed and installed again, the service starts only if it was enabled before."""
    machine = Machine(tmp_path, state)
    if state == "disabled":
        (tmp_path / "bin/systemctl").write_text(
            f"#!/bin/sh\necho systemctl $@ >> {tmp_path}/said\n[ $1 != is-enabled ]\n"
        )
    assert machine.run("prerm", "remove") == ["stop", "disable"]
    assert machine.run("postinst", "configure", "0.1.0") == after
    assert machine.run("postinst", "configure", "0.1.0") == ["try-restart"]
