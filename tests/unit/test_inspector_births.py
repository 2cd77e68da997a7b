"""A new series is shown as 0 first, so that operations before the first scrape count as an increase."""

from __future__ import annotations

from pathlib import Path

from inspector_records import append, line
from test_inspector_directories import OTHER_SERIES, two_directories, write
from test_inspector_exporter import OPERATIONS, SERIES, Bench, labelled, shown, writer

from agent.sdk.ranks import RankLabel
from exporters.inspector.reading.watched_directory import STALE_SECONDS
from exporters.inspector.totals.inheritance import BIRTH_SECONDS, Births, Inheritance, Kind, RankTally
from exporters.inspector.totals.losses import Tally


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
