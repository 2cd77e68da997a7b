"""A new series is shown as 0 first, so that operations before the first scrape count as an increase."""

from __future__ import annotations

import json
from pathlib import Path

from inspector_records import append, line
from test_inspector_directories import OTHER_SERIES, two_directories, write
from test_inspector_exporter import OPERATIONS, SERIES, Bench, labelled, shown, writer
from test_inspector_formats import p2p
from test_inspector_lost_operations import one_slot

from agent.sdk.ranks import RankLabel
from exporters.inspector.reading.watched_directory import STALE_SECONDS
from exporters.inspector.totals.inheritance import BIRTH_SECONDS, Births, Inheritance, Kind, RankTally
from exporters.inspector.totals.losses import Tally


def records(pid: int) -> bytes:
    """Return one pid's records of all kinds; pid 7 always arrives last, and pid 8 lacks one record."""
    header = {"rank": pid - 7, "n_ranks": 2, "pid": pid}
    numbers = range(4) if pid == 7 else (0, 1, 3)
    timed = [line(sn, coll_exec_time_us=100 * (pid - 6), **header) for sn in numbers]
    untimed = line(4, coll_timing_source="collective_cpu", **header)
    sent = json.loads(p2p(1))
    sent["header"] |= {"rank": pid - 7, "n_ranks": 2}
    sent["metadata"]["pid"] = pid
    return one_slot(b"".join([*timed, untimed, json.dumps(sent, separators=(",", ":")).encode() + b"\n"]))


def test_every_counter_of_a_job_begins_at_zero(tmp_path: Path) -> None:
    """A new counter is 0 for BIRTH_SECONDS and then has its value; gauges have their value at once."""
    bench = Bench(tmp_path).following(7, 8)
    for pid in (7, 8):
        (tmp_path / f"here-pid{pid}.log").write_bytes(records(pid))
    first, values = bench.scrape(), bench.look(0.0)
    truth = {name: series for name, series in values.items() if any("job" in labels for labels in series)}
    counters = {name: series for name, series in truth.items() if name.endswith("_total")}
    assert len(counters) == 16
    for name, series in truth.items():
        assert first[name] == (dict.fromkeys(series, 0) if name in counters else series), name
    assert bench.scrape(BIRTH_SECONDS - 0.5)[OPERATIONS] == first[OPERATIONS]
    grown = bench.scrape(0.5)
    assert {name: grown[name] for name in counters} == counters
    assert [name for name, series in grown.items() if name in counters and not any(series.values())] == [
        "rankwatch_communicator_unmatched_operations_total"
    ]
    bench.drain()


def test_a_series_shown_before_a_restart_is_not_new(tmp_path: Path) -> None:
    """Restored series have their value at once; new series of records from during the restart start at 0."""
    path, bench = tmp_path / "here-pid7.log", Bench(tmp_path).following(7, 8)
    path.write_bytes(line(0) + line(1))
    bench.look()
    bench.drain()
    append(path, line(2) + line(0, coll="Broadcast"))
    again = Bench(tmp_path, restored=bench.state.published)
    label = again.ranks.labels.pop(7)
    again.following()
    again.ranks.labels[7] = label
    broadcast = ("job", "1", "abc", "Broadcast", "8192")
    assert again.scrape()[OPERATIONS] == {SERIES: 3, broadcast: 0}
    assert again.scrape(BIRTH_SECONDS)[OPERATIONS] == {SERIES: 3, broadcast: 1}
    assert not again.exporter._births._restored
    again.drain()


def test_withheld_series(tmp_path: Path) -> None:
    """When a failed directory is read again, known series have values at once; a new series is 0 for BIRTH_SECONDS."""
    directories = two_directories(tmp_path)
    bench = Bench(*directories).following()
    write(directories, 0)
    bench.look()
    bench.look(BIRTH_SECONDS)
    append(next(directories[0].iterdir()), line(0, id="0xbee"))
    new = ("job", "1", "bee", "AllReduce", "8192")
    assert bench.scrape()[OPERATIONS] == {SERIES: 1, new: 0, OTHER_SERIES: 1}
    directory = bench.exporter._directories[0]
    directory.failed = True
    bench.exporter._look_at_births()
    bench.clock.advance(STALE_SECONDS + BIRTH_SECONDS)
    assert shown(bench.exporter.snapshot())[OPERATIONS] == {OTHER_SERIES: 1}
    directory.failed = False
    assert bench.scrape()[OPERATIONS] == {SERIES: 1, new: 0, OTHER_SERIES: 1}
    assert bench.scrape(BIRTH_SECONDS)[OPERATIONS] == {SERIES: 1, new: 1, OTHER_SERIES: 1}
    bench.drain()


def test_totals_stay_until_all_readers_have_published() -> None:
    """Series of a slow directory are not new when its reader publishes late; a series that ended and returns is new."""
    fast, slow = writer(1), writer(2, comm="fff")
    labels = labelled(fast, slow)
    births = Births([slow], Inheritance())
    births.look([fast], labels, Inheritance(), 0.0, whole=False)
    births.look([], labels, Inheritance(), BIRTH_SECONDS, whole=False)
    births.look([fast, slow], labels, Inheritance(), BIRTH_SECONDS + 1, whole=True)
    young = {labels for kind, labels in births.young(BIRTH_SECONDS + 1) if kind is Kind.TOTALS}
    assert young == {("job", "1", "abc", "AllReduce", "8192")}


def test_the_squatters_inheritance_is_not_the_victims() -> None:
    """A job id's new owner gets no totals of the previous owner's expired writers."""
    bench = Bench().start()
    exporter = bench.exporter
    exporter._inherited = Inheritance({}, {RankTally("job", "1", Tally.MISSING_OTHERWISE): 5})
    bench.ranks.labels = {7: RankLabel("job-u1001", "1"), 8: RankLabel("job", "1")}
    bench.ranks.snapshot_fields["renamed"] = ("job",)
    exporter._fetch_labels()
    bench.drain()
    assert not [key for key in exporter._inherited.tallies if key.job_id == "job"]
