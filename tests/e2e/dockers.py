"""A real docker daemon in a node, from unpacked packages of the distribution."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Self

from jobs import ROOT
from nodes import Node, wait_until

UNPACKED = ROOT / ".cache" / "docker" / "usr"
STOP_SECONDS = 30


def why_no_docker() -> str | None:
    """Return the reason to skip, or None."""
    programs = (UNPACKED / "sbin/dockerd", UNPACKED / "bin/docker", UNPACKED / "bin/containerd")
    return None if all(program.exists() for program in programs) else "no docker in .cache: scripts/test fetches it"


class Docker:
    """A daemon with its files in ``home``, without its own network. A context manager."""

    def __init__(self, node: Node, home: Path) -> None:
        home.mkdir()
        self._node = node
        self._home = home
        path = f"{UNPACKED}/bin:{UNPACKED}/sbin:{os.environ['PATH']}"
        self.env = {**os.environ, "PATH": path, "DOCKER_HOST": f"unix://{home}/socket", "DOCKER_CONFIG": str(home)}

    def __enter__(self) -> Self:
        """Start the daemon; raises AssertionError if it does not reply."""
        self._log = (self._home / "log").open("wb")
        kept = [f"--{name}={self._home / name}" for name in ("data-root", "exec-root", "pidfile")]
        network = ["--iptables=false", "--ip6tables=false", "--bridge=none"]
        host = f"--host={self.env['DOCKER_HOST']}"
        command = ["dockerd", host, "--storage-driver=vfs", *kept, *network]
        self._daemon = self._node.popen(command, env=self.env, stdout=self._log, stderr=self._log)
        wait_until(lambda: self.run("info").returncode == 0, 60, f"docker ({self._home / 'log'})")
        return self

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run docker's client in the node."""
        return self._node.run([UNPACKED / "bin/docker", *arguments], timeout=120, env=self.env)

    def __exit__(self, *_: object) -> None:
        self._node.run(["kill", "-TERM", (self._home / "pidfile").read_text()])
        try:
            self._daemon.wait(STOP_SECONDS)
        finally:
            self._log.close()
