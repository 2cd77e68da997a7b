"""Render the page of an incident: sections of rows, as text or HTML. Pure."""

import html
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from agent.cli.explain.culprit import WeighedWords
from agent.cli.explain.incident import Cost
from agent.cli.explain.model import KINDS, Details, Happened, Incident, KnownJob, Said, What
from agent.cli.terminal import count, plain, rank_set
from agent.page.describe import age

MAX_TIMELINE = 28
"""Limit of lines in the time line, so that the story fits one page."""
MAX_WORDS = 12
"""Limit of rows in each section of statements: for the culprits, against them, and all other statements."""
WHAT: Mapping[What, str] = {
    "hung": "the job hung",
    "died": "a rank died while the job worked",
    "node_lost": "a node was lost",
    "went_on": "the job went on, and waited for a late rank or ran on hardware that had failed",
}
ONE_REPORT_SECONDS = 20.0
"""Reports of two sources about one rank within this time are one event: Prometheus scrapes every 15 s."""
NAMES: Mapping[str, str] = {
    "verdict": "process", "records": "NCCL's records", "ras": "NCCL's RAS", "flight_recorder": "flight recorder",
    "hardware": "hardware checks", "kernel_log": "kernel log", "job_log": "job log", "stacks": "stacks",
}  # fmt: skip
_STYLE = (
    "body{font:14px/1.4 system-ui,sans-serif;margin:2em;max-width:75em}td{padding:0 1.5em 0 0;vertical-align:top}"
    "h1{font-size:1.3em}h2{font-size:1.1em;margin:1em 0 .2em}"
)


class PageSection(NamedTuple):
    """A heading and its rows; rows of several cells form a table."""

    heading: str
    rows: tuple[tuple[str, ...], ...]


class StoryPage(NamedTuple):
    """The page: a title, sentences and sections."""

    title: str
    sentences: tuple[str, ...]
    sections: tuple[PageSection, ...]


def no_incident(job: KnownJob, start: float, end: float) -> StoryPage:
    """Return the page of a job without an incident."""
    nothing = f"no rank died, hung, was late or lost its hardware from {_moment(start)} to {_moment(end)}"
    return StoryPage(_title(job), tuple(_hint_of_rules(job) or [nothing]), ())


def page_of(
    job: KnownJob,
    incidents: Sequence[Incident],
    details: Details,
    judgement: WeighedWords,
    spent: Cost,
    runbooks: Mapping[str, str],
) -> StoryPage:
    """Return the page of the last incident of ``incidents``."""
    incident = incidents[-1]
    happened = list(details.happened)
    if incident.stopped and incident.has_progress:
        happened.append(Happened(incident.since, "silent", "", "", "last progress", "records"))
    if incident.back is not None:
        happened.append(Happened(incident.back, "back", "", "", "the job works again", "records"))
    sections = [
        PageSection("Who", _who(details, judgement)),
        PageSection("Disagrees", _rows(judgement.against)),
        PageSection("Also said", _rows(judgement.other)),
        PageSection("What happened when (UTC)", timeline(happened)),
        PageSection("Cost", _cost(spent)),
        PageSection("What to do", _to_do(details, judgement, runbooks)),
        PageSection("Not used", tuple((reason,) for reason in details.left_out)),
    ]
    return StoryPage(
        _title(job),
        (*_sentences(job, incident, incidents), *_hint_of_rules(job)),
        tuple(section for section in sections if section.rows),
    )


def timeline(happened: Iterable[Happened]) -> tuple[tuple[str, ...], ...]:
    """Return rows of time, rank, node, event and source, each event once, without the middle of a long time line."""
    kept: list[Happened] = []
    numbers: defaultdict[tuple[str, str], list[int]] = defaultdict(list)  # in kept, of a rank or of a node
    for event in sorted(set(happened), key=lambda event: (event.at, KINDS.index(event.kind), event)):
        of_subject = numbers[event.rank, "" if event.rank else event.node]
        double = next((number for number in of_subject if _same(event, kept[number])), None)
        if double is None:
            of_subject.append(len(kept))
            kept.append(event)
        elif ": first" in event.what:  # "killed (SIGKILL): first to go" says more than "killed (SIGKILL)"
            kept[double] = event._replace(at=kept[double].at)
    rows = [
        (_clock(event.at), f"rank {event.rank}" if event.rank else "", event.node, event.what, _source(event))
        for event in kept
    ]
    if len(rows) > MAX_TIMELINE:
        half = MAX_TIMELINE // 2
        rows = [*rows[:half], ("...", "", "", f"{len(rows) - 2 * half} more", ""), *rows[-half:]]
    return tuple(rows)


def _source(happened: Happened) -> str:
    return NAMES.get(happened.source, happened.source)


def _same(event: Happened, other: Happened) -> bool:
    """Return True if two queries, or metrics and a bundle, report one event."""
    is_near = abs(event.at - other.at) < ONE_REPORT_SECONDS
    if event.kind == other.kind and event.kind in ("died", "unresponsive"):
        return is_near and event.rank == other.rank
    return is_near and (event.rank, event.node, event.what) == (other.rank, other.node, other.what)


def _title(job: KnownJob) -> str:
    named = ", ".join(filter(None, (job.info.get("name", ""), job.info.get("user", ""), job.info.get("partition", ""))))
    cluster = job.clusters[0] if job.clusters else ""
    nodes = f" on {count(len(job.nodes), 'node')}" if job.nodes else ""
    ranks = f": {count(job.ranks, 'rank')}{nodes}" if job.ranks is not None else ""
    return f"job {job.job_id}{f' ({named})' if named else ''}{f' of cluster {cluster}' if cluster else ''}{ranks}"


def _hint_of_rules(job: KnownJob) -> list[str]:
    if job.has_rules:
        return []
    return ["the shipped rules have no series of this job: are they loaded? (without them no incident can be found)"]


def _sentences(job: KnownJob, incident: Incident, incidents: Sequence[Incident]) -> list[str]:
    what = WHAT[incident.what]
    outcome = ""
    if not job.has_rules:
        outcome = "; whether it works again is unknown"
    elif incident.stopped:
        outcome = "; no work since" if incident.back is None else f"; it works again since {_clock(incident.back)}"
    said = [f"{what}: from {_moment(incident.start)} to {_moment(incident.end)}{outcome}"]
    if len(incidents) > 1:
        said.append(
            "earlier incidents (use --until with one of these times): "
            + ", ".join(_moment(earlier.end) for earlier in incidents[:-1][-8:])
        )
    return said


def _who(details: Details, judgement: WeighedWords) -> tuple[tuple[str, ...], ...]:
    ranks = judgement.ranks
    if not ranks:
        return (("no witness blames a rank", "", ""),)
    of = "" if len(ranks) > 1 else details.places.get(ranks[0], "")
    nodes = sorted({word.node for word in judgement.for_them if word.node})
    position = of or ", ".join(nodes[:4])
    against = len({word.witness for word in judgement.against})
    all_of = judgement.witnesses + against
    votes = f"{judgement.witnesses} of {all_of} witnesses agree" if all_of > 1 else "one witness says so"
    head = f"rank{'' if len(ranks) == 1 else 's'} {rank_set(ranks)}{f' ({position})' if position else ''}: {votes}"
    return ((head, "", ""), *_rows(judgement.for_them))


def _rows(said: Sequence[Said]) -> tuple[tuple[str, ...], ...]:
    """Return rows of witness, ranks and sentence. Ranks share a row if a witness says the same about them."""
    together: dict[tuple[str, str, str], list[str]] = {}
    for word in said:
        source = "" if word.source == "metrics" else f" (bundle of {word.source})"
        together.setdefault((NAMES[word.witness], word.says, source), []).append(word.rank)
    rows = [
        (f"  {name}", f"rank{'' if len(ranks) == 1 else 's'} {rank_set(ranks)}" if any(ranks) else "", says + source)
        for (name, says, source), ranks in together.items()
    ]
    if len(rows) > MAX_WORDS:
        rows = [*rows[:MAX_WORDS], ("  ...", "", f"{len(rows) - MAX_WORDS} more")]
    return tuple(rows)


def _cost(spent: Cost) -> tuple[tuple[str, ...], ...]:
    if spent.is_guess and not (spent.stopped or spent.late):
        return (("unknown", "metrics show neither GPUs nor ranks of the job"),)
    rows = []
    guess = " (counting each rank as one GPU)" if spent.is_guess else ""
    if spent.seconds > 0:
        still = ", and it goes on" if spent.goes_on else ""
        rows.append((f"{spent.stopped:.2f} GPU-hours", f"no work done for {age(spent.seconds)}{guess}{still}"))
    if spent.again is not None:
        rows.append(
            (f"{spent.again:.2f} GPU-hours", "of work after the last checkpoint, lost if the job restarted from it")
        )
    if spent.late > 0:
        rows.append((f"{spent.late:.2f} GPU-hours", f"all ranks waited for a late rank{guess}"))
    return tuple(rows) or (("nothing", "the job did not stop and did not wait for a rank"),)


def _to_do(details: Details, judgement: WeighedWords, runbooks: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    rows = [(advice, "") for advice in details.advice]
    rows += [(name, runbooks.get(name, "docs/runbooks.md")) for name in details.alerts]
    if not rows and judgement.ranks:
        rows.append(("no alert has fired yet: docs/runbooks.md explains each witness", ""))
    return tuple(rows)


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(at))


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def as_text(page: StoryPage) -> str:
    """Return the page as plain text, without terminal control characters."""
    lines = [plain(page.title), *map(plain, page.sentences)]
    for section in page.sections:
        lines += ["", plain(section.heading)]
        shown = [[plain(cell) for cell in row] for row in section.rows]
        tables = [row for row in shown if len(row) > 1 and any(row[1:])]
        widths = [max(map(len, column)) for column in zip_longest(*tables, fillvalue="")]
        for row in shown:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)] if row in tables else row[:1]
            lines.append(f"  {'  '.join(cells)}".rstrip())
    return "\n".join(lines)


def as_html(page: StoryPage) -> str:
    """Return the page as one HTML document without scripts or loaded resources; links are http or https only."""
    title = html.escape(plain(page.title))
    parts = [
        "<!DOCTYPE html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style></head><body>',
        f"<h1>{title}</h1>",
        *(f"<p>{html.escape(plain(sentence))}</p>" for sentence in page.sentences),
    ]
    for section in page.sections:
        parts += [f"<h2>{html.escape(plain(section.heading))}</h2>", "<table>"]
        parts += [f"<tr>{''.join(map(_cell, row))}</tr>" for row in section.rows]
        parts.append("</table>")
    return "\n".join([*parts, "</body></html>", ""])


def _cell(text: str) -> str:
    shown = html.escape(plain(text.strip()))
    if text.startswith(("http://", "https://")):
        return f'<td><a href="{shown}" rel="noreferrer">{shown}</a></td>'
    return f"<td>{shown}</td>"
