"""A simulated site of several nodes, played through the agents' real code, and the scrapes of a Prometheus.

Its events are processes, exit statuses, records, a scheduler's record, faults of scrapes, agents and machines; never a
verdict and never a series. Time moves by ``Site.run``: every agent updates each second, and every page is rendered at
each scrape interval."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from signal import SIGKILL, SIGTERM

from rank_table import RankTable

from agent.core.identity import ProcessKey
from agent.ranks.liveness.job_liveness import RanBefore
from agent.ranks.liveness_families import families
from agent.ranks.rank.exit_status import ExitStatus, JobEnd
from agent.ranks.rank.facts import Owner, ProcessFacts

EPOCH = 1_700_000_000.0
UPTIME = 10_000.0
"""The uptime of each machine at a site's start."""
TICKS_PER_SECOND = 100

Series = tuple[str, tuple[tuple[str, str], ...]]
"""A series: its name, and its labels in order."""


class NodeClock:
    """A node's clocks at a site's time. ``skew`` moves the wall clock; ``drift`` (seconds per second) moves both."""

    def __init__(self, site: Site, skew: float, drift: float) -> None:
        self._site = site
        self.skew = skew
        self.drift = drift
        self.booted = -UPTIME

    def monotonic(self) -> float:
        """Return the seconds since the boot."""
        return (self._site.now - self.booted) * (1.0 + self.drift)

    def time(self) -> float:
        """Return the seconds since the epoch by this node's clock."""
        return EPOCH + self._site.now * (1.0 + self.drift) + self.skew


class Node:
    """One machine: its processes, its agent, and its pages for Prometheus."""

    def __init__(self, site: Site, name: str, skew: float, drift: float) -> None:
        self.site = site
        self.name = name
        self.clock = NodeClock(site, skew, drift)
        self.table = RankTable(self.clock, name)
        self.answers = True
        self.runs = True
        self.refuses = False
        self.is_target = True
        self.is_doubled = False
        """Whether the node is scraped as two targets."""
        self.is_old = False
        """Whether the agent is old: without series by job."""
        self.running: dict[ProcessKey, Rank] = {}
        self.agent_started = self.clock.monotonic()
        self._pid = 100
        self._facts: dict[ProcessKey, ProcessFacts] = {}
        self._before: Mapping[str, RanBefore] = {}

    def start(self, rank: Rank) -> ProcessKey:
        """Start a process of this rank."""
        self._pid += 1
        key = ProcessKey(self._pid, int(self.clock.monotonic() * TICKS_PER_SECOND))
        owner = Owner("user", str(rank.job.uid))
        if rank.job.is_proven:
            owner = Owner("job", f"slurm/{rank.job.name}", scheduler="slurm", job_id=rank.job.name, proof="cgroup")
        self.running[key] = rank
        environment = rank.job.environment(rank.number)
        facts = ProcessFacts(
            key, self.clock.time(), key.pid, rank.job.user, "thread", environment, uid=rank.job.uid, owner=owner
        )
        assert self.table.observe_process(facts)
        self._facts[key] = facts
        return key

    def end(self, key: ProcessKey, status: ExitStatus | None) -> None:
        del self.running[key]
        self.table.observe_exit(key, status)

    def look(self) -> None:
        """Let each rank with records complete an operation, then let the agent update."""
        if not self.runs:
            return
        for key, rank in self.running.items():
            process = self.table.processes.get(key)
            if process is not None and rank.job.progresses:
                process.note_progress(self.clock.time(), self.clock.time())
        self.table.tick()
        self._before = self.table.liveness.running(self.table.running().values())

    def restart_agent(self, *, checkpoint: bool = True) -> None:
        """Kill the agent and start another one, with or without its checkpoint."""
        section = self.table.dump()
        self.table = RankTable(self.clock, self.name)
        self.agent_started = self.clock.monotonic()
        if checkpoint:
            self.table.load(section)
        for key in self.running:
            if checkpoint:
                self.table.observe_state(key)
            else:
                self.table.observe_process(self._facts[key])
        self.table.tick()

    def lose_power(self) -> None:
        """Stop the machine at once."""
        self.runs = self.answers = False
        self.running.clear()
        self.clock.booted = self.site.now  # at the earliest

    def boot(self, *, disk: bool = True) -> None:
        """Boot the machine; with a disk, its agent reads the checkpoint of the previous boot."""
        self.runs = self.answers = True
        self.clock.booted = max(self.clock.booted, self.site.now - 60.0)
        self.table = RankTable(self.clock, self.name)
        self.agent_started = self.clock.monotonic()
        if disk:
            self.table.liveness.note_ran_before(self._before, self.clock)
        self.table.tick()

    def page(self) -> dict[Series, float] | None:
        """Return the page of a scrape; None if the scrape fails."""
        if not self.answers:
            return None
        if self.is_old:
            return {}
        age = self.clock.monotonic() - self.agent_started
        own: dict[Series, float] = {("rankwatch_start_age_seconds", ()): age}  # the daemon's series, not the table's
        for rank in self.running.values():  # the exporter's; the rules read those of one rank in ten
            if rank.number == 0:
                own["rankwatch_inspector_seen_records_total", (("job_id", rank.job.name), ("rank", "0"))] = 1000.0
        return own | {
            (metric.family.name, tuple(zip(metric.family.labels, labels, strict=True))): value
            for metric in families(self.table.timed_snapshot())
            for labels, value in zip(metric.labels, metric.values, strict=True)
        }


class Rank:
    """One rank of a job and its current process; ``key`` is None while no process runs."""

    def __init__(self, job: Job, number: int, node: Node) -> None:
        self.job = job
        self.number = number
        self.node = node
        self.key: ProcessKey | None = node.start(self)

    def exit(self, signal: int = 0, code: int = 0, *, oom: bool = False, known: bool = True) -> None:
        if self.key is not None and self.key in self.node.running:
            self.node.end(self.key, ExitStatus(known, signal, code, oom) if known else None)
        self.key = None

    def start(self, node: Node | None = None) -> None:
        """Start the rank again, on ``node`` if given."""
        self.node = node or self.node
        self.key = self.node.start(self)


class Job:
    """A job with equally many ranks on each of its nodes. If not ``proven``, its user only claims the id ``name``."""

    def __init__(
        self,
        site: Site,
        name: str,
        nodes: Sequence[Node],
        per_node: int,
        *,
        user: str = "ann",
        proven: bool = True,
        world: int | None = None,
    ) -> None:
        self.site = site
        self.name = name
        self.user = user
        self.uid = 1000 + len(user)
        self.progresses = True
        self.is_proven = proven
        self.world = world or per_node * len(nodes)
        self.restarts: tuple[int, int] | None = None
        """Number of restarts by torchrun, and torchrun's limit."""
        self.ranks = [Rank(self, number, nodes[number // per_node]) for number in range(per_node * len(nodes))]

    def environment(self, rank: int) -> dict[str, str]:
        """Return the variables that the rank's launcher sets."""
        variables = {"MASTER_ADDR": "head", "MASTER_PORT": "29500", "SLURM_JOB_ID": self.name}
        variables |= {"RANK": str(rank), "WORLD_SIZE": str(self.world)}
        if self.restarts is not None:
            names = ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")
            variables |= dict(zip(names, map(str, self.restarts), strict=True))
        return variables

    def running(self) -> list[Rank]:
        return [rank for rank in self.ranks if rank.key is not None and rank.key in rank.node.running]

    def tear_down(
        self, seconds: float = 0.5, kill_wait: float = 30.0, stay: Iterable[int] = (), kill: Iterable[int] | None = None
    ) -> None:
        """End the running ranks as a launcher does: by SIGTERM, but the ranks ``stay`` by SIGKILL after ``kill_wait``.

        ``kill``: the launcher kills only these ranks."""
        stubborn = set(stay)
        for rank in self.running():
            self.site.run(seconds / self.world)
            if rank.number not in stubborn:
                rank.exit(SIGTERM)
        if stubborn:
            self.site.run(kill_wait)
            for rank in self.running():
                if kill is None or rank.number in kill:
                    rank.exit(SIGKILL)

    def ended(self, state: str, nodes: Iterable[Node] = ()) -> None:
        """Record the job's end by the scheduler on these nodes, or on each node of the job."""
        for node in nodes or {rank.node for rank in self.ranks}:
            node.table.observe_job_ends([JobEnd(self.name, 0.0, node.clock.time(), state)])


class Site:
    """Nodes that a Prometheus scrapes every ``interval`` seconds; ``scrapes``: the scraped pages by node and time."""

    def __init__(
        self,
        interval: float = 5.0,
        delay: Callable[[str, float], float] = lambda _node, _time: 0.0,
        cluster: str = "c1",
    ) -> None:
        self.now = 0.0
        self.interval = interval
        self.cluster = cluster
        self.lost_share = 0.0
        """The share of all scrapes that fail."""
        self._dice = random.Random(7)  # noqa: S311  # a scenario, no secret
        self.nodes: dict[str, Node] = {}
        self.scrapes: defaultdict[str, dict[float, dict[Series, float] | None]] = defaultdict(dict)
        self._delay = delay

    def node(self, name: str, skew: float = 0.0, drift: float = 0.0) -> Node:
        self.nodes[name] = Node(self, name, skew, drift)
        return self.nodes[name]

    def rename(self, node: Node, name: str) -> None:
        """Scrape a node under another name."""
        del self.nodes[node.name]
        node.name = name
        self.nodes[name] = node

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        for time, step in self._steps(until):
            self.now = time
            step()
        self.now = until
        for node in self.nodes.values():
            node.table.judge_changed()

    def seen(self, name: str, time: float) -> dict[tuple[str, ...], float]:
        """Return the samples of a family in the scrapes at this time, by label values with the node's name first."""
        series = {}
        for node, pages in self.scrapes.items():
            for (family, labels), value in (pages.get(time) or {}).items():
                if family == name:
                    series[(node, *(word for _, word in labels))] = value
        return series

    def _steps(self, until: float) -> Iterator[tuple[float, Callable[[], None]]]:
        """Yield the agents' updates and the scrapes that are due up to this time, in order."""
        due: list[tuple[float, int, Callable[[], None]]] = []
        for second in range(int(self.now) + 1, int(until) + 1):
            due += [(float(second), 0, node.look) for node in self.nodes.values()]
        for name in self.nodes:
            time = max(self.scrapes[name], default=self.interval * (self.now // self.interval)) + self.interval
            while (rendered := time + self._delay(name, time)) <= until:
                due.append((rendered, 1, self._scrape(name, time)))
                time += self.interval
        yield from ((time, step) for time, _, step in sorted(due, key=lambda entry: entry[:2]))

    def _scrape(self, name: str, time: float) -> Callable[[], None]:
        def scrape() -> None:
            if self.nodes[name].is_target:
                is_lost = self._dice.random() < self.lost_share
                self.scrapes[name][time] = None if is_lost else self.nodes[name].page()

        return scrape
