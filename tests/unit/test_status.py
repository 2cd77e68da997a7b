"""The table of ranks on the terminal."""

from __future__ import annotations

import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.app.status import brief, main, table

PAGE = """\
# TYPE rankwatch_rank_state gauge
rankwatch_rank_state{job_id="4711",rank="10",state="alive"} 1
rankwatch_rank_state{job_id="4711",rank="9",state="dead"} 1
# TYPE rankwatch_rank_info gauge
rankwatch_rank_info{job_id="4711",rank="10",pid="77",user="alice"} 1
# TYPE rankwatch_rank_last_progress_timestamp_seconds gauge
rankwatch_rank_last_progress_timestamp_seconds{job_id="4711",rank="9"} 1000
# TYPE rankwatch_rank_exit_info gauge
rankwatch_rank_exit_info{job_id="4711",rank="9",reason="signaled",signal="SIGSEGV",code=""} 1
# TYPE rankwatch_communicator_member_info gauge
rankwatch_communicator_member_info{job_id="4711",comm="abc",comm_rank="0",rank="11"} 1
"""


def test_table() -> None:
    """Ranks stand in the order of their numbers, each with what is known of it."""
    assert table(text_string_to_metric_families(PAGE), 1042.0).splitlines() == [
        "JOB   RANK  STATE  PID  USER   PROGRESS  ENDED BY",
        "4711  9     dead               42s ago   signaled SIGSEGV",
        "4711  10    alive  77   alice",
    ]


def test_sets_of_ranks() -> None:
    """Briefly, each job and state has its ranks as ranges, with those that go by a pid behind them."""
    ranks = {"alive": ["0", "10", "2", "1", "12", "11", "7", "pid-77"], "dead": ["3"]}
    page = PAGE.splitlines()[0] + "".join(
        f'\nrankwatch_rank_state{{job_id="9",rank="{rank}",state="{state}"}} 1'
        for state in ranks
        for rank in ranks[state]
    )
    said = brief(
        text_string_to_metric_families(f'{page}\nrankwatch_rank_state{{job_id="8",rank="0",state="alive"}} 1\n')
    )
    assert said.splitlines() == ["8  alive  0", "9  alive  0-2,7,10-12,pid-77", "9  dead  3"]
    assert brief([]) == "no ranks"


def test_what_the_node_does_not_tell_of_its_hardware() -> None:
    """Where the agent may not ask for pause frames the table says so, and what helps."""
    unread = "# TYPE rankwatch_netdev_pause_frames_unread gauge\nrankwatch_netdev_pause_frames_unread 1\n"
    assert table(text_string_to_metric_families(PAGE + unread), 1042.0).splitlines()[3:] == [
        "not known of network devices: their pause frames; that takes netlink, see 55-hardware.conf"
    ]


def test_what_the_node_does_not_tell_of_ranks() -> None:
    """Below the ranks stands what the node does not tell of what they use, and what helps."""
    unread = """\
# TYPE rankwatch_rank_usage_unread gauge
rankwatch_rank_usage_unread{source="delayacct"} 8
rankwatch_rank_usage_unread{source="schedstat"} 1
rankwatch_rank_usage_unread{source="unheard of"} 1
"""
    lines = table(text_string_to_metric_families(PAGE + unread), 1042.0).splitlines()
    assert lines[3:] == [
        "not known of 1 rank(s): how long they wait for a CPU; the kernel has no schedstat (CONFIG_SCHED_INFO)",
        "not known of 8 rank(s): how long they wait for disks; sysctl kernel.task_delayacct=1",
    ]


def test_no_ranks() -> None:
    """A node without ranks says so."""
    assert table([], 0.0) == "no ranks"


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense"])
def test_no_answer(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An agent that does not answer is one line on standard error and status 1."""
    assert main(["--web.listen-address", address]) == 1
    message = capsys.readouterr().err
    assert message.startswith(f"rankwatch status: no answer from {address}: ")
    assert message.count("\n") == 1


def test_no_proxy_is_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The agent is asked directly even where the environment names a proxy for everything."""

    class Agent(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(PAGE.encode())

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setattr(urllib.request, "_opener", None)  # urlopen keeps what it found in the environment once
    with HTTPServer(("127.0.0.1", 0), Agent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert main(["--web.listen-address", f"127.0.0.1:{server.server_port}"]) == 0
        server.shutdown()
    assert "SIGSEGV" in capsys.readouterr().out
