"""An agent with TLS and a password: scraped by a real Prometheus, among clients that are silent or guess passwords."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import bcrypt
import pytest
from agents import Agent
from full import full
from nodes import wait_until
from prometheus import Prometheus, prometheus_binaries, why_no_prometheus

DATA = Path(__file__).parents[1] / "data" / "web"
SILENT = 2000
GUESSES_PER_SECOND = 200
SCRAPE_SECONDS = 1.0
PASSWORD = "correct horse"  # noqa: S105  # the test's own
CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: rankwatch
    scheme: https
    tls_config: {{ca_file: {data}/ca.pem, cert_file: {data}/scraper.pem, key_file: {data}/scraper.key}}
    basic_auth: {{username: prom, password: "{password}"}}
    static_configs: [{{targets: ["localhost:{port}"]}}]
"""

BUNDLE = "7-20231114T221320Z-n1.tar.gz"
AS_SYSTEMD = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.argv[2], sys.argv[2:])
"""

pytestmark = [
    pytest.mark.skipif(why_no_prometheus() is not None, reason=why_no_prometheus() or ""),
    pytest.mark.timeout(180),
]


class SecuredAgent(Agent):
    """An agent that the test queries over TLS with a certificate and a password."""

    def _is_ready(self) -> bool:
        return self._process is not None and self._process.poll() is None and self.ask("/-/ready") == 200

    def ask(self, path: str, password: str = PASSWORD, name: str = "scraper", times: int = 1) -> int:
        """Return the status of the last of ``times`` replies; 0 without a reply."""
        context = ssl.create_default_context(cafile=DATA / "ca.pem")
        if name:
            context.load_cert_chain(DATA / f"{name}.pem", DATA / f"{name}.key")
        connection = http.client.HTTPSConnection("localhost", self.port, timeout=5, context=context)
        said = base64.b64encode(f"prom:{password}".encode()).decode()
        status = 0
        try:
            for _ in range(times):
                connection.request("GET", path, headers={"Authorization": f"Basic {said}"})
                answer = connection.getresponse()
                answer.read()
                status = answer.status
            return status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[SecuredAgent]:
    """Provide an agent that requires a certificate of prometheus.example and a password."""
    for path in DATA.glob("*.*"):
        shutil.copy(path, tmp_path)
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(10)).decode()
    tls = {
        "cert_file": "server.pem",
        "key_file": "server.key",
        "client_ca_file": "ca.pem",
        "client_auth_type": "RequireAndVerifyClientCert",
        "client_allowed_sans": ["prometheus.example"],
    }
    file = tmp_path / "web.yml"
    file.write_text(json.dumps({"tls_server_config": tls, "basic_auth_users": {"prom": hashed}}))
    sections = {
        "inspector": {"paths": [str(tmp_path / "none")]},
        "evidence": {"path": str(tmp_path / "evidence"), "serve": True},
    }
    config = {"exporters": sections}
    with SecuredAgent(tmp_path, config, flags=("--web.config.file", str(file))) as agent:
        yield agent


@pytest.mark.parametrize("binary", prometheus_binaries())
def test_prometheus_scrapes_with_certificate_and_password(agent: SecuredAgent, tmp_path: Path, binary: str) -> None:
    """Prometheus needs both the certificate and the password."""
    config = CONFIG.format(data=DATA, password=PASSWORD, port=agent.port)
    with Prometheus(tmp_path / "prometheus", config, binary) as prometheus:
        wait_until(lambda: prometheus.value('up{job="rankwatch"}') == 1, 20, "a scrape")
    assert agent.ask("/metrics") == 200
    assert agent.ask("/metrics", "wrong") == 401
    assert agent.ask("/metrics", name="other") == 0
    assert agent.ask("/metrics", name="") == 0


def test_bundles_are_given_to_who_may_read(agent: SecuredAgent, tmp_path: Path) -> None:
    """With certificate and password the agent serves a bundle by its name, and no other file."""
    wait_until((tmp_path / "evidence").is_dir, 20, "the directory of bundles")
    (tmp_path / "evidence" / BUNDLE).write_bytes(b"packed")
    (tmp_path / "evidence" / "secret").write_bytes(b"other")
    assert agent.ask(f"/evidence/{BUNDLE}") == 200
    assert agent.ask(f"/evidence/{BUNDLE}", "wrong") == 401
    assert agent.ask(f"/evidence/{BUNDLE}", name="") == 0
    for path in ("secret", "../web.yml", "..%2Fweb.yml", f"../evidence/{BUNDLE}", "", "."):
        assert agent.ask(f"/evidence/{path}") == 404


@full
def test_silent_clients_and_wrong_passwords(agent: SecuredAgent, tmp_path: Path) -> None:
    """With 2,000 silent clients and 200 wrong passwords a second every scrape takes less than a second."""
    config = CONFIG.format(data=DATA, password=PASSWORD, port=agent.port)
    stop = threading.Event()

    guesses: list[int] = []
    begun = time.monotonic()

    def guess() -> None:
        while not stop.is_set():
            guesses.append(agent.ask("/metrics", f"guess {len(guesses)}", times=GUESSES_PER_SECOND // 2))
            stop.wait(max(0.0, begun + 0.5 * len(guesses) - time.monotonic()))  # the test is about this rate

    with Prometheus(tmp_path / "prometheus", config) as prometheus, contextlib.ExitStack() as clients:
        wait_until(lambda: prometheus.value('up{job="rankwatch"}') == 1, 20, "a scrape")
        for _ in range(SILENT):
            clients.enter_context(contextlib.closing(socket.create_connection(("localhost", agent.port))))
        guesser = threading.Thread(target=guess)
        begun = time.monotonic()
        guesser.start()
        before = time.time()
        wait_until(lambda: time.time() > before + 20, 30, "twenty scrapes")
        stop.set()
        guesser.join()
        rate = len(guesses) * GUESSES_PER_SECOND // 2 / (time.monotonic() - begun)
        lost = prometheus.value('count_over_time((up{job="rankwatch"} == 0)[20s:1s])')
        slowest = prometheus.value('max_over_time(scrape_duration_seconds{job="rankwatch"}[20s])')
    assert (lost or 0, (slowest or 9) <= SCRAPE_SECONDS) == (0, True), (lost, slowest)
    print(f"slowest scrape {slowest:.3f} s among {rate:.0f} guesses a second")  # noqa: T201
    assert 429 in guesses
    assert rate > GUESSES_PER_SECOND * 0.75, rate  # a busy machine makes fewer attempts


def test_a_mistake_at_the_start(tmp_path: Path) -> None:
    """An agent does not start with an unusable web file; the start and `--check-config` give the reason."""
    file = tmp_path / "web.yml"
    file.write_text("basic_auth_users: {prom: secret}")
    for more in ((), ("--check-config",)):
        command = [sys.executable, "-m", "agent", "--web.config.file", str(file), *more]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30, env={**os.environ})
        assert done.returncode == 2
        assert "'prom' has no bcrypt hash" in done.stderr


def test_a_restart_refuses_no_process(tmp_path: Path) -> None:
    """With systemd's socket a restart of the agent refuses no connection."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        command = [sys.executable, "-c", AS_SYSTEMD, str(held.fileno())]
        config = tmp_path / "r.yml"
        config.write_text(json.dumps({"state": {"path": ""}, "exporters": {"inspector": {"paths": [str(tmp_path)]}}}))
        command += [sys.executable, "-m", "agent", "--web.systemd-socket", "--config.file", str(config)]

        def ask(connection: http.client.HTTPConnection) -> int:
            return connection.getresponse().status

        for _ in range(2):
            waiting = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            waiting.request("GET", "/-/healthy")  # no process accepts the connection yet
            with subprocess.Popen(command, pass_fds=[held.fileno()], env={**os.environ}) as process:
                assert ask(waiting) == 200
                waiting.close()
                process.terminate()
                assert process.wait(10) == 0
