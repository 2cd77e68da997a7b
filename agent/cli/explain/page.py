"""Writes the page of an incident as text or as HTML. Pure."""

import html
from collections.abc import Sequence

from agent.cli.explain.story import StoryPage
from agent.cli.terminal import plain

_STYLE = (
    "body{font:14px/1.4 system-ui,sans-serif;margin:2em;max-width:75em}td{padding:0 1.5em 0 0;vertical-align:top}"
    "h1{font-size:1.3em}h2{font-size:1.1em;margin:1em 0 .2em}"
)


def as_text(page: StoryPage) -> str:
    """Return the page as plain text; nothing in it that a terminal obeys."""
    lines = [plain(page.title), *map(plain, page.sentences)]
    for section in page.sections:
        lines += ["", plain(section.heading)]
        shown = [[plain(cell) for cell in row] for row in section.rows]
        tables = [row for row in shown if len(row) > 1 and any(row[1:])]
        widths = [max(len(row[number]) for row in tables if number < len(row)) for number in range(_cells(tables))]
        for row in shown:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)] if row in tables else row[:1]
            lines.append(f"  {'  '.join(cells)}".rstrip())
    return "\n".join(lines)


def _cells(rows: Sequence[Sequence[str]]) -> int:
    return max((len(row) for row in rows), default=0)


def as_html(page: StoryPage) -> str:
    """The page as one HTML document, without scripts and with nothing loaded; links are those of http and https."""
    title = html.escape(plain(page.title))
    parts = [
        "<!DOCTYPE html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style></head><body>',
        f"<h1>{title}</h1>",
        *(f"<p>{html.escape(plain(each))}</p>" for each in page.sentences),
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
