"""The ways to run the container on a node: the docs' command line, docker's unit, and podman's quadlet."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

from jobs import ROOT

PAGE = ROOT / "docs" / "containers.md"
UNIT = ROOT / "deploy" / "container" / "rankwatch.service"
QUADLETS = ROOT / ".cache" / "podman" / "usr" / "libexec" / "podman" / "quadlet"
_SHORT = {"-v": "--volume", "-d": "--detach"}
_FLAGS = {"--detach", "--read-only", "--rm", "--replace"}


def of_the_page() -> list[str]:
    """Return the words of the docs' `podman run`, without the program."""
    match = re.search(r"^ +podman run ((?:.*\\\n)+.*)", PAGE.read_text(), re.MULTILINE)
    assert match is not None
    return shlex.split(match[1].replace("\\\n", " "))


def of_the_unit() -> list[str]:
    """Return the words of docker's unit after `docker run`, with variables for GPUs and the image."""
    match = re.search(r"^ExecStart=/usr/bin/docker run ((?:.*\\\n)+.*)", UNIT.read_text(), re.MULTILINE)
    assert match is not None
    return shlex.split(match[1].replace("\\\n", " "))


def of_the_quadlet() -> list[str]:
    """Return the words after `podman run` that podman's generator makes; raises AssertionError for its errors."""
    env = {**os.environ, "QUADLET_UNIT_DIRS": str(UNIT.parent)}
    done = subprocess.run([QUADLETS, "-dryrun"], check=False, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    match = re.search(r"^ExecStart=/usr/bin/podman run (.*)$", done.stdout, re.MULTILINE)
    assert match is not None, done.stderr
    return shlex.split(match[1].replace("\\\n", " "))


def options(words: list[str]) -> set[tuple[str, str]]:
    """Return the options and their values in one form, without the image."""
    found = set()
    rest = iter(words)
    for word in rest:
        name, _, value = word.partition("=")
        name = _SHORT.get(name, name)
        if not name.startswith("--"):
            continue
        if name not in _FLAGS and not value:
            value = next(rest)
        found.add((name, value.lower() if name.startswith("--cap-") else value))
    return found


def rights(words: list[str]) -> set[tuple[str, str]]:
    """Return the container's rights and restrictions, without GPUs."""
    named = {
        "user", "entrypoint", "cap-drop", "cap-add", "security-opt", "read-only", "tmpfs", "pid", "network", "cgroupns",
        "volume",
    }  # fmt: skip
    named |= {"device", "stop-timeout"}
    return {
        option for option in options(words) if option[0][2:] in named and not option[1].startswith("nvidia.com/gpu")
    }


def on(host: Path, image: str, words: list[str]) -> list[str]:
    """Return the words with the node's directories below ``host``, without GPUs, and with this image.

    They set no OOM score, because a lower score needs CAP_SYS_RESOURCE, which root of a test machine may lack."""
    left_out = re.compile(r"\$GPUS|.*nvidia\.com/gpu.*|--oom-score-adj=.*")
    kept = [word for word in words if not left_out.fullmatch(word)]
    ours = "|".join(("/etc/rankwatch", "/var/lib/rankwatch", "/run/rankwatch"))
    named = re.compile(r"\$\{IMAGE\}|.*/rankwatch:[0-9.]+")
    at = next(number for number, word in enumerate(kept) if named.fullmatch(word))
    moved = re.compile(rf"^(--volume=|--security-opt=seccomp=)?({ours})(?=[:/])")
    return [*(moved.sub(rf"\g<1>{host}\g<2>", word) for word in kept[:at]), image, *kept[at + 1 :]]
