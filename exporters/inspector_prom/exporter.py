"""Finds the plugin's files through the ranks' descriptors, lets a helper read the files, and maps files to ranks."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial

from agent.sdk.exporter import Context, ExporterConfig, NoData, ShownExporter, Spec
from agent.sdk.files import in_turns
from agent.sdk.helper import HelperSpec
from agent.sdk.ranks import ProcessKey, RankLabel, RankView
from agent.sdk.system import ProcFS
from exporters.inspector_prom import descriptors
from exporters.inspector_prom.descriptors import HeldMeans
from exporters.inspector_prom.families import FAMILIES, Means, MeansFile, MeansState, render
from exporters.inspector_prom.reading import FileMeans, MeansRequest
from exporters.inspector_prom.text import MeansText, parse

INTERVAL_SECONDS = 5.0
OTHERS_SECONDS = 30.0
"""Interval for examining ranks that are not known to be in this mode: nccl.conf may enable this mode, too."""
HELPER_SECONDS = 5.0  # The helper answers within GRACE_SECONDS, even if a file system hangs
MAX_READ = 16  # Files read in one poll: even if all are full, the helper's answer is within its limit
READER = HelperSpec(
    "inspector_prom", "exporters.inspector_prom.reading:look", list[FileMeans | None], memory_bytes=64 * 1024 * 1024
)


class InspectorPromConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """No directory is configured: a rank's own descriptors lead to its files."""


Ranks = dict[ProcessKey, list[RankView]]
"""The running rank processes whose Inspector wrote no records (in Prometheus mode it writes none), each with its ranks.
"""


class InspectorPromExporter(ShownExporter[Mapping[RankLabel, Means]]):
    """Exports the means in the files of ranks whose Inspector is in Prometheus mode."""

    def __init__(self, _config: InspectorPromConfig) -> None:
        super().__init__({}, render)
        self._states: dict[RankLabel, MeansState] = {}
        self._held: dict[ProcessKey, list[HeldMeans] | None] = {}
        self._looked_at: dict[ProcessKey, float] = {}
        self._files: dict[descriptors.FileKey, MeansFile] = {}
        self._means: dict[HeldMeans, FileMeans] = {}

    async def start(self, ctx: Context) -> None:
        """Prepare the thread and the helper; nothing is read yet."""
        self._ctx = ctx
        self._proc = ProcFS(ctx.roots.proc)
        self._thread = ctx.thread("inspector_prom")
        self._helper = ctx.helper(READER)
        ctx.ranks.keep_variables(descriptors.VARIABLES)

    async def update(self) -> None:
        """Poll once; NoData if no rank is in this mode."""
        here = ranks_here(self._ctx.ranks.snapshot().ranks)
        now = self._ctx.clock.monotonic()
        await self._look_for_files(here, now)
        await self._look_at_files(here, now)
        self._show(here, now)
        if not self._states:
            raise NoData

    async def _look_for_files(self, here: Ranks, now: float) -> None:
        """Find the files that ranks hold: at each poll for ranks in this mode, every OTHERS_SECONDS for other ranks."""
        self._held = {key: files for key, files in self._held.items() if key in here}
        looked_at = self._looked_at = {key: self._looked_at.get(key, float("-inf")) for key in here}
        due = [
            key
            for key in sorted(here, key=looked_at.__getitem__)
            if self._held.get(key) or _asks(here[key]) or now - looked_at[key] >= OTHERS_SECONDS
        ]
        keys = in_turns(due, lambda key: _uid(here[key]), descriptors.MAX_PROCESSES)
        self._looked_at.update(dict.fromkeys(keys, now))
        self._held |= await self._thread.call(lambda: {key: descriptors.held_by(self._proc, key) for key in keys})

    async def _look_at_files(self, here: Ranks, now: float) -> None:
        """Check the files; read a file with new contents once its identity is the same in two polls."""

        def user(held: HeldMeans) -> int:
            return _uid(here[held.key])

        every = [held for files in self._held.values() for held in files or ()]
        chosen = in_turns(every, user, descriptors.MAX_FILES)
        if len(every) > len(chosen):
            self._ctx.log.warning("more files of means exist than are read", files=len(every), most=len(chosen))
        for file in self._files.keys() - {held.file for held in chosen}:
            del self._files[file]
            self._ctx.admit.release(file)
        files = {held: self._files.setdefault(held.file, MeansFile()) for held in chosen}
        wanted = [held for held in chosen if files[held].wants() is not None]
        once, proc_root = self._ctx.once, str(self._ctx.roots.proc)
        read = set(chosen if once else in_turns(wanted, user, MAX_READ))
        requests = [
            MeansRequest(
                proc_root=proc_root,
                pid=held.key.pid,
                uid=user(held),
                fd=held.fd,
                target=os.fsencode(held.target),  # a name that is not UTF-8 cannot be sent as text
                at_rest=file.wants() if held in read else None,
                at_once=once,
            )
            for held, file in files.items()
        ]
        answers = await self._helper.call(requests, HELPER_SECONDS) if requests else []
        self._means = {held: means for held, means in zip(chosen, answers, strict=True) if means is not None}
        for held, means in self._means.items():
            files[held].note(means.identity, now, self._ctx.clock.time())
        raw = {held: means.raw for held, means in self._means.items() if means.raw is not None}

        def parsed() -> dict[HeldMeans, MeansText]:
            return {held: parse(text) for held, text in raw.items()}

        for held, text in (await self._thread.call(parsed) if raw else {}).items():
            self._ctx.admit.release(held.file)
            group = (user(held), here[held.key][0].label.job_id)
            skipped = files[held].take(text, partial(self._ctx.admit.admit, held.file, group=group))
            if +skipped:
                reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(skipped.items()) if count)
                self._ctx.log.warning("lines of means were left out", uid=group[0], job_id=group[1], reasons=reasons)

    def _show(self, here: Ranks, now: float) -> None:
        """Set the state of each rank, and show the rows that are provably the rank's own."""
        holders: defaultdict[tuple[int, int], list[descriptors.MeansHolder]] = defaultdict(list)
        owners = {}
        for held, means in self._means.items():
            holders[means.identity[:2]].append((held.key, _uid(here[held.key])))
            owners[means.identity[:2]] = means.owner_uid
        proven = descriptors.writers(holders, owners)
        states: dict[RankLabel, MeansState] = {}
        shown, read = {}, set()
        for key, views in here.items():
            if not self._held.get(key) and not _asks(views):
                continue
            for view in views:
                state, file = self._state(key, view, proven, now)
                states[view.label] = state
                is_new = state is not self._states.get(view.label)
                if is_new and state in (MeansState.UNPROVEN, MeansState.UNREADABLE):
                    self._ctx.log.warning(
                        "rank {rank} of job {job_id} shows no means: {why}",
                        **view.label._asdict(),
                        why=state.value,
                        uid=_uid(views),
                    )
                waits = state is MeansState.WAITING and descriptors.will_write(_environment(views))
                if state in (MeansState.READ, MeansState.IDLE) or waits:
                    read.add(key)
                if state is MeansState.READ and file is not None:
                    shown[view.label] = file.means
        self._ctx.ranks.observe_read_otherwise(frozenset(read))
        self.shown, self._states = shown, states

    def _state(
        self, key: ProcessKey, view: RankView, proven: Mapping[tuple[int, int], ProcessKey], now: float
    ) -> tuple[MeansState, MeansFile | None]:
        files = self._held.get(key, [])
        if not files:
            return (MeansState.UNREADABLE if files is None else MeansState.WAITING), None
        held = own_file(view, files)
        means = None if held is None else self._means.get(held)
        if held is None or (means is not None and proven.get(means.identity[:2]) != key):
            return MeansState.UNPROVEN, None
        if means is None:
            return MeansState.UNREADABLE, None
        file = self._files[held.file]
        is_fresh = file.is_fresh(now, descriptors.interval_seconds(_environment([view])))
        return (MeansState.READ if is_fresh else MeansState.IDLE), file


def ranks_here(views: Iterable[RankView]) -> Ranks:
    """Return the running rank processes without records."""
    by_process: defaultdict[ProcessKey, list[RankView]] = defaultdict(list)
    for view in views:
        if view.process.exited_at is None and view.process.progress_seconds is None:
            by_process[view.process.key].append(view)
    return by_process


def _uid(views: list[RankView]) -> int:
    """Return the user of a process; -1 when unknown."""
    uid = views[0].uid
    return -1 if uid is None else uid


def _environment(views: list[RankView]) -> Mapping[str, str]:
    return views[0].process.facts.environment or {}


def _asks(views: list[RankView]) -> bool:
    return descriptors.asks_for_means(_environment(views))


def own_file(view: RankView, held: list[HeldMeans]) -> HeldMeans | None:
    """Return a rank's file: the only file of a process with one rank, or the file of the rank's GPU; else None."""
    if len(view.process.slots or ()) == 1 and len(held) == 1:
        return held[0]
    gpus = {gpu.uuid.removeprefix("GPU-").lower() for gpu in view.gpus()}
    of_rank = [held_means for held_means in held if held_means.uuid in gpus]
    return of_rank[0] if len(of_rank) == len(gpus) == 1 else None


SPEC = Spec(
    name="inspector_prom",
    config=InspectorPromConfig,
    build=InspectorPromExporter,
    interval_seconds=INTERVAL_SECONDS,
    deadline_seconds=5.0,
    families=FAMILIES,
)
