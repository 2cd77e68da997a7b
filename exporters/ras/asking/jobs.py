"""The jobs of this node: which are queried, at which address, and when. No I/O."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from random import Random
from typing import NamedTuple

import msgspec

from agent.sdk.ranks import ProcessKey, PublishedProcess
from exporters.ras.asking import policy
from exporters.ras.local.job_files import Version
from exporters.ras.local.listeners import Site
from exporters.ras.protocol.client import Endpoint
from exporters.ras.report.model import Report


class OwnedJob(NamedTuple):
    """The processes of one owner that carry one job id; ``job_id`` is empty until it is published."""

    job_id: str
    owner: str = ""


Processes = Mapping[ProcessKey, PublishedProcess]
"""The rank processes that run here."""


def job_of(process: PublishedProcess) -> OwnedJob:
    """Return the job of a process. Without a known owner its user owns it; without a known user, the process itself."""
    facts = process.facts
    owner = facts.owner.key if facts.owner.name else f"uid/{facts.uid}"
    if not facts.owner.name and facts.uid is None:
        owner = f"process/{facts.key.pid}/{facts.key.start_ticks}"
    return OwnedJob(process.labels[0].job_id if process.labels else "", owner)


def size_of(process: PublishedProcess) -> int | None:
    """Return the number of ranks of a process' job; None if it is not known."""
    world = process.world()
    return process.world_size or (world.size if world is not None else None)


class JobStanding(msgspec.Struct, frozen=True):
    """One local job: this node's role in querying it, the address, and why it is not queried (None: it is)."""

    job: OwnedJob
    role: policy.Role
    endpoint: Endpoint | None
    refusal: policy.Refusal | None


class Question(NamedTuple):
    """A job to be queried at an address; it has no name where nothing has named its processes."""

    endpoint: Endpoint
    job: OwnedJob
    role: policy.Role


class Rules(msgspec.Struct, frozen=True):
    """What the configuration and the mode of the agent allow. ``own_namespace``: its network namespace (an inode)."""

    configured: policy.Configured
    oldest: Version
    once: bool
    max_ranks: int | None = None
    own_namespace: int = 0


def standings(
    processes: Iterable[PublishedProcess], sites: Mapping[Endpoint, Site], rules: Rules, now_seconds: float
) -> list[JobStanding]:
    """Return the standing of each local job, sorted. An owner's processes without a label are one job."""
    jobs: dict[OwnedJob, list[PublishedProcess]] = defaultdict(list)
    started: dict[ProcessKey, float] = {}
    here = (0, rules.own_namespace)
    for process in processes:
        jobs[job_of(process)].append(process)
        started[process.key] = process.facts.start_seconds

    def youngest_seconds(site: Site) -> float:
        return now_seconds - max(started[key] for key in site.servers if key in started)

    def standing(job: OwnedJob, members: list[PublishedProcess]) -> JobStanding:
        labels = [label for member in members for label in member.labels]
        ranks = {int(label.rank) for label in labels if label.rank.isdecimal()} if labels else None
        world_size = world_size_of(members)
        role = policy.role_of(rules.configured, ranks, world_size or None)
        endpoint = next(
            (at for at, site in sites.items() if any(member.key in site.servers for member in members)), None
        )
        why: policy.Refusal | None
        if rules.once and rules.configured != "reporter":
            why = "single_pass"
        elif role == "none":
            why = "not_elected"
        elif rules.max_ranks is not None and world_size > rules.max_ranks:
            why = "too_large"
        elif endpoint is None:
            why = (
                "network_namespace"
                if any(member.facts.network_namespace not in here for member in members)
                else "no_listener"
            )
        else:
            why = policy.refusal(sites[endpoint], rules.oldest, youngest_seconds(sites[endpoint]))
        return JobStanding(job, role, endpoint, why)

    return [standing(job, jobs[job]) for job in sorted(jobs)]


def world_size_of(members: Iterable[PublishedProcess]) -> int:
    """Return the number of ranks of the job that these processes are of, 0 where it is not known."""
    return max((size_of(member) or 0 for member in members), default=0)


def to_ask(job_standings: Iterable[JobStanding]) -> list[Question]:
    """Return the jobs to query, each with its address, and this node's role."""
    return [
        Question(job_standing.endpoint, job_standing.job, job_standing.role)
        for job_standing in job_standings
        if job_standing.endpoint is not None and job_standing.refusal is None
    ]


def libraries(processes: Processes, sites: Iterable[Site]) -> frozenset[tuple[str, str, str]]:
    """Return the libraries of the jobs' processes that listen: job, flavor and version."""
    return frozenset(
        (job_of(processes[key]).job_id, server.flavor, ".".join(map(str, server.version)))
        for site in sites
        for key, server in site.servers.items()
        if server.version is not None and key in processes and processes[key].labels
    )


class Visits:
    """See the module. Times are monotonic; ``least_seconds``: the shortest interval that the site allows."""

    def __init__(self, least_seconds: float, random: Random, *, once: bool) -> None:
        self._least_seconds = least_seconds
        self._random = random
        self._once = once
        self._known: dict[tuple[Endpoint, OwnedJob], policy.Visit] = {}

    def keep(self, sites: Collection[Endpoint], jobs: Collection[OwnedJob]) -> None:
        """Forget all but these. A job that may not be queried for a while keeps its schedule."""
        self._known = {at: visit for at, visit in self._known.items() if at[0] in sites and at[1] in jobs}

    def reschedule_after_events(self, wakes: Collection[Endpoint], now: float) -> None:
        """Put the next query forward at the addresses in ``wakes``; ``now`` is monotonic."""
        for (endpoint, _), visit in self._known.items():
            if endpoint in wakes:
                visit.hasten(now, self._random.random())

    def due(self, wanted: Collection[Question], now: float) -> tuple[Question, policy.Visit] | None:
        """Return the query of ``wanted`` that was due first; None when none is due."""
        for question in wanted:
            if question[:2] not in self._known:
                wait = 0.0 if self._once else policy.first_wait_seconds(question.role, self._random.random())
                self._known[question[:2]] = policy.Visit(now + wait, self._least_seconds)
        due = [(question, visit) for question, visit in self.of(wanted) if visit.due_at <= now]
        return min(due, key=lambda due_visit: due_visit[1].due_at, default=None)

    def note(
        self, question: Question, visit: policy.Visit, answer: tuple[Report, float] | None, world_size: int, now: float
    ) -> None:
        """Note the result of a query: its report and duration in seconds, or None; ``world_size`` 0: not known."""
        visit.note(question.role, answer, world_size, now, self._random.random())

    def of(self, asked: Collection[Question]) -> list[tuple[Question, policy.Visit]]:
        """Return the visits of these questions."""
        return [(question, self._known[question[:2]]) for question in asked if question[:2] in self._known]
