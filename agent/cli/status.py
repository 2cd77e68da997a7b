"""`rankwatch status`: the ranks of a running agent as a table on the terminal."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence

import msgspec

from agent.app.yaml_document import ConfigError
from agent.cli import own_agent
from agent.core.hosts import ranges
from agent.page.document import PATH, NodeDocument, Rank, read

TIMEOUT_SECONDS = 10.0
WATCH_SECONDS = 2.0
_HEAD = ("JOB", "RANK", "STATE", "PID", "USER", "GPU", "GB/S", "PROGRESS", "TROUBLE", "ENDED BY")
_COLOURS = {"alive": "32", "finished": "32", "dead": "1;31", "unresponsive": "1;31"}
_ODD_COLOUR = "33"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_OTHER_SCREEN, _OWN_SCREEN = "\x1b[?1049h", "\x1b[?1049l"


def main(arguments: Sequence[str]) -> int:
    """Ask the agent and print what it says; returns the exit status: 1 where there is no answer, or no such job."""
    parser = argparse.ArgumentParser(prog="rankwatch status", description="Show the ranks of a running agent.")
    own_agent.add_flags(parser)
    parser.add_argument("--job", metavar="ID", help="only this job's ranks")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--brief", action="store_true", help="one line for each job and state, with its ranks: 0-3,7")
    form.add_argument("--json", action="store_true", help="what the agent answers at /api/v1/ranks (docs/api.md)")
    form.add_argument("--watch", action="store_true", help=f"again and again, every {WATCH_SECONDS:g} s")
    flags = parser.parse_args(list(arguments))
    try:
        address = own_agent.address_of(flags)
        if flags.watch:
            return _watch(address, flags.job)
        document = of_job(_ask(address), flags.job)
    except (OSError, ValueError) as error:
        where = "" if isinstance(error, ConfigError) else f"no answer from {address}: "
        print(f"rankwatch status: {where}{_plain(str(error))}", file=sys.stderr)  # noqa: T201  # its answer
        return 1
    if flags.json:
        print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())  # noqa: T201  # its answer
    else:
        print(brief(document) if flags.brief else table(document, colour=_has_colours()))  # noqa: T201  # its answer
    return 1 if flags.job is not None and not document.ranks else 0


def of_job(document: NodeDocument, job_id: str | None) -> NodeDocument:
    """The document with one job alone; whole without one."""
    if job_id is None:
        return document
    return msgspec.structs.replace(
        document,
        jobs=tuple(job for job in document.jobs if job.job_id == job_id),
        ranks=tuple(rank for rank in document.ranks if rank.job_id == job_id),
    )


def table(document: NodeDocument, *, colour: bool = False) -> str:
    """The ranks as lines of text, those in trouble first; then what is not known, and what helps."""
    said = [_plain(note) for note in document.notes]
    told = [each for each in document.exporters if each.why and each.state in ("up", "down")]  # others have no source
    said += [_plain(f"exporter {each.name}: {each.why}") for each in told]
    if document.configuration.refused:
        said.append(f"configuration refused, the one before stays: {_plain(document.configuration.refused)}")
    if document.ranks_left_out:
        said.append(f"{document.ranks_left_out} more ranks are not shown")
    if not document.ranks:
        return "\n".join(["no ranks", *said])
    lines = [_HEAD, *(_cells(rank, document.now_seconds) for rank in document.ranks)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
    shown = []
    for line in lines:
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        if colour and line is not _HEAD:
            padded[2] = f"\x1b[{_COLOURS.get(line[2], _ODD_COLOUR)}m{padded[2]}\x1b[0m"
        shown.append("  ".join(padded).rstrip())
    return "\n".join([*shown, *said])


def brief(document: NodeDocument) -> str:
    """The ranks by job and state, in sets of numbers; those without a number follow, by name."""
    found: dict[tuple[str, str], list[str]] = {}
    for rank in document.ranks:
        found.setdefault((_plain(rank.job_id), _plain(rank.state)), []).append(_plain(rank.rank))
    return "\n".join(f"{job_id}  {state}  {_set_of(ranks)}" for (job_id, state), ranks in sorted(found.items())) or (
        "no ranks"
    )


def _watch(address: str, job_id: str | None) -> int:
    """Show the table until the user ends it; on a terminal on a screen of its own. Returns the exit status."""
    terminal = sys.stdout.isatty()
    write = sys.stdout.write
    try:
        if terminal:
            write(_OTHER_SCREEN)
        while True:
            write(_screen(address, job_id) if terminal else f"{_told(address, job_id, colour=False)}\n\n")
            sys.stdout.flush()
            time.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to be flushed at the end
        return 0
    finally:
        if terminal:
            write(_OWN_SCREEN)


def _screen(address: str, job_id: str | None) -> str:
    """One screen: as many lines as there is room for."""
    size = os.get_terminal_size()
    lines = _told(address, job_id, colour=_has_colours()).splitlines()
    if len(lines) > size.lines - 1:
        lines = [*lines[: size.lines - 2], f"and {len(lines) - size.lines + 2} lines more: rankwatch status"]
    return _HOME + "".join(f"{line}{_CLEAR_LINE}\n" for line in lines) + _CLEAR_BELOW


def _told(address: str, job_id: str | None, *, colour: bool) -> str:
    try:
        document = of_job(_ask(address), job_id)
    except (OSError, ValueError) as error:
        return f"{time.strftime('%H:%M:%S')}  no answer from {address}: {_plain(str(error))}"
    sentences = [f"job {_plain(job.job_id)}: {_plain(job.sentence)}" for job in document.jobs]
    clock = time.strftime("%H:%M:%S", time.localtime(document.now_seconds))
    return "\n".join([f"{clock}  {_plain(document.hostname)}", *sentences, table(document, colour=colour)])


def _ask(address: str) -> NodeDocument:
    return read(own_agent.read(address, PATH, TIMEOUT_SECONDS))


def _cells(rank: Rank, now_seconds: float) -> tuple[str, ...]:
    bandwidth, ended, progress = rank.bus_bandwidth_bytes_per_second, rank.ended, rank.last_progress_seconds
    status = "" if ended is None or ended.code is None else str(ended.code)
    how = "" if ended is None else " ".join(filter(None, (ended.reason, ended.signal, status)))
    cells = (
        rank.job_id,
        rank.rank,
        rank.state,
        "" if rank.pid is None else str(rank.pid),
        rank.user,
        ",".join(str(gpu.index) for gpu in rank.gpus),
        "" if bandwidth is None else f"{bandwidth / 1e9:.1f}",
        "" if progress is None else f"{max(now_seconds - progress, 0):.0f}s ago",
        ",".join(rank.unhealthy),
        how,
    )
    return tuple(map(_plain, cells))


def _plain(text: str) -> str:
    """``text`` of a job's user, or of who answers in the agent's place, without anything that a terminal obeys."""
    return "".join(each if each.isprintable() else "?" for each in text)


def _set_of(ranks: Sequence[str]) -> str:
    numbered = [rank for rank in ranks if rank.isascii() and rank.isdecimal()]
    return ",".join(filter(None, (ranges(map(int, numbered)), *sorted(set(ranks) - set(numbered)))))


def _has_colours(environ: Callable[[str], str | None] = os.environ.get) -> bool:
    return sys.stdout.isatty() and not environ("NO_COLOR")
