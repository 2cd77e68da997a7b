"""NVRx: cycle files, host ranges, lines of launchers and monitors."""

from __future__ import annotations

import itertools
import json
import random
from datetime import UTC, datetime

import pytest

from agent.core import hosts
from agent.core.hosts import MAX_BRACKETS, MAX_HOSTS
from exporters.nvrx import cycle, events, lines, notices
from exporters.nvrx.cycle import MAX_CYCLE_BYTES, CycleName, read_cycle, read_name
from exporters.nvrx.events import JobEvents
from exporters.nvrx.lines import HeartbeatTimeout, LauncherEvent, Score, ScoreHeading, Stragglers, read_line

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
STARTED = datetime(2026, 11, 22, 0, 34, 20, 193517, UTC).timestamp()


def event(name: str, second: float, cycle_number: int = 1, host: str = "n07", pid: int = 991, rank: str = "1") -> str:
    """A line of a launcher that tells of an event at this second of a minute."""
    at = f"2026-11-22 00:33:{second:06.3f}"
    return (
        f"{at} [INFO] [{host}] [workload:?(1) infra:1(?)] profiling.py:93   - "
        f"Cycle: {cycle_number} Event: {name} Node: {host}_{pid}_0 Rank: {rank} Time: {at} UTC"
    )


def heard(*texts: str) -> JobEvents:
    """What these lines add up to."""
    found = JobEvents()
    for text in texts:
        if (line := read_line(text)) is not None:
            found.take(line)
    return found


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("n07", ["n07"]),
        ("n[004-006,008]", ["n004", "n005", "n006", "n008"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("gpu-[01-02],login1,x[3]y", ["gpu-01", "gpu-02", "login1", "x3y"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
    ],
)
def test_host_ranges(text: str, names: list[str]) -> None:
    """Ranges keep their zeros, brackets hold commas, and several prefixes follow each other."""
    assert list(hosts.expand_hosts(text)) == names


@pytest.mark.parametrize(
    "text", ["n[1", "n]1[", "n[[1]]", "n[2-1]", "n[a]", "n[]1]", f"n[0-{MAX_HOSTS}]", "n[1-4]" * 9]
)
def test_host_ranges_that_are_none(text: str) -> None:
    """Brackets that do not match, ranges that fall and lists of too many hosts are refused."""
    with pytest.raises(ValueError, match=r"."):
        hosts.expand_hosts(text)


def test_as_many_hosts_as_there_may_be() -> None:
    """A list may have the most hosts there may be, and not one more, also in parts."""
    assert len(hosts.expand_hosts(f"n[0-{MAX_HOSTS - 1}]")) == MAX_HOSTS
    with pytest.raises(ValueError, match=r"."):
        hosts.expand_hosts(f"n[0-{MAX_HOSTS - 1}],m")


def test_brackets_of_a_name_are_bounded() -> None:
    """A name has so many pairs of brackets, and not one more: each costs a pass over all names that it stands for."""
    assert hosts.expand_hosts("n" + "[1]" * MAX_BRACKETS) == ("n" + "1" * MAX_BRACKETS,)
    with pytest.raises(ValueError, match="brackets"):
        hosts.expand_hosts("n[0-9]" + "[1]" * MAX_BRACKETS)


def test_names_of_cycle_files() -> None:
    """A cycle file's name holds job, attempt and cycle; the link to the current one and a scratch file are none."""
    assert read_name("cycle_info.4711.1.0") == CycleName("4711", 1, 0)
    assert read_name("cycle_info..0.12") == CycleName("", 0, 12)
    for name in ("cycle_info.4711.current", "cycle_info.4711.1.0.tmp", "cycle_info.4711.1", "x.cycle_info.1.1.1"):
        assert read_name(name) is None


def test_cycle_in_any_order_of_keys() -> None:
    """A cycle is the same whatever order its keys have, and with numbers as text."""
    expected = cycle.Cycle(
        job_id="4711",
        attempt=1,
        cycle=1,
        started=STARTED,
        ended=STARTED + 0.204206,
        active=("n004", "n005", "n006", "n008"),
        standby=("n010",),
        group_ranks=(0, 1, 2, 3),
        generation=1,
    )
    numbers = WRITTEN | {"attempt_index": "1", "cycle_number": "1", "generation": 1, "later": {"key": 1}}
    for keys in itertools.islice(itertools.permutations(WRITTEN), 0, 3_000_000, 300_000):
        found = read_cycle(json.dumps({key: WRITTEN[key] for key in keys}).encode())
        assert found is not None
        assert found.ended == pytest.approx(expected.ended)
        assert found == cycle.Cycle(
            **{name: getattr(expected, name) for name in expected.__struct_fields__} | {"ended": found.ended}
        )
    assert read_cycle(json.dumps(numbers).encode()) is not None


def test_cycle_that_runs_has_no_end() -> None:
    """An empty end is none, as it stays for ever behind a launcher that was killed."""
    found = read_cycle(json.dumps(WRITTEN | {"cycle_end_time": ""}).encode())
    assert found is not None
    assert found.ended is None


def test_half_a_cycle_file_is_none() -> None:
    """No part of a file that is being written reads as a cycle."""
    raw = json.dumps(WRITTEN, indent=2).encode()
    assert [length for length in range(len(raw)) if read_cycle(raw[:length]) is not None] == []


@pytest.mark.parametrize(
    "odd",
    [
        {"cycle_number": -1},
        {"cycle_number": (1 << 31) + 1},
        {"cycle_number": "1e3"},
        {"generation": "9" * 11},
        {"cycle_start_time": ""},
        {"cycle_start_time": "2026-11-22T00:34:20"},
        {"cycle_start_time": "2" * 65},
        {"active_nodes": "n[0-99999999]"},
        {"active_ranks": "0-x"},
        {"job_id": "4" * 129},
        {"standby_nodes": ["n1"]},
    ],
)
def test_cycles_that_are_refused(odd: dict[str, object]) -> None:
    """A value out of its bounds makes a file no cycle."""
    assert read_cycle(json.dumps(WRITTEN | odd).encode()) is None


def test_length_of_a_cycle_file() -> None:
    """A file of the greatest length is read, one byte more is not."""
    raw = json.dumps(WRITTEN).encode()
    assert read_cycle(raw.ljust(MAX_CYCLE_BYTES)) is not None
    assert read_cycle(raw.ljust(MAX_CYCLE_BYTES + 1)) is None


def test_garbage_is_no_cycle() -> None:
    """Bytes of any kind are no cycle, and do no harm."""
    source = random.Random(7)  # noqa: S311  # not for secrets
    raw = bytearray(json.dumps(WRITTEN).encode())
    for _ in range(500):
        odd = raw[:]
        odd[source.randrange(len(odd))] = source.randrange(256)
        read_cycle(bytes(odd))


def test_event_line() -> None:
    """An event has its cycle, the host and pid of its launcher, the number of its node, and a time in UTC."""
    at = datetime(2026, 11, 22, 0, 33, 36, 285000, UTC).timestamp()
    assert read_line(event("failure_detected", 36.285)) == LauncherEvent(1, "failure_detected", "n07", 991, 1, at)
    found = read_line(f"9: {event('rendezvous_started', 1, 2, 'gpu-07.cluster.local', rank='None')}")
    assert isinstance(found, LauncherEvent)
    assert (found.host, found.group_rank, found.cycle) == ("gpu-07.cluster.local", None, 2)


def test_event_of_a_later_version() -> None:
    """An event that is not known is another one: a label's values are a closed set."""
    found = read_line(event("brand_new", 1))
    assert isinstance(found, LauncherEvent)
    assert found.event == lines.OTHER


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[2026-11-22 01:20:17,474] [WARNING] [RankMonServer4711@n07:9] [Cycle 1] "
            "Did not get subsequent heartbeat. Waited 45.00 seconds.",
            HeartbeatTimeout(9, "n07", 1, "subsequent", 45.0),
        ),
        (
            "[x] [WARNING] [RankMonServer4711@n:<none>] [Cycle 0] Did not get initial heartbeat. Waited 600.0 seconds.",
            HeartbeatTimeout(None, "n", 0, "initial", 600.0),
        ),
        (
            "[x] [WARNING] [RankMonServer4711@n07:9] [Cycle 0] Section 'step' has been open for 61.50 seconds. "
            "Timeout is 60.00 seconds.",
            HeartbeatTimeout(9, "n07", 0, "section", 61.5),
        ),
        (
            "[x] [WARNING] [RankMonServer4711@n07:9] [Cycle 0] Was out of section for 61.50 seconds. "
            "Timeout is 60.00 seconds.",
            HeartbeatTimeout(9, "n07", 0, "out_of_section", 61.5),
        ),
        (
            "STRAGGLER DETECTION WARNING: Some GPUs have worse relative performance. Affected ranks: "
            "{StragglerId(rank=3, node='n07'), StragglerId(rank=1, node='n08')}",
            Stragglers("relative", (1, 3)),
        ),
        ("GPU relative performance:", ScoreHeading("relative")),
        ("  Rank=3 Node=n07 Score=0.62", Score(3, 0.62)),
    ],
)
def test_lines_of_monitors_and_reports(text: str, expected: lines.NvrxLine) -> None:
    """What a rank's monitor and a straggler report say has its rank, kind and number."""
    assert read_line(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "[x] [WARNING] [RankMonServer4711@n07:9] [Cycle 1] Heartbeat received.",
        "  Rank=3 Node=n07 Score=nan.",
        "  Rank=3 Node=n07 Score=1.2.3",
        f"  Rank={lines.MAX_RANK} Node=n07 Score=0.5",
        event("failure_detected", 36.285).replace("2026-11-22 00:33:36.285 UTC", "2026-13-22 00:33:36.285 UTC"),
        event("failure_detected", 1, 1 << 32),
        " " * lines.MAX_LINE_CHARACTERS + event("failure_detected", 1),
        "iteration 4 Event: none",
    ],
)
def test_lines_that_tell_nothing(text: str) -> None:
    """Lines with numbers out of bounds, cut ones and others tell nothing."""
    assert read_line(text) is None


def test_interruptions() -> None:
    """A rank that restarts within its process says which ranks made it and what stopped each; it is counted by both."""
    text = "rank=0 term_ex: RankShouldRestart('Interruption.{} on ranks={{3, 5}}, Interruption.{} on ranks=[7]')"
    restart = text.format("SOFT_TIMEOUT", "LATER_ONE")
    assert read_line(restart) == lines.Interruptions(((3, "soft_timeout"), (5, "soft_timeout"), (7, "other")))
    found = heard(restart, restart, text.format("HARD_TIMEOUT", "TERMINATED"))
    assert found.interruptions == {
        **{(rank, "soft_timeout"): 2 for rank in ("3", "5")},
        **{(rank, "hard_timeout"): 1 for rank in ("3", "5")},
        ("7", "other"): 2,
        ("7", "terminated"): 1,
    }


def test_interruptions_are_bounded() -> None:
    """So many ranks of one line are taken, and not one more; numbers that are no rank are left out."""
    many = ", ".join(str(rank) for rank in range(lines.MAX_STRAGGLERS + 1))
    found = read_line(f"Interruption.EXCEPTION on ranks=[{many}]")
    assert isinstance(found, lines.Interruptions)
    assert [rank for rank, _ in found.found] == list(range(lines.MAX_STRAGGLERS))
    most = lines.MAX_RANK - 1
    told = read_line(f"Interruption.EXCEPTION on ranks=[{most}, {most + 1}, {'9' * 20}]")
    assert told == lines.Interruptions(((most, "exception"),))
    assert read_line("Interruption.EXCEPTION on ranks=[, ]") is None


def test_ranks_of_one_warning_are_bounded() -> None:
    """A warning names so many ranks at most."""
    ids = ", ".join(f"StragglerId(rank={rank}, node='n')" for rank in range(lines.MAX_STRAGGLERS + 1))
    found = read_line(
        f"STRAGGLER DETECTION WARNING: Some GPUs have worse relative performance. Affected ranks: {{{ids}}}"
    )
    assert isinstance(found, Stragglers)
    assert len(found.ranks) == lines.MAX_STRAGGLERS


@pytest.mark.parametrize(
    ("text", "notice"),
    [
        ("Training cycle #3 made NO progress: 5 -> 5", "no_progress"),
        ("Training cycle #3 made progress: 5 -> 9", "progress"),
        ("EARLY TERMINATION: 3 consecutive training cycles", "stopped_without_progress"),
        ("[default] Worker group FAILED. 2/3 attempts left; will restart worker group", "restart_of_own_failure"),
        ("[default] Joining cluster restart (group_rank=2)", "restart_of_others_failure"),
        ("Found 2 remaining processes in worker PGIDs after termination:", "processes_left"),
        ("Timeout waiting for GPU memory to be reclaimed after 30s.", "gpu_memory_held"),
        ("GPU 3: Requires a reset to recover.", "gpu_needs_reset"),
        ("GPU 3: Requires a node reboot to recover.", "gpu_needs_reboot"),
        ("GPU 3: Requires peer-to-peer traffic to be drained.", "gpu_needs_drain"),
        ("GPU 3: Operating at reduced capacity.", "gpu_degraded"),
        ("NIC device mlx5_0: Port state changed from ACTIVE to DOWN. Health check FAILED.", "nic_failed"),
        ("GPU 2 NIC/IB mlx5_2 link down counter has been incremented", "nic_link_down"),
        ("NVLinkWindowHealthCheck: GPU 3 unhealthy", "nvlink_failed"),
        ("Attribution recommends stopping the job", "stop_recommended"),
        ("NVRx decided the job must not be restarted (data)", "restart_refused"),
        ("Some rank(s) exited with non-zero exit code: {1: 7} Agent's exit code = 1", "ranks_failed"),
        ("Agent exits with exit code = 0.", "ended_well"),
        ("[2026-11-22 01:20:17] rank=3 fn_ex: RuntimeError()", "restart_in_process"),
        ("[NestedRestarter] name=[InProcess] state=handling stage=starting", "nested_restart"),
        ("[NestedRestarter] name=[InProcess] state=initialize", ""),
        ("Found 0 remaining processes in worker PGIDs after termination:", ""),
        ("loss 1.3", ""),
    ],
)
def test_notices(text: str, notice: str) -> None:
    """Each of the other lines is counted under its name."""
    assert notices.read_notice(text) == notice
    assert set(notices.NOTICES) >= {notice} - {""}


def test_recovery_until_workers_and_until_progress() -> None:
    """A recovery begins with the first failure of its cycle, of any node, and ends with the first progress after it."""
    found = heard(
        event("worker_start_completed", 1, 0),
        event("failure_detected", 10, 1),
        event("failure_detected", 9.5, 1, "n08", 77),
        event("worker_start_completed", 29.5, 1),
        event("worker_start_completed", 31, 1, "n08", 77),
    )
    base = datetime(2026, 11, 22, 0, 33, tzinfo=UTC).timestamp()
    assert found.recovery_seconds() == {"workers_started": pytest.approx(21.5)}
    found.progress(base + 30)
    assert "progress" not in found.recovery_seconds()
    found.progress(base + 49.5)
    found.progress(base + 55)
    assert found.recovery_seconds()["progress"] == pytest.approx(40.0)
    assert found.events == {"worker_start_completed": 3, "failure_detected": 2}


def test_next_failure_begins_a_recovery() -> None:
    """A failure of a later cycle begins another recovery, which has no end yet."""
    found = heard(
        event("failure_detected", 1, 1), event("worker_start_completed", 2, 1), event("failure_detected", 9, 2)
    )
    assert found.recovery_seconds() == {}


def test_phases_of_each_launcher_add_up() -> None:
    """Times between two events of one launcher are of a phase; those of two launchers are not mixed up."""
    found = heard(
        event("failure_detected", 10),
        event("failure_detected", 11, host="n08"),
        event("worker_terminated", 14),
        event("worker_terminated", 12, host="n08"),
        event("rendezvous_started", 15),
        event("rendezvous_completed", 20),
        event("worker_start_started", 21),
        event("worker_start_completed", 24),
    )
    assert found.phase_seconds == pytest.approx({"stop": 5.0, "open": 1.0, "rendezvous": 5.0, "start": 3.0})
    assert set(found.phase_seconds) < set(events.PHASES)


def test_launchers_and_times_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many launchers have phases, and no phase and no recovery is longer than a day."""
    monkeypatch.setattr(events, "MAX_LAUNCHERS", 1)
    found = heard(
        event("failure_detected", 10),
        event("failure_detected", 10, host="n08"),
        event("worker_terminated", 11, host="n08"),
    )
    assert (list(found.last), found.phase_seconds) == (["n07_991"], {})
    monkeypatch.setattr(events, "MAX_PHASE_SECONDS", 5.0)
    assert heard(event("failure_detected", 10), event("worker_terminated", 15)).phase_seconds == {"stop": 5.0}
    assert heard(event("failure_detected", 10), event("worker_terminated", 15.1)).phase_seconds == {}
    monkeypatch.setattr(events, "MAX_RECOVERY_SECONDS", 5.0)
    found = heard(event("failure_detected", 10), event("worker_start_completed", 11))
    base = datetime(2026, 11, 22, 0, 33, tzinfo=UTC).timestamp()
    found.progress(base + 15.1)
    assert "progress" not in found.recovery_seconds()
    found.progress(base + 15)
    assert found.recovery_seconds()["progress"] == pytest.approx(5.0)


def test_scores_follow_their_heading() -> None:
    """Scores are of the kind that stands above them, six at most, and a new report replaces the one before."""
    report = ["GPU relative performance:", *(f"  Rank={rank} Node=n Score=0.{rank}" for rank in range(1, 8))]
    assert heard("  Rank=1 Node=n Score=0.5").scores == {}
    found = heard(*report)
    assert found.scores == {(str(rank), "relative"): rank / 10 for rank in range(1, 7)}
    assert heard(*report, "GPU relative performance:", "  Rank=9 Node=n Score=0.9").scores == {("9", "relative"): 0.9}


def test_ranks_with_timeouts_are_bounded() -> None:
    """So many ranks and kinds are counted at most, and known ones go on."""
    line = "[x] [WARNING] [RankMonServer1@n:{}] [Cycle 0] Did not get subsequent heartbeat. Waited 45.00 seconds."
    found = heard(*(line.format(rank) for rank in range(events.MAX_RANKS + 1)), line.format(0))
    assert len(found.timeouts) == events.MAX_RANKS
    assert found.timeouts["0", "subsequent"] == 2
