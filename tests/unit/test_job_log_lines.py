"""Log lines of jobs: their categories, groups and ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from job_log_jobs import CATALOGUE, classify, event

from agent.cli.explain.details import ADVICE
from exporters.job_log.catalogue import ProgressPattern, catalogue, failures, progress
from exporters.job_log.matcher import MAX_LAST_LINES, MAX_LINE_BYTES, Speaker, events, speaker_of

DATA = Path(__file__).parents[1] / "data/job_log"
ELSEWHERE = {
    "torch.timeout": {"rank"},
    "torch.watchdog_exc": {"what"},
    "nccl.warn": {"dev", "file", "host", "pid"},
    "hip.fault": {"node"},
}
"""Groups that the test skips: they depend on the line's beginning, have another name, or are not needed."""


def rows(name: str) -> list[list[str]]:
    """Return the rows of a table of lines."""
    return [line.split("\t") for line in (DATA / name).read_text().splitlines() if not line.startswith("#")]


RECORDED = [
    (category, json.loads(groups), what, json.loads(line)) for what, category, groups, line in rows("lines.tsv")
]


def test_every_recorded_line_has_its_category() -> None:
    """Each recorded line of a failure or an end has its hand-labelled category; other lines have none."""
    others = {None, "launcher_failed", "program_error"}
    for category, _, _, line in RECORDED:
        result = classify(line.encode())
        shown = None if result is None else result.rule.category
        assert category == "?" or shown == category or (category == "-" and shown in others), line


def test_every_recorded_line_has_its_groups() -> None:
    """Each group of a recorded line has the expected text."""
    for category, groups, what, line in RECORDED:
        if category not in {"-", "?"}:
            expected = {
                name: text or "" for name, text in (groups or {}).items() if name not in ELSEWHERE.get(what, set())
            }
            assert {name: event(line).text(name) for name in expected} == expected, line


@pytest.mark.parametrize("entry", failures().entries, ids=lambda entry: entry.category)
def test_examples(entry: object) -> None:
    """Each example of an entry has its category and role, alone and between other text."""
    for example in entry.examples:  # type: ignore[attr-defined]  # an Entry
        data = f"nothing here\n{example}\nand nothing here\n".encode()
        result = [(one.rule.category, one.rule.role) for one in events(data, CATALOGUE)]
        assert result == [(entry.category, entry.role)], example  # type: ignore[attr-defined]


@pytest.mark.parametrize("pattern", progress().patterns, ids=lambda pattern: f"{pattern.kind}-{pattern.contains}")
def test_examples_of_progress(pattern: ProgressPattern) -> None:
    """Each example line of a progress pattern gives one event of the pattern's kind."""
    assert pattern.examples
    for example in pattern.examples:
        assert [one.rule.category for one in events(example.encode() + b"\n", CATALOGUE)] == [pattern.kind], example


def test_what_is_searched_for_first_is_in_every_line() -> None:
    """Each word that an entry searches for contains an anchor, so the first search, for anchors, misses no line."""
    anchors = [anchor.text for anchor in CATALOGUE.anchors]
    words = {word for rule in CATALOGUE.rules for word in rule.contains}
    assert [word for word in words if not any(anchor in word for anchor in anchors)] == []
    assert [anchor for anchor in anchors if not any(anchor in word for word in words)] == []


def test_advice_is_of_causes_that_are_certain() -> None:
    """Only root causes that are not weak have advice, and `rankwatch explain` has a sentence for each advice."""
    strong = {entry.category for entry in failures().entries if entry.role == "root" and not entry.weak}
    assert set(failures().advice) - strong == set()
    assert set(failures().advice.values()) == ADVICE.keys()
    assert failures().advice.keys() & {"gpu_memory_taken", "cuda_illegal_access", "hip_page_fault"} == set()


def test_memory_is_taken_by_another_process_alone() -> None:
    """Memory is taken by another process only if it uses 10 GiB or more and the line has the rank's own use."""
    before = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB. "
    other = "Process 4242 has 70.00 GiB memory in use. "
    own = "Including non-PyTorch memory, this process has 8.00 GiB memory in use. "
    peer = "Process 890 has 1.35 GiB memory in use. "  # recorded on an H100 that four ranks shared
    small, large = "Process 890 has 9.99 GiB memory in use. ", "Process 890 has 10.00 GiB memory in use. "
    for text, category in (
        (other, "cuda_oom"), (other + own, "gpu_memory_taken"), (own + other, "gpu_memory_taken"),
        (peer * 3 + own, "cuda_oom"), (own + small, "cuda_oom"), (own + large, "gpu_memory_taken"),
        (peer + other + own, "gpu_memory_taken"),
    ):  # fmt: skip
        assert event(before + text).rule.category == category


@pytest.mark.parametrize(("line", "speaker"), [
    ("[rank7]:[E816 1 x.cpp:607] [Rank 3] Watchdog caught", Speaker(rank=7)),
    ("7: srun: error", Speaker(task=7)),
    ("404: [rank404]: RuntimeError: x", Speaker(rank=404, task=404)),
    ("[default0]:[rank12]:[E8", Speaker(rank=12)),
    ("[PG ID 3 PG GUID 5(tp) Rank 2] x", Speaker()),
    ("[PG ID 0 PG GUID 0(default_pg) Rank 118] x", Speaker(rank=118)),
    ("[PG 0 (default_pg) Rank 7] x", Speaker(rank=7)),
    ("[Rank 7] Some NCCL operations", Speaker()),
    ("[2026-04-22 21:34:20] n-4:20:22 [0] misc/x.cc:1 NCCL WARN x", Speaker(host="n-4", pid=20)),
    ("(RayWorkerWrapper pid=4009) [rank1]:[E x", Speaker(rank=1, pid=4009)),
    ("(Worker_TP0 pid=123) hello", Speaker(pid=123)),
    ("\x1b[36m(RayTrainWorker pid=123, ip=192.0.2.1)\x1b[0m hello", Speaker(host="192.0.2.1", pid=123)),
    ("[1,7]<stderr>:RuntimeError: x", Speaker(task=7)),
    ("[prterun-n1-123@1,7]<stdout>: x", Speaker(task=7)),
    ("", Speaker()),
])  # fmt: skip
def test_who_wrote_a_line(line: str, speaker: Speaker) -> None:
    """A rank counts as global only if the line says so or names the group of all ranks."""
    assert speaker_of(line.encode()) == speaker


def test_only_the_beginning_of_a_long_line_is_looked_at() -> None:
    """Patterns read the first 8 KiB of a line, and a line of 1 MB of anchors takes little time."""
    tail = b"RuntimeError: CUDA error: an illegal memory access was encountered"
    inside = b"x" * (MAX_LINE_BYTES - len(tail)) + tail + b"\n"
    anchors = b"CUDA out of memory rror: " * 40_000 + b"\n"
    lines = {inside: ["cuda_illegal_access"], b"x" * len(tail) + inside: [], anchors: ["cuda_oom"]}
    assert {line: [one.rule.category for one in events(line, CATALOGUE)] for line in lines} == lines


def test_the_last_progress_lines_count() -> None:
    """Of many progress lines the last ones are used, even with other lines between them."""
    data = b"".join(b"iteration %d/ 5000 | x |\nRuntimeError: x\n" % number for number in range(20))
    result = [one.number("iteration") for one in events(data, CATALOGUE)]
    assert [number for number in result if number is not None] == list(range(20 - MAX_LAST_LINES, 20))
    assert result.count(None) == 20


def test_interleaved_writers_and_binary() -> None:
    """Interleaved lines, NULs and bytes that are no text hide no whole line; a pod's prefix is skipped."""
    data = b"\x00\xff\xfe [rank1]: Runtime[rank2]: ValueError: x\n\x00\n\n[rank3]: ValueError: y\nRuntimeErr\xff"
    assert [(one.rule.category, one.speaker.rank) for one in events(data, CATALOGUE)] == [("program_error", 3)]
    result = event("2026-11-01T10:11:12.123456789Z stderr F [rank2]: ValueError: no")
    assert (result.rule.category, result.speaker.rank) == ("program_error", 2)


def test_a_sites_own_patterns_of_progress() -> None:
    """A site's pattern comes first; an invalid pattern, or one without an iteration, is refused."""
    own = ProgressPattern(kind="iteration", contains="tick ", pattern=r"tick (?P<iteration>\d+)")
    result = classify(b"tick 17 of all", catalogue([own]))
    assert result is not None
    assert result.number("iteration") == 17
    for pattern in ("tick (", r"tick \d+"):
        with pytest.raises(ValueError, match=r"expression|iteration"):
            catalogue([ProgressPattern(kind="iteration", contains="tick ", pattern=pattern)])


def test_other_lines() -> None:
    """Ordinary lines have no category, and neither have a shell's words in other text."""
    for category, line in rows("other_lines.tsv"):
        result = classify(line.encode())
        assert ("-" if result is None else result.rule.category) == category, line


def test_a_failed_node_is_not_the_one_whose_step_ends() -> None:
    """slurmstepd's line is about a live node and blames none; srun's line names the failed node."""
    result = event(
        "slurmstepd: error: *** STEP 7.0 ON n17 CANCELLED AT 2023-03-06T03:17:51 DUE TO NODE FAILURE, "
        "SEE SLURMCTLD LOG FOR DETAILS ***"
    )
    assert (result.rule.category, result.rule.role, result.text("node")) == ("node_failed", "root", "")
    assert event("srun: error: Node failure on n37").text("node") == "n37"
    several = event("srun: error: Node failure on n[37-38]")
    assert (several.rule.category, several.text("node")) == ("node_failed", "")
