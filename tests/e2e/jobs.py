"""A simulated job under test: starts the launcher, follows its events, and stops all its processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nodes import Closing, Node, wait_until

ROOT = Path(__file__).resolve().parents[2]
LEAVE_SECONDS = 10.0


class SimulatedJob(Closing):
    """One launcher and its ranks, on this machine or in ``node``; pids are those on that machine.

    ``env`` is added to the launcher's environment, as by a batch script; ``launch`` comes before its command line;
    ``root`` has the agent's packages. A context manager; ``close`` cancels the rest of the job and waits for it."""

    def __init__(
        self,
        job_dir: Path,
        *options: str,
        node: Node | None = None,
        env: Mapping[str, str] | None = None,
        launch: Sequence[str] = (),
        root: Path = ROOT,
    ) -> None:
        self.job_dir = job_dir
        self.dump_dir = job_dir / "inspector"
        self.events: list[dict[str, Any]] = []
        self._node = node
        argv = [*launch, sys.executable, "-B", "-m", "agent.simulate", "--job-dir", str(job_dir), *options]
        popen: Callable[..., subprocess.Popen[str]] = node.popen if node else subprocess.Popen
        environment = {**os.environ, "PYTHONPATH": str(root), **(env or {})}
        self.process = popen(argv, stdout=subprocess.PIPE, text=True, env=environment)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait_for(self, event: str, seconds: float = 15.0, **facts: Any) -> dict[str, Any]:
        """Wait for an event with these facts and return it; raises AssertionError."""

        def matching() -> dict[str, Any] | None:
            wanted = {"event": event, **facts}.items()
            return next((reported for reported in self.events if wanted <= reported.items()), None)

        return dict(wait_until(matching, seconds, f"event {event} {facts} (seen: {self.events})"))

    def pid(self, rank: int) -> int:
        """Return the pid of the process whose first rank is ``rank``."""
        return int(self.wait_for("started", rank=rank)["pid"])

    def exits(self) -> dict[int, int | str]:
        """Return how each exited rank ended: its exit status or the signal's name."""
        exits = [event for event in self.events if event["event"] == "exited"]
        return {exited["rank"]: exited.get("signal", exited.get("code")) for exited in exits}

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to a process on the job's machine."""
        (self._node.kill if self._node else os.kill)(pid, number)

    def signal_launcher(self, number: int) -> None:
        self.kill(self.wait_for("launcher")["pid"], number)

    def wait(self, seconds: float = 20.0) -> int:
        """Wait for the launcher's end and return its exit code, once all its events are read."""
        code = self.process.wait(seconds)
        self._reader.join(seconds)
        return code

    def close(self) -> None:
        """Stop the job, and kill it if necessary."""
        if self.process.poll() is None:
            try:
                self.signal_launcher(signal.SIGTERM)
                self.process.wait(LEAVE_SECONDS)
            except (AssertionError, ProcessLookupError, subprocess.TimeoutExpired):
                self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))
