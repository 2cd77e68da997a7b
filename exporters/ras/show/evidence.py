"""What the last report of a job adds to a bundle of evidence: the report as it was read, and which ranks it blames; and
for how long the job stood still by it."""

from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from agent.sdk.evidence import Offered, Offers, Wanted, summary as told
from agent.sdk.metrics import comm_label
from exporters.ras.asking.jobs import Processes
from exporters.ras.report.hangs import JobReport, Suspect

MAX_WORDS = 64


def offer_reports(
    board: Offers, named: Callable[[Processes], Mapping[str, JobReport]], processes: Callable[[], Processes]
) -> None:
    """Offer the last reports to bundles, and tell which jobs stand still by them.

    ``named`` gives the reports by job id; with ``processes`` also of jobs that got their name after the report.
    """
    board.offer(partial(last_report, lambda: named(processes())))

    def stalls() -> dict[str, float]:
        seconds = {job_id: each.stalled_seconds() for job_id, each in named({}).items()}
        return {job_id: stalled for job_id, stalled in seconds.items() if stalled is not None}

    board.tell_stalls(stalls)


async def last_report(reports: Callable[[], Mapping[str, JobReport]], wanted: Wanted) -> Offered:
    """Return the part; empty where there is no report of the job (``reports`` gives them by job id)."""
    known = reports().get(wanted.job_id)
    if known is None:
        return Offered({})
    blamed = [(comm, each) for comm, ranks in sorted(known.suspects.items()) for each in ranks]
    words = [_word(each, comm) for comm, each in blamed if each.rank.rank is not None]
    report = {"asked": known.asked_seconds, "report": known.report}
    return Offered({"report.json": msgspec.json.encode(report) + b"\n"}, words[:MAX_WORDS])


def _word(suspect: Suspect, comm: str) -> told.Word:
    says = {
        "behind": "has launched less than the others",
        "missing": "does not answer the others",
        "left": "has left a communicator that the others wait in",
    }
    text = f"{says[suspect.reason]} ({comm_label(comm)})"
    return told.Word(str(suspect.rank.rank), "ras", text[: told.MAX_TEXT], blames=True)
