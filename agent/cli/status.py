"""`rankwatch status`: print the ranks of a running agent as a table."""

import argparse
import shutil
import sys
import time
from collections.abc import Sequence

import msgspec

from agent.app.yaml_document import ConfigError
from agent.cli import own_agent
from agent.cli.terminal import as_json, columns, has_colours, plain, rank_set, refuse, say
from agent.page.describe import bandwidth, how_ended, progress
from agent.page.ranks_json import NodeDocument, Rank

TIMEOUT_SECONDS = 10.0
WATCH_SECONDS = 2.0
_HEAD = ("JOB", "RANK", "STATE", "PID", "USER", "GPU", "GB/S", "LATE", "PROGRESS", "TROUBLE", "HOW IT ENDED")
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_OTHER_SCREEN, _OWN_SCREEN = "\x1b[?1049h", "\x1b[?1049l"


def main(arguments: Sequence[str]) -> int:
    """Query the agent and print its ranks; return the exit status: 1 if the agent does not reply or has no such job."""
    parser = argparse.ArgumentParser(prog="rankwatch status", description="Show the ranks of a running agent.")
    own_agent.add_flags(parser)
    parser.add_argument("job", metavar="ID", nargs="?", default=argparse.SUPPRESS, help="only this job's ranks")
    parser.add_argument("--job", metavar="ID", help="the same")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--brief", action="store_true", help="one line for each job and state, with its ranks: 0-3,7")
    form.add_argument("--json", action="store_true", help="the agent's answer at /api/v1/ranks (docs/web.md)")
    form.add_argument("--watch", action="store_true", help=f"repeat every {WATCH_SECONDS:g} s")
    flags = parser.parse_args(list(arguments))
    try:
        agent = own_agent.address_of(flags)
        if flags.watch:
            return _watch(agent, flags.job)
        whole = own_agent.document(agent, TIMEOUT_SECONDS)
        document = of_job(whole, flags.job)
    except (OSError, ValueError) as error:
        where = "" if isinstance(error, ConfigError) else f"no answer from {agent}: "
        return refuse("status", f"{where}{error}")
    is_known = flags.job is None or bool(document.ranks)
    if flags.json:
        say(as_json(document))
    elif is_known:
        say(brief(document) if flags.brief else table(document, colour=has_colours()))
    if is_known:
        return 0
    here = ", ".join(job.job_id for job in whole.jobs) or "none"
    return refuse("status", f"job {flags.job} has no rank on this node; jobs here: {here}")


def of_job(document: NodeDocument, job_id: str | None) -> NodeDocument:
    """Return the document with only the given job; unchanged without a job id."""
    if job_id is None:
        return document
    return msgspec.structs.replace(
        document,
        jobs=tuple(job for job in document.jobs if job.job_id == job_id),
        ranks=tuple(rank for rank in document.ranks if rank.job_id == job_id),
    )


def table(document: NodeDocument, *, colour: bool = False) -> str:
    """Return sentences about jobs in trouble, a table of ranks (ranks in trouble first), and notes with remedies."""
    troubled = [job for job in document.jobs if set(job.states) - {"alive", "finished"}]
    sentences = [plain(f"job {job.job_id} {job.name}".rstrip() + f": {job.sentence}") for job in troubled]
    notes = [plain(note) for note in document.notes]
    # exporters in other states found no source on this node
    exporters = [exporter for exporter in document.exporters if exporter.why and exporter.state in ("up", "down")]
    notes += [plain(f"exporter {exporter.name}: {exporter.note()}") for exporter in exporters]
    if document.configuration.refused:
        notes.append(f"configuration refused, the previous one stays: {plain(document.configuration.refused)}")
    if document.ranks_left_out:
        notes.append(f"{document.ranks_left_out} more ranks are not shown")
    if not document.ranks:
        return "\n".join(["no ranks (start a job, or rankwatch doctor)", *notes])
    members: dict[str, list[Rank]] = {}
    for rank in document.ranks:
        members.setdefault(rank.job_id, []).append(rank)
    rows = (_cells(rank, members[rank.job_id], document.now_seconds) for rank in document.ranks)
    shown = columns(_HEAD, rows, _HEAD.index("STATE"), colour=colour)
    return "\n".join([*sentences, *shown, *notes])


def brief(document: NodeDocument) -> str:
    """Return the ranks by job and state: sets of numbers, then the names of ranks without a number."""
    ranks_by_state: dict[tuple[str, str], list[str]] = {}
    for rank in document.ranks:
        ranks_by_state.setdefault((plain(rank.job_id), plain(rank.state)), []).append(rank.rank)
    return "\n".join(
        f"{job_id}  {state}  {rank_set(ranks)}" for (job_id, state), ranks in sorted(ranks_by_state.items())
    ) or ("no ranks")


def _watch(agent: own_agent.AgentAddress, job_id: str | None) -> int:
    """Show the table until the user interrupts, on a terminal's alternate screen; return the exit status."""
    terminal = sys.stdout.isatty()
    write = sys.stdout.write
    try:
        if terminal:
            write(_OTHER_SCREEN)
        while True:
            write(_screen(agent, job_id) if terminal else f"{_text_of(agent, job_id, colour=False)}\n\n")
            sys.stdout.flush()
            time.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        return 0
    finally:
        if terminal:
            write(_OWN_SCREEN)


def _screen(agent: own_agent.AgentAddress, job_id: str | None) -> str:
    size = shutil.get_terminal_size()  # 80 x 24 if unknown
    lines = _text_of(agent, job_id, colour=has_colours()).splitlines()
    if len(lines) > size.lines - 1:
        lines = [*lines[: size.lines - 2], f"and {len(lines) - size.lines + 2} lines more: rankwatch status"]
    return _HOME + "".join(f"{line}{_CLEAR_LINE}\n" for line in lines) + _CLEAR_BELOW


def _text_of(agent: own_agent.AgentAddress, job_id: str | None, *, colour: bool) -> str:
    try:
        document = of_job(own_agent.document(agent, TIMEOUT_SECONDS), job_id)
    except (OSError, ValueError) as error:
        return f"{time.strftime('%H:%M:%S')}  no answer from {agent}: {plain(str(error))}"
    clock = time.strftime("%H:%M:%S", time.localtime(document.now_seconds))
    return "\n".join([f"{clock}  {plain(document.hostname)}", table(document, colour=colour)])


def _cells(rank: Rank, others: Sequence[Rank], now_seconds: float) -> tuple[str, ...]:
    return (
        rank.job_id,
        rank.rank,
        rank.state,
        "" if rank.pid is None else str(rank.pid),
        rank.user,
        ",".join(str(gpu.index) for gpu in rank.gpus),
        bandwidth(rank, now_seconds),
        "" if rank.late_share is None else f"{rank.late_share:.0%}",
        progress(rank, others, now_seconds),
        ",".join(rank.unhealthy),
        "" if rank.ended is None else how_ended(rank.ended),
    )
