"""Numbers, strings and nesting beyond every limit, in lines and in the checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from inspector_expected import expected
from inspector_reading import EVERYONE, all_of, make, published, read, sums_of
from inspector_records import append, line
from odd_values import changed
from test_inspector_formats import PROXY_STEP, bare, dumped, marker, p2p

from exporters.inspector.format.passes import FileContext, Run
from exporters.inspector.format.records import MAX_RANKS, MAX_TOTAL, InspectorRecord, Result, communicator
from exporters.inspector.reading.turn import Section
from exporters.inspector.totals.inheritance import Inheritance
from exporters.inspector.totals.losses import COLLECTIVE_RING, SavedLosses, Sequence, Tally, WriterLosses

GOOD_PID, BAD_PID = 7, 13
GOOD_LINES = 5


EDGES = [0, -1, 2**20, 2**20 + 1, 2**31 - 1, 2**31, 2**53, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64]
NUMBERS = st.one_of(st.sampled_from([*EDGES, -(2**63), -(2**63) - 1]), st.integers(-(2**70), 2**70))
TEXTS = st.one_of(st.text(max_size=20), st.sampled_from([18, 19, 64, 65, 255, 256, 5000]).map(lambda size: "é" * size))
NESTED = st.integers(1, 400).map(lambda depth: json.loads("[" * depth + "]" * depth))
ODD = st.one_of(NUMBERS, TEXTS, NESTED, st.none(), st.booleans(), st.floats(), st.just({}))
MEMBERS = {
    "header": ("id", "comm_name", "rank", "n_ranks", "nnodes"),
    "metadata": ("dump_timestamp_us", "hostname", "pid"),
    "coll_perf": ("coll", "coll_sn", "coll_msg_size_bytes", "coll_exec_time_us", "coll_timing_source"),
    "p2p_perf": ("p2p", "p2p_sn", "p2p_peer", "p2p_msg_size_bytes", "p2p_exec_time_us", "p2p_timing_source"),
    "dump_stats": ("coll_records", "p2p_records", "proxy_records", "coll_dropped_since_last_dump",
     "p2p_dropped_since_last_dump"),
    "proxy_trace": ("peer", "direction", "wire_us", "steps"),
}  # fmt: skip
KINDS = st.sampled_from(
    [line(0, pid=BAD_PID), p2p(1), marker(2), bare(line(0)), bare(p2p(1)), dumped(proxy_trace=PROXY_STEP)]
)


@st.composite
def odd_lines(draw: st.DrawFn) -> bytes:
    """Draw lines of one kind, with some members of a wrong type or value."""
    lines = []
    for sn in range(draw(st.integers(1, 6))):
        record = json.loads(draw(KINDS))
        if "coll_perf" in record:
            record["coll_perf"]["coll_sn"] = sn
        for part, members in MEMBERS.items():
            if part in record and draw(st.integers(0, 2)) == 0:
                name = draw(st.sampled_from(members))
                record[part][name] = draw(ODD)
        lines.append(json.dumps(record, separators=(",", ":")).encode() + b"\n")
    return b"".join(lines)


def every_struct(kind: Any, seen: set[type]) -> Iterator[type]:
    """Yield a Struct type, and the Struct types of its fields at any depth."""
    node = msgspec.inspect.type_info(kind)
    pending: list[Any] = [node]
    while pending:
        one = pending.pop()
        if isinstance(one, msgspec.inspect.StructType) and one.cls not in seen:
            seen.add(one.cls)
            yield one.cls
            pending.extend(field.type for field in one.fields)
        elif isinstance(one, msgspec.inspect.NamedTupleType):
            pending.extend(field.type for field in one.fields)
        for name in ("types", "item_types"):
            pending.extend(getattr(one, name, ()))
        inner = (getattr(one, name, None) for name in ("item_type", "key_type", "value_type"))
        pending.extend(part for part in inner if part is not None)


def test_every_number_and_text_of_a_line_is_bounded() -> None:
    """Every decoded number has limits (a size or time only a lower one); every text and list has a maximum length."""
    structs = list(every_struct(InspectorRecord, set()))
    assert {"Header", "Metadata", "CollectivePerf", "P2PPerf", "DumpStats"} <= {kind.__name__ for kind in structs}
    for kind in structs:
        info = msgspec.inspect.type_info(kind)
        assert isinstance(info, msgspec.inspect.StructType)
        for field in info.fields:
            options = field.type.types if isinstance(field.type, msgspec.inspect.UnionType) else (field.type,)
            for one in options:
                if isinstance(one, msgspec.inspect.IntType):
                    assert one.ge is not None, (kind, field.name)
                    unsigned = field.encode_name.endswith(("_size_bytes", "_time_us"))
                    assert unsigned or one.le is not None, (kind, field.name)
                elif isinstance(one, msgspec.inspect.StrType | msgspec.inspect.ListType):
                    assert one.max_length is not None, (kind, field.name)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(odd_lines(), odd_lines())
@example(marker(1, comm="0x1").replace(b'"rank":1', b'"rank":%d' % 2**70), bare(line(0)))
@example(marker(1, comm="0x1").replace(b'"pid":7', b'"pid":%d' % 2**64), bare(line(0)))
@example(line(0, rank=2**70), line(1, rank=2**64))
@example(line(0, dump_timestamp_us=2**70), line(1, dump_timestamp_us=2**64))
@example(line(0, n_ranks=2**64), line(1, pid=2**70))
@example(line(0), b'{"x":' + b"[" * 2000 + b"]" * 2000 + b"}\n")
def test_odd_lines_cost_themselves_alone(tmp_path_factory: pytest.TempPathFactory, first: bytes, then: bytes) -> None:
    """Odd lines fail no turn and no file; the state can be saved and restored, and another file's totals are exact."""
    root = tmp_path_factory.mktemp("odd")
    good, bad = root / f"here-pid{GOOD_PID}.log", root / f"here-pid{BAD_PID}.log"
    good.write_bytes(b"".join(line(sn, hostname="good", pid=GOOD_PID) for sn in range(GOOD_LINES)))
    expected_sums, section = expected(root).sums, None
    for content in (first, then):
        append(bad, content)
        turn = all_of(make(root, restored=section))
        assert turn.section is not None
        section, view = turn.section, published(turn)
        assert {key: total for key, total in sums_of(view).items() if key[0] == "good"} == expected_sums
        assert Result.FAILED not in view.results
        assert not {name for name in view.skipped if name.endswith("Error") or name == "not_saved"}
        assert all(
            0 <= total.operations <= MAX_TOTAL and 0 <= total.microseconds <= MAX_TOTAL
            for writer in view.writers
            for key, total in writer.totals.items()
        )


def test_longest_names_of_every_writer_fit_into_the_checkpoint(tmp_path: Path) -> None:
    """Names of the maximum length with characters of four bytes are kept whole."""
    (tmp_path / "here-pid7.log").write_bytes(line(0, comm_name="\U0001f600" * 255, hostname="\U0001f600" * 255))
    turn = all_of(make(tmp_path))
    assert turn.section is not None
    assert turn.evidence == ()
    [writer] = read(make(tmp_path, restored=turn.section)).writers
    assert writer.writer_key.hostname == "\U0001f600" * 255


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Provide a directory and its reader's checkpoint section, with values in every field, decoded to plain values."""
    root = tmp_path_factory.mktemp("saved")
    for rank in range(3):  # rank 3 is behind, so operations wait
        text = b"".join(line(sn, rank=rank, pid=100 + rank, coll_exec_time_us=10 + 9 * rank) for sn in range(20))
        (root / f"here-pid{100 + rank}.log").write_bytes(text + line(30, rank=rank, pid=100 + rank, coll="Reduce"))
    (root / "here-pid103.log").write_bytes(b"".join(line(sn, rank=3, pid=103) for sn in range(4)))
    (root / "here-pid7.log").write_bytes(
        marker(9, dropped=3) + bare(line(2)) + p2p(4) + line(5, coll_timing_source="kernel_cpu")
    )
    deleted = root / "here-pid9.log"
    deleted.write_bytes(line(0, pid=9))
    reader = make(root)
    reader.turn(EVERYONE)
    deleted.unlink()
    turn = reader.turn(EVERYONE, last=True)
    reader._follower._lost.retire(reader._follower.files()[0].position())
    section = reader._save(0.0, due=True)
    reader.close()
    assert turn.section is not None
    plain = msgspec.msgpack.decode(section or b"")
    assert all(plain[name] for name in ("positions", "writers", "results", "left", "contexts", "waiting"))
    return root, plain


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of the leaves of nested plain values."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        yield path
        return
    for key, item in items:
        yield from leaves(item, (*path, key))


PACKED_NUMBERS = st.one_of(
    st.sampled_from([-(2**63), -1, 0, 1, 2**31, 2**53 + 1, 2**62 - 1, 2**62, 2**62 + 1, 2**63 - 1, 2**63, 2**64 - 1]),
    st.integers(-(2**63), 2**64 - 1),
)
PACKED = st.one_of(PACKED_NUMBERS, TEXTS, NESTED, st.none(), st.booleans(), st.floats(), st.binary(max_size=600))


@pytest.mark.slow
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_damage_of_the_checkpoint_lasts(saved: tuple[Path, Any], data: st.DataObject) -> None:
    """A damaged checkpoint section is refused as a whole, or its reader works and its next section can be restored."""
    root, plain = saved
    places = list(leaves(plain))
    for _ in range(data.draw(st.integers(1, 3))):
        plain = changed(plain, data.draw(st.sampled_from(places)), data.draw(PACKED))
    section = msgspec.msgpack.encode(plain)
    try:
        reader = make(root, restored=section)
    except (ValueError, RecursionError):
        return
    turn = all_of(reader)
    assert turn.section is not None
    assert "not_saved" not in published(turn).skipped
    assert all_of(make(root, restored=turn.section)).section is not None


def test_a_rank_outside_its_communicator_is_not_waited_for(saved: tuple[Path, Any]) -> None:
    """A saved operation that waits for a rank outside its communicator makes no turn fail."""
    root, plain = saved
    damaged = changed(plain, ("waiting", 0, 1, 0, 0), 9)
    turn = all_of(make(root, restored=msgspec.msgpack.encode(damaged)))
    assert published(turn)
    assert turn.section is not None


@pytest.mark.parametrize("kind", [Section, Inheritance, FileContext, Run])
def test_every_number_of_the_checkpoint_is_bounded(kind: type) -> None:
    """Restored totals can grow and be saved again, because every number in the checkpoint has a maximum."""
    free = {"device", "inode", "pid", "comm_rank", "size", "nodes", "coll_msg_size_bytes", "coll_exec_time_us"}
    for struct in every_struct(kind, set()):
        info = msgspec.inspect.type_info(struct)
        assert isinstance(info, msgspec.inspect.StructType)
        for field in info.fields:
            if isinstance(field.type, msgspec.inspect.IntType) and field.name not in free:
                assert field.type.ge is not None, (struct, field.name)
                assert field.type.le is not None, (struct, field.name)


def test_gaps_of_several_collectives_stop_together() -> None:
    """The sum of the gaps of all collectives in one ring never exceeds the limit of the checkpoint."""
    sequences = {("c", 0, name): Sequence(0, missing=MAX_TOTAL) for name in ("AllReduce", "Broadcast")}
    losses = WriterLosses(sequences, from_start=True, saved=SavedLosses())
    losses.note_dropped(("c", 0, COLLECTIVE_RING), 1)
    assert losses.tallies()["c", 0, Tally.MISSING_OTHERWISE] == MAX_TOTAL
    saved = msgspec.msgpack.encode(losses.save())
    assert msgspec.msgpack.decode(saved, type=SavedLosses) == losses.save()


@pytest.mark.parametrize(("header_id", "rank", "n_ranks", "comm"), [
    ("0x82bdbf0ea6cd18", 0, 4, "82bdbf0ea6cd18"),
    ("0x82BD", 3, 4, "82bd"),
    ("0x0", 0, 1, "0"),
    ("0x82bdbf0ea6cd1812", 0, MAX_RANKS, "82bdbf0ea6cd18"),
    ("0x82bdbf0ea6cd18123", 0, 4, None),
    ("0x82bd", 0, MAX_RANKS + 1, None),
    ("0x82bd", 4, 4, None),
    ("0x82bd", -1, 4, None),
    ("0x82bd", 0, 0, None),
    ("0x", 0, 4, None),
    ("", 0, 4, None),
    ("0x82 d", 0, 4, None),
    ("world", 0, 4, None),
    ("0x٣", 0, 4, None),
])  # fmt: skip
def test_communicator(header_id: str, rank: int, n_ranks: int, comm: str | None) -> None:
    """A header names a communicator only if its id is a hash and its rank is within the communicator."""
    assert communicator(header_id, rank, n_ranks) == comm
