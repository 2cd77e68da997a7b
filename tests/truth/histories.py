"""Random histories of jobs, and the alerts that docs/ends.md promises for them. Times are seconds after ``EVENT``.

`python tests/truth/histories.py FIRST LAST` plays these seeds and prints the histories whose alerts differ."""

from __future__ import annotations

import random
import sys
import tempfile
from dataclasses import dataclass
from math import inf
from pathlib import Path
from signal import SIGABRT, SIGBUS, SIGKILL, SIGSEGV, SIGTERM
from typing import Any

sys.path += [str(Path(__file__).parents[2]), str(Path(__file__).parents[1] / "unit")]

from play import EVENT, Play, Situation, Step
from rulers import built, fired
from site_of_agents import Job, Node, Rank
from steps import ALL, RUNNING, ended, exits, tears_down, wait

DEATHS: dict[str, dict[str, Any]] = {
    "SIGKILL": {"signal": SIGKILL}, "OOM": {"signal": SIGKILL, "oom": True}, "SIGSEGV": {"signal": SIGSEGV},
    "SIGBUS": {"signal": SIGBUS}, "SIGABRT": {"signal": SIGABRT}, "status 7": {"code": 7}, "status 0": {},
}  # fmt: skip
REACTIONS = {"SIGTERM": (0.1, 8), "SIGTERM late": (8, 45), "SIGABRT": (4, 25), "status 7": (4, 25), "cancel": (70, 700)}
"""How the other ranks end after a death, and after how many seconds."""
GAPS = ((3, 12), (12, 60), (60, 400)), ((5, 40), (40, 300), (300, 1500))
"""Seconds before a restart, and seconds after it."""


@dataclass
class Promise:
    """An alert that begins between ``after`` and ``by``, and fires at least to ``until`` and at most to ``gone``.

    If ``until`` is before ``by``, the alert may be absent."""

    name: str
    after: float
    by: float
    until: float = inf
    gone: float = inf


class History:
    """The history of one job, act by act, and its promises."""

    def __init__(self, play: Play, job: Job, age: float, dice: random.Random, log: list[str]) -> None:
        self.play, self.job, self.dice, self.log = play, job, dice, log
        self.nodes = list(dict.fromkeys(rank.node for rank in job.ranks))
        self.each_node = len(job.ranks) // len(self.nodes)
        self.started = dict.fromkeys(job.ranks, self.now - age)
        self.longest_pause = 1.0
        self.promises: list[Promise] = []
        self.all: list[History] = [self]
        self.note(f"{self.each_node} ranks on each of {[node.name for node in self.nodes]}")

    @property
    def now(self) -> float:
        return self.play.site.now - EVENT

    def note(self, text: str) -> None:
        self.log.append(f"{self.now:7.1f} job {self.job.name}: {text}")

    def between(self, *ranges: tuple[float, float]) -> float:
        return round(self.dice.uniform(*self.dice.choice(ranges)), 1)

    def promise(self, alert: str, after: float, by: float) -> None:
        name = alert if self.job.name == "7" else f"{alert} {self.job.name}"
        self.promises.append(Promise(name, self.now + after, self.now + by))

    def limit(self, alert: str, until: float, gone: float) -> None:
        """Let open alerts of this kind fire from now on for ``until`` seconds or more, and ``gone`` seconds or less."""
        for promise in self.promises:
            if promise.name.startswith(alert) and promise.gone > self.now:
                promise.until = min(promise.until, self.now + until)
                promise.gone = min(promise.gone, self.now + gone)

    def act(self) -> None:
        """Restart the job unless all of its ranks run; then let something happen."""
        self.play.job = self.job
        if len(self.job.running()) < len(self.job.ranks):
            self.restart()
        acts = (self.death, self.end, self.hang, self.power, self.missed_scrapes, self.restart)
        self.dice.choices(acts, (8, 5, 2, 3, 2, 1))[0]()

    def death(self) -> None:
        """A rank ends; its launcher ends the others, or they fail, or they wait until the user cancels the job."""
        dice, rank, silent = self.dice, self.dice.choice(self.job.ranks), self.dice.choice(self.nodes)
        how, reaction = dice.choice(list(DEATHS)), dice.choice(list(REACTIONS))
        before, missed = self.between((0, 3)), dice.choice((0, 0, 0, 4, 9, 14))
        delay = self.between(REACTIONS[reaction])
        if dice.random() < 0.25:
            self.note(f"the agent of {rank.node.name} restarts")
            rank.node.restart_agent()
            self.play.run(self.between((1, 8)))
        if missed:
            self.note(f"{silent.name} misses scrapes for {before} + {missed} s")
            self.silence(silent)
            self.play.run(before)
        self.ends(rank, how, how != "status 0" or missed + delay > 43, missed)
        if how == "status 0":  # the others hang, so JobStalled may fire
            self.promise(self.stalled, 0, inf)
        self.play.run(missed)
        silent.answers = True
        self.job.progresses = reaction != "cancel"
        self.play.run(delay)
        stay = dice.sample(range(len(self.job.ranks)), dice.choice((0, 0, 1, 2))) if how != "status 0" else ()
        self.note(f"the others: {reaction}{f'; ranks {stay} stay' if stay else ''}")
        others = exits(RUNNING, **DEATHS.get(reaction, {"signal": SIGTERM}), every=dice.choice((0, 0.1)))
        (tears_down(stay=stay) if reaction.startswith("SIGTERM") else others)(self.play)
        ended = 870 if len(self.nodes) > 1 else max(0, 870 - missed - delay)
        self.limit("RankDead", 0 if how in ("status 0", "SIGKILL") else ended, 1140)
        self.limit("JobStalled", 0, 60)

    def ends(self, rank: Rank, how: str, is_death: bool, missed: float = 0.0) -> None:
        """End a rank, and promise RankDead if ``is_death``; ``missed``: for how long a node misses scrapes."""
        self.note(f"rank {rank.number} on {rank.node.name} ends: {how}")
        pages = how in ("SIGKILL", "SIGSEGV", "SIGBUS") or (len(self.job.ranks) >= 16 and how != "status 0")
        severity = "" if how == "OOM" or (pages and self.now - self.started[rank] >= 600) else " info"
        after = {"status 0": 45, "SIGKILL": 15}.get(how, 0)
        by = after + 30 + (30 + missed if missed else 0)
        if is_death:
            self.promise(f"RankDead {rank.number} {rank.node.name}{severity}", after if after > 15 else 0, by)
        rank.exit(**DEATHS[how])

    def end(self) -> None:
        """All ranks finish, a user or the scheduler ends the job, or all ranks get SIGKILL."""
        dice, ranks, between = self.dice, len(self.job.ranks), self.between
        first = exits(dice.choice((0, slice(self.each_node))))
        by_node = [exits(slice(rank, rank + self.each_node)) for rank in range(0, ranks, self.each_node)]
        stay, kill_wait = dice.sample(range(ranks), ranks // 4 or 1), dice.choice((5, 30, 90 if ranks > 2 else 30))
        state, reporter = dice.choice(("CANCELLED", "PREEMPTED", "TIMEOUT")), dice.choice(self.nodes)
        save = exits(ALL, code=dice.choice((0, 1)), every=between((0, 3)) / ranks)
        ends: tuple[tuple[str, *tuple[Step, ...]], ...] = (
            ("all finish", exits(ALL, every=between((0, 40)) / ranks)),
            ("all finish node by node", *(step for end in by_node for step in (end, wait(between((0.5, 10)))))),
            ("some finish, the others abort", first, wait(between((1.5, 6))), exits(RUNNING, SIGABRT)),
            ("some finish early", first, wait(between((1, 30))), exits(RUNNING)),
            ("cancel", exits(ALL, SIGTERM, every=between((0, 0), (0, 1), (0, 30)) / ranks)),
            (f"cancel; {stay} stay for {kill_wait} s", tears_down(stay=stay, kill_wait=kill_wait)),
            ("SIGKILL to all", exits(ALL, SIGKILL)),
            (f"{state}, reported on {reporter.name}", save, ended(state, self.play.nodes.index(reporter))),
        )
        text, *events = dice.choice(ends)
        self.note(text)
        for event in events:
            event(self.play)
            self.note(f"{len(self.job.running())} ranks run")

    @property
    def stalled(self) -> str:
        return f"JobStalled {'ticket' if len(self.job.ranks) >= 16 else 'info'}"

    def hang(self) -> None:
        """The job makes no progress; then it continues or its user cancels it."""
        self.play.run(max(0.0, max(self.started.values()) + 75 - self.now))
        seconds, self.job.progresses = self.between((30, 280), (400, 900)), False
        self.note(f"hangs for {seconds} s")
        self.promise(self.stalled, 300, self.longest_pause + 345)
        self.play.run(seconds)
        self.limit("JobStalled", 0, 60)
        self.longest_pause = max(self.longest_pause, seconds + 1)
        self.job.progresses = self.dice.random() < 0.5
        if not self.job.progresses:
            self.note("cancel")
            exits(RUNNING, SIGTERM)(self.play)
        self.play.run(10)  # the next hang is another one

    def power(self) -> None:
        """A node loses power; the other ranks go on, wait (and perhaps one dies), fail or are ended."""
        dice, lost = self.dice, self.dice.choice(self.nodes)
        reaction = dice.choice(("go on", "wait", "SIGABRT", "SIGTERM"))
        delay = self.between((4, 25) if reaction == "SIGABRT" else (60, 600))
        self.play.run(15)  # so that Prometheus sees which jobs have ended
        self.note(f"{lost.name} loses power; the others: {reaction} after {delay} s")
        self.silence(lost)
        for history in self.all:
            if any(rank.node is lost for rank in history.job.running()):
                history.loses(lost, reaction if history is self else "")
            history.forgets(lost)
        lost.lose_power()
        self.job.progresses = reaction == "go on"
        self.play.run(delay)
        if reaction.startswith("SIG"):
            exits(RUNNING, **DEATHS.get(reaction, {"signal": SIGTERM}))(self.play)
        elif self.job.running() and dice.random() < 0.4:
            how = dice.choice(list(DEATHS))
            self.ends(dice.choice(self.job.running()), how, how == "OOM")
            if how not in ("OOM", "SIGKILL", "status 0"):  # the rank is a witness: NodeLost may begin now
                self.promise(f"NodeLost {lost.name}", 0, inf)
            self.play.run(60)
        if not self.job.running():
            self.limit("NodeLost", 870 - delay, 1200)

    def loses(self, lost: Node, reaction: str) -> None:
        """Promise NodeLost: soon if the other ranks fail, or wait for longer than ever before."""
        is_alone = len(self.nodes) == 1
        is_soon = not is_alone and (reaction == "SIGABRT" or (reaction == "wait" and self.longest_pause < 10))
        self.promise(f"NodeLost {lost.name}", 185 if is_alone or reaction == "go on" else 15, 65 if is_soon else 245)
        if is_alone:
            self.limit("NodeLost", 870, 1200)

    def forgets(self, lost: Node) -> None:
        """Let RankDead of a rank on a lost node end from now on: the series of the rank end."""
        for promise in self.promises:
            if promise.name.startswith("RankDead") and promise.name.split()[2] == lost.name:
                promise.until = min(promise.until, self.now)

    def silence(self, node: Node) -> None:
        """Let a node's scrapes fail; a new silence can end the alert about an earlier silence."""
        node.answers = False
        for history in self.all:
            history.limit(f"NodeLost {node.name}", 0, inf)

    def missed_scrapes(self) -> None:
        """Prometheus does not reach a node, or the node's agent restarts; the job continues."""
        silent, seconds, refuses = self.dice.choice(self.nodes), self.between((4, 100)), self.dice.random() < 0.5
        self.note(f"{silent.name} misses scrapes for {seconds} s{', its agent restarts' if refuses else ''}")
        silent.refuses = refuses
        self.silence(silent)
        self.play.run(seconds)
        silent.refuses, silent.answers = False, True
        if refuses:
            silent.restart_agent()
        self.play.run(6)  # longer than a scrape interval: the next silence begins anew

    def restart(self) -> None:
        """A scheduler or launcher ends all ranks and starts them again, perhaps on other nodes, some of them later."""
        dice, nodes = self.dice, self.play.nodes
        self.play.run(self.between(*GAPS[0]))
        off = [node for node in nodes if not node.runs]
        if off and (dice.random() < 0.5 or len(nodes) - len(off) < len(self.nodes)):
            for node in off:
                disk = dice.random() < 0.5
                self.note(f"{node.name} boots, {'with' if disk else 'without'} its disk")
                node.boot(disk=disk)
            for history in self.all:
                history.limit("NodeLost", inf if history.job.running() else 0, inf)
            self.play.run(self.between((3, 100)))
        if dice.random() < 0.5 or not all(node.runs for node in self.nodes):
            self.nodes = dice.sample([node for node in nodes if node.runs], len(self.nodes))
        pause = self.between((0, 0), (0.5, 8))
        self.note(f"restarts on {[node.name for node in self.nodes]}, {pause} s apart")
        self.limit("", 0, inf)
        exits(RUNNING, SIGTERM)(self.play)
        self.play.run(4)  # longer than the slowest scrape, so that the order is certain
        self.job.progresses = True
        for place, node in dice.sample(list(enumerate(self.nodes)), len(self.nodes)):
            for rank in self.job.ranks[place * self.each_node : (place + 1) * self.each_node]:
                rank.start(node)
                self.started[rank] = self.now
            self.play.run(pause)
        self.limit("NodeLost", 0, 270)
        self.limit("RankDead", 0, 100)
        self.play.run(self.between(*GAPS[1]))


def differences(seed: int, scratch: Path) -> str:
    """Play a history; return it with the promises that are broken, or an empty text."""
    dice, log = random.Random(seed), [f"seed {seed}"]  # noqa: S311  # a scenario, no secret
    nodes, per_node, idle = dice.choice((1, 2, 2, 3, 4)), dice.choice((2, 4, 8)), dice.choice((0, 1, 2))
    play = Play(dice.choice((seed, seed, 0)), Situation("", (), nodes=nodes, per_node=per_node, idle=idle), 5)
    histories = [History(play, play.job, EVENT, dice, log)]
    if dice.random() < 0.3:
        job = Job(play.site, "8", play.nodes[: dice.randint(1, nodes)], 2, user="robert")
        histories.append(History(play, job, 0, dice, log))
        play.run(histories[1].between(*GAPS[1]))
    for history in histories:
        history.all = histories
    for _ in range(dice.randint(2, 4)):
        dice.choice(histories).act()
    play.run(dice.choice((200, 1300)))
    rules = built(scratch, 5, worst_order=False, stalled=True)
    seen = fired(play.sites, rules, ("alertname", "rank", "node", "severity", "job_id"))
    times = {name: [time - EVENT for time in seconds] for name, seconds in seen.items()}
    faults = broken(times, [promise for history in histories for promise in history.promises], histories[0].now)
    return "\n".join([*log, *faults]) if faults else ""


def broken(times: dict[str, list[float]], promises: list[Promise], end: float) -> list[str]:
    """Return the alerts that were not promised, and the promises that were not kept until ``end``."""
    faults = []
    for name, seconds in times.items():
        surplus = [t for t in seconds if not any(p.name == name and p.after <= t <= p.gone for p in promises)]
        faults += [f"not promised: {name} from {surplus[0]} to {surplus[-1]}"] if surplus else []
    for promise in promises:
        seconds, until = [t for t in times.get(promise.name, ()) if t >= promise.after], min(promise.until, end)
        first = min(seconds, default=inf)
        if promise.by <= until and (first > promise.by or {*range(int(first), int(until) - 20, 5)} - {*seconds}):
            faults.append(f"not kept: {promise}; fires {len(seconds)} times from {first} to {max(seconds, default=0)}")
    return faults


if __name__ == "__main__":
    for number in range(int(sys.argv[1]), int(sys.argv[2]) + 1):
        with tempfile.TemporaryDirectory() as directory:
            sys.stdout.write((differences(number, Path(directory)) or f"seed {number}: as promised") + "\n")
            sys.stdout.flush()
