"""The lines around a log's events that a bundle may hold, and what is masked in them."""

from __future__ import annotations

import time

import pytest

from agent.api import Wanted
from exporters.job_log.catalogue import catalogue
from exporters.job_log.evidence import log_part
from exporters.job_log.masking import MASKED, masked
from exporters.job_log.matcher import MAX_LINE_BYTES, events
from exporters.job_log.passages import (
    MAX_MASKED_TEXT,
    MAX_OF_A_CATEGORY,
    MAX_PASSAGES,
    MAX_PER_JOB,
    MAX_TEXT,
    OLD_SECONDS,
    LogPassages,
)
from exporters.job_log.progress import TrainingProgress
from exporters.job_log.tally import ShownLog

FILE = (1, 2)
CUDA = b"RuntimeError: CUDA error: an illegal memory access was encountered\n"
PIECES = [
    "SG.",
    "eyJaaaaaaaaa.",
    " -u " + "a" * 64,
    'key=\\"',
    "%3d",
    "A1a/",
    "12345678:",
    "key",
    "a.",
    "://",
    "token ",
    "Bearer ",
    "eyJ",
    '"',
    "auth=",
    "-",
    'key="\\\\',
    "/",
    'key="',
    "  ",
]
"""What a hostile line is made of."""
OOM = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


class Log:
    """A log that grows."""

    def __init__(self) -> None:
        self.passages = LogPassages()

    def write(self, *lines: bytes, job_id: str = "7", seconds: float = 100.0, file: tuple[int, int] = FILE) -> None:
        """Have lines read together."""
        data = b"".join(lines)
        found = [(event, "3") for event in events(data, catalogue())]
        self.passages.take(file, data, found, job_id, seconds)

    def lines(self, job_id: str = "7") -> list[tuple[str, ...]]:
        """The passages of a job."""
        return [each.lines for each in self.passages.of().get(job_id, ())]


def numbered(*numbers: int) -> list[bytes]:
    """Lines that tell of nothing."""
    return [b"line %d\n" % number for number in numbers]


def texts(*lines: bytes) -> tuple[str, ...]:
    """Lines as they are kept."""
    return tuple(line.decode().rstrip("\n") for line in lines)


@pytest.mark.parametrize("split", range(8))
def test_two_before_and_two_after(split: int) -> None:
    """An event is kept with the two lines before and the two after it, wherever reading stopped in between."""
    log = Log()
    whole = [*numbered(1, 2, 3), CUDA, *numbered(4, 5, 6)]
    log.write(*whole[:split])
    log.write(*whole[split:])
    assert log.lines() == [texts(*whole[1:6])]


def test_line_by_line() -> None:
    """Lines that come one by one, those of another file in between, make the same passage."""
    log = Log()
    for line in [*numbered(1, 2, 3), CUDA, *numbered(4, 5, 6)]:
        log.write(line)
        log.write(b"other\n", file=(1, 3))
    assert log.lines() == [texts(*numbered(2, 3), CUDA, *numbered(4, 5))]


def test_in_words() -> None:
    """The part has the lines as text, the event's marked; another job's are not in it, and none without the setting."""
    log = Log()
    log.write(*numbered(1), CUDA, b"next\x1b[31m red\n")
    log.write(OOM, job_id="8", file=(1, 3))
    shown = ShownLog("7", {}, None, None, (), TrainingProgress())
    part = log_part([shown], log.passages.of(), Wanted("7", {}, ()))
    assert part.files["lines.txt"].decode() == (
        "cuda_illegal_access, rank 3, 1970-01-01 00:01:40 UTC\n"
        "  line 1\n"
        "> RuntimeError: CUDA error: an illegal memory access was encountered\n"
        "  next [31m red\n"
    )
    assert log_part([shown], {}, Wanted("7", {}, ())).files.keys() == {"log.json"}


def test_the_first_of_a_category() -> None:
    """Of a category the first MAX_OF_A_CATEGORY are kept, until one comes long after the last of them."""
    log = Log()
    for number in range(MAX_OF_A_CATEGORY + 1):
        log.write(b"before %d\n" % number, CUDA, b"\n", b"\n")
    assert [lines[-4] for lines in log.lines()] == [f"before {number}" for number in range(MAX_OF_A_CATEGORY)]
    log.write(CUDA, seconds=100.0 + OLD_SECONDS - 1)
    assert len(log.lines()) == MAX_OF_A_CATEGORY
    log.write(b"later\n", CUDA, b"\n", seconds=100.0 + OLD_SECONDS)
    assert [lines[-3] for lines in log.lines()] == ["later"]


def test_a_job_that_floods_leaves_room_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a job MAX_PER_JOB are kept, of all MAX_PASSAGES: the job with most gives way to others."""
    monkeypatch.setattr("exporters.job_log.passages.MAX_OF_A_CATEGORY", 10 * MAX_PASSAGES)
    log = Log()
    log.write(*[CUDA] * (MAX_PER_JOB + 1))
    assert len(log.lines()) == MAX_PER_JOB
    for job in range(2 * MAX_PASSAGES // MAX_PER_JOB):
        log.write(*[CUDA] * MAX_PER_JOB, job_id=f"many-{job}", file=(2, job))
    log.write(CUDA, job_id="last", file=(3, 0))
    kept = log.passages.of()
    assert sum(map(len, kept.values())) == MAX_PASSAGES
    assert len(kept["last"]) == 1
    assert min(len(each) for job_id, each in kept.items() if job_id != "last") >= MAX_PER_JOB // 2 - 1
    log.passages.keep({FILE}, {"7"})
    assert log.passages.of().keys() == {"7"}


def test_a_flood_is_cheap() -> None:
    """A hundred thousand events of a category that has its passages cost less than a second."""
    log = Log()
    found = [(event, "3") for event in events(CUDA, catalogue())] * 100_000
    began = time.thread_time()
    log.passages.take(FILE, CUDA, found, "7", 100.0)
    assert time.thread_time() - began < 1.0


def test_long_lines() -> None:
    """Of a line MAX_TEXT characters are kept, and what is cut in the middle of a secret is masked before."""
    log = Log()
    secret = "hf_" + "a1B2" * 6
    start = CUDA.rstrip() + b" "
    line = start + b"x " * ((MAX_TEXT - len(start) - 10) // 2) + secret.encode() + b"\n"
    log.write(line, b"y " * MAX_LINE_BYTES + b"\n")
    [(first, second)] = log.lines()
    assert len(second) == MAX_TEXT
    assert len(first) <= MAX_TEXT
    assert "hf_" not in first


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("using AKIAIOSFODNN7EXAMPLE now", f"using {MASKED} now"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY x", f"AWS_SECRET_ACCESS_KEY={MASKED} x"),
        ("login with hf_abcdefghijklmnopqrstuvwxyz", f"login with {MASKED}"),
        ("ghp_0123456789abcdefghij done", f"{MASKED} done"),
        ("jwt eyJhbGciOiJIUzI1.eyJzdWIiOiIx.abc-_1 end", f"jwt {MASKED} end"),
        ("Authorization: Bearer abc.def.ghi, more", f"Authorization: {MASKED}"),
        ("{'Authorization': 'Basic dXNlcjpwYXNz'}", f"{{'Authorization': {MASKED}"),
        ("curl -H 'bearer abcdefgh12'", f"curl -H 'bearer {MASKED}'"),
        ("wandb_api_key: 0123456789", f"wandb_api_key: {MASKED}"),
        ('{"password": "two words", "lr": 1}', f'{{"password": {MASKED}, "lr": 1}}'),
        (r'{"secret": "with \" quotes", "lr": 1}', f'{{"secret": {MASKED}, "lr": 1}}'),
        ("it is wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY, keep", f"it is {MASKED}, keep"),
        ("python train.py --hub-token abc --lr 3", f"python train.py --hub-token {MASKED} --lr 3"),
        ("git clone https://ann:pass@example.org/x", f"git clone https://{MASKED}@example.org/x"),
        ("0123456789abcdef0123456789abcdef01234567", MASKED),
        ("MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7/abc+def=", MASKED),
        ("KeyError: 'rank'", "KeyError: 'rank'"),
        (
            '  File "/opt/conda/lib/python3.11/site-packages/torch/distributed/c10d.py", line 5',
            '  File "/opt/conda/lib/python3.11/site-packages/torch/distributed/c10d.py", line 5',
        ),
        ("RuntimeError: NCCL error in: ../torch/x.cpp:33, unhandled cuda error", None),
        ("n1:1:2 [0] NCCL WARN NET/IB: Got completion from peer 10.0.0.2<40000> with status=12 vendor_err=129", None),
    ],
)
def test_what_is_masked(line: str, expected: str | None) -> None:
    """Tokens, keys, passwords and credentials in addresses are masked; plain errors stay."""
    assert masked(line) == (line if expected is None else expected)


@pytest.mark.parametrize(
    "line",
    [
        r"{\"password\": \"hunter2\", \"lr\": 1}",
        r'"{\\\"api_key\\\": \\\"plain hunter2\\\", \\\"lr\\\": 1}"',
        "Cookie: theme=dark; id=hunter2",
        "[(b'Authorization', b'Custom hunter2')]",
        "[('x-api-key', 'plain hunter2')]",
        "https://store.blob.core.windows.net/c/f?sv=2022&sig=abc%2Bhunter2%3D",
        "https://f.example/x?token%3Dhunter2",
        "postgres://ann:with/slash-hunter2@db/x",
        "postgres://ann:with@sign-hunter2@db/x",
        "0: MIIEvQIBADANBgkqhkiG9w0BAQEF/AASCBKcwggSjAgEA/AoIBAQC7VJThunter2",
        "ca=MIIEvQIBADANBgkqhkiG9w0BAQEF/AASCBKcwggSjAgEA/AoIBAQC7VJThunter2",
        "post to https://hooks.slack.com/services/T00000000/B00000000/hunter2",
        "DB_PASS=hunter2",
        "{'user': 'ann', 'pass': 'two hunter2'}",
        "pwd=hunter2",
        "session_id=hunter2",
        "curl -s -u ann:hunter2 https://example.org",
        "password := hunter2",
        "password:            hunter2",
        "headers={'token': b'two hunter2'}",
        "Signature=hunter2",
        "AIzaSyA1234567890abcdefghijklmnophunter2",
        "sk_live_0123456789abcdhunter2",
        "dapi0123456789abcdef01234hunter2",
        "GOCSPX-0123456789abcdefhunter2",
        "hvs.0123456789abcdefhunter2",
        "dckr_pat_0123456789abcdefhunter2",
        "bot 8412345678:AAHdqTcvCH1vGWJxfSeofSAs0K5P-hunter2",
    ],
)
def test_a_secret_is_masked_wherever_it_stands(line: str) -> None:
    """A secret (hunter2) is masked in JSON in strings, headers, addresses, a key's lines, and by its maker's sign."""
    assert "hunter2" not in masked(line)
    assert MASKED in masked(line)


@pytest.mark.parametrize(
    "line",
    [
        "python -u train.py --lr 3",
        "forward pass: 3 ms, backward pass took 5 ms",
        "TypeError: f() missing 1 required argument: 'auth'",
        "in torch/distributed/fsdp/fully/sharded/data/parallel of 2 nodes",
        "connect to tcp://10.0.0.1:29500 failed",
    ],
)
def test_plain_lines_stay(line: str) -> None:
    """What has no secret in it is not masked."""
    assert masked(line) == line


def test_no_part_of_a_long_line_is_kept_unmasked() -> None:
    """Where masking makes a line so much shorter that its far end is kept, no secret is cut in two there."""
    words = [b"key=" + b"x" * 380] * 5
    start = CUDA.rstrip() + b" " + b" ".join(words)
    filler = b"y " * ((MAX_MASKED_TEXT - len(start) - 12) // 2)
    log = Log()
    log.write(start + b" " + filler + b" 8412345678:AAHdqTcvCH1vGWJxfSeofSAs0K5P-hunter2\n")
    [[line]] = log.lines()
    assert "8412345678" not in line
    assert "y y y" in line


@pytest.mark.parametrize("piece", PIECES)
def test_masking_takes_linear_time(piece: str) -> None:
    """No line of the greatest length takes a fifth of a second, whatever its user wrote into it."""
    line = (piece * MAX_LINE_BYTES)[:MAX_LINE_BYTES]
    began = time.thread_time()
    masked(line)
    assert time.thread_time() - began < 0.2
