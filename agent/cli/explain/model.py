"""What an incident is made of: what happened when, what each witness says, and what is known of the job. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from agent.evidence.summary import Witness

Kind = Literal["late", "hardware", "log", "silent", "unresponsive", "node_lost", "died", "alert", "back", "other"]
What = Literal["hung", "died", "node_lost", "went_on"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""In the order of what comes first where two are at the same time."""
SYMPTOMS = frozenset({"late", "hardware", "log", "silent", "unresponsive", "node_lost", "died"})
"""Kinds that make an incident; the others only belong to one."""


class Span(NamedTuple):
    """Something that held from ``start`` to ``end`` (s since the epoch, as Prometheus' clock has it)."""

    kind: Kind
    start: float
    end: float


class Happened(NamedTuple):
    """One line of the time line. ``at``: s since the epoch; ``rank``, ``node``: empty where it is about no one."""

    at: float
    kind: Kind
    rank: str
    node: str
    what: str
    source: str


class Said(NamedTuple):
    """What a witness says of a rank; ``says`` is a sentence without the rank. ``source``: metrics, or
    the node of a bundle.
    """

    rank: str
    node: str
    witness: Witness
    says: str
    blames: bool
    source: str = "metrics"


class Incident(NamedTuple):
    """One incident of the job. ``back``: when work was done again, None where it was not until the end of the range.

    ``since``: the last progress before it, or its first symptom where none is known (``has_progress``). ``what``:
    the job hung before any death, a rank died while it worked, a node was lost, or it went on in spite of it.
    """

    start: float
    end: float
    since: float
    back: float | None
    what: What
    has_progress: bool = False

    @property
    def stopped(self) -> bool:
        """Return whether the job did no work."""
        return self.what != "went_on"


class HeldGpus(NamedTuple):
    """GPUs that the job held from ``start`` for ``seconds``."""

    start: float
    seconds: float
    number: float


@dataclass(frozen=True, slots=True)
class Course:
    """The job over the whole range, of few series.

    ``death_at``: of each death that the rules call the first of its job. ``progress``, ``running_since``: (when it was
    seen, its value). ``late``: share of the time that the job waited for its latest rank, at each step.
    """

    start: float
    end: float
    step: float
    spans: tuple[Span, ...] = ()
    happened: tuple[Happened, ...] = ()
    deaths: tuple[float, ...] = ()
    progress: tuple[tuple[float, float], ...] = ()
    running_since: tuple[tuple[float, float], ...] = ()
    late: tuple[tuple[float, float], ...] = ()
    gpus: tuple[HeldGpus, ...] = ()
    checkpoints: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class KnownJob:
    """Who the job is. ``clusters``: all that have one of this id; ``nodes``: of the one that the story is about."""

    job_id: str
    clusters: tuple[str, ...] = ()
    has_rules: bool = False
    info: Mapping[str, str] = field(default_factory=dict)
    ranks: int | None = None
    nodes: tuple[str, ...] = ()
    nodes_elsewhere: frozenset[str] = frozenset()
    """Nodes of jobs of this id in the other clusters alone."""
    started: float | None = None
    offsets: Mapping[str, float] = field(default_factory=dict)
    """Seconds by which clocks of nodes are ahead of Prometheus', where they are."""


@dataclass(frozen=True, slots=True)
class Details:
    """What is known of one incident, by metrics and by bundles."""

    happened: tuple[Happened, ...] = ()
    said: tuple[Said, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)
    """By rank: where it ran, as a person reads it."""
    alerts: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """What could not be used, and why, as sentences."""
