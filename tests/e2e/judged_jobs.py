"""Many made-up jobs at once before the shipped rules: who is named, by which alert, and when for the first time.

Jobs share rooms of four nodes. Each node has the agent's own reader and rank table, scraped at the shipped interval.
What alerts name is asked of their labels, or of a recording while they fire; nothing else of the rules is known here.
"""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, NamedTuple

from fake_clock import FakeClock
from made_jobs import Recorded
from made_kinds import Made
from made_lines import Plugin
from replay_nodes import Node, Process
from rules import GROUPS, RULES, run_promtool

ROOM_NODES = 4
FIRST_JOB = 4000
FIRST_PID = 1000
READ_SECONDS = 5
"""How often files are read: seldom, as each look costs more than the few lines in it."""
EVALUATION_SECONDS = 45
"""The shipped interval of the rules on late ranks; promtool has one for all groups."""


class Named(NamedTuple):
    """An alert, and the labels of what it names while it fires: its own, or those of a recording."""

    alert: str
    labels: tuple[str, ...]
    series: str = ""


NAMED = (
    Named("StragglerRank", ("rank",)),
    Named("SlowCommunicator", ("comm",), "comm_size:rankwatch_slow:ratio"),
    Named("SlowPair", ("rank", "peer")),
)
ALERTS = ("StragglerRank", "SlowCommunicator", "SlowPair", "RecordsLost")


class Found(NamedTuple):
    """What was told of one job: each alert, and each thing that it named, with the second of its first firing."""

    alerts: dict[str, float]
    named: dict[str, dict[tuple[str, ...], float]]


def rules_text() -> str:
    """Return the shipped rules as one text."""
    return "\n".join(path.read_text() for path in RULES)


def wanted_metrics(rules: str) -> frozenset[str] | None:
    """Return the names that occur in the rules: no other series can matter; None where rules select by pattern."""
    if re.search(r"__name__\s*[=!]", rules):
        return None
    return frozenset(re.findall(r"\b(?:rankwatch_\w+|up|scrape_\w+)\b", rules))


class _Placed:
    """A job in a room: its processes by node, and the files that they write to."""

    def __init__(self, made: Made, job_id: str, hosts: Sequence[str], first_pid: int, epoch_us: int) -> None:
        shape = made.layout.shape
        self._job_id = job_id
        self._hosts = [hosts[rank // shape.ranks_per_node] for rank in range(shape.world)]
        self._pids = list(range(first_pid, first_pid + shape.world))
        plugin = Plugin(made.layout.communicators, self._hosts, self._pids, named=made.named)
        self._recorded = Recorded(made.job(), made.losses, plugin, epoch_us, made.seed)
        self._logs: list[BinaryIO] = []
        self.lines = 0

    def processes(self, host: str) -> list[Process]:
        """Return those that run on a node."""
        each_rank = enumerate(zip(self._hosts, self._pids, strict=True))
        return [Process(self._job_id, rank, len(self._pids), pid) for rank, (on, pid) in each_rank if on == host]

    def open(self, directory: Path, stack: ExitStack) -> None:
        """Open the files, each below a directory of its node, in one of the job."""
        for host, pid in zip(self._hosts, self._pids, strict=True):
            folder = directory / host / self._job_id
            folder.mkdir(parents=True, exist_ok=True)
            self._logs.append(stack.enter_context((folder / f"{host}-pid{pid}.log").open("wb", buffering=0)))

    def write(self, second: int) -> None:
        """Write what the plugins do in a second."""
        texts: defaultdict[int, list[str]] = defaultdict(list)
        for _, rank, line in self._recorded.next_second(second):
            texts[rank].append(line)
        for rank, lines in texts.items():
            self._logs[rank].write("".join(lines).encode())
            self.lines += len(lines)


def scraped(jobs: Sequence[tuple[str, Made]], room: int, wanted: frozenset[str] | None) -> list[dict[str, str]]:
    """Let jobs of equal length, by job id, live in a room; return what scrapes saw as promtool reads it."""
    chance = random.Random(f"room {room}")  # noqa: S311  scrapes at the same instants every time
    names = [f"gpu-node-{room:02}-{number}" for number in range(ROOM_NODES)]
    epoch_us = int(FakeClock().time() * 1_000_000)
    placed: list[_Placed] = []
    pid = FIRST_PID
    for number, (job_id, made) in enumerate(jobs):
        hosts = [names[(number + place) % ROOM_NODES] for place in range(made.layout.shape.nodes)]
        placed.append(_Placed(made, job_id, hosts, pid, epoch_us))
        pid += made.layout.shape.world
    with TemporaryDirectory() as scratch, ExitStack() as stack:
        nodes: list[Node] = []
        for name in names:
            directory = Path(scratch) / name
            directory.mkdir()
            processes = [process for each in placed for process in each.processes(name)]
            nodes.append(stack.enter_context(Node(name, directory, processes, chance, wanted, READ_SECONDS)))
        for each in placed:
            each.open(Path(scratch), stack)
        for second in range(jobs[0][1].seconds):
            for each in placed:
                each.write(second)
            for node in nodes:
                node.advance(second)
        for node in nodes:
            node.read()
        lines, read = sum(each.lines for each in placed), sum(node.records_read() for node in nodes)
        assert read == lines, f"{read} of {lines} lines were read"
    return [series for node in nodes for series in node.input_series()]


def questions(seconds: int) -> dict[str, str]:
    """Return what is asked: by alert and by what it names, when it fired first."""

    def first(expression: str) -> str:
        return f"min_over_time((({expression}) * 0 + time())[{seconds}s:{EVALUATION_SECONDS}s])"

    firing = {alert: f'ALERTS{{alertname="{alert}",alertstate="firing"}}' for alert in ALERTS}
    asked = {alert: first(each) for alert, each in firing.items()}
    for alert, _, series in NAMED:
        named = f"{series} and on (job_id) {firing[alert]}" if series else firing[alert]
        asked[f"{alert} names"] = first(named)
    return asked


_SAMPLE = re.compile(r"\{([^{}]*)\} ([0-9.E+-]+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def answers(said: str) -> Iterator[tuple[dict[str, str], float]]:
    """Return the samples that promtool got, of what it says when they are not those that it expects."""
    got = said.partition("got:")[2]
    for labels, value in _SAMPLE.findall(got):
        yield dict(_LABEL.findall(labels)), float(value)


def judge(jobs: Sequence[tuple[str, Made]], room: int, judges: Sequence[str]) -> list[dict[str, Found]]:
    """Let a room of jobs live; return what each promtool's rules told of each job by its id."""
    series = scraped(jobs, room, wanted_metrics(rules_text()))
    job_ids = [job_id for job_id, _ in jobs]
    return [ask(series, jobs[0][1].seconds, job_ids, promtool) for promtool in judges]


def ask(series: list[dict[str, str]], seconds: int, job_ids: Sequence[str], promtool: str) -> dict[str, Found]:
    """Put what scrapes saw to the shipped rules; return what was told of each of these jobs.

    promtool prints what it got where it expected something else: so it is made to.
    """
    asked = questions(seconds)
    wrong = [{"labels": '{asked="yes"}', "value": 1}]
    tests = [{"expr": expression, "eval_time": f"{seconds}s", "exp_samples": wrong} for expression in asked.values()]
    whole = {
        "rule_files": [str(path) for path in RULES],
        "evaluation_interval": f"{EVALUATION_SECONDS}s",
        "group_eval_order": GROUPS,
        "tests": [{"interval": "1s", "input_series": series, "promql_expr_test": tests}],
    }
    with TemporaryDirectory() as scratch:
        file = Path(scratch) / "test.yml"
        file.write_text(json.dumps(whole))  # JSON is YAML
        said = run_promtool(promtool, "test", "rules", file)
    blocks = said.split("expr: ")[1:]
    assert len(blocks) == len(asked), said[:2000]
    found = {job_id: Found({}, {named.alert: {} for named in NAMED}) for job_id in job_ids}
    for question, block in zip(asked, blocks, strict=True):
        for labels, value in answers(block):
            alert, _, names = question.partition(" ")
            of = found[labels["job_id"]]
            if not names:
                of.alerts[alert] = min(value, of.alerts.get(alert, value))
                continue
            told = next(each for each in NAMED if each.alert == alert)
            key = tuple(labels.get(label, "") for label in told.labels)
            of.named[alert][key] = min(value, of.named[alert].get(key, value))
    return found
