"""The JSON report of NCCL 2.28.7 and later. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Annotated

import msgspec

from exporters.ras.report import (
    MAX_COMMUNICATOR_RANKS,
    MAX_DEVICE,
    Communicator,
    MissingRank,
    Reason,
    Report,
    ReportError,
    Skipped,
    accept,
    plain_address,
)

_LACKS_COMMA = re.compile(rb'("nvml_dev": -?\d{1,10})(\s{1,64}"status": \{)')
"""2.28.7 to 2.28.9 leave out the comma between these two keys of a missing rank."""

_Text = Annotated[str, msgspec.Meta(max_length=64)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COMMUNICATOR_RANKS)]
_Device = Annotated[int, msgspec.Meta(ge=-1, le=MAX_DEVICE)]
_Pid = Annotated[int, msgspec.Meta(ge=-1, lt=2**31)]


class _Rank(msgspec.Struct, gc=False):
    rank: _Count
    host: _Text
    pid: _Pid


class _MissingStatus(msgspec.Struct, gc=False):
    unresponsive: bool
    considered_dead: bool


class _Missing(_Rank, gc=False):
    nvml_dev: _Device
    status: _MissingStatus


class _Communicator(msgspec.Struct):
    hash: Annotated[str, msgspec.Meta(pattern="^0x[0-9a-f]{1,16}$")]
    size: _Count
    ranks: list[_Rank]
    missing_ranks: list[_Missing]


class _Ras(msgspec.Struct):
    timeouts_count: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class _Report(msgspec.Struct):
    """``communicators`` stay raw: a bad one costs itself alone, and decoding them one by one lets other threads run."""

    nccl_version: Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z.+_-]{1,64}$")]
    communicators: list[msgspec.Raw]
    ras: _Ras


def read_json(body: bytes) -> Report:
    """Decode a report; ReportError when ``body`` is none."""
    try:
        report = _decode(body)
    except msgspec.ValidationError as error:
        raise ReportError(str(error)) from None
    except (ValueError, RecursionError) as error:  # msgspec's are ValueErrors, and so are those of bad UTF-8
        raise ReportError(f"not JSON: {error}", cut="truncated" in str(error)) from None  # msgspec's word
    skipped: Counter[Skipped] = Counter()
    processes: set[tuple[str, int]] = set()
    communicators = accept(_communicators(report.communicators, processes, skipped), skipped)
    return Report(report.nccl_version, communicators, frozenset(processes), report.ras.timeouts_count, dict(skipped))


def _decode(body: bytes) -> _Report:
    try:
        return msgspec.json.decode(body, type=_Report)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return msgspec.json.decode(_LACKS_COMMA.sub(rb"\1,\2", body), type=_Report)


def _communicators(
    raws: list[msgspec.Raw], processes: set[tuple[str, int]], skipped: Counter[Skipped]
) -> Iterator[Communicator]:
    for raw in raws:
        try:
            found = msgspec.json.decode(raw, type=_Communicator)
        except (ValueError, RecursionError):
            skipped["unreadable"] += 1
            continue
        hosts = {host: plain_address(host) for rank in (*found.ranks, *found.missing_ranks) if (host := rank.host)}
        places = {rank.rank for rank in (*found.ranks, *found.missing_ranks)}
        surplus = len(places) < len(found.ranks) + len(found.missing_ranks) or max(places, default=-1) >= found.size > 0
        if surplus or None in hosts.values() or not all(rank.host for rank in (*found.ranks, *found.missing_ranks)):
            skipped["implausible"] += 1
            continue
        processes.update((hosts[rank.host] or "", rank.pid) for rank in found.ranks)
        yield Communicator(
            hash=found.hash,
            size=found.size,
            responding=len(found.ranks),
            missing=len(found.missing_ranks),
            unresponsive=sum(rank.status.unresponsive for rank in found.missing_ranks),
            dead=sum(rank.status.considered_dead for rank in found.missing_ranks),
            named=tuple(_missing(rank, hosts[rank.host] or "") for rank in found.missing_ranks),
        )


def _missing(rank: _Missing, host: str) -> MissingRank:
    reason: Reason = "no_communicator"
    if rank.status.considered_dead:
        reason = "dead"
    elif rank.status.unresponsive:
        reason = "unresponsive"
    return MissingRank(rank.rank, host, "" if rank.nvml_dev < 0 else str(rank.nvml_dev), reason)
