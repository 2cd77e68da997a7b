"""The document at `/api/v1/ranks`: what the agent knows of the ranks of its node. Documented in docs/api.md.

Within version 1 fields are added, never renamed or removed. Times are seconds since the epoch by the node's clock.
"""

from typing import Any

import msgspec

from agent.ranks.rank.process import RankGpu

PATH = "/api/v1/ranks"
API_VERSION = 1
MAX_RANKS = 4096
"""Of one document; those in trouble come first and are never left out before others."""


class RankEnd(msgspec.Struct, frozen=True):
    """How a rank's process ended. ``reason``: exited, signaled, oom_killed or unknown; ``code`` None: no status.

    ``exception``: the one that ended it, where its launcher has a file of it.
    """

    at_seconds: float
    reason: str
    signal: str = ""
    code: int | None = None
    exception: str = ""


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank; it stays for a while after its process has ended. What is not known is empty or null.

    ``state``: alive, unresponsive, exited, dead, finished or unknown, by ``state_reason``. ``unhealthy``: the checks
    that have failed on its GPUs, NICs or node. ``bus_bandwidth_bytes_per_second``: over the last seconds with data.
    ``late_share``: of the last minute that all others waited for it alone, where a communicator on this node tells.
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
    """One job, as far as its ranks on this node tell.

    ``states``: how many of its ranks here are in which state. ``world_size``: of the whole job, null where its
    environment does not say. ``sentence``: what a person should know first.
    """

    job_id: str
    sentence: str
    states: dict[str, int]
    user: str = ""
    name: str = ""
    partition: str = ""
    world_size: int | None = None


class ExporterView(msgspec.Struct, frozen=True, kw_only=True):
    """One exporter. ``state``: up, down, absent (its source is not there) or starting.

    ``why``: why it is not up; of one that is, what it may not see, and what helps.
    """

    name: str
    state: str
    why: str = ""
    last_success_seconds: float | None = None
    series: int = 0


class Configuration(msgspec.Struct, frozen=True):
    """The configuration in use. ``file``: empty where all is default; ``refused``: why a newer text is not used."""

    file: str = ""
    refused: str = ""


class NodeDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The whole. ``notes``: sentences on ranks that cannot be shown; ``ranks_left_out``: of those above the bound."""

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
    """Return the document as JSON; lone surrogates, which a file's name may hold, become question marks."""
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        return msgspec.json.encode(_without_surrogates(msgspec.to_builtins(document)))


def read(text: bytes) -> NodeDocument:
    """Return the document in ``text``; ValueError where it is none, or one of another version."""
    try:
        document = msgspec.json.decode(text, type=NodeDocument)
    except msgspec.DecodeError as error:
        raise ValueError(f"the answer is not rankwatch's, or another version's: {error}") from error
    if document.api != API_VERSION:
        raise ValueError(f"the agent is rankwatch {document.rankwatch}, whose interface has version {document.api}")
    return document


def _without_surrogates(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case dict():
            return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
        case list() | tuple():
            return [_without_surrogates(item) for item in value]
        case _:
            return value
