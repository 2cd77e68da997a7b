"""Finds the launcher above a rank and reads its command line options. Blocks: call it in the exporter's own thread.

A command line can hold secrets, so the exporter keeps only numbers and words of closed sets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from agent.sdk.ranks import ProcessKey
from agent.sdk.system import ProcFS

MAX_ANCESTORS = 8  # Limit of ancestor processes checked per rank: the launcher, and a shell or numactl in between
MAX_PROGRAM_WORDS = 8  # The launcher's name is one of the first words. An interpreter and its options may precede it.
POLICIES = frozenset({"any-failed", "min-healthy"})
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "nvidia_resiliency_ext.fault_tolerance.launcher": "ft_launcher",
}
_WITHOUT_VALUE = frozenset({"standalone", "no_python", "run_path", "module", "m", "use_env", "h", "help"})
_COUNT = re.compile(r"[0-9]{1,6}", re.ASCII)
_NODES = re.compile(r"([0-9]{1,6})(?::([0-9]{1,6}))?", re.ASCII)


class JobLauncher(NamedTuple):
    """A launcher (torchrun or ft_launcher) and its options. An option is empty if the command line lacks it."""

    launcher: str
    minimum_nodes: str = ""
    max_nodes: str = ""
    max_restarts: str = ""
    restart_policy: str = ""
    segment: str = ""


def launcher_above(proc: ProcFS, rank: ProcessKey, uid: int) -> JobLauncher | None:
    """Return the nearest launcher above a rank; None without a launcher, or if another user's process is in between."""
    stat = proc.stat(rank.pid)
    if stat is None or stat.key != rank:
        return None
    for _ in range(MAX_ANCESTORS):
        parent = proc.stat(stat.parent_pid)
        status = None if parent is None else proc.status(parent.pid)
        if parent is None or status is None or status.uid != uid:
            return None
        launcher = read_command(proc.arguments(parent.pid))
        if launcher is not None:
            return launcher
        stat = parent
    return None


def read_command(words: Sequence[str]) -> JobLauncher | None:
    """Return the launcher that this command line starts, or None."""
    for number, word in enumerate(words[:MAX_PROGRAM_WORDS]):
        name = os.path.basename(word)
        if number and words[number - 1] == "-m":
            name = _MODULES.get(word, "")
        if name in _MODULES.values():
            options = dict(_options(words[number + 1 :]))
            nodes = _NODES.fullmatch(options.get("nnodes", ""))
            policy = options.get("ft_restart_policy", "")
            return JobLauncher(
                name,
                *(("", "") if nodes is None else (nodes[1], nodes[2] or nodes[1])),
                _count(options.get("max_restarts", "")),
                policy if policy in POLICIES else "",
                _count(options.get("ft_segment", "")),
            )
    return None


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each option before the training script."""
    remaining = iter(words)
    for word in remaining:
        if not word.startswith("-"):
            return
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if not equals and name not in _WITHOUT_VALUE:
            value = next(remaining, "")
        yield name, value


def _count(text: str) -> str:
    return text if _COUNT.fullmatch(text) else ""
