"""A user who scrapes continuously, next to Prometheus; server, pages, registry and sockets are real."""

import asyncio
import gzip
import http.client
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml
from web_log import WebLog

from agent.core.log import Logger
from agent.core.metrics import Family, Metric
from agent.core.threads import OwnThread
from agent.export.registry import Registry
from agent.web.handlers import Pages
from agent.web.listen import ListenAddress, open_listeners
from agent.web.server import WebServer

JOBS = yaml.safe_load((Path(__file__).parents[2] / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
QUERIES = [f"?{urlencode(job['params'], doseq=True)}" for job in JOBS if job["job_name"].startswith("rankwatch")]
LIVENESS = JOBS[0]["params"]["collect[]"]
SCRAPE_TIMEOUT_SECONDS = float(JOBS[0]["scrape_timeout"].removesuffix("s"))
OTHERS = [f"source{number}" for number in range(15)]
ACCEPT = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.4,*/*;q=0.1"
SERIES = 500
SCRAPES = 100
OTHER_UID = 1234
HOSTILE = Path(__file__).with_name("hostile_scrapes.py")


async def evidence_files(_name: str) -> bytes | None:
    """Return no file."""
    return None


class Source:
    """One of 20 sources with 500 series each."""

    series_cap = 10_000

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        family = Family(f"rankwatch_{number}", "gauge", "help", ("rank", "device"))
        self.metric = Metric(family, [(str(number), f"mlx5_{number}") for number in range(SERIES)], [1.5] * SERIES)

    def shown(self) -> bool:
        return True

    def snapshot(self) -> object:
        return None

    def families(self, _snapshot: Any) -> Iterable[Metric]:
        yield self.metric


class Agent:
    """The server with the registry."""

    def __init__(self) -> None:
        self.thread = OwnThread("render")
        names = [*LIVENESS, *OTHERS]
        sources = [Source(name, number) for number, name in enumerate(names)]
        self.registry = Registry(lambda: sources, Logger("test"), self.thread)
        self.pages = Pages(
            self.registry.render, lambda: frozenset(names), lambda: True, str, bytes, lambda: True, {}, evidence_files
        )
        self.log = WebLog()
        self.server = WebServer(self.pages, self.log)
        self.port = 0

    def scrape(self, query: str) -> tuple[int, bytes, float]:
        """Scrape as Prometheus does; return status, body and seconds. Blocks."""
        began = time.monotonic()
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            client.request("GET", f"/metrics{query}", headers={"Accept": ACCEPT, "Accept-Encoding": "gzip"})
            answer = client.getresponse()
            return answer.status, gzip.decompress(answer.read()), time.monotonic() - began
        finally:
            client.close()


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    """Provide an agent on a free port; a failure logged by the server fails the test."""
    made = Agent()
    [opened] = open_listeners(ListenAddress("127.0.0.1", 0))
    await made.server.listen([opened])
    made.port = opened.getsockname()[1]
    yield made
    await made.server.stop(5.0)
    made.thread.stop()
    assert made.log.faults == 0


@contextmanager
def attack(port: int) -> Iterator[None]:
    """Attack the agent as another user if possible; yield when every connection has sent its first query. Blocks."""
    uid = OTHER_UID if os.geteuid() == 0 else os.geteuid()
    command = [sys.executable, "-", str(port), str(uid), *LIVENESS, *OTHERS]
    with HOSTILE.open("rb") as program, subprocess.Popen(command, stdin=program, stdout=subprocess.PIPE) as attacker:
        try:
            assert attacker.stdout is not None
            assert attacker.stdout.readline() == b"all have asked\n"
            yield
        finally:
            attacker.kill()


@pytest.mark.slow
async def test_scrapes_are_answered_beside_a_user_who_scrapes_without_end(agent: Agent) -> None:
    """With 200 attacking connections, each of 100 scrapes gets the whole page within the shipped timeout."""

    def measure() -> tuple[list[bytes], list[tuple[int, bytes, float]]]:
        alone = [agent.scrape(query)[1] for query in QUERIES]
        with attack(agent.port):
            return alone, [agent.scrape(QUERIES[number % 2]) for number in range(SCRAPES)]

    alone, beside = await asyncio.to_thread(measure)
    assert {status for status, _, _ in beside} == {200}
    assert all(body == alone[number % 2] for number, (_, body, _) in enumerate(beside))
    assert max(seconds for _, _, seconds in beside) < SCRAPE_TIMEOUT_SECONDS
