"""What the command line of a torchrun or ft_launcher asks for. Pure; of all its options only these few are kept.

A command line may hold secrets: nothing of it is shown but numbers and words of closed sets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

MAX_PROGRAM_WORDS = 8
"""The launcher's name is among the first words: an interpreter and its options come before it."""
MAX_DIGITS = 6
DEFAULT_NODES = "1:1"
DEFAULT_POLICY = "any-failed"
POLICIES = frozenset({DEFAULT_POLICY, "min-healthy"})
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "nvidia_resiliency_ext.fault_tolerance.launcher": "ft_launcher",
}
_WITHOUT_VALUE = frozenset({"standalone", "no_python", "run_path", "module", "m", "use_env", "h", "help"})
_COUNT = re.compile(rf"[0-9]{{1,{MAX_DIGITS}}}", re.ASCII)
_NODES = re.compile(rf"([0-9]{{1,{MAX_DIGITS}}})(?::([0-9]{{1,{MAX_DIGITS}}}))?", re.ASCII)

Launcher = Literal["torchrun", "ft_launcher"]


class LauncherOptions(msgspec.Struct, frozen=True):
    """What a launcher was asked for. ``minimum`` nodes: None where that is not known; the others are texts for labels.

    ``policy``: when workers are restarted; ``segment``: so many nodes of one NVLink domain belong together.
    """

    launcher: str
    minimum: int | None
    maximum: str = ""
    restarts: str = ""
    policy: str = ""
    segment: str = ""


def read_options(words: Sequence[str], nodes: str = "") -> LauncherOptions | None:
    """What the words of a command line ask for, or None where they start no launcher.

    ``nodes``: MIN:MAX by the environment (PET_NNODES), which the option takes the place of.
    """
    found = _launcher(words)
    if found is None:
        return None
    launcher, first = found
    given = dict(_options(words[first:]))
    span = _NODES.fullmatch(given.get("nnodes") or nodes or DEFAULT_NODES)
    policy = given.get("ft_restart_policy") or DEFAULT_POLICY
    return LauncherOptions(
        launcher,
        None if span is None else int(span[1]),
        "" if span is None else str(int(span[2] or span[1])),
        _count(given.get("max_restarts", "")),
        policy if policy in POLICIES else "",
        _count(given.get("ft_segment", "")),
    )


def _launcher(words: Sequence[str]) -> tuple[str, int] | None:
    """The launcher's name, and where its options begin."""
    for number, word in enumerate(words[:MAX_PROGRAM_WORDS]):
        name = os.path.basename(word)
        if name in _MODULES.values():
            return name, number + 1
        if word in _MODULES and number and words[number - 1] == "-m":
            return _MODULES[word], number + 1
    return None


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The options before the training script, as name and value; what follows it are its own."""
    left = iter(words)
    for word in left:
        if not word.startswith("-"):
            return
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if not equals and name not in _WITHOUT_VALUE:
            value = next(left, "")
        yield name, value


def _count(text: str) -> str:
    return str(int(text)) if _COUNT.fullmatch(text) else ""
