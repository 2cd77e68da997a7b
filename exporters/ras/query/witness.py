"""What RAS reports about the ranks on this node: their communicators, and the processes that do not answer.

A report names processes by address and pid. A running process that does not answer may hang, or its RAS thread may be
cut off. After a process was stopped for a minute and continues, all others report it as dead forever; the process
itself answers again, and reports all others as dead (tested, NCCL 2.24 to 2.32). Reports that miss a process are
contradicted if another report has the process's answer, or if the process answers a greeting (the handshake before a
query), which costs the job nothing.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path

import msgspec

from agent.sdk.exporter import Clock, OwnThread
from agent.sdk.metrics import comm_label
from agent.sdk.ranks import Membership, ProcessKey, PublishedProcess, RankWriter, RasSilence
from exporters.ras.local.sockets import addresses_in
from exporters.ras.query.jobs import OwnedJob
from exporters.ras.report.model import Addresses, Report

Host = tuple[str, int]  # Address, and pid in the job's pid namespace
Greet = Callable[[frozenset[ProcessKey]], Awaitable[frozenset[ProcessKey]]]
"""Greets processes of this node; returns the processes that answer."""


class Witness:
    """Reports to the rank table which processes RAS misses. ``thread`` reads processes' addresses in ``proc_root``."""

    def __init__(self, ranks: RankWriter, clock: Clock, thread: OwnThread, proc_root: Path) -> None:
        self._ranks = ranks
        self._clock = clock
        self._thread = thread
        self._root = proc_root
        self._silences: dict[OwnedJob, dict[ProcessKey, RasSilence]] = {}

    async def update_liveness(
        self, job: OwnedJob, best: Report, others: Iterable[Report], here: list[PublishedProcess], greet: Greet
    ) -> None:
        """Apply the reports of one query of a job; ``here``: the job's processes on this node."""
        names = await self._thread.call(lambda: self._names(best, here))
        memberships: dict[Host, list[Membership]] = defaultdict(list)
        for member in best.members:
            membership = Membership(comm_label(member.hash), member.comm_rank, member.size)
            memberships[member.location[:2]].append(membership)
        for key, host in names.items():
            self._ranks.observe_memberships(key, memberships[host])
        if missed := silent_hosts(best):
            before = self._silences.get(job, {})
            contradicted = {key for key, silence in before.items() if silence.contradicted}
            present = await greet(frozenset(key for key, host in names.items() if host in missed) - contradicted)
            now = (self._clock.monotonic(), self._clock.time())
            self._silences[job] = silences(before, best, others, names, now, present)
        else:
            self._silences.pop(job, None)
        self._publish()

    def forget(self, jobs: Collection[OwnedJob]) -> None:
        """Withdraw the silences of jobs other than ``jobs``: the other jobs have no fresh report."""
        ended = self._silences.keys() - jobs
        for job in ended:
            del self._silences[job]
        if ended:
            self._publish()

    def _publish(self) -> None:
        self._ranks.observe_silences({key: of_job for job in self._silences.values() for key, of_job in job.items()})

    async def addresses(self, processes: Collection[PublishedProcess]) -> Addresses:
        """Return the addresses of the processes' network namespaces."""
        by_namespace = await self._thread.call(lambda: self._by_namespace(processes))
        return Addresses(tuple(span for addresses in by_namespace.values() for span in addresses.ranges))

    def _by_namespace(self, processes: Collection[PublishedProcess]) -> dict[int, Addresses]:
        pids = {process.facts.network_namespace: process.key.pid for process in processes}
        return {namespace: addresses_in(self._root / f"{pid}/net") for namespace, pid in pids.items()}

    def _names(self, best: Report, here: list[PublishedProcess]) -> dict[ProcessKey, Host]:
        pids: dict[int, list[ProcessKey]] = {}
        for process in here:
            pids.setdefault(process.facts.namespace_pid, []).append(process.key)
        namespaces = {process.key: process.facts.network_namespace for process in here}
        addresses = self._by_namespace(here)
        named = named_here(best, pids)
        return unambiguous((key, host) for key, host in named if host[0] in addresses[namespaces[key]])


def silent_hosts(report: Report) -> set[Host]:
    """Return the processes that did not answer, as (address, pid)."""
    named = (rank for communicator in report.communicators for rank in communicator.named)
    return {rank.location[:2] for rank in named if rank.reason in ("unresponsive", "dead")}


def silences(
    before: Mapping[ProcessKey, RasSilence],
    best: Report,
    others: Iterable[Report],
    here: Mapping[ProcessKey, Host],
    now: tuple[float, float],
    present: Collection[ProcessKey] = (),
) -> dict[ProcessKey, RasSilence]:
    """Return the silence of each process that the report ``best`` misses. A silence in ``before`` keeps its start.

    ``here``: the job's processes of this node as reports name them; ``others``: further reports of the same query;
    ``now``: monotonic and epoch seconds; ``present``: processes that answered a greeting.
    """
    missed = silent_hosts(best)
    answered = {process for report in (best, *others) for process in report.processes}
    after = {}
    for key, host in here.items():
        if host not in missed:
            continue
        known = before.get(key) or RasSilence(*now)
        answers = known.contradicted or host in answered or key in present
        after[key] = msgspec.structs.replace(known, reports=known.reports + 1, contradicted=answers)
    return after


def unambiguous(named: Iterable[tuple[ProcessKey, Host]]) -> dict[ProcessKey, Host]:
    """Return the processes with exactly one (address, pid) that no other process has: pods can share an address and
    have equal pids."""
    by_host: dict[Host, set[ProcessKey]] = {}
    by_key: dict[ProcessKey, set[Host]] = {}
    for key, host in named:
        by_host.setdefault(host, set()).add(key)
        by_key.setdefault(key, set()).add(host)
    return {
        key: host for key, hosts in by_key.items() if len(hosts) == 1 and len(by_host[host := next(iter(hosts))]) == 1
    }


def named_here(report: Report, pids: Mapping[int, list[ProcessKey]]) -> list[tuple[ProcessKey, Host]]:
    """Return the report's processes, answering or not, with a pid in ``pids`` (by the job's pid namespace)."""
    silent = {rank.location[:2] for communicator in report.communicators for rank in communicator.named}
    return [(key, host) for host in sorted(report.processes | silent) for key in pids.get(host[1], ())]
