"""The scripts for Slurm's prolog, epilog and jobcomp, run by real shells in environments recorded from Slurm."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent.cli.status import table
from agent.page.ranks_json import NodeDocument, Rank, RankEnd

ROOT = Path(__file__).parents[2]
SLURM = ROOT / "deploy" / "slurm"
ENVIRONMENTS = ROOT / "tests" / "data" / "jobs" / "environments"
PROLOG, EPILOG = SLURM / "prolog.d" / "50-rankwatch", SLURM / "epilog.d" / "50-rankwatch"
JOBCOMP, TASK_PROLOG = SLURM / "jobcomp" / "rankwatch", SLURM / "task_prolog.d" / "50-rankwatch"
SHELLS = sorted({Path(record).resolve().name for shell in ("sh", "dash", "bash") if (record := shutil.which(shell))})
"""Each installed shell once, because sh is another name of one of them."""
EACH = [SHELLS[0], *(pytest.param(shell, marks=pytest.mark.slow) for shell in SHELLS[1:])]
AFTERWARDS_SECONDS = 20.0
EPILOGS = 20
"""With this many epilogs, at least one query would be killed with its epilog's process group if none waited."""


def status(state: str, reason: str, signal: str = "", code: str = "", job_id: str = "4") -> str:
    """Return the output of `rankwatch status` for a job with one ended and one running rank."""
    ended = RankEnd(1.0, reason, signal, int(code) if code else None)
    gone = Rank(job_id=job_id, rank="0", state=state, ended=ended)
    ranks = (gone, Rank(job_id=job_id, rank="1", state="alive", pid=77, user="alice"))
    node = NodeDocument(rankwatch="0", hostname="h", now_seconds=9.0, up_seconds=1.0, ready=True, ranks=ranks)
    return f"{table(node)}\n"


SIGTERMED = status("exited", "signaled", signal="SIGTERM")


def environment(name: str) -> dict[str, str]:
    """Return one of the recorded environments."""
    lines = (ENVIRONMENTS / f"{name}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


class Site:
    """A directory of job files, and programs that stand in for Slurm's and the agent's."""

    def __init__(self, root: Path, shell: str = "sh") -> None:
        self.jobs, self.inspector, self.calls, self._root = root / "jobs", root / "inspector", root / "asked", root
        self.shell = shell
        self._runs: list[int] = []
        self.settings = {
            "RANKWATCH_JOBS_DIR": str(self.jobs), "RANKWATCH_INSPECTOR_DIR": str(self.inspector),
            "RANKWATCH_ASK_AFTER_SECONDS": "0", "RANKWATCH_SQUEUE": str(root / "squeue"),
            "RANKWATCH_COMMAND": str(root / "rankwatch"),
        }  # fmt: skip

    def run(self, script: Path, env: Mapping[str, str], **more: Any) -> subprocess.CompletedProcess[str]:
        """Run a script as Slurm does; it must exit with 0 and print nothing."""
        read_end, write_end = os.pipe()
        self._runs.append(read_end)
        weakref.finalize(self, forget, self._runs, read_end)
        done = subprocess.run(
            [self.shell, str(script)], env={**self.settings, **env}, capture_output=True, text=True, timeout=30,
            check=False, pass_fds=[write_end], **more,
        )  # fmt: skip
        os.close(write_end)
        assert (done.returncode, done.stderr) == (0, "")
        return done

    def wait_until_alone(self) -> None:
        """Wait until the scripts have left no process: until the pipe that each script got is closed."""
        while self._runs:
            ended = self._runs.pop()
            poll = select.poll()
            poll.register(ended)
            record = poll.poll(1000 * AFTERWARDS_SECONDS)
            os.close(ended)
            assert record

    def answer(self, squeue: str, status: str) -> None:
        """Make squeue and `rankwatch status` print these texts."""
        for name, text in (("squeue", squeue), ("rankwatch", status)):
            program, printed = self._root / name, self._root / f"{name}.txt"
            printed.with_suffix(".new").write_text(text)
            printed.with_suffix(".new").replace(printed)  # a running program prints the whole old or new text
            if not program.exists():
                program.write_text(f'#!/bin/sh\necho {name} "$@" >> {self.calls}\ncat {printed}\n')
                program.chmod(0o755)

    def file(self, job_id: str = "4") -> dict[str, Any]:
        """Return the content of a job's file."""
        record: dict[str, Any] = json.loads((self.jobs / f"{job_id}.json").read_text())
        return record

    def wait_for_state(self, job_id: str = "4") -> dict[str, Any]:
        """Wait until a job's file has a state, and return its content."""
        wait_until(lambda: "state" in self.file(job_id))
        return self.file(job_id)


def forget(runs: list[int], ended: int) -> None:
    """Close the end of a pipe that no test waited for."""
    if ended in runs:
        runs.remove(ended)
        os.close(ended)


@pytest.fixture(params=EACH)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    """Provide a site for each installed shell."""
    return Site(tmp_path, request.param)


@pytest.mark.parametrize("script", [PROLOG, EPILOG, JOBCOMP, TASK_PROLOG], ids=lambda path: path.parent.name)
@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_reads_the_scripts(shell: str, script: Path) -> None:
    """A script is executable and has no syntax errors."""
    assert os.access(script, os.X_OK)
    subprocess.run([shell, "-n", str(script)], check=True)


def test_the_prolog_writes_what_slurm_says_of_the_job(site: Site) -> None:
    """The prolog writes only the job's file, from the prolog's environment and readable by all users."""
    before = int(time.time())
    site.run(PROLOG, environment("prolog.4"))
    record = site.file()
    assert before <= record.pop("started") <= time.time()
    assert record == {
        "job_id": "4", "user": "root", "uid": 0, "account": "", "partition": "low", "cluster": "lab", "name": "",
        "gpus": "", "array_job_id": "", "array_task_id": "", "nodes": 1, "ntasks": 2, "restarts": 0,
    }  # fmt: skip
    assert [path.name for path in site.jobs.iterdir()] == ["4.json"]
    assert (site.jobs / "4.json").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(("name", "shown"), [
    ('","job_id":"5', "?,?job_id?:?5"),
    ("\\", "?"),
    ("a\nb\x1b[0m", "a?b??0m"),
    ("$(touch /tmp/x)`id`%s%n", "??touch /tmp/x??id?%s%n"),
    ("x" * 257, "x" * 256),
    (os.fsdecode("学\xff".encode("latin-1", "ignore") + "é".encode()), "???"),
])  # fmt: skip
def test_hostile_names_stay_one_string(site: Site, name: str, shown: str) -> None:
    """Special characters in a name are replaced, a long name is cut, and no part of it is executed."""
    site.run(PROLOG, environment("prolog.4") | {"SLURM_JOB_NAME": name, "SLURM_JOB_USER": name})
    assert (site.file()["name"], site.file()["user"], site.file()["job_id"]) == (shown, shown, "4")


@pytest.mark.parametrize(
    ("name", "codes"), [("epilog.1", (0, 0, 0)), ("epilog.2", (7, 0, 1792)), ("epilog.3", (143, 0, 15))]
)
def test_the_epilog_adds_the_end(site: Site, name: str, codes: tuple[int, int, int]) -> None:
    """The epilog adds the end time and codes to the prolog's file."""
    job_id = name.removeprefix("epilog.")
    site.answer("", "no ranks")
    site.run(PROLOG, environment("prolog.4") | {"SLURM_JOB_ID": job_id})
    written = site.file(job_id)
    site.run(EPILOG, environment(name))
    record = site.file(job_id)
    assert written["started"] <= record.pop("ended") <= time.time()
    assert (tuple(record.pop(row) for row in ("exit_code", "exit_signal", "derived_code")), record) == (codes, written)


@pytest.mark.parametrize(("squeue", "state", "reason"), [
    ("3 PENDING None\n4 CANCELLED None\n44 COMPLETED None\n", "CANCELLED", "None"),
    ("4 TIMEOUT TimeLimit\n", "TIMEOUT", "TimeLimit"),
    ("4 COMPLETING TimeLimit\n", "TIMEOUT", "TimeLimit"),
    ("4 NODE_FAIL NodeDown\n", "NODE_FAIL", "NodeDown"),
    ("4 PENDING BeginTime\n", "REQUEUED", "BeginTime"),
    ('4 CANCELLED "},{"\n', "CANCELLED", ""),
])  # fmt: skip
def test_the_state_is_asked_for_afterwards(site: Site, squeue: str, state: str, reason: str) -> None:
    """If a rank ended by a signal although the job's exit codes are 0, the epilog queries Slurm once for the state."""
    site.answer(squeue, SIGTERMED)
    site.run(PROLOG, environment("prolog.4"))
    site.run(EPILOG, environment("epilog.4"))
    record = site.wait_for_state()
    assert (record["state"], record["reason"], record["partition"]) == (state, reason, "low")
    calls = [line for line in site.calls.read_text().splitlines() if line.startswith("squeue")]
    assert calls == ["squeue --noheader --states=all --jobs=4 --format=%A %T %r"]


@pytest.mark.parametrize(("changed", "asks"), [
    ({"SLURM_JOB_EXIT_CODE2": "7:0"}, False),
    ({"SLURM_JOB_DERIVED_EC": "15"}, False),
    ({"SLURM_NODELIST": "a[1-3],n0"}, False),
    ({"SLURM_NODELIST": "r[0-1]n[00-15],x", "SLURMD_NODENAME": "r0n00"}, True),
    ({"SLURM_NODELIST": "n0", "SLURMD_NODENAME": "n0"}, True),
    ({"SLURM_NODELIST": "gpu[004-007,9],x", "SLURMD_NODENAME": "gpu004"}, True),
    ({"SLURM_NODELIST": "gpu[7,9]-ib,x1", "SLURMD_NODENAME": "gpu7-ib"}, True),
    ({"SLURM_NODELIST": "a1,b[2-3]", "SLURMD_NODENAME": "a1"}, True),
])  # fmt: skip
def test_slurm_is_asked_by_the_first_node_where_codes_are_those_of_success(
    site: Site, changed: dict[str, str], asks: bool
) -> None:
    """Only the first node of the job queries Slurm, and only if the job's exit codes are 0."""
    site.answer("4 CANCELLED None\n", SIGTERMED)
    site.run(EPILOG, environment("epilog.4") | changed)
    if asks:
        assert site.wait_for_state()["state"] == "CANCELLED"
    site.wait_until_alone()
    assert site.calls.exists() == asks


@pytest.mark.parametrize(("printed", "asks"), [
    ("no ranks\n", False),
    ("rankwatch status: no answer from 127.0.0.1:19028: refused\n", False),
    (status("finished", "exited", code="0"), False),
    (status("exited", "signaled", signal="SIGTERM", job_id="44"), False),
    (status("exited", "signaled", signal="SIGTERM", job_id="4-u1000"), False),
    (status("dead", "exited", code="10"), True),
    (status("exited", "exited", code="1"), True),
    (status("exited", "unknown"), True),
    (status("dead", "oom_killed", signal="SIGKILL"), True),
])  # fmt: skip
def test_the_agent_says_whether_to_ask(site: Site, printed: str, asks: bool) -> None:
    """The script queries Slurm only if the agent saw a rank of the job end with a status other than 0."""
    site.answer("4 CANCELLED None\n", printed)
    site.run(EPILOG, environment("epilog.4"))
    if asks:
        assert site.wait_for_state()["state"] == "CANCELLED"
    site.wait_until_alone()
    assert ("squeue" in site.calls.read_text()) == asks == ("state" in site.file())
    assert site.calls.read_text().startswith("rankwatch status\n")


@pytest.mark.parametrize(
    ("squeue", "printed"), [("4 COMPLETING None\n", SIGTERMED), ("4 CANCELLED None\n", status("alive", ""))]
)
def test_the_script_queries_again_without_an_answer(site: Site, squeue: str, printed: str) -> None:
    """If the job is still completing, or the agent has not seen a rank end, the script queries again."""
    site.answer(squeue, printed)
    site.run(EPILOG, environment("epilog.4") | {"RANKWATCH_ASK_AFTER_SECONDS": "0 0.5 4"})
    command = "squeue" if printed is SIGTERMED else "rankwatch"
    wait_until(lambda: site.calls.exists() and command in site.calls.read_text())
    site.answer("4 CANCELLED None\n", SIGTERMED)
    assert site.wait_for_state()["state"] == "CANCELLED"


@pytest.mark.slow
def test_who_asks_outlives_the_epilogs_process_group(site: Site) -> None:
    """The query goes on after Slurm has killed the epilog's process group."""
    site.answer("4 CANCELLED None\n", SIGTERMED)
    for number in range(EPILOGS):
        env = {**site.settings, **environment("epilog.4"), "SLURM_JOB_ID": str(number + 1)}
        with subprocess.Popen([site.shell, str(EPILOG)], env=env, start_new_session=True) as process:
            process.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    wait_until(lambda: site.calls.exists() and site.calls.read_text().count("rankwatch status") == EPILOGS)


def test_one_epilog_of_a_node_asks_at_a_time(site: Site) -> None:
    """At any time only one epilog of a node runs the agent's command; the others wait. Only root can make them wait."""
    site.answer("4 CANCELLED None\n", SIGTERMED)
    site.run(PROLOG, environment("prolog.4"))
    other = os.open(site.jobs / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(other, fcntl.LOCK_EX)
    site.run(EPILOG, environment("epilog.4"))
    wait_until(lambda: b"flock" in commands(site.jobs))
    assert not site.calls.exists()
    os.close(other)
    assert site.wait_for_state()["state"] == "CANCELLED"
    assert (site.jobs / ".lock").stat().st_mode & 0o777 == 0o600


def test_a_job_that_came_back_keeps_its_file(site: Site, tmp_path: Path) -> None:
    """The state of an earlier run is not written into the new run's file."""
    site.answer("4 CANCELLED None\n", SIGTERMED)
    env, later = environment("epilog.4"), {"RANKWATCH_ASK_AFTER_SECONDS": "0.3"}
    site.run(EPILOG, env | later)
    site.run(PROLOG, environment("prolog.4"))
    site.wait_until_alone()
    assert "ended" not in site.file()


@pytest.mark.parametrize("script", [EPILOG, JOBCOMP], ids=lambda path: path.parent.name)
def test_files_of_jobs_that_ended_long_ago_go(site: Site, script: Path) -> None:
    """An hour after its last change the file of an ended job is removed; the file of a running job is kept."""
    site.answer("", "no ranks")
    site.jobs.mkdir()
    two_hours_ago = time.time() - 7200
    for name, text in (("1", '{"job_id":"1"}'), ("2", '{"job_id":"2","ended":5}')):
        (site.jobs / f"{name}.json").write_text(text)
        os.utime(site.jobs / f"{name}.json", (two_hours_ago, two_hours_ago))
    site.run(script, environment("epilog.4") | {"JOBID": "4", "JOBSTATE": "FAILED"})
    site.wait_until_alone()
    assert sorted(path.name for path in site.jobs.glob("*.json")) == ["1.json", "4.json"]


def test_a_full_disk_leaves_the_old_file(site: Site) -> None:
    """If the disk is full, a job's file stays as it was, and no partial file is left."""
    site.answer("", "no ranks")
    site.run(PROLOG, environment("prolog.4"))
    before = site.file()
    for script in (PROLOG, EPILOG):
        full_disk = f"ulimit -f 0; exec {site.shell} {script}"
        env = {"RANKWATCH_JOBS_DIR": str(site.jobs), "RANKWATCH_COMMAND": "false"} | environment("epilog.4")
        argv = ["sh", "-c", f"trap '' XFSZ; {full_disk}"]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=30, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    assert (site.file(), [path.name for path in site.jobs.iterdir() if path.name != ".lock"]) == (before, ["4.json"])


def test_the_epilog_does_not_wait_for_what_it_asks(tmp_path: Path) -> None:
    """The epilog ends even if Slurm does not reply."""
    site = Site(tmp_path)
    site.answer("", SIGTERMED)
    (tmp_path / "squeue").write_text(f"#!/bin/sh\ntouch {tmp_path}/begun\nexec sleep 30\n")
    site.run(EPILOG, environment("epilog.4"), close_fds=True)
    wait_until((tmp_path / "begun").exists)
    assert "state" not in site.file()


@pytest.mark.parametrize(("state", "written"), [("PREEMPTED", True), ("", False), ('X"', False), ("x" * 30, False)])
def test_jobcomp_gets_the_state(site: Site, state: str, written: bool) -> None:
    """With a jobcomp script the file has the state without a query."""
    site.run(JOBCOMP, {"JOBID": "5", "JOBSTATE": state, "EXITCODE": "0"})
    if not written:
        assert not site.jobs.exists()
        return
    assert (site.file("5").keys(), site.file("5")["state"]) == ({"job_id", "ended", "state"}, state)


def test_the_task_prolog_exports_what_inspector_needs(tmp_path: Path) -> None:
    """Each task gets the job's record directory; variables that the job sets itself stay."""
    interval = "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS"
    printed = task_prolog(tmp_path, str(tmp_path), **{interval: "5"})
    assert dict(line.removeprefix("export ").split("=", 1) for line in printed) == {
        "NCCL_PROFILER_PLUGIN": "libnccl-profiler-inspector.so",
        "NCCL_INSPECTOR_ENABLE": "1",
        interval: "5",
        "NCCL_INSPECTOR_DUMP_DIR": f"{tmp_path}/4",
    }
    assert (tmp_path / "4").stat().st_mode & 0o777 == 0o700
    assert task_prolog(tmp_path, str(tmp_path), RANKWATCH_INSPECTOR="0") == []


OWNER = {"SLURM_JOB_UID": "1000", "SLURM_JOB_GID": "1001"}
root_alone = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as a prolog does")


def task_prolog(folder: Path, inspector: str, site: Site | None = None, **env: str) -> list[str]:
    """Return the output of the TaskProlog on a node with ``inspector`` as directory of records."""
    script = folder / "task_prolog"
    script.write_text(TASK_PROLOG.read_text().replace("/var/lib/rankwatch/inspector", inspector))
    return (site or Site(folder)).run(script, environment("prolog.4") | env).stdout.splitlines()


def directory_of(printed: list[str]) -> Path:
    """Return the directory that a TaskProlog gives to Inspector."""
    [line] = [row for row in printed if "DUMP_DIR=" in row]
    return Path(line.partition("=")[2])


def test_a_link_that_lay_there_gets_no_records(tmp_path: Path) -> None:
    """If another user has made a link with the directory's name, the job's directory has a suffix instead."""
    (tmp_path / "home").mkdir()
    (tmp_path / "4").symlink_to(tmp_path / "home")
    os.utime(tmp_path / "4", (1, 1), follow_symlinks=False)
    record = directory_of(task_prolog(tmp_path, str(tmp_path)))
    assert record.parent == tmp_path
    assert record.name.startswith("4.")
    assert (len(record.name), record.stat().st_mode & 0o777) == (len("4.") + 10, 0o700)
    assert list((tmp_path / "home").iterdir()) == []
    assert (tmp_path / "4").lstat().st_atime == 1, "a link can lead to a file system that never answers"


@root_alone
@pytest.mark.parametrize("kind", ["directory", "file"])
def test_a_name_that_is_taken_costs_the_job_no_records(tmp_path: Path, kind: str) -> None:
    """If another user has taken the directory's name, the tasks share a directory with an unguessable name."""
    for name in ("4", "4.0123456789"):
        taken = tmp_path / name
        taken.mkdir() if kind == "directory" else taken.touch()
        os.chown(taken, 1000, 1000)
    own = directory_of(task_prolog(tmp_path, str(tmp_path)))
    assert own.name not in ("4", "4.0123456789")
    assert (own.stat().st_uid, own.stat().st_mode & 0o777) == (0, 0o700)
    assert directory_of(task_prolog(tmp_path, str(tmp_path), SLURM_LOCALID="1")) == own


@pytest.fixture
def mounted(tmp_path: Path) -> Callable[[int], Site]:
    """Provide a function that makes a site with a user's file system mounted at a job's directory, as FUSE allows."""

    def mount(uid: int) -> Site:
        directory, shell = tmp_path / "inspector/4", tmp_path / "with-a-mount"
        directory.mkdir(parents=True)
        command = f'mount -t tmpfs -o uid={uid} none {directory} && exec sh "$0"'
        shell.write_text(f"#!/bin/sh\nexec unshare --mount sh -c '{command}' \"$1\"\n")
        shell.chmod(0o755)
        return Site(tmp_path, str(shell))

    return mount


@root_alone
def test_a_mount_with_the_jobs_name_is_not_looked_at(mounted: Callable[[int], Site], tmp_path: Path) -> None:
    """If a file system, which might hang, is mounted with the job's name, tasks get another directory."""
    assert directory_of(task_prolog(tmp_path, f"{tmp_path}/inspector", site=mounted(0))).name.startswith("4.")


@root_alone
def test_the_prolog_does_not_look_at_a_mount(mounted: Callable[[int], Site]) -> None:
    """If a file system, which might hang, is mounted with the job's name, the prolog makes no directory."""
    site = mounted(1000)
    site.run(PROLOG, environment("prolog.4") | OWNER)
    assert site.file()["records"] == "none"


@root_alone
@pytest.mark.parametrize("mode", [0o1777, 0o755])
def test_the_prolog_makes_the_directory_of_records(site: Site, mode: int) -> None:
    """The prolog makes the record directory for only the job's user; a requeue keeps it."""
    site.inspector.mkdir()
    site.inspector.chmod(mode)
    for _ in range(2):
        site.run(PROLOG, environment("prolog.4") | OWNER)
        [made] = site.inspector.iterdir()
        status = made.lstat()
        assert (made.name, status.st_uid, status.st_gid, status.st_mode & 0o777) == ("4", 1000, 1001, 0o700)
        assert "records" not in site.file()
        (made / "n1-pid7.log").touch()


@root_alone
@pytest.mark.parametrize("kind", ["empty", "full", "file", "link"])
def test_the_prolog_takes_the_jobs_name_back(site: Site, tmp_path: Path, kind: str) -> None:
    """The prolog moves another user's directory away, and the job's file reports it."""
    site.inspector.mkdir()
    site.inspector.chmod(0o1777)
    (tmp_path / "elsewhere").mkdir()
    taken = site.inspector / "4"
    if kind == "link":
        taken.symlink_to(tmp_path / "elsewhere")
    else:
        taken.touch() if kind == "file" else taken.mkdir()
    if kind == "full":
        (taken / "x").touch()
    os.chown(taken, 2000, 2000, follow_symlinks=False)
    os.utime(taken, (1, 1), follow_symlinks=False)
    site.run(PROLOG, environment("prolog.4") | OWNER)
    owners = {path.name: path.lstat().st_uid for path in site.inspector.iterdir()}
    assert kind != "link" or {path.lstat().st_atime for path in site.inspector.iterdir() if path.is_symlink()} == {1}
    assert (owners.pop("4"), list(owners.values())) == (1000, [2000])
    assert (site.file()["records"], list(taken.iterdir()), (tmp_path / "elsewhere").stat().st_uid) == ("taken", [], 0)


@root_alone
def test_where_others_could_replace_it_the_prolog_makes_none(site: Site) -> None:
    """In another user's directory without the sticky bit, or without a directory, the prolog makes nothing."""
    site.run(PROLOG, environment("prolog.4") | OWNER)
    assert not site.inspector.exists()
    site.inspector.mkdir()
    os.chown(site.inspector, 2000, 2000)
    site.run(PROLOG, environment("prolog.4") | OWNER)
    assert list(site.inspector.iterdir()) == []


def test_the_epilog_removes_a_directory_without_records(site: Site) -> None:
    """The epilog removes the job's record directory if it is empty, and keeps it otherwise."""
    (site.inspector / "4").mkdir(parents=True)
    site.run(EPILOG, environment("epilog.4"))
    assert list(site.inspector.iterdir()) == []
    (site.inspector / "4").mkdir()
    (site.inspector / "4" / "n1-pid7.log").touch()
    site.run(EPILOG, environment("epilog.4"))
    assert [path.name for path in site.inspector.iterdir()] == ["4"]
    site.wait_until_alone()


def wait_until(reached: Callable[[], bool]) -> None:
    """Poll until a condition is true."""
    until = time.monotonic() + AFTERWARDS_SECONDS
    while not reached():
        assert time.monotonic() < until
        time.sleep(0.01)


def commands(jobs: Path) -> set[bytes]:
    """Return the names of the processes that were started for this directory."""
    needle = f"RANKWATCH_JOBS_DIR={jobs}".encode()
    record = set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if needle in (path / "environ").read_bytes().split(b"\0"):
                record.add((path / "comm").read_bytes().strip())
    return record
