"""What the shipped rules cost and how fast they page; prints the tables of docs/benchmarks.md.

    .venv/bin/python tests/bench/bench_paging.py [fleet] [ends] [latency]

Needs Prometheus and Alertmanager, and root for `latency`. Takes minutes each; run on a quiet machine.
"""

from __future__ import annotations

import contextlib
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / place) for place in ("tests/nvmlstub", "tests/unit", "tests/e2e", "tests/bench", ".")]

import normal_ends  # noqa: E402  # after the change of the path
from clusters import ClusterJob  # noqa: E402  # likewise
from made_up_fleet import measure_fleet  # noqa: E402  # likewise
from memory_groups import small_group  # noqa: E402  # likewise
from paging import site  # noqa: E402  # likewise
from quiet_jobs import QuietJob  # noqa: E402  # likewise

BATCHES, JOBS_PER_BATCH = 100, 10
REPEATS = 4
STAGGER_SECONDS = 1.3
"""Between two accidents, so that they fall at all times between two scrapes."""
LATENCY_SECONDS = 150.0
AS_IF_LARGE_AND_OLD = {"page_lived": "long|short", "page_ranks": 2}


def ends() -> None:
    """How many alerts a thousand normal ends raise."""
    jobs: Counter[str] = Counter()
    alerts: Counter[tuple[str, str, str]] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(BATCHES):
            outcome = normal_ends.judge(Path(folder), number, JOBS_PER_BATCH)
            jobs += outcome.jobs
            alerts += outcome.alerts
    print("| end | jobs | pages | tickets | info |\n|---|---|---|---|---|")
    for kind, count in jobs.items():
        found = [
            sum(n for (k, _, s), n in alerts.items() if (k, s) == (kind, each)) for each in ("page", "ticket", "info")
        ]
        print(f"| {kind} | {count} | {' | '.join(map(str, found))} |")
    print(f"\nalerts: {dict(alerts)}")


def kill(job: ClusterJob) -> None:
    """SIGKILL, peers alive."""
    job.signal_rank(1)


def crash(job: ClusterJob) -> None:
    """SIGSEGV, and the launchers end the others."""
    job.signal_rank(1, signal.SIGSEGV)


def terminate(job: ClusterJob) -> None:
    """SIGTERM for one rank alone, peers alive."""
    job.signal_rank(1, signal.SIGTERM)


def grow(job: QuietJob) -> None:
    """The OOM killer."""
    job.grow(0)


CAUSES: dict[str, tuple[Callable[[Any], None], tuple[str, ...]]] = {
    "SIGKILL": (kill, ()),
    "SIGSEGV, job torn down": (crash, ("--teardown", "torchrun", "--grace", "1")),
    "SIGTERM for one rank": (terminate, ()),
    "OOM killer": (grow, ()),
}


def latency() -> None:
    """From the death to the notification, by cause, with the shipped scrape jobs, rules and routes."""
    print("| cause | exit status from | notified | p50 | max |\n|---|---|---|---|---|")
    for ioctl in (True, False):
        for cause, seconds in latencies(ioctl).items():
            source = "PIDFD_GET_INFO" if ioctl else "/proc"
            numbers = f"{statistics.median(seconds):.0f} s | {max(seconds):.0f} s" if seconds else "- | -"
            print(f"| {cause} | {source} | {len(seconds)} of {REPEATS} | {numbers} |")


def latencies(ioctl: bool) -> dict[str, list[float]]:
    """Return seconds to the page by cause; jobs of two ranks on two nodes, one accident after the other."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.ExitStack() as stack,
        site(Path(folder), 2, AS_IF_LARGE_AND_OLD, ioctl=ioctl) as here,
    ):
        jobs: dict[str, tuple[str, Any]] = {}
        for cause, (_, options) in CAUSES.items():
            for number in range(REPEATS):
                job_id = f"{cause.split()[0].strip(',')}-{number}".lower()
                arguments = (here.cluster, job_id, here.cluster.nodes, 2)
                if cause == "OOM killer":
                    job: Any = QuietJob(*arguments, stack.enter_context(small_group()))
                else:
                    job = ClusterJob(*arguments, "--records-per-second", "5", "--grace", "1", *options)
                stack.enter_context(job)
                jobs[job_id] = cause, job
        for _, job in jobs.values():
            here.wait_until_seen(job)
        happened: dict[str, float] = {}
        for job_id, (cause, job) in jobs.items():
            happened[job_id] = time.time()
            CAUSES[cause][0](job)
            time.sleep(STAGGER_SECONDS)
        deadline = time.time() + LATENCY_SECONDS
        while time.time() < deadline and not all(here.pages(job_id) for job_id in jobs):
            time.sleep(1.0)
        found: dict[str, list[float]] = {cause: [] for cause in CAUSES}
        for job_id, (cause, _) in jobs.items():
            found[cause] += [page.time - happened[job_id] for page in here.pages(job_id)[:1]]
        return found


def fleet() -> None:
    """A thousand nodes of eight ranks in one Prometheus."""
    print("| what | measured |\n|---|---|")
    for what, measured in measure_fleet():
        print(f"| {what} | {measured} |")


if __name__ == "__main__":
    for name in sys.argv[1:] or ("fleet", "ends", "latency"):
        print(f"\n## {name}\n", flush=True)
        {"fleet": fleet, "ends": ends, "latency": latency}[name]()
