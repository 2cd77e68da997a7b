"""`rankwatch healthy`: its verdict on the agent's metrics, and its time limit."""

import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler

import pytest
from http_answers import answering
from prometheus_client.parser import text_string_to_metric_families

from agent.cli import healthy
from agent.cli.healthy import CANNOT_TELL, HEALTHY, NOT_HEALTHY, Answer, judge, main

WELL = "# TYPE rankwatch_node_healthy gauge\nrankwatch_node_healthy 1\n"
ILL = """\
# TYPE rankwatch_node_healthy gauge
rankwatch_node_healthy 0
# TYPE rankwatch_check_failed_since_timestamp_seconds gauge
rankwatch_check_failed_since_timestamp_seconds{check="gpu_hot",kind="gpu",name="GPU-0"} 1000
rankwatch_check_failed_since_timestamp_seconds{check="nvlink_down",kind="gpu",name="GPU-1"} 1000
rankwatch_check_failed_since_timestamp_seconds{check="machine_check",kind="node",name=""} 1000
# TYPE rankwatch_rank_healthy gauge
rankwatch_rank_healthy{job_id="7",rank="0"} 1
rankwatch_rank_healthy{job_id="7",rank="1"} 0
rankwatch_rank_healthy{job_id="8",rank="0"} 1
# TYPE rankwatch_rank_unhealthy gauge
rankwatch_rank_unhealthy{job_id="7",rank="1",reason="nvlink_down"} 1
"""


@pytest.mark.parametrize(("page", "job_id", "expected"), [
    (WELL, None, Answer(HEALTHY, "healthy")),
    (ILL, None, Answer(NOT_HEALTHY, "not healthy: machine check; nvlink down on gpu GPU-1; gpu hot on gpu GPU-0")),
    ("", None, Answer(CANNOT_TELL, "cannot tell: no hardware of this node is checked")),
    (ILL, "7", Answer(NOT_HEALTHY, "not healthy: nvlink down under rank 1")),
    (ILL, "8", Answer(HEALTHY, "healthy")),
    (WELL, "7", Answer(CANNOT_TELL, "cannot tell: this node has no rank of job 7 with known hardware")),
])  # fmt: skip
def test_verdicts(page: str, job_id: str | None, expected: Answer) -> None:
    """A node's verdict comes from its checks, a job's from its ranks' hardware; without data the verdict is unknown."""
    assert judge(text_string_to_metric_families(page), job_id) == expected


def test_the_message_names_checks_up_to_the_limit() -> None:
    """The message names failed checks up to the limit, and counts the rest."""
    rows = "".join(
        f'rankwatch_check_failed_since_timestamp_seconds{{check="gpu_lost",kind="gpu",name="GPU-{number}"}} 1\n'
        for number in range(healthy.MAX_NAMED + 1)
    )
    text = judge(text_string_to_metric_families(ILL.splitlines()[0] + "\nrankwatch_node_healthy 0\n" + rows)).text
    assert text.count("gpu lost") == healthy.MAX_NAMED
    assert text.endswith("; 1 more")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense"])
def test_no_agent(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without an agent the exit status is 2 (unknown)."""
    assert main(["--web.listen-address", address]) == CANNOT_TELL
    assert capsys.readouterr().out.startswith(f"cannot tell: no answer from {address}: ")


def test_a_slow_agent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The command gives up at its time limit, even if the agent still sends bytes."""
    monkeypatch.setattr(healthy, "ASK_SECONDS", 0.3)
    sent = []

    def trickle(handler: BaseHTTPRequestHandler) -> bytes:
        with suppress(OSError):
            for letter in f"HTTP/1.1 200 OK\r\nContent-Length: {len(WELL)}\r\n\r\n{WELL}":
                handler.wfile.write(letter.encode())
                sent.append(letter)
                time.sleep(0.05)
        return b""

    with answering(trickle) as address:
        assert main(["--web.listen-address", address]) == CANNOT_TELL
        assert len(sent) < len(WELL)
    assert "not within 0.3 s" in capsys.readouterr().out
