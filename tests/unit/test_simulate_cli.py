"""The options of the simulated job, and the environment of its ranks."""

import subprocess
import sys
from pathlib import Path

import pytest

from agent.simulate.cli import job_of, main, make_parser
from agent.simulate.job import Job
from agent.simulate.launcher import rank_environment

ROOT = Path(__file__).resolve().parents[2]
JOB = Job(job_dir="/j", dump_dir="/d", ranks=8, hosts=2, host_index=1, tp=2)


@pytest.mark.parametrize(("options", "said"), [
    ("--ranks 1", "'1' is not a whole number of 2 or more"),
    ("--ranks 4 --slow-link 1", "no communicator of rank 1 uses the network"),
    ("--ranks 7 --hosts 2", "7 ranks cannot be spread over 2 hosts"),
    ("--ranks 8 --tp 3", "TP groups of 3 do not fit into 8 ranks"),
    ("--ranks 8 --hosts 2 --host-index 2 --job-dir /tmp/x", "--host-index 2 is not one of 2 hosts"),
    ("--hosts 2", "more than one host needs --job-dir"),
    ("--ranks-per-process 3", "--ranks-per-process 3 does not divide 8"),
    ("--kill 1,8", "there is no rank [8] among 8"),
    ("--straggler 8", "there is no rank [8]"),
    ("--kill 1 --kill-signal BOOM", "--kill-signal BOOM is not a signal"),
    ("--exit-code 256", "--exit-code 256 is more than 255"),
    ("--duration -1", "'-1' is not a number of 0 or more"),
    ("--duration nan", "'nan' is not a number"),
    ("--records-per-second 0", "it must be more than 0"),
    ("--kill 1,", "'' is not a whole number"),
    ("--teardown mpirun", "invalid choice: 'mpirun'"),
    ("--no-such-option", "unrecognized arguments: --no-such-option"),
    ("--job-dir /nonexistent/a/b", "cannot use /nonexistent/a/b: No such file or directory"),
])  # fmt: skip
def test_nonsense_is_refused_in_one_line(options: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An invalid option gives exit status 2 and one line on standard error that names the mistake."""
    with pytest.raises(SystemExit) as stopped:
        main(options.split())
    output = capsys.readouterr()
    assert (stopped.value.code, output.err.count("\n")) == (2, 1)
    assert said in output.err
    assert output.out == ""


def test_a_used_job_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job directory with files of an earlier job is refused, because the jobs would share a progress file."""
    (tmp_path / "job-0.json").touch()
    with pytest.raises(SystemExit):
        main(["--job-dir", str(tmp_path)])
    assert "job-0.json exists already: give each job its own --job-dir" in capsys.readouterr().err


def test_help_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    """--help exits with 0 and explains the signals and the failures."""
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert "SIGUSR1 ends the job in order" in text
    assert "--straggler RANK" in text


def test_options_are_the_jobs_fields() -> None:
    """Every option sets a field of the job, and every field has an option."""
    assert {*vars(make_parser().parse_args([]))} == {*Job._fields}


def test_a_rank_needs_the_standard_library_only() -> None:
    """The rank's module imports only the standard library."""
    code = "import sys, agent.simulate.rank; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    loaded = {*run.stdout.split()}
    assert not {"msgspec", "argparse", "subprocess", "asyncio", "ctypes", "dataclasses", "hashlib"} & loaded


INHERITED = {"HOME": "/h", "RANK": "99", "SLURM_PROCID": "5", "SLURM_JOB_ID": "old", "TORCHELASTIC_RUN_ID": "old"}
MASTER = {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(("changes", "ranks", "expected"), [
    ({}, (6,), {**MASTER, "RANK": "6", "LOCAL_RANK": "2"}),
    ({"scheduler": "slurm"}, (6,), {**MASTER, "RANK": "6", "LOCAL_RANK": "2", "SLURM_JOB_ID": "4711"}),
    ({"scheduler": "torchrun", "rank_environment": False}, (6,), {"TORCHELASTIC_RUN_ID": "4711"}),
    ({"scheduler": "pbs", "rank_environment": False}, (6,), {"PBS_JOBID": "4711"}),
    ({"scheduler": "lsf", "rank_environment": False}, (6,), {"LSB_JOBID": "4711"}),
    ({"rank_environment": False}, (6,), {}),
    ({}, (4, 5), MASTER),
])  # fmt: skip
def test_rank_environment(changes: dict[str, object], ranks: tuple[int, ...], expected: dict[str, str]) -> None:
    """Ranks have only their own variables, and none of a surrounding job."""
    made = rank_environment(JOB._replace(**changes), ranks, INHERITED, ["", "/a", "/b"])  # type: ignore[arg-type]
    assert made == {"HOME": "/h", "PYTHONPATH": "/a:/b", "SLURM_JOB_NAME": "simulated", **expected}


@pytest.mark.parametrize(("flags", "shown"), [
    ("--job-id 4711", ("torchrun", "4711")),
    ("--job-id 4711 --scheduler slurm", ("slurm", "4711")),
    ("--job-id 4711 --scheduler none", ("none", "4711")),
    ("", ("none", "4711")),
])  # fmt: skip
def test_the_id_that_is_given_is_shown(flags: str, shown: tuple[str, str]) -> None:
    """A job's id is in its ranks' environment, in torchrun's variable unless a scheduler is named."""
    job = job_of(make_parser().parse_args(flags.split()))
    assert (job.scheduler, job.job_id) == shown
