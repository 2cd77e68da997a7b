"""What the last report of a job adds to a bundle of evidence: the report as it was read, and which ranks it blames."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from agent.api import Offered, Wanted, comm_label
from agent.api import evidence_summary as told
from exporters.ras.report.hangs import Suspect, suspects
from exporters.ras.report.job_report import JobReport

MAX_WORDS = 64


async def last_report(reports: Callable[[], Mapping[str, JobReport]], wanted: Wanted) -> Offered:
    """Return the part; empty where there is no report of the job (``reports`` gives them by job id)."""
    known = reports().get(wanted.job_id)
    if known is None:
        return Offered({})
    found = suspects(known.report.communicators, known.watches)
    words = [_word(each, comm) for comm, ranks in sorted(found.items()) for each in ranks if each.rank.rank is not None]
    report = {"asked": known.asked_seconds, "reports": known.count, "report": known.report}
    return Offered({"report.json": msgspec.json.encode(report) + b"\n"}, words[:MAX_WORDS])


def _word(suspect: Suspect, comm: str) -> told.Word:
    says = {
        "behind": "has launched less than the others",
        "missing": "does not answer the others",
        "left": "has left a communicator that the others wait in",
    }
    text = f"{says[suspect.reason]} ({comm_label(comm)})"
    return told.Word(str(suspect.rank.rank), "ras", text[: told.MAX_TEXT], blames=True)
