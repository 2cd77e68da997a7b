"""Parses one rank's dump: the rank's progress in each process group, and the operation it waits in. Runs in a helper.

A dump has the last operations of the rank (``entries``), its process groups by name (``pg_config``), and the progress
of each group by a rank-local group number (``pg_status``). A dump does not name its rank.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import msgspec

from exporters.flight_recorder.pickled import RefusedError, read_pickle

MAX_JSON_BYTES = 4 * 1024 * 1024
"""Limit of a JSON dump, which has no stacks. The decoded values take at most 25 times this memory."""
MAX_ENTRIES = 100_000
MAX_GROUPS_READ = 4096
MAX_GROUPS = 32
"""Limit of shown groups per rank: groups that the rank waits in first, then the largest. Megatron makes 12 or 13."""
MAX_NAME_CHARACTERS = 64
MAX_TEXT_CHARACTERS = 1024  # Limit of a name's length, because every entry of a dump can repeat a name
MAX_SEQUENCE = 1 << 53
MAX_TIME_NS = (1 << 63) - 1
MAX_DIMENSIONS = 16  # Limit of a tensor's dimensions. PyTorch allows 64, but programs use at most 6
WORLD = "default_pg"
OTHER = "other"
OPERATIONS = frozenset(
    ["all_reduce", "all_reduce_barrier", "all_reduce_sparse", "allreduce_coalesced", "broadcast", "_broadcast_oop",
     "reduce", "_reduce_oop", "all_gather", "_all_gather_oop", "_all_gather_base", "all_gather_into_tensor_coalesced",
     "reduce_scatter", "_reduce_scatter_oop", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "barrier",
     "all_to_all", "gather", "scatter", "coalesced"]
)  # fmt: skip
"""Collective operations, by PyTorch's names without the library's name."""
POINT_TO_POINT = frozenset(["send", "recv", "recvAnySource"])
"""Each rank numbers these operations by itself, separately from collectives."""
ALIKE = frozenset(["all_reduce", "broadcast", "_broadcast_oop", "reduce", "_all_gather_base", "_reduce_scatter_base"])
"""Operations that all ranks must call with the same type and the same number of elements."""
_NAME = re.compile(rf"[\w.:/-]{{1,{MAX_NAME_CHARACTERS}}}", re.ASCII)
_RANKS = re.compile(r"\[[0-9, ]*\]", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)

State = Literal["scheduled", "started", "completed"]
_Sequence = Annotated[int, msgspec.Meta(ge=-1, le=MAX_SEQUENCE)]
_Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT_CHARACTERS)]
_Sizes = list[list[int]]


class _Entry(msgspec.Struct):
    """One operation of a dump. The parser ignores other keys."""

    pg_id: _Sequence
    process_group: tuple[_Text, _Text]
    collective_seq_id: _Sequence
    profiling_name: _Text
    state: State
    time_created_ns: Annotated[int, msgspec.Meta(ge=0, le=MAX_TIME_NS)] = 0
    is_p2p: bool = False
    input_sizes: _Sizes = []
    input_dtypes: list[_Text] = []


class _Group(msgspec.Struct):
    name: _Text
    desc: _Text = ""
    ranks: str = ""


class _Status(msgspec.Struct):
    last_enqueued_collective: _Sequence


class _Dump(msgspec.Struct):
    pg_config: dict[str, _Group] = {}
    pg_status: dict[str, _Status] = {}
    entries: list[_Entry] = []


class Call(msgspec.Struct, frozen=True):
    """An operation that a rank waits in. ``sequence``: its number in the group, equal on all ranks.

    ``operation``: one of OPERATIONS or OTHER. ``dtype`` and ``elements`` are empty if they can differ between ranks.
    """

    sequence: int
    operation: str
    dtype: str
    elements: str
    state: str


class GroupProgress(msgspec.Struct, frozen=True):
    """A rank's progress in a process group. ``name``: equal on all ranks; ``description``: the job's own name for it.

    ``enqueued``: number of the last collective that the rank began, None if the dump lacks it. ``waits``: the first
    collective that the rank has begun but not completed, else None.
    """

    name: str
    description: str
    size: int
    enqueued: int | None
    waits: Call | None


class DumpSummary(msgspec.Struct, frozen=True):
    """The content of a dump. ``world_size``: size of the group of all ranks, None if unknown.

    ``last_created``: start of the newest operation, in seconds since the epoch; 0 without operations.
    """

    groups: tuple[GroupProgress, ...]
    world_size: int | None
    last_created: float


def read_dump(raw: bytes, rank: int) -> DumpSummary | None:
    """Return the content of the dump (pickle or JSON); None if another rank wrote it. Raise RefusedError if invalid.

    A dump has only the groups of its own rank, so every group must contain ``rank``.
    """
    dump = _decoded(raw)
    known = {text: _members(text, rank) for text in {group.ranks for group in dump.pg_config.values()}}
    sizes = {group.name: known[group.ranks] for group in dump.pg_config.values()}
    if not any(sizes.values()) or None in sizes.values():
        return None
    begun = _by_status(dump)
    calls = _Calls(dump.entries)
    groups = []
    for group in dump.pg_config.values():
        size = sizes[group.name] or 0
        if size != 1:  # no rank waits in a group of one rank
            groups.append(calls.progress(group, size, begun.get(group.name)))
    groups.sort(key=lambda group: (group.waits is None, -group.size, group.name))
    world = [sizes[group.name] or 0 for group in dump.pg_config.values() if group.desc == WORLD]
    newest = max((entry.time_created_ns for entry in dump.entries), default=0) / 1e9
    return DumpSummary(tuple(groups[:MAX_GROUPS]), max(world, default=0) or None, newest)


def _decoded(raw: bytes) -> _Dump:
    is_json = raw[:1] == b"{"
    if is_json and len(raw) > MAX_JSON_BYTES:
        raise RefusedError("too_large", f"more than {MAX_JSON_BYTES} bytes of JSON")
    try:
        if is_json:
            dump = msgspec.json.decode(raw, type=_Dump, strict=False)
        else:
            dump = msgspec.convert(read_pickle(raw), _Dump, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        cut = is_json and not raw.rstrip().endswith(b"}")
        raise RefusedError("incomplete" if cut else "malformed", str(error)[:MAX_NAME_CHARACTERS]) from None
    if len(dump.entries) > MAX_ENTRIES:
        raise RefusedError("too_large", f"more than {MAX_ENTRIES} entries")
    if max(len(dump.pg_config), len(dump.pg_status)) > MAX_GROUPS_READ:
        raise RefusedError("too_large", f"more than {MAX_GROUPS_READ} groups")
    return dump


class _Calls:
    """The collective operations of a dump, by process group."""

    def __init__(self, entries: Iterable[_Entry]) -> None:
        self._begun: dict[str, int] = {}
        self._waits: dict[str, _Entry] = {}
        self._mixed: set[str] = set()
        for entry in entries:
            group, number = entry.process_group[0], entry.collective_seq_id
            if entry.is_p2p or _operation(entry) in POINT_TO_POINT:
                self._mixed.add(group)
                continue
            self._begun[group] = max(self._begun.get(group, 0), number)
            known = self._waits.get(group)
            if entry.state != "completed" and (known is None or number < known.collective_seq_id):
                self._waits[group] = entry

    def progress(self, group: _Group, size: int, by_status: int | None) -> GroupProgress:
        """Return the rank's progress in a group of ``size`` ranks. ``by_status``: the number in ``pg_status``."""
        numbers = [self._begun[group.name]] if group.name in self._begun else []
        if by_status is not None and group.name not in self._mixed:
            numbers.append(max(by_status, 0))
        waits = self._waits.get(group.name)
        name = _label(group.name) or hashlib.blake2s(group.name.encode("utf-8", "replace"), digest_size=8).hexdigest()
        enqueued = max(numbers, default=None)
        return GroupProgress(name, _label(group.desc), size, enqueued, None if waits is None else _call(waits))


def _call(entry: _Entry) -> Call:
    operation = _operation(entry)
    dtype = elements = ""
    if operation in ALIKE and len(entry.input_dtypes) == len(entry.input_sizes) == 1:
        dtype, elements = _label(entry.input_dtypes[0]), _elements(entry.input_sizes[0])
    shown = operation if operation in OPERATIONS else OTHER
    return Call(entry.collective_seq_id, shown, dtype, elements, entry.state)


def _operation(entry: _Entry) -> str:
    """Return the operation's name without the library's name and without the ranks in a transfer's name."""
    return entry.profiling_name.partition(":")[2].partition(" ")[0]


def _elements(sizes: list[int]) -> str:
    """Return the number of elements of a tensor of these sizes; an empty text if a number is out of bounds."""
    if len(sizes) > MAX_DIMENSIONS or any(not 0 <= size <= MAX_SEQUENCE for size in sizes):
        return ""
    count = math.prod(sizes)
    return str(count) if count <= MAX_SEQUENCE else ""


def _by_status(dump: _Dump) -> Mapping[str, int]:
    """Return for each group the number of the last operation that the rank had begun.

    The status has rank-local group numbers instead of names. Each new group gets a higher number and, if names are
    numbers, a higher name. So numbers and names have the same order. Entries have both, and must agree with this order.
    """
    last_numbers = {
        number: status.last_enqueued_collective
        for number, status in dump.pg_status.items()
        if _NUMBER.fullmatch(number)
    }
    names = {int(group.name): group.name for group in dump.pg_config.values() if _NUMBER.fullmatch(group.name)}
    by_number = {str(entry.pg_id): entry.process_group[0] for entry in dump.entries}
    if len(names) == len(last_numbers) == len(dump.pg_config):
        ordered = dict(zip(sorted(last_numbers, key=int), (names[number] for number in sorted(names)), strict=True))
        if all(ordered.get(number) == name for number, name in by_number.items()):
            by_number = ordered
    return {name: last_numbers[number] for number, name in by_number.items() if number in last_numbers}


def _members(text: str, rank: int) -> int | None:
    """Return the number of ranks in a text such as "[0, 2]"; 0 if unknown; None if the list lacks ``rank``."""
    if not _RANKS.fullmatch(text):
        return 0
    numbers = text[1:-1].replace(",", " ").split()
    return len(numbers) if not numbers or str(rank) in numbers else None


def _label(text: str) -> str:
    return text if _NAME.fullmatch(text) else ""
