"""Files about jobs: the owners that the exporter trusts, and the data that it uses."""

import asyncio
import contextlib
import gc
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from client_metrics import encode
from fake_clock import FakeClock
from hypothesis import given, settings
from lent import lent
from odd_values import damaged, shown

from agent.sdk.exporter import NoData
from agent.sdk.ranks import RankWriter
from exporters.jobs import records, sources, sources as directories
from exporters.jobs.exporter import JobsConfig, JobsExporter, render
from exporters.jobs.records import JobFile, ending, gpu_numbers, job_of
from exporters.jobs.sources import JobSources

NOW = 1.7e9
DATA = Path(__file__).parents[1] / "data" / "jobs"


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """Provide an empty directory of job files."""
    path = tmp_path / "run/rankwatch/jobs"
    path.mkdir(parents=True, mode=0o755)
    path.chmod(0o755)
    return path


def put(jobs: Path, job_id: str = "4", mode: int = 0o644, **fields: Any) -> Path:
    """Write a job's file."""
    path = jobs / f"{job_id}.json"
    path.write_text(json.dumps({"job_id": job_id, **fields}))
    path.chmod(mode)
    return path


def look(jobs: Path, *owners: int, **mapped: Path) -> tuple[list[str], dict[str, int]]:
    """Return the ids of the accepted jobs, and the counts of refused files."""
    trusted = owners or (os.geteuid(),)
    result = JobSources(jobs, mapped.get("dcgm"), mapped.get("amd"), trusted).look(NOW)
    assert result is not None
    return sorted(job.file.job_id for job in result[0]), {name: count for name, count in result[1].items() if count}


@pytest.mark.parametrize(("mode", "directory", "refused"), [
    (0o644, 0o755, ""),
    (0o664, 0o755, ""),  # the group is root's or the agent's own
    (0o646, 0o755, "owner"),
    (0o666, 0o755, "owner"),
    (0o644, 0o757, "directory"),
    (0o644, 0o777, "directory"),
    (0o644, 0o1777, "directory"),
])  # fmt: skip
def test_what_others_may_write_is_not_believed(jobs: Path, mode: int, directory: int, refused: str) -> None:
    """A file or a directory that other users can write is refused."""
    put(jobs, mode=mode)
    jobs.chmod(directory)
    assert look(jobs) == (([], {refused: 1}) if refused else (["4"], {}))


def test_what_another_user_or_group_has_is_not_believed(jobs: Path) -> None:
    """A directory or file of an untrusted user is refused, and so is a file that another group can write."""
    path = put(jobs, mode=0o664)
    assert look(jobs, os.geteuid() + 1) == ([], {"directory": 1})
    if os.geteuid() == 0:
        for owner in ((0, 1000), (1000, 1000)):
            os.chown(path, *owner)
            assert look(jobs) == ([], {"owner": 1})


def test_a_directory_that_the_agent_may_not_read(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreadable mapping of GPUs is refused; the files of jobs are read."""
    put(jobs)
    os_open = os.open

    def opened(path: Any, *args: Any, **more: Any) -> int:
        if path == jobs.parent:
            raise PermissionError(13, "denied")
        return os_open(path, *args, **more)

    monkeypatch.setattr(os, "open", opened)
    assert look(jobs, amd=jobs.parent) == (["4"], {"directory": 1})


def test_what_is_no_regular_file_is_refused(jobs: Path, tmp_path: Path) -> None:
    """A link, a FIFO and a directory are refused, and do not block."""
    put(tmp_path, "7")
    (jobs / "7.json").symlink_to(tmp_path / "7.json")
    os.mkfifo(jobs / "8.json", 0o644)
    (jobs / "9.json").mkdir(mode=0o755)
    assert look(jobs) == ([], {"kind": 3})


@pytest.mark.parametrize("content", [
    b"", b"{", b"[]", b"{}", b'{"job_id":4}', b'{"job_id":"5"}', b'{"job_id":"4","nodes":-1}',
    b'{"job_id":"4","nodes":1e300}', b'{"job_id":"4","user":"\xff"}', b'{"job_id":"4","user":null}',
    b'{"job_id":"4","x":' + b"[" * 16_000, b'{"job_id":"4","user":"%s"}' % (b"x" * (records.MAX_TEXT + 1)),
])  # fmt: skip
def test_what_is_no_record_is_refused(jobs: Path, content: bytes) -> None:
    """A file is refused if it is cut, names another job, or has invalid or too long values. Other files are read."""
    put(jobs, "6", user="x" * records.MAX_TEXT)
    put(jobs).write_bytes(content)
    assert look(jobs) == (["6"], {"content": 1})


def test_an_error_of_the_moment_refuses_no_file_for_ever(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that one look could not read is read at the next look, even if it has not changed."""
    put(jobs)
    source = JobSources(jobs, None, None, [os.geteuid()])
    with monkeypatch.context() as broken:
        broken.setattr(os, "read", lambda *_: os.close(-1))  # raises OSError
        assert source.look(NOW) == ((), {"content": 1})
    [job] = (source.look(NOW) or ((),))[0]
    assert job.file.job_id == "4"


def test_a_refused_file_costs_no_memory(jobs: Path) -> None:
    """Repeated looks at a refused file leave no objects in memory."""
    put(jobs).write_text("{")
    source = JobSources(jobs, None, None, [os.geteuid()])
    counts = [sum(isinstance(entry, TracebackType) for entry in gc.get_objects()) for _ in range(2) if source.look(NOW)]
    assert counts[0] == counts[1]


def test_a_file_is_bounded(jobs: Path) -> None:
    """A file above MAX_FILE_BYTES is refused."""
    for more, believed in ((0, (["4"], {})), (1, ([], {"size": 1}))):
        put(jobs).write_text('{"job_id":"4"}'.ljust(directories.MAX_FILE_BYTES + more))
        assert look(jobs) == believed


def test_files_and_names_are_bounded(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and names up to their limits are read; files and names above are counted."""
    monkeypatch.setattr(directories, "MAX_FILES", 3)
    for number, counted in ((1, {}), (2, {}), (3, {}), (4, {"count": 1})):
        put(jobs, str(number))
        assert look(jobs) == (["1", "2", "3"][:number], counted)
    for names in (4, 3):
        monkeypatch.setattr(directories, "MAX_ENTRIES", names)
        assert look(jobs)[1]["count"] == 1


@pytest.mark.parametrize(("fields", "state", "reason", "signal"), [
    ({"exit_code": 0}, "UNKNOWN", "", ""),
    ({}, "UNKNOWN", "", ""),
    ({"exit_code": 7}, "FAILED", "", ""),
    ({"exit_code": 0, "exit_signal": 15}, "UNKNOWN", "", "SIGTERM"),
    ({"exit_signal": 999}, "UNKNOWN", "", "999"),
    ({"exit_code": 0, "state": "CANCELLED", "reason": "None"}, "CANCELLED", "", ""),
    ({"exit_code": 7, "state": "TIMEOUT", "reason": "TimeLimit"}, "TIMEOUT", "TimeLimit", ""),
    ({"state": "TIMEOUT", "reason": "my own"}, "TIMEOUT", "", ""),
    ({"state": "SPECIAL_EXIT"}, "OTHER", "", ""),
])  # fmt: skip
def test_how_a_job_ended(fields: dict[str, Any], state: str, reason: str, signal: str) -> None:
    """The scheduler's state comes first, then a nonzero exit status; states and reasons are closed sets."""
    end = ending(JobFile("4", ended=5, **fields))
    assert (end.state, end.reason, end.signal) == (state, reason, signal)


@pytest.mark.parametrize(("text", "numbers"), [
    ("", ()),
    ("0", ("0",)),
    ("0,1,1", ("0", "1")),
    ("0-2,5", ("0", "1", "2", "5")),
    ("3-1", ()),
    ("a,GPU-1,-,1-", ()),
    ("0-999", tuple(map(str, range(records.MAX_GPUS)))),
    ("9999", ()),
])  # fmt: skip
def test_lists_of_gpus(text: str, numbers: tuple[str, ...]) -> None:
    """Numbers and ranges of GPUs are read up to the limit; other text is skipped."""
    assert gpu_numbers(text) == numbers


def test_a_future_end_is_never_used(jobs: Path) -> None:
    """An end in the future (a wrong clock) is never used, even when its time has come; a later report is used."""
    put(jobs, ended=int(NOW + sources.CLOCK_SLACK_SECONDS) + 1, state="CANCELLED")
    put(jobs, "5", ended=int(NOW + sources.CLOCK_SLACK_SECONDS), state="CANCELLED")
    source = JobSources(jobs, None, None, [os.geteuid()])

    def shown_jobs(now: float) -> list[str]:
        result = source.look(now)
        assert result is not None
        return sorted(job.file.job_id for job in result[0])

    assert shown_jobs(NOW) == shown_jobs(NOW + 60) == ["5"]
    put(jobs, ended=int(NOW) + 70, state="CANCELLED")
    assert shown_jobs(NOW + 70) == ["4", "5"]


def test_jobs_are_bounded() -> None:
    """Running jobs come first, then the jobs that ended last; running jobs above the limit are counted."""
    running = [job_of(JobFile(f"r{number}")) for number in range(records.MAX_RUNNING + 1)]
    ended = [job_of(JobFile(f"e{number}", ended=number)) for number in range(records.MAX_ENDED + 1)]
    shown_jobs, left_out = records.bounded([*ended, *running])
    names = {job.file.job_id for job in shown_jobs}
    assert (len(shown_jobs), left_out) == (records.MAX_RUNNING + records.MAX_ENDED, 1)
    assert f"e{records.MAX_ENDED}" in names
    assert "e0" not in names
    assert records.bounded(running[1:]) == (tuple(running[1:]), 0)


def test_a_name_cannot_be_markup() -> None:
    """Names are shown without control characters, and without mentions of a chat channel."""
    job = job_of(JobFile("4", user="ann", name="<!channel>\n\x1b[31mR&D"))
    page = encode(render((job,))).body.decode()
    assert 'name="?!channel???[31mR&D"' in page


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
    """Provide the list of ends that the rank table gets."""
    result: list[tuple[str, str]] = []
    monkeypatch.setattr(
        RankWriter, "observe_job_ends", lambda _, ends: result.extend((e.job_id, e.state) for e in ends)
    )
    return result


def test_the_rank_table_gets_ends(jobs: Path, tmp_path: Path, ends: list[tuple[str, str]]) -> None:
    """The rank table gets ended jobs' states; a scrape in an update has the last jobs; no directory is no source."""
    put(jobs, "1")
    put(jobs, "2", ended=int(NOW), state="CANCELLED")

    async def run() -> bytes:
        exporter = JobsExporter(JobsConfig())
        await exporter.start(lent("jobs", FakeClock(), tmp_path))
        await exporter.update()
        before = exporter.snapshot()
        text = encode(list(exporter.families(before))).body
        await asyncio.wait([update := asyncio.ensure_future(exporter.update())], timeout=0)
        assert exporter.snapshot() == before
        await update
        await asyncio.to_thread(shutil.rmtree, jobs)
        with pytest.raises(NoData):
            await exporter.update()
        assert exporter.snapshot() == ()
        return bytes(text)

    text = asyncio.run(run())
    assert ends == [("2", "CANCELLED")] * 2
    assert b'rankwatch_job_end_timestamp_seconds{code="",job_id="2",reason="",signal="",state="CANCELLED"}' in text
    assert b'rankwatch_job_allocation_info{account="",array_job_id="",array_task_id="",job_id="1"' in text


KNOWN = [path.read_bytes() for path in sorted((DATA / "run/rankwatch/jobs").glob("[0-9].json"))]
AMD = (DATA / "run/exporter/3").read_bytes()


@settings(max_examples=200, deadline=None)
@given(content=damaged(*KNOWN, AMD, b"20\n21\n"))
def test_any_file_is_a_record_or_none(content: bytes) -> None:
    """Any damaged file is refused, or gives a record that can be shown."""
    result = {}
    for read in (sources.read_job, sources.read_amd, sources.read_dcgm):
        with contextlib.suppress(ValueError, RecursionError):
            result[read.__name__] = read("4.json", content)
    jobs = [job_of(file) for file in result.values() if isinstance(file, JobFile)]
    mapped = [("0", file) for file in result.values() if isinstance(file, records.AmdFile)]
    mapped += [("1", file) for several in result.values() if isinstance(several, list) for file in several]
    shown(render(records.with_mappings(jobs, mapped)))
