"""The page at `/`: what runs on this node, readable at night without a dashboard. Pure, no script, nothing fetched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

from agent.page.document import ExporterView, JobView, NodeDocument, Rank

MAX_ROWS = 256
"""Rows of one table; the rest is counted. The page is made on the event loop: this many take about 2 ms."""
MAX_CELL_CHARACTERS = 128

_GOOD = frozenset({"alive", "finished"})
_BAD = frozenset({"dead", "unresponsive"})


def front_page(document: NodeDocument) -> str:
    """Return the page as HTML; every text in ``document`` may be hostile."""
    host, now = _text(document.hostname), document.now_seconds
    ready = _mark("ready", "good") if document.ready else _mark("not ready", "bad")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{host} - rankwatch</title><style>{_STYLE}</style></head><body>\n"
        f"<header><h1>rankwatch</h1><p><b>{host}</b> &middot; {ready} &middot; up {age_text(document.up_seconds)}"
        f" &middot; version {_text(document.rankwatch)}</p>\n"
        '<nav><a href="/metrics">/metrics</a> <a href="/api/v1/ranks">/api/v1/ranks</a> '
        '<a href="/-/healthy">/-/healthy</a> <a href="/-/ready">/-/ready</a></nav>'
        f"{_refused(document.configuration.refused)}</header>\n<main>\n{_jobs(document.jobs)}"
        f"{_ranks(document, now)}{_exporters(document.exporters, now)}</main></body></html>\n"
    )


def age_text(seconds: float | None) -> str:
    """Return a duration in its two largest units, as in ``2 d 3 h``; empty for None."""
    if seconds is None:
        return ""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if minutes < 60:
        return f"{minutes} min {whole % 60} s"
    return f"{hours} h {minutes % 60} min" if hours < 24 else f"{days} d {hours % 24} h"


def _refused(why: str) -> str:
    return f"<p>{_mark('configuration refused', 'bad')} {_text(why)}; the one before stays.</p>" if why else ""


def _jobs(jobs: Sequence[JobView]) -> str:
    if not jobs:
        return ""
    rows = [(_text(job.job_id), _text(job.name), _text(job.user), _text(job.sentence)) for job in jobs[:MAX_ROWS]]
    return "<h2>Jobs</h2>\n" + _table(("Job", "Name", "User", "Ranks on this node"), rows, ()) + _rest(len(jobs))


def _ranks(document: NodeDocument, now: float) -> str:
    ranks, notes = document.ranks, document.notes
    heading = "<h2>Ranks</h2>\n" + "".join(f"<p>{_mark('note', 'odd')} {_text(note)}.</p>\n" for note in notes)
    if not ranks:
        return heading + ("" if notes else '<p class="none">No rank runs on this node.</p>\n')
    states = Counter(rank.state for rank in ranks)
    summary = " ".join(f"{_state(state)} {count}" for state, count in sorted(states.items()))
    head = ("Job", "Rank", "State", "Local rank", "GPU", "Pid", "User", "Bus bandwidth, GB/s", "Last progress", "Ended")
    rows = [_rank_cells(rank, now) for rank in ranks[:MAX_ROWS]]
    left_out = len(ranks) + document.ranks_left_out
    return heading + f"<p>{summary}</p>\n" + _table(head, rows, numeric=(1, 3, 4, 5, 7, 8)) + _rest(left_out)


def _rank_cells(rank: Rank, now: float) -> tuple[str, ...]:
    bandwidth, ended = rank.bus_bandwidth_bytes_per_second, rank.ended
    progress = None if rank.last_progress_seconds is None else now - rank.last_progress_seconds
    how = ""
    if ended is not None:
        status = "" if ended.code is None else str(ended.code)
        words = " ".join(filter(None, (ended.reason, ended.signal, status)))
        how = f"{words}, {_ago(now - ended.at_seconds)}"
    return (
        _text(rank.job_id),
        _text(rank.rank),
        _state(rank.state) + "".join(f" {_mark(_text(check), 'bad')}" for check in rank.unhealthy),
        _text(rank.local_rank),
        _text(",".join(str(gpu.index) for gpu in rank.gpus)),
        "" if rank.pid is None else str(rank.pid),
        _text(rank.user),
        "" if bandwidth is None else f"{bandwidth / 1e9:.2f}",
        _ago(progress),
        _text(how),
    )


def _exporters(exporters: Sequence[ExporterView], now: float) -> str:
    cells = [_exporter_cells(each, now) for each in sorted(exporters, key=lambda each: each.name)[:MAX_ROWS]]
    table = _table(("Exporter", "State", "Last success", "Series", "Why"), cells, numeric=(2, 3))
    return "<h2>Exporters</h2>\n" + table + _rest(len(exporters))


def _exporter_cells(each: ExporterView, now: float) -> tuple[str, ...]:
    age = None if each.last_success_seconds is None else now - each.last_success_seconds
    mark = _mark(_text(each.state), {"up": "good", "down": "bad"}.get(each.state, "calm"))
    return _text(each.name), mark, _ago(age), str(each.series), _text(each.why)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numeric: tuple[int, ...]) -> str:
    kinds = [' class="n"' if column in numeric else "" for column in range(len(head))]
    titles = "".join(f"<th{kind}>{title}</th>" for kind, title in zip(kinds, head, strict=True))
    lines = [
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>\n"
        for row in rows
    ]
    return f"<div><table><thead><tr>{titles}</tr></thead><tbody>\n{''.join(lines)}</tbody></table></div>\n"


def _rest(total: int) -> str:
    return f'<p class="none">and {total - MAX_ROWS} more</p>\n' if total > MAX_ROWS else ""


def _ago(seconds: float | None) -> str:
    return "" if seconds is None else f"{age_text(seconds)} ago"


def _state(state: str) -> str:
    return _mark(_text(state), "good" if state in _GOOD else "bad" if state in _BAD else "odd")


def _mark(html: str, kind: str) -> str:
    return f'<span class="{kind}">{html}</span>'


def _text(text: str) -> str:
    cut = text if len(text) <= MAX_CELL_CHARACTERS else text[: MAX_CELL_CHARACTERS - 1] + "…"
    return escape(cut.encode("utf-8", "replace").decode())


_STYLE = """
:root{color-scheme:light dark;--fg:#1f2328;--dim:#667079;--bg:#fbfbfa;--line:#dcdfe3;--link:#1c5fae;
--good:#1a6e3a;--bad:#b3261e;--odd:#8a5a00}
@media(prefers-color-scheme:dark){:root{--fg:#d3d7dc;--dim:#8d969f;--bg:#14171a;--line:#2c3238;--link:#7fb2ec;
--good:#6cc28a;--bad:#ff8b80;--odd:#e0b25c}}
body{margin:0 auto;max-width:76rem;padding:1.5rem;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,sans-serif}
h1{margin:0;font-size:1.4rem}h2{margin:2rem 0 .4rem;font-size:1.05rem}
header p{margin:.2rem 0}a{color:var(--link);margin-right:.8rem}
div{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.3rem .9rem .3rem 0;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--dim);font-weight:600;font-size:.85rem}.n{text-align:right}
.good{color:var(--good)}.bad{color:var(--bad);font-weight:700}.odd{color:var(--odd);font-weight:600}
.calm,.none{color:var(--dim)}
"""
