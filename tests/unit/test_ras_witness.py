"""RAS reports as evidence about this node's processes."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from rank_table import Table

from agent.sdk.exporter import OwnThread
from agent.sdk.ranks import ProcessFacts, ProcessKey, PublishedProcess, RasSilence
from exporters.ras.local.sockets import MAX_ADDRESSES, addresses_in
from exporters.ras.query.jobs import OwnedJob
from exporters.ras.query.witness import Witness, silences, unambiguous
from exporters.ras.report.model import Communicator, MissingRank, MissingReason, RankLocation, Report

HERE = "10.0.0.1"
A, B, C = ProcessKey(4001, 1), ProcessKey(4002, 1), ProcessKey(4003, 1)
NAMES = {A: (HERE, 1), B: (HERE, 2)}


def report(answered: tuple[int, ...], missed: dict[int, MissingReason], host: str = HERE) -> Report:
    """Return a report of one communicator of processes on one host, by their pids."""
    named = tuple(MissingRank(pid, RankLocation(host, pid, 0), reason=reason) for pid, reason in missed.items())
    size = len(answered) + len(missed)
    result = Communicator("0xab", size, len(answered), len(missed), None, None, named)
    return Report("2.30.7", (result,), frozenset((host, pid) for pid in answered), 0, {})


MISSED = RasSilence(10.0, 1010.0, 1)


@pytest.mark.parametrize(("missed", "others", "present", "silent"), [
    pytest.param({2: "unresponsive"}, [], {}, {B: MISSED}, id="missed"),
    pytest.param({2: "no_communicator"}, [], {}, {}, id="makes another communicator"),
    pytest.param({1: "dead", 2: "dead"}, [], {B}, {A: MISSED, B: replace(MISSED, contradicted=True)}, id="greeted"),
    pytest.param({2: "dead"}, [report((2,), {1: "dead"})], {}, {B: replace(MISSED, contradicted=True)},
     id="dead to all others after a minute's stop, it answers for itself"),
])  # fmt: skip
def test_who_is_silent(
    missed: dict[int, MissingReason],
    others: list[Report],
    present: set[ProcessKey],
    silent: dict[ProcessKey, RasSilence],
) -> None:
    """A silence begins at the first report without the process; a contradicting reply does not end the silence."""
    answered = tuple({1, 2} - missed.keys())
    result = silences({}, report(answered, missed), others, NAMES, (10.0, 1010.0), present)
    assert result == silent
    result = silences(result, report(answered, missed), [], NAMES, (20.0, 1020.0))
    assert result == {key: replace(known, reports=2) for key, known in silent.items()}
    assert silences(result, report((1, 2), {}), [], NAMES, (30.0, 1030.0)) == {}


@pytest.fixture
def proc_root(tmp_path: Path) -> Path:
    """Provide a /proc with the addresses of the processes' network."""
    (tmp_path / f"{C.pid}/net").mkdir(parents=True)
    (tmp_path / f"{C.pid}/net/fib_trie").write_text("|-- 192.0.2.2\n   /32 host LOCAL\n")
    return tmp_path


async def test_only_missing_processes_that_never_answered_are_greeted(proc_root: Path) -> None:
    """A process missing from reports is greeted until it has replied once; a process in the report is never greeted."""
    table, thread, greeted = Table(), OwnThread("ras"), []

    async def greet(keys: frozenset[ProcessKey]) -> frozenset[ProcessKey]:
        greeted.append(set(keys))
        return keys & {B}

    witness = Witness(table.ranks, table.clock, thread, proc_root)
    here = [
        PublishedProcess(0.0, facts=ProcessFacts(key, 0.0, number, "", "")) for number, key in ((1, A), (2, B), (3, C))
    ]
    for _ in range(2):
        await witness.update_liveness(
            OwnedJob("4711"), report((3,), {1: "dead", 2: "unresponsive"}, "192.0.2.2"), [], here, greet
        )
    thread.stop()
    assert greeted == [{A, B}, {A}]


@pytest.mark.parametrize(("result", "expected"), [
    ([(A, (HERE, 1)), (B, (HERE, 2))], {A: (HERE, 1), B: (HERE, 2)}),
    ([(A, (HERE, 7)), (B, (HERE, 7))], {}),
    ([(A, (HERE, 7)), (A, ("10.0.0.9", 7))], {}),
    ([], {}),
])  # fmt: skip
def test_only_names_of_one_process_count(
    result: list[tuple[ProcessKey, tuple[str, int]]], expected: dict[ProcessKey, tuple[str, int]]
) -> None:
    """Two processes with the same name, or two names of one process, prove nothing."""
    assert unambiguous(result) == expected


def test_addresses_beyond_the_limit_are_left_out(tmp_path: Path) -> None:
    """At most MAX_ADDRESSES addresses are used; text that is no address is ignored."""
    rows = "".join(f"|-- 10.1.{n // 256}.{n % 256}\n   /32 host LOCAL\n" for n in range(MAX_ADDRESSES + 1))
    (tmp_path / "fib_trie").write_text(rows)
    (tmp_path / "if_inet6").write_text("fd000000000000000000000000000002 04 40 00 82 eth0\nzz\n")
    addresses = addresses_in(tmp_path)
    assert f"10.1.{(MAX_ADDRESSES - 1) // 256}.{(MAX_ADDRESSES - 1) % 256}" in addresses
    assert "fd00::2" in addresses
    assert not [host for host in ("10.1.4.0", "fd00::3", "", "unknown", "1.2.3") if host in addresses]
    (tmp_path / "fib_trie").write_text("|-- 999.0.0.1\n   /8 host LOCAL\n")
    assert "10.1.0.1" not in addresses_in(tmp_path)
