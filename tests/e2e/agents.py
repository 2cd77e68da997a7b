"""The agent under test: a separate process, queried over HTTP as by Prometheus."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jobs import ROOT
from nodes import Closing, Node, Reply, wait_until
from ports import free_port
from prometheus_client.parser import text_string_to_metric_families

from agent.ranks import families as rank_families, liveness_families

READY_SECONDS = 30.0
STOP_SECONDS = 5.0
"""Longest time of an orderly stop."""
WAIT_SECONDS = 10.0
JOB_FAMILIES = {family.name: family.labels for family in liveness_families.FAMILIES}
RANK_FAMILIES = {family.name: family.labels for family in rank_families.FAMILIES}
_TRACEBACK = re.compile(r"^Traceback ", re.MULTILINE)  # of an uncaught error; a log field has it inside a line


class Series(NamedTuple):
    """One sample of a page."""

    labels: dict[str, str]
    value: float


class Agent(Closing):
    """An agent with ``config``, on this machine or in ``node``. ``directory`` has its files, and can have a checkpoint.

    The agent listens on ``host``, which must include the loopback. ``flags`` and ``env`` are added to its command line
    and environment; ``command`` starts it. With a ``job_id``, queries about ranks and jobs only cover that job, because
    the machine may run other jobs. A context manager: at the end it stops the agent, which must exit with status 0
    (unless the test killed or stopped it before) and leave no traceback."""

    def __init__(
        self,
        directory: Path,
        config: Mapping[str, Any],
        *,
        job_id: str | None = None,
        node: Node | None = None,
        host: str = "127.0.0.1",
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        command: Sequence[str] = (sys.executable, "-m", "agent"),
        root: Path = ROOT,
    ) -> None:
        self.port = free_port()
        self._host = host
        self.job_id = job_id
        self.config_path = directory / "rankwatch.yml"
        self.state_path = directory / "state" / "checkpoint"
        self._log_path = directory / "agent.log"
        self._node = node
        self._argv = [*command, "--config.file", str(self.config_path), *flags]
        self._env = {**os.environ, "PYTHONPATH": str(root), **(env or {})}
        self._process: subprocess.Popen[Any] | None = None
        self.configure(config)
        try:
            self.start()
        except AssertionError:
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            raise

    def close(self) -> None:
        try:
            if self._process is not None:
                assert self.stop() == 0, self.log()
            assert not _TRACEBACK.search(self.log()), self.log()
        finally:
            if self._process is not None:
                self._process.kill()
                self._process.wait()

    # -- its life --------------------------------------------------------------------------------------------------

    def configure(self, config: Mapping[str, Any]) -> None:
        """Write ``config`` without a reload; add an address and a state path if they are missing."""
        whole: dict[str, Any] = {
            "web": {"listen_address": f"{self._host}:{self.port}"},
            "state": {"path": str(self.state_path)},
            **config,
        }
        draft = self.config_path.with_suffix(".draft")
        draft.write_text(json.dumps(whole, indent=1))  # JSON is YAML
        draft.replace(self.config_path)

    def start(self) -> None:
        """Start the process and wait until it is ready."""
        popen: Callable[..., subprocess.Popen[Any]] = self._node.popen if self._node else subprocess.Popen
        with self._log_path.open("a") as log:
            self._process = popen(self._argv, env=self._env, stdout=subprocess.DEVNULL, stderr=log)
        wait_until(self._is_ready, READY_SECONDS, "the agent's readiness")

    def kill9(self) -> None:
        """Kill the agent, as the OOM killer would."""
        assert self._process is not None
        self.signal(signal.SIGKILL)
        self._process.wait()
        self._process = None

    def went_with_its_node(self) -> None:
        """Wait for the end of the agent's process, whose node was closed."""
        assert self._process is not None
        self._process.wait(STOP_SECONDS)
        self._process = None

    def restart(self) -> None:
        """Stop the agent if it runs, and start it again."""
        if self._process is not None:
            assert self.stop() == 0
        self.start()

    def stop(self, seconds: float = STOP_SECONDS) -> int:
        """Stop the agent and return its exit status; raises TimeoutExpired after ``seconds``."""
        assert self._process is not None
        self.signal(signal.SIGTERM)
        code = self._process.wait(seconds)
        self._process = None
        return code

    def signal(self, number: int) -> None:
        os.kill(self.pid(), number)

    def reload(self) -> None:
        """Reload the configuration, and wait until the agent uses it; raises AssertionError."""
        before = self.reloads()
        self.signal(signal.SIGHUP)
        wait_until(lambda: self.reloads() > before, WAIT_SECONDS, "the reload")

    def reloads(self) -> int:
        """Return the number of reloads in the agent's log."""
        return self.log().count('"configuration reloaded"')

    def saved_at(self) -> float:
        """Return the time of the last checkpoint (s since the epoch), 0 without one."""
        return self.state_path.stat().st_mtime if self.state_path.exists() else 0.0

    def pid(self) -> int:
        """Return the agent's pid on this machine."""
        assert self._process is not None
        if self._node is None:
            return self._process.pid
        nsenter = self._process.pid  # nsenter forks the program into the pid namespace
        return int(Path(f"/proc/{nsenter}/task/{nsenter}/children").read_text().split()[0])

    def log(self) -> str:
        """Return the agent's standard error since its first start."""
        return self._log_path.read_text()

    def named(self, job_id: str | None = None) -> list[dict[str, str]]:
        """Return the fields (named_by, proof ...) of the last log line about each rank of a job; wait for this line."""

        def found() -> list[dict[str, str]]:
            lines = [line for line in self.log().splitlines() if " runs, pid " in line]
            fields = [dict(word.partition("=")[::2] for word in shlex.split(line)) for line in lines]
            ours = [field for field in fields if field["job_id"] == (job_id or self.job_id or field["job_id"])]
            return list({our["rank"]: our for our in ours}.values())

        wait_until(lambda: found() != [], WAIT_SECONDS, "a rank's log line")
        return found()

    # -- what it shows ---------------------------------------------------------------------------------------------

    def looked_at(self, exporter: str) -> float:
        """Return the time of an exporter's last successful update (s since the epoch), 0 without one."""
        exporters = json.loads(self.get("/api/v1/ranks").body)["exporters"]
        return float(next((each["last_success_seconds"] for each in exporters if each["name"] == exporter), None) or 0)

    def get(self, path: str, timeout: float = 5.0) -> Reply:
        """Return the reply to a GET; raises OSError without one."""
        if self._node is not None:
            return self._node.curl(self.port, path, timeout=timeout)
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}{path}", timeout=timeout
            ) as answer:  # always http
                return Reply(answer.status, dict(answer.headers), answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, dict(error.headers), error.read().decode())

    def page(self, query: str = "") -> str:
        """Return the metrics page; raises AssertionError without one."""
        reply = self.get("/metrics" + query)
        assert reply.status == 200, reply
        return reply.body

    def samples(self, name: str, **labels: str) -> list[Series]:
        """Return the series ``name`` that have ``labels``."""
        own = JOB_FAMILIES.get(name) or RANK_FAMILIES.get(name)
        if own is None:
            return select(self.page(), name, **labels)
        if self.job_id is not None and "job_id" in own:
            labels = {"job_id": self.job_id, **labels}
        return select(self.page(f"?collect[]={'liveness' if name in JOB_FAMILIES else 'ranks'}"), name, **labels)

    def value(self, name: str, **labels: str) -> float | None:
        """Return the value of the only series with ``labels``, or None."""
        samples = self.samples(name, **labels)
        assert len(samples) <= 1, samples
        return samples[0].value if samples else None

    def wait_for(self, name: str, value: float | None, *, seconds: float = WAIT_SECONDS, **labels: str) -> float:
        """Wait until the only series with ``labels`` has ``value`` (None: is absent); return the seconds it took."""
        began = time.monotonic()
        seen: list[float | None] = [None]

        def reached() -> bool:
            seen[0] = self.value(name, **labels)
            return seen[0] == value

        try:
            wait_until(reached, seconds, f"{name} {labels} = {value}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {seen[0]}\n{self.log()[-3000:]}") from None
        return time.monotonic() - began

    def states(self, **labels: str) -> dict[str, str]:
        """Return the state of each rank; exactly one state is set for each rank."""
        set_ = [sample.labels for sample in self.samples("rankwatch_rank_state", **labels) if sample.value == 1]
        states = {each["rank"]: each["state"] for each in set_}
        assert len(states) == len(set_), set_
        return states

    def wait_for_states(self, wanted: Mapping[str, str], seconds: float = WAIT_SECONDS, **labels: str) -> float:
        """Wait until the ranks have exactly these states; return the seconds it took."""
        began = time.monotonic()
        seen: list[Mapping[str, str]] = [{}]

        def reached() -> bool:
            seen[0] = self.states(**labels)
            return seen[0] == wanted

        try:
            wait_until(reached, seconds, f"states {wanted}")
        except AssertionError as error:
            raise AssertionError(f"{error}; they are {seen[0]}\n{self.log()[-3000:]}") from None
        return time.monotonic() - began

    def ending(self, rank: str) -> tuple[str, str, str] | None:
        """Return reason, signal and code of an exited rank, or None."""
        samples = self.samples("rankwatch_rank_exit_info", rank=rank)
        assert len(samples) <= 1, samples
        labels = samples[0].labels if samples else None
        return None if labels is None else (labels["reason"], labels["signal"], labels["code"])

    def wait_for_ending(self, rank: str, wanted: tuple[str, str, str], seconds: float = WAIT_SECONDS) -> float:
        """Wait until the rank has exited in this way; return the seconds it took."""
        began = time.monotonic()
        wait_until(lambda: self.ending(rank) == wanted, seconds, f"rank {rank}: {wanted}")
        return time.monotonic() - began

    def _is_ready(self) -> bool:
        assert self._process is not None
        if (code := self._process.poll()) is not None:
            self._process = None
            raise AssertionError(f"the agent left with {code}: {self.log()}")
        try:
            return self.get("/-/ready").status == 200
        except OSError:
            return False


def select(page: str, name: str, **labels: str) -> list[Series]:
    """Return the series ``name`` of ``page`` that have ``labels``."""
    return [
        Series(sample.labels, sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
