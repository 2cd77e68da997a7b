"""Masking of log lines for a bundle: 204 shapes of secrets, and lines without secrets."""

import json
import time
from pathlib import Path

import pytest

from exporters.job_log.masking import MASKED, MAX_GROWTH, masked, readings
from exporters.job_log.matcher import MAX_LINE_BYTES

DATA = Path(__file__).parents[1] / "data"
KNOWN_LEAKS = 4
"""docs/evidence.md describes each."""
PLAIN_FILES = [
    *sorted((DATA / "job_log/logs").iterdir()),
    DATA / "nvrx/logs/job_4711.log",
    DATA / "ras/rccl_2.28.3_degraded.txt",
    DATA / "xid/lines.tsv",
    *sorted((DATA / "madengine/out").glob("*.out")),
    *sorted((DATA / "madengine/out").glob("*.err")),
]
"""Recorded lines of jobs and of the kernel, which have no secrets."""
PIECES = [
    "SG.", "eyJaaaaaaaaa.", " -u " + "a" * 64, 'key=\\"', "%3d", "A1a/", "12345678:", "key", "a.", "://",
    "token ", "Bearer ", "eyJ", '"', "auth=", "-", 'key="\\\\', "/", 'key="', "  ", "password ", "password(",
    "password=(", "password='\\''", "key=('\\\\", "<password ", "</a><b>", 'secret"value', 'password " a="b"',
    'value="a" name="', "secret for ", "secret is ", "echo ", "snmpget ", "snmpget -A ", "ssh-keygen ",
    "kinit ", "expect ", "net use ", "wandb ", " /p:", "password, ", "mysql ", "zip -p ", "\x1b]", "\x1b[",
    "p\b", "\0", "aB1", "aB1-", "\ufdfa", "ann:", "authorization,", "-----BEGIN KEY-----",
]  # fmt: skip
"""The parts of a hostile line."""


def rows(name: str) -> list[list[str]]:
    """Return the rows of a table in the exporter's data."""
    lines = (DATA / "job_log" / name).read_text().splitlines()[1:]
    return [line.split("\t") for line in lines]


SECRETS = [(shape, secret, json.loads(line)) for shape, secret, line in rows("secrets.tsv")]


def test_every_shape_of_a_secret() -> None:
    """Of more than 100 shapes of secrets only the documented ones stay visible."""
    leaks = [shape for shape, secret, line in SECRETS if secret in masked(line) or MASKED not in masked(line)]
    assert leaks == [shape for shape, *_ in SECRETS if shape.startswith("leaks: ")]
    assert (len(SECRETS) > 100, len(leaks)) == (True, KNOWN_LEAKS)


def test_recorded_lines_stay() -> None:
    """Recorded lines of launchers, libraries and drivers stay as they are."""
    lines = [line for path in PLAIN_FILES for line in path.read_text().splitlines()]
    lines += [json.loads(line) for *_, line in rows("lines.tsv")]
    assert [masked(line) for line in lines] == lines


def test_a_value_on_the_next_line() -> None:
    """The line after a secret's name, and the last line of a key, are masked; other lines are not."""
    for before, line, expected in (
        ("password:", "  hunter2", f"  {MASKED}"),
        ("db_password: |", "    two hunter2", f"    {MASKED}"),
        ('"api_key":', '  "hunter2",', f"  {MASKED}"),
        (MASKED, "Zm9vYmFy", MASKED),
        ("password:", "", ""),
        ("loss: 3", "hunter2", "hunter2"),
        (MASKED, "step 3 of 5", "step 3 of 5"),
    ):
        assert masked(line, before) == expected


def test_what_steers_a_terminal_is_gone() -> None:
    """Escape sequences, control characters and invisible characters are removed; a carriage return becomes a space."""
    for line, shown in (
        ("\x1b[31mred\x1b[0m and \x1b]0;title\x07plain", "red and plain"),
        ("a\u200bb\u202ec\x07d", "abcd"),
        ("step 1\rstep 2", "step 1 step 2"),
        ("tab\tstays", "tab\tstays"),
    ):
        assert masked(line) == shown


def test_wide_letters_do_not_blow_a_line_up() -> None:
    """A line stays as it is if it would be more than twice as long in plain letters."""
    assert readings("\uff41\ufdfa") == ["\uff41\ufdfa"]
    assert readings("\uff41\ufb01") == ["afi"]
    assert len("afi") <= MAX_GROWTH * 2


@pytest.mark.parametrize(("line", "expected"), [
    ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY x", f"AWS_SECRET_ACCESS_KEY={MASKED} x"),
    ("jwt eyJhbGciOiJIUzI1.eyJzdWIiOiIx.abc-_1 end", f"jwt {MASKED} end"),
    ("Authorization: Bearer abc.def.ghi, more", f"Authorization: {MASKED}"),
    ("{'Authorization': 'Basic dXNlcjpwYXNz'}", f"{{'Authorization': {MASKED}"),
    ('{"password": "two words", "lr": 1}', f'{{"password": {MASKED}'),
    (r'{"secret": "with \" quotes", "lr": 1}', f'{{"secret": {MASKED}'),
    ("git clone https://ann:pass@example.org/x", f"git clone https://{MASKED}@example.org/x"),
    ("passx\bword: hunter2, ghp_0123456789abcdefghij, ghp_0123456789abcdefghik", f"password: {MASKED}"),
    ("KeyError: 'rank'", "KeyError: 'rank'"),
    ('  File "/opt/conda/lib/python3.11/site-packages/torch/distributed/c10d.py", line 5',
     '  File "/opt/conda/lib/python3.11/site-packages/torch/distributed/c10d.py", line 5'),
    ("RuntimeError: NCCL error in: ../torch/x.cpp:33, unhandled cuda error", None),
    ("n1:1:2 [0] NCCL WARN NET/IB: Got completion from peer 10.0.0.2<40000> with status=12 vendor_err=129", None),
    ("forward pass: 3 ms, backward pass took 5 ms", None),
    ("TypeError: f() missing 1 required argument: 'auth'", None),
    ("in torch/distributed/fsdp/fully/sharded/data/parallel of 2 nodes", None),
    ("connect to tcp://10.0.0.1:29500 failed", None),
])  # fmt: skip
def test_what_is_masked(line: str, expected: str | None) -> None:
    """Tokens, keys, passwords and credentials in addresses are masked; plain errors stay."""
    assert masked(line) == (line if expected is None else expected)


@pytest.mark.parametrize("piece", PIECES)
def test_masking_takes_linear_time(piece: str) -> None:
    """Any line of the maximum length is masked in less than 0.2 s."""
    line, began = (piece * MAX_LINE_BYTES)[:MAX_LINE_BYTES], time.thread_time()
    masked(line)
    assert time.thread_time() - began < 0.2
