"""Measures the cost and the speed of the whole agent; prints the tables of docs/benchmarks.md.

.venv/bin/python tests/bench/bench_agent.py [death] [load] [load10k] [scrape] [backlog]

Run on a quiet machine. Each figure is measured from outside: /proc of the agent's process, and HTTP."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import signal
import socket
import statistics
import sys
import tempfile
import time
import urllib.request
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "e2e"), str(ROOT)]

import psutil  # noqa: E402  # after the change of the path
from agents import Agent  # noqa: E402  # likewise
from inspector_lines import SOURCES, write_log  # noqa: E402  # likewise
from jobs import SimulatedJob  # noqa: E402  # likewise
from nodes import wait_until  # noqa: E402  # likewise

OPENMETRICS = {"Accept": "application/openmetrics-text;version=1.0.0", "Accept-Encoding": "gzip"}
"""The headers of Prometheus."""
SCRAPED_AS = {"OpenMetrics, gzip": OPENMETRICS, "OpenMetrics": {"Accept": OPENMETRICS["Accept"]}, "text": {}}
LIVENESS, REST = "?collect[]=liveness", "?exclude[]=liveness"
LOAD_SECONDS = 60.0
BENCH_JOB = "bench"
DEATHS = 40
SCRAPES = 40
BACKLOG_RECORDS = 262_500
"""Records per file; a file then has about 128 MB."""
BACKLOG_PAUSE_SECONDS = 0.25
"""Pause between two scrapes while the backlog is read: much shorter than in the shipped configuration."""
BACKLOG_SECONDS = 300.0
SETTLE_SECONDS = 65.0
"""The agent's start affects the loop lag for a minute, because the lag is the highest of the last minute."""
RECORD = (
    '{"header":{"id":"0x%x","comm_name":"bench","rank":%d,"n_ranks":%d,"nnodes":1},"metadata":{'
    '"inspector_output_format_version":"v4.0","git_rev":"","rec_mechanism":"nccl_profiler_interface",'
    '"dump_timestamp_us":%d,"hostname":"%s","pid":%d},"coll_perf":{"coll":"%s","coll_sn":%d,'
    '"coll_msg_size_bytes":%d,"coll_exec_time_us":100,"coll_timing_source":"kernel_gpu",'
    '"coll_algobw_gbs":1.000000,"coll_busbw_gbs":1.000000}}\n'
)
COLLECTIVES = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce")


class MeasuredAgent(Agent):
    """An agent that reads the Inspector files in ``records``, with the unit's settings of malloc."""

    def __init__(self, folder: Path) -> None:
        self.records = folder / "inspector"
        self.records.mkdir()
        super().__init__(
            folder,
            {"exporters": {"inspector": {"paths": [str(self.records)], "derived_series": True}}},
            flags=("--log.level", "warn"),
            env={"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "1048576"},
        )
        self.process = psutil.Process(self.pid())

    def fetch(self, path: str, headers: dict[str, str] | None = None) -> bytes:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers=headers or {})
        with urllib.request.urlopen(request, timeout=30) as answer:
            body: bytes = answer.read()
        return body

    def shows(self, line: str) -> bool:
        return line.encode() in self.fetch("/metrics?collect[]=ranks")

    def cpu_seconds(self) -> float:
        return float(sum(self.process.cpu_times()[:2]))

    def pss_megabytes(self) -> float:
        return float(self.process.memory_full_info().pss / 1e6)

    def peak_rss_megabytes(self) -> float:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024 / 1e6

    def total(self, name: str) -> float:
        return total(self.fetch("/metrics"), name)


def total(exposition: bytes, name: str) -> float:
    """Return the sum of a metric's series."""
    lines = exposition.decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


def death() -> None:
    """Measure the time from SIGKILL to the gauge's change, with a scraper that polls without pause."""
    times = []
    with tempfile.TemporaryDirectory() as folder, MeasuredAgent(Path(folder)) as agent:
        for turn in range(DEATHS // 8):
            name = f"bench-{turn}"
            options = ("--scheduler", "slurm", "--job-id", name, "--teardown", "none")
            with SimulatedJob(Path(folder) / name, *options) as job:
                wait_until(partial(agent.shows, f'rank_up{{job_id="{name}",rank="7"}} 1.0'), 20, "rank 7")
                for rank in range(8):
                    pid, down = job.pid(rank), f'rank_up{{job_id="{name}",rank="{rank}"}} 0.0'
                    began = time.monotonic()
                    os.kill(pid, signal.SIGKILL)
                    while not agent.shows(down):
                        pass
                    times.append(time.monotonic() - began)
    cuts = statistics.quantiles(times, n=100)
    print("| what | measured |")
    print("|---|---|")
    print(f"| death to gauge ({len(times)} kills) | p50 {cuts[49] * 1e3:.0f} ms, p99 {cuts[98] * 1e3:.0f} ms |")


def load(records_per_second: int = 1000) -> None:
    """Measure CPU and memory with records of 8 ranks, scraped as shipped: liveness every 5 s, the rest every 15 s."""
    with tempfile.TemporaryDirectory() as folder, MeasuredAgent(Path(folder)) as agent:
        rate = ("--records-per-second", str(records_per_second))
        options = (*rate, "--dump-dir", str(agent.records), "--scheduler", "slurm", "--job-id", BENCH_JOB)
        with SimulatedJob(Path(folder) / "job", *options):
            last = f'rank_up{{job_id="{BENCH_JOB}",rank="7"}} 1.0'
            wait_until(lambda: agent.shows(last), 20, "the last rank")
            time.sleep(10)
            cpu, records, began = (
                agent.cpu_seconds(),
                agent.total("rankwatch_inspector_records_total"),
                time.monotonic(),
            )
            for turn in range(int(LOAD_SECONDS / 5)):
                agent.fetch("/metrics" + LIVENESS, OPENMETRICS)
                if turn % 3 == 0:
                    agent.fetch("/metrics" + REST, OPENMETRICS)
                time.sleep(max(0.0, began + 5 * (turn + 1) - time.monotonic()))
            took = time.monotonic() - began
            arrived = (agent.total("rankwatch_inspector_records_total") - records) / took
            share = (agent.cpu_seconds() - cpu) / took
            lag, series = agent.total("rankwatch_event_loop_lag_seconds"), agent.total("rankwatch_exporter_series")
            asked = 8 * records_per_second
            print(f"| 8 ranks x {records_per_second:,} records/s, for a minute | |")
            print("|---|---|")
            print(f"| records read | {arrived:,.0f}/s, {arrived / asked:.1%} of those asked for |")
            print(f"| CPU | {share:.1%} of a core |")
            print(f"| memory, {series:.0f} series (PSS) | {agent.pss_megabytes():.1f} MB |")
            print(f"| event loop late, worst of the minute | {lag * 1e3:.1f} ms |")
        written, overflowed = job_records(Path(folder) / "job")
        wait_until(lambda: agent.total("rankwatch_inspector_records_total") >= written, 30, "the last record")
        read = agent.total("rankwatch_inspector_records_total")
        print(f"| all that the job wrote, and what its rings lost | {written:,}, {overflowed:,} |")
        print(f"| all that was read | {read:,.0f} |")


def job_records(job_dir: Path) -> tuple[int, int]:
    """Return how many records an ended job wrote, and how many its rings lost."""
    summaries = [json.loads(path.read_text()) for path in job_dir.glob("written-*.json")]
    written = sum(kind["records"] for summary in summaries for kind in summary["records"])
    return written, sum(summary["overflowed"] for summary in summaries)


def scrape() -> None:
    """Measure scrape time, CPU per scrape, loop lag and memory by number of series, with and without gzip."""
    print("| series | format | scrape | CPU per scrape | loop late, worst | PSS |")
    print("|---|---|---|---|---|---|")
    for writers, kinds in ((8, 26), (64, 36), (256, 46)):
        with tempfile.TemporaryDirectory() as folder, MeasuredAgent(Path(folder)) as agent:
            for writer in range(writers):
                write_records(agent.records, writer, kinds)
            wait_until(partial(agent.total, "rankwatch_collective_operations_total"), 60, "labels")
            time.sleep(SETTLE_SECONDS)
            for name, headers in SCRAPED_AS.items():
                times = []
                cpu = 0.0
                client = http.client.HTTPConnection("127.0.0.1", agent.port, timeout=30)  # reused, as by Prometheus
                for _ in range(SCRAPES):
                    before, began = agent.cpu_seconds(), time.monotonic()
                    client.request("GET", "/metrics", headers=headers)
                    client.getresponse().read()
                    times.append(time.monotonic() - began)
                    cpu += agent.cpu_seconds() - before
                    time.sleep(0.2)
                client.close()
                series, lag = agent.total("rankwatch_exporter_series"), agent.total("rankwatch_event_loop_lag_seconds")
                print(
                    f"| {series:.0f} | {name} | p50 {statistics.median(times) * 1e3:.0f} ms, "
                    f"max {max(times) * 1e3:.0f} ms | {cpu / SCRAPES * 1e3:.0f} ms | {lag * 1e3:.1f} ms "
                    f"| {agent.pss_megabytes():.1f} MB |",
                    flush=True,
                )


def backlog() -> None:
    """Measure how fast the agent reads 8 new files (a gigabyte in all), and how fast it replies meanwhile.

    The agent publishes once a second, which limits the accuracy of the time."""
    with tempfile.TemporaryDirectory() as folder, MeasuredAgent(Path(folder)) as agent:
        wait_until(lambda: b"rankwatch_inspector_lag_bytes 0" in agent.fetch("/metrics"), 15, "a look at no files")
        prepared = Path(folder) / "prepared"
        prepared.mkdir()
        hostname, size_bytes = socket.gethostname(), 0
        for number, source in enumerate(SOURCES):
            path = prepared / f"{hostname}-pid{100_000 + number}.log"
            size_bytes += write_log(path, source, BACKLOG_RECORDS, hostname=hostname)
        records = BACKLOG_RECORDS * len(SOURCES)
        time.sleep(SETTLE_SECONDS)
        lag_before = agent.total("rankwatch_event_loop_lag_seconds")
        cpu, began, times, lags, memory = agent.cpu_seconds(), time.monotonic(), [], [], []
        for path in prepared.iterdir():
            path.rename(agent.records / path.name)

        def all_is_read() -> bool:
            asked = time.monotonic()
            text = gzip.decompress(agent.fetch("/metrics", OPENMETRICS))
            times.append(time.monotonic() - asked)
            lags.append(total(text, "rankwatch_event_loop_lag_seconds"))
            memory.append(agent.pss_megabytes())
            time.sleep(BACKLOG_PAUSE_SECONDS)
            read, left = (total(text, f"rankwatch_inspector_{name}") for name in ("records_total", "lag_bytes"))
            return read >= records and left == 0

        wait_until(all_is_read, BACKLOG_SECONDS, "the end of the backlog")
        took, cpu = time.monotonic() - began, agent.cpu_seconds() - cpu
        wait_until(lambda: agent.total("rankwatch_collective_operations_total") == records, 30, "every operation")
        print(f"| backlog of {size_bytes / 1e6:,.0f} MB, {records:,} records in {len(SOURCES)} files | |")
        print("|---|---|")
        print(f"| read in | {took:.1f} s, {records / took / 1000:,.0f} k records/s |")
        print(f"| CPU, with the scrapes | {cpu:.1f} s, {records / cpu / 1000:,.0f} k records/s of a core |")
        median, longest = statistics.median(times), max(times)
        print(f"| {len(times)} scrapes meanwhile | p50 {median * 1e3:.0f} ms, max {longest * 1e3:.0f} ms |")
        print(f"| event loop late, worst (before: {lag_before * 1e3:.1f} ms) | {max(lags) * 1e3:.1f} ms |")
        print(f"| memory, peak | PSS {max(memory):.1f} MB, RSS {agent.peak_rss_megabytes():.1f} MB |")


def write_records(folder: Path, writer: int, kinds: int) -> None:
    """Write one record for each of ``kinds`` combinations of collective and size, as a writer on this host."""
    hostname, pid = socket.gethostname(), 100_000 + writer
    now = int(time.time() * 1e6)
    lines = [
        RECORD % (0xABC, writer, 1024, now, hostname, pid, COLLECTIVES[kind % 5], kind, 8192 * 4 ** (kind // 5))
        for kind in range(kinds)
    ]
    (folder / f"{hostname}-pid{pid}.log").write_text("".join(lines))


MEASURES = {"death": death, "load": load, "load10k": partial(load, 10_000), "scrape": scrape, "backlog": backlog}

if __name__ == "__main__":
    for name in sys.argv[1:] or ("death", "load", "scrape", "backlog"):
        MEASURES[name]()
