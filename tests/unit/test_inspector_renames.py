"""What becomes of totals when a job's id goes over to its owner."""

from __future__ import annotations

from test_inspector_exporter import Bench, view, writer

from agent.sdk.ranks import RankLabel
from exporters.inspector.reading.turn import Published
from exporters.inspector.totals.inheritance import Inheritance, RankTally
from exporters.inspector.totals.losses import Tally


def test_the_squatters_inheritance_is_not_the_victims() -> None:
    """What expired writers of the squatter left under job/1 goes with him, not to the rank that takes job/1."""
    bench = Bench().start()
    exporter = bench.exporter
    exporter._inherited = Inheritance({}, {RankTally("job", "1", Tally.MISSING_OTHERWISE): 5})
    bench.ranks.labels = {7: RankLabel("job-u1001", "1"), 8: RankLabel("job", "1")}
    bench.ranks.renamed = ["job"]
    exporter._ask_ranks()
    bench.drain()
    assert not [key for key in exporter._inherited.tallies if key.job_id == "job"]


class _Slot:
    """A reader's slot with something published."""

    def __init__(self, published: Published) -> None:
        self.writers = lambda: published.writers


def test_a_rename_loses_no_totals_of_a_writer_about_to_be_retired() -> None:
    """Any job's rename between a writer's expiry and its retirement: the restarted rank's sums must not fall (0010)."""
    bench = Bench().start()
    exporter, one = bench.exporter, writer(7)
    slot = _Slot(view(one))
    exporter._slots = [slot]  # type: ignore[list-item]
    exporter._ask_ranks()
    bench.ranks.expired.add(one.writer_key)
    bench.ranks.renamed = ["job"]
    exporter._ask_ranks()
    exporter._inherited.take(one, exporter._labels)  # as _take_in does when the reader gives it back
    exporter._slots = []
    bench.drain()
    assert exporter._inherited.sums
