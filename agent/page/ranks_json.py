"""The document at `/api/v1/ranks`: the ranks of this node. Documented in docs/web.md.

Version 1 can get new fields; no field is renamed or removed. Times are epoch seconds by the node's clock.
"""

import json

import msgspec

from agent.ranks.rank.process import RankGpu

PATH = "/api/v1/ranks"
API_VERSION = 1
MAX_RANKS = 4096
"""Limit of ranks in a document; ranks in trouble come first and are left out last."""


class RankEnd(msgspec.Struct, frozen=True):
    """A rank's end. ``reason``: exited, signaled, oom_killed or unknown. ``code``: None without a status.

    ``exception``: the exception that ended the rank, if its launcher saved one in a file.
    """

    at_seconds: float
    reason: str
    signal: str = ""
    code: int | None = None
    exception: str = ""


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank, running or ended recently. Unknown values are empty or null.

    ``state``: alive, unresponsive, exited, dead, finished or unknown; ``state_reason``: the rule that set ``state``.
    ``unhealthy``: failed checks of its GPUs, NICs or node. ``bus_bandwidth_bytes_per_second``: over the last seconds
    with data. ``late_share``: share of the last minute that all other ranks waited for this rank alone, if known.
    """

    job_id: str
    rank: str
    state: str
    state_reason: str = ""
    pid: int | None = None
    user: str = ""
    pod: str = ""
    container: str = ""
    local_rank: str = ""
    gpus: tuple[RankGpu, ...] = ()
    started_at_seconds: float | None = None
    last_progress_seconds: float | None = None
    bus_bandwidth_bytes_per_second: float | None = None
    late_share: float | None = None
    ended: RankEnd | None = None
    unhealthy: tuple[str, ...] = ()


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A job, from its ranks on this node.

    ``states``: number of these ranks by state. ``world_size``: ranks of the whole job, null if no environment names it.
    ``sentence``: a summary.
    """

    job_id: str
    sentence: str
    states: dict[str, int]
    user: str = ""
    name: str = ""
    partition: str = ""
    world_size: int | None = None


class ExporterView(msgspec.Struct, frozen=True, kw_only=True):
    """An exporter. ``state``: up, down, absent (its source is absent) or starting.

    ``why``: the reason if the exporter is not up; if it is up, what it cannot read. ``remedy``: what mends it.
    """

    name: str
    state: str
    why: str = ""
    remedy: str = ""
    last_success_seconds: float | None = None
    series: int = 0

    def note(self) -> str:
        """Return ``why`` with the remedy."""
        return f"{self.why}; {self.remedy}" if self.remedy else self.why


class Configuration(msgspec.Struct, frozen=True):
    """The configuration in use. ``file``: empty for all defaults. ``refused``: why a newer text is not in use."""

    file: str = ""
    refused: str = ""


class NodeDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The whole document. ``notes``: sentences about hidden ranks. ``ranks_left_out``: ranks over the limit."""

    rankwatch: str
    api: int = API_VERSION
    hostname: str
    now_seconds: float
    up_seconds: float
    ready: bool
    configuration: Configuration = Configuration()
    jobs: tuple[JobView, ...] = ()
    ranks: tuple[Rank, ...] = ()
    ranks_left_out: int = 0
    exporters: tuple[ExporterView, ...] = ()
    notes: tuple[str, ...] = ()


def write(document: NodeDocument) -> bytes:
    """Return the document as JSON; lone surrogates, possible in file names, become question marks."""
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(document), ensure_ascii=False).encode("utf-8", "replace")


def read(text: bytes) -> NodeDocument:
    """Return the document in ``text``; raises ValueError if it is invalid or of another version."""
    try:
        document = msgspec.json.decode(text, type=NodeDocument)
    except msgspec.DecodeError as error:
        raise ValueError(f"the answer is not rankwatch's, or another version's: {error}") from error
    if document.api != API_VERSION:
        raise ValueError(f"the agent is rankwatch {document.rankwatch}, whose interface has version {document.api}")
    return document
