"""The page of an incident, from a fake Prometheus to the printed text."""

import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from http_answers import answering

from agent.cli.explain import ask, bundles, story
from agent.cli.explain.command import explain, main
from agent.cli.explain.culprit import judge
from agent.cli.explain.details import NODE_ALERTS, details
from agent.cli.explain.incident import Cost, incidents
from agent.cli.explain.model import Details, Happened, Incident, KnownJob, Said
from agent.cli.explain.story import as_html, as_text
from agent.core.prometheus import Line, Sample
from agent.evidence.summary import RankAtTime, Summary, Word
from exporters.job_log.catalogue import failures

START, DEATH, END = 1_800_000_000.0, 1_800_003_000.0, 1_800_003_600.0
"""1,800,000,000 is 2027-01-15 08:00:00 UTC; the death is at 08:50:00."""
RUNBOOK = "http://wiki/runbooks#rankdead"
DIED = {"rank": "3", "node": "a", "reason": "signaled", "signal": "SIGKILL", "code": ""}
OF_X = {"cluster": "x"}


def every(start: float, end: float, value: float | None = None) -> tuple[tuple[float, float], ...]:
    """Return points every 5 s; without a value, each point has its time as value."""
    times = [start + 5 * number for number in range(int((end - start) / 5) + 1)]
    return tuple((at, at if value is None else value) for at in times)


LINES: dict[str, list[Line]] = {
    "bottomk(8, rank:rankwatch_dead:time": [Line(DIED, every(DEATH + 5, END, DEATH))],
    "max(timestamp(rankwatch_job_progress_age_seconds": [Line({}, every(START, DEATH) + every(DEATH + 5, END, DEATH))],
    "max(job:rankwatch_run:time": [Line({}, every(START, END, START))],
    "max(job:rankwatch_gpus:count": [Line({}, every(START, END, 16.0))],
}
SAMPLES: dict[str, list[Sample]] = {
    "count by (cluster) (last_over_time(job:rankwatch_ranks_live:": [Sample(OF_X, 2.0)],
    "group by (cluster, node)": [Sample({"cluster": "x", "node": "a"}, 1.0),
     Sample({"cluster": "x", "node": "b"}, 1.0)],
    "topk(1, last_over_time(rankwatch_job_info": [Sample({"name": "pretrain", "user": "alice"}, 1.0)],
    "max(max_over_time(job:rankwatch_ranks_expected": [Sample({}, 16.0)],
    "min(min_over_time(job:rankwatch_run:time": [Sample({}, START)],
    "bottomk(8, last_over_time(rank:rankwatch_exit:time": [Sample(DIED, DEATH),
     Sample({"rank": "4", "node": "a", "reason": "exited", "code": "1"}, DEATH + 9)],
    "topk(17, max by (rank, host, gpu, reason)": [Sample({"rank": "3", "host": "a", "reason": "missing"}, 0.0)],
    "topk(17, last_over_time(rank:rankwatch_flight_recorder_behind": [Sample({"rank": "5", "node": "b",
     "what": "not_begun", "operation": "_allreduce_base", "description": "dp"}, 7.0)],
    "bottomk(64, min by (alertname, severity) (min_over_time(timestamp(ALERTS{job_id": [Sample({"alertname": "RankDead",
     "severity": "page"}, DEATH + 20)],
    "last_over_time(rankwatch_rank_info": [Sample({"rank": "3", "node": "a", "gpu": "3", "pid": "77"}, 1.0)],
}  # fmt: skip


class Asked:
    """Records all queries, and replies according to an expression's beginning."""

    def __init__(self, samples: dict[str, list[Sample]], lines: dict[str, list[Line]]) -> None:
        self.samples, self.lines = samples, lines
        self.queries: list[str] = []

    def at(self, expression: str, at_seconds: float) -> list[Sample]:
        """Reply to an instant query."""
        self.queries.append(expression)
        return next((series for word, series in self.samples.items() if expression.startswith(word)), [])

    def over(self, expression: str, start_seconds: float, end_seconds: float, step_seconds: float) -> list[Line]:
        """Reply to a range query."""
        self.queries.append(expression)
        assert (end_seconds - start_seconds) / step_seconds <= ask.MAX_POINTS
        return next((series for word, series in self.lines.items() if expression.startswith(word)), [])


class Forgetful(Asked):
    """A Prometheus without data of any job."""

    def __init__(self) -> None:
        super().__init__({}, {})

    def runbooks(self) -> dict[str, str]:
        """Return no rules."""
        return {}


@pytest.fixture
def server() -> Iterator[str]:
    """Serve a fake Prometheus that replies with SAMPLES and LINES and parses no expression; provide its address."""
    prometheus = Asked(SAMPLES, LINES)

    def answer(path: str, query: dict[str, list[str]]) -> Any:
        if path.endswith("/rules"):
            rules = [{"name": "RankDead", "annotations": {"runbook_url": RUNBOOK}}, {"name": "Other"}]
            return {"groups": [{"rules": rules}]}
        if path.endswith("/query_range"):
            start, end, step = (float(query[name][0]) for name in ("start", "end", "step"))
            lines = prometheus.over(query["query"][0], start, end, step)
            return {
                "result": [{"metric": line.labels, "values": [(a, str(v)) for a, v in line.points]} for line in lines]
            }
        samples = prometheus.at(query["query"][0], float(query["time"][0]))
        return {"result": [{"metric": sample.labels, "value": [1, str(sample.value)]} for sample in samples]}

    def page(handler: BaseHTTPRequestHandler) -> bytes:
        parts = urlsplit(handler.path)
        return json.dumps({"status": "success", "data": answer(parts.path, parse_qs(parts.query))}).encode()

    with answering(page) as address:
        yield address


PAGE = """\
job 7 (pretrain, alice) of cluster x: 16 ranks on 2 nodes
a rank died while the job worked: from 2027-01-15T08:50:00Z to 2027-01-15T09:00:00Z; no work since

Who
  rank 3 (a, GPU 3, pid 77): 2 of 3 witnesses agree
    process     rank 3  killed (SIGKILL): first to go
    NCCL's RAS  rank 3  does not answer RAS, and the others wait for it

Disagrees
    flight recorder  rank 5  had not begun allreduce no. 7 of group dp
"""


def test_the_page_of_a_death(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The page has the culprit, witnesses for and against, time line, 2.67 GPU-hours (16 GPUs, 600 s), and runbook."""
    assert main(["7", "--prometheus", server, "--until", str(int(END))]) == 0
    page = capsys.readouterr().out
    lines = page.splitlines()
    assert page.startswith(PAGE)
    when = [re.sub(" {2,}", " | ", line.strip()) for line in lines if re.match(r"  \d\d:\d\d:\d\d ", line)]
    assert when == [
        "08:50:00 | last progress | NCCL's records",
        "08:50:00 | rank 3 | a | killed (SIGKILL): first to go | process",
        "08:50:09 | rank 4 | a | exited with status 1 | process",
        "08:50:20 | page RankDead | alerts",
    ]
    assert "  2.67 GPU-hours  no work done for 10 min 0 s, and it goes on" in lines
    assert f"  RankDead  {RUNBOOK}" in lines
    main(["7", "--prometheus", server, "--until", str(int(END))])
    assert capsys.readouterr().out == page, "the same input gives the same text"


def test_html(server: str, tmp_path: Path) -> None:
    """The HTML file has the same page, mode 0600, and a link to the runbook."""
    file = tmp_path / "page.html"
    assert main(["7", "--prometheus", server, "--until", str(int(END)), "--html", str(file)]) == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert f'<a href="{RUNBOOK}" rel="noreferrer">' in file.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert main(["7", "--prometheus", server, "--until", str(int(END)), "--html", str(tmp_path / "no" / "x")]) == 2


def test_bundles_add_a_witness(server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page has the statements of a bundle beside those of the metrics, and names an invalid file below."""
    summary = Summary(
        1, "7", "b", DEATH + 30, "dead", "rank 3", "1", [RankAtTime("5", 1, "alive", 0.0)],
        [Word("3", "kernel_log", "the kernel killed it", blames=True)], ["3"], [], [],
    )  # fmt: skip
    (tmp_path / "a.json").write_bytes(msgspec.json.encode(summary))
    (tmp_path / "b.json").write_text("[]")
    assert main(["7", "--prometheus", server, "--until", str(int(END)), "--evidence", str(tmp_path)]) == 0
    page = capsys.readouterr().out
    assert "3 of 4 witnesses agree" in page
    assert "the kernel killed it (bundle of b)" in page
    assert re.search(r"Not used\n  b\.json: ", page)
    assert main(["7", "--prometheus", server, "--evidence", str(tmp_path / "none")]) == 2


def test_bundles_alone(tmp_path: Path) -> None:
    """If Prometheus has no data of the job, the page uses the bundles, and lists the unknown facts."""
    word = Word("3", "verdict", "killed (SIGKILL)", blames=True)
    made = Summary(1, "70", "b", DEATH, "dead", "rank 3", "1", [RankAtTime("3", 1, "dead", DEATH)], [word], [], [], [])
    (tmp_path / "a.json").write_bytes(msgspec.json.encode(made))
    page, _ = explain(Forgetful(), "70", None, None, END, bundles.read(tmp_path, "70"))
    assert page is not None
    text = as_text(page)
    assert "a rank died while the job worked" in text
    assert "whether it works again is unknown" in text
    assert "rank 3 (b): one witness says so" in text
    assert "unknown  metrics show neither GPUs nor ranks of the job" in text
    page, why = explain(Forgetful(), "70", None, None, END, bundles.Read((), ()))
    assert page is None
    assert why.startswith("job 70: no data in the range (--since, --until); known jobs: none (rankwatch doctor")


def test_refusals(capsys: pytest.CaptureFixture[str]) -> None:
    """If Prometheus does not reply, the status is 2, without a password; wrong spans and times are usage errors."""
    assert main(["7", "--prometheus", "http://me:secret@127.0.0.1:1"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("rankwatch explain: no answer from http://127.0.0.1:1: ")
    assert "secret" not in said
    for wrong in (["--since", "0m"], ["--since", "8d"], ["--since", "1"], ["--until", "yesterday"]):
        with pytest.raises(SystemExit) as stopped:
            main(["7", "--prometheus", "http://127.0.0.1:1", *wrong])
        assert stopped.value.code == 2


def test_two_clusters_with_a_job_of_one_id() -> None:
    """If two clusters have a job with the same id, all queries and nodes are of the chosen cluster."""
    both = [Sample({"cluster": "x"}, 1.0), Sample({"cluster": "y"}, 1.0)]
    nodes = [Sample({"cluster": "x", "node": "a"}, 1.0), Sample({"cluster": "y", "node": "z"}, 1.0)]
    live = "count by (cluster) (last_over_time(job:rankwatch_ranks_live"
    prometheus = Asked({live: both, "group by (cluster, node)": nodes}, {})
    assert ask.job(prometheus, "7", None, END, 3600.0).clusters == ("x", "y")
    chosen = ask.job(prometheus, "7", "x", END, 3600.0)
    assert (chosen.clusters, chosen.nodes, chosen.nodes_elsewhere) == (("x",), ("a",), frozenset({"z"}))
    assert ask.job(prometheus, "7", "none", END, 3600.0).clusters == ()
    prometheus.queries.clear()
    course = ask.course(prometheus, ask.matcher("7", "x"), START, END)
    assert all('job_id="7", cluster="x"' in entry for entry in prometheus.queries)
    assert incidents(course) == []


def test_deaths_of_one_episode() -> None:
    """A death time that changes from scrape to scrape is one death; a death minutes later is another death."""
    moving = tuple((at, DEATH + at % 2) for at, _ in every(DEATH + 5, DEATH + 60))
    other = {**DIED, "rank": "4", "node": "b"}
    late = (*every(DEATH + 15, DEATH + 60, DEATH + 10), *every(DEATH + 900, DEATH + 960, DEATH + 890))
    lines = {"bottomk(8, rank:rankwatch_dead:time": [Line(other, late), Line(DIED, moving)]}
    course = ask.course(Asked({}, lines), ask.matcher("7", None), START, END)
    assert [(entry.at - DEATH, entry.rank, entry.what) for entry in course.happened] == [
        (pytest.approx(0, abs=1), "3", "killed (SIGKILL): first to go"),
        (10.0, "4", "killed (SIGKILL)"),
        (890.0, "4", "killed (SIGKILL): first to go"),
    ]
    assert [span.end - DEATH for span in course.spans] == [60.0, 60.0, 960.0]


def test_every_question_is_bounded() -> None:
    """Every query limits its number of series, and quotes job ids and node names."""
    lost = "bottomk(17, min_over_time((max by (cluster, job_id, node) (last_over_time(job_node:"
    prometheus = Asked({**SAMPLES, lost: [Sample({"node": 'n"1'}, DEATH)]}, LINES)
    course = ask.course(prometheus, ask.matcher('7"', None), START, END)
    incident = incidents(course)[-1]
    details(prometheus, ask.matcher('7"', None), incident, course)
    assert all('job_id="7\\""' in entry for entry in prometheus.queries if "job_id" in entry)
    bounded = r"^(count|max|min|topk|bottomk)\b|job:rankwatch|rank=~"
    assert [entry for entry in prometheus.queries if not re.search(bounded, entry)] == []
    assert any('node=~"n\\\\\\"1"' in entry for entry in prometheus.queries), "a node's name is no pattern"


def test_a_witness_that_blames_too_many() -> None:
    """Sixteen ranks that do not reply to RAS are blamed; of seventeen ranks, none is blamed."""
    for number, blames in ((16, True), (17, False)):
        samples = [Sample({"rank": str(rank), "host": "a", "reason": "missing"}, 0.0) for rank in range(number)]
        prometheus = Asked({**SAMPLES, "topk(17, max by (rank, host, gpu, reason)": samples}, LINES)
        course = ask.course(prometheus, ask.matcher("7", None), START, END)
        known = details(prometheus, ask.matcher("7", None), incidents(course)[-1], course)
        words = [entry for entry in known.said if entry.witness == "ras"]
        assert {entry.blames for entry in words} == {blames}
        assert all(("more than 16" in entry.says) is not blames for entry in words)


def test_what_is_asked_for_exists() -> None:
    """The shipped rules or docs define every series in a query; a query for alerts selects alerts that fire."""
    root = Path(__file__).parents[2]
    source = "".join((root / "agent/cli/explain" / f"{name}.py").read_text() for name in ("ask", "details"))
    rules = "".join(path.read_text() for path in (root / "deploy/prometheus/rules").glob("*.yml"))
    recorded = set(re.findall(r"record: (\S+)", rules)) | set(re.findall(r"alert: (\S+)", rules))
    metrics = (root / "docs/metrics.md").read_text()
    prometheus = set(re.findall(r"\b(?:[a-z_]+:)?rankwatch_[a-z_]+(?::[a-z_0-9]+)?", source))
    assert len(prometheus) > 25
    assert [entry for entry in sorted(prometheus) if entry not in recorded and f"`{entry}`" not in metrics] == []
    assert [entry for entry in NODE_ALERTS.split("|") if entry not in recorded] == []
    assert [line for line in re.findall("ALERTS{.*", source) if 'alertstate="firing"' not in line] == []


def test_weak_categories_are_those_of_the_catalogue() -> None:
    """A category of the job's log is weak if all its entries with role `root` in categories.yml are weak."""
    roots = [entry for entry in failures().entries if entry.role == "root"]
    strong = {entry.category for entry in roots if not entry.weak}
    assert set(ask.WEAK_CATEGORIES.split("|")) == {entry.category for entry in roots} - strong


def test_a_long_time_line_keeps_both_ends() -> None:
    """Above its limit the time line leaves out its middle, and counts the omitted lines."""
    happened = [Happened(float(number), "other", str(number), "", "line", "x") for number in range(story.MAX_TIMELINE)]
    assert len(story.timeline(happened)) == story.MAX_TIMELINE
    rows = story.timeline([*happened, Happened(99.0, "other", "z", "", "line", "x")])
    assert (len(rows), rows[story.MAX_TIMELINE // 2][3], rows[-1][1]) == (story.MAX_TIMELINE + 1, "1 more", "rank z")


def test_the_time_line_is_in_order() -> None:
    """If a death is reported twice, it has one line, with the earlier time and the text "first to go"."""
    deaths = [(1000.0, "3", "died"), (1008.0, "5", "died"), (1012.0, "3", "died: first to go")]
    rows = story.timeline([Happened(at, "died", rank, "a", what, "verdict") for at, rank, what in deaths])
    assert [row[0] for row in rows] == ["00:16:40", "00:16:48"]
    assert [row[1:4] for row in rows] == [("rank 3", "a", "died: first to go"), ("rank 5", "a", "died")]


def test_late_ranks_cost_without_gpu_metrics() -> None:
    """If the number of GPUs is unknown, the cost of waiting for a late rank counts one GPU for each rank."""
    spent, incident = Cost(0.0, 0.0, None, 2.67, is_guess=True), Incident(0.0, 1.0, 0.0, None, "went_on")
    page = story.page_of(KnownJob("4711", ("a",)), [incident], Details(), judge((), is_hang=False), spent, {})
    assert "2.67 GPU-hours  all ranks waited for a late rank (counting each rank as one GPU)" in as_text(page)


def test_hostile_words() -> None:
    """Control characters and HTML in a user's log are harmless in the terminal and the browser."""
    evil = "\x1b[2J<script>alert(1)</script>"
    said = [Said(evil, evil, "job_log", evil, blames=True, source=evil)]
    incident = Incident(0.0, 1.0, 0.0, None, "died")
    happened = (Happened(0.0, "log", evil, evil, evil, evil),)
    known = Details(happened, tuple(said), alerts=(evil,), advice=(evil,), left_out=(evil,))
    runbooks, judgement = {evil: 'javascript:alert(1)"'}, judge(said, is_hang=False)
    spent = Cost(1.0, 1.0, 1.0, 1.0, True)  # noqa: FBT003
    page = story.page_of(KnownJob(evil, (evil,)), [incident], known, judgement, spent, runbooks)
    assert all(line.isprintable() for line in as_text(page).splitlines())
    assert "<script>" not in as_html(page)
    assert "href" not in as_html(page)
