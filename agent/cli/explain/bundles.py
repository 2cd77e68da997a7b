"""Read the summaries of evidence bundles in a folder, within limits; a damaged file affects only itself."""

import os
from collections.abc import Container, Iterable
from pathlib import Path
from typing import NamedTuple

from agent.cli.explain.model import Details, Happened, Incident, Kind, KnownJob, Said
from agent.evidence.folder import parsed_summary
from agent.evidence.summary import Event, Summary

MAX_FILES = 4096
"""Limit of files read in a folder: the last files in the order of names."""
MAX_WORDS = 64
"""Limit of one bundle's statements and of its events, so that no bundle displaces another; suspects come first."""
MAX_NAMED = 8
"""Limit of unreadable files shown with their error, before "N more files"."""
LATE_SECONDS = 1800.0
"""A bundle belongs to an incident if the agent took it at most this long after the incident."""
EARLY_SECONDS = 120.0
TOGETHER_SECONDS = 0.05
"""Exits this close together have no known order: an agent sees the exit of a process a few milliseconds late."""


class Read(NamedTuple):
    """The distinct summaries of one job, in order of time.

    ``failed``: files that could not be read, with the reason.
    """

    summaries: tuple[Summary, ...]
    failed: tuple[str, ...]


def read(folder: Path, job_id: str) -> Read:
    """Return the summaries of the job in ``folder``; raises OSError if the folder cannot be listed."""
    names = sorted(entry.name for entry in os.scandir(folder) if entry.name.endswith(".json"))
    failed = []
    if len(names) > MAX_FILES:
        failed.append(f"{len(names) - MAX_FILES} files: more than {MAX_FILES} are not read")
    summaries: dict[tuple[str, float], Summary] = {}
    for name in names[-MAX_FILES:]:
        try:
            summary = parsed_summary(folder / name)
        except (OSError, ValueError) as error:
            failed.append(f"{name}: {error}")
            continue
        if summary.job_id == job_id:
            summaries.setdefault((summary.node, summary.taken_at), summary)
    if len(failed) > MAX_NAMED:
        failed = [*failed[:MAX_NAMED], f"{len(failed) - MAX_NAMED} more files"]
    return Read(tuple(sorted(summaries.values(), key=lambda summary: (summary.taken_at, summary.node))), tuple(failed))


def weigh(summaries: Iterable[Summary], job: KnownJob, incident: Incident) -> Details:
    """Return the details of ``incident`` from bundles, without bundles of other incidents or of another cluster's job.

    If a node's clock is known to be wrong, the node's times are corrected, as the rules correct the times of metrics.
    """
    happened: list[Happened] = []
    said: list[Said] = []
    left_out: list[str] = []
    used: list[Summary] = []
    for summary in summaries:
        offset = job.offsets.get(summary.node, 0.0)
        taken = summary.taken_at - offset
        if summary.node in job.nodes_elsewhere:
            left_out.append(f"bundle of {summary.node}: that node ran the job {job.job_id} of another cluster")
        elif not incident.start - EARLY_SECONDS <= taken <= incident.end + LATE_SECONDS:
            left_out.append(f"bundle of {summary.node}: taken at another time than the incident")
        else:
            used.append(summary)
            happened += _events(summary, offset, incident.start - EARLY_SECONDS)
            why = f"evidence bundle taken ({summary.trigger}: {summary.because})"
            happened.append(Happened(taken, "other", "", summary.node, why, "evidence"))
    ends = {
        (summary.node, rank.rank): rank.since - job.offsets.get(summary.node, 0.0)
        for summary in used
        for rank in summary.ranks
        if rank.state == "dead" and rank.since > 0
    }
    first = min(ends.values(), default=0.0)
    followed = {key for key, at in ends.items() if at > first + TOGETHER_SECONDS}
    for summary in used:
        said += _words(summary, followed)
    if len(left_out) > MAX_NAMED:
        left_out = [*left_out[:MAX_NAMED], f"{len(left_out) - MAX_NAMED} more bundles of other clusters or times"]
    return Details(tuple(happened), tuple(said), left_out=tuple(left_out))


def _words(summary: Summary, followed: Container[tuple[str, str]]) -> list[Said]:
    """Return a bundle's statements. Processes in ``followed`` ended after the first exit: their exits blame no rank."""
    suspects = set(summary.suspects[:MAX_WORDS])
    node = {rank.rank: summary.node for rank in summary.ranks}
    words = sorted(summary.words, key=lambda word: (not word.blames, word.rank not in suspects))[:MAX_WORDS]
    return [
        Said(
            word.rank,
            node.get(word.rank, ""),
            word.witness,
            word.says,
            word.blames and not (word.witness == "verdict" and (summary.node, word.rank) in followed),
            summary.node,
        )
        for word in words
    ]


def _events(summary: Summary, offset: float, start: float) -> list[Happened]:
    suspects = {*summary.suspects[:MAX_WORDS], ""}
    mine = [event for event in summary.timeline if start <= event.at - offset <= summary.taken_at - offset + 1]
    chosen = sorted(mine, key=lambda event: (event.rank not in suspects, event.at))[:MAX_WORDS]
    return [
        Happened(event.at - offset, _kind(event), event.rank, summary.node, event.what, event.source)
        for event in chosen
    ]


def _kind(event: Event) -> Kind:
    """Return the event's kind: `died` or `unresponsive` (metrics show these, too), else `other`."""
    if event.source == "process" or (event.source == "verdict" and event.what.startswith("dead")):
        return "died"
    return "unresponsive" if event.source == "verdict" and event.what.startswith("unresponsive") else "other"
