"""The page at `/`: what runs on this node, readable at night without a dashboard. Pure, no script, nothing fetched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

MAX_ROWS = 256
"""Rows of one table; the rest is counted. The page is made on the event loop: this many take about 2 ms."""
MAX_CELL_CHARACTERS = 128

_GOOD = frozenset({"alive", "finished"})
_BAD = frozenset({"dead", "unresponsive"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """One rank as the page shows it; what is not known is empty or None."""

    job_id: str
    rank: str
    state: str
    local_rank: str = ""
    gpu: str = ""
    pid: int | None = None
    user: str = ""
    bus_bandwidth_bytes_per_second: float | None = None
    last_progress_age_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterRow:
    """One exporter as the page shows it. ``up`` None: its source is not there, or it has not ``looked`` yet."""

    name: str
    up: bool | None
    looked: bool = True
    last_success_age_seconds: float | None = None
    series: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """What the page tells. ``notes``: sentences on ranks that cannot be shown."""

    version: str
    hostname: str
    uptime_seconds: float
    ready: bool
    ranks: Sequence[RankRow] = ()
    exporters: Sequence[ExporterRow] = ()
    notes: Sequence[str] = ()


def front_page(overview: Overview) -> str:
    """Return the page as HTML; every text in ``overview`` may be hostile."""
    host = _text(overview.hostname)
    uptime = age_text(overview.uptime_seconds)
    ready = _mark("ready", "good") if overview.ready else _mark("not ready", "bad")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{host} - rankwatch</title><style>{_STYLE}</style></head><body>\n"
        f"<header><h1>rankwatch</h1><p><b>{host}</b> &middot; {ready} &middot; up {uptime}"
        f" &middot; version {_text(overview.version)}</p>\n"
        '<nav><a href="/metrics">/metrics</a> <a href="/-/healthy">/-/healthy</a> <a href="/-/ready">/-/ready</a></nav>'
        f"</header>\n<main>\n{_ranks(overview.ranks, overview.notes)}"
        f"{_exporters(overview.exporters)}</main></body></html>\n"
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


def _ranks(ranks: Sequence[RankRow], notes: Sequence[str]) -> str:
    heading = "<h2>Ranks</h2>\n" + "".join(f"<p>{_mark('note', 'odd')} {_text(note)}.</p>\n" for note in notes)
    if not ranks:
        return heading + ("" if notes else '<p class="none">No rank runs on this node.</p>\n')
    states = Counter(row.state for row in ranks)
    summary = " ".join(f"{_state(state)} {count}" for state, count in sorted(states.items()))
    head = ("Job", "Rank", "State", "Local rank", "GPU", "Pid", "User", "Bus bandwidth, GB/s", "Last progress")
    rows = [_rank_cells(row) for row in sorted(ranks, key=_rank_order)[:MAX_ROWS]]
    return heading + f"<p>{summary}</p>\n" + _table(head, rows, numeric=(1, 3, 4, 5, 7, 8)) + _rest(len(ranks))


def _rank_order(row: RankRow) -> tuple[bool, str, int, str]:
    """What needs eyes comes first (and is never cut off), then by job and rank number."""
    number = int(row.rank) if row.rank.isdecimal() and len(row.rank) < 10 else -1
    return (row.state in _GOOD, row.job_id, number, row.rank)


def _rank_cells(row: RankRow) -> tuple[str, ...]:
    bandwidth = row.bus_bandwidth_bytes_per_second
    return (
        _text(row.job_id),
        _text(row.rank),
        _state(row.state),
        _text(row.local_rank),
        _text(row.gpu),
        "" if row.pid is None else str(row.pid),
        _text(row.user),
        "" if bandwidth is None else f"{bandwidth / 1e9:.2f}",
        _ago(row.last_progress_age_seconds),
    )


def _exporters(exporters: Sequence[ExporterRow]) -> str:
    cells = [_exporter_cells(row) for row in sorted(exporters, key=lambda row: row.name)[:MAX_ROWS]]
    table = _table(("Exporter", "Up", "Last success", "Series"), cells, numeric=(2, 3))
    return "<h2>Exporters</h2>\n" + table + _rest(len(exporters))


def _exporter_cells(row: ExporterRow) -> tuple[str, ...]:
    unknown = _mark("absent" if row.looked else "starting", "calm")
    up = {None: unknown, True: _mark("up", "good"), False: _mark("down", "bad")}[row.up]
    return _text(row.name), up, _ago(row.last_success_age_seconds), str(row.series)


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
