"""Queries Prometheus for the witnesses of one incident: a bounded number of series of each, the worst first."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from agent.cli.explain.ask import UNRESPONSIVE, Ask, ended, first_root, lost_nodes, struck
from agent.cli.explain.model import Course, Details, Happened, Incident, Kind, KnownJob, Said
from agent.cli.job.facts import quoted
from agent.core.prometheus import Sample
from agent.evidence.summary import Witness

MAX_SERIES = 16
"""Of each kind of word. A witness that blames more ranks names no culprit: all may have ended, or wait for another."""
MAX_ENDS = 8
"""Ends of ranks in the time line; the rest is counted."""
AROUND_SECONDS = 120
"""Series of an incident are searched from this long before it to this long after it."""
TOGETHER_SECONDS = 10.0
"""Nodes lost within this time are lost together: two evaluations of the rules. Later ones follow the first."""
NODE_ALERTS = "RankUnhealthy|HardwareFailed|GpuSlowdown|RdmaLinkFlap|RdmaErrors|StorageHung"
"""Alerts of nodes, without a job's id."""
ADVICE = {
    "restart": "By the job's log a restart will do.",
    "restart_elsewhere": "By the job's log: restart it on other nodes.",
    "fix_program": "By the job's log a restart alone will not help: the program would fail the same way.",
    "fix_system": "By the job's log a restart alone will not help before the system is mended.",
}
_JOB, _BACK = "<job>", "[<back>]"
_SEEN = "and on (cluster, node) last_over_time(rankwatch_job_ranks{<job>}[<back>])"
_FAULTS = (
    'rankwatch_gpu_fault_last_timestamp_seconds{role="root", hurts=~"gpu|link|node", action!="no action needed"} '
    ">= <start>"
)
_EACH_ALERT = "bottomk(64, min by (alertname, severity) (<which>))"
_PLACE = re.compile("<(job|back|most|start|any)>")
_Wording = Callable[[Sample], str]


class _Window:
    """One incident: asks about it, and gathers the time line and what witnesses say."""

    def __init__(self, ask: Ask, labels: str, incident: Incident, course: Course) -> None:
        self._ask = ask
        self._labels = labels
        self.start = incident.start - AROUND_SECONDS
        self.end = min(incident.end + AROUND_SECONDS, course.end)
        self._back = math.ceil(self.end - self.start)
        self.happened = [each for each in course.happened if self.start <= each.at <= self.end]
        self.said: list[Said] = []

    def ask(self, expression: str, any_of: Iterable[str] = ()) -> list[Sample]:
        """Return the result at the end. ``<job>`` stands for the job's labels, ``<back>`` for the incident's length,
        ``<most>`` for one more than MAX_SERIES, ``<start>`` for its start, ``<any>`` for a pattern of ``any_of``.
        """
        words = {
            "job": self._labels,
            "back": f"{self._back}s",
            "most": str(MAX_SERIES + 1),
            "start": f"{self.start:.0f}",
            "any": _any(any_of),
        }
        return self._ask.at(_PLACE.sub(lambda found: words[found[1]], expression), self.end)

    def tell(self, found: Iterable[Sample], kind: Kind, source: str, what: _Wording) -> None:
        """Add samples, at their values, to the time line."""
        self.happened += [Happened(each.value, kind, _rank(each), _node(each), what(each), source) for each in found]

    def say(self, found: Sequence[Sample], witness: Witness, says: _Wording) -> None:
        """Add words of a witness; where it blames more than MAX_SERIES ranks, without blame: these are any of them."""
        blames = len(found) <= MAX_SERIES
        more = "" if blames else f" (of more than {MAX_SERIES} ranks)"
        self.said += [Said(_rank(each), _node(each), witness, says(each) + more, blames) for each in found]


def details(ask: Ask, job: KnownJob, labels: str, incident: Incident, course: Course) -> Details:
    """All that metrics know of it."""
    window = _Window(ask, labels, incident, course)
    # Deaths that the rules call the first: their word is the verdict's. In a crash loop the first of them counts.
    deaths = sorted(each for each in window.happened if each.kind == "died")
    window.said += [Said(each.rank, each.node, "verdict", each.what, blames=True) for each in deaths[:1]]
    for tell in (_ends, _unresponsive, _hardware, _faults, _lost_nodes, _late, _log_words, _ras, _flight_recorder):
        tell(window)
    alerts = _alerts(window)
    marks = window.ask("bottomk(<most>, last_over_time(rankwatch_job_mark_timestamp_seconds{<job>}[<back>]))")
    window.tell(marks, "other", "marks", lambda each: f"mark of the job's owner: {each.labels.get('text', '')}")
    ranks = sorted({each.rank for each in window.said if each.blames})[: 2 * MAX_SERIES]
    return Details(
        tuple(each for each in window.happened if window.start <= each.at <= window.end),
        tuple(window.said),
        _places(window, ranks),
        alerts,
        tuple(_advice(window)),
    )


def _ends(window: _Window) -> None:
    """Ranks that ended after the first: part of the story, and no blame."""
    exits = 'rank:rankwatch_exit:time{<job>, class!="ok"}'
    first = window.ask(f"bottomk({MAX_ENDS}, last_over_time({exits}[<back>]) >= <start>)")
    window.tell(first, "died", "verdict", lambda each: ended(each.labels))
    ends = "last_over_time(rankwatch_rank_exit_timestamp_seconds{<job>}[<back>]) >= <start>"
    for count, last in zip(window.ask(f"count({ends})"), window.ask(f"max({ends})"), strict=False):
        if count.value > len(first):
            what = f"by now {count.value:.0f} ranks have ended"
            window.happened.append(Happened(min(last.value, window.end), "other", "", "", what, "verdict"))


def _unresponsive(window: _Window) -> None:
    state = UNRESPONSIVE.format(_JOB)
    found = window.ask(f"bottomk(<most>, min by (rank, node) (min_over_time(timestamp({state})[<back>:15s])))")
    window.tell(found, "unresponsive", "verdict", lambda _: "becomes unresponsive")
    what = "unresponsive (stopped, blocked in the kernel, or not answering NCCL's RAS)"
    window.say(found, "verdict", lambda _: what)


def _hardware(window: _Window) -> None:
    checks = f"min_over_time(timestamp({struck(_JOB)})[<back>:15s])"
    found = window.ask(f"bottomk(<most>, min by (rank, node, reason) ({checks}))")
    window.tell(found, "hardware", "hardware", lambda each: f"check {each.labels.get('reason', '')} fails")
    window.say(found, "hardware", lambda each: f"the check {each.labels.get('reason', '')} failed under it")


def _faults(window: _Window) -> None:
    """Driver reports about GPUs of the job's nodes; the rank under one is blamed by its checks, not by this."""

    def what(each: Sample) -> str:
        of = each.labels
        code = f"Xid {of['code']} " if of.get("code", "").isdecimal() else ""
        return f"driver: {code}{of.get('meaning', '')} on GPU {of.get('gpu') or of.get('pci', '')}"

    found = window.ask(f"bottomk(<most>, min_over_time(({_FAULTS})[<back>:15s]) {_SEEN})")
    window.tell(found, "hardware", "kernel_log", what)


def _lost_nodes(window: _Window) -> None:
    found = window.ask(f"bottomk(<most>, min_over_time(({lost_nodes(_JOB)})[<back>:15s]))")
    first = min((each.value for each in found), default=0.0)
    nodes = sorted({_node(each) for each in found if each.value <= first + TOGETHER_SECONDS})
    window.tell(found, "node_lost", "verdict", lambda _: "node lost")
    if not nodes:
        return
    started = "last_over_time(rankwatch_rank_start_timestamp_seconds{<job>, node=~<any>}[<back>])"
    ranks = window.ask(f"bottomk(<most>, min by (rank, node) ({started}))", nodes)
    window.say(ranks[:MAX_SERIES], "verdict", lambda _: "its node was lost")


def _late(window: _Window) -> None:
    alerts = 'ALERTS{<job>, alertname="StragglerRank"}'
    late = window.ask(
        "topk(<most>, max by (rank) (max_over_time(comm_rank:rankwatch_late:ratio{<job>}[<back>]) "
        f"and on (cluster, job_id, rank) last_over_time({alerts}[<back>])))"
    )
    since: dict[str, Sample] = {}
    causes: dict[str, set[str]] = {}
    for each in window.ask(f"bottomk(<most>, min by (rank, why) (min_over_time(timestamp({alerts})[<back>:15s])))"):
        since[_rank(each)] = min(each, since.get(_rank(each), each), key=lambda one: one.value)
        causes.setdefault(_rank(each), set()).add(each.labels.get("why", "").replace("_", " "))
    why = {rank: f" ({', '.join(sorted(texts))})" for rank, texts in causes.items()}
    window.happened += [
        Happened(each.value, "late", _rank(each), "", f"late{why.get(_rank(each), '')}", "records")
        for each in since.values()
    ]
    window.say(
        late,
        "records",
        lambda each: f"kept the others waiting {each.value:.0%} of the time{why.get(_rank(each), '')}",
    )


def _log_words(window: _Window) -> None:
    root = window.ask(first_root(_JOB, _BACK))
    before = len(window.said)
    window.say(root, "job_log", lambda each: f"its log has {each.labels.get('category', '').replace('_', ' ')}")
    completed, enqueued = (
        f'last_over_time(rankwatch_job_log_last_work{{<job>, what="{what}"}}[<back>])'
        for what in ("completed", "enqueued")
    )
    behind = window.ask(
        f"topk(<most>, max by (rank) (max by (cluster, job_id, group) ({completed}) + 1 "
        "- on (cluster, job_id, group) group_right () "
        f"max by (cluster, job_id, group, rank) ({enqueued}) > 0))"
    )
    window.say(behind, "job_log", lambda _: "NCCL watchdog logs: the others were waiting for it")
    window.said[before:] = [each for each in window.said[before:] if each.rank.isdecimal()]  # else the launcher, say


def _ras(window: _Window) -> None:
    suspects = "last_over_time(rank:rankwatch_suspect:bool{<job>}[<back>])"
    found = window.ask(f"topk(<most>, max by (rank, host, gpu, reason) ({suspects}))")
    lags = window.ask(
        "topk(<most>, max by (rank) (last_over_time(rankwatch_communicator_rank_lag{<job>}[<back>]) "
        f"and on (cluster, job_id, rank) {suspects}))"
    )
    lag = {_rank(each): each.value for each in lags}

    def says(each: Sample) -> str:
        reason = each.labels.get("reason", "")
        return {
            "behind": f"{lag.get(_rank(each), 1.0):.0f} launches behind the others, which wait for it",
            "missing": "does not answer RAS, and the others wait for it",
            "left": "left a communicator that the others wait in",
        }.get(reason, reason)

    window.say(found, "ras", says)


def _flight_recorder(window: _Window) -> None:
    found = window.ask("topk(<most>, last_over_time(rank:rankwatch_flight_recorder_behind:sequence{<job>}[<back>]))")

    def says(each: Sample) -> str:
        of = each.labels
        what = {"differs": "waited in another call than the others,", "not_begun": "had not begun"}
        operation = of.get("operation", "").removeprefix("_").removesuffix("_base")
        group = of.get("description") or of.get("process_group", "")
        return f"{what.get(of.get('what', ''), 'had not finished')} {operation} no. {each.value:.0f} of group {group}"

    window.say(found, "flight_recorder", says)


def _alerts(window: _Window) -> tuple[str, ...]:
    firing = 'min_over_time(timestamp(ALERTS{<of>, alertstate="firing"})[<back>:15s])'
    of_node = f'alertname=~"{NODE_ALERTS}"'
    found = window.ask(_EACH_ALERT.replace("<which>", firing.replace("<of>", "<job>")))
    found += window.ask(_EACH_ALERT.replace("<which>", firing.replace("<of>", of_node) + f" {_SEEN}"))
    window.tell(
        found,
        "alert",
        "alerts",
        lambda each: f"{each.labels.get('severity') or 'alert'} {each.labels.get('alertname', '')}",
    )
    return tuple(sorted({each.labels.get("alertname", "") for each in found}))


def _advice(window: _Window) -> list[str]:
    found = []
    for each in window.ask(first_root(_JOB, _BACK)):
        text = ADVICE.get(each.labels.get("advice", ""))
        if text is not None:
            found.append(text)
    faults = window.ask(
        f"bottomk(4, min_over_time(({_FAULTS})[<back>:15s]) and on (cluster, node) "
        "last_over_time(rankwatch_rank_unhealthy{<job>}[<back>]))"
    )
    found += [f"GPU {each.labels.get('gpu', '')} of {_node(each)}: {each.labels.get('action', '')}." for each in faults]
    return sorted(set(found))


def _places(window: _Window, ranks: Iterable[str]) -> Mapping[str, str]:
    wanted = [rank for rank in ranks if rank]
    if not wanted:
        return {}
    places: dict[str, str] = {}
    for each in window.ask(f"last_over_time(rankwatch_rank_info{{<job>, rank=~{_any(wanted)}}}[<back>])"):
        of = each.labels
        words = (_node(each), *(f"{name} {of[key]}" for name, key in (("GPU", "gpu"), ("pid", "pid")) if of.get(key)))
        places[_rank(each)] = max(places.get(_rank(each), ""), ", ".join(words))
    return places


def _any(texts: Iterable[str]) -> str:
    """A string of PromQL that matches any of ``texts``, as they are."""
    return quoted("|".join(_literal(text) for text in texts))


def _literal(text: str) -> str:
    return "".join(each if each.isalnum() or each in "_-" else f"\\{each}" if each.isascii() else each for each in text)


def _rank(sample: Sample) -> str:
    return sample.labels.get("rank", "")


def _node(sample: Sample) -> str:
    labels = sample.labels
    return labels.get("node") or labels.get("host") or labels.get("instance", "")
