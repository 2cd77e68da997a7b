"""Data of an incident: events, the statements of witnesses, and facts about the job. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from agent.evidence.summary import Witness

Kind = Literal["late", "hardware", "log", "silent", "unresponsive", "node_lost", "died", "alert", "back", "other"]
What = Literal["hung", "died", "node_lost", "went_on"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Kinds in the order in which events at the same time are shown."""
SYMPTOMS = frozenset({"late", "hardware", "log", "silent", "unresponsive", "node_lost", "died"})
"""Kinds of events that start an incident; events of other kinds only join an incident."""


class Span(NamedTuple):
    """A condition that held from ``start`` to ``end`` (epoch seconds of Prometheus' clock)."""

    kind: Kind
    start: float
    end: float


class Happened(NamedTuple):
    """An event in the time line. ``at``: epoch seconds. ``rank``, ``node``: empty if the event has no rank or node."""

    at: float
    kind: Kind
    rank: str
    node: str
    what: str
    source: str


class Said(NamedTuple):
    """A witness' statement about a rank. ``says``: without the rank. ``source``: metrics, or the node of a bundle."""

    rank: str
    node: str
    witness: Witness
    says: str
    blames: bool
    source: str = "metrics"


class Incident(NamedTuple):
    """An incident of the job. ``back``: when the job worked again; None if it did not work again in the range.

    ``since``: the last progress before the incident (``has_progress``), or the first symptom if no progress is known.
    ``what``: the job hung before any death, a rank died while the job worked, a node was lost, or the job went on.
    """

    start: float
    end: float
    since: float
    back: float | None
    what: What
    has_progress: bool = False

    @property
    def stopped(self) -> bool:
        """Return True if the job stopped working."""
        return self.what != "went_on"


@dataclass(frozen=True, slots=True)
class Course:
    """The history of the job over the whole range.

    ``progress``, ``running_since``, ``late``, ``gpus``: (time of the point, its value). ``late``: share of time that
    the job waited for its latest rank. ``gpus``: number of GPUs that the job held in the step.
    """

    start: float
    end: float
    step: float
    spans: tuple[Span, ...] = ()
    happened: tuple[Happened, ...] = ()
    progress: tuple[tuple[float, float], ...] = ()
    running_since: tuple[tuple[float, float], ...] = ()
    late: tuple[tuple[float, float], ...] = ()
    gpus: tuple[tuple[float, float], ...] = ()
    checkpoints: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class KnownJob:
    """Facts about the job. ``clusters``: all clusters with a job of this id. ``nodes``: nodes in the chosen cluster."""

    job_id: str
    clusters: tuple[str, ...] = ()
    has_rules: bool = False
    info: Mapping[str, str] = field(default_factory=dict)
    ranks: int | None = None
    nodes: tuple[str, ...] = ()
    nodes_elsewhere: frozenset[str] = frozenset()
    """Nodes that ran a job with this id in other clusters only."""
    started: float | None = None
    offsets: Mapping[str, float] = field(default_factory=dict)
    """How many seconds a node's clock is ahead of Prometheus', for nodes with a wrong clock."""


@dataclass(frozen=True, slots=True)
class Details:
    """Details of an incident, from metrics and bundles."""

    happened: tuple[Happened, ...] = ()
    said: tuple[Said, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)
    """Where each rank ran, as text for people."""
    alerts: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Unused sources, each with the reason, as sentences."""
