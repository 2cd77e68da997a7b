"""Every transcript of a real RAS thread, read; see tests/data/ras/README.md."""

import itertools
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from exporters.ras.report.json_report import read_json
from exporters.ras.report.model import Communicator, Launches, MissingRank, Report, ReportError, TroubledRank
from exporters.ras.report.text_report import read_text

DATA = Path(__file__).parents[1] / "data" / "ras"
TABLE = DATA / "transcripts.tsv"
STAGES = ("initializing", "finalizing", "aborted")
LOST_BY_TEXT = {"2.28.9/crash/comm_initialising_sorted_first_one_rank", "2.28.9/crash/missing_in_many_comms"}
"""The library's text walks off its data and loses a communicator."""


def transcripts() -> dict[str, bytes]:
    """Every transcript by its name."""
    with tarfile.open(DATA / "transcripts.tar.xz") as archive:
        return {member.name: file.read() for member in archive if (file := archive.extractfile(member)) is not None}


ALL = transcripts()


def read(body: bytes) -> Report | ReportError:
    """Read a reply in the format it is in."""
    try:
        return read_json(body) if body.startswith(b"{") else read_text(body)
    except ReportError as error:
        return error


def ranks(numbers: list[int]) -> str:
    """Numbers in their shortest form: 1,4-7."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1][-1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def launches(parsed: Launches | None) -> str:
    """The collectives with their least and most launches, and the ranks behind."""
    if parsed is None:
        return ""
    extremes = {name: f"{least}-{most}" if least < most else most for name, (least, most) in parsed.extremes.items()}
    words = [f"{name} {counts}" for name, counts in extremes.items()]
    words += [f"behind {ranks([rank.comm_rank for rank in parsed.behind])}"] if parsed.behind else []
    return " ".join(words)


def line(parsed: Report | ReportError) -> str:
    """A report on one line: communicators as hash responding/size, what is missing, and which ranks."""
    if isinstance(parsed, ReportError):
        return "cut" if parsed.cut else "no report"
    words = [parsed.version]
    for communicator in parsed.communicators:
        words.append(f"{communicator.hash} {communicator.responding}/{communicator.size}")
        if communicator.missing:
            words.append(
                f"missing {communicator.missing} unresponsive {communicator.unresponsive} dead {communicator.dead}"
            )
        words += [
            f"{reason}: {ranks([rank.comm_rank for rank in communicator.named if rank.reason == reason])}"
            for reason in sorted({rank.reason for rank in communicator.named})
        ]
        words += [f"{count} {name}" for name in STAGES if (count := getattr(communicator, name))]
        words += [f"{rank.comm_rank} {rank.trouble} {rank.error}".rstrip() for rank in communicator.troubled]
        words += [f"launched {launched}"] if (launched := launches(communicator.launches)) else []
    words += [f"timeouts {parsed.timeouts}"] if parsed.timeouts else []
    words += [f"skipped {reason} {count}" for reason, count in sorted(parsed.skipped.items())]
    return "; ".join(words)


def test_every_transcript_is_read_as_the_table_says(request: pytest.FixtureRequest) -> None:
    """Each of the 1101 transcripts gives the report, or the refusal, of its line in transcripts.tsv."""
    parsed = "".join(f"{name}\t{line(read(body))}\n" for name, body in sorted(ALL.items()))
    if request.config.getoption("--update-golden"):
        TABLE.write_text(parsed)
    assert (len(ALL), parsed) == (1101, TABLE.read_text())


def plain_json(body: bytes) -> dict[str, Any]:
    """A JSON report by the standard library, its missing comma put in line by line."""
    lines = body.decode().splitlines()
    for number, (above, below) in enumerate(itertools.pairwise(lines)):
        if above.strip().startswith('"nvml_dev"') and not above.endswith(",") and '"status"' in below:
            lines[number] += ","
    return dict(json.loads("\n".join(lines)))


def by_json() -> Iterator[tuple[str, dict[str, Any]]]:
    """The JSON reports that are whole."""
    for name, body in ALL.items():
        if body.startswith(b"{"):
            yield name, plain_json(body)


def test_json_is_read_as_the_standard_library_reads_it() -> None:
    """Sizes, answers and missing ranks equal those of the standard library's JSON reader."""
    read_of = 0
    for name, plain in by_json():
        report, wanted = read_json(ALL[name]), {}
        for group in plain["communicators"]:
            if group["size"]:
                missing = group["missing_ranks"]
                places = [(rank["rank"], (rank["host"], rank["pid"], rank["nvml_dev"])) for rank in missing]
                dead = sum(rank["status"]["considered_dead"] for rank in missing)
                wanted[group["hash"]] = (group["size"], group["ranks_count"], places, dead)
        assert {
            entry.hash: (
                entry.size,
                entry.responding,
                [(rank.comm_rank, rank.place) for rank in entry.named],
                entry.dead,
            )
            for entry in report.communicators
        } == wanted, name
        answering = {(rank["host"], rank["pid"]) for group in plain["communicators"] for rank in group["ranks"]}
        assert report.processes == answering, name
        read_of += 1
    assert read_of == 274


def test_text_and_json_of_one_state_tell_the_same() -> None:
    """The text of a step has no more than its JSON, and names every communicator with missing ranks."""
    compared = 0
    for name, body in ALL.items():
        step = re.sub(r"\.(text|verbose)\.txt$", "", name)
        other = ALL.get(f"{step}.json.txt", b"")
        if step == name or not other.startswith(b"{"):
            continue
        text, structured = read(body), read(other)
        assert isinstance(text, Report), name
        assert isinstance(structured, Report), name
        by_hash = {communicator.hash: communicator for communicator in structured.communicators}
        for communicator in text.communicators:
            assert_tells_no_other(name, communicator, by_hash.pop(communicator.hash))
        if step not in LOST_BY_TEXT:
            assert [entry for entry in by_hash.values() if entry.missing] == [], name
        compared += 1
    assert compared == 334


def assert_tells_no_other(name: str, text: Communicator, structured: Communicator) -> None:
    """A text report of a communicator agrees with its JSON report."""
    counts = (text.size, text.responding, text.missing)
    assert counts == (structured.size, structured.responding, structured.missing), name
    assert text.unresponsive in (structured.unresponsive, None), name
    assert text.dead in (structured.dead, None), name
    assert {unranked(rank) for rank in text.named} <= {unranked(rank) for rank in structured.named}, name
    assert {unranked(rank) for rank in text.troubled} <= {unranked(rank) for rank in structured.troubled}, name
    if text.launches is not None:
        assert structured.launches is not None, name
        assert text.launches.extremes.items() <= structured.launches.extremes.items(), name
        assert structured.launches.differ, name
        behind = {rank.comm_rank for rank in structured.launches.behind}
        assert {rank.comm_rank for rank in text.launches.behind} <= behind, name


def unranked(rank: MissingRank | TroubledRank) -> tuple[object, ...]:
    """As in a text report, which names no global ranks."""
    return msgspec.structs.astuple(msgspec.structs.replace(rank, rank=None))
