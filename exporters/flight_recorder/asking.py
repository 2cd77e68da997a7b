"""Selects ranks that shall write a dump: silent ranks with a pipe, at most once in ten minutes each. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from agent.sdk.ranks import Pauses, ProcessKey, RankView
from exporters.flight_recorder.pipe import PipeRequest
from exporters.flight_recorder.places import is_number

PIPE_VARIABLE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
AGAIN_SECONDS = 600.0
MAX_ASKED = 64  # Limit of ranks per look. The next looks take the others


class DumpAsker:
    """Remembers the pauses and the last request of each rank. ``silence_seconds``: see the configuration."""

    def __init__(self, silence_seconds: float) -> None:
        self._silence_seconds = silence_seconds
        self._pauses: dict[ProcessKey, Pauses] = {}
        self._asked: dict[ProcessKey, float] = {}

    def due(self, views: Iterable[RankView], proc_root: str, now_seconds: float, monotonic: float) -> list[PipeRequest]:
        """Return the requests due now: for silent ranks (by wall clock) without a request in the last AGAIN_SECONDS."""
        self._asked = {key: at for key, at in self._asked.items() if monotonic - at < AGAIN_SECONDS}
        known: dict[ProcessKey, Pauses] = {}
        requests: list[PipeRequest] = []
        for view in views:
            facts = view.process.facts
            if facts is None or facts.uid is None or view.process.exited_at is not None or facts.key in known:
                continue
            pauses = known[facts.key] = self._pauses.get(facts.key) or Pauses()
            since = pauses.silent_since(view.process.progress_seconds, now_seconds, self._silence_seconds)
            prefix = (facts.environment or {}).get(PIPE_VARIABLE, "")
            if since is None or facts.key in self._asked or not prefix.startswith("/") or len(requests) >= MAX_ASKED:
                continue
            if is_number(view.label.rank):
                self._asked[facts.key] = monotonic
                path = f"{prefix}{view.label.rank}.pipe"
                requests.append(PipeRequest(path, proc_root, facts.key.pid, facts.uid))
        self._pauses = known
        return requests
