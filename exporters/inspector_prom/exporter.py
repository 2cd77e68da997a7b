"""The exporter: finds the files by the ranks' descriptors, has a helper read them, and says whose they are."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import partial

import msgspec

from agent.sdk.exporter import Context, ExporterConfig, NoData, Spec
from agent.sdk.helper import HelperSpec
from agent.sdk.metrics import Metric
from agent.sdk.ranks import ProcessKey, RankProcess, RankView
from agent.sdk.system import ProcFS
from exporters.inspector_prom import descriptors
from exporters.inspector_prom.families import FAMILIES, MeansFile, MeansSnapshot, MeansState, RankMeans, render
from exporters.inspector_prom.reading import FoundMeans, MeansRequest
from exporters.inspector_prom.text import MeansText, parse

INTERVAL_SECONDS = 5.0
OTHERS_SECONDS = 30.0
"""How often descriptors are looked at of ranks that were not seen to be in this mode: nccl.conf may ask for it, too."""
HELPER_SECONDS = 5.0  # The helper waits for no file system; it answers within its grace
MAX_READ = 16  # Files read in one look: with all that they hold an answer of the helper's stays below its bound
READER = HelperSpec(
    "inspector_prom", "exporters.inspector_prom.reading:look", list[FoundMeans | None], memory_bytes=64 * 1024 * 1024
)


class InspectorPromConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """No directory is configured: a rank's own descriptors lead to its files."""


class MeansProcess(msgspec.Struct, frozen=True):
    """A rank process that runs and has written no records, with the ranks that it is."""

    key: ProcessKey
    process: RankProcess
    views: tuple[RankView, ...]

    @property
    def uid(self) -> int:
        """Its user; -1 where that is not known."""
        facts = self.process.facts
        return -1 if facts is None or facts.uid is None else facts.uid

    @property
    def environment(self) -> Mapping[str, str] | None:
        """Return the variables of its environment that are kept."""
        return None if self.process.facts is None else self.process.facts.environment


class InspectorPromExporter:
    """See the package."""

    def __init__(self, config: InspectorPromConfig) -> None:
        del config
        self._held: dict[ProcessKey, list[descriptors.HeldMeans] | None] = {}
        self._looked_at: dict[ProcessKey, float] = {}
        self._files: dict[descriptors.FileKey, MeansFile] = {}
        self._found: dict[descriptors.HeldMeans, FoundMeans] = {}
        self._skipped: Counter[str] = Counter()
        self._shown = MeansSnapshot()

    async def start(self, ctx: Context) -> None:
        """Prepare; nothing is looked at yet."""
        self._ctx = ctx
        self._proc = ProcFS(ctx.roots.proc)
        self._thread = ctx.thread("inspector_prom")
        self._helper = ctx.helper(READER)
        ctx.ranks.keep_variables(descriptors.VARIABLES)

    async def update(self) -> None:
        """Look once; NoData where no rank is in this mode."""
        here = ranks_here(self._ctx.ranks.snapshot().ranks)
        now = self._ctx.clock.monotonic()
        await self._look_for_files(here, now)
        await self._look_at_files(here, now)
        self._show(here, now)
        if not self._shown.states:
            raise NoData

    def snapshot(self) -> MeansSnapshot:
        """What the last look gave."""
        return self._shown

    def families(self, snapshot: MeansSnapshot) -> Iterable[Metric]:
        """Render; pure."""
        return render(snapshot)

    async def drain(self) -> None:
        """Release these files: this exporter reads them no more."""
        self._ctx.ranks.read_otherwise = frozenset()
        for file in self._files:
            self._ctx.admit.release(file)

    async def _look_for_files(self, here: Mapping[ProcessKey, MeansProcess], now: float) -> None:
        """Find what ranks hold: of those in this mode at each look, of the others now and then."""
        self._held = {key: files for key, files in self._held.items() if key in here}
        self._looked_at = {key: at for key, at in self._looked_at.items() if key in here}
        due = [
            rank
            for rank in here.values()
            if self._held.get(rank.key)
            or descriptors.asks_for_means(rank.environment)
            or now - self._looked_at.get(rank.key, float("-inf")) >= OTHERS_SECONDS
        ]
        due.sort(key=lambda rank: self._looked_at.get(rank.key, float("-inf")))
        keys = [rank.key for rank in descriptors.by_turns(due, lambda rank: rank.uid, descriptors.MAX_PROCESSES)]
        self._looked_at.update(dict.fromkeys(keys, now))
        self._held.update(await self._thread.call(partial(descriptors.look, self._proc, keys)))

    async def _look_at_files(self, here: Mapping[ProcessKey, MeansProcess], now: float) -> None:
        """Have the files looked at, and those read that stood still since the last look."""
        every = [held for files in self._held.values() for held in files or ()]
        chosen = descriptors.by_turns(every, lambda held: here[held.key].uid, descriptors.MAX_FILES)
        self._skipped["files"] += len(every) - len(chosen)
        for file in self._files.keys() - {held.file for held in chosen}:
            del self._files[file]
            self._ctx.admit.release(file)
        wanted = [held for held in chosen if self._file(held).wants() is not None]
        read = chosen if self._ctx.once else descriptors.by_turns(wanted, lambda held: here[held.key].uid, MAX_READ)
        requests = [self._request(held, here[held.key], set(read)) for held in chosen]
        answers = await self._helper.call(requests, HELPER_SECONDS) if requests else []
        self._found = {held: found for held, found in zip(chosen, answers, strict=True) if found is not None}
        for held, found in self._found.items():
            self._file(held).note(found.place, now, self._ctx.clock.time())
        raw = {held: found.raw for held, found in self._found.items() if found.raw is not None}
        texts = await self._thread.call(partial(parse_all, raw)) if raw else {}
        for held, text in texts.items():
            self._take(held, text, here[held.key])

    def _file(self, held: descriptors.HeldMeans) -> MeansFile:
        return self._files.setdefault(held.file, MeansFile())

    def _request(
        self, held: descriptors.HeldMeans, rank: MeansProcess, read: set[descriptors.HeldMeans]
    ) -> MeansRequest:
        at_rest = self._file(held).wants() if held in read else None
        proc_root, once = str(self._ctx.roots.proc), self._ctx.once
        return MeansRequest(proc_root, held.key.pid, rank.uid, held.fd, held.target, at_rest, once)

    def _take(self, held: descriptors.HeldMeans, text: MeansText, rank: MeansProcess) -> None:
        """Take in the text of a file; its series are admitted again."""
        self._ctx.admit.release(held.file)
        group = (rank.uid, rank.views[0].label.job_id)
        self._skipped += self._file(held).take(text, partial(self._ctx.admit.admit, held.file, group=group))

    def _show(self, here: Mapping[ProcessKey, MeansProcess], now: float) -> None:
        """Say of each rank how it stands, and show what is proven to be its own."""
        holders: defaultdict[tuple[int, int], list[descriptors.MeansHolder]] = defaultdict(list)
        owners = {}
        for held, found in self._found.items():
            holders[found.place[:2]].append(descriptors.MeansHolder(held.key, here[held.key].uid))
            owners[found.place[:2]] = found.owner_uid
        proven = descriptors.writers(holders, owners)
        states: Counter[MeansState] = Counter()
        shown, read = [], set()
        for rank in here.values():
            if not self._held.get(rank.key) and not descriptors.asks_for_means(rank.environment):
                continue
            for view in rank.views:
                state, file = self._state(rank, view, proven, now)
                states[state] += 1
                if state in (MeansState.READ, MeansState.IDLE) or (
                    state is MeansState.WAITING and descriptors.will_write(rank.environment)
                ):
                    read.add(rank.key)
                if state is MeansState.READ and file is not None:
                    shown.append(RankMeans(view.label, file.written_seconds, file.rows))
        self._ctx.ranks.read_otherwise = frozenset(read)
        self._shown = MeansSnapshot(tuple(shown), states, +self._skipped)

    def _state(
        self, rank: MeansProcess, view: RankView, proven: Mapping[tuple[int, int], ProcessKey], now: float
    ) -> tuple[MeansState, MeansFile | None]:
        """Return how it stands with one rank, and its file."""
        files = self._held.get(rank.key, [])
        if not files:
            return (MeansState.UNREADABLE if files is None else MeansState.WAITING), None
        held = own_file(rank, view, files)
        if held is None:
            return MeansState.UNPROVEN, None
        found = self._found.get(held)
        if found is None:
            return MeansState.UNREADABLE, None
        if proven.get(found.place[:2]) != rank.key:
            return MeansState.UNPROVEN, None
        file = self._file(held)
        return (
            MeansState.READ if file.is_fresh(now, descriptors.interval_seconds(rank.environment)) else MeansState.IDLE
        ), file


def parse_all(raw: Mapping[descriptors.HeldMeans, bytes]) -> dict[descriptors.HeldMeans, MeansText]:
    """What each of the files says."""
    return {held: parse(text) for held, text in raw.items()}


def ranks_here(views: Iterable[RankView]) -> dict[ProcessKey, MeansProcess]:
    """Return the running rank processes without records: this mode replaces the records."""
    found: defaultdict[ProcessKey, list[RankView]] = defaultdict(list)
    for view in views:
        process = view.process
        if process.facts is not None and process.exited_at is None and process.progress_seconds is None:
            found[process.facts.key].append(view)
    return {key: MeansProcess(key, each[0].process, tuple(each)) for key, each in found.items()}


def own_file(
    rank: MeansProcess, view: RankView, files: Iterable[descriptors.HeldMeans]
) -> descriptors.HeldMeans | None:
    """The file of one rank of a process: its only one, or that of the rank's own GPU; None where that is unknown."""
    held = list(files)
    if len(rank.process.slots or ()) == 1 and len(held) == 1:
        return held[0]
    gpus = {gpu.uuid.removeprefix("GPU-").lower() for gpu in view.gpus()}
    own = [each for each in held if each.uuid in gpus]
    return own[0] if len(own) == len(gpus) == 1 else None


SPEC = Spec(
    name="inspector_prom",
    config=InspectorPromConfig,
    build=InspectorPromExporter,
    interval_seconds=INTERVAL_SECONDS,
    deadline_seconds=5.0,
    families=FAMILIES,
)
