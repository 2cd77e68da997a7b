"""Silent rank processes, which will never write records, and the sentence about them."""

from __future__ import annotations

import msgspec
import pytest
from fake_clock import FakeClock
from rank_table import RankTable

from agent.ranks.rank.environment import MAX_SETTING_CHARACTERS
from agent.sdk.ranks import Membership, ProcessFacts, ProcessKey, WriterKey
from exporters.inspector.reading.silence import (
    GRACE_SECONDS,
    RECORDING_VARIABLES,
    SilenceCause,
    silence_of,
    silent_ranks,
)

INTERVAL = "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS"
GOOD = {
    "NCCL_PROFILER_PLUGIN": "libnccl-profiler-inspector.so",
    "NCCL_INSPECTOR_ENABLE": "1",
    INTERVAL: "500",
    "NCCL_INSPECTOR_DUMP_DIR": "/logs/job",
}
PATHS = ("/var/lib/rankwatch/inspector", "/logs")


def facts(
    pid: int = 9, *, without: str = "", directory: str = "/home/u", container: str = "", inner: int = 0, **settings: str
) -> ProcessFacts:
    """Return a rank process with GOOD settings, except for the given changes."""
    environment = {name: value for name, value in {**GOOD, **settings}.items() if name != without}
    bare = ProcessFacts(ProcessKey(pid, 1), 0.0, inner or pid, "u", "thread", environment)
    return msgspec.structs.replace(bare, container=container, directory=directory)


@pytest.mark.parametrize("value", ["0", "", "no", "00", " +0x1"])
def test_a_process_that_did_not_ask_is_never_judged(value: str) -> None:
    """Without NCCL_INSPECTOR_ENABLE, or with a value that atoi reads as 0, a process is not silent."""
    assert silence_of(facts(without=INTERVAL, NCCL_INSPECTOR_ENABLE=value), PATHS) is None
    assert silence_of(facts(without="NCCL_INSPECTOR_ENABLE", NCCL_INSPECTOR_PROM_DUMP="1"), PATHS) is None
    assert silence_of(msgspec.structs.replace(facts(without=INTERVAL), environment=None), PATHS) is None


@pytest.mark.parametrize(("changes", "reason"), [
    ({}, None),
    ({"without": "NCCL_PROFILER_PLUGIN"}, SilenceCause.NO_PLUGIN),
    ({"NCCL_PROFILER_PLUGIN": ""}, SilenceCause.NO_PLUGIN),
    ({"NCCL_INSPECTOR_DUMP_THREAD_ENABLE": "0"}, SilenceCause.NO_DUMP_THREAD),
    ({"NCCL_INSPECTOR_PROM_DUMP": "1"}, SilenceCause.PROMETHEUS_MODE),
    ({"NCCL_INSPECTOR_PROM_DUMP": "1", "NCCL_INSPECTOR_OTEL_EXPORT": "1"}, SilenceCause.OTLP_MODE),
    ({"NCCL_INSPECTOR_OTEL_EXPORT": "0"}, None),
    ({"without": INTERVAL}, SilenceCause.NO_INTERVAL),
    ({INTERVAL: "-1"}, SilenceCause.NO_INTERVAL),
    ({INTERVAL: " -0x10us"}, SilenceCause.NO_INTERVAL),
    ({INTERVAL: "0x1f4"}, None),
    ({INTERVAL: "0"}, None),
    ({INTERVAL: "-0"}, None),
    ({INTERVAL: "soon"}, None),
    ({INTERVAL: "9" * 5000}, None),
    ({"NCCL_INSPECTOR_DUMP_THREAD_ENABLE": "2"}, None),
    ({"NCCL_INSPECTOR_PROM_DUMP": "off"}, None),
])  # fmt: skip
def test_settings_that_write_no_lines(changes: dict[str, str], reason: SilenceCause | None) -> None:
    """Without plugin, dump thread or interval, or in Prometheus or OTLP mode, a process is silent."""
    assert silence_of(facts(**changes), PATHS) is reason  # type: ignore[arg-type]  # names of variables


@pytest.mark.parametrize(("changes", "reason"), [
    ({"NCCL_INSPECTOR_DUMP_DIR": "/logs"}, None),
    ({"NCCL_INSPECTOR_DUMP_DIR": "/logs/a/b"}, SilenceCause.OTHER_DIRECTORY),
    ({"NCCL_INSPECTOR_DUMP_DIR": "/logs/a/../../tmp/x"}, SilenceCause.OTHER_DIRECTORY),
    ({"NCCL_INSPECTOR_DUMP_DIR": "dump", "directory": "/logs"}, None),
    ({"without": "NCCL_INSPECTOR_DUMP_DIR"}, SilenceCause.OTHER_DIRECTORY),
    ({"without": "NCCL_INSPECTOR_DUMP_DIR", "directory": ""}, None),
    ({"without": "NCCL_INSPECTOR_DUMP_DIR", "directory": "/logs", "SLURM_JOBID": "7"}, None),
    ({"NCCL_INSPECTOR_DUMP_DIR": "/in/container", "container": "abc"}, None),
    ({"NCCL_INSPECTOR_DUMP_DIR": "/in/container", "inner": 1}, None),
])  # fmt: skip
def test_where_the_file_would_be(changes: dict[str, str], reason: SilenceCause | None) -> None:
    """A process with a comparable record directory is silent if no configured directory contains it."""
    assert silence_of(facts(**changes), PATHS) is reason  # type: ignore[arg-type]  # names of variables


def test_who_showed_no_record() -> None:
    """After its grace period, a rank process is judged by its settings until its first record or exit."""
    clock = FakeClock()
    table = RankTable(clock, "here")
    table.keep_variables(RECORDING_VARIABLES)

    def silent() -> int:
        return silent_ranks(table.snapshot(), PATHS, clock.monotonic()).total()

    long = "/" + "x" * MAX_SETTING_CHARACTERS  # not one of our directories
    table.observe_process(facts(9, NCCL_INSPECTOR_DUMP_DIR=long, RANK="0", HOME="/h"))
    clock.advance(GRACE_SECONDS - 1.0)
    assert silent() == 0
    clock.advance(1.0)
    assert silent() == 1
    assert table.process(ProcessKey(9, 1)).facts.environment == {**GOOD, "NCCL_INSPECTOR_DUMP_DIR": long[:-1]}
    writer_key = WriterKey(1, 2, 0, "here", 9)
    table.observe_records(writer_key, [Membership("abc", 0, 2)], clock.time())
    table.link(writer_key, ProcessKey(9, 1))
    assert silent() == 0
    table.observe_process(facts(10, without=INTERVAL))
    clock.advance(GRACE_SECONDS)
    assert silent() == 1
    table.observe_exit(ProcessKey(10, 1), None)
    assert silent() == 0
