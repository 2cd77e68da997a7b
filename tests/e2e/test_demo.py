"""`scripts/run` as a new user runs it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from alerting import why_no_alertmanager
from nodes import wait_until
from prometheus import why_no_prometheus
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[2]
START_SECONDS = 120.0  # The first call makes the environment
STOP_SECONDS = 15.0
PAGE_SECONDS = 75.0
"""Time from a rank's death to its page: 15 s in which the other ranks live, the rules' time, and two group waits."""
NO_ALERTS = why_no_prometheus() or why_no_alertmanager()
RANKS = {str(rank) for rank in range(8)}


def ups(page: str, job_id: str) -> dict[str, float]:
    """Return rankwatch_rank_up of a job, by rank."""
    samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
    of_job = (sample for sample in samples if sample.labels.get("job_id") == job_id)
    return {sample.labels["rank"]: sample.value for sample in of_job if sample.name == "rankwatch_rank_up"}


class Demo:
    """`scripts/run --demo` on a free port, with its output in ``log``."""

    def __init__(self, log: Path, *options: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.log = log
        command = [ROOT / "scripts" / "run", "--demo", f"--web.listen-address={self.address}", *options]
        with log.open("w") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                cwd="/",
                start_new_session=True,
                preexec_fn=as_in_a_terminal,  # noqa: PLW1509  # no threads here
            )
        self.job_id = f"simulated-{self.process.pid}"

    def get(self, path: str = "/metrics") -> str:
        """Fetch a page; empty if no server answers."""
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def ups(self) -> dict[str, float]:
        """Return rankwatch_rank_up of the demo's job, by rank."""
        return ups(self.get(), self.job_id)

    def said(self, word: str) -> str:
        """Return the output after ``word``."""
        lines = self.log.read_text().splitlines()
        return next(line.removeprefix(word).strip() for line in lines if line.startswith(word))

    def group(self) -> list[int]:
        """Return the pids of the demo's processes, whose command lines contain its directory."""
        directory = str(Path(self.said("inspector:").split()[0]).parent)
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if directory in command_line(pid)]


def as_in_a_terminal() -> None:
    """Stop ignoring SIGINT, as background processes do: a shell cannot trap a signal ignored at its start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def command_line(pid: int) -> str:
    """Return a process's command line; empty if it has exited."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    """Provide a running demo, with all ranks up and bandwidths shown."""
    with under_way(tmp_path / "output") as running:
        yield running


@pytest.fixture
def demo_with_alerts(tmp_path: Path) -> Iterator[Demo]:
    """Provide a running demo with Prometheus and Alertmanager."""
    with under_way(tmp_path / "output", "--alerts") as running:
        yield running


@contextlib.contextmanager
def under_way(log: Path, *options: str) -> Iterator[Demo]:
    """Provide a demo with all ranks up and bandwidths shown."""
    running = Demo(log, *options)
    try:
        bandwidth = f'bus_bandwidth_bytes_per_second{{collective="AllReduce",comm="[0-9a-f]*",job_id="{running.job_id}"'
        wait_until(
            lambda: running.ups() == dict.fromkeys(RANKS, 1.0) and re.search(bandwidth, running.get()),
            START_SECONDS,
            "eight ranks with bandwidth",
        )
        yield running
    finally:
        if running.process.poll() is None:
            os.kill(running.process.pid, signal.SIGTERM)
            running.process.wait(STOP_SECONDS)


@pytest.mark.timeout(START_SECONDS + 60)
def test_demo_shows_a_killed_rank_and_leaves_nothing(demo: Demo) -> None:
    """The printed kill command ends one of eight ranks, `status` shows it, and Ctrl-C leaves no process and no file."""
    kill = demo.said("kill rank:")
    subprocess.run(["bash", "-c", kill], check=True, cwd=ROOT, timeout=30)
    wait_until(lambda: demo.ups() == {**dict.fromkeys(RANKS, 1.0), "3": 0.0}, 5.0, "the death of rank 3")
    labels = f'code="",job_id="{demo.job_id}",rank="3",reason="signaled",signal="SIGKILL"'
    wait_until(
        lambda: f"rankwatch_rank_exit_info{{{labels}}} 1.0" in demo.get("/metrics?collect[]=ranks"), 5.0, "how it ended"
    )
    processes, directory = demo.group(), Path(demo.said("inspector:").split()[0]).parent
    assert len(processes) >= 9 and directory.is_dir()
    os.killpg(demo.process.pid, signal.SIGINT)  # as a terminal does
    assert demo.process.wait(STOP_SECONDS) == 130, demo.log.read_text()[-2000:]
    wait_until(lambda: not demo.group(), 5.0, "the end of every process")
    assert not directory.exists()
    assert "Traceback" not in demo.log.read_text()


@pytest.mark.timeout(START_SECONDS + PAGE_SECONDS + 60)
@pytest.mark.skipif(NO_ALERTS is not None, reason=NO_ALERTS or "")
def test_demo_pages_for_a_killed_rank(demo_with_alerts: Demo) -> None:
    """With Prometheus and Alertmanager a killed rank is a page in the terminal, and Ctrl-C ends all programs."""
    demo = demo_with_alerts
    prometheus = demo.said("alerts:").split("http://")[1].split("/")[0]
    up = f"http://{prometheus}/api/v1/query?query=count(rankwatch_rank_up%7Bjob_id=%22{demo.job_id}%22%7D==1)"
    wait_until(lambda: '"8"]' in urllib.request.urlopen(up, timeout=5).read().decode(), 30.0, "eight ranks")
    subprocess.run(["bash", "-c", demo.said("kill rank:")], check=True, cwd=ROOT, timeout=30)
    page = f"PAGE: RankDead: Job {demo.job_id}: rank 3 on "
    wait_until(lambda: page in demo.log.read_text(), PAGE_SECONDS, "the page")
    assert "was killed (SIGKILL); 7 ranks still run" in demo.said(page)
    os.killpg(demo.process.pid, signal.SIGINT)  # as a terminal does
    assert demo.process.wait(STOP_SECONDS) == 130, demo.log.read_text()[-2000:]
    wait_until(lambda: not demo.group(), 5.0, "the end of every process")
    assert "Traceback" not in demo.log.read_text()


@pytest.mark.parametrize(
    ("word", "said"), [("--alerts", "run: --alerts needs --demo"), ("nope", "rankwatch: no command")]
)
def test_a_wrong_word(word: str, said: str) -> None:
    """`scripts/run` with `--alerts` and without `--demo`, or with an unknown command, prints one line."""
    done = subprocess.run([ROOT / "scripts" / "run", word], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode > 0, done.stdout, done.stderr[: len(said)], done.stderr.count("\n")) == (True, "", said, 1)


def test_the_second_call_is_quick() -> None:
    """Once the environment exists, the script only starts the program."""
    scripted = [ROOT / "scripts" / "run", "--version"]
    subprocess.run(scripted, check=True, capture_output=True, timeout=START_SECONDS)
    done = subprocess.run(scripted, check=True, capture_output=True, text=True, timeout=2)
    assert done.stdout.startswith("rankwatch ")
