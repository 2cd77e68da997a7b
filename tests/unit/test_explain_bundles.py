"""Summaries of evidence bundles: forged, cut or duplicate, or from other clusters, times and clocks."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.cli.explain import bundles
from agent.cli.explain.command import _of_bundles
from agent.cli.explain.model import Incident, KnownJob
from agent.evidence.summary import MAX_LISTED, Event, RankAtTime, Summary, Word

INCIDENT = Incident(1000.0, 1300.0, 1000.0, None, "died")
JOB = KnownJob("7", ("x",), has_rules=True, nodes=("a", "b"), nodes_elsewhere=frozenset({"z"}))


def summary(node: str = "a", taken_at: float = 1020.0, **more: Any) -> Summary:
    """Return a summary of job 7 that blames rank 3."""
    made: dict[str, Any] = {
        "format": 1, "job_id": "7", "node": node, "taken_at": taken_at, "trigger": "dead", "because": "rank 3 died",
        "version": "1", "ranks": [RankAtTime("3", 30, "dead", 1000.0)],
        "words": [Word("3", "verdict", "died of SIGKILL", blames=True)], "suspects": ["3"],
        "timeline": [Event(1000.0, "3", "died", "process")], "parts": [],
    }  # fmt: skip
    return Summary(**(made | more))


def put(folder: Path, name: str, made: Summary) -> None:
    """Write a summary as the agent does."""
    (folder / f"{name}.json").write_bytes(msgspec.json.encode(made))


def test_summaries_of_the_job(tmp_path: Path) -> None:
    """The job's summaries are read once each, in order of time; other jobs' summaries are skipped."""
    put(tmp_path, "b", summary("b", 1030.0))
    put(tmp_path, "a", summary())
    put(tmp_path, "copy", summary())
    put(tmp_path, "other", summary(job_id="8"))
    (tmp_path / "bundle.tar.gz").write_bytes(b"no summary")
    proof = bundles.read(tmp_path, "7")
    assert [(entry.node, entry.taken_at) for entry in proof.summaries] == [("a", 1020.0), ("b", 1030.0)]
    assert proof.failed == ()


@pytest.mark.parametrize("content", [
    b"", msgspec.json.encode(summary())[:-40], b'{"x":' + b"[" * 100_000, b'{"job_id": "7"}',
    msgspec.json.encode(summary()).replace(b'"format":1', b'"format":2'),
    msgspec.json.encode(summary(words=[Word("3", "verdict", "x", blames=True)] * (MAX_LISTED + 1))), b"\xff\xfe",
    msgspec.json.encode(summary(taken_at=1e300)),
], ids=["empty", "cut", "deep", "of_fields", "newer", "too_long", "no_text", "outside_the_calendar"])  # fmt: skip
def test_a_file_that_is_no_summary(content: bytes, tmp_path: Path) -> None:
    """An invalid file is named with the reason; the other files are used."""
    put(tmp_path, "good", summary())
    (tmp_path / "bad.json").write_bytes(content)
    proof = bundles.read(tmp_path, "7")
    assert len(proof.summaries) == 1
    [failed] = proof.failed
    assert failed.startswith("bad.json: ")


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    """FIFOs, links and directories are not read, and do not block."""
    given = tmp_path / "given"
    given.mkdir()
    os.mkfifo(given / "fifo.json")
    put(tmp_path, "elsewhere", summary())
    (given / "link.json").symlink_to(tmp_path / "elsewhere.json")
    (given / "folder.json").mkdir()
    proof = bundles.read(given, "7")
    assert sorted(entry.partition(":")[0] for entry in proof.failed) == ["fifo.json", "folder.json", "link.json"]


def test_more_files_than_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more than MAX_FILES files the last ones by name are read, and a note counts the unread files."""
    monkeypatch.setattr(bundles, "MAX_FILES", 2)
    for number in range(3):
        put(tmp_path, f"{number}", summary(taken_at=1000.0 + number))
    proof = bundles.read(tmp_path, "7")
    assert [entry.taken_at for entry in proof.summaries] == [1001.0, 1002.0]
    assert proof.failed == ("1 files: more than 2 are not read",)


def test_bundles_of_another_time_or_cluster() -> None:
    """Bundles of another time or cluster are listed and not used."""
    late, early = INCIDENT.end + bundles.LATE_SECONDS, INCIDENT.start - bundles.EARLY_SECONDS
    assert bundles.weigh([summary(taken_at=late), summary(taken_at=early)], JOB, INCIDENT).left_out == ()
    proof = bundles.weigh([summary(taken_at=late + 1), summary(taken_at=early - 1), summary("z")], JOB, INCIDENT)
    assert (proof.said, proof.happened) == ((), ())
    assert proof.left_out == (
        "bundle of a: taken at another time than the incident",
        "bundle of a: taken at another time than the incident",
        "bundle of z: that node ran the job 7 of another cluster",
    )


def test_a_node_whose_clock_is_ahead() -> None:
    """The times of a node with a fast clock are corrected with its metrics."""
    ahead = KnownJob("7", ("x",), nodes=("a",), offsets={"a": 3600.0})
    made = summary(taken_at=4620.0, timeline=[Event(4600.0, "3", "died", "process")])
    proof = bundles.weigh([made], ahead, INCIDENT)
    assert ([entry.at for entry in proof.happened], bundles.weigh([made], JOB, INCIDENT).said) == ([1000.0, 1020.0], ())


def test_an_incident_of_bundles_from_a_node_whose_clock_is_behind() -> None:
    """The corrected times of bundles decide which of them belong to the last incident of a job without metrics."""
    behind = KnownJob("7", nodes=("a",), offsets={"a": -3600.0})
    assert _of_bundles(bundles.Read((summary(),), ()), behind) == Incident(4620.0, 4620.0, 4620.0, None, "died")


def test_who_followed_is_not_blamed() -> None:
    """The first exit in all bundles (by corrected clocks) is blamed, and so is each exit at most 0.05 s later."""

    def ended(node: str, rank: str, since: float) -> Summary:
        word = Word(rank, "verdict", "killed (SIGKILL)", blames=True)
        return summary(node, ranks=[RankAtTime(rank, 1, "dead", since)], words=[word], suspects=[rank])

    made = [ended("a", "3", 1010.0), ended("b", "9", 1000.05), ended("c", "4", 1000.0), ended("d", "5", 1000.06)]
    proof = bundles.weigh(made, KnownJob("7", offsets={"a": 10.0}), INCIDENT)
    assert {entry.rank: entry.blames for entry in proof.said} == {"3": True, "9": True, "4": True, "5": False}


def test_a_share_of_words_and_events_for_each_bundle() -> None:
    """Of a bundle's statements MAX_WORDS are used, blaming ones first; events later than the bundle are left out."""
    words = [Word(str(rank), "ras", "waits", blames=False) for rank in range(MAX_LISTED - 1)]
    words.append(Word("3", "stacks", "in DataLoader", blames=True))
    events = [Event(999.0, "1", f"line {number}", "log") for number in range(MAX_LISTED - 2)]
    events += [Event(1001.0, "3", "died", "process"), Event(99_999.0, "3", "forged", "log")]
    proof = bundles.weigh([summary(words=words, timeline=events)], JOB, INCIDENT)
    assert (len(proof.said), proof.said[0].rank, len(proof.happened)) == (bundles.MAX_WORDS, "3", bundles.MAX_WORDS + 1)
    assert proof.happened[0].what == "died"
    assert "forged" not in {entry.what for entry in proof.happened}
