"""`rankwatch exclude`: the nodes with the most first failures."""

from __future__ import annotations

import json

import pytest

from agent.cli import exclude
from agent.cli.exclude import Lemon, lemons
from agent.core.prometheus import Sample, shows_password


def failure(node: str, job_id: str, **labels: str) -> Sample:
    """Return a first failure."""
    return Sample({"cluster": "c1", "node": node, "job_id": job_id, "user": "alice", **labels}, 1.0)


FAILURES = [
    failure("b", "1", signal="SIGSEGV"),
    failure("b", "1", signal="SIGTERM"),  # a second rank of the job
    failure("b", "2", cause="program_error", user="bob"),
    failure("a", "3", cause="xid_79"),
    failure("a", "4", **{"class": "reboot"}),
    failure("a", "5", cause="gpu_lost"),
    failure("c", "6", signal="SIGKILL"),
    failure("d", "7", signal="SIGSEGV"),  # two runs of one user's program
    failure("d", "8", signal="SIGSEGV"),
    failure("", "9", cause="gpu_lost"),
]


def test_points() -> None:
    """A job gives its node one point, or two if its death looks like hardware, however many ranks died."""
    assert lemons(FAILURES) == [
        Lemon("c1", "a", 6, 3, 1), Lemon("c1", "d", 4, 2, 1), Lemon("c1", "b", 3, 2, 2), Lemon("c1", "c", 1, 1, 1),
    ]  # fmt: skip


def test_what_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Nodes with enough points are printed as a table, a list for Slurm or JSON; one user's four points are too few."""
    asked: list[str] = []

    def samples(url: str, expression: str) -> list[Sample]:
        asked.append(expression)
        return FAILURES if "dead" in expression else []

    monkeypatch.setattr("agent.core.prometheus.samples", samples)
    outputs = {}
    for form in ("table", "slurm", "json"):
        assert exclude.main(["--prometheus", "http://p", "--format", form, "--days", "3"]) == 0
        outputs[form] = capsys.readouterr().out
    assert outputs["slurm"] == "a,b\n"
    assert outputs["table"].splitlines()[1].split() == ["a", "c1", "6", "3", "1"]
    assert [one["node"] for one in json.loads(outputs["json"])] == ["a", "b"]
    assert all("[3d]" in expression for expression in asked)
    assert exclude.main(["--prometheus", "http://p", "--cluster", "c2"]) == 0
    assert capsys.readouterr().out.startswith("no node has enough points (--points, --days")
    monkeypatch.setattr("agent.core.prometheus.samples", lambda _url, _text: [])
    assert exclude.main(["--prometheus", "http://p"]) == 2
    assert "no series of rankwatch's rules in 7 days" in capsys.readouterr().err


def test_slurms_list_is_of_one_cluster(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A Slurm list with nodes of two clusters is refused, because sbatch refuses it; the message names the clusters."""
    failures = [failure("a", str(job), cluster=cluster) for cluster in ("c1", "c2") for job in range(5)]
    monkeypatch.setattr("agent.core.prometheus.samples", lambda _url, text: failures if "dead" in text else [])
    arguments = ["--prometheus", "http://p", "--format", "slurm"]
    assert (exclude.main(arguments), capsys.readouterr().err.count("c1, c2")) == (2, 1)
    assert (exclude.main([*arguments, "--cluster", "c2"]), capsys.readouterr().out) == (0, "a\n")


def test_a_password_that_crosses_the_network() -> None:
    """A password in an address with http is unencrypted, unless the host is a loopback address."""
    addresses = {
        "http://a:b@127.0.0.1:9": False, "http://a:b@[::1]": False, "http://a:b@localhost": False,
        "https://a:b@p": False, "http://p": False, "http://a:b@127.evil.example": True, "http://a:b@[::1:2]": True,
    }  # fmt: skip
    assert {address: shows_password(address) for address in addresses} == addresses
