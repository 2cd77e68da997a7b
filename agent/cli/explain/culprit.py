"""Decide which ranks caused an incident: weigh independent witnesses, and show where they disagree. Pure."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agent.cli.explain.model import Said
from agent.core.identity import rank_order
from agent.evidence.summary import Witness

AFTER_A_DEATH: tuple[Witness, ...] = (
    "hardware", "verdict", "kernel_log", "job_log", "ras", "flight_recorder", "stacks", "records",
)  # fmt: skip
"""Witnesses, the most trusted first. The order decides between ranks that equally many witnesses blame. The verdict
comes early in this order, because the agent sees exits and need not infer them."""
IN_A_HANG: tuple[Witness, ...] = (
    "hardware", "flight_recorder", "ras", "stacks", "verdict", "kernel_log", "job_log", "records",
)  # fmt: skip
"""The order for a job that hung before a rank died: its first dead rank is often innocent, ended by the watchdog."""
MAX_CULPRITS = 64


class WeighedWords(NamedTuple):
    """The culprits, lowest number first, and how many witnesses blame each; no ranks if no witness blames a rank.

    ``for_them``: statements that blame the culprits. ``against``: statements of witnesses that blame other ranks and no
    culprit. ``other``: all remaining statements.
    """

    ranks: tuple[str, ...] = ()
    witnesses: int = 0
    for_them: tuple[Said, ...] = ()
    against: tuple[Said, ...] = ()
    other: tuple[Said, ...] = ()


def judge(said: Iterable[Said], *, is_hang: bool) -> WeighedWords:
    """Return the culprits and all statements.

    The culprit is the rank that most witnesses blame; if equally many blame two ranks, the order of trust decides.

    A witness counts once per rank, even if several nodes and bundles repeat its statement: copies or one forged source
    cannot outvote another witness. Metrics cover the whole job, and a bundle covers one node. If a witness blames ranks
    in metrics, its statements in bundles blame no further rank. Ranks with the same witnesses are blamed together.
    """
    trust = IN_A_HANG if is_hang else AFTER_A_DEATH
    words = _once(_of_the_whole(list(said)), trust)
    by_rank: dict[str, set[Witness]] = {}
    for word in words:
        if word.blames and word.rank:
            by_rank.setdefault(word.rank, set()).add(word.witness)
    if not by_rank:
        return WeighedWords(other=tuple(words))

    best = min(by_rank.values(), key=lambda witnesses: (-len(witnesses), sorted(map(trust.index, witnesses))))
    ranks = sorted((rank for rank, witnesses in by_rank.items() if witnesses == best), key=rank_order)[:MAX_CULPRITS]
    mine = tuple(word for word in words if word.blames and word.rank in ranks)
    against = tuple(word for word in words if word.blames and word.rank not in ranks and word.witness not in best)
    # A witness that blames the culprits and further ranks does not disagree: its statements are shown last.
    more = tuple(word for word in words if word.blames and word.rank not in ranks and word.witness in best)
    return WeighedWords(tuple(ranks), len(best), mine, against, (*more, *(word for word in words if not word.blames)))


def _of_the_whole(said: Sequence[Said]) -> list[Said]:
    """Return the statements. If a witness blames ranks in metrics, its statements in bundles blame no further rank."""
    whole: dict[Witness, set[str]] = {}
    for word in said:
        if word.blames and word.source == "metrics":
            whole.setdefault(word.witness, set()).add(word.rank)
    return [word if word.rank in whole.get(word.witness, {word.rank}) else word._replace(blames=False) for word in said]


def _once(said: Iterable[Said], trust: tuple[Witness, ...]) -> list[Said]:
    """Return per witness, rank and ``blames`` one statement from metrics, and one from bundles if its text differs."""
    kept: dict[tuple[str, str, bool, bool], Said] = {}
    texts: set[tuple[str, str, str]] = set()
    for word in sorted(said, key=lambda word: (word.source != "metrics", word)):
        if (text := (word.rank, word.witness, word.says)) not in texts:
            texts.add(text)
            kept.setdefault((word.rank, word.witness, word.blames, word.source == "metrics"), word)

    def order(word: Said) -> tuple[object, ...]:
        return trust.index(word.witness), rank_order(word.rank), word.blames, word.source != "metrics", word.says

    return sorted(kept.values(), key=order)
