"""Jobs that hang side by side at one site, with NVIDIA's RAS: what happens to each meanwhile, and who is told."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from clusters import Cluster, run_ip
from nodes import Node, wait_until
from paging import Site
from ras_jobs import RasJob

RANKS = 16
RANKS_PER_NODE = 4
LAUNCHES = 250
"""Of each rank in each communicator before the job goes on step by step."""
STEP_SECONDS = 1.0
POLL_SECONDS = 3.0
SEEN_SECONDS = 90.0
"""Until Prometheus has a report on each job, with all its ranks."""
WARM_SECONDS = 35.0
"""In which the jobs run and their pauses are learnt."""
HANG_SECONDS = 365.0
CLEAR_SECONDS = 75.0
FIRST_PORT = 28101
STALLED = "count by (job_id) (comm:rankwatch_stalled:bool)"
WATCHED = (STALLED, "job:rankwatch_launch_silence:seconds", "job:rankwatch_launch_pause:max")

Ranks = Mapping[str, str]
"""Suspects: why, by rank."""


class HungJob:
    """A RAS job of a site, with its own port and, if the hang wants one, its own network."""

    def __init__(self, cluster: Cluster, job_id: str, port: int, version: str, hang: Hang) -> None:
        nodes, network = hang.nodes, hang.network
        self.cluster = cluster
        self.nodes = [cluster.nodes[number] for number in nodes]
        self._ports = [f"net{network}port{number}" for number in nodes]
        self._behind: dict[str, list[int]] = {}
        self.moving = True
        """False while its ranks wait."""
        machines = [(node.name, node.machine) for node in self.nodes]
        if network:
            machines = wire_ranks(cluster, nodes, network)
        directory = cluster.directory / "ras"
        directory.mkdir(exist_ok=True)
        env = {"NCCL_RAS_ADDR": f"127.0.0.1:{port}", **hang.env}
        self.ras = RasJob(
            directory, RANKS, ranks_per_node=RANKS_PER_NODE, machines=machines, job_id=job_id, env=env, version=version
        )
        try:
            self.ras.groups(RANKS_PER_NODE)
            for name in self.ras.members:
                self.ras.launch(name, "AllReduce", LAUNCHES)
        except BaseException:
            self.ras.close()
            raise

    def step(self) -> None:
        """Have all ranks launch one collective in each communicator."""
        for name in self.ras.members:
            self.ras.launch(name, "AllReduce", 1)

    def wait_for(self, culprits: Sequence[int]) -> None:
        """Have all ranks but these launch one more in turn, tensor, data, world, up to where each has to wait."""
        self.moving, waiting = False, set(culprits)
        for name, ranks in sorted(self.ras.members.items(), key=lambda item: "tdw".index(item[0][0])):
            able = [rank for rank in ranks if rank not in waiting]
            self._behind[name] = [rank for rank in ranks if rank in waiting]
            self.ras.launch(name, "AllReduce", 1, able)
            if len(able) < len(ranks):
                waiting.update(able)

    def go_on(self) -> None:
        """Have the ranks launch what the others wait for."""
        for name, ranks in self._behind.items():
            self.ras.launch(name, "AllReduce", 1, ranks)
        self._behind, self.moving = {}, True

    def leave_world(self, rank: int) -> None:
        """Have one rank abort the world communicator; all others launch one more there and wait."""
        self.moving = False
        self.ras.abort(rank, "world")
        time.sleep(STEP_SECONDS)
        self.ras.leave(rank, "world")
        self.ras.members["world"].remove(rank)
        self.ras.launch("world", "AllReduce", 1)

    def signal_node(self, place: int, number: int) -> None:
        """Send a signal to all ranks of one node."""
        for rank in range(place * RANKS_PER_NODE, (place + 1) * RANKS_PER_NODE):
            self.ras.signal(rank, number)

    def link(self, place: int, state: str) -> None:
        """Set the far end of a node's link in the ranks' network up or down."""
        run_ip(self.cluster.monitor, "link", "set", self._ports[place], state)

    def loopback(self, place: int, verb: str) -> None:
        """Take a node's loopback address away (``del``): RAS cannot be connected to; ``add`` brings it back."""
        run_ip(self.nodes[place].machine, "address", verb, "127.0.0.1/8", "dev", "lo")

    def restart_agent(self, place: int) -> None:
        """End a node's agent with SIGKILL and start it."""
        self.nodes[place].agent.kill9()
        self.nodes[place].agent.start()


def wire_ranks(cluster: Cluster, nodes: Sequence[int], network: int) -> list[tuple[str, Node]]:
    """Connect nodes by a network beside the cluster's own; return their addresses there."""
    bridge, device, machines = f"net{network}", f"eth{network}", []
    run_ip(cluster.monitor, "link", "add", bridge, "type", "bridge")
    run_ip(cluster.monitor, "link", "set", bridge, "up")
    for number in nodes:
        machine, port, address = cluster.nodes[number].machine, f"{bridge}port{number}", f"10.{network}.0.{number + 10}"
        pid = str(machine.init_pid)
        run_ip(cluster.monitor, "link", "add", port, "type", "veth", "peer", "name", device, "netns", pid)
        run_ip(cluster.monitor, "link", "set", port, "master", bridge, "up")
        run_ip(machine, "address", "add", f"{address}/24", "dev", device)
        run_ip(machine, "link", "set", device, "up")
        machines.append((address, machine))
    return machines


class Hang(NamedTuple):
    """How a job comes to stand still and what happens to it: ``meanwhile``, in seconds since the first job hangs.

    ``nodes``: numbers of the site's, in the order of the ranks: the first asks, the last stands by.
    """

    nodes: tuple[int, ...]
    begin: Callable[[HungJob], None]
    culprits: Ranks
    """The ranks that the page must name, and why; none: no page is due."""
    meanwhile: tuple[tuple[float, Callable[[HungJob], None]], ...] = ()
    end: Callable[[HungJob], None] = HungJob.go_on
    seconds: float = HANG_SECONDS
    network: int = 0
    """Of the ranks alone: a link of it can be cut, and Prometheus still asks the agents."""
    env: Mapping[str, str] = MappingProxyType({})
    after: float = 0.0
    """When it begins."""


class Told(NamedTuple):
    """What came of a hang; seconds since it began, or, ``cleared``, since launches resumed."""

    paged: float | None
    named: set[tuple[str, str]]
    cleared: float | None
    fired: set[tuple[str, str]]
    """All alerts of the job, with severity."""
    text: str
    alive: float | None
    """Ranks that are shown alive at the end."""


class Watcher:
    """What Prometheus says of the jobs, looked at again and again; all of it is written to a file, by line."""

    def __init__(self, site: Site, path: Path) -> None:
        self._prometheus = site.watches[0].prometheus
        self._path = path
        self.paged: dict[str, float] = {}
        self.named: dict[str, set[tuple[str, str]]] = {}
        self.fired: dict[str, set[tuple[str, str]]] = {}
        self.stalled: dict[str, float] = {}
        """When a job was last seen to stand still."""

    def look(self) -> None:
        """Ask once."""
        now = time.time()
        shown = {name: self._by_job(name) for name in WATCHED}
        self.stalled |= dict.fromkeys(shown[STALLED], now)
        alerts = [each["metric"] for each in self._prometheus.query('ALERTS{alertstate="firing"}')]
        for each in alerts:
            job, alert = each.get("job_id", ""), (each["alertname"], each["severity"])
            self.fired.setdefault(job, set()).add(alert)
            if alert == ("CommunicatorStalled", "page"):
                self.paged.setdefault(job, now)
                if "rank" in each:
                    self.named.setdefault(job, set()).add((each["rank"], each["why"]))
        suspects = [each["metric"] for each in self._prometheus.query("rank:rankwatch_suspect:bool")]
        said: dict[str, list[tuple[str, str, str]]] = {each["job_id"]: [] for each in suspects}
        for each in suspects:
            said[each["job_id"]].append((each.get("rank", ""), each["host"], each["reason"]))
        firing = [f"{each.get('job_id', each.get('node'))}:{each['alertname']}:{each['severity']}" for each in alerts]
        line = json.dumps({"time": now, **shown, "suspects": said, "firing": firing})
        with self._path.open("a") as file:
            file.write(line + "\n")

    def _by_job(self, name: str) -> dict[str, float]:
        return {each["metric"]["job_id"]: float(each["value"][1]) for each in self._prometheus.query(name)}


def play(here: Site, hangs: Mapping[str, Hang], version: str) -> dict[str, Told]:
    """Start a job for each hang (its name is the job's id), let all hang at the same time, and tell what was said."""
    ports = {name: FIRST_PORT + number for number, name in enumerate(hangs)}
    config = {"exporters": {"ras": {"addresses": [f"127.0.0.1:{port}" for port in ports.values()]}}}
    with contextlib.ExitStack() as stack:
        jobs = {}
        for name, hang in hangs.items():
            jobs[name] = HungJob(here.cluster, name, ports[name], version, hang)
            stack.callback(jobs[name].ras.close)
        for node in here.cluster.nodes:
            node.agent.configure(config)
            node.agent.reload()
        return _Play(here, hangs, jobs).run()


class _Play:
    def __init__(self, here: Site, hangs: Mapping[str, Hang], jobs: Mapping[str, HungJob]) -> None:
        self._here = here
        self._hangs = hangs
        self._jobs = jobs
        self._next_look = 0.0
        self._watcher = Watcher(here, here.cluster.directory / "watched.jsonl")
        self._resumed: dict[str, float] = {}

    def run(self) -> dict[str, Told]:
        wait_until(self._seen, SEEN_SECONDS, "a report on each job in Prometheus")
        self._until(time.time() + WARM_SECONDS)
        began = time.time()
        for name, at, act in sorted(self._acts(), key=lambda each: each[1]):
            self._until(began + at)
            act(self._jobs[name])
            if act is self._hangs[name].end:
                self._resumed[name] = time.time()
        self._until(time.time() + CLEAR_SECONDS)
        return {name: self._told(name, began) for name in self._hangs}

    def _acts(self) -> list[tuple[str, float, Callable[[HungJob], None]]]:
        return [
            (name, at, act)
            for name, hang in self._hangs.items()
            for at, act in ((hang.after, hang.begin), *hang.meanwhile, (hang.seconds, hang.end))
        ]

    def _seen(self) -> bool:
        self._step()
        time.sleep(STEP_SECONDS)
        answered = f'max by (job_id) (rankwatch_communicator_ranks{{state="responding"}}) == {RANKS}'
        found = {each["metric"]["job_id"] for each in self._here.watches[0].prometheus.query(answered)}
        return found >= set(self._jobs)

    def _until(self, end: float) -> None:
        while time.time() < end:
            self._step()
            if time.time() >= self._next_look:
                self._watcher.look()
                self._next_look = time.time() + POLL_SECONDS
            time.sleep(max(0.0, min(STEP_SECONDS, end - time.time())))

    def _step(self) -> None:
        for job in self._jobs.values():
            if job.moving:
                job.step()

    def _told(self, name: str, began: float) -> Told:
        watcher = self._watcher
        paged, last = watcher.paged.get(name), watcher.stalled.get(name, 0.0)
        over = time.time() - last > 2 * POLL_SECONDS
        alive = f'count(max by (rank) (rankwatch_rank_state{{job_id="{name}",state="alive"}}) == 1)'
        return Told(
            paged - began - self._hangs[name].after if paged else None,
            watcher.named.get(name, set()),
            max(last - self._resumed[name], 0.0) if over else None,
            watcher.fired.get(name, set()),
            "\n".join(page.text for page in self._here.pages(name)),
            self._here.watches[0].prometheus.value(alive),
        )


def table(version: str, told: Mapping[str, Told]) -> str:
    """Return what came of the hangs as lines."""
    lines = [f"{'case':16} {'version':8} {'paged s':>8} {'cleared s':>9}  named; all that fired; alive"]
    for name, each in told.items():
        named = " ".join(f"{rank}:{reason}" for rank, reason in sorted(each.named))
        fired = " ".join(f"{alert}/{severity}" for alert, severity in sorted(each.fired))
        paged, cleared = (f"{value:.0f}" if value is not None else "-" for value in (each.paged, each.cleared))
        lines.append(f"{name:16} {version:8} {paged:>8} {cleared:>9}  {named}; {fired}; {each.alive}")
    return "\n".join(lines)
