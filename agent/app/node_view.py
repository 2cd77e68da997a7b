"""The document of this node, from the tables and exporters under way; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from agent import __version__
from agent.app.running import Running
from agent.core.identity import RankLabel
from agent.export.registry import SourceCounts
from agent.page import describe
from agent.page.document import Configuration, ExporterView, NodeDocument
from agent.ranks.health import HealthSnapshot
from agent.ranks.speeds import SpeedView
from agent.ranks.unseen import notes
from agent.ranks.usage_unread import usage_notes


def node_document(
    health: HealthSnapshot,
    speed_of: Callable[[RankLabel], SpeedView],
    exporters: Iterable[ExporterView],
    hostname: str,
    *,
    up_seconds: float,
    ready: bool,
    configuration: Configuration,
) -> NodeDocument:
    """All of it, as of the time when ``health`` was taken."""
    table = health.ranks
    found = describe.ranks(table.ranks, health.entries, health.counted, speed_of)
    ranks, left_out = describe.bounded(found)
    return NodeDocument(
        rankwatch=__version__,
        hostname=hostname,
        now_seconds=table.taken_seconds,
        up_seconds=up_seconds,
        ready=ready,
        configuration=configuration,
        jobs=tuple(describe.jobs(table.ranks, found, table.taken_seconds)),
        ranks=ranks,
        ranks_left_out=left_out,
        exporters=tuple(exporters),
        notes=(*notes(table), *usage_notes(table.usage_unread)),
    )


def exporter_views(
    running: Iterable[Running], broken: Iterable[str], counts: Mapping[str, SourceCounts]
) -> list[ExporterView]:
    """One for each exporter that is enabled, by name. ``broken``: those that could not be started."""
    found = [
        ExporterView(
            name=each.name,
            state=_state(each),
            why=each.why,
            last_success_seconds=each.last_success_seconds,
            series=counts.get(each.name, SourceCounts()).series,
        )
        for each in running
    ]
    found += [ExporterView(name=name, state="down", why="it could not be started: see the log") for name in broken]
    return sorted(found, key=lambda each: each.name)


def _state(each: Running) -> str:
    if not each.looked:
        return "starting"
    if not each.ok:
        return "down"
    return "up" if each.present else "absent"
