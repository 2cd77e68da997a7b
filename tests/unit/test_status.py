"""The table of ranks on the terminal."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_answers import answering

from agent.cli.status import brief, main, table
from agent.page.ranks_json import Configuration, ExporterView, JobView, NodeDocument, Rank, RankEnd, write
from agent.ranks.rank.process import RankGpu

ROOT = Path(__file__).parents[2]
RANKS = (
    Rank(job_id="4711", rank="9", state="dead", pid=76, last_progress_seconds=1000.0,
     ended=RankEnd(1001.0, "signaled", "SIGSEGV")),
    Rank(job_id="4711", rank="10", state="alive", pid=77, user="alice", gpus=(RankGpu(3, "GPU-a"),),
     bus_bandwidth_bytes_per_second=183_456_000_000, late_share=0.31, unhealthy=("gpu_xid",)),
    Rank(job_id="4712", rank="0", state="finished", ended=RankEnd(1001.0, "exited", "", 0)),
)  # fmt: skip


def document(ranks: tuple[Rank, ...] = RANKS, **more: Any) -> NodeDocument:
    """Return an agent's document."""
    fields = {"rankwatch": "0.2.0", "hostname": "gpu-7", "now_seconds": 1042.0, "up_seconds": 9.0, "ready": True}
    return NodeDocument(ranks=ranks, **(fields | more))


def test_table() -> None:
    """Ranks are in the order of the document with their facts; the last column is how the rank ended."""
    assert table(document()).splitlines() == [
        "JOB   RANK  STATE     PID  USER   GPU  GB/S   LATE  PROGRESS  TROUBLE  HOW IT ENDED",
        "4711  9     dead      76                            42 s ago           crashed (SIGSEGV)",
        "4711  10    alive     77   alice  3    183.5  31%             gpu_xid",
        "4712  0     finished                                                   exited with status 0",
    ]


def test_a_rank_that_waits() -> None:
    """A waiting rank shows the dead rank that it waits for, as on the page, and no bandwidth."""
    waiting = Rank(
        job_id="4711", rank="10", state="alive", bus_bandwidth_bytes_per_second=9e10, last_progress_seconds=1000.0
    )
    line = table(document((RANKS[0], waiting))).splitlines()[-1]
    assert line.split() == ["4711", "10", "alive", "waits", "for", "rank", "9,", "42", "s"]


def test_nothing_that_a_terminal_obeys() -> None:
    """No name of a user and no reply on the port can move the cursor, set a title or end a line."""
    evil = "\x1b]0;x\x07\n\x9b2J"
    ended = RankEnd(1.0, evil, evil)
    ranks = (Rank(job_id=evil, rank=evil, state=evil, user=evil, unhealthy=(evil,), ended=ended),)
    exporters = (ExporterView(name=evil, state="down", why=evil),)
    refused = Configuration(evil, evil)
    whole = document(ranks, notes=(evil,), exporters=exporters, configuration=refused)
    for text in (table(whole), brief(document(ranks))):
        assert all(character.isprintable() for line in text.split("\n") for character in line)
    assert len(table(document(ranks)).split("\n")) == 2


def test_sets_of_ranks() -> None:
    """`--brief` lists each job's ranks by state as ranges, and then ranks that are named by pid."""
    named = {"alive": ["0", "10", "2", "1", "12", "11", "7", "pid-77"], "dead": ["3"]}
    ranks = [Rank(job_id="9", rank=rank, state=state) for state in named for rank in named[state]]
    said = brief(document((*ranks, Rank(job_id="8", rank="0", state="alive"))))
    assert said.splitlines() == ["8  alive  0", "9  alive  0-2,7,10-12,pid-77", "9  dead  3"]
    assert brief(document(())) == "no ranks"


def test_what_is_not_known_stands_below() -> None:
    """Below the ranks are notes, exporters in trouble, a refused configuration, and the number of omitted ranks."""
    views = (
        ("netdev", "up", "pause frames unavailable"), ("nvml", "absent", "no library"), ("ras", "down", "no socket"),
        ("process", "up", ""),
    )  # fmt: skip
    exporters = tuple(ExporterView(name=name, state=state, why=why) for name, state, why in views)
    refused = Configuration("/etc/r.yml", "line 3")
    notes = ("not known of 8 rank(s): this",)
    whole = document(notes=notes, exporters=exporters, configuration=refused, ranks_left_out=2)
    assert table(whole).splitlines()[4:] == [
        "not known of 8 rank(s): this",
        "exporter netdev: pause frames unavailable",
        "exporter ras: no socket",
        "configuration refused, the previous one stays: line 3",
        "2 more ranks are not shown",
    ]
    assert table(document(())) == "no ranks (start a job, or rankwatch doctor)"


class Answers:
    """The reply and the address of a server that stands in for an agent."""

    body = write(document())
    address = ""


@pytest.fixture
def answers() -> Iterator[Answers]:
    """Serve the reply of an agent."""
    result = Answers()
    with answering(lambda _: result.body) as result.address:
        yield result


@pytest.mark.parametrize(
    ("address", "why"), [("127.0.0.1:1", "no agent listens there; systemctl start rankwatch"), ("nonsense", "listen")]
)
def test_no_answer(address: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    """If the agent does not reply, the command prints one line with a remedy on standard error and exits with 1."""
    assert main(["--web.listen-address", address]) == 1
    message = capsys.readouterr().err
    assert message.startswith(f"rankwatch status: no answer from {address}: {why}")
    assert ("another address: --web.listen-address" in message) == why.startswith("no agent")
    assert message.count("\n") == 1


def test_the_address_is_that_of_the_configuration(
    answers: Answers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The address comes from the configuration; a named file that is missing is an error."""
    config = tmp_path / "r.yml"
    config.write_text(f"web: {{listen_address: '{answers.address}'}}\n")
    assert main(["--config.file", str(config), "4712"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("4712")
    assert main(["--config.file", str(config), "--job", "none"]) == 1
    assert capsys.readouterr().out == ""
    assert main(["--config.file", str(tmp_path / "none.yml")]) == 1
    said = f"rankwatch status: {tmp_path}/none.yml: No such file or directory; every setting has a default: leave out"
    assert capsys.readouterr().err.startswith(said)


def test_json_is_the_document(answers: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints the agent's reply for the requested job."""
    assert main(["--web.listen-address", answers.address, "--json", "--job", "4711"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["api"], [rank["rank"] for rank in result["ranks"]]) == (1, ["9", "10"])


def test_watching_on_a_terminal(answers: Answers) -> None:
    """On a terminal the table has its own screen, with colours, and an interrupt exits with 0."""
    answers.body = write(document(jobs=(JobView(job_id="4711", sentence="rank 9 crashed", states={"dead": 1}),)))
    reader, writer = os.openpty()
    # A shell's background job ignores SIGINT, and so would its children.
    command = [
        "env", "--default-signal=INT", sys.executable, "-m", "agent", "status", "--watch", "--web.listen-address",
        answers.address,
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, env={**os.environ}) as process:
        os.close(writer)
        shown = b""
        deadline = time.monotonic() + 20
        try:
            while b"exited with status 0" not in shown and time.monotonic() < deadline:
                shown += os.read(reader, 65536)
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0
        finally:
            process.kill()
        assert process.stderr is not None and process.stderr.read() == b""
    os.close(reader)
    assert shown.startswith(b"\x1b[?1049h\x1b[H")
    assert b"job 4711: rank 9 crashed" in shown
    assert b"\x1b[1;31mdead" in shown


def test_watching_in_a_pipe(
    answers: Answers, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pipe the output is plain text."""

    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    assert main(["--watch", "--web.listen-address", answers.address]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "4711  9     dead" in shown
