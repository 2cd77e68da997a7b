"""Runs a hostile user next to another user's job for hours, with one agent; prints growth, losses and refusals.

sudo .venv/bin/python tests/bench/soak_neighbours.py [MINUTES]

The victim's job runs throughout. The other user ends a job per second, makes and removes invalid record files, and
keeps 40 connections that request changing selections. Every five minutes the agent reloads; every ten a helper is
killed, as by the OOM killer; every seven the agent's wall clock jumps by an hour; in the middle the file system of the
agent's checkpoint is full for a minute. Every 5 s the agent gets the queries of both shipped scrape jobs. The slopes
are those of a line through the second half's values."""

from __future__ import annotations

import os
import signal
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "e2e"), str(ROOT / "tests" / "bench")]

from agents import Agent  # noqa: E402  # after the change of the path
from neighbours import AGENT, MALLORY, SharedNode, end, operations, shared_node  # noqa: E402  # likewise
from users import as_user  # noqa: E402  # likewise

SCRAPES = ("?collect[]=liveness", "?exclude[]=liveness")
FLOOD = """
import asyncio, random, sys
NAMES = "liveness ranks health jobs job_log evidence inspector process ras nvml rdma netdev storage agent".split()
async def ask():
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]))
            for _ in range(20):
                word = random.choice(["collect[]", "exclude[]", "name[]"])
                query = "&".join(f"{word}={name}" for name in random.sample(NAMES, 4))
                gzip = random.choice(["gzip", "identity"])
                head = f"GET /metrics?{query} HTTP/1.1\\r\\nHost: a\\r\\nAccept-Encoding: {gzip}\\r\\n\\r\\n"
                writer.write(head.encode())
                await asyncio.wait_for(reader.read(1 << 20), 5)
                await asyncio.sleep(0.2)
            writer.close()
        except (OSError, asyncio.TimeoutError):
            await asyncio.sleep(1)
async def main():
    asking = [asyncio.create_task(ask()) for _ in range(40)]
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for task in asking:
        task.cancel()
asyncio.run(main())
"""


STEP = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
static volatile long *step;
__attribute__((constructor)) static void start(void) {
    int file = open(getenv("STEP_FILE"), O_RDONLY);
    step = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (clock == CLOCK_REALTIME && step && step != MAP_FAILED) now->tv_sec += *step;
    return result;
}
"""
"""A library that adds the seconds in STEP_FILE to the wall clock of the program that loads it."""
ODD = (b"", b"\0" * 4096, b"{" * 3000, b'{"header":{}}\n' * 100)


class Scrapes(threading.Thread):
    """Scrapes as shipped, every 5 s; records their seconds and refusals."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(daemon=True)
        self.agent = agent
        self.seconds: list[float] = []
        self.refused: list[str] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(5.0):
            for query in SCRAPES:
                began = time.monotonic()
                try:
                    status = str(self.agent.get(f"/metrics{query}", timeout=4.0).status)
                except OSError as error:
                    status = str(error)
                self.seconds.append(time.monotonic() - began)
                if status != "200":
                    self.refused.append(status)


def churn(node: SharedNode, over: threading.Event) -> None:
    """End a job of one rank per second, and make and remove invalid files."""
    number = 0
    while not over.wait(0.5):
        number += 1
        rank = node.rank(MALLORY, (9, 11, 15)[number % 3], SLURM_JOB_ID=f"9{number}", RANK="0", WORLD_SIZE="1")
        path = node.logs / "mallory" / f"{os.uname().nodename}-pid{number}.log"
        path.write_bytes(ODD[number % len(ODD)])
        os.chown(path, MALLORY, MALLORY)
        (node.logs / "mallory" / f"{os.uname().nodename}-pid{number - 2000}.log").unlink(missing_ok=True)
        over.wait(0.5)
        end(rank)
        node._programs.remove(rank)  # it has ended
        for pipe in (rank.stdin, rank.stdout):
            assert pipe is not None
            pipe.close()


def disturb(agent: Agent, node: SharedNode, minute: int, middle: int) -> None:
    """In certain minutes, reload the agent, kill its helper, set its wall clock, or fill its disk."""
    if minute % 5 == 1:
        agent.signal(signal.SIGHUP)
    if minute % 10 == 2:
        for helper in psutil.Process(agent.pid()).children(recursive=True)[:1]:
            helper.kill()
    if minute % 7 == 1:
        with (node.directory / "step").open("r+b") as file:
            file.write(struct.pack("l", (3600, 0, -3600, 0)[minute // 7 % 4]))
    if minute in (middle, middle + 1):
        fill = "cat /dev/zero >$0" if minute == middle else "rm $0"
        node.node.popen(["sh", "-c", fill, f"{state(node)}/ballast"], stderr=subprocess.DEVNULL).wait(30.0)


@contextmanager
def stepped_clock(node: SharedNode) -> Iterator[None]:
    """Give programs that start in this context a wall clock that ``disturb`` can change."""
    library, step = node.directory / "step.so", node.directory / "step"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=STEP.encode(), check=True)
    step.write_bytes(bytes(8))
    for path in (library, step):
        path.chmod(0o755)
    os.environ |= {"LD_PRELOAD": str(library), "STEP_FILE": str(step)}
    yield
    for name in ("LD_PRELOAD", "STEP_FILE"):
        del os.environ[name]


def state(node: SharedNode) -> Path:
    """Return the directory of the agent's checkpoint."""
    return node.directory / "home" / "state"


def look(agent: Agent, scrapes: Scrapes) -> dict[str, float]:
    """Return the agent's resource usage, and the scrape times since the last call."""
    process = psutil.Process(agent.pid())
    recent, scrapes.seconds = sorted(scrapes.seconds), []
    return {
        "RSS MiB": process.memory_info().rss / 2**20,
        "helpers MiB": sum(each.memory_info().rss for each in process.children(recursive=True)) / 2**20,
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "series": sum(line[:1] not in ("", "#") for line in agent.page().splitlines()),
        "scrape p50 ms": 1000 * recent[len(recent) // 2] if recent else 0.0,
        "scrape max ms": 1000 * max(recent, default=0.0),
        "refused": len(scrapes.refused),
    }


def slope(minutes: list[float], values: list[float]) -> float:
    """Return a value's growth per hour, by a line through its points."""
    return 60 * statistics.linear_regression(minutes, values).slope if len(values) > 2 else 0.0


def main(minutes: int) -> None:
    """Run, and print a line each minute, the slopes and the losses."""
    with shared_node() as node:
        state(node).mkdir()
        node.node.popen(["mount", "-t", "tmpfs", "-o", f"size=16m,uid={AGENT}", "none", str(state(node))]).wait(10.0)
        over = threading.Event()
        try:
            with ExitStack() as stack:
                with stepped_clock(node):
                    agent = stack.enter_context(node.agent(storage={"paths": [str(node.logs)]}))
                job = stack.enter_context(node.victim())
                scrapes = Scrapes(agent)
                scrapes.start()
                threading.Thread(target=churn, args=(node, over), daemon=True).start()
                node.start([*as_user(MALLORY), sys.executable, "-c", FLOOD, str(agent.port)], {})
                looks: list[dict[str, float]] = []
                began = time.monotonic()
                for minute in range(minutes):
                    disturb(agent, node, minute, minutes // 2)
                    time.sleep(max(0.0, began + 60 * (minute + 1) - time.monotonic()))
                    looks.append({"minute": minute, **look(agent, scrapes)})
                    print({key: round(value, 1) for key, value in looks[-1].items()}, flush=True)
                over.set()
                scrapes.over.set()
                for pid in range(4):
                    job.kill(job.pid(pid), signal.SIGSTOP)
                time.sleep(30.0)
                shown, written = operations(agent, node.logs / "victim")
                print(f"operations written {written}, shown {shown:.0f}, lost {written - shown:.0f}")
                print(f"scrapes refused or failed: {len(scrapes.refused)} {scrapes.refused[:10]}")
                half = looks[len(looks) // 2 :]
                for key in looks[0]:
                    values = [each[key] for each in half]
                    grows = slope([each["minute"] for each in half], values)
                    print(f"{key}: most {max(values):.1f}, {grows:+.1f} an hour in the second half")
                print(f"lines in the agent's log: {agent.log().count(chr(10))}")
                node.close()
        finally:
            over.set()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 120)
