"""Watches the rank table, collects the parts of a bundle, and lets a thread write it."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from agent.sdk.evidence import Offered, Wanted, folder as bundle_files, summary as summaries
from agent.sdk.exporter import Context, NoData, Spec
from agent.sdk.files import in_turns
from agent.sdk.metrics import Family, Metric
from agent.sdk.ranks import RankView
from exporters.evidence import bundle, story
from exporters.evidence.config import EvidenceConfig
from exporters.evidence.processes import ProcessFiles
from exporters.evidence.story import NAMES, because, live_pids, ranks_file, share_of, user_of
from exporters.evidence.watch import Occasion, TroubleWatch

LOOK_SECONDS = 1.0
FREEZE_SECONDS = 3.0  # Time limit of reading a job's processes at a first abnormal exit; meanwhile no rank is watched
FROZEN_SECONDS = 120.0
"""Files that were read at a first abnormal exit wait this long for a verdict. The slowest verdict takes 45 s."""
MAX_FROZEN = 8  # Limit of jobs with waiting files; at the limit the user with the most such jobs loses the oldest
MAX_WAITING, MAX_WAITING_PER_USER = 16, 4
"""Bundles that wait while another is made. At MAX_WAITING the user with the most waiting bundles loses the newest."""
PROCESSES, WRITING, PLACES = "processes", "bundle", "places"
# fmt: off
FAILURES = Family("rankwatch_evidence_failures_total", "counter",
    "Parts that are missing in bundles, by part: an exporter's name, or processes. bundle: the bundle could not be "
    "written. places: a limit of waiting or kept bundles left no place for a bundle.",
    ("part",), "1 per part that failed", "sum")
# fmt: on


class _Frozen(NamedTuple):
    at: float
    files: Mapping[str, bytes]
    user: str


class _Due(NamedTuple):
    occasion: Occasion
    user: str


class EvidenceExporter:
    """Takes the bundles of evidence."""

    def __init__(self, config: EvidenceConfig) -> None:
        self._config = config
        self._folder = Path(config.path)
        self._watch = TroubleWatch(config.silence_seconds)
        self._begun: dict[str, float] = {}
        self._frozen: dict[str, _Frozen] = {}
        self._failures: Counter[str] = Counter()
        self._waiting: list[_Due] = []
        self._task: asyncio.Task[None] | None = None
        self._has_begun = False

    async def start(self, ctx: Context) -> None:
        """Request the environment variables that a bundle may hold, and prepare the threads."""
        self._ctx = ctx
        self._looks = ProcessFiles(ctx.thread)
        self._reader = ctx.thread("evidence-read")  # ranks are watched while a bundle is written
        self._writer = ctx.thread("evidence-write")
        ctx.ranks.keep_variables(NAMES)
        if self._config.serve:
            ctx.evidence.serve(self._file)

    async def update(self) -> None:
        """Start the bundles that are due; NoData if their directory does not exist and cannot be made."""
        if not await self._reader.call(self._has_room_for_bundles):
            raise NoData
        if self._ctx.once:
            return
        if not self._has_begun:
            self._learn(await self._reader.call(self._existing))
            self._has_begun = True
        clock = self._ctx.clock
        views = self._ctx.ranks.snapshot().ranks
        users = {view.label.job_id: view.process.user for view in views}
        look = self._watch.look(views, clock.time(), self._ctx.evidence.struck())
        self._drop_frozen()
        for job_id in in_turns(sorted(look.failing - self._frozen.keys()), users.__getitem__, MAX_FROZEN):
            await self._freeze(job_id, views)
        stalled = self._ctx.failures.attempt(
            "which jobs stand still", lambda: self._watch.stalled(self._ctx.evidence.stalls())
        )
        for occasion in (*look.occasions, *(stalled or ())):
            self._wait_for(occasion, users.get(occasion.job_id, ""))
        for job_id in await self._reader.call(lambda: bundle_files.take_requests(self._folder)):
            if job_id in users:  # a misspelt name must not take the place of another job's bundle
                self._waiting.insert(0, _Due(Occasion(job_id, "asked", ""), ""))
        if self._waiting and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._take_all())

    def _wait_for(self, occasion: Occasion, user: str) -> None:
        """Queue a bundle, unless the job had one in the last ``minutes_between``; drop bundles over the limits."""
        now = self._ctx.clock.monotonic()
        if now - self._begun.get(occasion.job_id, float("-inf")) < 60 * self._config.minutes_between:
            return
        self._begun[occasion.job_id] = now
        self._waiting.append(_Due(occasion, user))
        dues = [due for due in self._waiting if due.occasion.trigger != "asked"]
        room = max(MAX_WAITING - (len(self._waiting) - len(dues)), 0)
        stay = in_turns(dues, lambda due: due.user, room)
        over = [due for due in dues if due.user == user][MAX_WAITING_PER_USER:]
        for lost in [due for due in dues if due in over or due not in stay]:
            self._waiting.remove(lost)
            self._begun.pop(lost.occasion.job_id, None)
            self._failures[PLACES] += 1

    async def _take_all(self) -> None:
        while self._waiting:
            await self._writer.call(lambda: None)  # while an earlier write hangs, no further bundle is collected
            occasion, user = self._waiting.pop(0)
            try:
                await self._take(occasion)
            except bundle.FolderFullError as error:
                self._failures[PLACES] += 1
                self._ctx.log.warning("no place for a bundle of evidence", job_id=occasion.job_id, error=error)
            except Exception as error:  # noqa: BLE001  # only this bundle is lost
                self._failures[WRITING] += 1
                self._ctx.log.error(
                    "no bundle of evidence could be made", job_id=occasion.job_id, user=user, error=error
                )

    async def _take(self, occasion: Occasion) -> None:
        views = _of_job(self._ctx.ranks.snapshot().ranks, occasion.job_id)
        taken_at = self._ctx.clock.time()
        words = story.verdict_words(views)
        left_at = {v.label.rank: v.process.exited_seconds for v in views if v.process.exited_at is not None}
        wanted = Wanted(occasion.job_id, live_pids(views), tuple(story.suspects(words, left_at)))
        files: dict[str, bytes] = {"ranks.json": ranks_file(views)}
        events: list[summaries.Event] = []
        parts = []
        frozen = self._frozen.pop(occasion.job_id, None)
        if frozen is not None:
            files |= {f"at-first-exit/{name}": data for name, data in frozen.files.items()}
        for name, offered, failed, took in await self._offers(wanted, share_of(views)):
            inside = {file if name == PROCESSES else f"{name}/{file}": data for file, data in offered.files.items()}
            files |= inside
            words += list(offered.words)[: summaries.MAX_LISTED]
            events += list(offered.events)[: summaries.MAX_LISTED]
            parts.append(summaries.Part(name, sum(map(len, inside.values())), round(took, 3), failed or offered.why))
            self._failures[name] += bool(failed)
        files, left_out = bundle.fitted(files, self._config.megabytes_per_bundle * 1024 * 1024)
        if left_out:
            parts.append(summaries.Part("left out", 0, 0.0, f"no room: {', '.join(left_out)}"[: summaries.MAX_TEXT]))
        summary = summaries.Summary(
            format=1,
            job_id=occasion.job_id[: summaries.MAX_TEXT],
            node=self._ctx.hostname,
            taken_at=taken_at,
            trigger=occasion.trigger,
            because=because(occasion),
            version=bundle_files.VERSION,
            ranks=[story.of_rank(view, taken_at, words) for view in views][: summaries.MAX_LISTED],
            words=words[: summaries.MAX_LISTED],
            suspects=story.suspects(words, left_at)[: summaries.MAX_LISTED],
            timeline=story.time_line(views, self._watch.changes(occasion.job_id), events),
            parts=parts,
            user=user_of(views)[: summaries.MAX_TEXT],
        )
        written = await self._write(files, summary)
        self._ctx.log.info(
            "a bundle of evidence was taken",
            job_id=occasion.job_id,
            user=summary.user,
            file=written,
            because=summary.because,
        )

    async def _offers(self, wanted: Wanted, share: str) -> list[tuple[str, Offered, str, float]]:
        """Return the name of each part, its content, its error (or ""), and the seconds that it took."""
        makers = self._ctx.evidence.all()
        seconds = self._config.seconds_per_bundle
        works = {PROCESSES: self._processes(wanted, share, seconds)} | {
            name: makers[name](wanted) for name in sorted(makers)
        }
        made = await asyncio.gather(*(self._timed(name, work, seconds) for name, work in works.items()))
        return [(name, *result) for name, result in zip(works, made, strict=True)]

    async def _write(self, files: dict[str, bytes], summary: summaries.Summary) -> str:
        name = bundle.bundle_name(summary.job_id, summary.taken_at, self._ctx.hostname)
        troubled = self._watch.troubled
        write = self._writer.call(
            lambda: bundle.write(self._folder, name, files, summary, self._config.keep_bundles, troubled)
        )
        return await asyncio.wait_for(write, self._config.seconds_per_bundle)

    async def _timed(self, name: str, work: Awaitable[Offered], seconds: float) -> tuple[Offered, str, float]:
        """Return a part, its error (or ""), and the seconds that it took; cancel it after ``seconds``."""
        began = self._ctx.clock.monotonic()
        offered, failed = Offered({}), ""
        try:
            offered = await asyncio.wait_for(work, seconds)
        except TimeoutError:
            failed = f"not there within {seconds:g} s"
        except Exception as error:  # noqa: BLE001  # only this part is lost
            failed = f"{type(error).__name__}: {error}"[: summaries.MAX_TEXT]
            self._ctx.log.warning("a part of the evidence failed", part=name, error=error)
        return offered, failed, self._ctx.clock.monotonic() - began

    async def _processes(self, wanted: Wanted, share: str, seconds: float) -> Offered:
        roots = self._ctx.roots
        return Offered(await self._looks.look(roots.proc, roots.sys / "fs" / "cgroup", share, wanted.pids, seconds))

    async def _freeze(self, job_id: str, views: Iterable[RankView]) -> None:
        """Keep the state of the job's processes: after a death the launcher ends the other ranks within a second."""
        ranks = _of_job(views, job_id)
        work = self._processes(Wanted(job_id, live_pids(ranks), ()), share_of(ranks), FREEZE_SECONDS)
        made, failed, _ = await self._timed(PROCESSES, work, FREEZE_SECONDS)
        self._failures[PROCESSES] += bool(failed)
        self._frozen[job_id] = _Frozen(self._ctx.clock.monotonic(), made.files, user_of(ranks))
        stay = in_turns(reversed(self._frozen), lambda job: self._frozen[job].user, MAX_FROZEN)
        self._frozen = {job: frozen for job, frozen in self._frozen.items() if job in stay}

    def _drop_frozen(self) -> None:
        now = self._ctx.clock.monotonic()
        self._frozen = {job: frozen for job, frozen in self._frozen.items() if now - frozen.at < FROZEN_SECONDS}
        self._begun = {
            job: begun for job, begun in self._begun.items() if now - begun < 60 * self._config.minutes_between
        }

    async def _file(self, name: str) -> bytes | None:
        data = await self._reader.call(lambda: bundle_files.read_file(self._folder, name))
        if data is not None:
            self._ctx.log.info("a file of evidence was served over HTTP", file=name)
        return data

    def _has_room_for_bundles(self) -> bool:
        """Return True when /proc exists, and the directory for bundles exists or can be made. Blocking."""
        return self._ctx.roots.proc.is_dir() and (self._folder.is_dir() or self._folder.parent.is_dir())

    def _existing(self) -> list[tuple[str, summaries.Summary]]:
        """Make the directory for bundles and requests, if possible, and return the existing bundles. Blocking."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, exist_ok=True)
        return list(bundle_files.summaries(self._folder))

    def _learn(self, bundles: Iterable[tuple[str, summaries.Summary]]) -> None:
        """Note the times of existing bundles, so that a restarted agent takes no second bundle for the same reason."""
        clock = self._ctx.clock
        for _, summary in bundles:
            if summary.trigger != "asked":
                age = max(0.0, clock.time() - summary.taken_at)
                self._begun[summary.job_id] = clock.monotonic() - age  # the newest bundle comes last
                covered = self._watch.covered
                covered[summary.job_id] = max(covered.get(summary.job_id, 0.0), min(summary.taken_at, clock.time()))

    def snapshot(self) -> Mapping[str, int]:
        """Return the failures by part."""
        return {WRITING: 0, **+self._failures}

    def families(self, snapshot: Mapping[str, int]) -> Iterable[Metric]:
        """Return the metric families of a snapshot. Pure."""
        yield FAILURES.by_label(snapshot)

    async def drain(self) -> None:
        """Cancel the bundle being made: a restart must not wait for it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def _of_job(views: Iterable[RankView], job_id: str) -> list[RankView]:
    return [view for view in views if view.label.job_id == job_id]


SPEC = Spec(
    name="evidence",
    config=EvidenceConfig,
    build=EvidenceExporter,
    interval_seconds=LOOK_SECONDS,
    deadline_seconds=5.0,
    families=(FAILURES,),
    series_cap=3000,
)
