"""Every query of the shipped dashboards in a real Prometheus with the shipped rules, for a running job."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from browser import Browser
from drawn import bundle, draw, unfolded, why_no_drawing
from machines import Machine, alive
from nodes import wait_until
from pages import (
    BEHIND,
    FAILED_SECONDS_AGO,
    HUNG_PATH,
    LOADS,
    NOT_BEGUN,
    SILENT,
    STRUCK,
    WAITS,
    XID,
    FixedPage,
    hardware_page,
    ras_page,
    said_page,
)
from prometheus import ROOT, Prometheus, prometheus_binaries, why_no_prometheus
from rules import DEPLOY, RULES, promtools, run_promtool, why_no_promtool

from grafana.job import TROUBLES

DASHBOARDS = sorted((ROOT / "grafana" / "dashboards").glob("*.json"))
STRAGGLER, VICTIM = "2", "5"
NODE = "127.0.0.1"
CLUSTER = "c1"
CLUSTERS = (CLUSTER, ".*", "")
"""Chosen clusters: a name, all, and none; queries use each in turn, with equal results."""
JOB = ("--records-per-second", "100", "--straggler", STRAGGLER, "--straggler-delay-us", "3000")
ENDED = {"How it ended"}
"""Panels about exited ranks; their queries use the killed rank."""
PIPELINE_SUFFIX = "9"
OF_PIPELINE = {
    "Bandwidth of sends and receives",
    "Bandwidth of the slowest pairs of ranks",
    "Operations with a record, and without one by cause",
}
"""Panels about features that the simulated job lacks; their queries use another job."""
RAS_SUFFIX = "8"
SELDOM = {
    "Nodes that fail repeatedly", "Exporters that fail", "Silent agents", "Links lost, by switch",
    "Errors of RDMA links", "Errors of RDMA transport", "Failed updates", "Slow pairs of ranks",
}  # fmt: skip
"""Panels without data here, because all is healthy or the rules need hours of data. They show a sentence instead."""
WELL = {
    ("Bus bandwidth now and a day before", "B"),
    ("What is known", "B"),
    ("What is known", "C"),
    ("What is known", "E"),
    ("What is known", "G"),
    ("What is known", "H"),
    ("What is known", "I"),
    ("Silence of all ranks over time", "B"),
    ("Lateness of all ranks over time", "B"),
}
"""Queries whose panels need other events: a lost node, a hang, an end, a day before, a healthy job."""
BY_RAS = "By RAS: ranks that communicators miss or wait for, or that failed"
OF_RAS = {BY_RAS, "Nodes that query", "Nodes that do not query", "Age of the last report", "Events"}
"""Panels about RAS; their queries use a job that only RAS knows."""
RANGE_SECONDS = 120
ASKED_SECONDS = 120
"""The time of promtool's queries, in seconds after the first sample."""
GRAFANA = {"$__rate_interval": "20s", "$__range": f"{RANGE_SECONDS}s", "$__interval": "5s"}
MAX_SECONDS = 90.0
LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")


class Target(NamedTuple):
    """One query: its panel, its expression, and whether it is an instant query."""

    dashboard: str
    panel: dict[str, Any]
    expression: str
    legend: str
    instant: bool
    ref: str

    @property
    def where(self) -> str:
        return f"{self.dashboard}, {self.panel['title']}: {self.expression}"

    @property
    def may_be_empty(self) -> bool:
        return self.panel["title"] in SELDOM or (self.panel["title"], self.ref) in WELL


def targets() -> list[Target]:
    """Return all queries of all dashboards."""
    return [
        Target(
            path.stem,
            panel,
            target["expr"],
            target.get("legendFormat", ""),
            target.get("instant", False),
            target["refId"],
        )
        for path in DASHBOARDS
        for panel in unfolded(json.loads(path.read_text()))
        for target in panel.get("targets", ())
    ]


def fill(text: str, variables: Mapping[str, str]) -> str:
    """Replace the dashboard's and Grafana's own variables in a query."""
    for name, value in {**GRAFANA, **{f"${name}": value for name, value in variables.items()}}.items():
        text = text.replace(name, value)
    assert re.search(r"\$(?!\d)", text) is None, text  # $1 is label_replace's
    return text


@pytest.mark.skipif(why_no_promtool() is not None, reason=why_no_promtool() or "")
@pytest.mark.parametrize("title", ["Silence of all ranks over time", "Lateness of all ranks over time"])
def test_hundreds_of_ranks_are_in_order(tmp_path: Path, title: str) -> None:
    """A large job shows the worst of each hundred ranks in order, a small job each rank in order."""
    ranks = {"0": 0.0, "5": 0.1, "99": 0.9, "100": 0.3, "199": 0.2, "4095": 0.4, "12345": 0.7}
    hundreds = {"000": 0.9, "001": 0.3, "040": 0.4, "123": 0.7}
    made = {"Lateness of all ranks over time": elsewhere, "Silence of all ranks over time": silence}[title]
    sizes = [(f'job:rankwatch_ranks_expected:max{{job_id="{job}"}}', size) for job, size in (("7", 12346), ("8", 128))]
    series = [*sizes, *made("7", ranks), *made("8", {"7": 0.4, "12": 0.0})]
    by_rank, by_hundred = (query.expression for query in of_panel("job", title))
    large, small = ({"job_id": job, "cluster": ""} for job in ("7", "8"))
    check_answers(
        tmp_path,
        series,
        {
            f"round({fill(by_rank, large)}, 0.1)": {},
            f"round({fill(by_hundred, large)}, 0.1)": {f'{{place="{key}"}}': n for key, n in hundreds.items()},
            f"round({fill(by_rank, small)}, 0.1)": {'{place="007", rank="7"}': 0.4, '{place="012", rank="12"}': 0.0},
            f"round({fill(by_hundred, small)}, 0.1)": {},
        },
        rules="lateness.yml",
    )


def elsewhere(job_id: str, ranks: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return each rank's share of time outside collectives: 0.05 plus its lateness. One rank's lateness must be 0."""
    own = 'comm_rank:rankwatch_elsewhere:ratio{{job_id="{}",comm="c",node="a",rank="{}"}}'
    lost = f'comm_node:rankwatch_operations:per_record{{job_id="{job_id}",comm="c",node="a"}}'
    return [(lost, 1), *((own.format(job_id, rank), 0.05 + late) for rank, late in ranks.items())]


def silence(job_id: str, ranks: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return series of live ranks that last completed an operation these seconds before ASKED_SECONDS."""
    own = 'job_id="{}",node="a",rank="{}"'
    return [
        (f"{name}{{{own.format(job_id, rank)}}}", value)
        for rank, late in ranks.items()
        for name, value in (
            ("rankwatch_rank_up", 1),
            ("rankwatch_rank_last_progress_timestamp_seconds", ASKED_SECONDS - late),
        )
    ]


@pytest.mark.skipif(why_no_promtool() is not None, reason=why_no_promtool() or "")
def test_a_rank_that_lives_elsewhere_is_not_gone(tmp_path: Path) -> None:
    """A rank that died on one node and runs on another is alive; of two exits the worse state is shown."""
    states = [("0", "a", "dead"), ("0", "b", "alive"), ("1", "a", "dead"), ("2", "a", "exited"), ("2", "b", "dead")]
    row = 'rankwatch_rank_state{{job_id="7",rank="{}",node="{}",state="{}"}}'
    now, counts = (of_panel("job", title)[0] for title in ("Ranks now", "Ranks"))
    variables = {"job_id": "7", "cluster": ""}
    check_answers(
        tmp_path,
        [(row.format(*state), 1) for state in states],
        {
            fill(now.expression, variables): {'{rank="0"}': 1, '{rank="1"}': 6, '{rank="2"}': 6},
            fill(counts.expression, variables): {'{state="alive"}': 1, '{state="dead"}': 2, '{state="exited"}': 1},
        },
    )


@pytest.mark.skipif(why_no_promtool() is not None, reason=why_no_promtool() or "")
def test_numbers_belong_to_what_they_name(tmp_path: Path) -> None:
    """Each exit has its own time; an ended rank has no silence; a job has its run's age; clusters are separate."""
    labels = '{{cluster="{}",node="a",device="e",direction="receive"}}'
    series: list[tuple[str, float | str]] = [
        ('rankwatch_rank_exit_info{job_id="7",rank="1",reason="exited"}', "1 stale"),
        ('rankwatch_rank_exit_info{job_id="7",rank="1",reason="signaled"}', "_ _ 1"),
        ('rankwatch_rank_exit_timestamp_seconds{job_id="7",rank="1"}', "10 stale 110"),
        ('rankwatch_rank_last_progress_timestamp_seconds{job_id="7",rank="1"}', 9),
        ('rankwatch_nixl_ep_expected_ranks{job_id="7"}', 32),
        ('job:rankwatch_run:time{job_id="7"}', 100),
        ('job:rankwatch_ranks_live:sum{job_id="7"}', 8),
        *((f"rankwatch_netdev_pause_frames_total{labels.format(cluster)}", "0+60x9") for cluster in ("c1", "c2")),
    ]
    expected: dict[tuple[str, str, int], dict[str, float]] = {
        ("rank", "How it ended", 0): {'{reason="exited"}': 10_000, '{reason="signaled"}': 110_000},
        ("rank", "Age and silence", 1): {},
        ("job", "Age and silence", 0): {"{}": ASKED_SECONDS - 100},
        ("launchers", "NIXL-EP run", 2): {"{}": 32},
        ("fabric", "Pause frames", 0): {labels.format(cluster): 1 for cluster in ("c1", "c2")},
    }
    answers = {}
    for (board, title, index), answer in expected.items():
        query = of_panel(board, title)[index].expression.replace("$__rate_interval", "90s")
        answers[fill(query, {"job_id": "7", "rank": "1", "cluster": ""})] = answer
    check_answers(tmp_path, series, answers)


@pytest.mark.skipif(why_no_promtool() is not None, reason=why_no_promtool() or "")
def test_time_of_gpus_by_class(tmp_path: Path) -> None:
    """Minutes of GPUs add up to hours; the rest of a productive minute is waiting; goodput leaves out unknown time."""
    gpus = 'job:rankwatch_gpus:count{job_id="7"}'
    busy = 'job:rankwatch_gpus_busy:count{{job_id="7",class="{}"}}'
    series = [(gpus, "8x59"), (busy.format("productive"), "6x29"), (busy.format("unknown"), "_x29 8x29")]
    hours, goodput = of_panel("fleet", "GPU-hours by class")[0], of_panel("job", "Goodput")[0]
    check_answers(
        tmp_path,
        series,
        {
            fill(hours.expression, {"cluster": "", "__range": "1h"}): {
                '{class="productive"}': 30 * 6 / 60,
                '{class="unknown"}': 30 * 8 / 60,
                '{class="waiting"}': 30 * 2 / 60,
            },
            fill(goodput.expression, {"job_id": "7", "cluster": ""}): {'{job_id="7"}': 6 / 8},
        },
        seconds=59 * 60,
    )


def of_panel(dashboard: str, title: str) -> list[Target]:
    """Return the queries of a panel."""
    return [target for target in targets() if (target.dashboard, target.panel["title"]) == (dashboard, title)]


def check_answers(
    directory: Path,
    series: Iterable[tuple[str, float | str]],
    expected: Mapping[str, Mapping[str, float]],
    seconds: int = ASKED_SECONDS,
    rules: str = "",
) -> None:
    """Run queries on these series after ``seconds``; values are constant, or in promtool's form, one a minute.

    ``rules``: the shipped rule file with the recordings that the queries read."""
    tests = [
        {
            "expr": query,
            "eval_time": f"{seconds}s",
            "exp_samples": [{"labels": labels, "value": value} for labels, value in answer.items()],
        }
        for query, answer in expected.items()
    ]
    inputs = [{"series": name, "values": value if isinstance(value, str) else f"{value}x9"} for name, value in series]
    case = {"interval": "1m", "input_series": inputs, "promql_expr_test": tests}
    files = [str(path) for path in RULES if path.name == rules]
    whole = {"rule_files": files, "evaluation_interval": "1m", "tests": [case]}
    (directory / "case.yml").write_text(yaml.safe_dump(whole))
    assert run_promtool(promtools()[0], "test", "rules", directory / "case.yml") == ""


@pytest.mark.skipif(why_no_prometheus() is not None, reason=why_no_prometheus() or "")
@pytest.mark.timeout(400)
@pytest.mark.parametrize("binary", prometheus_binaries())
def test_every_panel_shows_data(tmp_path: Path, binary: str) -> None:
    """Each query and variable of a dashboard returns data of live jobs with a late rank and a killed one."""
    machine = Machine(tmp_path)
    with (
        machine.job(*JOB) as job,
        pipeline(job.dump_dir, machine.job_id + PIPELINE_SUFFIX),
        FixedPage(ras_page(machine.job_id + RAS_SUFFIX)) as ras,
        FixedPage(hardware_page(machine.job_id, STRAGGLER)) as hardware,
        FixedPage(said_page(machine.job_id, STRAGGLER)) as said,
        machine.agent(job) as agent,
        Prometheus(
            tmp_path / "prometheus", shipped(tmp_path, agent.port, ras.port, hardware.port, said.port), binary
        ) as server,
    ):
        agent.wait_for_states(alive(8))
        wait_until(lambda: server.query("comm_rank:rankwatch_late:ratio"), MAX_SECONDS, "the late rank's blame")
        job.kill(job.pid(int(VICTIM)))
        killed_at = time.time()
        check_variables(server, machine.job_id)
        answers = {
            target.where: Answer(server, target, machine.job_id, cluster)
            for target, cluster in zip(targets(), itertools.cycle(CLUSTERS), strict=False)
        }

        def missing() -> list[str]:
            return [where for where, answer in answers.items() if not answer.come() and not answer.target.may_be_empty]

        try:
            wait_until(lambda: not missing(), MAX_SECONDS, "an answer to every query")
        except AssertionError:
            pytest.fail("without an answer: " + "\n".join(missing()))
        for answer in answers.values():
            answer.check_shape()
        check_numbers(server, Questions(server, machine.job_id), killed_at)
    if why_no_drawing() is None:
        check_drawings(tmp_path, list(answers.values()))


class Answer:
    """The result of one query, which is repeated until it has series."""

    def __init__(self, server: Prometheus, target: Target, job_id: str, cluster: str) -> None:
        title = target.panel["title"]
        rank = VICTIM if title in ENDED else STRAGGLER
        of_pipeline = {"job_id": job_id + PIPELINE_SUFFIX, "rank": "0"}
        variables = of_pipeline if title in OF_PIPELINE else {"job_id": job_id, "rank": rank}
        if title in OF_RAS:
            variables = {"job_id": job_id + RAS_SUFFIX, "rank": BEHIND}
        self._target = target
        self._expression = fill(target.expression, variables | {"node": NODE, "cluster": cluster})
        self._server = server
        self.series: list[dict[str, Any]] = []

    def come(self) -> bool:
        """Query unless there is a result; return whether there is a result."""
        if not self.series and self._target.instant:
            self.series = self._server.query(self._expression)
        elif not self.series:
            self.series = self._server.query_range(self._expression, RANGE_SECONDS, 5)
        return bool(self.series)

    @property
    def target(self) -> Target:
        return self._target

    def check_shape(self) -> None:
        """Check that legends distinguish all series, and that tables show all labels."""
        labels = [result["metric"] for result in self.series]
        if self._target.panel["type"] == "table":
            shown = table_columns(self._target.panel)
            assert all(label.keys() <= shown for label in labels), self._target.where
        elif self._target.legend:
            names = [
                re.sub(r"\{\{(\w+)\}\}", lambda m, e=label: e.get(m[1], ""), self._target.legend) for label in labels
            ]
            assert len(set(names)) == len(names), (self._target.where, names)
        else:
            assert len(labels) == 1 or "rank" in labels[0], self._target.where


def check_drawings(directory: Path, answers: list[Answer]) -> None:
    """Check that Grafana's own components draw every panel of every dashboard from these results, light and dark."""
    work = directory / "drawn"
    work.mkdir()
    program = bundle(work)
    end = time.time()
    pictures = os.environ.get("RANKWATCH_PICTURES")
    for path in DASHBOARDS:
        results = {}
        for answer in answers:
            if answer.target.dashboard == path.stem:
                results[f"{answer.target.panel['id']}:{answer.target.ref}"] = answer.series
        for light in (False, True):
            name = f"{path.stem}{'-light' if light else ''}.png"
            picture = Path(pictures) / name if pictures else None
            home = directory / name
            home.mkdir()
            with Browser(home) as browser:
                span = (end - RANGE_SECONDS, end, 5)
                drawn = draw(
                    browser, program, json.loads(path.read_text()), results, span, light=light, picture=picture
                )
            assert {title: what for title, what in drawn.items() if what != "drawn" and title not in SELDOM} == {}, (
                path.stem
            )


def table_columns(panel: dict[str, Any]) -> set[str]:
    """Return the columns of a table."""
    [organize] = [transformation for transformation in panel["transformations"] if transformation["id"] == "organize"]
    return set(organize["options"]["indexByName"])


class Questions:
    """Runs single queries by dashboard and panel."""

    def __init__(self, server: Prometheus, job_id: str) -> None:
        self._server = server
        self._job_id = job_id

    def __call__(
        self, dashboard: str, title: str, label: str, rank: str = STRAGGLER, suffix: str = "", cluster: str = CLUSTER
    ) -> dict[str, float]:
        """Return the current value of each series of a panel's first query, by ``label``; ``suffix``: of the job id."""
        expression = next(t.expression for t in targets() if (t.dashboard, t.panel["title"]) == (dashboard, title))
        variables = {"job_id": self._job_id + suffix, "rank": rank, "node": NODE, "cluster": cluster}
        series = self._server.query(fill(expression, variables))
        return {result["metric"].get(label, ""): float(result["value"][1]) for result in series}


def check_variables(server: Prometheus, job_id: str) -> None:
    """Check that the queries of the variables return the job and its ranks."""
    values_by_variable: dict[str, set[str]] = {}
    for path in DASHBOARDS:
        for variable in json.loads(path.read_text())["templating"]["list"]:
            if variable["type"] != "query":
                continue
            match = LABEL_VALUES.fullmatch(fill(variable["query"]["query"], {"job_id": job_id, "cluster": ""}))
            assert match is not None, variable
            values_by_variable[f"{path.stem} {variable['name']}"] = set(server.label_values(match[1], match[2]))
    assert job_id in values_by_variable["job job_id"]
    assert job_id in values_by_variable["rank job_id"]
    assert values_by_variable["node node"] == {NODE}
    assert all(values == {CLUSTER} for name, values in values_by_variable.items() if name.endswith(" cluster"))
    assert values_by_variable["rank rank"] == {str(rank) for rank in range(8)}


def check_numbers(server: Prometheus, ask: Questions, killed_at: float) -> None:
    """Check that the panels show the events of the job."""
    others = {str(rank) for rank in range(8)} - {VICTIM}
    wait_until(lambda: ask("job", "Ranks", "state") == {"alive": 7, "dead": 1}, 40.0, "seven alive and one dead")
    states = dict.fromkeys(others, 1) | {VICTIM: 6}
    wait_until(lambda: ask("job", "Ranks now", "rank") == states, 10.0, "their states")
    assert [ask("job", "Ranks now", "rank", cluster=cluster) for cluster in (*CLUSTERS, "c")] == [*[states] * 3, {}]
    assert ask("job", "What is known", "how") == {"killed (SIGKILL)": pytest.approx(killed_at * 1000, abs=2000)}
    exits = ask("job", "Ranks that left", "rank")
    assert exits == {VICTIM: pytest.approx(killed_at * 1000, abs=2000)}
    assert ask("job", "By flight recorders: ranks that the others waited for", "rank") == {NOT_BEGUN: 5}
    assert ask("job", "Where the ranks' Python code is", "stack") == {LOADS: 1, WAITS: 3}
    assert ask("job", "Ranks whose Python code is elsewhere", "rank") == {NOT_BEGUN: 1}
    assert ask("rank", "How it ended", "reason", VICTIM).keys() == {"signaled"}
    assert ask("job", "Reasons of lateness", "rank").keys() == {STRAGGLER}
    shares = ask("job", "Share of time that others waited for a rank", "rank")
    assert max(shares, key=lambda rank: shares[rank]) == STRAGGLER
    names = {"world", "tensor_model_parallel_group_0", "data_parallel_group_2"}
    assert ask("rank", "Communicators", "comm_name").keys() == names
    assert ask("rank", "State", "node", VICTIM) == {"127.0.0.1": 6}
    sent = ask("rank", "Bandwidth of sends and receives", "direction", "0", PIPELINE_SUFFIX)
    assert sent == {"send": pytest.approx(33.554432e9, rel=0.01)}
    check_ras(ask)
    check_node(ask)
    came_last = 'sum(increase(rankwatch_collective_last_arrivals_total{rank="%s"}[2m]))'
    assert (server.value(came_last % STRAGGLER) or 0) > 5 * (server.value(came_last % "1") or 0)


def check_ras(ask: Questions) -> None:
    """Check that the panels about RAS show the values of its page."""
    assert ask("job", BY_RAS, "rank", suffix=RAS_SUFFIX).keys() == {SILENT, BEHIND, "1", "2", "3"}
    assert ask("job", BY_RAS, "what", suffix=RAS_SUFFIX).keys() == {what for what, _ in TROUBLES}
    assert ask("launchers", "Nodes that query", "role", suffix=RAS_SUFFIX).keys() == {"reporter"}
    assert ask("launchers", "Nodes that do not query", "reason", suffix=RAS_SUFFIX) == {"not_elected": 1}


def check_node(ask: Questions) -> None:
    """Check that the panels about the node show the values of its page."""
    assert ask("node", "Health", "") == {"": 0}
    since = {check: pytest.approx(1000 * (time.time() - FAILED_SECONDS_AGO), abs=1e6) for check in STRUCK}
    assert ask("node", "Failed checks", "check") == since
    assert ask("node", "Ranks", "") == {"": 7 + 1}  # the pipeline's rank runs on this node, too
    assert ask("node", "Errors that the drivers logged", "code").keys() == {XID}
    assert ask("node", "Duration of storage probes", "path").keys() == {HUNG_PATH, "/home"}


PIPELINE = """
import itertools, json, os, pathlib, socket, sys, threading, time
def poll():
    pathlib.Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("NCCL RAS")
    threading.Event().wait()
threading.Thread(target=poll, daemon=True).start()
done = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
header = {"id": "0x5ca1ab1e0ddba1", "comm_name": "pipeline", "rank": 0, "n_ranks": 2, "nnodes": 2}
metadata = {"inspector_output_format_version": "v4.0", "rec_mechanism": "nccl_profiler_interface"}
metadata |= {"git_rev": "v2.30.7-1", "dump_timestamp_us": 0, "hostname": socket.gethostname(), "pid": os.getpid()}
sizes = {"msg_size_bytes": 16777216, "exec_time_us": 500, "algobw_gbs": 33.554432, "busbw_gbs": 33.554432}
with open(f"{sys.argv[1]}/{socket.gethostname()}-pid{os.getpid()}.log", "w", buffering=1) as file:
    for number in itertools.count():
        metadata["dump_timestamp_us"] = time.time_ns() // 1000
        p2p = {"p2p": "Send", "p2p_sn": number, "p2p_peer": 1, "p2p_timing_source": "kernel_gpu"}
        coll = {"coll": "AllReduce", "coll_sn": number, "coll_timing_source": "kernel_cpu"}
        for kind, facts in ("p2p", p2p), ("coll", coll):
            perf = facts | {f"{kind}_{name}": value for name, value in sizes.items()}
            print(json.dumps({"header": header, "metadata": metadata, f"{kind}_perf": perf}), file=file)
        if done.wait(0.1):
            break
"""


@contextlib.contextmanager
def pipeline(directory: Path, job_id: str) -> Iterator[None]:
    """Run a rank of another job that sends, and has collectives without GPU time."""
    directory.mkdir(parents=True, exist_ok=True)  # the job has perhaps not made the directory yet
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "SLURM_JOB_ID": job_id}
    command = [sys.executable, "-S", "-c", PIPELINE, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=env) as process:
        try:
            yield
        finally:
            process.communicate(timeout=10)


def shipped(directory: Path, port: int, *page_ports: int) -> str:
    """Return the shipped configuration for one agent and the pages, with the shipped rules and 1 s intervals."""
    config: dict[str, Any] = yaml.safe_load((DEPLOY / "scrape" / "static.yml").read_text())
    for job in config["scrape_configs"]:
        job.update(scrape_interval="1s", scrape_timeout="1s", static_configs=[{"targets": [f"127.0.0.1:{port}"]}])
    config["scrape_configs"][1]["static_configs"][0]["targets"] += [
        f"127.0.0.1:{page_port}" for page_port in page_ports
    ]
    rules = directory / "rules"
    rules.mkdir()
    for path in RULES:
        groups = yaml.safe_load(path.read_text())
        for group in groups["groups"]:
            group["interval"] = "1s"
        (rules / path.name).write_text(yaml.safe_dump(groups))
    for target in (static_config for job in config["scrape_configs"] for static_config in job["static_configs"]):
        target["labels"] = {"cluster": CLUSTER}
    return yaml.safe_dump({"global": {"evaluation_interval": "1s"}, "rule_files": [f"{rules}/*.yml"], **config})
