"""NVRx: cycle files, host ranges, lines of launchers and monitors."""

from __future__ import annotations

import itertools
import json
import random
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.core.hosts import MAX_BRACKETS, MAX_HOSTS, expand_hosts
from exporters.nvrx import events
from exporters.nvrx.events import JobEvents, Recovery
from exporters.nvrx.reading import MAX_CYCLE_BYTES, MAX_NUMBER, Cycle, read_cycle

WRITTEN = {
    "job_id": "4711",
    "attempt_index": 1,
    "cycle_number": 1,
    "cycle_start_time": "2026-11-22T00:34:20.193517Z",
    "cycle_end_time": "2026-11-22T00:34:20.397723Z",
    "cycle_log_file": "/lustre/logs/job_4711_cycle1.log",
    "active_nodes": "n[004-006,008]",
    "standby_nodes": "n[010]",
    "generation": "1",
    "active_ranks": "0-3",
}
RECORDED = Path(__file__).parents[1] / "data/nvrx"
LOCAL = {("n07", "1"): "9", ("n07", "0"): "8"}
MINUTE = datetime(2026, 11, 22, 0, 33, tzinfo=UTC).timestamp()


def event(name: str, second: float, cycle_number: int = 1, host: str = "n07", rank: str = "1") -> str:
    """Return a launcher's line with an event at this second of a minute."""
    at = f"2026-11-22 00:33:{second:06.3f}"
    return (
        f"{at} [INFO] [{host}] [workload:?(1) infra:1(?)] profiling.py:93   - "
        f"Cycle: {cycle_number} Event: {name} Node: {host}_991_0 Rank: {rank} Time: {at} UTC"
    )


def counted(*texts: str) -> JobEvents:
    """Return the sums over these lines."""
    sums = JobEvents()
    for text in texts:
        sums.take(text, LOCAL, lambda: True)
    return sums


def test_host_ranges() -> None:
    """Ranges keep leading zeros, brackets can have commas, and several prefixes can follow each other."""
    for text, names in {
        "": "",
        "n07": "n07",
        "n[004-006,008]": "n004 n005 n006 n008",
        "n[8-11]": "n8 n9 n10 n11",
        "gpu-[01-02],login1,x[3]y": "gpu-01 gpu-02 login1 x3y",
        "r[1-2]n[01-02]": "r1n01 r1n02 r2n01 r2n02",
    }.items():
        assert list(expand_hosts(text)) == names.split()


def test_host_ranges_are_bounded() -> None:
    """Unmatched brackets, falling ranges, and hosts, brackets or names above their limits are refused."""
    assert len(expand_hosts(f"n[0-{MAX_HOSTS - 1}]")) == MAX_HOSTS
    assert expand_hosts("n" + "[1]" * MAX_BRACKETS) == ("n" + "1" * MAX_BRACKETS,)
    for text in ("n[1", "n]1[", "n[[1]]", "n[2-1]", "n[a]", "n[]1]", f"n[0-{MAX_HOSTS}]", "n[1-4]" * 9,
                 f"n[0-{MAX_HOSTS - 1}],m", "n[0-9]" + "[1]" * MAX_BRACKETS, "n" * 250 + "[1]nnnnn"):  # fmt: skip
        with pytest.raises(ValueError, match=r"."):
            expand_hosts(text)


def test_cycle_in_any_order_of_keys() -> None:
    """A cycle is the same in any order of its keys, with numbers as text, and with keys of a later version."""
    expected = Cycle("4711", 1, 1, active=4, standby=1, generation=1, started="2026-11-22T00:34:20.193517")
    for keys in itertools.islice(itertools.permutations(WRITTEN), 0, 3_000_000, 300_000):
        assert read_cycle(json.dumps({key: WRITTEN[key] for key in keys}).encode()) == expected
    other = WRITTEN | {"attempt_index": "1", "cycle_number": "1", "generation": 1, "later": {"key": 1}}
    assert read_cycle(json.dumps(other).encode()) == expected


def test_cycles_that_are_refused() -> None:
    """A cut file, an invalid value and a file above the limit are no cycle; random bytes raise no error."""
    raw = json.dumps(WRITTEN, indent=2).encode()
    assert [length for length in range(len(raw)) if read_cycle(raw[:length]) is not None] == []
    assert read_cycle(json.dumps(WRITTEN | {"cycle_number": MAX_NUMBER}).encode()) is not None
    for odd in (
        {"cycle_number": -1}, {"cycle_number": MAX_NUMBER + 1}, {"cycle_number": "x"}, {"generation": "9" * 11},
        {"cycle_start_time": ""}, {"active_nodes": "n[0-99999999]"}, {"job_id": "4" * 129}, {"standby_nodes": ["n1"]},
    ):  # fmt: skip
        assert read_cycle(json.dumps(WRITTEN | odd).encode()) is None, odd
    assert read_cycle(raw.ljust(MAX_CYCLE_BYTES)) is not None
    assert read_cycle(b'{"x": ' + b"[" * 20_000) is None
    assert read_cycle(raw.ljust(MAX_CYCLE_BYTES + 1)) is None
    source = random.Random(7)  # noqa: S311  # not for secrets
    for _ in range(500):
        garbage = bytearray(raw)
        garbage[source.randrange(len(garbage))] = source.randrange(256)
        read_cycle(bytes(garbage))


MONITOR = "[2026-11-22 01:20:17,474] [WARNING] [RankMonServer4711@n07:{}] {}"
NEWER = "2026-11-26 14:25:40,839 [WARNING] [{}] [workload:?({}) infra:0(?)] rank_monitor_server.py:497 {}"
HEARTBEAT = "Did not get {} heartbeat. Waited 45.00 seconds."


def timeout(rank: str, kind: str) -> JobEvents:
    """Return the sums after a rank's timeout."""
    return JobEvents(timeouts={(rank, kind): 1})


NOTHING = JobEvents()
FAILED, STARTED = "failure_detected", "worker_start_completed"
MONTH_13 = event(FAILED, 36.285).replace("2026-11", "2026-13")
LINES: dict[str, JobEvents] = {
    event(FAILED, 36.285): JobEvents(events={FAILED: 1}, recovery=Recovery(1, MINUTE + 36.285)),
    event("rendezvous_started", 1, 2, host="a.b:c-d", rank="None"): JobEvents(events={"rendezvous_started": 1}),
    event("brand_new", 1): JobEvents(events={events.OTHER: 1}),
    event("worker_terminated", 1, events.MAX_CYCLE): JobEvents(events={"worker_terminated": 1}),
    event("worker_terminated", 1, events.MAX_CYCLE + 1): NOTHING,
    MONTH_13: NOTHING,
    MONITOR.format(9, HEARTBEAT.format("subsequent")): timeout("9", "subsequent"),
    MONITOR.format("<none>", HEARTBEAT.format("initial")): timeout("unknown", "initial"),
    MONITOR.format(events.MAX_RANK, HEARTBEAT.format("initial")): timeout("unknown", "initial"),
    MONITOR.format(9, "Section 'step' has been open for 61.50 seconds."): timeout("9", "section"),
    MONITOR.format(9, "Was out of section for 61.50 seconds."): timeout("9", "out_of_section"),
    NEWER.format("n07", 1, HEARTBEAT.format("initial")): timeout("9", "initial"),
    NEWER.format("n07", 1, "[Cycle 1] " + HEARTBEAT.format("initial")): timeout("9", "initial"),
    NEWER.format("n08", 1, HEARTBEAT.format("initial")): timeout("unknown", "initial"),
    NEWER.format("n07", "?", HEARTBEAT.format("initial")): timeout("unknown", "initial"),
    NEWER.format("n07", 1, "Section(s) ['step'] were still open."): NOTHING,
    MONITOR.format(9, "Heartbeat received. Waited 4 seconds."): NOTHING,
    "GPU relative performance:": JobEvents(heading="relative"),
    "GPU individual performance:": JobEvents(heading="individual"),
    " " * events.MAX_LINE_CHARACTERS + event(FAILED, 1): NOTHING,
    "iteration 4 Event: none": NOTHING,
}
SCORES = {
    "3 Node=n07 Score=0.62": {("3", "relative"): 0.62},
    "3 Node=n07 Score=nan.": {},
    "3 Node=n07 Score=1.2.3": {},
    "3 Node=n07 Score=10000000000": {},
    f"{events.MAX_RANK} Node=n07 Score=0.5": {},
}


def test_lines_of_monitors_and_reports() -> None:
    """Events, timeouts and scores are read with their numbers; cut lines and invalid values do not count."""
    for text, expected in LINES.items():
        assert counted(text) == expected, text
    for text, scores in SCORES.items():
        assert counted("GPU relative performance:", f"  Rank={text}").scores == scores, text


NOTICES = {
    "Training cycle #3 made NO progress: 5 -> 5": "no_progress",
    "Training cycle #3 made progress: 5 -> 9": "progress",
    "EARLY TERMINATION: 3 consecutive training cycles": "stopped_without_progress",
    "[default] Worker group FAILED. 2/3 attempts left; will restart worker group": "restart_of_own_failure",
    "[default] Joining cluster restart (group_rank=2)": "restart_of_others_failure",
    "[default] Detected 1 new nodes from group_rank=0; will restart worker group": "restart_of_others_failure",
    "Found 2 remaining processes in worker PGIDs after termination:": "processes_left",
    "Timeout waiting for GPU memory to be reclaimed after 30s.": "gpu_memory_held",
    "GPU 3: Requires a reset to recover.": "gpu_needs_reset",
    "GPU 3: Requires a node reboot to recover.": "gpu_needs_reboot",
    "GPU 3: Requires peer-to-peer traffic to be drained.": "gpu_needs_drain",
    "GPU 3: Operating at reduced capacity.": "gpu_degraded",
    "NIC device mlx5_0: Port state changed from ACTIVE to DOWN. Health check FAILED.": "nic_failed",
    "GPU 2 NIC/IB mlx5_2 link down counter has been incremented": "nic_link_down",
    "NVLinkWindowHealthCheck: GPU 3 unhealthy": "nvlink_failed",
    "Attribution recommends stopping the job": "stop_recommended",
    "NVRx decided the job must not be restarted (no_progress): made NO progress": "restart_refused",
    "Some rank(s) exited with non-zero exit code: {1: 7} Agent's exit code = 1": "ranks_failed",
    "Agent exits with exit code = 0.": "ended_well",
    "[2026-11-22 01:20:17] rank=3 fn_ex: RuntimeError()": "restart_in_process",
    "[NestedRestarter] name=[InProcess] state=handling stage=starting": "nested_restart",
    "[NestedRestarter] name=[InProcess] state=initialize": "",
    "Found 0 remaining processes in worker PGIDs after termination:": "",
    "loss 1.3": "",
}


def test_notices() -> None:
    """Each line about a decision or a defect is counted under its name."""
    for text, notice in NOTICES.items():
        assert counted(text).events == ({notice: 1} if notice else {}), text
    names = [name for name in NOTICES.values() if name]
    assert counted(*NOTICES, *NOTICES).events == {name: 2 * names.count(name) for name in names}


def test_recovery_until_workers_and_until_progress() -> None:
    """A recovery begins with the cycle's first failure on any node and ends with progress after the last start."""
    sums = counted(
        event("worker_start_completed", 1, 0),
        event("failure_detected", 10, 1),
        event("failure_detected", 9.5, 1, "n08"),
        event("worker_start_completed", 29.5, 1),
        event("worker_start_completed", 31, 1, "n08"),
    )
    assert sums.recovery_seconds() == {"workers_started": pytest.approx(21.5)}
    for second in (30, 9.5 + events.MAX_RECOVERY_SECONDS + 1):
        sums.progress(MINUTE + second)
        assert "progress" not in sums.recovery_seconds()
    sums.progress(MINUTE + 49.5)
    sums.progress(MINUTE + 55)
    assert sums.recovery_seconds()["progress"] == pytest.approx(40.0)
    assert sums.events == {"worker_start_completed": 3, "failure_detected": 2}
    sums.take(event("failure_detected", 59, 2), {}, lambda: True)
    assert sums.recovery_seconds() == {}


@pytest.mark.parametrize(("earlier", "seconds"), [
    ([(FAILED, 1, 1), (STARTED, 6, 1)], 12.0),
    ([(FAILED, 1, 1), (STARTED, 30, 0)], 12.0),
    ([(FAILED, 1, 5), (STARTED, 6, 5), (STARTED, 30, 0)], 12.0),
    ([(FAILED, 38, 1), (STARTED, 39, 0)], 14.0),  # a slow node
    ([(FAILED, 30, 1), (STARTED, 2, 0)], 22.0),  # another file, read later
])  # fmt: skip
def test_a_requeued_job_has_a_new_recovery(earlier: list[tuple[str, float, int]], seconds: float) -> None:
    """A failure after a requeue under the same id does not join a failure of the earlier run."""
    sums = counted(*(event(*entry) for entry in [*earlier, (FAILED, 40, 1), (STARTED, 52, 1)]))
    assert sums.recovery_seconds() == {"workers_started": pytest.approx(seconds)}


def test_scores_follow_their_heading() -> None:
    """A report has up to MAX_SCORES scores below its heading, and replaces the previous report of its kind."""
    scores = [f"  Rank={rank} Node=n Score=0.5" for rank in range(events.MAX_SCORES + 1)]
    sums = counted(scores[0], "GPU relative performance:", *scores)
    assert sums.scores == {(str(rank), "relative"): 0.5 for rank in range(events.MAX_SCORES)}
    sums = counted("GPU relative performance:", *scores, "GPU individual performance:", scores[8])
    sums.take("GPU relative performance:", {}, lambda: True)
    assert sums.scores == {("8", "individual"): 0.5}


INTERRUPTED = {
    "on ranks=[0, 1]": "0 1",
    "on ranks={1, 3}, Interruption.SOFT_TIMEOUT on ranks={2}": "1 3 2",  # NVRx 0.4.1, format_interruption_records
    "affecting ranks {0, 1}": "0 1",
    "affecting ranks {0, 1, 2, 3...12, 13, 14, 15 (total: 16)}": "0 1 2 3 12 13 14 15",
    "affecting ranks {1-3, 5}": "1 2 3 5",
    f"affecting ranks {{{events.MAX_RANK - 1}-{events.MAX_RANK}, {events.MAX_RANK}, {'9' * 8}}}": str(
        events.MAX_RANK - 1
    ),
    f"affecting ranks {{0-{events.MAX_INTERRUPTED}}}": " ".join(map(str, range(events.MAX_INTERRUPTED))),
    "affecting ranks {5, 1": "",
    "affecting ranks {, }": "",
}


def test_interruptions() -> None:
    """In each notation of a set of ranks, the interruption counts for each rank of the set; a set that is cut counts
    for no rank."""
    for text, ranks in INTERRUPTED.items():
        by_rank = {(rank, "soft_timeout"): 1 for rank in ranks.split()}
        assert counted(f"Interruption.SOFT_TIMEOUT {text}").interruptions == by_rank, text
    text = "rank=0 term_ex: RankShouldRestart('Interruption.{} affecting ranks {{3}}, Interruption.{} on ranks=[3]')"
    sums = counted(text.format("HARD_TIMEOUT", "LATER_ONE"), text.format("HARD_TIMEOUT", "TERMINATED"))
    assert sums.interruptions == {("3", "hard_timeout"): 2, ("3", "other"): 1, ("3", "terminated"): 1}


def test_what_real_launchers_log() -> None:
    """Logs of ft_launcher 0.4.1, 0.5.0 and of August 2026, with ranks without heartbeats, give these counts."""
    sums = counted(*(RECORDED / "ft_launcher_0.4.1.log").read_text().splitlines())
    assert sums.timeouts == {("1", "subsequent"): 2}
    assert sums.events == {"restart_of_own_failure": 1, "ranks_failed": 1, "nested_restart": 3}
    sums = counted(*(RECORDED / "ft_launcher_0.5.0.log").read_text().splitlines())
    assert sums.timeouts == {("9", "subsequent"): 2, ("9", "section"): 1, ("9", "out_of_section"): 1}
    assert sums.events == {"restart_of_own_failure": 1, "restart_of_others_failure": 1}
    sums = counted(*(RECORDED / "ft_launcher_2026-08.log").read_text().splitlines())
    assert sums.timeouts == {("9", "subsequent"): 3, ("9", "section"): 1, ("8", "out_of_section"): 1}
    assert sums.events == {
        "no_progress": 3, "restart_of_own_failure": 2, "stopped_without_progress": 1, "restart_refused": 2,
        "stop_recommended": 1,
        "ranks_failed": 1, "rendezvous_started": 3, "health_check_completed": 3, "rendezvous_completed": 3,
        "worker_start_started": 3, "worker_start_completed": 3, "failure_detected": 3, "worker_terminated": 3,
    }  # fmt: skip


def test_ranks_of_a_job_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks above the limit count as unknown."""
    monkeypatch.setattr(events, "MAX_BY_RANK", 2)
    texts = [MONITOR.format(rank, HEARTBEAT.format("initial")) for rank in (1, 2, 3, 1)]
    assert counted(*texts).timeouts == {
        ("1", "initial"): 2, ("2", "initial"): 1, ("unknown", "initial"): 1,
    }  # fmt: skip
