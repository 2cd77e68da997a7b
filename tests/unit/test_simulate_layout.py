"""The simulated job's communicators."""

import pytest

from agent.simulate.layout import SimulatedCommunicator, make_layout


def test_two_hosts_of_four_with_tp_two() -> None:
    """TP groups are consecutive ranks of one host, DP groups have equal TP index, the world has all."""
    groups = make_layout(8, hosts=2, tp=2, job_id="7", seed=1).communicators
    assert [each.members for each in groups["tp"]] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert [each.members for each in groups["dp"]] == [(0, 2, 4, 6), (1, 3, 5, 7)]
    assert [each.members for each in groups["world"]] == [tuple(range(8))]
    assert [each.name for each in groups["tp"]][1] == "tensor_model_parallel_group_1"
    assert {each.nodes for each in groups["tp"]} == {1}
    assert {each.nodes for each in (*groups["dp"], *groups["world"])} == {2}


@pytest.mark.parametrize(("hash_", "printed"), [
    (0x82BDBF0EA6CD1812, "0x82bdbf0ea6cd18"),  # 16 digits lose two
    (0x2BDBF0EA6CD1812, "0x2bdbf0ea6cd181"),  # 15 lose one
    (0x1FA4C2EBA3DA83, "0x1fa4c2eba3da83"),
    (0xABC, "0xabc"),
])  # fmt: skip
def test_ids_are_cut_as_the_plugin_cuts_them(hash_: int, printed: str) -> None:
    """An id is unpadded hex with 0x, of at most 16 characters."""
    assert SimulatedCommunicator("world", "world", hash_, (0, 1), 1, network=False).id == printed


@pytest.mark.parametrize(("ranks", "hosts", "tp"), [(1, 1, 1), (0, 1, 1), (7, 2, 1), (8, 2, 3), (8, 4, 4)])
def test_numbers_that_do_not_divide_are_refused(ranks: int, hosts: int, tp: int) -> None:
    """One rank, uneven hosts and TP groups beyond a host are errors."""
    with pytest.raises(ValueError, match=r"cannot be spread|do not fit"):
        make_layout(ranks, hosts, tp, "7", 1)


def test_hashes_follow_job_and_seed_alone() -> None:
    """Two processes agree on every hash; another seed or job id makes others; all are 64 bit and differ."""

    def hashes(job_id: str, seed: int) -> list[int]:
        layout = make_layout(8, 2, 2, job_id, seed)
        return [each.hash for group in layout.communicators.values() for each in group]

    assert (hashes("7", 1), len({*hashes("7", 1), *hashes("7", 2), *hashes("8", 1)})) == (hashes("7", 1), 3 * 7)
    assert max(hashes("7", 1)) < 2**64
