"""The page at `/`: the ranks on this node, for people without a dashboard. Pure.

The page is complete without its script, which only keeps the page current.
"""

from collections import defaultdict
from collections.abc import Sequence
from html import escape
from typing import NamedTuple
from urllib.parse import quote

from agent.page.describe import age, ago, bandwidth, how_ended, progress
from agent.page.ranks_json import ExporterView, JobView, NodeDocument, Rank
from agent.page.static import SCRIPT, STYLE
from agent.tail.shares import in_turns

MAX_ROWS = 256
"""Limit of shown ranks, users in turn, before "and N more ranks". Rendering these rows takes some milliseconds."""
MAX_CELL_CHARACTERS = 128

_GOOD = frozenset({"alive", "finished"})
_BAD = frozenset({"dead", "unresponsive"})


class SiteLinks(NamedTuple):
    """Addresses of Grafana (such as http://grafana:3000) and of the runbooks; empty for no link."""

    dashboards: str = ""
    runbooks: str = ""


def front_page(document: NodeDocument, links: SiteLinks) -> str:
    """Return the page as HTML. Every text in ``document`` can be hostile."""
    host = _text(document.hostname)
    ready = _mark("ready", "good") if document.ready else _mark("not ready", "bad")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f'<title>{_title(document)}</title><link rel="stylesheet" href="{STYLE.address}">'
        f'<script src="{SCRIPT.address}" defer></script>'
        '<noscript><meta http-equiv="refresh" content="10"></noscript></head><body>\n'
        '<p id="lost" role="status" hidden></p>\n'
        f"<header><h1>{host}</h1><p>rankwatch {_text(document.rankwatch)} &middot; {ready} &middot; up "
        f"{age(document.up_seconds)}</p>\n<nav>{_nav(document.hostname, links)}</nav>"
        f"{_refused(document.configuration.refused)}</header>\n"
        f"<main>\n<div>{_jobs(document, links)}</div>\n<div>{_notes(document.notes)}</div>\n"
        f"{_exporters(document.exporters, document.now_seconds)}</main></body></html>\n"
    )


def _title(document: NodeDocument) -> str:
    """Return the title.

    The number of ranks in trouble comes before the host, as a browser's tab shows only the start.
    """
    bad = sum(rank.state in _BAD for rank in document.ranks)
    return f"{f'({bad}) ' if bad else ''}{_text(document.hostname)} - rankwatch"


def _nav(hostname: str, links: SiteLinks) -> str:
    addresses = []
    if links.dashboards:
        addresses.append(
            (f"{links.dashboards}/d/rankwatch-node?var-node={quote(_valid(hostname), safe='')}", "Dashboard")
        )
    if links.runbooks:
        addresses.append((links.runbooks, "Runbooks"))
    addresses += [(path.lstrip("/"), path) for path in ("/metrics", "/api/v1/ranks")]
    return " ".join(f'<a href="{escape(address)}">{_text(name)}</a>' for address, name in addresses)


def _refused(why: str) -> str:
    return f"<p>{_mark('configuration refused', 'bad')} {_text(why)}; the previous one stays.</p>" if why else ""


def _notes(notes: Sequence[str]) -> str:
    return "".join(f"<p>{_mark('note', 'odd')} {escape(_valid(note))}.</p>\n" for note in notes)


def _jobs(document: NodeDocument, links: SiteLinks) -> str:
    if not document.ranks:
        return "" if document.notes else '<p class="none">No rank runs on this node.</p>\n'
    by_job: defaultdict[str, list[Rank]] = defaultdict(list)
    ranks = document.ranks
    for number in sorted(in_turns(range(len(ranks)), lambda number: (ranks[number].user, ranks[number].pod), MAX_ROWS)):
        by_job[ranks[number].job_id].append(ranks[number])
    known = {job.job_id: job for job in document.jobs}
    shown = [
        _job(known.get(job_id) or JobView(job_id=job_id, sentence="", states={}), members, document, links)
        for job_id, members in by_job.items()
    ]
    more = len(ranks) + document.ranks_left_out - MAX_ROWS
    return "".join(shown) + (f'<p class="none">and {more} more ranks</p>\n' if more > 0 else "")


def _job(job: JobView, ranks: Sequence[Rank], document: NodeDocument, links: SiteLinks) -> str:
    facts = [job.name, job.user, job.partition, "" if job.world_size is None else f"{job.world_size} ranks in all"]
    name = f"Job {_text(job.job_id)}"
    if links.dashboards:
        address = f"{links.dashboards}/d/rankwatch-job?var-job_id={quote(_valid(job.job_id), safe='')}"
        name = f'<a href="{escape(address)}">{name}</a>'
    kind = "bad" if _BAD & job.states.keys() else "calm"
    rows = [_rank_cells(rank, ranks, document.now_seconds) for rank in ranks]
    return (
        f"<section><h2>{name} <small>{' &middot; '.join(_text(fact) for fact in facts if fact)}</small></h2>"
        f'<p aria-live="polite" class="{kind}">{_text(job.sentence)}</p>\n'
        f"{_table(_RANK_COLUMNS, rows, f'ranks of job {_text(job.job_id)}')}</section>\n"
    )


Column = tuple[str, str]
"""(title, CSS classes of the cells) of a column; ``n``: a number; ``later``: hidden on a narrow screen."""
_RANK_COLUMNS: tuple[Column, ...] = (
    ("State", ""), ("Rank", "n"), ("Progress", ""), ("Bus bandwidth, GB/s", "n"), ("Late", ""),
    ("GPU", "n"), ("Pid", "n later"), ("User", "later"), ("Local rank", "n later"), ("How it ended", ""),
)  # fmt: skip


def _rank_cells(rank: Rank, others: Sequence[Rank], now: float) -> tuple[str, ...]:
    how = "" if rank.ended is None else f"{how_ended(rank.ended)}, {ago(now - rank.ended.at_seconds)}"
    return (
        _state(rank.state) + "".join(f" {_mark(_text(check), 'bad')}" for check in rank.unhealthy),
        _text(rank.rank),
        _text(progress(rank, others, now)),
        bandwidth(rank, now),
        _meter(rank.late_share, rank.rank),
        _text(",".join(str(gpu.index) for gpu in rank.gpus)),
        "" if rank.pid is None else str(rank.pid),
        _text(rank.user),
        _text(rank.local_rank),
        _text(how),
    )


def _meter(share: float | None, rank: str) -> str:
    if share is None or share < 0.005:
        return ""
    label = f"share of time that other ranks wait for rank {_text(rank)}"
    return f'<meter min="0" max="1" value="{share:.2f}" aria-label="{label}"></meter>{share:.0%}'


_EXPORTER_COLUMNS: tuple[Column, ...] = (
    ("Exporter", ""), ("State", ""), ("Last success", "n"), ("Series", "n later"), ("Why", ""),
)  # fmt: skip


def _exporters(exporters: Sequence[ExporterView], now: float) -> str:
    down = sum(exporter.state == "down" for exporter in exporters)
    ordered = sorted(exporters, key=lambda exporter: (exporter.state != "down", exporter.name))
    cells = [_exporter_cells(exporter, now) for exporter in ordered]
    what = f"{len(exporters)} exporters" + (f", {_mark(f'{down} down', 'bad')}" if down else "")
    table = _table(_EXPORTER_COLUMNS, cells[:MAX_ROWS], "exporters")
    return f"<details{' open' if down else ''}><summary>{what}</summary>{table}</details>"


def _exporter_cells(exporter: ExporterView, now: float) -> tuple[str, ...]:
    success = "" if exporter.last_success_seconds is None else ago(now - exporter.last_success_seconds)
    mark = _mark(_text(exporter.state), {"up": "good", "down": "bad"}.get(exporter.state, "calm"))
    return _text(exporter.name), mark, success, str(exporter.series), _text(exporter.note())


def _table(columns: Sequence[Column], rows: Sequence[Sequence[str]], label: str) -> str:
    """Return an HTML table, scrollable by keys. ``label``: the table's name for screen readers."""
    classes = [f' class="{kinds}"' if kinds else "" for _, kinds in columns]
    titles = "".join(f'<th scope="col"{kind}>{title}</th>' for kind, (title, _) in zip(classes, columns, strict=True))
    lines = [
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(classes, row, strict=True)) + "</tr>\n"
        for row in rows
    ]
    return (
        f'<div class="table" role="region" tabindex="0" aria-label="{label}"><table><thead><tr>{titles}</tr></thead>'
        f"<tbody>\n{''.join(lines)}</tbody></table></div>\n"
    )


def _state(state: str) -> str:
    return _mark(_text(state), "good" if state in _GOOD else "bad" if state in _BAD else "odd")


def _mark(html: str, kind: str) -> str:
    return f'<span class="{kind}">{html}</span>'


def _text(text: str) -> str:
    cut = text if len(text) <= MAX_CELL_CHARACTERS else text[: MAX_CELL_CHARACTERS - 1] + "…"
    return escape(_valid(cut))


def _valid(text: str) -> str:
    """Return ``text`` without lone surrogates, which are invalid in a page."""
    return text.encode("utf-8", "replace").decode()
