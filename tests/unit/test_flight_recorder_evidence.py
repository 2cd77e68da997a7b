"""What dumps of flight recorders add to a bundle of evidence: which ranks they blame, and what is in the file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from flight_dumps import dump, entry, pickled, recorded

from agent.sdk.ranks import RankLabel
from exporters.flight_recorder.dump import read_dump
from exporters.flight_recorder.registry import APART_SECONDS, FILE, MAX_WORDS, OF_ALL, ShownDump, part

DEPLOY = Path(__file__).parents[2] / "deploy/prometheus"
WRITTEN = 1000.0
OF_SOME = ("send", "recv", "broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter")
"""Operations that a rank may end before others have begun them."""


def shown(raw: Mapping[int, bytes], written: float = WRITTEN, job: str = "7") -> list[ShownDump]:
    """Return the dumps of ranks in the form in which the exporter shows them."""
    summaries = {rank: read_dump(content, rank) for rank, content in raw.items()}
    return [ShownDump(RankLabel(job, str(rank)), written, read) for rank, read in summaries.items() if read is not None]


def blamed(dumps: list[ShownDump]) -> dict[str, str]:
    """Return the statement about each rank that the part blames."""
    return {word.rank: word.says for word in part(dumps, "7").words if word.blames}


def hang(enqueued: Mapping[int, int], waits: Mapping[int, int]) -> list[ShownDump]:
    """Return dumps of one group; ``enqueued``: the last collective that a rank began, ``waits``: its waits."""
    entries = {rank: [entry(sequence=number)] for rank, number in waits.items()}
    return shown({rank: pickled(dump(entries.get(rank, []), enqueued=number)) for rank, number in enqueued.items()})


@pytest.mark.parametrize(("scenario", "says"), [
    ("lock_gil_1st", dict.fromkeys(("9", "14"), "had not begun")),
    ("gpu_error_1st", dict.fromkeys(("12", "14"), "had not finished")),
])  # fmt: skip
def test_a_recorded_hang_blames_who_caused_it(scenario: str, says: dict[str, str]) -> None:
    """In both recorded hangs the ranks with an injected fault are blamed, and no other rank."""
    blames = blamed(shown(recorded(scenario)))
    assert blames.keys() == says.keys()
    assert all(text in blames[rank] for rank, text in says.items()), blames


@pytest.mark.parametrize("scenario", ["lock_gil_1st", "gpu_error_1st"])
def test_a_node_with_a_part_of_the_ranks_blames_no_other_rank(scenario: str) -> None:
    """Whichever ranks a node has, its evidence blames only ranks with an injected fault."""
    injected = {"lock_gil_1st": {"9", "14"}, "gpu_error_1st": {"12", "14"}}[scenario]
    dumps = shown(recorded(scenario))
    for size in (2, 4, 8):
        for first in range(0, len(dumps), size):
            assert blamed(dumps[first : first + size]).keys() <= injected


def test_a_rank_that_waits_itself() -> None:
    """A rank that has not begun the others' operation is blamed; if it waits in another group it is only mentioned."""
    text = "had not begun all_reduce no. 5 of group default_pg, unlike other ranks of the node"
    assert blamed(hang({0: 5, 2: 3}, {0: 5})) == {"2": text}
    names = {"0": "default_pg", "1": "tp"}
    groups = {name: {"name": name, "desc": text, "ranks": "[2, 3]"} for name, text in names.items()}
    status = {name: {"last_enqueued_collective": number} for name, number in (("0", 3), ("1", 4))}
    waits = dump([entry("1", 4, process_group=("1", "tp"))], pg_config=groups, pg_status=status)
    words = part([*hang({0: 5}, {0: 5}), *shown({2: pickled(waits)})], "7").words
    assert [(word.rank, word.says, word.blames) for word in words] == [
        ("0", "waited in all_reduce no. 5 of group default_pg", False),
        ("2", text, False),
        ("2", "waited in all_reduce no. 4 of group tp", False),
    ]


def test_a_rank_that_does_not_finish() -> None:
    """A rank in an operation that other ranks finished is blamed, unless a third rank has not begun the operation."""
    text = "had not finished all_reduce no. 3 of group default_pg, unlike other ranks of the node"
    assert blamed(hang({0: 5, 1: 3}, {0: 5, 1: 3})) == {"1": text}
    assert blamed(hang({0: 5, 1: 3, 2: 2}, {0: 5, 1: 3})).keys() == {"2"}


def test_only_dumps_of_the_hang_and_of_the_job_count() -> None:
    """Dumps of another job or of an earlier hang are left out; if no dump is left, there is no part."""
    dumps = hang({0: 5}, {0: 5})
    [old] = shown({1: pickled(dump([], enqueued=3))}, WRITTEN - APART_SECONDS)
    [older] = shown({1: pickled(dump([], enqueued=3))}, WRITTEN - APART_SECONDS - 1.0)
    [other] = shown({1: pickled(dump([], enqueued=3))}, job="8")
    assert blamed([*dumps, old]).keys() == {"1"}
    assert blamed([*dumps, older, other]) == {}
    [listed] = msgspec.json.decode(part([*dumps, older, other], "7").files[FILE])
    assert (listed["rank"], listed["written"]) == ("0", WRITTEN)
    assert listed["groups"][0]["waits"]["sequence"] == 5
    assert part([other], "7").files == {}


def test_words_are_bounded() -> None:
    """At most MAX_WORDS ranks are mentioned."""
    [one] = hang({0: 5}, {0: 5})
    many = [msgspec.structs.replace(one, label=RankLabel("7", str(rank))) for rank in range(MAX_WORDS + 1)]
    assert len(part(many, "7").words) == MAX_WORDS


def test_what_the_rules_know_is_the_same() -> None:
    """Rules and bundle agree on operations that need all ranks, and on the longest time between dumps of one hang."""
    rules = (DEPLOY / "rules/hangs.yml").read_text()
    of_all = re.search(r'operation=~"([^"]*all_\?reduce[^"]*)"', rules)
    assert of_all
    assert {text for text in (*OF_ALL, *OF_SOME) if re.fullmatch(of_all[1], text)} == OF_ALL
    assert f"rankwatch_flight_recorder_dump_timestamp_seconds[2m]) + {APART_SECONDS:.0f} < " in rules
