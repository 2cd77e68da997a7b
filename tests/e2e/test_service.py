"""The agent as a service: reloads, its stop, systemd, its other commands, and faulty exporters."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import Agent, select
from jobs import ROOT
from machines import Machine, alive, records
from nodes import wait_until

FOUR = ("--ranks", "4", "--tp", "2", "--dump-interval-us", "50000")
ALIVE = alive(4)
OPERATIONS = "rankwatch_collective_operations_total"
RELOAD_OK = "rankwatch_config_last_reload_successful"


def operations(agent: Agent) -> dict[tuple[str, ...], float]:
    """Return the counters of operations, keyed by their labels."""
    return {tuple(sorted(sample.labels.items())): sample.value for sample in agent.samples(OPERATIONS)}


def test_a_reload_changes_what_changed_and_loses_nothing(tmp_path: Path) -> None:
    """A reload by signal or changed file restarts only changed sections; no counter falls and no rank is lost."""
    machine = Machine(tmp_path)
    dump_dir = tmp_path / "job" / "inspector"
    with machine.agent(dump_dir=dump_dir) as agent, machine.job(*FOUR, "--flush-at-end") as job:
        job.wait_for("ready")
        agent.wait_for_states(ALIVE)
        wait_until(lambda: operations(agent))
        inspector = {"paths": [str(dump_dir)]}
        changes = [{"inspector": inspector, "process": {"exit_status_ioctl": ioctl}} for ioctl in (False, True)]
        changes += [
            {"inspector": {**inspector, "poll_interval_seconds": each}} for each in (0.3, 0.4, 0.5, 0.3, 0.4, 0.5)
        ]
        before = operations(agent)
        for exporters in changes:
            agent.configure({"exporters": exporters})
            agent.reload()
            assert agent.states() == ALIVE
            wait_until(lambda b=before: set(operations(agent)) >= set(b))
            now = operations(agent)
            assert all(now[series] >= value for series, value in before.items())
            before = now
        assert agent.value("rankwatch_series_refused_total") == 0
        before = agent.reloads()
        agent.configure({"exporters": {"inspector": {**inspector, "poll_interval_seconds": 0.35}}})
        wait_until(lambda: agent.reloads() > before, 10.0, "a reload by the changed file")
        job.signal_launcher(signal.SIGUSR1)
        assert job.wait() == 0
        written = sum(len(records(path)) for path in dump_dir.iterdir())
        agent.wait_for("rankwatch_inspector_records_total", written, result="accepted")
        wait_until(lambda: sum(operations(agent).values()) == written)
        agent.wait_for_states(dict.fromkeys(ALIVE, "finished"))


def test_a_refused_configuration_leaves_the_old_one_in_use(tmp_path: Path) -> None:
    """The agent refuses invalid text, a used address and another state path, and accepts the next valid file."""
    with socket.create_server(("127.0.0.1", 0)) as taken, Machine(tmp_path).agent() as agent:
        refusals = [
            {"exporters": {"inspector": {"pathz": []}}},
            {"web": {"listen_address": f"127.0.0.1:{taken.getsockname()[1]}"}},
            {"state": {"path": str(tmp_path / "elsewhere")}},
        ]
        for number, refused in enumerate(refusals, 1):
            agent.configure(refused)
            agent.signal(signal.SIGHUP)
            wait_until(lambda n=number: agent.log().count("configuration refused, the previous one stays") == n)
            assert agent.value(RELOAD_OK) == 0
        assert "$.exporters.inspector.pathz: unknown key" in agent.log()
        agent.configure({})
        agent.reload()
        assert agent.value(RELOAD_OK) == 1
        assert agent.get("/-/ready").status == 200


def test_a_stop_is_orderly(tmp_path: Path) -> None:
    """After SIGTERM the agent writes its checkpoint, closes its port and exits with 0 within 5 s."""
    machine = Machine(tmp_path)
    with machine.job(*FOUR) as job, machine.agent(job) as agent:
        agent.wait_for_states(ALIVE)
        with socket.create_connection(("127.0.0.1", agent.port)) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\n")
            began = time.time()
            assert agent.stop() == 0  # raises after 5 s
        assert agent.state_path.stat().st_mtime >= began - 0.1
        assert agent.state_path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", agent.port), 1.0)


def test_systemd_is_notified_of_every_step(tmp_path: Path) -> None:
    """The agent sends READY, WATCHDOG, RELOADING and STOPPING to systemd at the right steps."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(path)
        supervisor.settimeout(10.0)
        env = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": str(6_000_000)}
        with Machine(tmp_path).agent(env=env) as agent:
            assert supervisor.recv(4096) == b"READY=1"
            assert supervisor.recv(4096) == b"WATCHDOG=1"
            assert supervisor.recv(4096) == b"WATCHDOG=1"
            asked_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            agent.signal(signal.SIGHUP)
            messages = [message for message in (supervisor.recv(4096) for _ in range(3)) if message != b"WATCHDOG=1"]
            reloading, _, since_us = messages[0].decode().partition("\nMONOTONIC_USEC=")
            assert reloading == "RELOADING=1"
            assert asked_us <= int(since_us) <= asked_us + 5_000_000
            assert messages[1] == b"READY=1"
            assert agent.stop() == 0
            last = b""
            while last != b"STOPPING=1":
                last = supervisor.recv(4096)
                assert last in (b"STOPPING=1", b"WATCHDOG=1")
        assert "watchdog not fed" not in agent.log()


def test_once_prints_what_the_files_hold_and_leaves_the_state_alone(tmp_path: Path) -> None:
    """`--once` counts every record of every host and does not touch the checkpoint."""
    machine = Machine(tmp_path)
    with machine.job(*FOUR, "--steps", "5", "--flush-at-end") as job:
        assert job.wait() == 0
    state = tmp_path / "checkpoint"
    state.write_bytes(b"not to be read")
    config = tmp_path / "rankwatch.yml"
    config.write_text(f"state: {{path: {state}}}\nexporters: {{inspector: {{paths: [{job.dump_dir}]}}}}\n")
    command = [sys.executable, "-m", "agent", "--once", "--config.file", str(config)]
    result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=30)
    assert (result.returncode, "checkpoint" in result.stderr) == (0, False)
    assert state.read_bytes() == b"not to be read"
    expected: Counter[tuple[str, str]] = Counter()
    for path in job.dump_dir.iterdir():
        expected.update(
            (record["header"]["id"].removeprefix("0x"), record["coll_perf"]["coll"]) for record in records(path)
        )
    shown: Counter[tuple[str, str]] = Counter()
    for series in select(result.stdout, OPERATIONS):
        shown[series.labels["comm"], series.labels["collective"]] += int(series.value)
    assert shown == expected
    assert expected.total() == 4 * 5 * 8


HOSTILE = """
import threading
from agent.sdk.exporter import ExporterConfig, Spec
from agent.sdk.metrics import Family

class Config(ExporterConfig, frozen=True, kw_only=True):
    pass

ROWS = Family("rankwatch_{name}_rows", "gauge", "Rows.", ("row",))

class Hostile:
    async def start(self, ctx):
        self.thread = ctx.thread("{name}")
    async def update(self):
        {update}
    def snapshot(self):
        return None
    def families(self, snapshot):
        {families}
    async def drain(self):
        pass

SPEC = Spec("{name}", Config, lambda config: Hostile(), 0.2, 0.2, (ROWS,), drain_seconds=0.5)
"""
FLOOD = "rows = ROWS.rows()\n        for n in range(100_000): rows.add((str(n),), n)\n        yield rows.metric"
MODULES = {
    "bad_update": HOSTILE.format(name="bad_update", update="raise RuntimeError('no')", families="return []"),
    "bad_hang": HOSTILE.format(
        name="bad_hang", update="await self.thread.call(threading.Event().wait)", families="return []"
    ),
    "bad_flood": HOSTILE.format(name="bad_flood", update="pass", families=FLOOD),
    "bad_families": HOSTILE.format(name="bad_families", update="pass", families="raise RuntimeError('no')"),
    "bad_import": "import a_module_that_nobody_has",
}
LAUNCHER = """
import sys
import exporters
exporters.__path__.append(sys.argv.pop(1))
from agent.cli.main import main
sys.exit(main())
"""


@pytest.fixture
def hostile_command(tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """Provide a command that starts the agent with five more exporters, each broken in a different way."""
    more = tmp_path / "more-exporters"
    more.mkdir()
    for name, text in MODULES.items():
        (more / f"{name}.py").write_text(text)
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    yield (sys.executable, "-B", str(tmp_path / "launcher.py"), str(more))


def test_broken_exporters_harm_no_other_exporter(tmp_path: Path, hostile_command: tuple[str, ...]) -> None:
    """The agent counts exporters that raise, hang, flood or cannot be imported; all other exporters work."""
    machine = Machine(tmp_path)
    with machine.job(*FOUR) as job, machine.agent(job, command=hostile_command) as agent:
        agent.wait_for_states(ALIVE)
        wait_until(lambda: {sample.labels["rank"] for sample in agent.samples(OPERATIONS)} == set(ALIVE))
        up = {sample.labels["exporter"]: sample.value for sample in agent.samples("rankwatch_exporter_up")}
        assert up["bad_update"] == up["bad_hang"] == up["bad_import"] == 0
        assert up["inspector"] == up["process"] == 1
        assert agent.value("rankwatch_exporter_updates_late_total", exporter="bad_hang") == 1
        assert (agent.value("rankwatch_exporter_updates_failed_total", exporter="bad_update") or 0) > 1
        dropped, failed = "rankwatch_exporter_series_dropped_total", "rankwatch_exporter_updates_failed_total"
        before = agent.value(dropped, exporter="bad_flood"), agent.value(failed, exporter="bad_families")
        page = agent.page()
        assert len(select(page, "rankwatch_bad_flood_rows")) == 20_000
        assert {each.labels["rank"] for each in select(page, OPERATIONS, job_id=machine.job_id)} == set(ALIVE)
        assert (agent.value(dropped, exporter="bad_flood") or 0) >= (before[0] or 0) + 80_000
        assert (agent.value(failed, exporter="bad_families") or 0) > (before[1] or 0)
        for good in ("inspector", "process"):
            assert agent.value("rankwatch_exporter_updates_late_total", exporter=good) == 0
            assert agent.value("rankwatch_exporter_updates_failed_total", exporter=good) is None
        began = time.monotonic()
        agent.page("?collect[]=ranks&collect[]=inspector&collect[]=process")
        assert time.monotonic() - began < 0.5
        job.kill(job.pid(0))
        assert agent.wait_for("rankwatch_rank_up", 0, rank="0") < 0.5
        assert "exporter bad_import could not be imported" in agent.log()
