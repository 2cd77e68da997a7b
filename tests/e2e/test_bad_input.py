"""Bad input, end to end: a clear message or a counted refusal, never a traceback, and all other work continues."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from agents import Agent
from jobs import ROOT
from machines import Machine, records
from nodes import wait_until
from users import NOBODY, as_user, open_directory

FOUR = ("--ranks", "4", "--tp", "2", "--dump-interval-us", "50000")


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    command = [sys.executable, "-m", "agent", *flags]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=30)


def test_a_wrong_configuration_is_refused_in_one_line(tmp_path: Path) -> None:
    """An invalid configuration ends start and `--check-config` with status 2 and one line: file, line, key."""
    path = tmp_path / "rankwatch.yml"
    path.write_text("exporters:\n  nvidia: {}\n")
    for more in ((), ("--check-config",)):
        result = run("--config.file", str(path), *more)
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert result.stderr.startswith(f"rankwatch: {path}:2: $.exporters.nvidia: no such exporter; known: ")


def test_a_port_in_use_ends_the_start(tmp_path: Path) -> None:
    """A port in use ends the start with status 1 and one line that names the address."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        (tmp_path / "rankwatch.yml").write_text(json.dumps({"state": {"path": ""}}))
        result = run("--config.file", str(tmp_path / "rankwatch.yml"), "--web.listen-address", address)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "level=error" in result.stderr
    assert "cannot serve" in result.stderr
    assert address.rpartition(":")[2] in result.stderr


def test_a_hostile_directory_costs_the_job_in_it_nothing(tmp_path: Path) -> None:
    """The agent counts FIFOs, links, endless lines and garbage in a directory, and every valid record there."""
    machine = Machine(tmp_path)
    dump_dir = tmp_path / "job" / "inspector"
    options = (*FOUR, "--records-per-second", "100", "--steps", "50", "--flush-at-end")
    with machine.agent(dump_dir=dump_dir) as agent, machine.job(*options) as job:
        job.wait_for("started", rank=3)
        here = os.uname().nodename
        secret = tmp_path / "secret"
        secret.write_text('{"metadata":{"hostname":"' + here + '"}}\n' * 100)
        os.mkfifo(job.dump_dir / f"{here}-pid1.log")
        (job.dump_dir / f"{here}-pid2.log").symlink_to(secret)
        (job.dump_dir / f"{here}-pid3.log").mkdir()
        (job.dump_dir / "out").symlink_to(tmp_path)
        (job.dump_dir / f"{here}-pid4.log").write_bytes(os.urandom(100_000))
        wait_until(lambda: any(records(path) for path in job.dump_dir.glob(f"{here}-pid{job.pid(0)}.log")))
        line = records(job.dump_dir / f"{here}-pid{job.pid(0)}.log")[0]
        line["metadata"] |= {"pid": 5}
        line["coll_perf"] |= {"coll_msg_size_bytes": 2**63}
        bad = json.dumps(line, separators=(",", ":")).encode()
        draft = tmp_path / "draft"
        draft.write_bytes(
            b"\n".join((bad, b"x" * ((1 << 20) + 1), b"x" * (3 << 20), b"\x00\xff\x00", b"{}", b"[" * 5000, b""))
        )
        draft.rename(job.dump_dir / f"{here}-pid5.log")
        assert job.wait() == 0
        written = sum(len(records(job.dump_dir / f"{here}-pid{job.pid(rank)}.log")) for rank in range(4))
        assert written == 4 * 50 * 8
        count = "rankwatch_inspector_records_total"
        agent.wait_for(count, written, result="accepted")
        agent.wait_for(count, 2, result="overlong")
        agent.wait_for(count, 1, result="garbage")
        agent.wait_for(count, 1, result="unknown_kind")
        agent.wait_for("rankwatch_inspector_files", 5, state="followed")
        agent.wait_for("rankwatch_inspector_files", 1, state="unidentified")
        assert (agent.value(count, result="malformed") or 0) >= 2
        assert (agent.value("rankwatch_inspector_skipped_total", reason="not_a_regular_file") or 0) >= 2
        assert agent.value("rankwatch_exporter_updates_failed_total", exporter="inspector") is None
        assert "secret" not in agent.page()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="giving up rights needs root")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv (util-linux) not found")
def test_what_may_not_be_read_or_written_is_counted() -> None:
    """Missing rights to record files and to the checkpoint's directory are counted and logged; all else works."""
    command = (*as_user(NOBODY, "--no-new-privs"), sys.executable, "-B", "-m", "agent")
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(open_directory())
        closed = directory / "closed"
        closed.mkdir(mode=0o700)
        config = {
            "state": {"path": str(closed / "state" / "checkpoint")},
            "exporters": {"inspector": {"paths": [str(closed)], "enabled": True}},
        }
        agent = stack.enter_context(Agent(directory / "home", config, command=command, root=directory))
        assert "checkpoint not readable" in agent.log()
        wait_until(lambda: (agent.value("rankwatch_checkpoint_save_errors_total") or 0) >= 1)
        assert "checkpoint not written" in agent.log()
        agent.wait_for("rankwatch_exporter_up", 0, exporter="inspector")
        agent.wait_for("rankwatch_exporter_up", 1, exporter="process")
        assert "an update of exporter inspector failed" in agent.log()
