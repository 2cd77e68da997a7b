"""Query Prometheus for the witnesses of one incident: for each witness a limited number of series, the worst first."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from agent.cli.explain.ask import UNRESPONSIVE, Ask, ended, first_root, lost_nodes, struck
from agent.cli.explain.model import Course, Details, Happened, Incident, Kind, Said
from agent.cli.job.facts import quoted
from agent.core.prometheus import Sample
from agent.evidence.summary import Witness

MAX_SERIES = 16
"""Limit of series per witness. A witness that blames more ranks names no culprit: perhaps all ranks ended or wait. Lost
nodes are an exception: MAX_SERIES of their ranks are blamed even if there are more."""
MAX_ENDS = 8
"""Limit of exits in the time line, which also shows the number of all exits."""
AROUND_SECONDS = 120
"""Series of an incident are searched from this long before it to this long after it."""
TOGETHER_SECONDS = 10.0
"""Nodes lost within this time (two evaluations of the rules) are lost together; later losses can be consequences."""
NODE_ALERTS = "RankUnhealthy|HardwareFailed|GpuSlowdown|RdmaLinkFlap|RdmaErrors"
"""Alerts about nodes, without a job id."""
ADVICE = {
    "restart": "The job's log suggests a restart.",
    "restart_elsewhere": "The job's log suggests a restart on other nodes.",
    "fix_program": "The job's log suggests that a restart alone will not help: the program would fail the same way.",
    "fix_system": "The job's log suggests that a restart will not help before the system is repaired.",
}
_Wording = str | Callable[[Sample], str]
_MOST = MAX_SERIES + 1  # one series more, to detect that the limit is exceeded


class _Window:
    """The window of an incident, with AROUND_SECONDS on both sides. Collects events and statements from Prometheus.

    ``job``: the job's labels. ``back``: the window's length as a PromQL duration. ``seen``: the last part of a query,
    which selects the nodes with ranks of the job.
    """

    def __init__(self, ask: Ask, labels: str, incident: Incident, course: Course) -> None:
        self._ask = ask
        self.job = labels
        self.start = incident.start - AROUND_SECONDS
        self.end = min(incident.end + AROUND_SECONDS, course.end)
        self.back = f"{math.ceil(self.end - self.start)}s"
        self.seen = f"and on (cluster, node) {self.last('rankwatch_job_ranks')}"
        self.happened = [event for event in course.happened if self.start <= event.at <= self.end]
        self.said: list[Said] = []

    def query(self, expression: str) -> list[Sample]:
        """Return the result of a query at the end of the window."""
        return self._ask.at(expression, self.end)

    def last(self, metric: str, more: str = "") -> str:
        """Return the query for the last value of a metric of the job."""
        return f"last_over_time({metric}{{{self.job}{more}}}[{self.back}])"

    def began(self, condition: str) -> str:
        """Return the query for the time when a condition was first true."""
        return f"min_over_time(timestamp({condition})[{self.back}:15s])"

    def faults(self) -> str:
        """Return the query for the times of the driver's reports that a GPU, link or node failed."""
        which = 'role="root", hurts=~"gpu|link|node", action!="no action needed"'
        times = f"rankwatch_gpu_fault_last_timestamp_seconds{{{which}}} >= {self.start:.0f}"
        return f"min_over_time(({times})[{self.back}:15s])"

    def add_events(self, samples: Iterable[Sample], kind: Kind, source: str, what: _Wording) -> None:
        """Add samples to the time line; a sample's value is the time of the event."""
        self.happened += [
            Happened(sample.value, kind, _rank(sample), _node(sample), _worded(what, sample), source)
            for sample in samples
        ]

    def add_words(self, samples: Sequence[Sample], witness: Witness, says: _Wording) -> None:
        """Add a witness' statements; statements about more than MAX_SERIES ranks blame no rank."""
        blames = len(samples) <= MAX_SERIES
        more = "" if blames else f" (of more than {MAX_SERIES} ranks)"
        self.said += [
            Said(_rank(sample), _node(sample), witness, _worded(says, sample) + more, blames) for sample in samples
        ]


def _worded(words: _Wording, sample: Sample) -> str:
    """Return a sentence about a sample. ``words``: a function of the sample, or a template for its labels."""
    if not isinstance(words, str):
        return words(sample)
    return words.format_map(defaultdict(str, sample.labels))


def details(ask: Ask, labels: str, incident: Incident, course: Course) -> Details:
    """Return the details of an incident from metrics."""
    window = _Window(ask, labels, incident, course)
    # The rules chose these deaths, so their witness is the verdict. In a crash loop only the earliest blames a rank.
    deaths = sorted(death for death in window.happened if death.kind == "died")
    window.said += [Said(death.rank, death.node, "verdict", death.what, blames=True) for death in deaths[:1]]
    for witness in (_ends, _unresponsive, _hardware, _faults, _lost_nodes, _late, _ras, _flight_recorder, _marks):
        witness(window)
    advice = _log_words(window)
    alerts = _alerts(window)
    ranks = sorted({word.rank for word in window.said if word.blames})[: 2 * MAX_SERIES]
    return Details(
        tuple(event for event in window.happened if window.start <= event.at <= window.end),
        tuple(window.said),
        _places(window, [rank for rank in ranks if rank]),
        alerts,
        tuple(sorted({*advice, *_repairs(window)})),
    )


def _ends(window: _Window) -> None:
    """Add the first MAX_ENDS exits of ranks, without blame, and the number of all exits."""
    exits = window.last("rank:rankwatch_exit:time", ', class!="ok"')
    first = window.query(f"bottomk({MAX_ENDS}, {exits} >= {window.start:.0f})")
    window.add_events(first, "died", "verdict", lambda sample: ended(sample.labels))
    ends = f"{window.last('rankwatch_rank_exit_timestamp_seconds')} >= {window.start:.0f}"
    for count, last in zip(window.query(f"count({ends})"), window.query(f"max({ends})"), strict=False):
        if count.value > len(first):
            what = f"by now {count.value:.0f} ranks have ended"
            window.happened.append(Happened(min(last.value, window.end), "other", "", "", what, "verdict"))


def _unresponsive(window: _Window) -> None:
    began = window.began(UNRESPONSIVE.format(window.job))
    unresponsive = window.query(f"bottomk({_MOST}, min by (rank, node) ({began}))")
    window.add_events(unresponsive, "unresponsive", "verdict", "becomes unresponsive")
    what = "unresponsive (stopped, blocked in the kernel, or not answering NCCL's RAS)"
    window.add_words(unresponsive, "verdict", what)


def _hardware(window: _Window) -> None:
    failures = window.query(f"bottomk({_MOST}, min by (rank, node, reason) ({window.began(struck(window.job))}))")
    window.add_events(failures, "hardware", "hardware", "check {reason} fails")
    window.add_words(failures, "hardware", "the check {reason} failed on its hardware")


def _faults(window: _Window) -> None:
    """Add driver reports about GPUs of the job's nodes, without blame: the hardware checks already blame the rank."""

    def what(sample: Sample) -> str:
        of = sample.labels
        code = f"Xid {of['code']} " if of.get("code", "").isdecimal() else ""
        return f"driver: {code}{of.get('meaning', '')} on GPU {of.get('gpu') or of.get('pci', '')}"

    faults = window.query(f"bottomk({_MOST}, {window.faults()} {window.seen})")
    window.add_events(faults, "hardware", "kernel_log", what)


def _lost_nodes(window: _Window) -> None:
    lost = window.query(f"bottomk({_MOST}, min_over_time(({lost_nodes(window.job)})[{window.back}:15s]))")
    first = min((sample.value for sample in lost), default=0.0)
    nodes = sorted({_node(sample) for sample in lost if sample.value <= first + TOGETHER_SECONDS})
    window.add_events(lost, "node_lost", "verdict", "node lost")
    if nodes:
        started = window.last("rankwatch_rank_start_timestamp_seconds", f", node=~{_any(nodes)}")
        ranks = window.query(f"bottomk({_MOST}, min by (rank, node) ({started}))")
        window.add_words(ranks[:MAX_SERIES], "verdict", "its node was lost")


def _late(window: _Window) -> None:
    alerts = f'ALERTS{{{window.job}, alertname="StragglerRank", alertstate="firing"}}'
    late = window.query(
        f"topk({_MOST}, max by (rank) (max_over_time(comm_rank:rankwatch_late:ratio{{{window.job}}}[{window.back}]) "
        f"and on (cluster, job_id, rank) last_over_time({alerts}[{window.back}])))"
    )
    since: dict[str, float] = {}
    causes: dict[str, set[str]] = {}
    for sample in window.query(f"bottomk({_MOST}, min by (rank, why) ({window.began(alerts)}))"):
        since[_rank(sample)] = min(sample.value, since.get(_rank(sample), sample.value))
        causes.setdefault(_rank(sample), set()).add(sample.labels.get("why", "").replace("_", " "))
    why = {rank: f" ({', '.join(sorted(texts))})" for rank, texts in causes.items()}
    window.happened += [Happened(at, "late", rank, "", f"late{why[rank]}", "records") for rank, at in since.items()]
    window.add_words(
        late,
        "records",
        lambda sample: f"kept the others waiting {sample.value:.0%} of the time{why.get(_rank(sample), '')}",
    )


def _log_words(window: _Window) -> list[str]:
    """Add the statements of the job's log; return its advice."""
    root = window.query(first_root(window.job, f"[{window.back}]"))
    before = len(window.said)
    window.add_words(
        root, "job_log", lambda sample: f"its log has {sample.labels.get('category', '').replace('_', ' ')}"
    )
    completed, enqueued = (
        window.last("rankwatch_job_log_last_work", f', what="{what}"') for what in ("completed", "enqueued")
    )
    behind = window.query(
        f"topk({_MOST}, max by (rank) (max by (cluster, job_id, group) ({completed}) + 1 "
        "- on (cluster, job_id, group) group_right () "
        f"max by (cluster, job_id, group, rank) ({enqueued}) > 0))"
    )
    window.add_words(behind, "job_log", "NCCL watchdog logs: the other ranks were waiting for it")
    window.said[before:] = [word for word in window.said[before:] if word.rank.isdecimal()]  # not the launcher
    return [ADVICE[word] for sample in root if (word := sample.labels.get("advice", "")) in ADVICE]


def _ras(window: _Window) -> None:
    suspects = window.last("rank:rankwatch_suspect:bool")
    blamed = window.query(f"topk({_MOST}, max by (rank, host, gpu, reason) ({suspects}))")
    lags = window.query(
        f"topk({_MOST}, max by (rank) ({window.last('rankwatch_communicator_rank_lag')} "
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

    window.add_words(blamed, "ras", says)


def _flight_recorder(window: _Window) -> None:
    behind = window.query(f"topk({_MOST}, {window.last('rank:rankwatch_flight_recorder_behind:sequence')})")

    def says(sample: Sample) -> str:
        of = sample.labels
        what = {"differs": "waited in another call than the others,", "not_begun": "had not begun"}
        operation = of.get("operation", "").removeprefix("_").removesuffix("_base")
        group = of.get("description") or of.get("process_group", "")
        return f"{what.get(of.get('what', ''), 'had not finished')} {operation} no. {sample.value:.0f} of group {group}"

    window.add_words(behind, "flight_recorder", says)


def _marks(window: _Window) -> None:
    marks = window.query(f"bottomk({_MOST}, {window.last('rankwatch_job_mark_timestamp_seconds')})")
    window.add_events(marks, "other", "marks", "mark of the job's owner: {text}")


def _alerts(window: _Window) -> tuple[str, ...]:
    """Add the alerts of the job and of its nodes; return their names."""
    alerts = []
    for which, seen in ((window.job, ""), (f'alertname=~"{NODE_ALERTS}"', f" {window.seen}")):
        firing = window.began(f'ALERTS{{{which}, alertstate="firing"}}')
        alerts += window.query(f"bottomk(64, min by (alertname, severity) ({firing}{seen}))")
    window.add_events(
        alerts,
        "alert",
        "alerts",
        lambda sample: f"{sample.labels.get('severity') or 'alert'} {sample.labels.get('alertname', '')}",
    )
    return tuple(sorted({sample.labels.get("alertname", "") for sample in alerts}))


def _repairs(window: _Window) -> list[str]:
    unhealthy = window.last("rankwatch_rank_unhealthy")
    faults = window.query(f"bottomk(4, {window.faults()} and on (cluster, node) {unhealthy})")
    return [f"GPU {of.labels.get('gpu', '')} of {_node(of)}: {of.labels.get('action', '')}." for of in faults]


def _places(window: _Window, ranks: Sequence[str]) -> Mapping[str, str]:
    places: dict[str, str] = {}
    for sample in window.query(window.last("rankwatch_rank_info", f", rank=~{_any(ranks)}")) if ranks else ():
        of = sample.labels
        words = (_node(sample), *(f"{name} {of[key]}" for name, key in (("GPU", "gpu"), ("pid", "pid")) if of.get(key)))
        places[_rank(sample)] = max(places.get(_rank(sample), ""), ", ".join(words))
    return places


def _any(texts: Iterable[str]) -> str:
    """Return a PromQL string with a pattern that matches each of ``texts`` literally."""
    return quoted("|".join(re.sub(r"(?=[\x00-\x7f])[^\w-]", r"\\\g<0>", text) for text in texts))


def _rank(sample: Sample) -> str:
    return sample.labels.get("rank", "")


def _node(sample: Sample) -> str:
    labels = sample.labels
    return labels.get("node") or labels.get("host") or labels.get("instance", "")
