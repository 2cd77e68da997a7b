"""The remedies in messages about a user's mistake."""

from __future__ import annotations

import os
import socket
import sys

import pytest
from http_answers import answering

from agent.cli import main as command_line, status
from agent.core import prometheus
from agent.page.ranks_json import JobView, NodeDocument, write
from agent.web.listen import ListenAddress, open_listeners


def test_a_port_that_is_taken() -> None:
    """The message names the process that has the port, and the option for another port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = rf"port {port} is taken by process {os.getpid()} \(.*\); choose another by --web.listen-address"
        with pytest.raises(OSError, match=said):
            open_listeners(ListenAddress("127.0.0.1", port))


def test_status_of_an_unknown_job(capsys: pytest.CaptureFixture[str]) -> None:
    """If a job has no ranks on this node, `status` lists the jobs that have ranks here, and exits with 1."""
    document = NodeDocument(
        rankwatch="1", hostname="n", now_seconds=1.0, up_seconds=1.0, ready=True, jobs=(job("7"), job("8"))
    )
    with answering(lambda _: write(document)) as address:
        assert status.main(["--web.listen-address", address, "--job", "9"]) == 1
    assert "job 9 has no rank on this node; jobs here: 7, 8" in capsys.readouterr().err


def job(job_id: str) -> JobView:
    """Return a job without facts."""
    return JobView(job_id=job_id, sentence="", states={})


EMPTY = b'{"status": "success", "data": {"result": []}}'


@pytest.mark.parametrize(("page", "code", "said"), [
    (b"", 404, "no Prometheus? (an agent: rankwatch status)"),
    (b"<html>", 200, prometheus.NOT_PROMETHEUS),
    (b'{"status": "success"}', 200, prometheus.NOT_PROMETHEUS),
    (EMPTY, 200, prometheus.NOT_PROMETHEUS),
])  # fmt: skip
def test_a_wrong_address_of_prometheus(page: bytes, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """If the address is another service's, every command says so."""
    with answering(lambda _: page, code) as address:
        assert command_line.main(["job", "7", "--prometheus", f"http://{address}"]) == 2
    assert said in capsys.readouterr().err


def test_a_job_that_prometheus_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    """`job` and `explain` list the jobs that Prometheus knows."""
    known = EMPTY.replace(b"[]", b'[{"metric": {"job_id": "8"}, "value": [1, "1"]}]')
    with answering(lambda asked: known if "topk" in asked.path or "vector" in asked.path else EMPTY) as address:
        for command in ("job", "explain"):
            assert command_line.main([command, "7", "--prometheus", address]) == 1
            assert "known jobs: 8" in capsys.readouterr().out


def test_a_prometheus_that_is_silent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """If nothing answers, the message names the time-out; without an address it names another command."""
    monkeypatch.setattr(prometheus, "ASK_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert command_line.main(["exclude", "--prometheus", f"127.0.0.1:{silent.getsockname()[1]}"]) == 2
    assert "timed out after 0.1 s; a firewall" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command_line.main(["job", "7"])
    assert "needs --prometheus URL; without Prometheus: rankwatch status --job ID" in capsys.readouterr().err


def test_help_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    """`rankwatch help` lists the commands, `rankwatch help NAME` prints the options; no command starts the agent."""
    for words, said in (
        (["help"], "doctor    check the installation"),
        (["help", "help"], "doctor    check the installation"),
        (["help", "exclude"], "usage: rankwatch exclude"),
    ):
        with pytest.raises(SystemExit) as end:
            command_line.main(words)
        assert end.value.code == 0
        assert said in capsys.readouterr().out
    assert command_line.main(["start"]) == 2
    assert "the agent runs without a command: rankwatch --config.file FILE" in capsys.readouterr().err


def test_a_pipe_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that writes into a closed pipe exits with 0."""
    document = write(NodeDocument(rankwatch="1", hostname="n", now_seconds=1.0, up_seconds=1.0, ready=True))
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed, answering(lambda _: document) as address:
        monkeypatch.setattr(sys, "stdout", closed)
        assert command_line.main(["status", "--web.listen-address", address]) == 0
