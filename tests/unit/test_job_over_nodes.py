"""A whole job from Prometheus: dead ranks, the first exit, late ranks and causes, missing ranks."""

import json
import re
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

import pytest
from http_answers import answering

from agent.cli.job.command import as_text, main
from agent.cli.job.facts import UNSEEN, FiringAlert, JobFacts, JobRank, facts_from, quoted
from agent.core.prometheus import Sample
from agent.page.ranks_json import RankEnd

NOW = 10_000.0
Answers = dict[str, list[Sample]]
"""Series by the first word of an expression; other expressions have none."""


def of(rank: str, node: str, value: float = 1.0, **more: str) -> Sample:
    """Return a series of one rank."""
    return Sample({"rank": rank, "node": node, **more}, value)


def asking(answers: Answers) -> Callable[[str], list[Sample]]:
    """Return an ``ask`` that replies from these series."""

    def ask(expression: str) -> list[Sample]:
        if expression.startswith("vector"):
            return [Sample({}, NOW)]
        return next((series for word, series in answers.items() if expression.startswith(word)), [])

    return ask


SITE: Answers = {
    "rankwatch_rank_state": [of("3", "a", state="dead"), of("2", "a", state="dead"), of("0", "a", state="alive"),
     of("9", "b", state="alive"), of("10", "b", state="alive")],
    "max_over_time(timestamp(rankwatch_rank_info": [of("3", "a", 9990.0, pid="30", user="alice", gpu="0"),
     of("3", "a", 9990.0, pid="30", user="alice", gpu="1"), of("3", "a", 9000.0, pid="29", user="alice", gpu="7"),
     of("11", "c", 9500.0, pid="110"), of("0", "z", 9000.0, pid="5")],
    "max by (node, instance, rank) (rank:rankwatch_exit:time": [of("2", "a", 9941.0), of("3", "a", 9940.0)],
    "max by (node, instance, rank) (rankwatch_rank_exit_timestamp": [of("2", "a", 9000.0)],
    "rankwatch_rank_exit_info": [of("3", "a", reason="signaled", signal="SIGKILL", code=""),
     of("2", "a", reason="exited", signal="", code="1")],
    "max by (node, instance, rank) (rankwatch_rank_last_progress": [of("9", "b", 9941.0)],
    "max by (rank) (avg_over_time(comm_rank:rankwatch_late": [of("9", "", 0.31)],
    'ALERTS{job_id="4711", alertname="StragglerRank"': [of("9", "b", why="data_loader")],
    "job:rankwatch_ranks_expected": [Sample({}, 16.0)],
    "rankwatch_job_info": [Sample({"name": "pretrain", "user": "alice", "partition": ""}, 1.0)],
    "job:rankwatch_ranks_live": [Sample({}, 4.0)], "sum(comm_collective:rankwatch_bus_bytes": [Sample({}, 180e9)],
    "ALERTS": [Sample({"alertname": "RankDead", "severity": "page", "rank": "3", "node": "a"}, 1.0)],
}  # fmt: skip


def test_the_whole_job_in_trouble() -> None:
    """Two ranks are dead, one is late, one has vanished, ten were never seen; the exit times come from the rules."""
    facts = facts_from(asking(SITE), "4711", None)
    by_rank = {(rank.node, rank.rank): rank for rank in facts.ranks}
    assert by_rank["a", "3"] == JobRank(
        "a", "3", "dead", "30", "alice", "0,1", ended=RankEnd(9940.0, "signaled", "SIGKILL")
    )
    assert by_rank["a", "2"].ended == RankEnd(9941.0, "exited", "", 1)
    assert (by_rank["b", "9"].late_share, by_rank["b", "9"].why) == (0.31, ("data loader",))
    assert by_rank["c", "11"].state == UNSEEN
    assert ("z", "0") not in by_rank, "it runs on another node now"
    text = as_text(facts).splitlines()
    assert text[0] == "job 4711 (pretrain, alice): 6 ranks on 3 nodes, bus bandwidth 180.0 GB/s"
    rested = SITE | {"max by (node, instance, rank) (rankwatch_rank_last_progress": [of("9", "b", 9939.0)]}
    assert facts_from(asking(rested), "4711", None).bus_bandwidth_bytes_per_second is None, "no progress for 61 s"
    assert text[1] == "now: 2 dead, 1 not seen any more, 3 alive, 1 late"
    assert re.fullmatch(r"first to go: rank 3 on a killed \(SIGKILL\) at \d\d:\d\d:\d\d, 1 min 0 s ago", text[2])
    assert text[3:6] == ["not seen any more: 11 on c", "never seen in the last hour: 10 of 16 ranks", "page: RankDead"]
    assert [line.split()[0] for line in text[8:12]] == ["2", "3", "11", "9"], "the worst first, then by number"
    assert text[-1] == "2 ranks without trouble are not listed (--all)"
    assert "10    b " in as_text(facts, every=True)


def test_without_the_rules() -> None:
    """Without the shipped rules the agents' own states are shown, and a note that late ranks are unknown."""
    facts = facts_from(asking({"rankwatch_rank_state": [of("0", "a", state="alive")]}), "1", None)
    assert not facts.has_rules
    assert "now: 1 alive\nthe shipped rules have no series of this job" in as_text(facts)


def test_two_clusters_with_a_job_of_one_id() -> None:
    """Jobs with one id in two clusters are never shown as one job."""
    both = [of("0", "a", state="dead", cluster="x"), of("0", "a", state="alive", cluster="y")]
    facts = facts_from(asking({"rankwatch_rank_state": both}), "1", None)
    assert facts.ranks == ()
    assert as_text(facts) == "clusters x, y each have a job 1: choose one by --cluster"


def test_hostile_names() -> None:
    """A label's text cannot end its string in a query, and cannot control the terminal."""
    assert quoted('a"} or vector(1)\\\n') == '"a\\"} or vector(1)\\\\\\n"'
    rank = JobRank("a", "\x1b[2J", "dead", user="\x07")
    facts = JobFacts("\x1b]0;", NOW, ("c",), ranks=(rank,), alerts=(FiringAlert("\x9b", "page"),))
    assert as_text(facts).isprintable() or all(line.isprintable() for line in as_text(facts).splitlines())


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """Serve a fake Prometheus with SITE's series; provide its address and the credentials that it receives."""
    sent: list[str] = []

    def page(handler: BaseHTTPRequestHandler) -> bytes:
        sent.append(handler.headers.get("Authorization", ""))
        [expression] = parse_qs(urlsplit(handler.path).query)["query"]
        series = [{"metric": dict(entry.labels), "value": [1, str(entry.value)]} for entry in asking(SITE)(expression)]
        return json.dumps({"status": "success", "data": {"resultType": "vector", "result": series}}).encode()

    with answering(page) as address:
        yield address, sent


def test_the_command(server: tuple[str, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints text and JSON, exits with 1 while a rank is dead, and sends but never prints a password."""
    where, sent = server
    assert main(["4711", "--prometheus", f"http://me:s%40crete@{where}/"]) == 1
    assert "first to go: rank 3" in capsys.readouterr().out
    assert set(sent) == {"Basic bWU6c0BjcmV0ZQ=="}
    assert main(["4711", "--prometheus", where, "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["ranks"]) == 6
    assert main(["4711", "--prometheus", "http://me:secret@127.0.0.1:1"]) == 2
    said = capsys.readouterr().err
    assert "no answer from http://127.0.0.1:1: no Prometheus listens there" in said
    assert "secret" not in said
