"""Jobs at work, and what holds one rank of each up, made on this machine: the shipped rules say what it is.

The GPU is a stub of NVIDIA's library, and what its clocks' brake costs a rank is work added to its process; all else is
real. A NIC's errors cannot be made here: a promtool case has them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from agents import Agent
from nodes import wait_until
from nvml_stub import Node
from prometheus import Prometheus, why_no_prometheus
from watches import build_rules, prometheus_config
from working_job import GROUPS, LATE_RANK, RANKS, WorkingJob, doing_again, group_in, hashes_per_step
from working_rank import MORE_WORK

FULL = os.environ.get("RANKWATCH_TEST_FULL") == "1"
JOBS = int(os.environ.get("RANKWATCH_TEST_CAUSE_JOBS", "2"))
"""Of each cause, at the same time."""
RIGHT_SHARE = 0.9
CALM_SECONDS = 30.0
"""Before anything is wrong: ranks are named and their records read."""
TOLD_SECONDS = 420.0
"""Four windows of 45 s, a minute each, and the groups' turns: the alert and its cause."""
MIB = 1024 * 1024
LITTLE_MEMORY = 24 * MIB
STOPPED_SECONDS, GOING_SECONDS = 3.0, 0.2
"""Longer than the batches last that wait in the pipe."""
FEW_READS = 4
"""A second, of a loader that needs five."""
CPU_MICROSECONDS = 1500
"""In each tenth of a second."""
GPU_PAIRS = 2
"""Of jobs: the stub has eight GPUs, and a job of two ranks is on two."""

pytestmark = [
    pytest.mark.skipif(not FULL, reason="only with RANKWATCH_TEST_FULL=1: takes seven minutes"),
    pytest.mark.skipif(why_no_prometheus() is not None, reason=why_no_prometheus() or ""),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for control groups"),
    pytest.mark.skipif(not (GROUPS / "cpu").is_dir(), reason="no control groups of version 1"),
]


class Site(NamedTuple):
    """What a test needs: its folder, where records go, a node's GPUs and the hashes of a step."""

    directory: Path
    dump_dir: Path
    gpus: Node
    burns: int


def throttled(site: Site, job_id: str, stack: contextlib.ExitStack) -> tuple[WorkingJob, Callable[[], None]]:
    """Its control group has next to no CPU time."""
    group = stack.enter_context(group_in("cpu", f"rankwatch-{job_id}"))
    job = stack.enter_context(WorkingJob(site.directory / job_id, job_id, site.dump_dir, site.burns, group))
    return job, lambda: (group / "cpu.cfs_quota_us").write_text(str(CPU_MICROSECONDS)) and None


def short_of_memory(site: Site, job_id: str, stack: contextlib.ExitStack) -> tuple[WorkingJob, Callable[[], None]]:
    """Its control group has less memory than it works on."""
    group = stack.enter_context(group_in("memory", f"rankwatch-{job_id}"))
    job = stack.enter_context(WorkingJob(site.directory / job_id, job_id, site.dump_dir, site.burns, group))
    return job, lambda: (group / "memory.limit_in_bytes").write_text(str(LITTLE_MEMORY)) and None


def slow_disk(site: Site, job_id: str, stack: contextlib.ExitStack) -> tuple[WorkingJob, Callable[[], None]]:
    """The disk gives its data loader a few reads a second."""
    group = stack.enter_context(group_in("blkio", f"rankwatch-{job_id}"))
    job = stack.enter_context(WorkingJob(site.directory / job_id, job_id, site.dump_dir, site.burns))
    disk = os.stat(site.directory).st_dev
    whole = Path(f"/sys/dev/block/{os.major(disk)}:{os.minor(disk)}")
    number = ((whole.resolve().parent if (whole / "partition").exists() else whole) / "dev").read_text().strip()

    def act() -> None:
        (group / "cgroup.procs").write_text(str(job.loader))
        (group / "blkio.throttle.read_iops_device").write_text(f"{number} {FEW_READS}")

    return job, act


def stopped_loader(site: Site, job_id: str, stack: contextlib.ExitStack) -> tuple[WorkingJob, Callable[[], None]]:
    """Its data loader is stopped most of the time."""
    job = stack.enter_context(WorkingJob(site.directory / job_id, job_id, site.dump_dir, site.burns))

    def pulse() -> None:
        os.kill(job.loader, signal.SIGSTOP)
        time.sleep(STOPPED_SECONDS)
        os.kill(job.loader, signal.SIGCONT)
        time.sleep(GOING_SECONDS)

    return job, lambda: stack.enter_context(doing_again(pulse))


def more_work(site: Site, job_id: str, stack: contextlib.ExitStack) -> tuple[WorkingJob, Callable[[], None]]:
    """It computes more than the other, in Python."""
    job = stack.enter_context(WorkingJob(site.directory / job_id, job_id, site.dump_dir, site.burns))
    return job, lambda: os.kill(job.late, signal.SIGUSR1)


Trouble = Callable[[Site, str, contextlib.ExitStack], tuple[WorkingJob, Callable[[], None]]]
TROUBLES: dict[str, tuple[Trouble, set[str]]] = {
    "cpu": (throttled, {"cpu"}),
    "memory": (short_of_memory, {"memory", "storage"}),
    "storage": (slow_disk, {"storage", "data_loader"}),
    "data_loader": (stopped_loader, {"data_loader"}),
    "program": (more_work, {"program"}),
}
"""By cause: what is done, and the causes that may be named."""


class Watched(NamedTuple):
    """What is asked while jobs run."""

    prometheus: Prometheus
    agent: Agent

    def causes(self, job_id: str) -> set[str]:
        """The causes of the late rank's alerts."""
        return {each["metric"]["why"] for each in self.fired(job_id) if each["metric"]["rank"] == str(LATE_RANK)}

    def fired(self, job_id: str) -> list[dict[str, Any]]:
        """The alerts on late ranks of the job that fire."""
        return self.prometheus.query(f'ALERTS{{alertname="StragglerRank",alertstate="firing",job_id="{job_id}"}}')


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Folders, and GPUs that are well."""
    for name in ("driver", "inspector", "targets", "rules"):
        (tmp_path / name).mkdir()
    gpus = Node(tmp_path / "driver")
    gpus.update({"driver": "575.57.08"})  # newer ones count themselves for how long clocks are lowered
    return Site(tmp_path, tmp_path / "inspector", gpus, hashes_per_step())


@pytest.fixture
def watched(site: Site) -> Iterator[Watched]:
    """An agent, and a Prometheus with the shipped rules and scrapes."""
    config = {"exporters": {"inspector": {"paths": [str(site.dump_dir)]}, "ras": {"enabled": False}}}
    env = {"LD_LIBRARY_PATH": str(site.gpus.library.parent)}
    with Agent(site.directory, config, env=env) as agent:
        (site.directory / "targets" / "all.json").write_text(f'[{{"targets": ["127.0.0.1:{agent.port}"]}}]')
        rules = build_rules(site.directory / "rules", {}, {})
        configured = prometheus_config(site.directory / "targets", rules)
        with Prometheus(site.directory / "prometheus", configured) as prometheus:
            yield Watched(prometheus, agent)


def wait_for_alerts(watched: Watched, job_ids: list[str]) -> None:
    """Wait until all jobs' alerts fire."""
    wait_until(lambda: all(map(watched.fired, job_ids)), TOLD_SECONDS, "an alert of each job")


@pytest.mark.timeout(900)
def test_each_cause_is_named(site: Site, watched: Watched) -> None:
    """Of jobs with one late rank each, held up in five ways at once, the cause is named, and no other."""
    with contextlib.ExitStack() as stack:
        acts: dict[str, tuple[str, Callable[[], None]]] = {}
        for cause, (trouble, _) in TROUBLES.items():
            for number in range(JOBS):
                job_id = f"{cause}-{number}"
                acts[job_id] = (cause, trouble(site, job_id, stack)[1])
        time.sleep(CALM_SECONDS)
        for _, act in acts.values():
            act()
        wait_for_alerts(watched, list(acts))
        named = {job_id: watched.causes(job_id) for job_id in acts}
        print(*sorted(named.items()), sep="\n")  # noqa: T201
        for cause, (_, allowed) in TROUBLES.items():
            told = [named[job_id] for job_id, (own, _) in acts.items() if own == cause]
            right = [each for each in told if cause in each and each <= allowed]
            assert len(right) >= RIGHT_SHARE * len(told), (cause, told)


@pytest.mark.timeout(600)
def test_a_hog_on_its_cpu_is_named(site: Site, watched: Watched) -> None:
    """A process that has more weight on a rank's CPU keeps it waiting for one."""
    with contextlib.ExitStack() as stack:
        busy = site._replace(burns=MORE_WORK * site.burns)
        jobs = {f"hog-{number}": more_work(busy, f"hog-{number}", stack)[0] for number in range(JOBS)}
        time.sleep(CALM_SECONDS)
        cpu = max(os.sched_getaffinity(0))
        hog = [sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"]
        with subprocess.Popen(["nice", "-n", "-15", *hog], start_new_session=True) as process:
            stack.callback(process.kill)
            with contextlib.suppress(OSError):  # kernels without it go by the niceness
                Path(f"/proc/{process.pid}/autogroup").write_text("-15")
            for job in jobs.values():
                for pid in (job.late, job.loader):
                    os.sched_setaffinity(pid, {cpu})
            wait_for_alerts(watched, list(jobs))
            named = [watched.causes(job_id) for job_id in jobs]
            print(*named, sep="\n")  # noqa: T201
            process.kill()
        assert sum("cpu" in each for each in named) >= RIGHT_SHARE * JOBS, named


@pytest.mark.timeout(600)
def test_trouble_with_its_gpu_is_named(site: Site, watched: Watched) -> None:
    """Clocks that a GPU's power brake lowers are named; and, on another job's, somebody else who computes there."""
    gpus = site.gpus
    with contextlib.ExitStack() as stack:
        names = [f"{trouble}-{number}" for number in range(min(JOBS, GPU_PAIRS)) for trouble in ("brake", "shared")]
        jobs = {name: more_work(site, name, stack) for name in names}
        stranger = stack.enter_context(subprocess.Popen([shutil.which("sleep") or "sleep", "3600"]))
        stack.callback(stranger.kill)
        late_gpus = {}
        for number, (name, (job, _)) in enumerate(jobs.items()):
            late_gpus[name] = 2 * number + LATE_RANK
            gpus.update({f"gpu{2 * number + rank}.processes": f"{job.ranks[rank].pid}" for rank in range(RANKS)})
        time.sleep(CALM_SECONDS)
        for name, (job, act) in jobs.items():
            trouble: dict[str, object] = {"clocks_event_reasons": 0x80}
            if name.startswith("shared"):
                trouble = {"processes": f"{job.late} {stranger.pid}"}
            gpus.update({f"gpu{late_gpus[name]}.{key}": value for key, value in trouble.items()})
            act()
        wait_for_alerts(watched, names)
        named = {name: watched.causes(name) for name in names}
        print(*sorted(named.items()), sep="\n")  # noqa: T201
        for name, causes in named.items():
            if name.startswith("brake"):
                assert causes == {"gpu_clocks"}, named
            else:
                assert causes == {"shared_gpu"}, named
