"""A rank's dump: its progress in each group, and proof that the dump is the rank's own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flight_dumps import dump, entry, pickled

from exporters.flight_recorder import dump as module
from exporters.flight_recorder.dump import DumpSummary, GroupProgress, read_dump
from exporters.flight_recorder.pickled import RefusedError


def read(value: dict[str, Any], rank: int = 0) -> DumpSummary:
    """Return the progress in a dump that belongs to the rank."""
    answer = read_dump(pickled(value), rank)
    assert answer is not None
    return answer


def only(value: dict[str, Any]) -> GroupProgress:
    """Return the progress in a dump's only group."""
    [group] = read(value).groups
    return group


def test_a_dump_without_members_has_no_rank() -> None:
    """A dump without group members belongs to no rank."""
    for ranks in ("", "[]", "all", "[0, x]"):
        assert read_dump(pickled(dump(ranks=ranks)), 0) is None
    assert read_dump(pickled(dump(pg_config={})), 0) is None


def test_a_rank_without_entries() -> None:
    """Without entries, the last collective's number is that of the status (0 if none); without a status it is None."""
    assert only(dump(enqueued=9)).enqueued == 9
    assert only(dump(enqueued=-1)).enqueued == 0
    assert only(dump(pg_status={})).enqueued is None


def test_transfers_count_apart() -> None:
    """In a group with sends or receives, the number comes from the last collective entry, not from the status."""
    for changed in ({"is_p2p": True}, {"profiling_name": "nccl:send 0->1"}):
        transfer = entry(sequence=2, **changed)
        answer = only(dump([transfer, entry(sequence=3)], enqueued=13698))
        assert (answer.enqueued, answer.waits and answer.waits.sequence) == (3, 3)
        assert only(dump([transfer], enqueued=13698)).enqueued is None


def config(*names: str) -> dict[str, Any]:
    """Return groups with these names."""
    return {name: {"name": name, "desc": "x", "ranks": "[0, 1]"} for name in names}


def status(**enqueued: int) -> dict[str, Any]:
    """Return groups' statuses, keyed by the rank's own number of a group; keyword n15 is the status of number 15."""
    return {number[1:]: {"last_enqueued_collective": last} for number, last in enqueued.items()}


@pytest.mark.parametrize(("groups", "statuses", "entries", "enqueued"), [
    (("112", "6"), {"n15": 5, "n2": 7}, (), {"112": 5, "6": 7}),
    (("112", "6"), {"n15": 5, "n2": 7, "n3": 8}, (), {"112": None, "6": None}),
    (("a0b1", "6"), {"n15": 5, "n2": 7}, (), {"a0b1": None, "6": None}),
    (("112", "6"), {"n15": 5, "n2": 7}, (("6", 15),), {"112": None, "6": 5}),
], ids=["in order", "of another number", "with another name", "against an entry"])  # fmt: skip
def test_groups_and_their_statuses(
    groups: tuple[str, ...],
    statuses: dict[str, int],
    entries: tuple[tuple[str, int], ...],
    enqueued: dict[str, int | None],
) -> None:
    """Statuses are in the order of the groups' names if these are numbers; an entry that contradicts the order wins."""
    made = [entry(name, 5, pg_id=own) for name, own in entries]
    summary = read(dump(made, pg_config=config(*groups), pg_status=status(**statuses)))
    assert {group.name: group.enqueued for group in summary.groups} == enqueued


def test_json() -> None:
    """A JSON dump with numbers as text gives the same result as the pickle."""
    value = dump([entry(sequence=3)], enqueued=3)
    statuses = value["pg_status"]
    texts = {number: {key: str(last) for key, last in numbers.items()} for number, numbers in statuses.items()}
    raw = json.dumps(value | {"pg_status": texts}).encode()
    assert read_dump(raw, 0) == read(value)
    assert reason(raw[:-9]) == "incomplete"
    assert reason(b'{"entries": 1}') == "malformed"
    assert reason(json.dumps(dump([entry(time_created_ns=10**400)])).encode()) == "malformed"
    assert reason(b'{"entries": ' + b"[" * 9999 + b"]" * 9999 + b"}") == "malformed"


@pytest.mark.parametrize(("changed", "call"), [
    ({"profiling_name": "nccl:all_to_all"}, ("all_to_all", "", "")),
    ({"profiling_name": "xccl:broadcast"}, ("broadcast", "Float", "1024")),
    ({"profiling_name": "nccl:a_new_one"}, ("other", "", "")),
    ({"profiling_name": "all_reduce"}, ("other", "", "")),
    ({"input_sizes": [[2], [3]], "input_dtypes": ["Float", "Float"]}, ("all_reduce", "", "")),
    ({"input_sizes": [[]]}, ("all_reduce", "Float", "1")),
    ({"input_sizes": [[-1]]}, ("all_reduce", "Float", "")),
    ({"input_sizes": [[1 << 53]]}, ("all_reduce", "Float", str(1 << 53))),
    ({"input_sizes": [[1 << 53, 2]]}, ("all_reduce", "Float", "")),
    ({"input_sizes": [[1] * 16]}, ("all_reduce", "Float", "1")),
    ({"input_sizes": [[1] * 17]}, ("all_reduce", "Float", "")),
    ({"input_dtypes": ['a"b']}, ("all_reduce", "", "1024")),
])  # fmt: skip
def test_calls(changed: dict[str, Any], call: tuple[str, str, str]) -> None:
    """An operation has its name; it has type and size only if all ranks must call it with the same type and size."""
    answer = only(dump([entry(**changed)])).waits
    assert answer is not None
    assert (answer.operation, answer.dtype, answer.elements) == call


def test_labels_are_bounded() -> None:
    """A short and plain name becomes a label; other names become a hash or are left out."""
    for name, plain in (("x" * 64, True), ("x" * 65, False), ("a b", False), ("", False), ("a:b/c.d-e_f", True)):
        group = {"0": {"name": name, "desc": name, "ranks": "[0, 1]"}}
        answer = only(dump(pg_config=group))
        assert answer.description == (name if plain else "")
        assert (answer.name == name) == plain
        assert 0 < len(answer.name) <= 64


def test_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit of groups, the groups in which the rank waits are kept first, and then the largest groups."""
    monkeypatch.setattr(module, "MAX_GROUPS", 2)
    groups = config("0", "1", "2", "3")
    groups["0"]["ranks"], groups["2"]["ranks"] = "[0]", "[0, 1, 2]"
    answer = read(dump([entry("3", pg_id=3)], pg_config=groups))
    assert [(group.name, group.size) for group in answer.groups] == [("3", 2), ("2", 3)]
    assert [group.name for group in read(dump(pg_config=config("1") | {"2": groups["0"]})).groups] == ["1"]


def test_dumps_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dump at a limit (bytes of JSON, operations, groups, statuses) is read; a larger one is refused."""
    as_json = json.dumps(dump([entry()])).encode()
    for bound, most, within, beyond in (
        ("MAX_JSON_BYTES", len(as_json), as_json, as_json + b" "),
        ("MAX_JSON_BYTES", 1, pickled(dump([entry()])), as_json),  # the limit of pickles is higher
        ("MAX_ENTRIES", 2, pickled(dump([entry()] * 2)), pickled(dump([entry()] * 3))),
        (
            "MAX_GROUPS_READ",
            2,
            pickled(dump(pg_config=config("1", "2"))),
            pickled(dump(pg_config=config("1", "2", "3"))),
        ),
        (
            "MAX_GROUPS_READ",
            2,
            pickled(dump(pg_status=status(n1=1))),
            pickled(dump(pg_status=status(n1=1, n2=1, n3=1))),
        ),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, bound, most)
            assert (reason(within), reason(beyond)) == ("", "too_large"), bound


@pytest.mark.parametrize("length", [1024, 1025])
def test_names_are_bounded(length: int) -> None:
    """A name at the length limit is read; a dump with a longer name is refused."""
    text = "x" * length
    group = {"name": text, "desc": text, "ranks": "[0]"}
    for value in (
        dump([entry(text)]),
        dump([entry(profiling_name=text)]),
        dump([entry(input_dtypes=[text])]),
        dump(pg_config={"0": group | {"desc": ""}}),
        dump(pg_config={"0": group | {"name": "0"}}),
    ):
        assert reason(pickled(value)) == ("" if length == 1024 else "malformed")


@pytest.mark.parametrize(
    "value",
    [None, [], {"entries": [{}]}, dump([entry(state="lost")]), dump([entry(sequence=(1 << 53) + 1)]),
     dump([entry(sequence=-2)]), dump(pg_status={"0": {}}), dump(pg_config={"0": {}}), dump([entry(pg_id="x")])],
)  # fmt: skip
def test_values_that_are_no_dump(value: Any) -> None:
    """A dump of another structure, or with a number out of its limits, is refused."""
    assert reason(pickled(value)) == "malformed"


def test_when_the_newest_was_begun() -> None:
    """``last_created`` is an operation's latest creation time, or 0; ``world_size`` is None without a default group."""
    assert read(dump([entry(), entry(time_created_ns=1)])).last_created == pytest.approx(1.8e9)
    assert read(dump()).last_created == 0.0
    assert read(dump()).world_size == 4
    assert read(dump(pg_config=config("1"))).world_size is None


def reason(raw: bytes) -> str:
    """Return why a dump is refused; empty if it is read."""
    try:
        read_dump(raw, 0)
    except RefusedError as refused:
        return refused.reason
    return ""
