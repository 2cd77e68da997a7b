"""A cluster of one node under Debian's Slurm, which `scripts/test` unpacked into .cache/slurm."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from jobs import ROOT
from nodes import Closing, Node, wait_until, why_no_nodes

CLUSTER = "lab"
LOW, HIGH = "low", "high"
"""Partitions: a job of the first runs by default, and is requeued when a job of the second needs its resources."""
KILL_WAIT_SECONDS = 3
START_SECONDS = 20.0
"""Longest time from a daemon's start to its reply, and from a job's submission to its tasks."""
END_SECONDS = 20.0
"""Longest time from scancel to the job's end on the node: KillWait, and the daemons' own time."""
THREAD = "NCCL RAS"
IDLE_RANK = Path(__file__).with_name("idle_rank.py")
_ADDRESS = "10.77.0.1"
"""With 127.0.0.1 as the only address, glibc resolves no name for Slurm (AI_ADDRCONFIG)."""
_PACKAGES = ROOT / ".cache" / "slurm"

# No cgroup plugin, because some machines have no control groups for a namespace. A requeued job waits for cred_expire.
_CONFIGURATION = """\
ClusterName={cluster}
SlurmctldHost={host}({address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
PluginDir={plugins}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait={kill_wait}
NodeName={host} NodeAddr={address} CPUs=8 State=UNKNOWN
PartitionName={low} Nodes={host} Default=YES PriorityTier=1 PreemptMode=REQUEUE
PartitionName={high} Nodes={host} PriorityTier=10 PreemptMode=OFF
"""


def why_no_slurm() -> str | None:
    """Return the reason why Slurm cannot run, or None."""
    if (why := why_no_nodes()) is not None:
        return why
    if (_PACKAGES / "usr").exists():
        return None
    if shutil.which("apt-get") is None:
        return "no packages of Slurm here: this is not Debian"
    return "no Slurm in .cache/slurm: scripts/test fetches it"


def idle_rank(end: Path | None = None, status: int | None = None) -> list[str]:
    """Return a command that looks like a rank, and exits with status 0 once the file ``end`` exists.

    ``status``: it exits with this status instead, and also at SIGTERM."""
    until = [str(end)] if end else []
    return [sys.executable, "-S", str(IDLE_RANK), THREAD, *until, *([] if status is None else [str(status)])]


class Slurm(Closing):
    """slurmctld, slurmd and munged on ``node``, with their files in ``directory``; jobs run as root.

    ``settings``: further lines of slurm.conf. A context manager; everything that it started ends with it."""

    def __init__(self, directory: Path, settings: str = "") -> None:
        self.directory = directory
        self._settings = settings
        self.node = Node("n0")
        self._logs: list[IO[bytes]] = []
        [libraries] = (_PACKAGES / "usr" / "lib").glob("*-linux-gnu")
        self._plugins = libraries / "slurm-wlm"
        self._env = {
            "LD_LIBRARY_PATH": f"{libraries}:{self._plugins}",
            "PATH": f"{_PACKAGES}/usr/bin:{os.environ['PATH']}",
            "SLURM_CONF": str(directory / "slurm.conf"),
        }
        try:
            self._start()
        except (AssertionError, OSError):
            self.close()
            raise

    def close(self) -> None:
        self.node.close()
        for log in self._logs:
            log.close()

    @property
    def environment(self) -> dict[str, str]:
        return dict(self._env)

    # -- its jobs --------------------------------------------------------------------------------------------------

    def submit(self, script: str, *options: str) -> str:
        """Submit a batch script with sbatch's options and return the job's id (of an array: the array's)."""
        batch = self.directory / "batch"
        batch.write_text(f"#!/bin/bash\n{script}\n")
        place = (f"--chdir={self.directory}", f"--output={self.directory}/%j.out")
        return self.ask("sbatch", "--parsable", *place, *options, str(batch)).strip()

    def cancel(self, job_id: str) -> None:
        self.ask("scancel", job_id)

    def cancel_all(self) -> None:
        """Cancel all jobs and wait until the node is free."""
        self.ask("scancel", "--user=root")
        wait_until(lambda: not self.ask("squeue", "--noheader"), END_SECONDS, "the end of all jobs")

    def ask(self, *argv: str) -> str:
        """Run a Slurm command and return its output; raises AssertionError if it fails."""
        done = self.node.run(argv, env=self._env)
        assert done.returncode == 0, (argv, done.stdout, done.stderr)
        return done.stdout

    def popen(self, argv: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[Any]:
        """Start a program on the node, outside of any job."""
        return self.node.popen(argv, env={**env, "PATH": os.environ["PATH"]})

    def output(self, job_id: str) -> str:
        return (self.directory / f"{job_id}.out").read_text()

    # -- its daemons -----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        configuration = _CONFIGURATION.format(
            cluster=CLUSTER,
            host=self.node.hostname,
            address=_ADDRESS,
            directory=self.directory,
            plugins=self._plugins,
            kill_wait=KILL_WAIT_SECONDS,
            low=LOW,
            high=HIGH,
        )
        (self.directory / "slurm.conf").write_text(configuration + self._settings)
        hosts = self.directory / "hosts"
        hosts.write_text(f"127.0.0.1 localhost\n{_ADDRESS} {self.node.hostname}\n")
        self._prepare("mount", "--bind", str(hosts), "/etc/hosts")  # only in the node's mount namespace
        self._prepare("ip", "address", "add", f"{_ADDRESS}/32", "dev", "lo")
        for each in ("state", "spool"):
            (self.directory / each).mkdir()
        key = self.directory / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munge.pid", "seed-file": "munge.seed"}
        options = [f"--{option}={self.directory / name}" for option, name in files.items()]
        self._daemon("munged", "--foreground", "--force", *options)
        wait_until((self.directory / "munge.socket").exists, START_SECONDS, "munged")
        self._daemon("slurmctld-wlm", "-D")
        wait_until(lambda: self._says("UP", "scontrol", "ping"), START_SECONDS, "slurmctld")
        self._daemon("slurmd-wlm", "-D", "-d", str(_PACKAGES / "usr/sbin/slurmstepd-wlm"))
        wait_until(lambda: self._says("idle", "sinfo", "--noheader", "--format=%T"), START_SECONDS, "slurmd")

    def _prepare(self, *argv: str) -> None:
        done = self.node.run(argv)
        assert done.returncode == 0, (argv, done.stderr)

    def _daemon(self, name: str, *options: str) -> None:
        log = (self.directory / f"{name}.log").open("wb")
        self._logs.append(log)
        self.node.popen([_PACKAGES / "usr/sbin" / name, *options], env=self._env, stdout=log, stderr=log)

    def _says(self, word: str, *argv: str) -> bool:
        return word in self.node.run(argv, env=self._env).stdout


SCRIPTS = ROOT / "deploy" / "slurm"
HOOK = """\
#!/bin/sh
export RANKWATCH_JOBS_DIR={jobs} RANKWATCH_SQUEUE={squeue} RANKWATCH_COMMAND={directory}/rankwatch
export LD_LIBRARY_PATH={libraries} PYTHONPATH={root}
RANKWATCH_ADDRESS=$(cat {directory}/address)
export RANKWATCH_ADDRESS
begun=$(date +%s%N)
{script}
echo "{name} $? $(($(date +%s%N) - begun))" >> {directory}/took
"""


class Site:
    """A Slurm whose node runs the scripts of deploy/slurm.

    ``jobs``: the files of jobs; ``completed``: the files of jobcomp."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.jobs = directory / "jobs"
        self.completed = directory / "completed"
        hooks = {"Prolog": "prolog.d/50-rankwatch", "Epilog": "epilog.d/50-rankwatch", "JobComp": "jobcomp/rankwatch"}
        lines = [f"{name}={directory}/{name}" for name in ("Prolog", "Epilog")]
        lines += ["JobCompType=jobcomp/script", f"JobCompLoc={directory}/JobComp"]
        for name in hooks:
            (directory / name).write_text("#!/bin/sh\n")
            (directory / name).chmod(0o755)
        self.slurm = Slurm(directory, "\n".join(lines) + "\n")
        env = self.slurm.environment
        for name, script in hooks.items():
            text = HOOK.format(
                jobs=self.completed if name == "JobComp" else self.jobs,
                squeue=env["PATH"].split(":")[0] + "/squeue",
                directory=directory,
                libraries=env["LD_LIBRARY_PATH"],
                root=ROOT,
                script=SCRIPTS / script,
                name=name,
            )
            (directory / name).write_text(text)
        python = shlex.quote(sys.executable)
        (directory / "rankwatch").write_text(f'#!/bin/sh\nexec {python} -m agent "$@"\n')
        (directory / "rankwatch").chmod(0o755)
        (directory / "address").write_text("127.0.0.1:1\n")

    def took(self) -> list[tuple[str, int, float]]:
        """Return the scripts that ran, with status and seconds."""
        rows = [line.split() for line in (self.directory / "took").read_text().splitlines()]
        return [(name, int(status), int(nanoseconds) / 1e9) for name, status, nanoseconds in rows]

    def word(self, job_id: str) -> str:
        """Return the state in jobcomp's file of a job; empty without one."""
        path = self.completed / f"{job_id}.json"
        return str(json.loads(path.read_text()).get("state", "")) if path.exists() else ""
