"""Every transcript of a real RAS thread; see tests/data/ras/README.md."""

import tarfile
from pathlib import Path

import pytest

from exporters.ras.report.json_report import read_json
from exporters.ras.report.model import Launches, Report, ReportError
from exporters.ras.report.text_report import read_text

DATA = Path(__file__).parents[1] / "data" / "ras"
TABLE = DATA / "transcripts.tsv"
STAGES = ("initializing", "finalizing", "aborted")


def transcripts() -> dict[str, bytes]:
    """Return every transcript, keyed by name."""
    with tarfile.open(DATA / "transcripts.tar.xz") as archive:
        return {member.name: file.read() for member in archive if (file := archive.extractfile(member)) is not None}


ALL = transcripts()


def read(body: bytes) -> Report | ReportError:
    """Parse a reply in its format."""
    try:
        return read_json(body) if body.startswith(b"{") else read_text(body)
    except ReportError as error:
        return error


def ranks(numbers: list[int]) -> str:
    """Return numbers in their shortest form: 1,4-7."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1][-1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def launches(parsed: Launches | None) -> str:
    """Return the collectives with their fewest and most launches, and the ranks behind."""
    if parsed is None:
        return ""
    extremes = {name: f"{least}-{most}" if least < most else most for name, (least, most) in parsed.extremes.items()}
    words = [f"{name} {counts}" for name, counts in extremes.items()]
    words += [f"behind {ranks([rank.comm_rank for rank in parsed.behind])}"] if parsed.behind else []
    return " ".join(words)


def line(parsed: Report | ReportError) -> str:
    """Return a report as one line: hash responding/size of each communicator, and its missing ranks."""
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
