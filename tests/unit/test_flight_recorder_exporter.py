"""The flight recorder exporter: search, validation and expiry of dumps."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from exporter_node import ExporterNode
from flight_dumps import dump, entry, pickled
from lent import Admission
from rank_table import owned

from agent.helper.by_user import ByUser
from agent.helper.client import HelperFailed
from agent.ranks.rank.facts import Owner
from agent.sdk.exporter import NoData
from agent.sdk.ranks import ExitStatus
from exporters.flight_recorder import exporter, reading
from exporters.flight_recorder.exporter import FlightRecorderConfig, FlightRecorderExporter
from exporters.flight_recorder.places import is_number, paths_of
from exporters.flight_recorder.reading import DumpAnswer, DumpRequest, read_dumps

ME = os.getuid()
PREFIX = "/dumps/trace_"
OWN = ("torch/comm_lib_trace_rank_3", "torch/nccl_trace_rank_3")
"""PyTorch's default paths of rank 3, below a cache directory."""
SYSTEMS = "/tmp/nccl_trace_rank_3"  # another default path of PyTorch
STARTED = 1.7e9
"""Start time of the ranks, and the fake clock's time."""


MakeNode = Callable[..., "Node"]


class Node(ExporterNode):
    """A node with ranks of job 4711, whose processes have ``inside`` as their root."""

    def __init__(self, folder: Path, **lends: Any) -> None:
        super().__init__("flight_recorder", folder, lambda: FlightRecorderExporter(FlightRecorderConfig()), **lends)
        self.inside = folder / "inside"
        (self.inside / "dumps").mkdir(parents=True)
        self.start()

    def add_rank(self, rank: int = 0, *, pid: int = 0, uid: int = ME, parent: int = 5, **more: Any) -> Any:
        """Add a rank whose environment names its dump."""
        pid = pid or 10 + rank
        self.proc.add(pid, uid=uid)
        (self.proc.root / str(pid) / "root").symlink_to(self.inside)
        more = {"world": 4, "start_seconds": STARTED} | more
        return self.observe(pid, rank, uid, {"TORCH_FR_DUMP_TEMP_FILE": PREFIX}, parent=parent, **more)

    def kill(self, key: Any) -> None:
        """End a rank by a signal."""
        self.ranks.observe_exit(key, ExitStatus(known=True, signal=6))

    def write(self, rank: int = 0, value: dict[str, Any] | None = None, seconds: float = STARTED + 1.0) -> Path:
        """Write a dump with this time of writing."""
        path = self.inside / f"dumps/trace_{rank}"
        path.write_bytes(pickled(value or dump([entry(sequence=3)], enqueued=3)))
        os.utime(path, (seconds, seconds))
        return path

    def shown(self) -> dict[str, float]:
        """Return the exported series, without the common prefix of their names."""
        return {name.removeprefix("flight_recorder_"): value for name, value in super().shown().items()}

    def results(self) -> dict[str, float]:
        """Return the counts of files by result."""
        return {name.partition("/")[2]: value for name, value in self.shown().items() if name.startswith("dumps_total")}


class Helper:
    """A helper that reads one dump a call, records the ranks of each call, and fails at the dump of rank ``fails``."""

    def __init__(self, fails: int = -1) -> None:
        self.ranks: list[list[int]] = []
        self.fails = fails
        self.rests = 0

    async def call(self, requests: list[DumpRequest], _deadline: float) -> list[DumpAnswer | None]:
        """Reply `malformed` for the first dump that was not read before, and `pending` for the other unread dumps."""
        if any(request.rank == self.fails for request in requests):
            self.ranks.append([])
            raise HelperFailed("made to")
        self.ranks.append([request.rank for request in requests])
        results = ["unchanged" if request.known is not None else "pending" for request in requests]
        if "pending" in results:
            results[results.index("pending")] = "malformed"
        places = [(1, request.rank, 1, int(1.8e18)) for request in requests]
        return [DumpAnswer(result, folder) for result, folder in zip(results, places, strict=True)]

    def rest(self) -> None:
        """Count the release of memory."""
        self.rests += 1


@pytest.fixture
def made_node(tmp_path: Path) -> Any:
    """Provide a function that makes nodes, with changes of their context, and ends them."""
    made: list[Node] = []

    def make(**lends: Any) -> Node:
        made.append(Node(tmp_path, **lends))
        return made[-1]

    yield make
    for node in made:
        node.end()


@pytest.fixture
def helped(made_node: MakeNode) -> Callable[..., Node]:
    """Provide a function that makes a node with this helper and this number of ranks."""

    def make(helper: Helper, ranks: int = 0) -> Node:
        node = made_node(helper=lambda _spec: helper)
        for rank in range(ranks):
            node.add_rank(rank)
        return node

    return make


@pytest.fixture
def node(made_node: MakeNode) -> Node:
    """Provide a node."""
    return made_node()


def test_dump_of_a_rank(node: Node) -> None:
    """A rank's dump becomes series with the time at which it was written."""
    node.add_rank()
    with pytest.raises(NoData):
        node.look()
    node.write()
    assert node.look() == {
        "enqueued_sequence/4711/0/0": 3.0,
        "unfinished_sequence/4711/0/0/default_pg/all_reduce/Float/1024/scheduled": 3.0,
        "dump_timestamp_seconds/4711/0": STARTED + 1.0,
        "dumps_total/read": 1.0,
    }
    assert node.look()["dumps_total/read"] == 1.0


def test_a_dump_that_is_written_again(node: Node) -> None:
    """While a new dump is incomplete, the earlier dump is shown; then the new dump is shown."""
    node.add_rank()
    node.write()
    node.look()
    path = node.write(value=dump([entry(sequence=9)], enqueued=9), seconds=STARTED + 7.0)
    whole = path.read_bytes()
    path.write_bytes(whole[:40])
    os.utime(path, (STARTED + 6.0,) * 2)
    assert node.look()["enqueued_sequence/4711/0/0"] == 3.0
    path.write_bytes(whole)
    os.utime(path, (STARTED + 7.0,) * 2)
    assert node.look()["enqueued_sequence/4711/0/0"] == 9.0
    assert node.results() == {"read": 2.0, "incomplete": 1.0}


def test_dumps_that_are_not_believed(node: Node) -> None:
    """A dump that is invalid or of an earlier process, another rank or another job counts once and is not shown."""
    for rank in range(6):
        node.add_rank(rank, world=8)
    node.write(0, seconds=STARTED - 1.0)
    node.write(1, dump([entry(time_created_ns=int(1.6e18))], ranks="[0, 1, 2, 3, 4, 5, 6, 7]"))
    node.write(2, dump(ranks="[0, 1, 3]"))
    node.write(3, dump(ranks="[0, 1, 2, 3]"))
    (node.inside / "dumps/trace_4").write_bytes(b"\x80\x02cos\nsystem\n.")
    (node.inside / "dumps/trace_5").mkdir()
    node.look()
    counted = {"earlier_process": 2.0, "other_rank": 1.0, "other_job": 1.0, "malformed": 1.0}
    assert node.shown() == {f"dumps_total/{result}": count for result, count in counted.items()}
    node.look()
    assert node.results() == counted


def test_a_file_of_another_user_is_not_believed(node: Node) -> None:
    """A dump counts only for ranks of the user who owns the file, even if another user's rank names it."""
    node.add_rank(pid=99, job="4712", uid=ME + 1)
    node.write()
    assert node.look() == {"dumps_total/other_user": 1.0}
    node.add_rank()
    assert node.look()["enqueued_sequence/4711/0/0"] == 3.0
    assert node.results() == {"read": 1.0, "other_user": 1.0}


def test_a_file_that_two_jobs_name_has_no_owner(node: Node) -> None:
    """If two jobs of one user name the same path, its dump is not shown, even if it was shown before."""
    node.add_rank()
    node.write()
    assert "enqueued_sequence/4711/0/0" in node.look()
    node.add_rank(pid=99, job="4712")
    assert node.look() == {"dumps_total/read": 1.0, "dumps_total/other_job": 2.0}


def test_a_rank_that_has_left(node: Node) -> None:
    """For two minutes after a rank's exit its dump is read below the root of its launcher or of another rank."""
    node.write(0)
    node.write(1)
    key, other = node.add_rank(0), node.add_rank(1)
    node.kill(key)
    (node.proc.root / "10/root").unlink()
    assert "enqueued_sequence/4711/0/0" in node.look()
    node.kill(other)
    (node.proc.root / "11/root").unlink()
    node.write(1, dump([entry(sequence=4)]), seconds=STARTED + 2.0)
    assert node.look()["enqueued_sequence/4711/1/0"] == 3.0
    (node.proc.root / "5").mkdir()
    (node.proc.root / "5/root").symlink_to(node.inside)
    assert node.look()["enqueued_sequence/4711/1/0"] == 4.0
    node.write(1, dump([entry(sequence=5)]), seconds=STARTED + 3.0)
    assert node.look(121.0)["enqueued_sequence/4711/1/0"] == 4.0


def test_a_rank_that_no_source_can_see_for(helped: Callable[..., Node]) -> None:
    """An exited rank's dump is not searched if its launcher is unknown: only the agent's own root is left."""
    helper = Helper()
    node = helped(helper)
    node.kill(node.add_rank(parent=0))
    with pytest.raises(NoData):
        node.look()
    assert helper.ranks == []


def test_how_long_a_dump_is_shown(node: Node) -> None:
    """A dump is shown for an hour after it was read, even if its rank is forgotten, and then never again."""
    key = node.add_rank()
    node.write()
    assert "enqueued_sequence/4711/0/0" in node.look()
    node.kill(key)
    node.clock.advance(3599.0)
    node.ranks.tick()
    assert not node.ranks.snapshot().ranks
    assert "enqueued_sequence/4711/0/0" in node.look(0.0)
    assert node.look(6.0) == {"dumps_total/read": 1.0}
    node.add_rank(1)  # still runs after an hour
    node.write(1)
    node.look()
    for seconds in (3601.0, 5.0):
        assert node.look(seconds) == {"dumps_total/read": 2.0}


@pytest.mark.parametrize("ahead_seconds", [0.0, 3600.0])
def test_a_dump_of_a_job_that_goes_on(node: Node, ahead_seconds: float) -> None:
    """A dump is dropped if its rank completes an operation over a minute later, even if the file's clock is ahead."""
    key = node.add_rank()
    node.write(seconds=STARTED + 1.0 + ahead_seconds)
    process = node.ranks.running()[key]
    written = node.look()["dump_timestamp_seconds/4711/0"]
    process.note_progress(written + 60.0, written + 60.0)
    node.ranks.tick()
    assert "enqueued_sequence/4711/0/0" in node.look()
    process.note_progress(written + 60.5, written + 60.5)
    node.ranks.tick()
    assert node.look() == {"dumps_total/read": 1.0}


def test_a_restarted_rank(node: Node) -> None:
    """A rank's next process has no dump until it writes one."""
    key = node.add_rank()
    node.write()
    node.look()
    node.kill(key)
    node.clock.advance(20.0)
    node.add_rank(1, pid=87, start_seconds=STARTED + 20.0)
    assert node.look() == {"dumps_total/read": 1.0}  # although other ranks run on this node
    node.add_rank(pid=88, start_seconds=STARTED + 20.0)
    assert node.look() == {"dumps_total/read": 1.0, "dumps_total/earlier_process": 1.0}
    node.write(seconds=STARTED + 30.0)
    assert "enqueued_sequence/4711/0/0" in node.look()


def test_a_path_that_leads_out_of_the_jobs_root(node: Node, tmp_path: Path) -> None:
    """Links are followed within the process's root, and only regular files are opened."""
    for rank in range(3):
        node.add_rank(rank)
    node.write(7)
    (node.inside / "dumps/trace_0").symlink_to("/dumps/trace_7")
    (node.inside / "dumps/trace_1").symlink_to(tmp_path / "secret")
    (tmp_path / "secret").write_bytes(pickled(dump()))
    os.mkfifo(node.inside / "dumps/trace_2")
    assert node.look()["enqueued_sequence/4711/0/0"] == 3.0
    assert node.results() == {"read": 1.0}


def test_files_are_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dump of MAX_DUMP_BYTES is read, a larger one is not; after DECODING_SECONDS no read starts."""
    path = node.write()
    size, pending = path.stat().st_size, ("DECODING_SECONDS", -1.0, "pending")
    for bound, value, result in (("MAX_DUMP_BYTES", size, "read"), ("MAX_DUMP_BYTES", size - 1, "too_large"), pending):
        monkeypatch.setattr(reading, bound, value)
        [answer] = read_dumps([DumpRequest("1", 0, ME, [str(path)])], b"")
        assert answer is not None
        assert answer.result == result


def test_users_have_their_turns(helped: Callable[..., Node]) -> None:
    """Ranks with an unread dump come first in the next call of the helper, one rank of each user in turn."""
    helper = Helper()
    node = helped(helper, 3)
    node.add_rank(7, job="5000", uid=ME + 1, world=8)
    for _ in range(5):
        node.look(1.0)
    assert helper.ranks == [[0, 7, 1, 2], [7, 1, 2, 0], [1, 2, 0, 7], [2, 0, 7, 1]]  # nothing is pending after this
    assert helper.rests == 1
    node.look(5.0)
    assert (len(helper.ranks), helper.rests) == (5, 1)


def test_ranks_of_a_look_are_bounded(helped: Callable[..., Node], monkeypatch: pytest.MonkeyPatch) -> None:
    """At most MAX_RANKS dumps are read at one update; the dumps of the other ranks are read at the next update."""
    monkeypatch.setattr(exporter, "MAX_RANKS", 2)
    helper = Helper()
    node = helped(helper, 3)
    for seconds in (1.0, 1.0, 5.0):
        node.look(seconds)
    assert helper.ranks == [[0, 1], [1, 2], [2, 0]]


def test_a_file_that_ends_the_helper_costs_no_other(helped: Callable[..., Node]) -> None:
    """After a failure of the helper, each file is read in its own call for ten minutes."""
    helper = Helper(fails=1)
    node = helped(helper, 3)
    for fails_after, malformed in ((5.0, 1.0), (1.0, 2.0), (601.0, 2.0)):
        with pytest.raises(HelperFailed):
            node.look(fails_after)
        assert node.look(5.0)["dumps_total/malformed"] == malformed
    assert helper.ranks == [[], [0], [], [2], [], [0]]


def test_series_are_admitted(made_node: MakeNode) -> None:
    """A dump that the series budget refuses is counted and not shown; a dump that is dropped frees its series."""
    admit = Admission(in_all=6)
    node = made_node(admit=admit)
    for rank, refused in ((0, None), (1, 1.0)):
        node.add_rank(rank)
        node.write(rank)
        assert (node.look().get("dumps_total/no_room"), admit.taken) == (refused, 3)
    node.look(3601.0)
    assert admit.taken == 0


def test_a_file_system_that_hangs_costs_its_user_alone(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the search for a user's dump hangs, only this user's ranks get no result."""
    hangs = threading.Event()

    def look(request: DumpRequest) -> list[Any]:
        if request.uid == 1:
            hangs.wait(30.0)
        return []

    monkeypatch.setattr(reading, "_lookers", ByUser(look))
    monkeypatch.setattr(reading, "GRACE_SECONDS", 0.05)
    requests = [DumpRequest("1", 0, 1, ["/a"]), DumpRequest("2", 0, 2, ["/b"])]
    assert read_dumps(requests, b"") == [None, DumpAnswer("none")]
    hangs.set()


def test_where_dumps_are() -> None:
    """The path of a dump comes from the environment, relative to the rank's directory, or is PyTorch's default."""
    for names, paths in (
        ({"TORCH_FR_DUMP_TEMP_FILE": "/a/r_", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/b/r_"}, ["/a/r_3"]),
        ({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/b/r_", "HOME": "/h"}, ["/b/r_3"]),
        ({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "b/r_"}, ["/job/b/r_3"]),
        ({"HOME": "/h"}, [f"/h/.cache/{name}" for name in OWN] + [SYSTEMS]),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/c"}, [f"/c/{name}" for name in OWN] + [SYSTEMS]),
        ({"HOME": "h"}, [SYSTEMS]),
        (None, [SYSTEMS]),
    ):
        assert paths_of(owned(10, names, Owner("user", "1"), directory="/job"), "3", "4711", ()) == paths


def test_a_sites_own_paths() -> None:
    """A site's prefixes are searched as well; a job id that is no directory name is not used in a path."""
    facts = owned(10, {}, Owner("user", "1"))
    for job_id in ("4711", "..", "a/b", ""):
        paths = ["/r/4711/t_3", "/s_3"] if job_id == "4711" else ["/s_3"]
        assert paths_of(facts, "3", job_id, ["/r/%j/t_", "/s_"])[1:] == paths
    assert [rank for rank in ("3", "pid-17", "unknown", "1234567", "12345678") if is_number(rank)] == ["3", "1234567"]
