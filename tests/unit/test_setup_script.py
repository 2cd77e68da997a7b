"""rankwatch-setup: the files that it installs on a node, and the files that stay after a removal."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETUP = ROOT / "deploy" / "package" / "rankwatch-setup"
HOOKS = ("prolog.d", "epilog.d")


class Machine:
    """A root directory, and the package's files below /usr/share/rankwatch."""

    def __init__(self, directory: Path) -> None:
        self.share, self.root = directory / "share of it", directory / "a root"
        shutil.copytree(ROOT / "deploy" / "systemd" / "rankwatch.service.d", self.share / "systemd")
        shutil.copytree(ROOT / "deploy" / "slurm", self.share / "slurm")
        self.root.mkdir()
        self.drop_ins = self.root / "etc/systemd/system/rankwatch.service.d"
        self.slurm = self.root / "etc/slurm"

    def setup(self, *options: str, umask: int = 0o022) -> str:
        """Run the script, which must succeed; return its output."""
        done = subprocess.run(
            ["sh", SETUP, "--root", self.root, *options], check=True, capture_output=True, text=True, umask=umask,
            env={"PATH": os.environ["PATH"], "RANKWATCH_SHARE": str(self.share)},
        )  # fmt: skip
        assert done.stderr == ""
        return done.stdout

    def files(self) -> set[str]:
        """Return all files below the root."""
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*") if not path.is_dir()}

    def configure_slurm(self, folder: str = "etc/slurm", name: str = "*") -> None:
        """Write a slurm.conf as in docs/schedulers.md."""
        (self.root / folder).mkdir(parents=True, exist_ok=True)
        lines = f"# ours\nProlog=/etc/slurm/prolog.d/{name}\nEpilog=/etc/slurm/epilog.d/{name}\n"
        (self.root / folder / "slurm.conf").write_text(lines)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Provide an empty machine."""
    return Machine(tmp_path)


def test_what_was_chosen_is_there_and_goes(machine: Machine) -> None:
    """The chosen drop-ins and scripts equal the package's; their removal leaves only /etc/default/rankwatch."""
    machine.setup("--with-other-users", "--with-hardware", "--slurm", umask=0o077)
    for right in ("50-other-users.conf", "55-hardware.conf"):
        assert (machine.drop_ins / right).read_text() == (machine.share / "systemd" / right).read_text()
        assert (machine.drop_ins / right).stat().st_mode & 0o777 == 0o644
    for hook in HOOKS:
        assert (machine.slurm / hook / "50-rankwatch").read_text() == (
            machine.share / "slurm" / hook / "50-rankwatch"
        ).read_text()
        assert (machine.slurm / hook / "50-rankwatch").stat().st_mode & 0o777 == 0o755
        assert (machine.slurm / hook).stat().st_mode & 0o777 == 0o755
    with pytest.raises(subprocess.CalledProcessError):
        machine.setup()  # a call without options removes nothing
    machine.setup("--with-hardware")
    assert machine.setup("--check").count(": yes") == 3
    machine.setup("--only", "--with-hardware")
    assert machine.setup("--check").splitlines()[:3] == [
        "right 50-other-users: no", "right 55-hardware: yes", "slurm: no",
    ]  # fmt: skip
    machine.setup("--slurm")
    machine.setup("--remove")
    assert machine.files() == {"etc/default/rankwatch"}


@pytest.mark.parametrize("folder", ["etc/slurm", "run/slurm/conf", "var/spool/slurmd/conf-cache"])
@pytest.mark.parametrize("name", ["*", "50-rankwatch"])
def test_no_pattern_of_slurms_is_left_without_a_file(machine: Machine, folder: str, name: str) -> None:
    """While slurm.conf names the directories, each keeps an empty script: without one slurmd would drain the node."""
    machine.setup("--slurm")
    machine.configure_slurm(folder, name)
    for hook in HOOKS if name != "*" else ():
        (machine.slurm / hook / "10-site").touch()
    said = machine.setup("--remove")
    for hook in HOOKS:
        stays = machine.slurm / hook / "50-rankwatch"
        assert f"{stays} stays" in said
        assert "jobs" not in stays.read_text()
        assert subprocess.run([stays], check=False, env={}).returncode == 0
        assert {path.name for path in (machine.slurm / hook).iterdir()} - {"10-site"} == {"50-rankwatch"}
    assert "slurm: no" in machine.setup("--check")


def test_what_a_site_put_there_by_hand_outlives_an_installation(machine: Machine) -> None:
    """Without a choice in /etc/default/rankwatch no existing file is changed or removed; new rights remove no file."""
    machine.configure_slurm()
    own = {machine.drop_ins / "50-other-users.conf", machine.slurm / "task_prolog.d" / "50-rankwatch"}
    own |= {machine.slurm / hook / "50-rankwatch" for hook in HOOKS}
    for path in own:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("the site's\n")
    assert (machine.setup("--defaults"), {path.read_text() for path in own}) == ("", {"the site's\n"})
    for hook in HOOKS:
        shutil.copy(machine.share / "slurm" / hook / "50-rankwatch", machine.slurm / hook)
    machine.setup("--with-hardware")
    assert machine.setup("--check").count(": yes") == 3
    machine.setup("--remove")
    assert (machine.slurm / "task_prolog.d" / "50-rankwatch").read_text() == "the site's\n"
