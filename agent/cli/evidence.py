"""`rankwatch evidence list|show|take`: lists, shows and takes evidence bundles of this node."""

import argparse
import contextlib
import errno
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from agent.cli import own_agent
from agent.cli.terminal import plain, refuse, say
from agent.evidence import folder
from agent.evidence.summary import Summary

SHOWN_EVENTS = 40
"""Limit of printed events: the middle of a longer time line is left out."""
SHOWN_RANKS = 32
TAKE_SECONDS = 40.0
"""Longest wait for a bundle, or twice ``seconds_per_bundle`` if longer: another bundle can keep the agent busy."""
POLL_SECONDS = 0.2
ASK_SECONDS = 5.0  # Timeout of a query to the agent


def time_of_day(seconds: float) -> str:
    """Return the time of day (UTC) with tenths of seconds, truncated to keep the order of events."""
    return f"{time.strftime('%H:%M:%S', time.gmtime(seconds))}.{int(seconds % 1 * 10)}"


def listed(summaries: Iterable[tuple[str, Summary]]) -> str:
    """Return one line per bundle, the newest first."""
    rows = [
        f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(summary.taken_at))}  job {summary.job_id}  {name}  "
        f"{summary.because}"
        for name, summary in summaries
    ]
    return "\n".join(map(plain, reversed(rows))) or "no bundles"


def shown(name: str, summary: Summary) -> str:
    """Return the summary as text: suspects with reasons, time line, ranks and parts."""
    lines = [
        f"{name}: job {summary.job_id} on {summary.node}, "
        f"{time.strftime('%Y-%m-%d', time.gmtime(summary.taken_at))} {time_of_day(summary.taken_at)} UTC, "
        f"because {summary.because}",
        "",
        "Suspects",
        *(_suspects(summary) or ["  none that this node knows of"]),
        "",
        "Time line (UTC)",
        *_events(summary),
        "",
        "Ranks here",
        *_ranks(summary),
        "",
        "Parts",
        *(f"  {part.name}: {part.failed or f'{part.size_bytes} bytes'}" for part in summary.parts),
    ]
    return "\n".join(map(plain, lines))


def _suspects(summary: Summary) -> list[str]:
    blames: dict[str, list[str]] = {}
    for word in summary.words:
        if word.blames:
            blames.setdefault(word.rank, []).append(f"{word.says} ({word.witness.replace('_', ' ')})")
    return [f"  rank {rank}: {'; '.join(blames.get(rank, ()))}" for rank in summary.suspects[:SHOWN_RANKS]]


def _events(summary: Summary) -> list[str]:
    events = summary.timeline
    half = SHOWN_EVENTS // 2
    lines = [
        f"  {time_of_day(event.at)}  {f'rank {event.rank}: ' if event.rank else ''}{event.what} ({event.source})"
        for event in events
    ]
    if len(lines) <= SHOWN_EVENTS:
        return lines or ["  nothing"]
    return [*lines[:half], f"  ... {len(lines) - SHOWN_EVENTS} more ...", *lines[-half:]]


def _ranks(summary: Summary) -> list[str]:
    lines = []
    for rank in summary.ranks:
        quiet = "" if rank.quiet_seconds is None else f"quiet for {rank.quiet_seconds:.0f} s"
        gpu = f"GPU {rank.gpu}" if rank.gpu else ""
        known = (f"rank {rank.rank}", f"pid {rank.pid}", rank.state, rank.how, gpu, quiet, rank.last_operation)
        lines.append(f"  {', '.join(filter(None, known))}")
    rest = len(lines) - SHOWN_RANKS
    return lines[:SHOWN_RANKS] + ([f"  ... {rest} more ..."] if rest > 0 else [])


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status: 0 success, 1 no such bundle, or no bundle was taken."""
    parser = argparse.ArgumentParser(
        prog="rankwatch evidence",
        description="The bundles of evidence that the agent of this node took when ranks died or hung.",
    )
    known = "the directory of bundles (default: the directory of the running agent)"
    parser.add_argument("--path", type=Path, help=known)
    commands = parser.add_subparsers(dest="command", required=True, metavar="list|show|take")
    listing = commands.add_parser("list", help="the bundles, the newest first")
    show = commands.add_parser("show", help="print a bundle's summary: suspects, time line, ranks")
    show.add_argument("name", metavar="NAME", help="a bundle's name, or a job's id for the job's newest bundle")
    take = commands.add_parser("take", help="request a bundle of a job from the agent now")
    take.add_argument("--job", required=True, metavar="ID", help="the job's id, as the agent shows it")
    for command in (listing, show, take):
        command.add_argument("--path", type=Path, default=argparse.SUPPRESS, help=known)
        own_agent.add_flags(command)
    flags = parser.parse_args(list(arguments))
    path, command = flags.path, flags.command
    try:
        if command == "show" and flags.name.endswith((folder.SUFFIX, folder.SUMMARY_SUFFIX)) and "/" in flags.name:
            file = Path(flags.name)
            path, flags.name = file.parent, file.name
            if not file.exists():
                raise ValueError(f"no such bundle: {file}; rankwatch evidence list")
        section = {} if path else _configured(flags)
        path = path or Path(str(section.get("path", folder.DEFAULT_PATH)))
        _check(path, os.R_OK | os.X_OK | (os.W_OK if command == "take" else 0))
        if command == "list":
            say(listed(folder.summaries(path)))
        elif command == "show":
            _show(path, flags.name)
        else:
            _check_job(flags)
            _take(path, flags.job, max(TAKE_SECONDS, 2 * float(str(section.get("seconds_per_bundle", 0)))))
    except BrokenPipeError:
        raise  # main handles it
    except PermissionError as error:
        right = f"{'write' if command == 'take' else 'read'} {error.filename}"
        return refuse("evidence", f"you have no right to {right}; run it as root: sudo rankwatch evidence")
    except (OSError, ValueError) as error:
        return refuse("evidence", str(error))
    return 0


def _configured(flags: argparse.Namespace) -> Mapping[str, object]:
    """Return the settings of bundles from the configuration in ``flags``, else from the running agent's configuration.

    Raises ConfigError if the file in ``flags`` cannot be read; returns {} if the agent's file cannot be read.
    """
    usual = own_agent.CONFIG_FILE
    with contextlib.suppress(OSError, ValueError):
        used = Path(own_agent.document(own_agent.address_of(flags), ASK_SECONDS).configuration.file)
        usual = used if own_agent.is_text(used) else usual
    section: Mapping[str, object] = own_agent.configuration(flags.config_file, usual).exporters.get("evidence", {})
    return section


def _check(path: Path, rights: int) -> None:
    """Raise OSError if the directory is missing, or if this user lacks ``rights`` on it."""
    if not path.is_dir():
        why = "the agent takes no evidence, or writes it elsewhere (--path), or another agent has it"
        raise FileNotFoundError(f"no directory {path}: {why} (--web.listen-address)")
    if not os.access(path, rights):
        raise PermissionError(errno.EACCES, "", str(path))


def _check_job(flags: argparse.Namespace) -> None:
    """Raise ValueError if the agent replies and has no rank of the job."""
    try:
        jobs = [job.job_id for job in own_agent.document(own_agent.address_of(flags), ASK_SECONDS).jobs]
    except (OSError, ValueError):
        return
    if flags.job not in jobs:
        raise ValueError(f"job {flags.job} has no rank on this node; jobs here: {', '.join(jobs) or 'none'}")


def _show(path: Path, requested: str) -> None:
    name = requested.removesuffix(folder.SUFFIX).removesuffix(folder.SUMMARY_SUFFIX)
    if name not in folder.bundles(path):
        of_job = [name for name, summary in folder.summaries(path) if summary.job_id == requested]
        if not of_job:
            raise ValueError(f"no bundle or job {requested} in {path}; rankwatch evidence list")
        name = of_job[-1]
    say(shown(name, folder.read_summary(path, name)))


def _take(path: Path, job_id: str, seconds: float) -> None:
    before = set(folder.bundles(path))
    request = folder.request_bundle(path, job_id)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for name in sorted(set(folder.bundles(path)) - before):
            if folder.read_summary(path, name).job_id == job_id:
                say(f"{path / name}{folder.SUFFIX}")
                return
        time.sleep(POLL_SECONDS)
    request.unlink(missing_ok=True)
    raise ValueError(
        f"no bundle came within {seconds:.0f} s: has job {job_id} ranks here, does the agent run, "
        "and is its exporter evidence enabled?"
    )
