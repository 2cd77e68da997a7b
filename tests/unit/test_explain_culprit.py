"""Who is the culprit by independent witnesses: copies count once, and who disagrees is told."""

from __future__ import annotations

from agent.cli.explain.culprit import MAX_CULPRITS, judge
from agent.cli.explain.model import Said
from agent.evidence.summary import Witness


def word(rank: str, witness: Witness, source: str = "metrics", *, blames: bool = True, says: str = "") -> Said:
    """A word about a rank."""
    return Said(rank, "a", witness, says or f"{witness} of {rank}", blames, source)


def culprits(*said: Said, is_hang: bool = False) -> tuple[str, ...]:
    """The ranks that are blamed."""
    found = judge(said, is_hang=is_hang).culprit
    return found.ranks if found else ()


def test_nobody_is_blamed() -> None:
    """Words that blame nobody make no culprit, and are kept."""
    found = judge([word("1", "verdict", blames=False)], is_hang=False)
    assert found.culprit is None
    assert [each.rank for each in found.other] == ["1"]


def test_most_witnesses_win() -> None:
    """Two witnesses of less trust outweigh one of more; the one is told as disagreeing."""
    said = [word("3", "verdict"), word("5", "ras"), word("5", "records")]
    found = judge(said, is_hang=False)
    assert found.culprit is not None
    assert found.culprit.ranks == ("5",)
    assert [(each.rank, each.witness) for each in found.against] == [("3", "verdict")]


def test_a_tie_in_a_hang_and_after_a_death() -> None:
    """After a hang the flight recorder is trusted more than the process that died at its end, else less."""
    said = [word("3", "verdict"), word("5", "flight_recorder")]
    assert culprits(*said, is_hang=False) == ("3",)
    assert culprits(*said, is_hang=True) == ("5",)


def test_copies_count_once() -> None:
    """Fifty bundles that repeat one witness are one witness: a forged source outvotes nobody."""
    copies = [word("0", "job_log", f"node{number}") for number in range(50)]
    said = [*copies, word("7", "verdict"), word("7", "ras")]
    found = judge(said, is_hang=False)
    assert found.culprit is not None
    assert found.culprit.ranks == ("7",)
    assert len(found.against) == 1


def test_the_same_word_twice_is_told_once() -> None:
    """Metrics and a bundle that say the same of a rank are one line; another text of the bundle is a second."""
    same = [word("1", "verdict", says="died"), word("1", "verdict", "n1", says="died")]
    assert len(judge(same, is_hang=False).for_them) == 1
    other = [word("1", "verdict", says="died"), word("1", "verdict", "n1", says="died of SIGSEGV")]
    assert len(judge(other, is_hang=False).for_them) == 2


def test_a_bundle_knows_one_node_alone() -> None:
    """Where metrics say which rank of the whole job was first, what a node says of its own ends blames no other."""
    said = [word("3", "verdict"), word("9", "verdict", "n2"), word("8", "verdict", "n2"), word("9", "stacks", "n2")]
    found = judge(said, is_hang=False)
    assert found.culprit is not None
    assert found.culprit.ranks == ("3",)
    assert [(each.rank, each.witness) for each in found.against] == [("9", "stacks")]
    assert {(each.rank, each.blames) for each in found.other} == {("8", False), ("9", False)}


def test_ranks_that_are_blamed_alike() -> None:
    """They are culprits together, by number."""
    said = [word(rank, "flight_recorder") for rank in ("12", "9", "100", "14")]
    assert culprits(*said, is_hang=True) == ("9", "12", "14", "100")


def test_a_bound_on_culprits() -> None:
    """No more than so many are named."""
    assert len(culprits(*(word(str(rank), "ras") for rank in range(MAX_CULPRITS + 1)))) == MAX_CULPRITS


def test_the_order_of_words_does_not_matter() -> None:
    """The same words in another order give the same judgement."""
    said = [word("3", "verdict"), word("5", "ras"), word("5", "ras", "n"), word("x", "job_log"), word("3", "hardware")]
    assert judge(said, is_hang=True) == judge(said[::-1], is_hang=True)


def test_words_of_no_rank_blame_nobody() -> None:
    """A word about a node or the job is no vote."""
    assert culprits(word("", "kernel_log"), word("2", "records")) == ("2",)
