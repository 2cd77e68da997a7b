"""Bundles that are written under adverse conditions: names that collide, a disk that fills up, an agent killed."""

from pathlib import Path

import pytest
from test_evidence_bundle import summary

from agent.evidence import folder
from exporters.evidence.bundle import bundle_name, write

MOMENT = 1.7e9


def job_of(place: Path, name: str) -> str:
    """The job that a bundle is of."""
    return folder.read_summary(place, name).job_id


@pytest.mark.parametrize("other", ["a/b", "a_b"])
def test_two_bundles_of_one_second_are_two(tmp_path: Path, other: str) -> None:
    """A bundle whose name is taken, of another job or of the same one, gets a number: none is written over."""
    for job in ("a_b", other, "a:b"):
        name = write(tmp_path, bundle_name(job, MOMENT, "n1"), {}, summary(job), 10)
        assert job_of(tmp_path, name) == job
    names = folder.bundles(tmp_path)
    assert sorted(job_of(tmp_path, name) for name in names) == sorted(["a_b", other, "a:b"])
    assert all(folder.read_file(tmp_path, f"{name}{folder.SUFFIX}") for name in names)


def test_long_ids_that_end_differently_are_two(tmp_path: Path) -> None:
    """Two owners' jobs of one long id, told apart by its end, keep a bundle each."""
    jobs = [f"{'x' * 128}-uid{user}" for user in (1001, 1002)]
    for job in jobs:
        write(tmp_path, bundle_name(job, MOMENT, "n1"), {}, summary(job), 10)
    assert sorted(job_of(tmp_path, name) for name in folder.bundles(tmp_path)) == jobs


@pytest.mark.parametrize("failing", [1, 2])
def test_a_disk_that_fills_up_leaves_no_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    """Where the first or the second of the two files cannot be written, neither is there."""
    rename, calls = Path.rename, []

    def full(path: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == failing:
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path, bundle_name("7", MOMENT, "n1"), {}, summary(), 10)
    assert list(tmp_path.iterdir()) == []


def test_who_sees_a_bundle_finds_its_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle is listed only once its summary can be read: `rankwatch evidence take` looks five times a second."""
    rename, seen = Path.rename, []

    def look(path: Path, target: Path) -> Path:
        made = rename(path, target)
        seen.append([job_of(tmp_path, name) for name in folder.bundles(tmp_path)])
        return made

    monkeypatch.setattr(Path, "rename", look)
    write(tmp_path, bundle_name("7", MOMENT, "n1"), {}, summary(), 10)
    assert seen == [[], ["7"]]


def test_an_agent_killed_while_it_writes_leaves_no_heap(tmp_path: Path) -> None:
    """What an agent that was killed had begun to write is gone with the next bundle; others' files stay."""
    (tmp_path / ".6-20231114T221320Z-n1.tar.gz.part").write_bytes(b"x")
    (tmp_path / ".6-20231114T221320Z-n1.json.part").write_bytes(b"x")
    (tmp_path / ".notes.part").write_bytes(b"mine")
    name = bundle_name("7", MOMENT, "n1")
    write(tmp_path, name, {}, summary(), 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".notes.part", f"{name}.json", f"{name}.tar.gz"]
