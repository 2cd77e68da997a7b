"""Reads JSON reports of NCCL 2.28.7 and later; ``read`` also takes text, and can run in a helper process. Pure."""

import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Annotated

import msgspec

from exporters.ras.report import model
from exporters.ras.report.launches import RankLaunches, Spread, World, compare, note_waits
from exporters.ras.report.model import ANY_ADDRESS, Addresses, Report, ReportError
from exporters.ras.report.text_report import read_text

_LACKS_COMMA = re.compile(rb'("nvml_dev": -?\d{1,10})(\s{1,64}"status": \{)')
"""2.28.7 to 2.28.9 leave out the comma between these two keys of a missing rank."""
_IN_PROGRESS = 7
"""ncclInProgress (nccl.h): the communicator is being created or, if non-blocking, has work under way. No error."""

_Text = Annotated[str, msgspec.Meta(max_length=64)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=model.MAX_COMMUNICATOR_RANKS)]
_Launches = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""The library counts in 64 bits; no job reaches a number beyond this."""
_Device = Annotated[int, msgspec.Meta(ge=-1, le=model.MAX_DEVICE)]
_Pid = Annotated[int, msgspec.Meta(ge=-1, lt=2**31)]
_Result = Annotated[int, msgspec.Meta(ge=0, lt=256)]


class _Rank(msgspec.Struct, gc=False):
    rank: _Count
    host: _Text
    pid: _Pid
    nvml_dev: _Device


class _Status(msgspec.Struct, gc=False):
    init_state: _Result
    async_error: _Result
    finalize_called: bool
    destroy_flag: bool
    abort_flag: bool

    def stage(self) -> str:
        """Return the stage of the communicator's life, as the library derives it for its text (section 4 of ras.cc)."""
        if self.abort_flag:
            return "aborted"
        if self.finalize_called or self.destroy_flag:
            return "finalizing"
        return "running" if self.init_state == 0 else "initializing"

    def trouble(self) -> tuple[model.Trouble, str] | None:
        """Return the gravest problem as (trouble, error); None without one. Unknown codes give their number."""
        if self.async_error not in (0, _IN_PROGRESS):
            return "async_error", model.ERRORS.get(self.async_error, f"code_{self.async_error}")
        if self.init_state not in (0, _IN_PROGRESS):
            return "init_error", model.ERRORS.get(self.init_state, f"code_{self.init_state}")
        return ("aborted", "") if self.abort_flag else None


class _Counts(msgspec.Struct, gc=False):
    Broadcast: _Launches = 0
    Reduce: _Launches = 0
    AllGather: _Launches = 0
    ReduceScatter: _Launches = 0
    AllReduce: _Launches = 0


class _Present(_Rank, gc=False):
    """A rank that answered; a field that the library does not report is None."""

    status: _Status | None = None
    collective_counts: _Counts | None = None


class _MissingStatus(msgspec.Struct, gc=False):
    unresponsive: bool
    considered_dead: bool


class _Missing(_Rank, gc=False):
    status: _MissingStatus


class _Communicator(msgspec.Struct):
    """Without ``missing_ranks`` no rank is missing. ``secondary_hash``: NCCL's hash of rank 0's host and process."""

    hash: Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-f]{1,16}\Z")]
    size: _Count
    ranks: list[_Present]
    missing_ranks: list[_Missing] = []
    secondary_hash: _Text = ""


class _Ras(msgspec.Struct):
    timeouts_count: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = 0


class _Report(msgspec.Struct):
    """``communicators`` are decoded one by one: an invalid one spoils no other, and other threads get turns."""

    nccl_version: Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z.+_-]{1,64}\Z")]
    communicators: list[msgspec.Raw]
    ras: _Ras = msgspec.field(default_factory=_Ras)


def read_json(
    body: bytes, pids: Collection[int] = (), names: Mapping[str, str] = {}, addresses: Addresses = ANY_ADDRESS
) -> Report:
    """Decode a report and the memberships of ``pids`` at ``addresses``; ReportError when ``body`` is not a report.

    ``names``: the secondary checksum of each communicator in earlier reports, by its name.
    """
    try:
        report = _decode(body)
    except msgspec.ValidationError as error:
        raise ReportError(str(error)) from None
    except (ValueError, RecursionError) as error:  # errors of msgspec and of bad UTF-8 are ValueErrors
        raise ReportError(f"not JSON: {error}", cut="truncated" in str(error)) from None  # from msgspec's message
    reading = _Reading(pids, names, addresses)
    communicators = model.accept(reading.communicators(report.communicators), reading.skipped)
    note_waits(communicators, reading.spreads)
    reading.world.name(communicators)
    return Report(
        version=report.nccl_version,
        communicators=communicators,
        processes=frozenset(reading.processes),
        timeouts=report.ras.timeouts_count,
        skipped=dict(reading.skipped),
        members=tuple(reading.members),
    )


def _decode(body: bytes) -> _Report:
    try:
        return msgspec.json.decode(body, type=_Report)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return msgspec.json.decode(_LACKS_COMMA.sub(rb"\1,\2", body), type=_Report)


class _Reading:
    """The state of reading the communicators of one report."""

    def __init__(self, pids: Collection[int], names: Mapping[str, str], addresses: Addresses) -> None:
        self._pids = pids
        self._addresses = addresses
        self.members: list[model.CommunicatorMember] = []
        self.skipped: Counter[model.Skipped] = Counter()
        self.processes: set[tuple[str, int]] = set()
        self.spreads: dict[str, Spread] = {}
        """Spreads of communicators in which some ranks may wait."""
        self.world = World()
        self._hashes: set[str] = set()
        self._hosts: dict[str, str | None] = {}
        self._names = dict(names)

    def communicators(self, raws: list[msgspec.Raw]) -> Iterator[model.Communicator]:
        """Decode the communicators one by one; count unreadable and implausible communicators."""
        for raw in raws:
            try:
                communicator = msgspec.json.decode(raw, type=_Communicator)
            except (ValueError, RecursionError):
                self.skipped["unreadable"] += 1
                continue
            if not self._is_sound(communicator):
                self.skipped["implausible"] += 1
                continue
            yield self._communicator(communicator, self._tell_apart(communicator))

    def _tell_apart(self, communicator: _Communicator) -> str:
        """Return a communicator's secondary checksum; if its hash is not unique, append the checksum to it."""
        if not communicator.size or not communicator.secondary_hash:
            return ""
        secondary = f"{zlib.crc32(communicator.secondary_hash.encode()):08x}"
        longer, first = f"{communicator.hash}-{secondary}", self._names.get(communicator.hash) or secondary
        if longer in self._names or first != secondary:
            communicator.hash = longer
        self._names[communicator.hash] = secondary
        return secondary

    def _is_sound(self, communicator: _Communicator) -> bool:
        ranks = [*communicator.ranks, *communicator.missing_ranks]
        numbers = {rank.rank for rank in ranks}
        if len(numbers) < len(ranks) or max(numbers, default=-1) >= communicator.size > 0:
            return False
        return all(self._host(rank.host) is not None for rank in ranks)

    def _communicator(self, communicator: _Communicator, secondary: str) -> model.Communicator:
        locations = [self._location(rank) for rank in communicator.ranks]
        self.processes.update(location[:2] for location in locations)
        spread = self._compare(communicator, locations)
        missing = tuple(self._missing(rank) for rank in communicator.missing_ranks)
        present = [(location, rank.rank) for location, rank in zip(locations, communicator.ranks, strict=True)]
        if communicator.size and communicator.hash not in self._hashes:  # model.accept refuses others of this hash
            self._hashes.add(communicator.hash)
            for location, number in present:
                near = location.pid in self._pids and location.host in self._addresses
                if near and len(self.members) < model.MAX_MEMBERS:
                    self.members.append(
                        model.CommunicatorMember(location, communicator.hash, communicator.size, number)
                    )
            self.world.add(communicator.size, [*present, *((rank.location, rank.comm_rank) for rank in missing)])
            if spread is not None and (spread.ahead or spread.abreast):
                self.spreads[communicator.hash] = spread
        stages = _stages(communicator.ranks)
        return model.Communicator(
            hash=communicator.hash,
            size=communicator.size,
            responding=len(communicator.ranks),
            missing=len(missing),
            unresponsive=sum(rank.status.unresponsive for rank in communicator.missing_ranks),
            dead=sum(rank.status.considered_dead for rank in communicator.missing_ranks),
            named=missing,
            initializing=stages.get("initializing"),
            finalizing=stages.get("finalizing"),
            aborted=stages.get("aborted"),
            troubled=_troubled(communicator.ranks, locations),
            launches=spread.launches if spread is not None else None,
            secondary=secondary,
        )

    def _compare(self, communicator: _Communicator, locations: list[model.RankLocation]) -> Spread | None:
        launchers = []
        for rank, location in zip(communicator.ranks, locations, strict=True):
            if rank.collective_counts is None:
                return None
            launchers.append(RankLaunches(rank.rank, location, msgspec.structs.astuple(rank.collective_counts)))
        return compare(launchers, some_silent=any(rank.status.unresponsive for rank in communicator.missing_ranks))

    def _missing(self, rank: _Missing) -> model.MissingRank:
        reason: model.MissingReason = "unresponsive" if rank.status.unresponsive else "no_communicator"
        if rank.status.considered_dead:
            reason = "dead"
        return model.MissingRank(rank.rank, self._location(rank), reason=reason)

    def _location(self, rank: _Rank) -> model.RankLocation:
        return model.RankLocation(self._host(rank.host) or "", rank.pid, rank.nvml_dev)

    def _host(self, text: str) -> str | None:
        if text not in self._hosts:
            self._hosts[text] = model.plain_address(text)
        return self._hosts[text]


def _stages(ranks: list[_Present]) -> dict[str, int]:
    """Return how many ranks are in each stage; empty if any rank lacks its status."""
    statuses = [rank.status for rank in ranks if rank.status is not None]
    if len(statuses) < len(ranks):
        return {}
    counts = Counter(status.stage() for status in statuses)
    return {stage: counts[stage] for stage in ("initializing", "finalizing", "aborted")}


def _troubled(ranks: list[_Present], locations: list[model.RankLocation]) -> tuple[model.TroubledRank, ...]:
    troubled = (
        model.TroubledRank(rank.rank, location, trouble=problem[0], error=problem[1])
        for rank, location in zip(ranks, locations, strict=True)
        if rank.status is not None and (problem := rank.status.trouble()) is not None
    )
    return tuple(islice(troubled, model.MAX_TROUBLED))


class ReadRequest(msgspec.Struct, frozen=True):
    """What to read: JSON or text; see read_json. The result has only the processes of ``pids`` at ``addresses``."""

    is_json: bool
    pids: frozenset[int]
    names: Mapping[str, str] = {}
    addresses: Addresses = ANY_ADDRESS


class ReportReading(msgspec.Struct, frozen=True):
    """A report, or the error; ``cut``: the reply is only the beginning of a report."""

    report: Report | None
    error: str = ""
    cut: bool = False


def read(request: ReadRequest, body: bytes) -> ReportReading:
    """Read a reply; an error becomes part of the result."""
    try:
        if not request.is_json:
            return ReportReading(read_text(body))
        report = read_json(body, request.pids, request.names, request.addresses)
    except ReportError as error:
        return ReportReading(None, str(error), error.cut)
    near = (at for at in report.processes if at[1] in request.pids and at[0] in request.addresses)
    return ReportReading(msgspec.structs.replace(report, processes=frozenset(islice(near, model.MAX_MEMBERS))))
