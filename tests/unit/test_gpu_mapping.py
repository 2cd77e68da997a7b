"""Files with the jobs of each GPU: writes, updates, removals, and files of other programs."""

import asyncio
import shutil
from pathlib import Path

import pytest
from fake_clock import FakeClock
from lent import lent
from rank_table import RankTable

from agent.ranks.rank.process import RankGpu
from agent.sdk.ranks import ProcessFacts, ProcessKey
from exporters.jobs.exporter import JobsConfig, JobsExporter
from exporters.jobs.gpu_mapping import OWN, GpuMapping, jobs_of_gpus


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Provide an empty directory for the mapping."""
    path = tmp_path / "mapping"
    path.mkdir()
    return path


def files(directory: Path) -> dict[str, str]:
    """Return the files of GPUs."""
    return {path.name: path.read_text() for path in directory.iterdir() if path.name != OWN}


def test_what_a_file_holds() -> None:
    """A GPU's file names each job with a running rank on it; ranks that have exited do not count."""
    ranks = RankTable(FakeClock(), "here", settle_at_once=True)
    keys = {pid: ProcessKey(pid, 5) for pid in (10, 11, 12)}
    for pid, (job_id, rank) in {10: ("7", "0"), 11: ("7", "1"), 12: ("8", "0")}.items():
        environment = {"RANK": rank, "WORLD_SIZE": "2", "SLURM_JOB_ID": job_id}
        ranks.observe_process(ProcessFacts(keys[pid], 1.0, pid, "ann", "thread", environment))
    ranks.tick()
    for pid, index in {10: 0, 11: 1, 12: 1}.items():
        ranks.running()[keys[pid]].gpus = (RankGpu(index, f"GPU-{index}", "", ""),)
    assert jobs_of_gpus(ranks.snapshot().ranks) == {"0": "7\n", "1": "7\n8\n"}
    ranks.observe_exit(keys[10], None)
    assert jobs_of_gpus(ranks.snapshot().ranks) == {"1": "7\n8\n"}


def test_files_follow_the_ranks(directory: Path) -> None:
    """While a GPU has ranks, it has a file with its current jobs, also in a new directory."""
    mapping = GpuMapping(directory)
    mapping.write({"0": "4711\n", "1": "4711\n"})
    assert files(directory) == {"0": "4711\n", "1": "4711\n"}
    before = (directory / "0").stat()
    mapping.write({"0": "4711\n", "1": "4711\n4712\n"})
    assert files(directory) == {"0": "4711\n", "1": "4711\n4712\n"}
    assert (directory / "0").stat() == before
    shutil.rmtree(directory)
    directory.mkdir()
    mapping.write({"0": "4711\n"})
    assert sorted(path.name for path in directory.iterdir()) == [OWN, "0"]
    mapping.write({})
    assert files(directory) == {}


def test_files_of_other_programs_stay(directory: Path) -> None:
    """The agent neither replaces nor removes a file that it did not write."""
    (directory / "0").write_text("prolog\n")
    (directory / "README").write_text("x")
    mapping = GpuMapping(directory)
    mapping.write({"0": "4711\n", "1": "4711\n"})
    mapping.write({})
    assert files(directory) == {"0": "prolog\n", "README": "x"}


def test_after_a_restart(directory: Path) -> None:
    """After a restart the agent removes its own files of jobs that have ended."""
    GpuMapping(directory).write({"0": "4711\n", "1": "4711\n"})
    GpuMapping(directory).write({"1": "4713\n"})
    assert files(directory) == {"1": "4713\n"}


def test_links_are_not_followed(directory: Path, tmp_path: Path) -> None:
    """A link with the name of a draft is removed, not followed; a link with a GPU's name stays."""
    victim = tmp_path / "victim"
    victim.write_text("x")
    (directory / ".1.new").symlink_to(victim)
    (directory / "0").symlink_to(victim)
    GpuMapping(directory).write({"0": "4711\n", "1": "4711\n"})
    assert victim.read_text() == "x"
    assert (directory / "0").is_symlink()
    assert (directory / "1").read_text() == "4711\n"


def test_a_mapping_that_fails_costs_itself(directory: Path, tmp_path: Path) -> None:
    """Without the directory, the exporter counts the failure and still reads how jobs ended."""
    jobs = tmp_path / "run/rankwatch/jobs"
    jobs.mkdir(parents=True, mode=0o755)
    (jobs / "4.json").write_text('{"job_id": "4"}')
    directory.rmdir()

    async def run() -> tuple[int, int]:
        ctx = lent("jobs", FakeClock(), tmp_path)
        exporter = JobsExporter(JobsConfig(write_dcgm_mapping=str(directory)))
        await exporter.start(ctx)
        await exporter.update()
        return len(exporter.snapshot()), ctx.failures.skipped

    assert asyncio.run(run()) == (1, 1)
