"""The last report of a job in a bundle: the report as read, the ranks it blames, and how long the job stood still."""

from collections.abc import Mapping

import msgspec

from agent.sdk.evidence import Offered, summary
from agent.sdk.metrics import comm_label
from exporters.ras.report.hangs import JobReport

MAX_WORDS = 64
_SAYS = {
    "behind": "has launched less than the others",
    "missing": "does not answer the others",
    "left": "has left a communicator that the others wait in",
}


def stalls(reports: Mapping[str, JobReport]) -> dict[str, float]:
    """Return for how many seconds each stalled job stood still at its last report, by job id."""
    seconds = {job_id: report.stalled_seconds() for job_id, report in reports.items()}
    return {job_id: stalled for job_id, stalled in seconds.items() if stalled is not None}


def bundle_part(last: JobReport | None) -> Offered:
    """Return the evidence in a job's last report; empty without a report."""
    if last is None:
        return Offered({})
    words = [
        summary.Word(
            str(suspect.rank.rank),
            "ras",
            f"{_SAYS[suspect.reason]} ({comm_label(comm)})"[: summary.MAX_TEXT],
            blames=True,
        )
        for comm, suspects in sorted(last.suspects.items())
        for suspect in suspects
        if suspect.rank.rank is not None
    ]
    report = {"asked": last.queried_seconds, "report": last.report}
    return Offered({"report.json": msgspec.json.encode(report) + b"\n"}, words[:MAX_WORDS])
