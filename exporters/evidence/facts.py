"""What a bundle says of a job's ranks by the rank table: their processes, and why it was taken. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agent.sdk.evidence import summary as told
from agent.sdk.ranks import RankView
from exporters.evidence import story
from exporters.evidence.variables import NAMES
from exporters.evidence.watch import Occasion


def live_pids(views: Iterable[RankView]) -> dict[str, int]:
    """Return the pids of live processes, those in trouble first."""
    live = [view for view in views if view.process.exited_at is None and view.process.facts is not None]
    live.sort(key=lambda view: view.process.verdict is None or view.process.verdict.state == "alive")
    return {view.label.rank: view.process.facts.key.pid for view in live if view.process.facts is not None}


def because(occasion: Occasion) -> str:
    """Why a bundle is taken, in words."""
    words = {
        "dead": f"rank {occasion.rank} is dead",
        "unresponsive": f"rank {occasion.rank} does not respond",
        "hardware": f"hardware has failed under rank {occasion.rank}",
        "silent": f"rank {occasion.rank} completes no operation any more",
        "stalled": "RAS reports that it stands still",
        "alert": f"Prometheus has a page open on it, and rank {occasion.rank} is here",
        "asked": "it was requested",
    }
    return words[occasion.trigger][: told.MAX_TEXT]


def ranks_file(views: Iterable[RankView]) -> bytes:
    """Return the rank table's part of the job, as JSON: what is known of each rank, and the listed variables."""
    return msgspec.json.format(msgspec.json.encode([_facts(view) for view in views])) + b"\n"


def _facts(view: RankView) -> dict[str, object]:
    process = view.process
    facts, verdict = process.facts, process.verdict
    environment = {} if facts is None else facts.environment or {}
    return {
        "rank": view.label.rank,
        "named_by": process.source,
        "pid": None if facts is None else facts.key.pid,
        "user": "" if facts is None else facts.user,
        "control_group": "" if facts is None else facts.cgroup,
        "pod": "" if facts is None else facts.pod,
        "container": "" if facts is None else facts.container,
        "started": None if facts is None else facts.start_seconds,
        "state": None if verdict is None else verdict.state,
        "verdict": None if verdict is None else verdict.reason,
        "process_state": process.state,
        "ended": None if process.exited_at is None else process.exited_seconds,
        "how": story.how_ended(view),
        "last_progress": process.progress_seconds,
        "gpus": [{"index": gpu.index, "uuid": gpu.uuid, "pci": gpu.pci, "nic": gpu.nic} for gpu in view.gpus()],
        "communicators": [
            {"comm": each.comm, "name": each.name, "rank": each.comm_rank, "ranks": each.size}
            for each in process.members.values()
        ],
        "environment": {name: environment[name] for name in sorted(NAMES & environment.keys())},
    }


def user_of(views: Iterable[RankView]) -> str:
    """Return the user of a job with these ranks; empty where that is not known."""
    return next((view.process.user for view in views if view.process.facts is not None), "")
