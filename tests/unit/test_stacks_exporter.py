"""The stacks exporter: the examined ranks, the times, and failures.

The program is a script that prints recorded output of py-spy; tests/e2e/test_stacks.py has the real one."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from client_metrics import samples
from fake_clock import FakeClock
from lent import lent
from proc_tree import ProcTree
from rank_table import KILLED, WORLD, RankTable, environment, owned, writer_key

from agent.helper.client import HelperHung
from agent.ranks.rank.facts import Owner
from agent.sdk.evidence import EvidenceRegistry, Wanted
from agent.sdk.exporter import NoData, Roots
from agent.sdk.ranks import Membership, ProcessKey
from exporters.stacks import StacksConfig, StacksExporter, dump, exporter as module
from exporters.stacks.dump import StackAnswer, StackRequest, take_stack
from exporters.stacks.exporter import AGAIN_SECONDS, MAX_RANKS, MAX_RANKS_PER_JOB, WAITING
from exporters.stacks.frames import MAX_FRAMES, MAX_NAME, MAX_TEXT, MAX_THREADS, Stack, others, stack_of

RECORDED = Path(__file__).parents[1] / "data/stacks/py-spy.json"
SILENCE = 180.0


def script(path: Path, text: str) -> Path:
    """Write a program that root may run."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


class Reader:
    """Stands in for a helper process: records the pids that it reads, and replies at once."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.labels: dict[int, str] = {}
        self.error: Exception | None = None
        self.hangs = 0

    async def call(self, request: StackRequest, _deadline_seconds: float) -> StackAnswer:
        self.pids.append(request.pid)
        await asyncio.sleep(0)
        if self.error is not None or request.pid == self.hangs:
            raise self.error or HelperHung("no answer")
        return StackAnswer("read", Stack(self.labels.get(request.pid, "all_reduce #1"), "text\n"))


class Node:
    """A node with ranks that have completed one operation, and the exporter."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.ranks = RankTable(self.clock, "here", settle_at_once=True)
        self.registry = EvidenceRegistry()
        self.reader = Reader()
        self.program = script(folder / "py-spy", f"cat {RECORDED}")
        self.exporter = StacksExporter(StacksConfig(enabled=True, py_spy=str(self.program)))
        self.keys: dict[int, ProcessKey] = {}

    async def start(self) -> None:
        lend: Any = lambda _spec: self.reader  # noqa: E731  # what a context has in this place
        more = {"ranks": self.ranks, "evidence": self.registry.of("stacks"), "roots": Roots(), "helper": lend}
        await self.exporter.start(lent("stacks", self.clock, **more))

    async def silent(self, ranks: int) -> None:
        """Add ranks of one job that complete no further operation."""
        for rank in range(ranks):
            self.add(100 + rank, rank)
        await self.look(1.0)

    def add(self, pid: int, rank: int, job: str = "7", uid: int = 1000) -> None:
        """Add a rank that works."""
        facts = owned(pid, environment(rank, 64, job), Owner("user", str(uid)), uid=uid)
        self.keys[pid] = facts.key
        self.ranks.observe_process(facts)
        self.progress(pid, rank, job)

    def progress(self, pid: int, rank: int, job: str = "7") -> None:
        member = Membership(f"{WORLD[:-1]}{job}", rank, 64, "world")
        self.ranks.observe_records(writer_key(pid), [member], self.clock.time())
        self.ranks.link(writer_key(pid), self.keys[pid])
        self.ranks.tick()

    async def look(self, seconds: float = 0.0) -> dict[str, str]:
        """Let time pass, look, and return the shown stacks by rank."""
        self.clock.advance(seconds)
        self.ranks.tick()
        await self.exporter.update()
        families = self.exporter.families(self.exporter.snapshot())
        outcome = [sample for sample in samples(families) if sample.name == "rankwatch_rank_stack_info"]
        return {sample.labels["rank"]: sample.labels["stack"] for sample in outcome}


@pytest.fixture
def made(tmp_path: Path) -> Node:
    """Provide a node with an exporter that has not started."""
    return Node(tmp_path)


@pytest.fixture
async def node(made: Node) -> Node:
    """Provide a node."""
    await made.start()
    return made


async def test_a_silent_job_is_looked_at_once_in_ten_minutes(node: Node) -> None:
    """A rank is examined once it has been silent for the limit, and again after ten minutes."""
    await node.silent(2)
    assert (await node.look(SILENCE - 1.0), node.reader.pids) == ({}, [])
    assert await node.look(1.0) == {"0": "all_reduce #1", "1": "all_reduce #1"}
    assert await node.look(AGAIN_SECONDS - 1.0) != {}
    assert node.reader.pids == [100, 101]
    await node.look(2.0)
    assert node.reader.pids == [100, 101, 100, 101]


async def test_ranks_that_continue_are_no_longer_shown(node: Node) -> None:
    """A rank that completes an operation, or exits, loses its stack at the next look."""
    await node.silent(3)
    assert len(await node.look(SILENCE)) == 3
    node.progress(100, 0)
    node.ranks.observe_exit(node.keys[101], KILLED)
    assert list(await node.look(1.0)) == ["2"]


async def test_a_job_that_stands_still_by_ras_is_looked_at(node: Node) -> None:
    """Ranks without records are examined if RAS reports that their job has stood still for the silence limit."""
    node.ranks.observe_process(owned(30, environment(0, 64, "9"), Owner("user", "1000"), uid=1000))
    ras, stalls = node.registry.of("ras"), {"9": SILENCE}
    ras.tell_stalls(lambda: stalls)
    assert (await node.look(SILENCE), node.reader.pids) == ({}, [])
    stalls["9"] = SILENCE + 1.0
    assert (await node.look(1.0), node.reader.pids) == ({"0": "all_reduce #1"}, [30])
    ras.close()
    assert await node.look(5.0) == {}


async def test_of_a_job_so_many_are_looked_at(node: Node) -> None:
    """At most MAX_RANKS_PER_JOB ranks of a job on this node are examined."""
    await node.silent(MAX_RANKS_PER_JOB + 1)
    assert len(await node.look(SILENCE)) == MAX_RANKS_PER_JOB


async def test_users_take_turns(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two users' jobs are examined one rank each in turns, and the table keeps at most MAX_RANKS."""
    monkeypatch.setattr(module, "MAX_RANKS", 3)
    for pid, rank, job in ((100, 0, "7"), (101, 1, "7"), (102, 2, "7"), (103, 3, "7"), (200, 0, "8"), (201, 1, "8")):
        node.add(pid, rank, job, uid=int(job))
    await node.look(1.0)
    await node.look(SILENCE)
    assert (node.reader.pids, len(node.exporter.snapshot().stacks)) == ([100, 200, 101, 201, 102, 103], 3)
    assert MAX_RANKS == 128


async def test_a_look_that_does_not_come_back_ends_looking(node: Node) -> None:
    """A look that hangs is counted, and stops the looks for ten minutes."""
    await node.silent(2)
    node.reader.error = HelperHung("no answer")
    assert node.exporter.snapshot().counts["unanswered"] == 0
    with pytest.raises(HelperHung):
        await node.look(SILENCE)
    node.reader.error = None
    assert (await node.look(AGAIN_SECONDS - 1.0), node.reader.pids) == ({}, [100])
    assert node.exporter.snapshot().counts["unanswered"] == 1
    assert len(await node.look(2.0)) == 2


async def test_a_bundle_has_suspects_and_two_others(node: Node) -> None:
    """A bundle has the stacks of the suspects and of two other ranks; without suspects, of all ranks."""
    await node.silent(6)
    part, pids = node.registry.of("test").all()["stacks"], {str(rank): 100 + rank for rank in range(6)}
    outcome = await part(Wanted("7", pids, ("4",)))
    assert (node.reader.pids[0], len(outcome.files)) == (104, 1 + WAITING)
    node.reader.labels[105] = "next_batch #2"
    every = await part(Wanted("7", pids, ()))
    assert sorted(every.files) == [f"rank-{rank}.txt" for rank in range(6)]
    blamed = [(word.rank, word.says) for word in every.words if word.blames]
    assert blamed == [("5", "its Python code is in next_batch #2")]
    assert sorted(node.reader.pids) == list(pids.values())


def test_the_program_must_be_roots(tmp_path: Path) -> None:
    """A missing program is a failure only with `enabled: true`; a program that other users may change never runs."""
    anybodys, missing = script(tmp_path / "anybodys", "true"), str(tmp_path / "none")
    anybodys.chmod(0o777)
    configs = (
        (StacksConfig(enabled=True, py_spy=missing), FileNotFoundError),
        (StacksConfig(enabled="auto", py_spy=missing), NoData),
        (StacksConfig(enabled="auto", py_spy=str(anybodys)), PermissionError),
    )
    for config, error in configs:
        exporter = StacksExporter(config)
        with asyncio.Runner() as runner:
            runner.run(exporter.start(lent("stacks", FakeClock(), roots=Roots())))
            with pytest.raises(error):
                runner.run(exporter.update())


@pytest.fixture
def asleep() -> Iterator[StackRequest]:
    """Provide a request for a sleeping process, without a program."""
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"]) as process:
        ticks = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])
        yield StackRequest("/none", "/proc", process.pid, ticks)
        process.kill()


@pytest.mark.parametrize(("text", "result"), [
    (f"cat {RECORDED}", "read"),
    ("echo '[]'", "no_python"),
    ("""echo '[{"frames": []}]'""", "no_python"),
    ("echo 'Error: Permission Denied: Try running again with elevated permissions' >&2; exit 1", "not_permitted"),
    ("echo 'Error: Failed to find python version from target process' >&2; exit 1", "no_python"),
    ("echo something else >&2; exit 1", "failed"),
    ("exec sleep 600", "failed"),
    ("exec cat /dev/zero", "too_large"),
])  # fmt: skip
def test_what_the_program_says(
    asleep: StackRequest, tmp_path: Path, text: str, result: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How the program ends decides the result; if it is slow or prints too much, it is killed."""
    monkeypatch.setattr(dump, "DUMP_SECONDS", 0.5)
    answer = take_stack(msgspec.structs.replace(asleep, program=str(script(tmp_path / "program", text))), b"")
    assert (answer.result, answer.stack is not None) == (result, result == "read")


def test_another_process_of_the_number(asleep: StackRequest) -> None:
    """A process with another start time is not read."""
    other = msgspec.structs.replace(asleep, start_ticks=asleep.start_ticks + 1)
    gone = StackRequest("/none", "/proc", 2**22 + 1, 5)
    assert [take_stack(request, b"").result for request in (other, gone, asleep)] == ["gone", "gone", "failed"]


@pytest.mark.parametrize(("state", "result"), [("D", "uninterruptible"), ("T", "read"), ("S", "read")])
def test_uninterruptible_sleep(tmp_path: Path, state: str, result: str) -> None:
    """A process with a thread in uninterruptible sleep is not examined; a stopped process is."""
    ProcTree(tmp_path / "proc").add(5, start=77, threads={6: "loader"}, thread_states={6: (state, 1)})
    request = StackRequest(str(script(tmp_path / "program", f"cat {RECORDED}")), str(tmp_path / "proc"), 5, 77)
    assert take_stack(request, b"").result == result


async def test_a_bundle_during_an_update(node: Node) -> None:
    """If a bundle and an update overlap, each rank is read once."""
    await node.silent(4)
    node.clock.advance(SILENCE)
    part = node.registry.of("test").all()["stacks"]
    await asyncio.gather(node.exporter.update(), part(Wanted("7", {}, ())))
    assert node.reader.pids == [100, 101, 102, 103]


async def test_a_bundle_keeps_what_was_read_before_a_look_failed(node: Node) -> None:
    """If a look hangs, the bundle has the stacks that were read before it."""
    await node.silent(3)
    node.reader.hangs = 102
    part = node.registry.of("test").all()["stacks"]
    outcome = await part(Wanted("7", {str(rank): 100 + rank for rank in range(3)}, ()))
    assert sorted(outcome.files) == ["rank-0.txt", "rank-1.txt"]


ANSWER = RECORDED.read_bytes()
PID = json.loads(ANSWER)[0]["pid"]


def frame(name: str = "wait", file: str = "a/train.py", line: int = 3) -> dict[str, Any]:
    """Return a call."""
    return {"name": name, "filename": f"/srv/{file}", "short_filename": file, "line": line}


def answer(*threads: dict[str, Any]) -> bytes:
    """Return the output of py-spy."""
    return json.dumps(threads).encode()


def thread(*frames: dict[str, Any], number: int = PID, name: str = "MainThread") -> dict[str, Any]:
    """Return a thread."""
    return {"frames": list(frames), "os_thread_id": number, "thread_name": name, "owns_gil": False, "pid": PID}


def stack(text: bytes) -> Stack:
    """Return the stack in a reply that has one."""
    outcome = stack_of(text, {PID})
    assert outcome is not None
    return outcome


def test_a_recorded_stack() -> None:
    """The main thread gives the label, even if another thread is first in the output; the text has both."""
    outcome = stack_of(ANSWER, {PID})
    assert outcome is not None
    assert outcome.label.startswith("all_reduce (hanging_rank.py) from train from (module) #")
    assert outcome.text.splitlines()[:2] == [f"thread {PID} MainThread", "    all_reduce (hanging_rank.py:48)"]
    assert "Thread-1 (stay)" in outcome.text


def test_lines_do_not_tell_stacks_apart() -> None:
    """Two ranks on different lines of one loop have the same stack; with another caller five calls up they do not."""
    calls = [frame(name) for name in "abcde"]
    one, same = (stack(answer(thread(frame("a", line=line), *calls[1:]))) for line in (3, 4))
    assert one.label == same.label == stack(answer(thread(*calls, frame("z")))).label
    assert one.label != stack(answer(thread(*calls[:4], frame("z")))).label


def test_the_main_thread_by_its_name() -> None:
    """Without a thread with the process's number, the thread named main is used, otherwise the last thread."""
    named = stack(answer(thread(frame("x"), number=1, name="other"), thread(frame("y"), number=2)))
    last = stack(answer(thread(frame("x"), number=1, name="a"), thread(frame("y"), number=2, name="b")))
    assert named.label[0] == last.label[0] == "y"


def test_bounds() -> None:
    """Names, frames, threads and text are kept up to their limits, without unprintable characters."""
    long = stack(answer(thread(frame("n" * (MAX_NAME + 1), "f" * (MAX_NAME + 1)))))
    deep = stack(answer(thread(*[frame()] * (MAX_FRAMES + 1))))
    wide = stack(answer(*[thread(frame(), number=number) for number in range(MAX_THREADS + 1)]))
    large = stack(answer(*[thread(*[frame("n" * MAX_NAME)] * MAX_FRAMES)] * MAX_THREADS))
    odd = stack(answer(thread(frame("a\x1b[31m\n<!channel>"), name="\x07")))
    assert long.label.startswith(f"{'n' * MAX_NAME} ({'f' * MAX_NAME}) #")
    assert (deep.text.count("wait"), wide.text.count("thread "), len(large.text)) == (MAX_FRAMES, MAX_THREADS, MAX_TEXT)
    assert odd.label.startswith("a?[31m?(!channel) (train.py) #")
    assert "\x07" not in odd.text


@pytest.mark.parametrize(("stacks", "elsewhere"), [
    ("aaaaaaab", "7"), ("aaab", "3"), ("aab", ""), ("aabb", ""), ("aaaabb", ""), ("aaaaaabb", "67"), ("aaaaaabc", "67"),
    ("aabcdefg", ""), ("aaaaaaaa", ""), ("", ""),
])  # fmt: skip
def test_who_is_elsewhere(stacks: str, elsewhere: str) -> None:
    """Of four or more ranks, one is elsewhere if at most a quarter have its stack and over half share another."""
    assert "".join(others({str(rank): stack for rank, stack in enumerate(stacks)})) == elsewhere
