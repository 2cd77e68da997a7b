"""The notifications of each situation, as a table and as raw messages."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from watches import LOSSY, RECEIVERS, WHOLE, Page, Watch

VARIABLE = "RANKWATCH_TEST_PAGES"
"""Environment variable with a directory for tables and notifications; by default they go to the test's directory."""


HEADS = {WHOLE: "arrived", LOSSY: "arrived with 1 % of scrapes lost"}


class Arrivals(NamedTuple):
    """The notifications that a watch received about a situation.

    ``seconds``: from the last event before each notification to that notification."""

    pages: Sequence[Page]
    seconds: Sequence[float]

    def cells(self) -> str:
        """Return two cells of a table."""
        if not self.pages:
            return "nothing | "
        notifications = ", ".join(f"{' '.join(page.names) or 'over'} ({page.receiver})" for page in self.pages)
        return f"{notifications} | {', '.join(f'{second:.0f}' for second in self.seconds)}"


class Row(NamedTuple):
    """A situation, the expected notifications, and the notifications of each watch."""

    what: str
    expected: str
    arrived: Sequence[Arrivals]

    def line(self) -> str:
        first = next((page for arrivals in self.arrived for page in arrivals.pages if page.alerts), None)
        text = first.alerts[0]["annotations"]["summary"] if first else ""
        return (
            f"| {self.what} | {self.expected} | {' | '.join(arrivals.cells() for arrivals in self.arrived)} | {text} |"
        )


def arrivals(pages: Sequence[Page], happened: Sequence[float]) -> Arrivals:
    """Return the pages, and each page's seconds since the latest event before it."""
    return Arrivals(
        pages, [page.time - max([at for at in happened if at <= page.time] or [page.time]) for page in pages]
    )


def write_report(directory: Path, name: str, watches: Sequence[Watch], rows: Sequence[Row]) -> None:
    """Write the table and the notifications of a run; print the table."""
    folder = Path(os.environ.get(VARIABLE) or directory)
    folder.mkdir(parents=True, exist_ok=True)
    cells = "".join(f" {HEADS[watch.name]} | after s |" for watch in watches)
    head = f"| situation | expected |{cells} first line |\n|---|---|{'---|---|' * len(watches)}---|"
    table = "\n".join([head, *(row.line() for row in rows)])
    (folder / f"{name}.md").write_text(f"{table}\n")
    messages = {
        watch.name: [
            {"time": message.time, **message.body}
            for receiver in RECEIVERS
            for message in watch.inbox.at(f"/{receiver}")
        ]
        for watch in watches
    }
    (folder / f"{name}.json").write_text(json.dumps(messages, indent=1))
    print(f"\n{table}")  # noqa: T201  # pytest shows it with -s, and where a test fails
