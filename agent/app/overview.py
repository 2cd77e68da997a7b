"""The rows of the front page, from the rank table and the exporters under way; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent.app.running import Running
from agent.export.registry import SourceCounts
from agent.ranks.snapshot import RankSnapshot, RankView
from agent.web.front_page import ExporterRow, RankRow


def rank_rows(snapshot: RankSnapshot, now: float) -> list[RankRow]:
    """One row a rank; ``now`` in seconds since the epoch."""
    return [_rank_row(view, now) for view in snapshot.ranks]


def exporter_rows(running: Iterable[Running], counts: Mapping[str, SourceCounts], now: float) -> list[ExporterRow]:
    """One row an exporter; it is neither up nor down while its source is not there."""
    return [
        ExporterRow(
            name=each.name,
            up=each.ok if each.looked and (each.present or not each.ok) else None,
            looked=each.looked,
            last_success_age_seconds=_age(each.last_success_seconds, now),
            series=counts.get(each.name, SourceCounts()).series,
        )
        for each in running
    ]


def _rank_row(view: RankView, now: float) -> RankRow:
    process = view.process
    return RankRow(
        job_id=view.label.job_id,
        rank=view.label.rank,
        state=process.verdict.state if process.verdict else "",
        local_rank=process.local_rank,
        gpu=",".join(str(gpu.index) for gpu in view.gpus()),
        pid=process.facts.key.pid if process.facts else None,
        user=process.facts.user if process.facts else "",
        bus_bandwidth_bytes_per_second=view.bus_bandwidth_bytes_per_second,
        last_progress_age_seconds=_age(process.progress_seconds, now),
    )


def _age(seconds: float | None, now: float) -> float | None:
    return None if seconds is None else max(now - seconds, 0.0)
