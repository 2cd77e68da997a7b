"""The jobs of this node: which jobs it queries, at which address and when. No I/O."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from random import Random
from typing import NamedTuple

import msgspec

from agent.sdk.ranks import ProcessKey, PublishedProcess
from exporters.ras.local.job_files import Version
from exporters.ras.local.listeners import Site
from exporters.ras.protocol.client import Endpoint
from exporters.ras.query import policy


class OwnedJob(NamedTuple):
    """The processes of one owner with one job id; ``job_id`` is empty until the agent publishes it."""

    job_id: str
    owner: str = ""


Processes = Mapping[ProcessKey, PublishedProcess]
"""The rank processes that run on this node."""


def job_of(process: PublishedProcess) -> OwnedJob:
    """Return the job of a process. The job's owner is the process's owner, else its user, else the process itself."""
    facts = process.facts
    owner = facts.owner.key if facts.owner.name else f"uid/{facts.uid}"
    if not facts.owner.name and facts.uid is None:
        owner = f"process/{facts.key.pid}/{facts.key.start_ticks}"
    return OwnedJob(process.labels[0].job_id if process.labels else "", owner)


def size_of(process: PublishedProcess) -> int | None:
    """Return the number of ranks of a process's job; None when unknown."""
    world = process.world()
    return process.world_size or (world.size if world is not None else None)


NOWHERE = Endpoint("", 0)


class QueryPlan(NamedTuple):
    """The plan for one local job: this node's role, and the reason not to query (None: this node queries).

    ``endpoint``: the address, NOWHERE if no process of the job listens. The job id is empty while no source has named
    the job.
    """

    endpoint: Endpoint
    job: OwnedJob
    role: policy.Role
    refusal: policy.Refusal | None = None


class Rules(msgspec.Struct, frozen=True):
    """What the configuration and the agent's mode allow. ``own_namespace``: inode of the agent's network namespace."""

    configured: policy.Configured
    oldest: Version
    once: bool
    max_ranks: int | None = None
    own_namespace: int = 0


def query_plans(
    processes: Collection[PublishedProcess], sites: Mapping[Endpoint, Site], rules: Rules, now_seconds: float
) -> list[QueryPlan]:
    """Return the plan for each local job, sorted by job. An owner's processes without a label are one job."""
    jobs: dict[OwnedJob, list[PublishedProcess]] = defaultdict(list)
    for process in processes:
        jobs[job_of(process)].append(process)

    def youngest_seconds(site: Site) -> float:
        return now_seconds - max(process.facts.start_seconds for process in processes if process.key in site.servers)

    def plan(job: OwnedJob, members: list[PublishedProcess]) -> QueryPlan:
        labels = [label for member in members for label in member.labels]
        ranks = {int(label.rank) for label in labels if label.rank.isdecimal()} if labels else None
        world_size = world_size_of(members)
        role = policy.role_of(rules.configured, ranks, world_size or None)
        served = (at for at, site in sites.items() if any(member.key in site.servers for member in members))
        endpoint = next(served, NOWHERE)
        why: policy.Refusal | None
        if rules.once and rules.configured != "reporter":
            why = "single_pass"
        elif role == "none":
            why = "not_elected"
        elif rules.max_ranks is not None and world_size > rules.max_ranks:
            why = "too_large"
        elif endpoint is NOWHERE:
            is_elsewhere = any(member.facts.network_namespace not in (0, rules.own_namespace) for member in members)
            why = "network_namespace" if is_elsewhere else "no_listener"
        else:
            why = policy.refusal(sites[endpoint], rules.oldest, youngest_seconds(sites[endpoint]))
        return QueryPlan(endpoint, job, role, why)

    return [plan(job, jobs[job]) for job in sorted(jobs)]


def world_size_of(members: Iterable[PublishedProcess]) -> int:
    """Return the number of ranks of the job of these processes; 0 when unknown."""
    return max((size_of(member) or 0 for member in members), default=0)


def libraries(processes: Processes, sites: Iterable[Site]) -> frozenset[tuple[str, str, str]]:
    """Return (job id, flavor, version) of the libraries of listening ranks."""
    return frozenset(
        (job_of(processes[key]).job_id, server.flavor, ".".join(map(str, server.version)))
        for site in sites
        for key, server in site.servers.items()
        if server.version is not None and key in processes and processes[key].labels
    )


class Schedules:
    """The schedule of each query, in monotonic times. ``least_seconds``: the configured shortest interval."""

    def __init__(self, least_seconds: float, random: Random, *, once: bool) -> None:
        self._least_seconds = least_seconds
        self._random = random
        self._once = once
        self._known: dict[tuple[Endpoint, OwnedJob], policy.Schedule] = {}

    def keep(self, sites: Collection[Endpoint], jobs: Collection[OwnedJob]) -> None:
        """Keep only schedules of these addresses and jobs. A job that may not be queried now keeps its schedule."""
        self._known = {at: schedule for at, schedule in self._known.items() if at[0] in sites and at[1] in jobs}

    def reschedule_after_events(self, plans: Iterable[QueryPlan], wakes: Collection[Endpoint], now: float) -> None:
        """Move the next query forward at the addresses in ``wakes``; ``now`` is monotonic.

        An event reaches all nodes. Queries with the role ``labels`` stay: else all nodes would query at once.
        """
        roles = {plan[:2]: plan.role for plan in plans}
        for at, schedule in self._known.items():
            if at[0] in wakes and roles.get(at) != "labels":
                schedule.hasten(now, self._random.random())

    def due(self, plans: Iterable[QueryPlan], now: float) -> tuple[QueryPlan, policy.Schedule] | None:
        """Return a due query with its schedule, None when no query is due.

        The owners take turns, since a query of a silent job takes minutes. Of an owner's queries the one that has been
        due longest is first.
        """
        allowed = [plan for plan in plans if plan.refusal is None]
        for query in allowed:
            if query[:2] not in self._known:
                wait = 0.0 if self._once else policy.first_wait_seconds(query.role, self._random.random())
                self._known[query[:2]] = policy.Schedule(now + wait, self._least_seconds)
        due = [(query, schedule) for query, schedule in self.of(allowed) if schedule.due_at <= now]
        served: dict[str, float] = {}
        for (_, job), schedule in self._known.items():
            served[job.owner] = max(schedule.queried_at, served.get(job.owner, -math.inf))
        return min(due, key=lambda pair: (served[pair[0].job.owner], pair[1].due_at), default=None)

    def of(self, plans: Iterable[QueryPlan]) -> list[tuple[QueryPlan, policy.Schedule]]:
        """Return the queries that the plans allow, with their schedules."""
        queries = (plan for plan in plans if plan.refusal is None and plan[:2] in self._known)
        return [(query, self._known[query[:2]]) for query in queries]
