"""The remedies in messages about a user's mistake."""

from __future__ import annotations

import os
import socket
import sys

import pytest
from http_answers import answering

from agent.cli import main as command_line, status
from agent.cli.explain import command as explain
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


def test_an_agents_address_as_prometheus(capsys: pytest.CaptureFixture[str]) -> None:
    """If the Prometheus address returns 404, the message asks whether it is an agent's."""
    with answering(lambda _: b"", 404) as address:
        assert explain.main(["7", "--prometheus", f"http://{address}"]) == 2
    assert "is it a Prometheus, not an agent?" in capsys.readouterr().err


def test_help_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    """`rankwatch help` lists the commands, `rankwatch help NAME` prints the options of the command NAME."""
    for words, said in (
        (["help"], "doctor    check the installation"),
        (["help", "exclude"], "usage: rankwatch exclude"),
    ):
        with pytest.raises(SystemExit) as end:
            command_line.main(words)
        assert end.value.code == 0
        assert said in capsys.readouterr().out


def test_a_pipe_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that writes into a closed pipe exits with 0."""
    document = write(NodeDocument(rankwatch="1", hostname="n", now_seconds=1.0, up_seconds=1.0, ready=True))
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as closed, answering(lambda _: document) as address:
        monkeypatch.setattr(sys, "stdout", closed)
        assert command_line.main(["status", "--web.listen-address", address]) == 0
