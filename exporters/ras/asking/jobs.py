"""The jobs of this node: which are queried, at which address, and when. No I/O."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from random import Random
from typing import NamedTuple

import msgspec

from agent.sdk.ranks import ProcessFacts, ProcessKey, RankLabel, RankTable
from exporters.ras.asking import policy
from exporters.ras.local.job_files import Version
from exporters.ras.local.listeners import Site
from exporters.ras.protocol.client import Endpoint
from exporters.ras.report.model import Report


class OwnedJob(NamedTuple):
    """The processes of one owner that carry one job id; it is empty while that is not published."""

    job_id: str
    owner: str = ""


class LocalProcess(msgspec.Struct, frozen=True):
    """A rank process that runs here. ``labels``: of its ranks that are published; ``world_size`` None: not known.

    ``namespace_pid`` is its pid as it sees it itself, ``foreign`` says that its network namespace (an inode)
    is not the agent's. ``owner``: equal for processes that may speak of each other.
    """

    key: ProcessKey
    labels: tuple[RankLabel, ...]
    world_size: int | None
    namespace_pid: int
    start_seconds: float
    network_namespace: int = 0
    foreign: bool = False
    owner: str = ""

    @property
    def job(self) -> OwnedJob:
        """Its job, of its owner."""
        return OwnedJob(self.job_id, self.owner)

    @property
    def job_id(self) -> str:
        """Its job, empty while that is not published."""
        return self.labels[0].job_id if self.labels else ""


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
    """What the configuration and the mode of the agent allow."""

    configured: policy.Configured
    oldest: Version
    once: bool
    max_ranks: int | None = None


def standings(
    processes: Iterable[LocalProcess], sites: Mapping[Endpoint, Site], rules: Rules, now_seconds: float
) -> list[JobStanding]:
    """The standing of each job with processes here, in order; an owner's without a published label are one job."""
    jobs: dict[OwnedJob, list[LocalProcess]] = defaultdict(list)
    started: dict[ProcessKey, float] = {}
    for process in processes:
        jobs[process.job].append(process)
        started[process.key] = process.start_seconds

    def youngest_seconds(site: Site) -> float:
        return now_seconds - max(started[key] for key in site.servers if key in started)

    def standing(job: OwnedJob, members: list[LocalProcess]) -> JobStanding:
        labels = [label for each in members for label in each.labels]
        ranks = {int(label.rank) for label in labels if label.rank.isdecimal()} if labels else None
        world_size = world_size_of(members)
        role = policy.role_of(rules.configured, ranks, world_size or None)
        endpoint = next((at for at, site in sites.items() if any(each.key in site.servers for each in members)), None)
        why: policy.Refusal | None
        if rules.once and rules.configured != "reporter":
            why = "single_pass"
        elif role == "none":
            why = "not_elected"
        elif rules.max_ranks is not None and world_size > rules.max_ranks:
            why = "too_large"
        elif endpoint is None:
            why = "network_namespace" if any(each.foreign for each in members) else "no_listener"
        else:
            why = policy.refusal(sites[endpoint], rules.oldest, youngest_seconds(sites[endpoint]))
        return JobStanding(job, role, endpoint, why)

    return [standing(job, jobs[job]) for job in sorted(jobs)]


def world_size_of(members: Iterable[LocalProcess]) -> int:
    """Return the number of ranks of the job that these processes are of, 0 where it is not known."""
    return max((each.world_size or 0 for each in members), default=0)


def to_ask(found: Iterable[JobStanding]) -> list[Question]:
    """Return the jobs to query, each with its address, and this node's role."""
    return [
        Question(each.endpoint, each.job, each.role)
        for each in found
        if each.endpoint is not None and each.refusal is None
    ]


def libraries(processes: Mapping[ProcessKey, LocalProcess], sites: Iterable[Site]) -> frozenset[tuple[str, str, str]]:
    """Return the libraries of the jobs' processes that listen: job, flavor and version."""
    return frozenset(
        (processes[key].job_id, server.flavor, ".".join(map(str, server.version)))
        for site in sites
        for key, server in site.servers.items()
        if server.version is not None and key in processes and processes[key].job_id
    )


def local_processes(ranks: RankTable, own_namespace: int) -> dict[ProcessKey, LocalProcess]:
    """Return the running rank processes of the rank table; ``own_namespace``: the agent's network namespace (inode)."""
    found = {}
    for key, process in ranks.processes().items():
        if process.facts is None:
            continue
        namespace, world = process.facts.network_namespace, process.world()
        found[key] = LocalProcess(
            key=key,
            labels=tuple(label for label in process.slots or () if label is not None),
            world_size=process.world_size or (world.size if world is not None else None),
            namespace_pid=process.facts.namespace_pid,
            start_seconds=process.facts.start_seconds,
            network_namespace=namespace,
            foreign=namespace not in (0, own_namespace),
            owner=_owner(process.facts),
        )
    return found


def _owner(facts: ProcessFacts) -> str:
    """Return its owner's key; where that is unknown its user's, and without a user a key of its own."""
    if facts.owner.name:
        return facts.owner.key
    return f"uid/{facts.uid}" if facts.uid is not None else f"process/{facts.key.pid}/{facts.key.start_ticks}"


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
        return min(due, key=lambda each: each[1].due_at, default=None)

    def note(
        self, question: Question, visit: policy.Visit, answer: tuple[Report, float] | None, world_size: int, now: float
    ) -> None:
        """Note the result of a query: its report and duration in seconds, or None; ``world_size`` 0: not known."""
        visit.note(question.role, answer, world_size, now, self._random.random())

    def of(self, asked: Collection[Question]) -> list[tuple[Question, policy.Visit]]:
        """Return the visits of these questions."""
        return [(each, self._known[each[:2]]) for each in asked if each[:2] in self._known]
