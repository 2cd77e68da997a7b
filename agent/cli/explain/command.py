"""The command line of `rankwatch explain`."""

import argparse
import math
import os
import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from agent.cli.explain import ask, bundles, story
from agent.cli.explain.culprit import judge
from agent.cli.explain.details import details
from agent.cli.explain.incident import cost, incidents
from agent.cli.explain.model import Course, Details, Incident, KnownJob
from agent.cli.explain.story import as_html, as_text
from agent.cli.job.facts import known_jobs, matcher
from agent.cli.terminal import add_prometheus, no_answer, plain, refuse, say

_UNITS = {"m": 60, "h": 3600, "d": 86400}


def main(arguments: Sequence[str]) -> int:
    """Query Prometheus and print the page; exit status: 0 printed, 1 no such job, 2 no answer or a file error."""
    flags = _parser().parse_args(list(arguments))
    end = time.time() if flags.until is None else flags.until
    try:
        read = bundles.Read((), ()) if flags.evidence is None else bundles.read(flags.evidence, flags.job)
    except OSError as error:
        return refuse("explain", f"cannot list {flags.evidence}: {error.strerror}", 2)
    try:
        page, status = explain(ask.Ask(flags.prometheus), flags.job, flags.cluster, flags.since, end, read)
    except (OSError, ValueError) as error:
        return no_answer("explain", flags.prometheus, error)
    if page is None or flags.html is None:
        say(plain(status) if page is None else as_text(page))
        return int(page is None)
    try:
        _write(flags.html, as_html(page))
    except OSError as error:
        return refuse("explain", f"cannot write {flags.html}: {error.strerror}", 2)
    return 0


def explain(
    asker: ask.Ask, job_id: str, cluster: str | None, since: float | None, end: float, read: bundles.Read
) -> tuple[story.StoryPage | None, str]:
    """Return the page, or None and the reason.

    ``since``: seconds before ``end``; None: from the job's start.
    """
    seconds = ask.DEFAULT_HOURS * 3600.0 if since is None else since
    job = ask.job(asker, job_id, cluster, end, seconds)
    if len(job.clusters) > 1:
        names = ", ".join(cluster_name or "(none)" for cluster_name in job.clusters)
        return None, f"clusters {names} each have a job {job_id}: choose one by --cluster"
    if not job.clusters and not read.summaries:
        listed = known_jobs(partial(asker.at, at_seconds=end), f"{math.ceil(seconds)}s")
        return None, f"job {job_id}: no data in the range (--since, --until); known jobs: {listed}"
    start = end - seconds
    if since is None and job.started is not None:
        start = max(start, min(job.started - ask.BEFORE_START_SECONDS, end - 2 * ask.BEFORE_START_SECONDS))
    labels = matcher(job_id, cluster)
    course = ask.course(asker, labels, start, end)
    all_incidents = incidents(course)
    by_bundles = not all_incidents and bool(read.summaries)
    if by_bundles:
        all_incidents = [_of_bundles(read, job)]
    if not all_incidents:
        return story.no_incident(job, course.start, end), ""
    known = Details() if by_bundles else details(asker, labels, all_incidents[-1], course)
    return _page(asker, job, course, all_incidents, known, read), ""


def _page(
    asker: ask.Ask, job: KnownJob, course: Course, all_incidents: list[Incident], known: Details, read: bundles.Read
) -> story.StoryPage:
    evidence = bundles.weigh(read.summaries, job, all_incidents[-1])
    whole = Details(
        (*known.happened, *evidence.happened),
        (*known.said, *evidence.said),
        known.places,
        known.alerts,
        known.advice,
        (*read.failed, *evidence.left_out),
    )
    judgement = judge(whole.said, is_hang=all_incidents[-1].what == "hung")
    runbooks = asker.runbooks() if whole.alerts else {}
    return story.page_of(job, all_incidents, whole, judgement, cost(course, all_incidents[-1], job.ranks), runbooks)


def _of_bundles(read: bundles.Read, job: KnownJob) -> Incident:
    """Return the incident of the last bundles, for a job whose metrics show no incident."""
    timed = [(summary.taken_at - job.offsets.get(summary.node, 0.0), summary.trigger) for summary in read.summaries]
    last = max(taken_at for taken_at, _ in timed)
    of_incident = [(taken_at, trigger) for taken_at, trigger in timed if last - taken_at <= bundles.LATE_SECONDS]
    first = min(taken_at for taken_at, _ in of_incident)
    is_death = any(trigger == "dead" for _, trigger in of_incident)
    return Incident(first, last, first, None, "died" if is_death else "hung")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rankwatch explain",
        description="Print the story of a job's last incident: what happened when, which rank caused it, the "
        "witnesses, its cost and what to do. Exit status: 0 printed (or nothing happened), 1 no such job, 2 no answer.",
    )
    parser.add_argument("job", metavar="ID", help="the job's id")
    add_prometheus(parser)
    parser.add_argument("--evidence", metavar="DIR", type=Path, help="a folder with the .json of evidence bundles")
    parser.add_argument(
        "--since",
        metavar="SPAN",
        type=_span,
        help="how far back to look, such as 90m, 6h or 7d (default: to the job's start, at most 24h)",
    )
    parser.add_argument(
        "--until", metavar="TIME", type=_moment, help="such as 2026-01-31T14:00:00Z, or epoch seconds (default: now)"
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="write the page as HTML to a file (mode 0600)")
    return parser


def _span(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,6})([mhd])", text, re.ASCII)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < seconds <= ask.MAX_HOURS * 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a span such as 90m, 6h or 7d, at most 7d")
    return float(seconds)


def _moment(text: str) -> float:
    if re.fullmatch(r"[0-9]{1,12}", text, re.ASCII):
        return float(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 2026-01-31T14:00:00Z") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _write(path: Path, text: str) -> None:
    """Write the file atomically: a reader sees the old page or the new page."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(file, "w", encoding="utf-8") as opened:
            opened.write(text)
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
