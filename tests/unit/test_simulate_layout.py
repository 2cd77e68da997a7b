"""The simulated job's communicators."""

import pytest

from agent.simulate.layout import SimulatedCommunicator, make_layout


@pytest.mark.parametrize(("hash_", "printed"), [
    (0x82BDBF0EA6CD1812, "0x82bdbf0ea6cd18"),  # 16 digits lose two
    (0x2BDBF0EA6CD1812, "0x2bdbf0ea6cd181"),  # 15 lose one
    (0x1FA4C2EBA3DA83, "0x1fa4c2eba3da83"),
    (0xABC, "0xabc"),
])  # fmt: skip
def test_ids_are_cut_as_the_plugin_cuts_them(hash_: int, printed: str) -> None:
    """An id is unpadded hex with 0x, of at most 16 characters."""
    assert SimulatedCommunicator("world", "world", hash_, (0, 1), 1, network=False).id == printed


def test_hashes_follow_job_and_seed_alone() -> None:
    """Two processes agree on every hash; another seed or job id makes others; all are 64 bit and differ."""

    def hashes(job_id: str, seed: int) -> list[int]:
        layout = make_layout(8, 2, 2, job_id, seed)
        return [each.hash for group in layout.communicators.values() for each in group]

    assert (hashes("7", 1), len({*hashes("7", 1), *hashes("7", 2), *hashes("8", 1)})) == (hashes("7", 1), 3 * 7)
    assert max(hashes("7", 1)) < 2**64
