"""Query Prometheus for the witnesses of one incident: a bounded number of series of each, the worst first."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from agent.cli.explain.ask import UNRESPONSIVE, Ask, ended, first_root, lost_nodes, struck
from agent.cli.explain.model import Course, Details, Happened, Incident, Kind, KnownJob, Said
from agent.cli.job.facts import quoted
from agent.core.prometheus import Sample
from agent.evidence.summary import Witness

MAX_SERIES = 16
"""Limit of series per witness. A witness that blames more ranks names no culprit: all may have ended or may wait."""
MAX_ENDS = 8
"""Limit of ranks' ends in the time line; further ones are counted."""
AROUND_SECONDS = 120
"""Series of an incident are searched from this long before it to this long after it."""
TOGETHER_SECONDS = 10.0
"""Nodes lost within this time (two evaluations of the rules) are lost together; later losses may be consequences."""
NODE_ALERTS = "RankUnhealthy|HardwareFailed|GpuSlowdown|RdmaLinkFlap|RdmaErrors"
"""Alerts about nodes, without a job id."""
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
    """One incident: queries Prometheus about it and collects its time line and the witnesses' words."""

    def __init__(self, ask: Ask, labels: str, incident: Incident, course: Course) -> None:
        self._ask = ask
        self._labels = labels
        self.start = incident.start - AROUND_SECONDS
        self.end = min(incident.end + AROUND_SECONDS, course.end)
        self._back = math.ceil(self.end - self.start)
        self.happened = [event for event in course.happened if self.start <= event.at <= self.end]
        self.said: list[Said] = []

    def ask(self, expression: str, any_of: Iterable[str] = ()) -> list[Sample]:
        """Return the result of a query at the end of the window, after filling in the placeholders.

        The window is the incident and AROUND_SECONDS before and after it. ``<job>``: the job's labels. ``<back>``: the
        window's length. ``<start>``: its start. ``<most>``: MAX_SERIES + 1. ``<any>``: a pattern of ``any_of``.
        """
        values = {
            "job": self._labels,
            "back": f"{self._back}s",
            "most": str(MAX_SERIES + 1),
            "start": f"{self.start:.0f}",
            "any": _any(any_of),
        }
        return self._ask.at(_PLACE.sub(lambda match: values[match[1]], expression), self.end)

    def tell(self, samples: Iterable[Sample], kind: Kind, source: str, what: _Wording) -> None:
        """Add samples to the time line; a sample's value is its time."""
        self.happened += [
            Happened(sample.value, kind, _rank(sample), _node(sample), what(sample), source) for sample in samples
        ]

    def say(self, samples: Sequence[Sample], witness: Witness, says: _Wording) -> None:
        """Add a witness' words; without blame if the witness blames more than MAX_SERIES ranks."""
        blames = len(samples) <= MAX_SERIES
        more = "" if blames else f" (of more than {MAX_SERIES} ranks)"
        self.said += [Said(_rank(sample), _node(sample), witness, says(sample) + more, blames) for sample in samples]


def details(ask: Ask, job: KnownJob, labels: str, incident: Incident, course: Course) -> Details:
    """Return the details of an incident from metrics."""
    window = _Window(ask, labels, incident, course)
    # The rules call these deaths the first: their witness is the verdict. In a crash loop the earliest counts.
    deaths = sorted(death for death in window.happened if death.kind == "died")
    window.said += [Said(death.rank, death.node, "verdict", death.what, blames=True) for death in deaths[:1]]
    for tell in (_ends, _unresponsive, _hardware, _faults, _lost_nodes, _late, _log_words, _ras, _flight_recorder):
        tell(window)
    alerts = _alerts(window)
    marks = window.ask("bottomk(<most>, last_over_time(rankwatch_job_mark_timestamp_seconds{<job>}[<back>]))")
    window.tell(marks, "other", "marks", lambda sample: f"mark of the job's owner: {sample.labels.get('text', '')}")
    ranks = sorted({word.rank for word in window.said if word.blames})[: 2 * MAX_SERIES]
    return Details(
        tuple(event for event in window.happened if window.start <= event.at <= window.end),
        tuple(window.said),
        _places(window, ranks),
        alerts,
        tuple(_advice(window)),
    )


def _ends(window: _Window) -> None:
    """Add the ends of ranks after the first: part of the story, without blame."""
    exits = 'rank:rankwatch_exit:time{<job>, class!="ok"}'
    first = window.ask(f"bottomk({MAX_ENDS}, last_over_time({exits}[<back>]) >= <start>)")
    window.tell(first, "died", "verdict", lambda sample: ended(sample.labels))
    ends = "last_over_time(rankwatch_rank_exit_timestamp_seconds{<job>}[<back>]) >= <start>"
    for count, last in zip(window.ask(f"count({ends})"), window.ask(f"max({ends})"), strict=False):
        if count.value > len(first):
            what = f"by now {count.value:.0f} ranks have ended"
            window.happened.append(Happened(min(last.value, window.end), "other", "", "", what, "verdict"))


def _unresponsive(window: _Window) -> None:
    state = UNRESPONSIVE.format(_JOB)
    unresponsive = window.ask(f"bottomk(<most>, min by (rank, node) (min_over_time(timestamp({state})[<back>:15s])))")
    window.tell(unresponsive, "unresponsive", "verdict", lambda _: "becomes unresponsive")
    what = "unresponsive (stopped, blocked in the kernel, or not answering NCCL's RAS)"
    window.say(unresponsive, "verdict", lambda _: what)


def _hardware(window: _Window) -> None:
    checks = f"min_over_time(timestamp({struck(_JOB)})[<back>:15s])"
    failures = window.ask(f"bottomk(<most>, min by (rank, node, reason) ({checks}))")
    window.tell(failures, "hardware", "hardware", lambda sample: f"check {sample.labels.get('reason', '')} fails")
    window.say(failures, "hardware", lambda sample: f"the check {sample.labels.get('reason', '')} failed under it")


def _faults(window: _Window) -> None:
    """Add driver reports about GPUs of the job's nodes, without blame: checks of the hardware blame the rank."""

    def what(sample: Sample) -> str:
        of = sample.labels
        code = f"Xid {of['code']} " if of.get("code", "").isdecimal() else ""
        return f"driver: {code}{of.get('meaning', '')} on GPU {of.get('gpu') or of.get('pci', '')}"

    faults = window.ask(f"bottomk(<most>, min_over_time(({_FAULTS})[<back>:15s]) {_SEEN})")
    window.tell(faults, "hardware", "kernel_log", what)


def _lost_nodes(window: _Window) -> None:
    lost = window.ask(f"bottomk(<most>, min_over_time(({lost_nodes(_JOB)})[<back>:15s]))")
    first = min((sample.value for sample in lost), default=0.0)
    nodes = sorted({_node(sample) for sample in lost if sample.value <= first + TOGETHER_SECONDS})
    window.tell(lost, "node_lost", "verdict", lambda _: "node lost")
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
    for sample in window.ask(f"bottomk(<most>, min by (rank, why) (min_over_time(timestamp({alerts})[<back>:15s])))"):
        since[_rank(sample)] = min(sample, since.get(_rank(sample), sample), key=lambda late: late.value)
        causes.setdefault(_rank(sample), set()).add(sample.labels.get("why", "").replace("_", " "))
    why = {rank: f" ({', '.join(sorted(texts))})" for rank, texts in causes.items()}
    window.happened += [
        Happened(sample.value, "late", _rank(sample), "", f"late{why.get(_rank(sample), '')}", "records")
        for sample in since.values()
    ]
    window.say(
        late,
        "records",
        lambda sample: f"kept the others waiting {sample.value:.0%} of the time{why.get(_rank(sample), '')}",
    )


def _log_words(window: _Window) -> None:
    root = window.ask(first_root(_JOB, _BACK))
    before = len(window.said)
    window.say(root, "job_log", lambda sample: f"its log has {sample.labels.get('category', '').replace('_', ' ')}")
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
    window.said[before:] = [word for word in window.said[before:] if word.rank.isdecimal()]  # not the launcher


def _ras(window: _Window) -> None:
    suspects = "last_over_time(rank:rankwatch_suspect:bool{<job>}[<back>])"
    blamed = window.ask(f"topk(<most>, max by (rank, host, gpu, reason) ({suspects}))")
    lags = window.ask(
        "topk(<most>, max by (rank) (last_over_time(rankwatch_communicator_rank_lag{<job>}[<back>]) "
        f"and on (cluster, job_id, rank) {suspects}))"
    )
    lag = {_rank(sample): sample.value for sample in lags}

    def says(sample: Sample) -> str:
        reason = sample.labels.get("reason", "")
        return {
            "behind": f"{lag.get(_rank(sample), 1.0):.0f} launches behind the others, which wait for it",
            "missing": "does not answer RAS, and the others wait for it",
            "left": "left a communicator that the others wait in",
        }.get(reason, reason)

    window.say(blamed, "ras", says)


def _flight_recorder(window: _Window) -> None:
    behind = window.ask("topk(<most>, last_over_time(rank:rankwatch_flight_recorder_behind:sequence{<job>}[<back>]))")

    def says(sample: Sample) -> str:
        of = sample.labels
        what = {"differs": "waited in another call than the others,", "not_begun": "had not begun"}
        operation = of.get("operation", "").removeprefix("_").removesuffix("_base")
        group = of.get("description") or of.get("process_group", "")
        return f"{what.get(of.get('what', ''), 'had not finished')} {operation} no. {sample.value:.0f} of group {group}"

    window.say(behind, "flight_recorder", says)


def _alerts(window: _Window) -> tuple[str, ...]:
    firing = 'min_over_time(timestamp(ALERTS{<of>, alertstate="firing"})[<back>:15s])'
    of_node = f'alertname=~"{NODE_ALERTS}"'
    alerts = window.ask(_EACH_ALERT.replace("<which>", firing.replace("<of>", "<job>")))
    alerts += window.ask(_EACH_ALERT.replace("<which>", firing.replace("<of>", of_node) + f" {_SEEN}"))
    window.tell(
        alerts,
        "alert",
        "alerts",
        lambda sample: f"{sample.labels.get('severity') or 'alert'} {sample.labels.get('alertname', '')}",
    )
    return tuple(sorted({sample.labels.get("alertname", "") for sample in alerts}))


def _advice(window: _Window) -> list[str]:
    advice = []
    for sample in window.ask(first_root(_JOB, _BACK)):
        text = ADVICE.get(sample.labels.get("advice", ""))
        if text is not None:
            advice.append(text)
    faults = window.ask(
        f"bottomk(4, min_over_time(({_FAULTS})[<back>:15s]) and on (cluster, node) "
        "last_over_time(rankwatch_rank_unhealthy{<job>}[<back>]))"
    )
    advice += [
        f"GPU {sample.labels.get('gpu', '')} of {_node(sample)}: {sample.labels.get('action', '')}."
        for sample in faults
    ]
    return sorted(set(advice))


def _places(window: _Window, ranks: Iterable[str]) -> Mapping[str, str]:
    wanted = [rank for rank in ranks if rank]
    if not wanted:
        return {}
    places: dict[str, str] = {}
    for sample in window.ask(f"last_over_time(rankwatch_rank_info{{<job>, rank=~{_any(wanted)}}}[<back>])"):
        of = sample.labels
        words = (_node(sample), *(f"{name} {of[key]}" for name, key in (("GPU", "gpu"), ("pid", "pid")) if of.get(key)))
        places[_rank(sample)] = max(places.get(_rank(sample), ""), ", ".join(words))
    return places


def _any(texts: Iterable[str]) -> str:
    """Return a PromQL string with a pattern that matches each of ``texts`` literally."""
    return quoted("|".join(_literal(text) for text in texts))


def _literal(text: str) -> str:
    return "".join(
        character
        if character.isalnum() or character in "_-"
        else f"\\{character}"
        if character.isascii()
        else character
        for character in text
    )


def _rank(sample: Sample) -> str:
    return sample.labels.get("rank", "")


def _node(sample: Sample) -> str:
    labels = sample.labels
    return labels.get("node") or labels.get("host") or labels.get("instance", "")
