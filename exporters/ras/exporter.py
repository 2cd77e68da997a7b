"""Scans /proc, sends the queries that the policy allows, one at a time, and keeps the reports.

A query can take minutes when processes are stopped. Scans of /proc continue meanwhile.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from weakref import WeakSet

import msgspec

from agent.sdk.evidence import Offered, Wanted
from agent.sdk.exporter import MAX_SECTION_BYTES, Context, NoData, Spec
from agent.sdk.metrics import Metric
from agent.sdk.ranks import ProcessKey, PublishedProcess
from exporters.ras.config import RasConfig
from exporters.ras.local.listeners import ListenerSearch, Site
from exporters.ras.protocol.client import Endpoint, QueryLimits
from exporters.ras.query.jobs import (
    OwnedJob,
    Processes,
    QueryPlan,
    Rules,
    Schedules,
    job_of,
    libraries,
    query_plans,
    world_size_of,
)
from exporters.ras.query.monitor import Monitors
from exporters.ras.query.policy import Schedule, collective_seconds, may_monitor
from exporters.ras.query.reports import Reports, SavedJob, to_save
from exporters.ras.query.runner import FILE_READER, READER, JobFiles, QueryAnswer, QueryRunner, QueryTarget
from exporters.ras.query.witness import Greet, Witness
from exporters.ras.report.model import Report
from exporters.ras.show import FAMILIES, RasSnapshot, bundle_part, render, stalls

INTERVAL_SECONDS = 2.0
SEARCH_SECONDS = 6.0
"""Interval between searches for listeners while the ranks stay the same. A search makes the kernel walk its table of
sockets: 25 ms on a node with 128 GiB."""
DRAIN_SECONDS = 45.0
"""Time for a running query to end: the longest query of a large job with the library's default timeouts."""
FILE_ROUNDS = 2
STALE_INTERVALS = 2.0  # A report expires when the next report is this number of intervals late
TOLERATED_FAILURES = 2  # Consecutive failed queries for which a report stays
SINGLE_PASS_LOOKS = 50  # Limit of searches for the ranks in a single pass
SINGLE_PASS_LOOK_SECONDS = 0.1  # Pause between two searches

_ROUNDS: WeakSet[asyncio.Task[None]] = WeakSet()
"""All rounds of queries that have not ended: after a reload the previous exporter may still read a reply to its end."""


class RasExporter:
    """Queries RAS and reads its events; exports the reports and counts of the events."""

    def __init__(self, config: RasConfig) -> None:
        self._config = config
        self._sites: dict[Endpoint, Site] = {}
        self._searched: tuple[ProcessKey, ...] = ()
        self._search_at = 0.0  # monotonic
        self._round: asyncio.Task[None] | None = None
        self._drained = False
        self._logged: dict[OwnedJob, tuple[bool, frozenset[str]]] = {}

    async def start(self, ctx: Context) -> None:
        """Prepare the search for listeners and the schedule; no query is made yet."""
        self._ctx = ctx
        self._thread = ctx.thread("ras")
        self._spread = random.Random()  # noqa: S311  # spreads queries over time; no secret
        self._schedules = Schedules(self._config.min_interval_seconds, self._spread, once=ctx.once)
        self._monitors = Monitors(ctx.clock, ctx.log, self._has_reached_a_rank)
        self._reports = Reports(ctx.admit, ctx.state.restore(list[SavedJob], ctx.log) or ())
        self._witness = Witness(ctx.ranks, ctx.clock, self._thread, ctx.roots.proc)
        self._search = await self._thread.call(lambda: ListenerSearch(ctx.roots.proc, self._config.endpoints()))
        role, most = self._config.configured_role(), self._config.max_ranks
        self._rules = Rules(role, self._config.oldest(), ctx.once, most, self._search.namespace)
        self._files = JobFiles(ctx.helper(FILE_READER), self._thread, ctx.log)
        ctx.evidence.offer(self._bundle_part)
        ctx.evidence.tell_stalls(lambda: stalls(self._reports.named({})))
        self._runner = QueryRunner(self._thread, ctx.helper(READER), self._search, self._is_unchanged, ctx.log)

    async def update(self) -> None:
        """Find the listeners and begin the queries that are due; NoData when nothing listens or the role is off."""
        if self._config.configured_role() == "off":
            raise NoData
        await self._end_of_round()
        if self._ctx.clock.monotonic() >= self._search_at or self._searched != tuple(self._processes()):
            await self._look()
        await self._monitors.follow(self._monitored())
        if self._ctx.once and self._config.configured_role() == "reporter" and self._sites:
            await self._wait_for_ranks()
        plans = self._query_plans()
        self._schedules.keep(self._sites, {plan.job for plan in plans})
        if self._round is None:  # else the end of the query would set the time again
            self._schedules.reschedule_after_events(plans, self._monitors.take_wakes(), self._ctx.clock.monotonic())
        if self._due() is not None and all(earlier.done() for earlier in _ROUNDS):
            self._round = asyncio.get_running_loop().create_task(self._query_all(), name="ras-queries")
            _ROUNDS.add(self._round)
        if self._ctx.once:
            await self.settle()
        self._forget()
        if not self._sites:
            raise NoData

    async def settle(self) -> None:
        """Wait until no query is under way."""
        if self._round is not None:
            await asyncio.wait({self._round})
        await self._end_of_round()

    def snapshot(self) -> RasSnapshot:
        """Copy the state; each report is under its job id."""
        jobs, processes = self._query_plans(), self._processes()
        schedules = self._schedules.of(jobs)
        return RasSnapshot(
            up=self._up(schedules),
            schedules={
                query.job.job_id: (schedule.interval_seconds, schedule.failures)
                for query, schedule in schedules
                if query.job.job_id and schedule.interval_seconds is not None
            },
            queries=self._runner.queries,
            errors=Counter(self._runner.errors),
            listeners={endpoint.label: (len(site.servers), site.unowned) for endpoint, site in self._sites.items()},
            jobs=tuple(jobs),
            libraries=libraries(processes, self._sites.values()),
            reports=self._reports.named(processes),
            monitored=self._monitors.snapshot(),
        )

    def families(self, snapshot: RasSnapshot) -> Iterable[Metric]:
        """Render; pure."""
        return render(snapshot)

    async def drain(self) -> None:
        """Start no more queries, and read the reply of a running query to its end."""
        self._drained = True
        await self._monitors.drain()
        if self._round is not None:
            await asyncio.wait({self._round})

    async def _bundle_part(self, request: Wanted) -> Offered:
        return bundle_part(self._reports.named(self._processes()).get(request.job_id))

    async def _end_of_round(self) -> None:
        """Forget the last round of queries if it has ended; raise its error, if any."""
        if self._round is not None and self._round.done():
            ended, self._round = self._round, None
            await ended

    async def _query_all(self) -> None:
        """Query the due jobs one after the other, with a new scan of /proc after each query."""
        while (due := self._due()) is not None:  # right after a scan, while the planned processes still run
            await self._query(*due)
            await self._look()

    def _due(self) -> tuple[QueryPlan, Schedule] | None:
        plans = [] if self._drained else self._query_plans()
        return self._schedules.due(plans, self._ctx.clock.monotonic())

    async def _is_unchanged(self, endpoint: Endpoint, site: Site) -> bool:
        """Scan again; return True if exactly the same processes listen at the address, and no shutdown has begun."""
        await self._look()
        now = self._sites.get(endpoint)
        return not self._drained and now is not None and not now.unowned and now.servers.keys() == site.servers.keys()

    async def _look(self) -> None:
        keys = tuple(self._processes())
        # Without a rank there is nothing to query: listeners are left alone.
        self._sites = await self._search_all(keys) if keys or self._ctx.once else {}
        self._searched, self._search_at = keys, self._ctx.clock.monotonic() + SEARCH_SECONDS

    async def _search_all(self, keys: tuple[ProcessKey, ...]) -> dict[Endpoint, Site]:
        """Scan, read the files that the scan needs (settings, then libraries), and scan again."""
        sites = await self._thread.call(lambda: self._search.look(keys))
        for _ in range(FILE_ROUNDS):
            if not await self._files.read_for(self._search):
                break
            sites = await self._thread.call(lambda: self._search.look(keys))
        return sites

    def _monitored(self) -> dict[Endpoint, frozenset[ProcessKey]]:
        """Return the addresses to monitor, with the processes that serve them; {} in a single pass."""
        if self._ctx.once or self._drained:
            return {}
        oldest, sites = self._rules.oldest, self._sites.items()
        return {at: frozenset(site.servers) for at, site in sites if may_monitor(site, oldest)}

    async def _has_reached_a_rank(self, endpoint: Endpoint, client: Endpoint) -> bool:
        """Return True when a rank's process that listens at the address has accepted a connection."""
        site = self._sites.get(endpoint)
        return site is not None and await self._runner.server_of(site, endpoint, client) is not None

    async def _wait_for_ranks(self) -> None:
        """In a single pass, wait until all listening processes are known as ranks: the rank search runs meanwhile."""
        for _ in range(SINGLE_PASS_LOOKS):
            if not any(site.unowned for site in self._sites.values()):
                return
            await asyncio.sleep(SINGLE_PASS_LOOK_SECONDS)
            await self._look()

    async def _query(self, query: QueryPlan, schedule: Schedule) -> None:
        processes, site = self._processes(), self._sites[query.endpoint]
        members = [process for process in processes.values() if job_of(process) == query.job]
        servers = frozenset(process.key for process in members if process.key in site.servers)
        soft_timeout = collective_seconds(max(schedule.ranks, world_size_of(members)))
        limits = QueryLimits(max(site.servers[key].timeout_factor for key in servers), soft_timeout)
        owned = [process for process in processes.values() if job_of(process).owner == query.job.owner]
        pids = frozenset(process.facts.namespace_pid for process in owned)
        names, addresses = self._reports.names(query.job), await self._witness.addresses(owned)
        target = QueryTarget(query.endpoint, site, servers, pids, query.job.job_id, names, addresses)
        queried_seconds = self._ctx.clock.time()
        answer: tuple[Report, float] | None = None
        try:
            answers = await self._runner.reports(target, limits)
            answer = (answers[0].report, answers[0].seconds) if answers else None
        finally:  # after an unexpected error the next query must wait, too
            now, jitter = self._ctx.clock.monotonic(), self._spread.random()
            schedule.note(query.role, answer, world_size_of(members), now, jitter)
        until = schedule.due_at + STALE_INTERVALS * (schedule.interval_seconds or 0.0)
        if schedule.failures <= TOLERATED_FAILURES:
            self._reports.postpone(query.job, until)

        async def greet(keys: frozenset[ProcessKey]) -> frozenset[ProcessKey]:
            return await self._runner.present(target._replace(servers=keys & servers), limits)

        await self._keep(answers, until, queried_seconds, greet)

    async def _keep(self, answers: list[QueryAnswer], until: float, queried_seconds: float, greet: Greet) -> None:
        """Replace each job's last report by the first report of this job in ``answers``; for the times see _keep_one.

        A report belongs to the job of the process that answered, and applies only to that job's processes.
        """
        processes = self._processes()
        of_job: dict[OwnedJob, list[tuple[PublishedProcess, Report]]] = {}
        for answer in answers:
            if (server := processes.get(answer.server)) is not None:  # else the process has ended since
                of_job.setdefault(job_of(server), []).append((server, answer.report))
        for job, [(server, best), *others] in of_job.items():
            self._keep_one(server, best, until, queried_seconds)
            members = [process for process in processes.values() if job_of(process) == job]
            await self._witness.update_liveness(job, best, [report for _, report in others], members, greet)

    def _keep_one(self, owner: PublishedProcess, report: Report, until: float, queried_seconds: float) -> None:
        """Keep a report queried at ``queried_seconds`` (epoch); it holds until monotonic time ``until``."""
        is_admitted = self._reports.keep(owner, report, until, queried_seconds)
        job = job_of(owner)
        if (outcome := (is_admitted, frozenset(report.skipped))) == self._logged.get(job):
            return
        self._logged[job] = outcome
        left_out = ", ".join(f"{count} {reason}" for reason, count in sorted(report.skipped.items())) or "nothing"
        about = {"job_id": job.job_id, "ranks": report.ranks(), "version": report.version, "left_out": left_out}
        if is_admitted:
            self._ctx.log.info("RAS reports on job {job_id}: {ranks} ranks", **about)
        else:
            self._ctx.log.warning("no series are left for RAS's reports on job {job_id}", **about)

    def _forget(self) -> None:
        """Forget jobs that left this node, and expired reports unless a query is under way; publish the checkpoint."""
        jobs = {job_of(process) for process in self._processes().values()}
        self._reports.forget(jobs)
        self._logged = {job: outcome for job, outcome in self._logged.items() if job in jobs}
        if self._round is None or self._round.done():
            self._reports.expire(self._ctx.clock.monotonic())
        self._witness.forget(self._reports.until.keys())
        self._ctx.state.publish(msgspec.msgpack.encode(to_save(self._reports.watches)))

    def _up(self, schedules: Iterable[tuple[QueryPlan, Schedule]]) -> dict[str, bool]:
        """Return for each address whether the last query of every job at this address gave a report."""
        up: dict[str, bool] = {}
        for query, schedule in schedules:
            if schedule.up is not None:
                up[query.endpoint.label] = schedule.up and up.get(query.endpoint.label, True)
        return up

    def _query_plans(self) -> list[QueryPlan]:
        return query_plans(self._processes().values(), self._sites, self._rules, self._ctx.clock.time())

    def _processes(self) -> Processes:
        return self._ctx.ranks.snapshot().running


SPEC = Spec(
    name="ras",
    config=RasConfig,
    build=RasExporter,
    interval_seconds=INTERVAL_SECONDS,
    deadline_seconds=10.0,
    families=FAMILIES,
    checkpoint_bytes=MAX_SECTION_BYTES,
    drain_seconds=DRAIN_SECONDS,
    series_cap=30_000,
)
