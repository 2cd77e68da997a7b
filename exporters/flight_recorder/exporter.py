"""Lets a helper read the dumps of ranks that may hang or have exited, and exports the dumps."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec

from agent.sdk.evidence import Offered, Wanted
from agent.sdk.exporter import Context, ExporterConfig, NoData, ShownExporter, Spec
from agent.sdk.helper import HelperError, HelperSpec
from agent.sdk.ranks import ProcessKey, RankLabel, RankView
from exporters.flight_recorder.pipe import AskResult
from exporters.flight_recorder.places import (
    PIPE_VARIABLE,
    VARIABLES,
    DumpAsker,
    is_looked_at,
    is_number,
    paths_of,
    reached_by,
)
from exporters.flight_recorder.reading import DumpAnswer, DumpRequest
from exporters.flight_recorder.registry import FAMILIES, DumpRegistry, FlightSnapshot, part, render

INTERVAL_SECONDS = 1.0
LOOK_SECONDS = 5.0
"""Interval between searches for dumps. While new dumps are unread, each update searches."""
HELPER_SECONDS = 30.0
"""Timeout of a helper call. The helper does not wait for slow file systems; the largest file takes 6 s."""
ALONE_SECONDS = 600.0
"""For this long after a helper failure, each call has one file, so that a bad file cannot block other files."""
MAX_RANKS = 256  # Limit of dumps per search: their requests and answers fit into frames. The rest is taken next
DECODED = frozenset({"read", "incomplete", "malformed", "too_large", "other_rank"})
"""Results of files whose content the helper has read."""
RECORDED = "recorded"
READER = HelperSpec(
    "flight_recorder",
    "exporters.flight_recorder.reading:read_dumps",
    list[DumpAnswer | None],
    memory_bytes=192 * 1024 * 1024,
)
PIPES = HelperSpec(
    "flight_recorder_pipes",
    "exporters.flight_recorder.pipe:ask_for_dumps",
    list[AskResult],
    memory_bytes=64 * 1024 * 1024,
)
ASK_SECONDS = 10.0

_Request = tuple[ProcessKey | None, DumpRequest]
"""The rank's process (None for recorded data) and the request for its dump."""
_Prefix = Annotated[str, msgspec.Meta(pattern=r"^/[^\0]*$", max_length=1024)]


class FlightRecorderConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``prefixes``: further dump paths, as jobs see them, without the final rank number; ``%j``: the job id.

    Use ``prefixes`` for programs that set PyTorch's variable themselves, because their initial environment lacks it.
    ``ask``: trigger dumps of silent ranks through their pipes (TORCH_NCCL_DEBUG_INFO_PIPE_FILE). A rank is silent if
    its present pause is longer than ``silence_seconds`` and than all its earlier pauses.
    """

    prefixes: Annotated[list[_Prefix], msgspec.Meta(max_length=16)] = msgspec.field(default_factory=list)
    ask: bool = False
    silence_seconds: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 180.0


class FlightRecorderExporter(ShownExporter[FlightSnapshot]):
    """Exports the dumps of this node's ranks, and triggers dumps of silent ranks if configured."""

    def __init__(self, config: FlightRecorderConfig) -> None:
        super().__init__(FlightSnapshot(), render)
        self._config = config
        self._served: dict[RankLabel, int] = {}
        self._looks = 0
        self._look_at = self._alone_until = float("-inf")
        self._asker = DumpAsker(config.silence_seconds)

    async def start(self, ctx: Context) -> None:
        """Prepare the helpers. This touches no file."""
        self._ctx = ctx
        self._thread = ctx.thread("flight_recorder")
        self._helper = ctx.helper(READER)
        self._pipes = ctx.helper(PIPES)
        self._registry = DumpRegistry(ctx.admit)
        ctx.ranks.keep_variables(VARIABLES | {PIPE_VARIABLE})
        ctx.evidence.offer(self._part)

    async def update(self) -> None:
        """Search for dumps if it is time. Raise NoData while no dump of this node's ranks exists."""
        now = self._ctx.clock.monotonic()
        if self._ctx.once or now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            try:
                await self._look()
            finally:  # the registry is correct even if the helper failed
                self.shown = FlightSnapshot(self._registry.shown(), dict(self._registry.counts))
            if self._config.ask and not self._ctx.once:  # last, so that a failing helper hides no dump
                await self._ask()
        if not self._registry.counts:
            raise NoData

    async def _part(self, wanted: Wanted) -> Offered:
        return part(self._registry.shown(), wanted.job_id)

    async def _look(self) -> None:
        now = self._ctx.clock.time()
        views = {view.label: view for view in self._ctx.ranks.snapshot().ranks}
        self._registry.tidy(views, now)
        self._served = {label: look for label, look in self._served.items() if label in views}
        if self._ctx.once:
            requests = await self._thread.call(lambda: recorded(self._config.prefixes))
        else:
            requests = self._requests(views, now)
        if not requests:
            return
        self._looks += 1
        try:
            answers = await self._helper.call([request for _, request in requests.values()], HELPER_SECONDS)
        except HelperError:
            self._served |= dict.fromkeys(requests, self._looks)
            self._alone_until = self._ctx.clock.monotonic() + ALONE_SECONDS
            raise
        results = set()
        for (label, (process, request)), answer in zip(requests.items(), answers, strict=False):
            self._registry.take(label, process, request.uid, answer, now)
            results.add("" if answer is None else answer.result)
            if answer is None or answer.result != "pending":
                self._served[label] = self._looks
        if "pending" in results or self._is_alone():
            self._look_at = float("-inf")
        elif results & DECODED:
            self._helper.rest()  # frees the memory of the decoded files

    async def _ask(self) -> None:
        """Trigger dumps of silent ranks. A later search finds the dumps."""
        views, clock = self._ctx.ranks.snapshot().ranks, self._ctx.clock
        requests = self._asker.due(views, str(self._ctx.roots.proc), clock.time(), clock.monotonic())
        if requests:
            results: list[AskResult] = await self._pipes.call(list(requests.values()), ASK_SECONDS)
            self._asker.asked |= dict.fromkeys(requests, clock.monotonic())
            self._ctx.log.info("asked silent ranks for dumps", results=dict(Counter(results)))
            self._pipes.rest()

    def _requests(self, views: Mapping[RankLabel, RankView], now: float) -> dict[RankLabel, _Request]:
        """Return this search's requests, ranks with the oldest answers first; of equal ranks the users take turns."""
        pids = reached_by(views.values())
        requests: dict[RankLabel, _Request] = {}
        sort_keys: dict[RankLabel, tuple[int, int]] = {}
        of_user: Counter[int] = Counter()
        for label, view in views.items():
            facts, pid = view.process.facts, pids.get(label, 0)
            if facts.uid is None or not pid or not is_looked_at(view, now):
                continue
            request = DumpRequest(
                job_id=label.job_id,
                rank=int(label.rank),
                uid=facts.uid,
                paths=paths_of(facts, label.rank, view.process.scheduled_job_id or label.job_id, self._config.prefixes),
                started=facts.start_seconds,
                world_size=view.process.world_size,
                known=self._registry.known(label, facts.key),
                proc_root=str(self._ctx.roots.proc),
                pid=pid,
            )
            requests[label] = (facts.key, request)
            sort_keys[label] = (self._served.get(label, 0), of_user[facts.uid])
            of_user[facts.uid] += 1
        most = 1 if self._is_alone() else MAX_RANKS
        return {label: requests[label] for label in sorted(requests, key=sort_keys.__getitem__)[:most]}

    def _is_alone(self) -> bool:
        return self._ctx.clock.monotonic() < self._alone_until


def recorded(prefixes: Iterable[str]) -> dict[RankLabel, _Request]:
    """Return requests for the dumps of recorded data, whose ranks have no processes on this node."""
    requests: dict[RankLabel, _Request] = {}
    for prefix in prefixes:
        directory, _, begin = prefix.rpartition("/")
        for name in os.listdir(directory) if os.path.isdir(directory) else ():
            rank = name.removeprefix(begin)
            if name.startswith(begin) and is_number(rank):
                path = f"{directory}/{name}"
                uid = os.stat(path).st_uid
                requests[RankLabel(RECORDED, rank)] = (None, DumpRequest(RECORDED, int(rank), uid, [path]))
    return requests


SPEC = Spec(
    name="flight_recorder",
    config=FlightRecorderConfig,
    build=FlightRecorderExporter,
    interval_seconds=INTERVAL_SECONDS,
    deadline_seconds=HELPER_SECONDS,
    families=FAMILIES,
)
