"""`rankwatch status`: the ranks of a running agent as a table on the terminal."""

from __future__ import annotations

import argparse
import sys
import time
import urllib.error
from collections.abc import Iterable, Sequence

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from agent.app import own_page
from agent.app.config import DEFAULT_LISTEN_ADDRESS
from agent.core.hosts import ranges
from agent.hardware.unread import PAUSE_FRAMES_UNREAD, hardware_notes
from agent.ranks.families import RANK_STATE, RANKS_DUPLICATE, RANKS_UNIDENTIFIED, RANKS_UNREADABLE
from agent.ranks.unseen import notes
from agent.ranks.usage_unread import UNREAD, usage_notes

TIMEOUT_SECONDS = 10.0
_ASKED = ("collect[]=ranks", f"name[]={PAUSE_FRAMES_UNREAD.name}")
_HEAD = ("JOB", "RANK", "STATE", "PID", "USER", "PROGRESS", "ENDED BY")


def main(arguments: Sequence[str]) -> int:
    """Ask the agent and print the table; returns the exit status."""
    parser = argparse.ArgumentParser(prog="rankwatch status", description="Show the ranks of a running agent.")
    parser.add_argument(
        "--web.listen-address",
        dest="address",
        default=DEFAULT_LISTEN_ADDRESS,
        metavar="HOST:PORT",
        help="where the agent serves (default %(default)s)",
    )
    parser.add_argument("--brief", action="store_true", help="one line for each job and state, with its ranks: 0-3,7")
    flags = parser.parse_args(list(arguments))
    try:
        text = "".join(own_page.read(flags.address, asked, TIMEOUT_SECONDS) for asked in _ASKED)
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        print(f"rankwatch status: no answer from {flags.address}: {reason}", file=sys.stderr)  # noqa: T201  # its answer
        return 1
    families = text_string_to_metric_families(text)
    print(brief(families) if flags.brief else table(families, time.time()))  # noqa: T201  # its answer
    return 0


def table(families: Iterable[Metric], now: float) -> str:
    """The ranks in ``families`` as lines of text, by job and rank; ``now`` in seconds since the epoch."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    counts: dict[str, int] = {}
    unread: dict[str, int] = {}
    for family in families:
        for sample in family.samples:
            if "rank" in sample.labels and "job_id" in sample.labels and "comm" not in sample.labels:
                row = rows.setdefault((sample.labels["job_id"], sample.labels["rank"]), {})
                _note(row, sample.name, sample.labels, sample.value, now)
            elif sample.name == UNREAD.name:
                unread[sample.labels["source"]] = int(sample.value)
            elif not sample.labels:
                counts[sample.name] = int(sample.value)
    said = notes(*(counts.get(family.name, 0) for family in (RANKS_UNIDENTIFIED, RANKS_UNREADABLE, RANKS_DUPLICATE)))
    said += usage_notes(unread) + hardware_notes(PAUSE_FRAMES_UNREAD.name in counts)
    if not rows:
        return "\n".join(said) or "no ranks"
    lines = [_HEAD]
    for (job_id, rank), row in sorted(rows.items(), key=lambda item: (item[0][0], len(item[0][1]), item[0][1])):
        cells = (row.get(name, "") for name in ("state", "pid", "user", "progress", "ended"))
        lines.append((job_id, rank, *cells))  # type: ignore[arg-type]  # as many as _HEAD has
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join([*(line.rstrip() for line in padded), *said])


def brief(families: Iterable[Metric]) -> str:
    """The ranks in ``families`` by job and state, in sets of numbers; those without a number follow, by name."""
    found: dict[tuple[str, str], list[str]] = {}
    for sample in (each for family in families for each in family.samples):
        if sample.name == RANK_STATE.name and sample.value == 1:
            found.setdefault((sample.labels["job_id"], sample.labels["state"]), []).append(sample.labels["rank"])
    return "\n".join(f"{job_id}  {state}  {_set_of(ranks)}" for (job_id, state), ranks in sorted(found.items())) or (
        "no ranks"
    )


def _set_of(ranks: Sequence[str]) -> str:
    numbered = [rank for rank in ranks if rank.isascii() and rank.isdecimal()]
    return ",".join(filter(None, (ranges(map(int, numbered)), *sorted(set(ranks) - set(numbered)))))


def _note(row: dict[str, str], name: str, labels: dict[str, str], value: float, now: float) -> None:
    match name:
        case "rankwatch_rank_state" if value == 1:
            row["state"] = labels["state"]
        case "rankwatch_rank_info":
            row.update(pid=labels["pid"], user=labels["user"])
        case "rankwatch_rank_last_progress_timestamp_seconds":
            row["progress"] = f"{max(now - value, 0):.0f}s ago"
        case "rankwatch_rank_exit_info":
            row["ended"] = " ".join(filter(None, (labels["reason"], labels["signal"], labels["code"])))
