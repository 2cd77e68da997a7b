"""The exporter: looks at /proc, asks where the policy says so, one query at a time, and keeps what was answered."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import msgspec

from agent.api import Context, Metric, NoData, ProcessKey, Spec
from exporters.ras.client import Endpoint, Limits
from exporters.ras.config import RasConfig
from exporters.ras.families import FAMILIES, Snapshot, render
from exporters.ras.inquiry import READER, Aim, Answer, Inquiry
from exporters.ras.jobs import (
    LocalProcess,
    Question,
    Rules,
    Standing,
    libraries,
    local_processes,
    owner_of,
    standings,
    to_ask,
)
from exporters.ras.listeners import ListenerSearch, Site
from exporters.ras.monitor import Monitors
from exporters.ras.policy import (
    Pace,
    Role,
    Timing,
    Wake,
    after_query,
    after_wake,
    first_wait_seconds,
    may_monitor,
    next_pace,
)
from exporters.ras.report import Report
from exporters.ras.reports import Reports
from exporters.ras.witness import Greet, Witness

INTERVAL_SECONDS = 2.0
"""How often /proc is looked at; queries are rarer."""
COLLECTIVE_SECONDS = 5
LARGE_JOB_RANKS = 1024
LARGE_JOB_COLLECTIVE_SECONDS = 30
"""What jobs are given to gather a report: the library's own default, and more above that size."""
DRAIN_SECONDS = 45.0
"""For a query under way: the longest that a large job's may take, and more than any with the library's own timeouts."""
STALE_INTERVALS = 3.0
SINGLE_PASS_LOOKS = 50
SINGLE_PASS_LOOK_SECONDS = 0.1
"""How often a single pass looks until the ranks are found, and how long it waits in between."""


class _Visit(msgspec.Struct):
    """One job at an address: when it is asked, and how its last queries went."""

    timing: Timing
    pace: Pace = Pace()
    up: bool | None = None


class RasExporter:
    """See the module. Queries run inside ``update``, so there is never more than one."""

    def __init__(self, config: RasConfig) -> None:
        self._config = config
        self._sites: dict[Endpoint, Site] = {}
        self._visits: dict[Question, _Visit] = {}
        self._asking = asyncio.Lock()
        self._drained = False

    async def start(self, ctx: Context) -> None:
        """Prepare the search and the questions; nobody is asked yet."""
        self._ctx = ctx
        self._thread = ctx.thread("ras")
        self._random = random.Random()  # noqa: S311  # spreads queries over time; no secret
        self._rules = Rules(self._config.role, self._config.oldest(), ctx.once)
        self._monitors = Monitors(ctx.clock, ctx.log, self._has_reached_a_rank)
        self._kept = Reports(ctx.admit)
        self._witness = Witness(ctx.ranks, ctx.clock, self._thread, ctx.roots.proc)
        endpoints = self._config.endpoints()
        self._search = await self._thread.call(lambda: ListenerSearch(ctx.roots.proc, endpoints))
        self._helper = ctx.helper(READER)
        self._inquiry = Inquiry(self._thread, self._helper, self._search, ctx.log)

    async def update(self) -> None:
        """Look who listens, ask those whose time has come; NoData when nobody listens, or this node never asks."""
        if self._config.role == "off":
            raise NoData
        await self._look()
        await self._monitors.follow(self._audible())
        if self._ctx.once and self._config.role == "reporter" and self._sites:
            await self._wait_for_ranks()
        standings = self._standings()
        # One that may not be asked for a while is not asked the sooner for it.
        jobs = {each.job_id for each in standings}
        self._visits = {
            at: visit for at, visit in self._visits.items() if at.endpoint in self._sites and at.job_id in jobs
        }
        self._heed(self._monitors.take_wakes())
        for question, role in to_ask(standings).items():
            visit = self._visits.setdefault(question, self._first_visit(role))
            if self._ctx.clock.monotonic() >= visit.timing.due_at and not self._drained:
                async with self._asking:
                    await self._ask(question, role, visit)
        self._forget()
        if not self._sites:
            raise NoData

    def snapshot(self) -> Snapshot:
        """Copy what is known, each report under its job."""
        jobs, processes = self._standings(), self._processes()
        return Snapshot(
            up=self._up(to_ask(jobs)),
            duration_seconds=self._inquiry.duration_seconds,
            queries=self._inquiry.queries,
            errors=Counter(self._inquiry.errors),
            timeouts=self._inquiry.timeouts,
            skipped=Counter(self._inquiry.skipped),
            listeners={endpoint.label: (len(site.servers), site.unowned) for endpoint, site in self._sites.items()},
            jobs=tuple(jobs),
            libraries=libraries(processes, self._sites.values()),
            reports=self._kept.named(processes),
            heard=self._monitors.snapshot(),
        )

    def families(self, snapshot: Snapshot) -> Iterable[Metric]:
        """Render; pure."""
        return render(snapshot)

    async def drain(self) -> None:
        """Ask nobody any more, and read a query under way to its end."""
        self._drained = True
        await self._monitors.drain()
        async with self._asking:
            await self._helper.stop()
        for job_id in list(self._kept.by_job):
            self._kept.release(job_id)
        self._witness.forget(())
        self._thread.stop()

    async def _look(self) -> None:
        keys = tuple(self._processes())
        self._sites = await self._thread.call(lambda: self._search.look(keys))

    def _audible(self) -> dict[Endpoint, frozenset[ProcessKey]]:
        """The addresses whose events are to be heard, with those who serve them; none in a single pass."""
        if self._ctx.once or self._drained:
            return {}
        oldest = self._config.oldest()
        return {at: frozenset(site.servers) for at, site in self._sites.items() if may_monitor(site, oldest)}

    def _heed(self, wakes: Mapping[Endpoint, Wake]) -> None:
        """Put forward the next query where something happened, for the nodes that ask."""
        now = self._ctx.clock.monotonic()
        for question, visit in self._visits.items():
            if wake := wakes.get(question.endpoint):
                visit.timing = after_wake(visit.timing, wake, visit.pace, now, self._random.random())

    async def _has_reached_a_rank(self, endpoint: Endpoint, client: Endpoint) -> bool:
        """In a pod's namespace an address may be anybody's elsewhere: there the server must be seen to be a rank."""
        site = self._sites.get(endpoint)
        if site is None or site.is_own:
            return site is not None
        return await self._thread.call(lambda: self._search.server_of(site, endpoint, client)) is not None

    async def _wait_for_ranks(self) -> None:
        """In a single pass the ranks are being looked for at the same time; those who listen are among them."""
        for _ in range(SINGLE_PASS_LOOKS):
            if not any(site.unowned for site in self._sites.values()):
                return
            await asyncio.sleep(SINGLE_PASS_LOOK_SECONDS)
            await self._look()

    async def _ask(self, question: Question, role: Role, visit: _Visit) -> None:
        processes, site = self._processes(), self._sites[question.endpoint]
        members = [process for process in processes.values() if process.job_id == question.job_id]
        wanted = frozenset(process.key for process in members if process.key in site.servers)
        if not wanted:  # they left since it was decided
            return
        limits = Limits(
            timeout_factor=max(site.servers[key].timeout_factor for key in wanted),
            collective_seconds=LARGE_JOB_COLLECTIVE_SECONDS
            if visit.pace.ranks > LARGE_JOB_RANKS
            else COLLECTIVE_SECONDS,
        )
        pids = frozenset(process.namespace_pid for process in processes.values())
        aim = Aim(question.endpoint, site, wanted, pids)
        answers = await self._inquiry.reports(aim, limits)
        best = min(answers, key=lambda answer: answer.report.missing(), default=None)
        visit.up = best is not None
        visit.pace = next_pace(visit.pace, best and (best.report, best.seconds))
        now = self._ctx.clock.monotonic()
        visit.timing = after_query(visit.timing, role, visit.pace, now, self._random.random())
        until = now + STALE_INTERVALS * (visit.timing.due_at - now)
        await self._keep(
            answers, site, until, lambda keys: self._inquiry.present(aim._replace(wanted=keys & wanted), limits)
        )

    async def _keep(self, answers: list[Answer], site: Site, until: float, greet: Greet) -> None:
        """Take the best report of each job in the place of its last one."""
        processes = self._processes()
        here = [processes[key] for key in site.servers if key in processes]
        of_job: dict[str, list[tuple[LocalProcess, Report]]] = {}
        for answer in sorted(answers, key=lambda answer: answer.report.missing()):
            known = processes.get(answer.server) if answer.server is not None else None
            owner = known or owner_of(answer.report, here)
            if owner is None:
                self._inquiry.skipped["foreign_report"] += 1
            else:
                of_job.setdefault(owner.job_id, []).append((owner, answer.report))
        for job_id, [(owner, best), *others] in of_job.items():
            self._keep_one(owner, best, until)
            members = [process for process in processes.values() if process.job_id == job_id]
            await self._witness.testify(job_id, best, [report for _, report in others], members, greet)

    def _keep_one(self, owner: LocalProcess, report: Report, until: float) -> None:
        if owner.job_id not in self._kept.by_job:
            self._ctx.log.info("RAS answers", job_id=owner.job_id, version=report.version, ranks=report.ranks())
        if not self._kept.keep(owner, report, until, self._ctx.clock.time()):
            self._inquiry.skipped["refused"] += 1

    def _forget(self) -> None:
        here = {process.job_id for process in self._processes().values()}
        self._kept.forget(self._ctx.clock.monotonic(), here)
        self._witness.forget(self._kept.by_job.keys())

    def _first_visit(self, role: Role) -> _Visit:
        wait = 0.0 if self._ctx.once else first_wait_seconds(role, self._random.random())
        return _Visit(Timing(self._ctx.clock.monotonic() + wait))

    def _up(self, asked: Collection[Question]) -> dict[str, bool]:
        """By address: whether the last query of every job there gave a report."""
        up: dict[str, bool] = {}
        for question, visit in self._visits.items():
            if question in asked and visit.up is not None:
                up[question.endpoint.label] = visit.up and up.get(question.endpoint.label, True)
        return up

    def _standings(self) -> list[Standing]:
        return standings(self._processes().values(), self._sites, self._rules, self._ctx.clock.time())

    def _processes(self) -> dict[ProcessKey, LocalProcess]:
        return local_processes(self._ctx.ranks, self._search.namespace)


SPEC = Spec(
    name="ras",
    config=RasConfig,
    build=RasExporter,
    interval_seconds=INTERVAL_SECONDS,
    deadline_seconds=60.0,
    families=FAMILIES,
    drain_seconds=DRAIN_SECONDS,
    series_cap=30_000,
)
