"""Make the node's document from the agent's tables. Pure."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence

from agent.core.identity import rank_order
from agent.hardware.ledger import Entry
from agent.page.ranks_json import JobView, Rank, RankEnd
from agent.ranks import health
from agent.ranks.rank.evidence import UNRESPONSIVE
from agent.ranks.rank.exit_status import ending, in_words
from agent.ranks.snapshot import RankSnapshot, RankView
from agent.ranks.speeds import RankSpeeds

TROUBLE_FIRST = ("dead", "unresponsive", "unknown", "exited", "alive", "finished")
STALE_SECONDS = 10.0
"""A rank's last bandwidth is out of date after this time without progress."""
_MAX_NAMED = 3
"""Limit of ranks named for one trouble, and of troubles named in a sentence; then follows "N more"."""


def ranks(known: health.HealthSnapshot, speeds: RankSpeeds) -> list[Rank]:
    """Return the ranks: ranks in trouble first, then by job and number."""
    failed = known.counted_failures()
    return sorted((_rank(view, failed, speeds) for view in known.ranks.ranks), key=_order)


def jobs(views: Iterable[RankView], judged: Iterable[Rank], now_seconds: float) -> list[JobView]:
    """Return the jobs of ``judged``: jobs with ranks in trouble first. ``views``: facts of the ranks' processes."""
    by_job: defaultdict[str, list[Rank]] = defaultdict(list)
    for rank in judged:
        by_job[rank.job_id].append(rank)
    facts: dict[str, RankView] = {}
    for view in views:
        facts.setdefault(view.label.job_id, view)
    views_of_jobs = [_job(job_id, members, facts[job_id], now_seconds) for job_id, members in by_job.items()]
    return sorted(views_of_jobs, key=lambda job: (min(map(TROUBLE_FIRST.index, job.states)), job.job_id))


def progress(rank: Rank, others: Iterable[Rank], now_seconds: float) -> str:
    """Return the time since a rank's last progress, and the only dead or unresponsive rank that it may wait for."""
    if rank.last_progress_seconds is None:
        return ""
    idle = now_seconds - rank.last_progress_seconds
    if rank.state != "alive" or idle <= STALE_SECONDS:
        return ago(idle)
    blamed = [other.rank for other in others if other.state in ("dead", "unresponsive")]
    return f"waits for rank {blamed[0]}, {age(idle)}" if len(blamed) == 1 else f"none for {age(idle)}"


def bandwidth(rank: Rank, now_seconds: float) -> str:
    """Return a rank's bus bandwidth in GB/s; empty if it is unknown or out of date."""
    known, at = rank.bus_bandwidth_bytes_per_second, rank.last_progress_seconds
    is_stale = at is not None and now_seconds - at > STALE_SECONDS
    return "" if known is None or is_stale else f"{known / 1e9:.1f}"


def sentence(members: Sequence[Rank], now_seconds: float) -> str:
    """Return a sentence about a job's ranks on this node: ranks in trouble by what is wrong, then the other ranks."""
    counts = Counter(rank.state for rank in members)
    troubles: defaultdict[str, list[Rank]] = defaultdict(list)
    for rank in sorted(members, key=lambda rank: TROUBLE_FIRST.index(rank.state)):
        if rank.state in ("dead", "unresponsive", "unknown"):
            troubles[_words(rank)].append(rank)
    parts = [_trouble(words, group, now_seconds) for words, group in list(troubles.items())[:_MAX_NAMED]]
    if more := sum(map(len, list(troubles.values())[_MAX_NAMED:])):
        parts.append(f"{more} more in trouble")
    if runs := counts["alive"]:
        parts.append(f"{runs} {'rank runs' if runs == 1 else 'ranks run'}")
    parts += [f"{counts[state]} {state}" for state in ("finished", "exited") if counts[state]]
    return "; ".join(parts)


def _words(rank: Rank) -> str:
    if rank.state == "dead":
        return how_ended(rank.ended)
    return UNRESPONSIVE.get(rank.state_reason, "unresponsive") if rank.state == "unresponsive" else "cannot be judged"


def _trouble(words: str, members: Sequence[Rank], now_seconds: float) -> str:
    numbers = ", ".join(rank.rank for rank in members[:_MAX_NAMED])
    more = f" and {len(members) - _MAX_NAMED} more" if len(members) > _MAX_NAMED else ""
    ages = [ago(now_seconds - at) for at in sorted(rank.ended.at_seconds for rank in members if rank.ended is not None)]
    last = f", {'' if ages[0] == ages[-1] else 'the last '}{ages[-1]}" if ages else ""
    return f"{'rank' if len(members) == 1 else 'ranks'} {numbers}{more} {words}{last}"


def how_ended(ended: RankEnd | None) -> str:
    """Return a rank's end as a phrase after its name: ``killed (SIGKILL)``."""
    if ended is None:
        return in_words("unknown", "", "")
    words = in_words(ended.reason, ended.signal, "" if ended.code is None else str(ended.code))
    return f"{words}, raised {ended.exception}" if ended.exception else words


def ago(seconds: float) -> str:
    """Return a past time, such as ``1 min 38 s ago``."""
    return f"{age(seconds)} ago"


def age(seconds: float) -> str:
    """Return a time span in its two largest units, such as ``18 s`` or ``2 d 3 h``."""
    whole = max(0, int(seconds))
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if parts or whole >= length:
            parts.append(f"{whole // length} {unit}")
            whole %= length
    return " ".join(parts[:2]) or "0 s"


def _order(rank: Rank) -> tuple[object, ...]:
    return TROUBLE_FIRST.index(rank.state), rank.job_id, rank_order(rank.rank)


def _job(job_id: str, members: Sequence[Rank], view: RankView, now_seconds: float) -> JobView:
    claim = view.process.claim
    return JobView(
        job_id=job_id,
        sentence=sentence(members, now_seconds),
        states=dict(Counter(rank.state for rank in members)),
        user=next((rank.user for rank in members if rank.user), ""),
        name=claim.job_name,
        partition=claim.partition,
        world_size=view.process.world_size,
    )


def _rank(view: RankView, failed: Collection[Entry], speeds: RankSpeeds) -> Rank:
    process, facts = view.process, view.process.facts
    subjects = health.subjects_of(view)
    has_exited = process.exited_at is not None
    reason, signal, code = ending(process.exit)
    return Rank(
        job_id=view.label.job_id,
        rank=view.label.rank,
        state=process.shown_state,
        state_reason=process.verdict.reason if process.verdict else "",
        pid=facts.key.pid,
        user=facts.user,
        pod=facts.pod,
        container=facts.container,
        local_rank=process.local_rank if len(process.slots or ()) == 1 else str(view.slot),
        gpus=view.gpus(),
        started_at_seconds=facts.start_seconds,
        last_progress_seconds=process.progress_seconds,
        bus_bandwidth_bytes_per_second=None if has_exited else speeds.bandwidth(view.label),
        late_share=None if has_exited else speeds.late_share(view.label),
        ended=RankEnd(process.exited_seconds, reason, signal, int(code) if code else None, process.exception)
        if has_exited
        else None,
        unhealthy=tuple(sorted({entry.check for entry in failed if entry.subject in subjects})),
    )


OTHER_USERS = "run rankwatch-setup --with-other-users as root, then restart the jobs"
"""The remedy for a missing right to read other users' processes."""
WITHOUT_NCCL = (
    "{count} processes have RANK set and no NCCL loaded: gloo, MPI, or before init_process_group (see docs/jobs.md)"
)


def notes(table: RankSnapshot) -> list[str]:
    """Return sentences for an operator: how many rank processes have no series, why, and what helps."""
    sentences = [WITHOUT_NCCL.format(count=table.without_nccl)] if table.without_nccl else []
    if table.unidentified:
        hidden = f"no right to read the environment of {table.unreadable}; {OTHER_USERS}"
        why = hidden if table.unreadable else "nothing names their ranks yet"
        sentences.append(f"{table.unidentified} rank processes, not identified: {why}")
    if table.duplicates:
        sentences.append(f"{table.duplicates} rank processes not shown: another process has the same job id and rank")
    return sentences
