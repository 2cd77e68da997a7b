"""The ranks that ran on this node when it went down, and the exits shown for them after the boot."""

import asyncio
from pathlib import Path

import pytest
from fake_clock import FakeClock
from test_liveness_registry import Job

from agent.app import boot_file
from agent.app.boot_file import NAME, BootFile
from agent.core.threads import OwnThread
from agent.ranks.liveness.job_liveness import RanBefore, liveness_of
from agent.ranks.rank.facts import Owner

BOOT = FakeClock().time() - FakeClock().monotonic()
JOBS = {"4711": RanBefore("alice", ["10", "9"], BOOT - 700.0, 16), "8": RanBefore("bob", ["0"], BOOT - 100.0)}


def file_of(directory: Path | None, boot_id: str) -> BootFile:
    """Return the boot file of an agent with this boot id."""
    return BootFile(directory, boot_id, OwnThread("test"))


def save(directory: Path | None, boot_id: str) -> None:
    """Write JOBS at 1.7e9 seconds."""
    asyncio.run(keep(file_of(directory, boot_id)))


async def keep(file: BootFile, seconds: float = 1.7e9) -> None:
    """Pass JOBS to the file, and wait until the write has ended."""
    file.keep(JOBS, seconds)
    if file._writing is not None:
        await file._writing


def test_ranks_are_known_after_a_boot_and_only_then(tmp_path: Path) -> None:
    """Only an agent of a later boot reads the ranks of the boot file."""
    save(tmp_path, "before")
    assert file_of(tmp_path, "before").load(1.7e9) == {}
    assert file_of(tmp_path, "after").load(1.7e9 + 120.0) == JOBS


@pytest.mark.parametrize("seconds", [-1.0, boot_file.MAX_AGE_SECONDS + 1.0])
def test_a_file_of_long_ago_or_of_the_future_says_nothing(tmp_path: Path, seconds: float) -> None:
    """The boot file is ignored if it is older than a day or from the future."""
    save(tmp_path, "before")
    assert file_of(tmp_path, "after").load(1.7e9 + seconds) == {}


def test_a_file_of_others_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The boot file is not read if other users may write it or if it is longer than the limit."""
    save(tmp_path, "before")
    size = (tmp_path / NAME).stat().st_size
    monkeypatch.setattr(boot_file, "MAX_FILE_BYTES", size - 1)
    assert file_of(tmp_path, "after").load(1.7e9) == {}
    monkeypatch.setattr(boot_file, "MAX_FILE_BYTES", size)
    assert file_of(tmp_path, "after").load(1.7e9) == JOBS
    (tmp_path / NAME).chmod(0o622)
    assert file_of(tmp_path, "after").load(1.7e9) == {}


def test_it_is_written_when_ranks_change(tmp_path: Path) -> None:
    """Equal ranks are written once; after a failed write the next tick writes again."""

    async def run() -> None:
        file = file_of(tmp_path / "state", "now")
        (tmp_path / "state").write_bytes(b"no directory")
        await keep(file)
        (tmp_path / "state").unlink()
        await keep(file)
        written = (tmp_path / "state" / NAME).stat().st_mtime_ns
        await keep(file)
        assert (tmp_path / "state" / NAME).stat().st_mtime_ns == written

    asyncio.run(run())
    assert file_of(tmp_path / "state", "next").load(1.7e9 + 60.0) == JOBS
    save(None, "now")


def test_a_job_that_runs_for_days_is_known_after_a_boot(tmp_path: Path) -> None:
    """Unchanged ranks are written once an hour, so that the file is recent after a power failure."""

    async def run() -> None:
        file = file_of(tmp_path, "before")
        await keep(file)
        await keep(file, 1.7e9 + boot_file.WRITE_SECONDS - 1.0)
        assert file_of(tmp_path, "after").load(1.7e9 + boot_file.MAX_AGE_SECONDS + 1.0) == {}
        await keep(file, 1.7e9 + boot_file.WRITE_SECONDS)

    asyncio.run(run())
    assert file_of(tmp_path, "after").load(1.7e9 + boot_file.MAX_AGE_SECONDS + 1.0) == JOBS


def test_after_a_boot_a_job_has_an_exit_until_it_runs_again() -> None:
    """After a boot, each job's lowest rank is a lead exit of class `reboot` until the job runs again."""
    job, clock = Job(ranks=0, world=16), FakeClock()
    clock.now = job.table.clock.now = 100.0
    job.table.ranks.liveness.note_ran_before(JOBS, clock)
    job.tick(20.0)
    assert (job.leads(), job.shown("job_ranks_live")) == ({("9", "reboot"): 120.0, ("0", "reboot"): 120.0}, {(): 0})
    assert {labels[5] for labels in job.shown("exit_age_seconds")} == {"long", "short"}
    job.start(9)
    job.tick(1.0)
    assert job.leads() == {("9", "reboot"): -1.0, ("0", "reboot"): 121.0}
    runs = job.table.ranks.liveness.running(job.table.ranks.processes.values())
    assert {job_id: ran.ranks for job_id, ran in runs.items()} == {"4711": ["9"]}


def test_the_exit_of_a_boot_has_the_user_of_other_exits() -> None:
    """A reboot exit of a rank in a container names the user, but counts against the container's limit."""
    job = Job(ranks=0)
    job.owner = Owner("container", "3f2a9c")
    job.start(0)
    job.tick(1.0)
    ran = job.table.ranks.liveness.running(job.table.ranks.processes.values())["4711"]
    line = liveness_of(ran, 0.0, BOOT, 300.0)
    assert (line.leads[0].user, line.share) == ("alice", job.owner.key)
