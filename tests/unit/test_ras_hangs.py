"""Hangs in RAS reports: ranks with fewer launches, waiting ranks, and suspects."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from client_metrics import samples
from lent import Admission

from agent.core.checkpoint import MAX_SECTION_BYTES
from agent.sdk.evidence import EvidenceRegistry
from agent.sdk.ranks import ProcessFacts, ProcessKey, PublishedProcess
from exporters.ras import show
from exporters.ras.query import reports as saved_module
from exporters.ras.query.jobs import OwnedJob, job_of
from exporters.ras.query.reports import Reports, SavedJob, SavedWatch, restored, series_of, to_save
from exporters.ras.report import hangs, hangs as job_report, model as report_module
from exporters.ras.report.hangs import (
    ABORT_SHOWN_SECONDS,
    LEFT_SECONDS,
    MAX_SUSPECTS,
    SILENT_BYTES,
    SILENT_SECONDS,
    WATCH_BYTES,
    Abort,
    AbortedRank,
    JobReport,
    Watch,
    aborted,
    stalled,
    suspects,
    watch,
)
from exporters.ras.report.json_report import read_json
from exporters.ras.report.model import MARK_BYTES, MAX_BEHIND, MAX_NAMED, MAX_TROUBLED, Report
from exporters.ras.show import render_reports

FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
WELL: dict[str, Any] = {
    "init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False,
}  # fmt: skip


def rank(number: int, process: int, **counts: int) -> dict[str, Any]:
    """Return a rank that replied: ``number`` in the communicator, of the job's process ``process``."""
    return {
        "rank": number, "host": f"10.0.0.{process // 4}", "pid": 100 + process, "nvml_dev": process % 4,
        "status": dict(WELL), "collective_counts": dict.fromkeys(FUNCTIONS, 0) | counts,
    }  # fmt: skip


def silent(number: int, process: int, dead: bool = False) -> dict[str, Any]:
    """Return a rank whose process does not reply."""
    plain = rank(number, process)
    del plain["collective_counts"]
    return {**plain, "status": {"unresponsive": True, "considered_dead": dead}}


def group(name: int, ranks: list[dict[str, Any]], missing: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    """Return a communicator of these ranks."""
    return {"hash": hex(name), "size": len(ranks) + len(missing), "ranks": ranks, "missing_ranks": list(missing)}


def reduced(name: int, counts: dict[int, int], missing: tuple[int, ...] = ()) -> dict[str, Any]:
    """Return a communicator of the processes in ``counts``, with their numbers of launched AllReduce."""
    locations = {process: number for number, process in enumerate(sorted({*counts, *missing}))}
    ranks = [rank(locations[process], process, AllReduce=count) for process, count in counts.items()]
    return group(name, ranks, tuple(silent(locations[process], process) for process in missing))


def read(*groups: dict[str, Any], names: Mapping[str, str] = {}) -> Report:
    """Return the report of these communicators; ``names``: communicators of earlier reports."""
    whole = {"nccl_version": "2.30.7", "communicators": list(groups), "ras": {"timeouts_count": 0}}
    return read_json(json.dumps(whole).encode(), names=names)


def named(report: Report, polls: int = 2) -> dict[str, list[tuple[int, int | None, str]]]:
    """Return the suspects after ``polls`` equal reports, by communicator: (rank in it, rank in the job, reason)."""
    watches: dict[str, Watch] = {}
    for _ in range(polls):
        watches = watch(watches, report.communicators, 1000.0)
    return suspects_of(report, watches)


def suspects_of(report: Report, watches: dict[str, Watch]) -> dict[str, list[tuple[int, int | None, str]]]:
    """Return the suspects of a watched report, by communicator: (rank in it, rank in the job, reason)."""
    return {
        name: [(one.rank.comm_rank, one.rank.rank, one.reason) for one in result]
        for name, result in suspects(report.communicators, watches).items()
    }


WORLD, TP0, TP1, DP2 = 0xA0, 0xB0, 0xB1, 0xC2
PROCESS = PublishedProcess(0.0, facts=ProcessFacts(ProcessKey(1, 1), 0.0, 1, "ann", "thread"))


def everybody(count: int) -> dict[int, int]:
    """Return equal launch counts for all eight ranks."""
    return dict.fromkeys(range(8), count)


@pytest.mark.parametrize(("groups", "expected"), [
    pytest.param([reduced(WORLD, everybody(50))], {}, id="all alike: a pause or a hang on the GPUs"),
    pytest.param([reduced(WORLD, everybody(0))], {}, id="nothing launched yet"),
    pytest.param([reduced(WORLD, everybody(50) | {5: 49})], {"0xa0": [(5, 5, "behind")]},
     id="one has launched one less"),
    pytest.param([reduced(WORLD, everybody(50) | {5: 0})], {"0xa0": [(5, 5, "behind")]}, id="one has not begun"),
    pytest.param([reduced(WORLD, everybody(50) | {1: 49, 6: 40})], {"0xa0": [(6, 6, "behind"), (1, 1, "behind")]},
     id="two are behind, the furthest first"),
    pytest.param([reduced(WORLD, everybody(49) | {5: 50})], {}, id="one is ahead of all others: cannot be told"),
    pytest.param([reduced(WORLD, everybody(50) | {0: 49, 1: 49, 2: 49, 3: 49}),
     reduced(TP0, {0: 90, 1: 90, 2: 89, 3: 90})], {"0xa0": [(2, 2, "behind")], "0xb0": [(2, 2, "behind")]},
     id="a group is behind for its one that is behind in the group"),
    pytest.param([reduced(TP0, {0: 50, 1: 50, 2: 49}), reduced(TP1, {3: 50, 4: 50, 5: 49}), reduced(DP2, {1: 1, 4: 1})],
     {"0xb0": [(2, None, "behind")], "0xb1": [(2, None, "behind")]}, id="no communicator is the whole job"),
    pytest.param([reduced(TP0, {0: 50, 1: 49}), reduced(TP1, {0: 49, 1: 50})], {},
     id="two wait for each other: a deadlock"),
    pytest.param([group(WORLD,
     [rank(0, 0, AllReduce=5), rank(1, 1, AllReduce=5), rank(2, 2, Broadcast=1, AllReduce=4)])],
     {"0xa0": [(2, 2, "behind")]}, id="one has launched another collective than the others"),
    pytest.param([reduced(WORLD, {p: 50 for p in range(8) if p != 6}, missing=(6,))], {"0xa0": [(6, 6, "missing")]},
     id="one does not answer"),
    pytest.param([reduced(WORLD, {p: 50 - (p == 3) for p in range(8) if p != 6}, missing=(6,))],
     {"0xa0": [(6, 6, "missing")]}, id="one does not answer, and another stopped a little earlier"),
    pytest.param([reduced(WORLD, everybody(50)), reduced(TP1, {4: 9, 5: 9, 7: 9}, missing=(6,)),
     reduced(DP2, {2: 8, 3: 8, 4: 7})], {"0xb1": [(2, 6, "missing")]},
     id="one is behind because it waits for one that does not answer"),
])  # fmt: skip
def test_the_ranks_that_a_stalled_job_waits_for(
    groups: list[dict[str, Any]], expected: dict[str, list[tuple[int, int, str]]]
) -> None:
    """Two equal reports name the ranks that the others wait for, or none."""
    assert named(read(*groups)) == expected
    assert named(read(*groups), polls=1) == {}


def test_a_job_that_runs_has_no_suspects() -> None:
    """If launches go on in each report, no communicator is stalled and no rank is a suspect."""
    watches: dict[str, Watch] = {}
    for step in range(5):
        report = read(reduced(WORLD, everybody(50 + step) | {step: 49 + step}))
        watches = watch(watches, report.communicators, 1000.0 + step)
        assert not stalled(report.communicators[0], watches)
        known = watches["0xa0"]
        assert (known.since_seconds, known.reports, known.report_seconds) == (1000.0 + step, 1, 1000.0 + step)


def test_who_answers_is_no_launch() -> None:
    """If a rank starts or stops replying, this is not taken for a launch."""
    whole, part = reduced(WORLD, everybody(50)), reduced(WORLD, dict.fromkeys(range(7), 50), missing=(7,))
    watches: dict[str, Watch] = {}
    for second, seen in enumerate([whole, part, whole, part]):
        watches = watch(watches, read(seen).communicators, 1000.0 + second)
    assert (watches["0xa0"].since_seconds, watches["0xa0"].reports) == (1000.0, 4)
    watches = watch(watches, read(reduced(WORLD, everybody(50) | {7: 51})).communicators, 1010.0)
    assert (watches["0xa0"].since_seconds, watches["0xa0"].reports) == (1010.0, 1)  # counted while it did not reply


def once_stopped(step: int, *, culprit: int | None = None) -> Report:
    """Return a report that rank 6 is missing from.

    If ``culprit`` is given, the other ranks of the first group (0 to 3) wait for it.
    """
    world = {process: step for process in range(8) if process != 6}
    first = {process: step + (culprit not in (None, process)) for process in range(4)}
    second = dict.fromkeys((4, 5, 7), step)
    return read(reduced(WORLD, world, missing=(6,)), reduced(TP0, first), reduced(TP1, second, missing=(6,)))


def went_on(seconds: float) -> dict[str, Watch]:
    """Return the watches after three reports with launches in each; rank 6 is missing in all three."""
    watches: dict[str, Watch] = {}
    for step, when in enumerate((1000.0, 1000.0 + seconds, 1010.0 + seconds)):
        watches = watch(watches, once_stopped(50 + step).communicators, when)
    return watches


def hung(report: Report, watches: dict[str, Watch]) -> dict[str, list[tuple[int, int | None, str]]]:
    """Return the suspects after two more reports."""
    for when in (1100.0, 1110.0):
        watches = watch(watches, report.communicators, when)
    return suspects_of(report, watches)


def test_a_rank_without_which_the_job_goes_on_is_not_what_it_waits_for() -> None:
    """A rank that had been missing long before the hang is no suspect."""
    assert hung(once_stopped(52, culprit=2), went_on(SILENT_SECONDS)) == {"0xb0": [(2, 2, "behind")]}
    fresh = {"0xa0": [(6, 6, "missing")], "0xb1": [(2, 6, "missing")]}
    assert hung(once_stopped(52, culprit=2), went_on(20.0)) == fresh  # a literal number, so that the constant is tested
    world = reduced(WORLD, {process: 52 for process in range(8) if process != 6}, missing=(6,))
    all_wait_for_it = [world, reduced(TP1, {4: 53, 5: 53, 7: 53}, missing=(6,)), reduced(DP2, {2: 9, 3: 9, 4: 8})]
    assert hung(read(*all_wait_for_it), went_on(SILENT_SECONDS)) == fresh


def test_a_rank_that_answered_meanwhile_is_missed_again() -> None:
    """A rank that replies again, and stops replying after the last launch, is a suspect."""
    watches = watch(went_on(SILENT_SECONDS), read(reduced(WORLD, everybody(60))).communicators, 1050.0)
    report = read(reduced(WORLD, {process: 60 for process in range(8) if process != 6}, missing=(6,)))
    assert hung(report, watches) == {"0xa0": [(6, 6, "missing")]}


def departed(number: int, process: int) -> dict[str, Any]:
    """Return a rank whose process replies and has left the communicator."""
    result = silent(number, process)
    result["status"]["unresponsive"] = False
    return result


def after(report: Report, seconds: float) -> list[tuple[int, str]]:
    """Return the suspects of a report that repeats after ``seconds``: rank in the communicator, reason."""
    watches = watch(watch({}, report.communicators, 1000.0), report.communicators, 1000.0 + seconds)
    return [(number, reason) for result in suspects_of(report, watches).values() for number, _, reason in result]


def test_a_rank_that_left_is_waited_for_once_nothing_is_launched_for_minutes() -> None:
    """Ranks that left while the others have equal counts are suspects after LEFT_SECONDS, unless half of all left."""
    three = [rank(number, number, AllReduce=5) for number in range(3)]
    for ranks, gone, seconds, suspected in (
        (three, (3,), LEFT_SECONDS - 1.0, []),
        (three, (3,), LEFT_SECONDS, [(3, "left")]),
        (three, (3, 4), LEFT_SECONDS, [(3, "left"), (4, "left")]),
        (three[:2], (3, 2), LEFT_SECONDS, []),
        (three, tuple(range(3, 2 * MAX_NAMED + 6)), LEFT_SECONDS, []),  # of these, the report names less than half
    ):
        departing = tuple(departed(number, number % 1000) for number in gone)
        assert after(read(group(WORLD, ranks, departing)), seconds) == suspected


def test_a_communicator_without_answers_is_watched_on() -> None:
    """A report in which no rank of a communicator replied does not change the time of its last launch."""
    whole = read(reduced(TP1, {4: 9, 5: 9, 6: 9, 7: 9}))
    for gap in (read(reduced(TP1, {}, missing=(4, 5, 6, 7))), read(reduced(WORLD, everybody(3))), read()):
        watches = watch(watch({}, whole.communicators, 1000.0), gap.communicators, 1010.0)
        watches = watch(watches, whole.communicators, 1020.0)
        assert (watches["0xb1"].since_seconds, watches["0xb1"].reports) == (1000.0, 2)
    watches = watch(watches, read(reduced(TP1, {4: 10, 5: 9, 6: 9, 7: 9})).communicators, 1030.0)
    assert watches["0xb1"].since_seconds == 1030.0


def test_absent_communicators_are_watched_on_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the memory limit of communicators that the report lacks, the communicator seen last is kept."""
    monkeypatch.setattr(hangs, "MAX_ABSENT_BYTES", WATCH_BYTES + 4 * MARK_BYTES)
    watches: dict[str, Watch] = {}
    seen = [(TP0, range(4), {"0xb0"}), (TP1, range(4, 8), {"0xb0", "0xb1"}), (WORLD, range(8), {"0xa0", "0xb1"})]
    for seconds, (name, processes, watched) in enumerate(seen):
        watches = watch(watches, read(reduced(name, dict.fromkeys(processes, 1))).communicators, 1000.0 + seconds)
        assert set(watches) == watched


def test_ranks_that_do_not_answer_take_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each silent rank adds bytes to the watch of an absent communicator; a watch above the limit is dropped."""
    monkeypatch.setattr(hangs, "MAX_ABSENT_BYTES", WATCH_BYTES + 3 * MARK_BYTES + SILENT_BYTES)
    for missing, watched in (((6,), {"0xb1"}), ((6, 8), set())):
        report = read(reduced(TP1, {4: 1, 5: 1, 7: 1}, missing=missing))
        assert set(watch(watch({}, report.communicators, 1000.0), (), 1010.0)) == watched


def test_watches_outlive_the_agent() -> None:
    """Saved watches are restored for each job of each owner."""
    watches = went_on(SILENT_SECONDS)
    known = {OwnedJob("7", "uid/1"): watches, OwnedJob("7", "uid/2"): {}}
    saved = msgspec.msgpack.decode(msgspec.msgpack.encode(to_save(known)), type=list[SavedJob])
    again = restored(saved)
    assert (to_save(again), list(again[OwnedJob("7", "uid/1")])) == (saved, list(watches))
    assert again[OwnedJob("7", "uid/1")]["0xa0"].silent_since == {6: 1000.0}


def test_a_communicator_keeps_its_name() -> None:
    """If two communicators have the same hash and the first ends, the second keeps its times, even after a restart."""
    first, second, third = (reduced(WORLD, {0: count, 1: 4}) | {"secondary_hash": f"{count}:0"} for count in (5, 6, 7))
    known: Sequence[SavedJob] = ()
    for seconds, groups in enumerate(((first, second), (second,), (third, second), (second, first))):
        reports = Reports(Admission(), known)
        reports.keep(PROCESS, read(*groups, names=reports.names(job_of(PROCESS))), seconds, seconds)
        watches = reports.watches[job_of(PROCESS)]
        known = msgspec.msgpack.decode(msgspec.msgpack.encode(to_save(reports.watches)), type=list[SavedJob])
    assert {name: (w.since_seconds, w.reports) for name, w in watches.items()} == {
        "0xa0": (0.0, 2), "0xa0-dcd7aee5": (0.0, 4), "0xa0-dd15c4d2": (2.0, 1)
    }  # fmt: skip


ONE, TWO = OwnedJob("1", "uid/1"), OwnedJob("2", "uid/2")


def still_watch(since_seconds: float, ranks: int = 1, report_seconds: float = 900.0) -> Watch:
    """Return the watch of a communicator without launches."""
    return Watch(bytes(ranks * MARK_BYTES), since_seconds, 2, report_seconds)


ROOM_OF_ONE = still_watch(0.0).size_bytes


@pytest.mark.parametrize(("watches", "room", "saved"), [
    pytest.param({ONE: {"0xb0": still_watch(2.0), "0xb1": still_watch(1.0)}}, 2 * ROOM_OF_ONE, {"1": ["0xb1", "0xb0"]},
     id="room for both"),
    pytest.param({ONE: {"0xb0": still_watch(2.0), "0xb1": still_watch(1.0)}}, 2 * ROOM_OF_ONE - 1, {"1": ["0xb1"]},
     id="the one that stands still the longest"),
    pytest.param({ONE: {"0xa0": still_watch(1.0, ranks=9)}, TWO: {"0xb0": still_watch(5.0)}}, ROOM_OF_ONE,
     {"2": ["0xb0"]}, id="one too large costs itself alone"),
    pytest.param({ONE: {hex(n): still_watch(n, report_seconds=n) for n in range(9)}, TWO: {"0xb0": still_watch(500.0)}},
     2 * ROOM_OF_ONE, {"1": ["0x8"], "2": ["0xb0"]}, id="of each job the one seen last before any job's others"),
])  # fmt: skip
def test_which_watches_are_saved(
    watches: dict[OwnedJob, dict[str, Watch]], room: int, saved: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs share the limit of saved watches: a job's many communicators displace no other job's watches."""
    monkeypatch.setattr(saved_module, "MAX_SAVED_BYTES", room)
    assert {job.job_id: [entry.hash for entry in job.watches] for job in to_save(watches)} == saved


def test_damaged_marks_are_not_restored() -> None:
    """A saved watch with marks of an invalid length is left out; a valid watch is restored."""
    good, bad = SavedWatch(bytes(MARK_BYTES), 1.0, hash="0x1"), SavedWatch(bytes(MARK_BYTES + 1), 1.0, hash="0x2")
    assert list(restored([SavedJob("7", "", [bad, good])])[OwnedJob("7")]) == ["0x1"]


def test_suspects_beyond_the_limit_are_not_named() -> None:
    """At most MAX_SUSPECTS ranks of a communicator are named as suspects."""
    counts = dict.fromkeys(range(3 * MAX_BEHIND), 50) | {process: process for process in range(MAX_BEHIND + 1)}
    assert len(named(read(reduced(WORLD, counts)))["0xa0"]) == MAX_BEHIND == MAX_SUSPECTS
    missing = tuple(range(MAX_SUSPECTS + 1))
    report = read(reduced(WORLD, dict.fromkeys(range(50, 60), 5), missing=missing))
    assert len(named(report)["0xa0"]) == MAX_SUSPECTS


def test_laggards_of_all_communicators_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit of named ranks, the ranks of the largest communicator come first."""
    for bound, laggards in ((2, [[], [5, 6]]), (3, [[2], [5, 6]])):
        monkeypatch.setattr(report_module, "MAX_BEHIND_NAMED", bound)
        report = read(reduced(TP0, {0: 9, 1: 9, 2: 8}), reduced(WORLD, everybody(50) | {5: 48, 6: 49}))
        launches = [entry.launches for entry in report.communicators if entry.launches]
        assert [[rank.comm_rank for rank in entry.behind] for entry in launches] == laggards


def test_ranks_with_errors_beyond_the_limit_are_not_named() -> None:
    """Ranks with errors are named up to the limit."""
    ranks = [rank(number, number) for number in range(MAX_TROUBLED + 1)]
    for entry in ranks:
        entry["status"]["async_error"] = 6
    assert len(read(group(WORLD, ranks)).communicators[0].troubled) == MAX_TROUBLED


def test_two_orders_of_the_same_size_name_no_rank() -> None:
    """If a rank's number differs between two communicators of the whole job, the rank has no number in the job."""
    reversed_world = group(0xA1, [rank(2 - process, process) for process in range(3)])
    for behind, number in ((0, None), (1, 1)):
        world = group(WORLD, [rank(process, process, AllReduce=5 - (process == behind)) for process in range(3)])
        assert named(read(world, reversed_world)) == {"0xa0": [(behind, number, "behind")]}


def series(report: Report, world_size: int | None, polls: int = 2) -> dict[tuple[str, ...], float]:
    """Return the series after ``polls`` reports, keyed by family (without its prefix) and labels after the job's."""
    watches: dict[str, Watch] = {}
    for poll in range(polls):
        watches = watch(watches, report.communicators, 1000.0 + poll)
    job = JobReport(
        *(ProcessKey(1, 1), report, world_size, watches),
        aborted=aborted({}, report, 1000.0),
        suspects=suspects(report.communicators, watches),
    )
    return {
        (sample.name.removeprefix("rankwatch_communicator_"), *list(sample.labels.values())[1:]): sample.value
        for sample in samples(render_reports({"7": job}))
    }


def test_a_stalled_communicator_as_series() -> None:
    """Launches, the last launch's time, the suspect and the suspect's lag are series; no more than were admitted."""
    report = read(reduced(WORLD, everybody(50) | {5: 48}))
    result = series(report, 8)
    assert result["launched_max", "a0", "AllReduce"] == 50
    assert (result["last_launch_timestamp_seconds", "a0"], result["stalled", "a0"]) == (1000.0, 1)
    assert result["suspect", "a0", "5", "5", "10.0.0.1", "1", "behind"] == 1
    assert result["rank_lag", "a0", "5", "5", "AllReduce"] == 2
    watches = watch(watch({}, report.communicators, 1.0), report.communicators, 2.0)
    assert len(result) <= series_of(report.communicators[0], watches)


def test_a_running_communicator_as_series() -> None:
    """A lag in a single report is not shown, because it would make new series in every report."""
    result = series(read(reduced(WORLD, everybody(50) | {5: 48})), 8, polls=1)
    assert (result["stalled", "a0"], [key for key in result if key[0] in ("rank_lag", "suspect")]) == (0, [])


def test_global_ranks_are_those_of_the_whole_job_only() -> None:
    """If the largest communicator of a report is only a part of the job, its rank numbers are not the job's."""
    report = read(reduced(TP1, {4: 5, 5: 5, 6: 4, 7: 5}))
    for world_size, number in ((8, ""), (4, "2"), (None, "2")):
        assert ("suspect", "b1", "2", number, "10.0.0.1", "2", "behind") in series(report, world_size)


def test_errors_and_aborts_as_series() -> None:
    """Errors have the names of their codes, code 7 (in progress) is no error, and each stage is counted."""
    errors = [("async_error", 6), ("async_error", 7), ("async_error", 9), ("init_state", 7), ("init_state", 2)]
    ranks = [rank(number, number) for number in range(7)]
    for entry, (key, value) in zip(ranks, [*errors, ("abort_flag", True), ("destroy_flag", True)], strict=True):
        entry["status"][key] = value
    result = series(read(group(WORLD, ranks)), 7)
    assert {key: value for key, value in result.items() if key[0] in ("async_error", "aborted")} == {
        ("async_error", "a0", "0", "0", "run", "remote_error"): 1,
        ("async_error", "a0", "2", "2", "run", "code_9"): 1,
        ("async_error", "a0", "4", "4", "init", "system_error"): 1,
        ("aborted", "a0", "5", "5"): 1,
    }
    stages = {key[2]: value for key, value in result.items() if key[0] == "ranks"}
    assert (stages["initializing"], stages["finalizing"], stages["aborted"]) == (2, 1, 1)


def aborting(*numbers: int) -> Report:
    """Return a report in which these ranks abort the communicator."""
    ranks = [rank(number, number) for number in range(3)]
    for number in numbers:
        ranks[number]["status"]["abort_flag"] = True
    return read(group(WORLD, ranks))


def test_an_abort_is_shown_for_a_minute() -> None:
    """An abort flag is shown for a minute, because it can be set in a single report between two scrapes."""
    seen = aborted({}, aborting(1), 1000.0)
    seen = aborted(seen, aborting(), 1000.0 + ABORT_SHOWN_SECONDS - 1.0)
    assert seen == {AbortedRank("0xa0", 1): Abort(1000.0, 1)}
    assert aborted(seen, aborting(), 1000.0 + ABORT_SHOWN_SECONDS) == {}
    assert aborted(seen, aborting(1), 1050.0) == {AbortedRank("0xa0", 1): Abort(1050.0, 1)}
    assert aborted(seen, aborting(), 900.0) == {}  # the clock was set back


def test_aborts_beyond_the_limit_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit of aborts the first aborts stay."""
    monkeypatch.setattr(job_report, "MAX_ABORTED", 2)
    assert [entry.comm_rank for entry in aborted({}, aborting(0, 1, 2), 1000.0)] == [0, 1]


@pytest.mark.slow
def test_many_small_communicators_fit_the_checkpoint() -> None:
    """The maximum number of one-rank communicators fits into the checkpoint's section."""
    watches = {hex(number): Watch(bytes(MARK_BYTES), 1e9, 2, 1e9) for number in range(131_072)}
    assert len(msgspec.msgpack.encode(to_save({OwnedJob("7", "uid/1"): watches}))) <= MAX_SECTION_BYTES


def test_a_clock_that_was_set_back_delays_no_hang() -> None:
    """If the clock is set back, the time without launches begins at the first report by the new clock."""
    still = read(reduced(WORLD, everybody(5) | {5: 4})).communicators
    watches = watch(watch({}, still, 5000.0), still, 1400.0)
    assert (watches["0xa0"].since_seconds, watch(watches, still, 1700.0)["0xa0"].still_seconds) == (1400.0, 300.0)
    stopped = read(reduced(WORLD, {process: 6 for process in range(8) if process != 6}, missing=(6,)))
    watches = watch(watch({}, still, 5000.0), stopped.communicators, 1400.0)
    assert not watches["0xa0"].goes_on_without(6)


def test_each_user_has_a_share_of_the_series() -> None:
    """The report of one user's job leaves series for other users, whatever numbers it has."""
    admission = Admission(in_all=70)
    reports = Reports(admission)
    forged = read(*(reduced(name, everybody(1)) | {"size": 1_000_000} for name in range(1, 6)))
    assert not reports.keep(PROCESS, forged, 1.0, 1.0)
    assert reports.keep(PROCESS, read(*(reduced(name, everybody(1)) for name in range(1, 4))), 1.0, 1.0)
    assert admission.admit("inspector", 20, group=(1001, "1"))


HELD_UP = read(reduced(1, {0: 8, 1: 7}))


def report_of_stall(report_seconds: list[float]) -> JobReport:
    """Return the last of several equal reports of a job; in each, one rank has launched less than the other."""
    watches: dict[str, Watch] = {}
    for seconds in report_seconds:
        watches = watch(watches, HELD_UP.communicators, seconds)
    blamed = suspects(HELD_UP.communicators, watches)
    return JobReport(ProcessKey(1, 1), HELD_UP, 2, watches, report_seconds[-1], suspects=blamed)


def test_what_a_bundle_has_of_a_stalled_job() -> None:
    """The stall is the time between equal reports; a bundle names a suspect only if its rank in the job is known."""
    assert show.stalls({"7": report_of_stall([1000.0])}) == {}
    report = report_of_stall([1000.0, 1030.0])
    assert show.stalls({"7": report}) == {"7": 30.0}
    assert [(word.rank, word.blames) for word in show.bundle_part(report).words] == [("1", True)]
    assert list(show.bundle_part(msgspec.structs.replace(report, world_size=4)).words) == []
    for suspect in (one for ranks in report.suspects.values() for one in ranks):
        suspect.rank.rank = None
    part = show.bundle_part(report)
    assert (part.files.keys(), list(part.words)) == ({"report.json"}, [])
    assert show.bundle_part(None).files == {}


def test_a_job_that_runs_without_an_idle_communicator_is_not_stalled() -> None:
    """A bundle blames no rank that is missing from a communicator that stopped long before the job's last launch."""
    watches: dict[str, Watch] = {}
    idle = reduced(TP1, {4: 9, 5: 9, 7: 9}, missing=(6,))
    for step in range(10):
        report = read(reduced(WORLD, everybody(50 + min(step, 5))), idle)
        watches = watch(watches, report.communicators, 1000.0 + 60.0 * step)
    blamed = suspects(report.communicators, watches)
    last = JobReport(ProcessKey(1, 1), report, 8, watches, 1540.0, suspects=blamed)
    assert (blamed.keys(), show.stalls({"7": last})) == ({"0xb1"}, {"7": 240.0})  # six reports had launches
    assert list(show.bundle_part(last).words) == []


def test_the_longer_of_two_stalls_counts() -> None:
    """If two exporters report a stall of one job, the longer stall is used until its exporter ends."""
    registry = EvidenceRegistry()
    ras, other = registry.of("ras"), registry.of("other")
    ras.tell_stalls(lambda: {"7": 10.0})
    other.tell_stalls(lambda: {"7": 15.0, "8": 20.0})
    assert ras.stalls() == {"7": 15.0, "8": 20.0}
    other.close()
    assert ras.stalls() == {"7": 10.0}
