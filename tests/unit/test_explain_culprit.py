"""Who is the culprit by independent witnesses: copies count once, and who disagrees is told."""

import pytest

from agent.cli.explain.culprit import MAX_CULPRITS, judge
from agent.cli.explain.model import Said
from agent.evidence.summary import Witness


def word(rank: str, witness: Witness, source: str = "metrics", *, blames: bool = True, says: str = "") -> Said:
    """A word about a rank."""
    return Said(rank, "a", witness, says or f"{witness} of {rank}", blames, source)


TIE = [word("3", "verdict"), word("5", "flight_recorder")]
COPIES = [word("0", "job_log", f"node{number}") for number in range(50)]


@pytest.mark.parametrize(("said", "is_hang", "culprits", "against", "other"), [
    pytest.param([word("1", "verdict", blames=False)], False, (), [], "1", id="words that blame nobody"),
    pytest.param([word("3", "verdict"), word("5", "ras"), word("5", "records")], False, ("5",), [("3", "verdict")], "",
     id="two witnesses of less trust outweigh one of more"),
    pytest.param(TIE, False, ("3",), [("5", "flight_recorder")], "", id="after a death the process is trusted more"),
    pytest.param(TIE, True, ("5",), [("3", "verdict")], "", id="after a hang the flight recorder is trusted more"),
    pytest.param([*COPIES, word("7", "verdict"), word("7", "ras")], False, ("7",), [("0", "job_log")], "",
     id="fifty bundles that repeat one witness are one: a forged source outvotes nobody"),
    pytest.param([word("3", "verdict"), word("9", "verdict", "n2"), word("8", "verdict", "n2"),
     word("9", "stacks", "n2")], False, ("3",), [("9", "stacks")], "89",
     id="what a node says of its own ends blames nobody where metrics know the first rank of the whole job"),
    pytest.param([word(rank, "flight_recorder") for rank in ("12", "9", "100", "14")], True, ("9", "12", "14", "100"),
     [], "", id="ranks that are blamed alike, by number"),
    pytest.param([word("", "kernel_log"), word("2", "records")], False, ("2",), [("", "kernel_log")], "",
     id="a word of no rank is no vote"),
])  # fmt: skip
def test_the_culprit(
    said: list[Said], is_hang: bool, culprits: tuple[str, ...], against: list[tuple[str, Witness]], other: str
) -> None:
    """The rank that most independent witnesses blame is the culprit; words that blame none are kept."""
    found = judge(said, is_hang=is_hang)
    assert (found.culprit.ranks if found.culprit else ()) == culprits
    assert [(each.rank, each.witness) for each in found.against] == against
    assert ([each.rank for each in found.other], [each for each in found.other if each.blames]) == (list(other), [])


def test_the_same_word_twice_is_told_once() -> None:
    """Metrics and a bundle that say the same of a rank are one line; another text of the bundle is a second."""
    for says, lines in (("died", 1), ("died of SIGSEGV", 2)):
        said = [word("1", "verdict", says="died"), word("1", "verdict", "n1", says=says)]
        assert len(judge(said, is_hang=False).for_them) == lines


def test_a_bound_on_culprits() -> None:
    """No more than so many are named."""
    found = judge([word(str(rank), "ras") for rank in range(MAX_CULPRITS + 1)], is_hang=False)
    assert found.culprit is not None
    assert len(found.culprit.ranks) == MAX_CULPRITS
