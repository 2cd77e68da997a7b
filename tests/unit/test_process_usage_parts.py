"""Usage and waits of rank processes: the pure parts."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from proc_tree import stat_line

from agent.sdk.ranks import ProcessKey
from agent.sdk.system import Stat
from agent.system.process_lines import MAX_CPU_LIST, parse_schedstat, parse_stat, parse_status
from exporters.process.usage.groups import MAX_GROUPS, GroupPaths, GroupReader, JobTotals, group_paths
from exporters.process.usage.reader import MAX_CPUS, nodes_of, parse_cpus, read_nodes, wait_of
from exporters.process.usage.totals import MAX_IN_ALL, MAX_PER_RANK, ChildrenCpu, GroupTotals, ThreadTotals, shares


def thread(tid: int, cpu: int = 0, *, state: str = "S", io: int = 0, start: int = 5000, waited: int = 0) -> Stat:
    """Return the stat line of a thread or process."""
    result = parse_stat(stat_line(tid, "python3", state, 1, 0, 1, start, 0))
    assert result is not None
    return msgspec.structs.replace(result, cpu_ticks=cpu, io_wait_ticks=io, waited_cpu_ticks=waited)


# -- lines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "nanoseconds"), [
    ("1040534 1936476 2\n", 1936476),
    ("5 0 1\n", 0),
    ("0 0 0\n", None),  # the kernel does not count
    ("", None),
    ("1 2\n", None),
    ("1 -2 3\n", None),
    (f"1 {2**63} 3\n", None),
])  # fmt: skip
def test_schedstat(text: str, nanoseconds: int | None) -> None:
    """The second number of schedstat is the wait; three zeros mean that the kernel does not count waits."""
    assert parse_schedstat(text) == nanoseconds


# -- what a thread waits for ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("frames", "wait"), [
    (["folio_wait_bit_common", "filemap_fault", "nfs4_file_open"], "nfs"),
    (["cl_sync_io_wait"], "lustre"),
    (["ptlrpc_set_wait", "ldlm_cli_enqueue"], "lustre"),
    (["fuse_simple_request", "__fuse_simple_request"], "fuse"),
    (["wait_on_page_bit"], "disk"),
    (["ceph_mdsc_wait_request"], "disk"),
    (["rwsem_down_read_slowpath", "uvm_va_space_down"], "gpu"),
    (["do_exit"], "other"),
    ([], "other"),
])  # fmt: skip
def test_waits(frames: Sequence[str], wait: str) -> None:
    """A file system's or driver's function anywhere in the stack is the cause; a page wait without one is `disk`."""
    assert wait_of(frames) == wait


# -- threads -------------------------------------------------------------------------------------------------------


class Threads:
    """The totals of one process, and the waits that the kernel would report."""

    def __init__(self) -> None:
        self.totals = ThreadTotals()
        self.waits: dict[int, int | None] = {}
        self.reads: list[int] = []

    def look(self, *threads: Stat) -> tuple[int, int]:
        """Add a look at these threads; return the totals: run queue wait in ns, and I/O wait in ticks."""
        self.reads = []
        self.totals.note(threads, 1, self._wait)
        return self.totals.run_queue_ns, self.totals.io_wait_ticks

    def _wait(self, tid: int) -> int | None:
        self.reads.append(tid)
        return self.waits.get(tid)


def test_quiet_threads_are_not_read() -> None:
    """Only the main thread and threads that ran, are ready or are new are read; no wait is lost."""
    node = Threads()
    for wait, threads, waited, reads in (
        (10, [thread(1), thread(2), thread(3), thread(4)], 0, [1, 2, 3, 4]),
        (20, [thread(1), thread(2), thread(3, 1), thread(4, state="R"), thread(5)], 50, [1, 3, 4, 5]),
        (20, [], 50, []),  # unreadable: later no thread is new
        (20, [thread(1), thread(2, 1), thread(3, 1), thread(4), thread(5)], 60, [1, 2]),
    ):
        node.waits = dict.fromkeys(range(1, 6), wait)
        assert (node.look(*threads)[0], node.reads) == (waited, reads)


def test_threads_that_end_take_nothing_back() -> None:
    """The waits of an ended thread stay in the totals; a new thread with its number counts from 0."""
    node = Threads()
    for wait, more, totals in (
        (100, [thread(2)], (0, 0)),
        (130, [thread(2, 1, io=5)], (30, 5)),
        (130, [], (30, 5)),
        (7, [thread(2, 1, start=6000, io=3)], (37, 8)),
    ):
        node.waits = {1: 0, 2: wait}
        assert node.look(thread(1), *more) == totals


# -- children ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [MAX_IN_ALL // MAX_PER_RANK + 1, MAX_IN_ALL, MAX_IN_ALL + 1])
def test_children_of_all_ranks_are_bounded(ranks: int) -> None:
    """Ranks with more children than the limit get equal shares, with at most MAX_IN_ALL in total."""
    children = [ProcessKey(1, child) for child in range(MAX_PER_RANK + 1)]
    sizes = [len(entry) for entry in shares({ProcessKey(rank, 1): children for rank in range(ranks)}).values()]
    assert len({*sizes}) == 1
    assert MAX_IN_ALL // 2 < sum(sizes) <= MAX_IN_ALL


def test_children_before_the_first_look_do_not_count() -> None:
    """Children's usage from before the first look does not count; an ended child lowers no total."""
    cpu = ChildrenCpu()
    for children, ticks in (([thread(2, 5000), thread(3, 100)], 0), ([thread(3, 100)], 0), ([thread(3, 107)], 7)):
        cpu.note(thread(1, waited=900), children)
        assert cpu.ticks == ticks


# -- control groups ------------------------------------------------------------------------------------------------

PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=999\n"


def write_group(directory: Path, *, cpu: int | None = None, throttled: str = "") -> None:
    """Write a group; ``cpu``: its pressure in microseconds (twice as much for memory, three times for io)."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cpu.stat").write_text(throttled)
    if cpu is not None:
        for factor, name in enumerate(("cpu", "memory", "io"), 1):
            (directory / f"{name}.pressure").write_text(PRESSURE.format(cpu * factor))


def test_paths_of_both_versions(tmp_path: Path) -> None:
    """Cgroup version 2 is at the top or in `unified` next to version 1; groups above, but not the root, have quotas."""
    base = tmp_path / "fs/cgroup"
    base.mkdir(parents=True)
    mixed = group_paths({"": "/a/b", "cpu,cpuacct": "/c"}, tmp_path)
    unified = base / "unified"
    assert mixed == GroupPaths(f"{unified}/a/b", (f"{unified}/a/b", f"{unified}/a", f"{base}/cpu/c"))
    (base / "cgroup.controllers").touch()
    assert group_paths({"": "/a"}, tmp_path) == GroupPaths(f"{base}/a", (f"{base}/a",))
    assert (group_paths({"": "/", "cpu": "/"}, tmp_path), group_paths({}, tmp_path)) == (GroupPaths(), GroupPaths())


@pytest.mark.parametrize("path", ["/../../etc", "/a/../../b", "/.."])
def test_paths_do_not_leave_the_hierarchy(tmp_path: Path, path: str) -> None:
    """A group's path outside of the cgroup namespace gives no paths."""
    assert group_paths({"": path, "cpu": path}, tmp_path) == GroupPaths()


def test_totals_of_both_versions(tmp_path: Path) -> None:
    """Pressure is read from the rank's own group, exhausted quotas also from groups above and from version 1."""
    own, above, old = tmp_path / "a/b", tmp_path / "a", tmp_path / "cpu/c"
    write_group(own, cpu=10, throttled="usage_usec 5\nnr_throttled 0\nthrottled_usec 3\n")
    write_group(above, cpu=500, throttled="throttled_usec 7\n")
    write_group(old, throttled="nr_periods 1\nnr_throttled 1\nthrottled_time 9000\nwait_sum 7\n")
    reader = GroupReader()
    result = reader.read([GroupPaths(str(own), (str(own), str(above), str(old)))])
    assert result == {
        str(own): GroupTotals(10, 20, 30, 3),
        str(above): GroupTotals(throttled=7),
        str(old): GroupTotals(throttled=9),
    }


@pytest.mark.parametrize(
    "text", ["", "some avg10=0.00 total=x\n", "some total=-1\n", f"some total={'9' * 19}\n", "x" * 9000]
)
def test_invalid_pressure_is_ignored(tmp_path: Path, text: str) -> None:
    """A malformed or missing number of microseconds is 0 and counts as absent."""
    for name in ("cpu", "memory"):
        (tmp_path / f"{name}.pressure").write_text(text)
    reader = GroupReader()
    assert reader.read([GroupPaths(str(tmp_path), (str(tmp_path),))]) == {str(tmp_path): GroupTotals()}


def test_groups_of_a_look_are_bounded(tmp_path: Path) -> None:
    """A look reads MAX_GROUPS groups, and the next look the rest."""
    groups = [tmp_path / f"g{number}" for number in range(MAX_GROUPS + 1)]
    for group in groups:
        write_group(group, throttled="throttled_usec 1\n")
    wanted = [GroupPaths("", (str(group),)) for group in groups]
    reader = GroupReader()
    assert list(reader.read(wanted)) == [str(group) for group in groups[:-1]]
    assert len(reader.read(wanted)) == MAX_GROUPS + 1
    assert list(reader.read(wanted[:1])) == [str(groups[0])]


Readings = dict[str, GroupTotals]


@pytest.mark.parametrize(("looks", "waited"), [
    pytest.param([{"a": GroupTotals(100, 5, 6, 7), "b": GroupTotals(1)}], GroupTotals(), id="begins at 0"),
    pytest.param([
        {"a": GroupTotals(100, 5, 6, 7), "b": GroupTotals(1)}, {"a": GroupTotals(110, 5, 8, 7), "b": GroupTotals(4)},
    ], GroupTotals(13, 0, 2, 0), id="the increase of each group"),
    pytest.param([
        {"a": GroupTotals(100), "b": GroupTotals(50)}, {"a": GroupTotals(103), "b": GroupTotals(50)},
        {"b": GroupTotals(2), "c": GroupTotals(9000)},
    ], GroupTotals(5), id="one that ends, one made anew, a new one"),
    pytest.param([
        {"a": GroupTotals(throttled=7)}, {"a": GroupTotals(9000, 9000, 9000, 8)}, {"a": GroupTotals()},
        {"a": GroupTotals(9003, 9000)}, {"a": GroupTotals(9004, 9000, 9000, 9)},
    ], GroupTotals(1, throttled=1), id="no past of what could not be read"),
])  # fmt: skip
def test_totals_of_a_job(looks: list[Readings], waited: GroupTotals) -> None:
    """A job's total grows from 0 by the waits of its groups, each group counted once."""
    jobs = JobTotals()
    for reading in looks:
        jobs.note({"7": list(reading), "8": []}, reading)
    assert jobs.waited == {"7": waited, "8": GroupTotals()}
    jobs.note({}, {})
    assert jobs.waited == {}


@pytest.mark.parametrize(("text", "expected"), [
    ("0-3,8", {0, 1, 2, 3, 8}),
    ("5", {5}),
    (f"{MAX_CPUS - 1}-{MAX_CPUS + 7}", {MAX_CPUS - 1}),
    (f"{MAX_CPUS}", set()),
    ("", set()),
    ("3-", set()),
    ("all", set()),
])  # fmt: skip
def test_lists_of_cpus(text: str, expected: set[int]) -> None:
    """A list gives CPUs up to the kernel's highest number; any other text gives none."""
    assert parse_cpus(text) == expected


def test_nodes(tmp_path: Path) -> None:
    """A set of CPUs gives the memory nodes that have some of these CPUs; without the kernel's directory, none."""
    for node, cpus in ((0, "0-15,32-47"), (1, "16-31"), (10, "")):
        (tmp_path / f"devices/system/node/node{node}").mkdir(parents=True)
        (tmp_path / f"devices/system/node/node{node}/cpulist").write_text(f"{cpus}\n")
    (tmp_path / "devices/system/node/online").write_text("0-1\n")
    nodes = read_nodes(tmp_path)
    assert [nodes_of(parse_cpus(text), nodes) for text in ("0-3", "15-16", "64", "")] == ["0", "0,1", "", ""]
    assert read_nodes(tmp_path / "elsewhere") == {}


@pytest.mark.parametrize(("length", "is_shown"), [(MAX_CPU_LIST, True), (MAX_CPU_LIST + 1, False)])
def test_a_list_too_long_for_a_label_is_left_out(length: int, is_shown: bool) -> None:
    """A list longer than MAX_CPU_LIST gives no CPUs."""
    text = Path("/proc/self/status").read_text()
    own = next(line for line in text.splitlines() if line.startswith("Cpus_allowed_list"))
    result = parse_status(text.replace(own, f"Cpus_allowed_list:\t{'1' * length}"))
    assert result is not None
    assert bool(result.cpus) == is_shown
