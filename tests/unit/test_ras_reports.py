"""Invalid reports: the accepted parts, and the counts of the refused parts."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from agent.core.identity import comm_label
from exporters.ras.report import model
from exporters.ras.report.json_report import ReadRequest, read, read_json
from exporters.ras.report.model import MAX_COMMUNICATOR_RANKS, MAX_COMMUNICATORS, MAX_NAMED, Report, ReportError
from exporters.ras.report.text_report import MAX_TROUBLES, read_text

TWO = Path(__file__).parents[1] / "data/ras/two_of_one_hash_2.32.3.json"


def rank(number: object, **changed: object) -> dict[str, object]:
    """Return a rank that replied."""
    return {"rank": number, "host": "10.0.0.1", "pid": 7, "cuda_dev": 0, "nvml_dev": 0, **changed}


def lost(number: object, **changed: object) -> dict[str, object]:
    """Return a rank that did not reply."""
    return rank(number, status={"unresponsive": True, "considered_dead": False}, **changed)


def communicator(size: object = 2, **changed: object) -> dict[str, object]:
    """Return a communicator in which rank 0 replied and rank 1 did not."""
    return {"hash": "0xab", "size": size, "ranks": [rank(0)], "missing_ranks": [lost(1)], **changed}


def report(*communicators: dict[str, object], **changed: object) -> bytes:
    """Return the bytes of a JSON report of these communicators."""
    ras = {"collection_time_sec": 0.0, "timeouts_count": 0}
    return json.dumps({"nccl_version": "2.30.7", "communicators": communicators, "ras": ras, **changed}).encode()


GOOD = communicator(hash="0xcd")
LAST = model.Addresses(((bytes((10, 1, 20, 96)), bytes((10, 1, 20, 96))),))


@pytest.mark.parametrize(("changed", "reason"), [
    ({"size": 0, "ranks": [], "missing_ranks": []}, "phantom"),
    ({"size": -1}, "unreadable"),
    ({"size": 2**64}, "unreadable"),
    ({"size": MAX_COMMUNICATOR_RANKS + 1}, "unreadable"),
    ({"size": 1.5}, "unreadable"),
    ({"size": "2"}, "unreadable"),
    ({"size": 1}, "implausible"),
    ({"hash": "ab"}, "unreadable"),
    ({"hash": '0x"} 1'}, "unreadable"),
    ({"hash": "0x" + "a" * 17}, "unreadable"),
    ({"ranks": [rank(-1)]}, "unreadable"),
    ({"ranks": [rank(2)]}, "implausible"),
    ({"ranks": [rank(1)]}, "implausible"),
    ({"ranks": [rank(0, host='1"} 2')]}, "implausible"),
    ({"ranks": [rank(0, host="")]}, "implausible"),
    ({"ranks": [rank(0, host="a" * 65)]}, "unreadable"),
    ({"ranks": [rank(0, pid=2**31)]}, "unreadable"),
    ({"missing_ranks": [lost(2)]}, "implausible"),
    ({"missing_ranks": [lost(1, nvml_dev=1025)]}, "unreadable"),
    ({"missing_ranks": [rank(1)]}, "unreadable"),
])  # fmt: skip
def test_a_bad_communicator_costs_itself_alone(changed: dict[str, Any], reason: str) -> None:
    """An invalid value leaves out its communicator, which is counted; the next communicator is read."""
    parsed = read_json(report(communicator(**changed), GOOD))
    assert ([entry.hash for entry in parsed.communicators], parsed.skipped) == (["0xcd"], {reason: 1})


def test_a_communicator_that_is_left_out_says_nothing_of_its_ranks() -> None:
    """A refused duplicate or empty communicator adds no members, waits or ranks; its processes count as replying."""
    uneven = [rank(number, pid=7 + number, collective_counts={"AllReduce": 9 - number % 2}) for number in range(2)]
    first = communicator(ranks=uneven, missing_ranks=[])
    parsed = read_json(report(first, GOOD), pids={7, 8, 9})
    other = communicator(ranks=[rank(0, pid=9), rank(1, pid=7)], missing_ranks=[])
    again = read_json(report(first, other, communicator(0, hash="0xee"), GOOD), pids={7, 8, 9})
    assert (again.members, again.communicators) == (parsed.members, parsed.communicators)
    assert ("10.0.0.1", 9) in again.processes


@pytest.mark.parametrize(("addresses", "count"), [(LAST, 1), (model.ANY_ADDRESS, model.MAX_MEMBERS)])
def test_ranks_of_other_nodes_with_equal_pids_are_not_of_this_node(addresses: model.Addresses, count: int) -> None:
    """In a large job whose pods have equal pids, the reading has the memberships and processes of this node."""
    ranks = [rank(number, host=f"10.1.{number // 200}.{number % 200}") for number in range(model.MAX_MEMBERS + 1)]
    body = report(communicator(len(ranks), ranks=ranks, missing_ranks=[]))
    parsed = read(ReadRequest(is_json=True, pids=frozenset({7}), addresses=addresses), body).report
    assert parsed is not None
    assert (len(parsed.members), len(parsed.processes)) == (count, count)


def test_two_communicators_of_one_hash() -> None:
    """In a reply of NCCL 2.32.3 the second communicator with the same hash gets its own name."""
    body = TWO.read_bytes()
    parsed = read_json(body)
    launched = {entry.hash: entry.launches.extremes["AllReduce"] for entry in parsed.communicators if entry.launches}
    assert launched == {"0x5000": (2, 3), "0x5000-0e71bf01": (7, 7), "0x1234567890abcdef": (9, 9)}
    assert [comm_label(entry.hash) for entry in parsed.communicators] == ["5000", "5000-0e71bf01", "1234567890abcd"]
    assert parsed.skipped == {}
    parsed = read_json(re.sub(rb'"secondary_hash": "[^"]*",', b"", body))
    assert ([entry.hash for entry in parsed.communicators], parsed.skipped["duplicate"]) == (
        ["0x5000", "0x1234567890abcdef"],
        1,
    )


def test_communicators_of_one_hash_are_bounded() -> None:
    """Empty communicators and equal secondary hashes make no new name; at most MAX_COMMUNICATORS are kept."""
    phantom = communicator(0, secondary_hash="0x0:0x0", ranks=[], missing_ranks=[])
    same = [communicator(secondary_hash="0x1:0x1") for _ in range(2)]
    parsed = read_json(report(phantom, *same, communicator()))
    assert ([entry.hash for entry in parsed.communicators], parsed.skipped) == (
        ["0xab"],
        {"phantom": 1, "duplicate": 2},
    )
    many = [communicator(secondary_hash=f"0x1:{number:#x}") for number in range(MAX_COMMUNICATORS + 1)]
    parsed = read_json(report(*many, communicator(secondary_hash="0" * 65), communicator(secondary_hash=7)))
    assert len({comm_label(entry.hash) for entry in parsed.communicators}) == MAX_COMMUNICATORS
    assert parsed.skipped == {"surplus": 1, "unreadable": 2}


def test_communicators_that_differ_cost_linear_time() -> None:
    """Four ranks behind in each of 4,000 communicators of the same processes take less than four seconds of CPU."""
    launches = [rank(number, pid=number + 1, collective_counts={"AllReduce": 5 + number // 4}) for number in range(8)]
    many = report(*(communicator(8, hash=f"{n + 1:#x}", ranks=launches, missing_ranks=[]) for n in range(4000)))
    began = time.process_time()
    assert len(read_json(many).communicators) == MAX_COMMUNICATORS
    assert time.process_time() - began < 4.0


def test_of_too_many_communicators_the_whole_job_s_is_kept() -> None:
    """Above the limit, the largest communicator is kept, and then the communicators in trouble."""
    world = communicator(3, hash="0xffff", ranks=[rank(number) for number in range(3)], missing_ranks=[])
    quiet = communicator(2, hash="0xfffe", ranks=[rank(0), rank(1)], missing_ranks=[])
    many = [communicator(hash=f"{number:#x}") for number in range(1, MAX_COMMUNICATORS)]
    parsed = read_json(report(quiet, *many, world))
    assert parsed.ranks() == 3
    assert "0xfffe" not in {entry.hash for entry in parsed.communicators}
    assert parsed.skipped == {"surplus": 1}


def test_names_of_missing_ranks_beyond_the_limit_are_counted() -> None:
    """A communicator with more missing ranks than the limit keeps its counts; the next communicator names no ranks."""
    many = communicator(MAX_NAMED + 1, ranks=[], missing_ranks=[lost(number) for number in range(MAX_NAMED + 1)])
    parsed = read_json(report(many, GOOD))
    assert [(entry.missing, len(entry.named)) for entry in parsed.communicators] == [(MAX_NAMED + 1, MAX_NAMED), (1, 0)]
    assert parsed.skipped == {"rank_surplus": 2}


def test_bad_utf8_in_a_communicator_costs_it_alone() -> None:
    """A byte that is not UTF-8 leaves out only its communicator."""
    body = report(communicator(), GOOD).replace(b"10.0.0.1", b"10.0.\xff.1", 1)
    parsed = read_json(body)
    assert ([entry.hash for entry in parsed.communicators], parsed.skipped) == (["0xcd"], {"unreadable": 1})


def test_an_unknown_host_is_an_empty_one() -> None:
    """The library's host name "unknown" and device -1 become empty labels."""
    parsed = read_json(report(communicator(missing_ranks=[lost(1, host="unknown", pid=-1, nvml_dev=-1)])))
    assert [entry.location for entry in parsed.communicators[0].named] == [("", -1, -1)]


# -- text ------------------------------------------------------------------------------------------------------------

TEXT = """NCCL version 2.27.7 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 0

Job summary
===========

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
{groups}

Errors
======

{errors}
Warnings
========

"""
ROW = "    0         1         4       1-2         8         7   RUNNING  INCOMPLETE"


def text(errors: str, groups: str = ROW) -> Report:
    """Parse a text report with these paragraphs."""
    return read_text(TEXT.format(groups=groups, errors=errors).encode())


def paragraph(number: int, name: int, *ranks: str) -> str:
    """Return the text about a communicator with missing ranks."""
    lines = [f"#{number}-0 ({name:016x}) INCOMPLETE", f"  Missing communicator data from {len(ranks)} ranks", *ranks]
    return "\n".join([*lines, "", ""])


def rank_line(number: int, host: str = "10.0.0.1") -> str:
    """Return the line of a missing rank."""
    return f"  Rank {number} -- GPU 1 managed by process 77 on node {host}"


@pytest.mark.parametrize(("line", "named"), [
    (rank_line(-406962632), []), (rank_line(8), []), (rank_line(10**10), []),  # old versions read beyond their data
    (rank_line(1, 'x"}'), [("", 77, 1)]),
    (rank_line(1), [("10.0.0.1", 77, 1)]),
    (rank_line(1).replace("GPU 1", "GPU 1 (NVML 5)"), [("10.0.0.1", 77, 5)]),
])  # fmt: skip
def test_where_a_text_says_that_a_rank_is(line: str, named: list[tuple[str, int, int]]) -> None:
    """A rank outside its communicator is refused, a host that is no address is empty, NVML's index is preferred."""
    assert [rank.location for entry in text(paragraph(0, 0xAB, line)).communicators for rank in entry.named] == named


def test_text_of_a_group_that_is_not_in_the_table_is_left_out() -> None:
    """A group that the table of communicators does not list is skipped."""
    parsed = text(paragraph(3, 0xAB, rank_line(1)))
    assert (parsed.communicators, parsed.skipped) == ((), {"implausible": 1})


def test_text_ranks_of_smaller_communicators_are_found_by_their_place() -> None:
    """A rank of a smaller communicator has the number that the largest communicator gives, or none."""
    small = ROW.replace("    0 ", "    1 ", 1).replace("  8         7 ", "  4         2 ")
    other = "  Rank 3 -- GPU 2 managed by process 78 on node 10.0.0.1"
    parsed = text(paragraph(0, 0xAB, rank_line(5)) + paragraph(1, 0xCD, rank_line(1), other), f"{ROW}\n{small}")
    named = [[(rank.comm_rank, rank.rank) for rank in entry.named] for entry in parsed.communicators]
    assert named == [[(5, 5)], [(1, 5), (3, None)]]


def test_text_ranks_of_two_largest_communicators_are_not_named() -> None:
    """If two communicators are the largest, neither names the job's ranks."""
    parsed = text(paragraph(0, 0xAB, rank_line(5)), ROW.replace("     1   ", "     2   ", 1))
    assert [rank.rank for rank in parsed.communicators[0].named] == [None]


def test_text_ranks_after_an_unknown_line_are_left_out() -> None:
    """A rank below a statement that this version does not know is not missing."""
    unknown = "  1 ranks have reached an unknown state"
    parsed = text(paragraph(0, 0xAB, rank_line(1), unknown, rank_line(2)))
    assert [rank.comm_rank for rank in parsed.communicators[0].named] == [1]


def test_text_paragraphs_beyond_the_limit_are_counted() -> None:
    """Paragraphs above the limit are counted."""
    rows = "\n".join(ROW.replace("    0 ", f"{number:5d} ", 1) for number in range(MAX_TROUBLES + 1))
    parsed = text("".join(paragraph(number, number + 1, rank_line(1)) for number in range(MAX_TROUBLES + 1)), rows)
    assert len(parsed.communicators) == MAX_COMMUNICATORS
    assert parsed.skipped["surplus"] == MAX_TROUBLES + 1 - MAX_COMMUNICATORS


def test_a_megabyte_on_one_line_is_read_quickly() -> None:
    """No line makes a pattern slow: the test ends within its time limit."""
    for fragment in ("1,", " ", "  Rank 1 -- ", "=", "#0-0 (", "9"):
        text("  The missing ranks: " + fragment * (1024 * 1024 // len(fragment)))


@pytest.mark.parametrize(("body", "cut"), [
    (b"{", True),
    (report(communicator())[:-1], True),
    (b"{}", False),
    (b'{"nccl_version": NaN}', False),
    (report(communicator(), nccl_version="2" * 65), False),
    (report(ras={"timeouts_count": -1}), False),
    (report(ras={"timeouts_count": 2**31}), False),
    (b'{"deep": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", False),
    (b'{"communicators": [' + b'{"a":' * 100_000 + b"}" * 100_000 + b"]}", False),
    (b"", False),
    (b"\x00\xff" * 1000, False),
    (b"SERVER PROTOCOL 2\n", False),
    (TEXT.format(groups=ROW, errors="").partition("Warnings")[0].encode(), True),
    (b"NCCL version 2.27.7 compiled with CUDA 12.9\n" + b"Job summary\n===========\n" * 1000, True),
])  # fmt: skip
def test_what_is_no_report_is_refused(body: bytes, *, cut: bool) -> None:
    """A cut report and other text have different errors; no depth or byte raises anything else."""
    with pytest.raises(ReportError) as caught:
        (read_json if body.startswith(b"{") else read_text)(body)
    assert caught.value.cut == cut
