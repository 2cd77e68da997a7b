"""Inspector's Prometheus mode: the owner of a file, its validity, and its series."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from exporter_node import ExporterNode
from lent import Admission
from rank_table import environment, owned

from agent.app.lease import end_writers
from agent.hardware.inventory import Hardware
from agent.helper.frames import MAX_PAYLOAD_BYTES
from agent.ranks.rank.facts import Owner
from agent.sdk.exporter import NoData
from agent.sdk.hardware import Gpu
from agent.sdk.ranks import Membership, ProcessKey
from agent.sdk.system import ProcFS
from exporters.inspector_prom import descriptors, exporter
from exporters.inspector_prom.descriptors import PLUGIN, THREAD, HeldMeans, held_by, interval_seconds
from exporters.inspector_prom.exporter import InspectorPromConfig, InspectorPromExporter
from exporters.inspector_prom.reading import FileMeans, MeansRequest, look_at
from exporters.inspector_prom.text import MAX_TEXT_BYTES

ME = os.getuid()
OTHER = ME + 1
INTERVAL = "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS"
MODE = {
    "NCCL_PROFILER_PLUGIN": "libnccl-profiler-inspector.so",
    "NCCL_INSPECTOR_ENABLE": "1",
    "NCCL_INSPECTOR_PROM_DUMP": "1",
    INTERVAL: "30000000",
}
JSON_MODE = {**MODE, "NCCL_INSPECTOR_PROM_DUMP": "0"}
UUIDS = [f"00000000-0000-4000-8000-00000000000{number}" for number in range(10)]
LINE = (
    '{}{{version="v5.1",slurm_job_id="1",node="n",gpu="GPU0",comm_name="tp",n_nodes="1",nranks="4",'
    'collective="AllReduce",message_size="{}-{}MB",algo_proto="RING_SIMPLE"}} {}\n'
)
SHOWN = "tp/4/1/AllReduce/8-9MB/RING_SIMPLE"


class Node(ExporterNode):
    """A node with ranks in Prometheus mode, and the exporter."""

    def __init__(self, folder: Path, **lends: Any) -> None:
        super().__init__("inspector_prom", folder, lambda: InspectorPromExporter(InspectorPromConfig()), **lends)
        self.start()

    def add_rank(self, rank: int = 0, uid: int = ME, job: str = "4711", ranks: int = 1, **settings: str) -> ProcessKey:
        """Add a process (pid from 10) of ``ranks`` ranks; ``settings`` replace variables of Prometheus mode."""
        pid = 10 + rank
        self.proc.add(pid, uid=uid)
        given = environment(rank, job=job) | MODE | settings
        facts = owned(pid, given, Owner("user", str(uid)), uid=uid)
        assert self.ranks.observe_process(facts)
        self.ranks.observe_memberships(facts.key, [Membership("aa", rank + more, 8) for more in range(ranks)])
        self.ranks.tick()
        return facts.key

    def write(self, value: float = 100, number: int = 0, rows: int = 1) -> Path:
        """Write the file of a GPU, with the fake clock's time."""
        path = self.folder / f"nccl_inspector_metrics_{UUIDS[number]}.prom"
        text = ""
        for row in range(rows):
            for metric in ("nccl_bus_bandwidth_gbs", "nccl_collective_exec_time_microseconds"):
                text += LINE.format(metric, 8 + row, 9 + row, value)
        path.write_text(text)
        nanoseconds = int(self.clock.time() * 1e9)
        os.utime(path, ns=(nanoseconds, nanoseconds))
        return path

    def open(self, path: Path, rank: int = 0, fd: int = 9, flags: str = "0100001") -> None:
        """Let a rank's process hold a file open, for writing unless ``flags`` say otherwise."""
        (self.proc.root / f"{10 + rank}/fd/{fd}").unlink(missing_ok=True)
        self.proc.hold(10 + rank, path, fd, flags)

    def add_writer(self, rank: int = 0, value: float = 100, rows: int = 1, **settings: Any) -> Path:
        """Add a rank that holds the file of a GPU open for writing."""
        self.add_rank(rank, **settings)
        path = self.write(value, rank, rows)
        self.open(path, rank)
        return path

    def looks(self, count: int = 2) -> dict[str, float]:
        """Look several times, and return the series after the last look."""
        return [self.look() for _ in range(count)][-1]

    def shown(self) -> dict[str, float]:
        """Return the series, keyed by name and label values, and the number of ranks in each state."""
        values = {
            "/".join(part for part in name.split("/") if part)
            .removeprefix("inspector_")
            .replace("_bytes_per_second/", "/"): value
            for name, value in super().shown().items()
        }
        states = Counter(f"means_ranks/{state.name.lower()}" for state in self.exporter._states.values())
        return values | dict(states)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Provide a node."""
    made = Node(tmp_path)
    yield made
    made.end()


def test_what_a_rank_writes_is_shown_as_its_own(node: Node) -> None:
    """Two ranks with identical rows in their files each have their own series."""
    for rank in (0, 1):
        node.add_writer(rank, 100 + rank)
    written = node.clock.time()
    assert node.look() == {"means_ranks/idle": 2.0}
    assert node.look() == {
        f"mean_bus_bandwidth/4711/0/{SHOWN}": 100e9, f"mean_bus_bandwidth/4711/1/{SHOWN}": 101e9,
        f"mean_operation_seconds/4711/0/{SHOWN}": 100e-6, f"mean_operation_seconds/4711/1/{SHOWN}": 101e-6,
        "means_timestamp_seconds/4711/0": written, "means_timestamp_seconds/4711/1": written, "means_ranks/read": 2.0,
    }  # fmt: skip


def test_a_directory_whose_name_is_no_utf_8(node: Node) -> None:
    """A file below a directory whose name is not UTF-8 is read, and so are all others."""
    node.add_writer(0)
    node.folder = Path(os.fsdecode(os.fsencode(node.folder) + b"/\xff"))
    node.folder.mkdir()
    node.add_writer(1)
    assert node.looks()["means_ranks/read"] == 2.0


def test_the_plugins_counters_are_shown(node: Node) -> None:
    """The plugin's own counters are shown in addition to the means."""
    path = node.add_writer()
    path.write_text(path.read_text() + 'nccl_collectives_total{gpu="GPU0"} 7\n')
    assert node.looks()["plugin_operations_total/4711/0/collectives"] == 7


def test_nothing_is_no_data(node: Node) -> None:
    """Without a rank in this mode there is no source; a rank that has not written a file is waiting."""
    with pytest.raises(NoData):
        node.look()
    node.add_rank(0, **JSON_MODE)
    with pytest.raises(NoData):
        node.look()
    node.add_rank(1)
    assert node.look() == {"means_ranks/waiting": 1.0}


def test_a_file_that_is_written_again(node: Node) -> None:
    """While the plugin writes, the previous values stay; the new ones appear once the file no longer changes."""
    node.add_writer()
    node.looks()
    node.clock.advance(20.0)
    path = node.write(200, rows=2)
    whole = path.read_bytes()
    path.write_bytes(b"")
    assert node.look()[f"mean_bus_bandwidth/4711/0/{SHOWN}"] == 100e9
    path.write_bytes(whole[:-100])
    assert node.look()[f"mean_bus_bandwidth/4711/0/{SHOWN}"] == 100e9
    path.write_bytes(whole)
    assert node.look()[f"mean_bus_bandwidth/4711/0/{SHOWN}"] == 100e9
    shown = node.look()
    assert shown[f"mean_bus_bandwidth/4711/0/{SHOWN}"] == 200e9
    assert (shown["means_timestamp_seconds/4711/0"], len(shown)) == (node.clock.time() - 5.0, 6)


def test_an_idle_gpu_whose_file_is_emptied(node: Node) -> None:
    """NCCL 2.29 empties the file of an idle GPU at each interval; this counts as no write, and no means are shown."""
    path = node.add_writer()
    written = node.looks()["means_timestamp_seconds/4711/0"]
    path.write_bytes(b"")
    assert node.look()["means_timestamp_seconds/4711/0"] == written
    assert node.look() == {"means_ranks/idle": 1.0}


def test_a_writer_that_is_gone(node: Node) -> None:
    """After SIGKILL the file stays, but its series end with the process."""
    node.add_writer()
    [key] = node.ranks.running()
    node.looks()
    node.proc.remove(10)
    node.ranks.observe_exit(key, None)
    with pytest.raises(NoData):
        node.look()
    assert node.ctx.admit.taken == 0


def test_old_means_are_not_shown(node: Node) -> None:
    """Three intervals after the last write an idle GPU has no series, until the plugin writes again."""
    node.add_writer(**{INTERVAL: "40000000"})
    node.looks()
    assert "mean_bus_bandwidth/4711/0/" + SHOWN in node.look(110.0)
    assert node.look(0.1) == {"means_ranks/idle": 1.0}
    node.write(100)
    assert node.looks()["means_ranks/read"] == 1.0


def test_an_old_file_that_is_found(node: Node) -> None:
    """At the first look, a file's age comes from its modification time; a time in the future counts as now."""
    for rank, age in enumerate((89.0, 90.1, -500.0)):
        path = node.add_writer(rank)
        os.utime(path, (node.clock.time() - age + 10.0,) * 2)
    shown = node.looks()
    assert (shown["means_ranks/read"], shown["means_ranks/idle"]) == (2.0, 1.0)
    assert shown["means_timestamp_seconds/4711/2"] == node.clock.time() - 5.0
    assert "means_timestamp_seconds/4711/1" not in shown


def test_a_file_server_whose_clock_is_behind(node: Node) -> None:
    """After the first look the agent's clock gives a file's age, whatever the file server's clock says."""
    path = node.add_writer()
    os.utime(path, (node.clock.time() - 3600.0,) * 2)
    assert node.looks() == {"means_ranks/idle": 1.0}
    node.write(200)
    os.utime(path, (node.clock.time() - 3600.0,) * 2)
    assert node.looks()["means_timestamp_seconds/4711/0"] == node.clock.time() - 5.0


def test_several_writers(node: Node) -> None:
    """If two ranks of one user hold a file, neither has it; if two users' ranks hold it, the owner's rank has it."""
    path = node.write(100)
    for rank in (0, 1):
        node.add_rank(rank)
        node.open(path, rank)
    theirs = node.write(100, number=1)
    for rank, uid in ((2, ME), (3, OTHER)):
        node.add_rank(rank, uid=uid)
        node.open(theirs, rank)
    shown = node.looks()
    assert shown["means_ranks/unproven"] == 3.0
    assert [name for name in shown if name.startswith("means_timestamp")] == ["means_timestamp_seconds/4711/2"]


def test_holders_that_write_nothing(node: Node) -> None:
    """A process that holds a file for reading, or a deleted or renamed file, is not its writer."""
    path, odd = node.write(100), node.folder / "nccl_inspector_metrics_0.prom"
    odd.write_text(path.read_text())
    held = [(path, "0100000"), (Path(f"{path} (deleted)"), "0100001"), (odd, "0100001")]
    for rank, (target, flags) in enumerate(held):
        node.add_rank(rank)
        node.open(target, rank, flags=flags)
    assert node.looks() == {"means_ranks/waiting": 3.0}


def test_what_is_no_file(node: Node) -> None:
    """A FIFO, a directory and a missing file are unreadable, and block nothing."""
    for number, make in enumerate((os.mkfifo, os.mkdir, lambda path: None)):
        node.add_rank(number)
        path = node.folder / f"nccl_inspector_metrics_{UUIDS[number]}.prom"
        make(path)
        node.open(path, number)
    assert node.looks() == {"means_ranks/unreadable": 3.0}


def test_a_descriptor_of_a_real_process(tmp_path: Path) -> None:
    """The file of a real process is found and read through its descriptor."""
    path = tmp_path / f"nccl_inspector_metrics_{UUIDS[0]}.prom"
    proc, me = ProcFS(Path("/proc")), os.getpid()
    with path.open("wb") as file:
        file.write(b"x\n")
        file.flush()
        key = ProcessKey(me, proc.stat(me).start_ticks)  # type: ignore[union-attr]  # we are there
        assert held_by(proc, key) == [HeldMeans(key, file.fileno(), str(path), UUIDS[0])]
        request = MeansRequest("/proc", me, ME, file.fileno(), os.fsencode(path))
        status = os.stat(path)
        identity = (status.st_dev, status.st_ino, 2, status.st_mtime_ns)
        assert look_at(request) == FileMeans(identity, status.st_uid)
        assert look_at(msgspec.structs.replace(request, at_rest=identity)) == FileMeans(identity, status.st_uid, b"x\n")
        assert look_at(msgspec.structs.replace(request, target=b"/another")) is None
    assert held_by(proc, key) == []
    assert held_by(proc, ProcessKey(me, 0)) is None


def test_ranks_of_one_process(tmp_path: Path) -> None:
    """If a process has two ranks, each has the file of its own GPU; while the GPUs are unknown neither has one."""
    hardware = Hardware()
    node = Node(tmp_path, hardware=hardware)
    key = node.add_rank(ranks=2)
    for number in (0, 1):
        node.open(node.write(100 + number, number), fd=9 + number)
    assert [label.rank for label in node.ranks.process(key).labels] == ["0", "1"]
    assert node.looks() == {"means_ranks/unproven": 2.0}
    hardware.of("nvml").observe_gpus(
        Gpu(index, f"GPU-{UUIDS[number]}", f"0000:0{index}:00.0") for index, number in enumerate((1, 0, 2))
    )
    hardware.of("nvml").observe_gpu_processes({10: [f"GPU-{uuid}" for uuid in UUIDS[:2]]})
    node.ranks.observe_gpus(hardware)
    shown = node.look()
    assert (shown[f"mean_bus_bandwidth/4711/0/{SHOWN}"], shown[f"mean_bus_bandwidth/4711/1/{SHOWN}"]) == (101e9, 100e9)
    hardware.of("nvml").observe_gpu_processes({10: [f"GPU-{uuid}" for uuid in UUIDS[:3]]})
    node.ranks.observe_gpus(hardware)
    (node.proc.root / "10/fd/9").unlink()
    assert node.look() == {"means_ranks/unproven": 2.0}  # one file, and the rank on its GPU is unknown
    node.end()


def test_a_file_that_is_written_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the plugin writes during the read, the content is dropped."""
    path = tmp_path / f"nccl_inspector_metrics_{UUIDS[0]}.prom"
    path.write_bytes(b"x\n")
    fd, read = os.open(path, os.O_RDONLY), os.read

    def read_and_write(number: int, size: int) -> bytes:
        with path.open("ab") as file:
            file.write(b"y\n")
        monkeypatch.setattr(os, "read", read)
        return read(number, size)

    monkeypatch.setattr(os, "read", read_and_write)
    means = look_at(MeansRequest("/proc", os.getpid(), ME, fd, os.fsencode(path), at_once=True))
    os.close(fd)
    assert means is not None
    assert (means.identity[2], means.raw) == (4, None)


def test_ranks_that_nccl_conf_puts_into_this_mode(node: Node) -> None:
    """A rank without NCCL_INSPECTOR_PROM_DUMP is examined every 30 s, but at each look while it holds a file."""
    node.add_rank(0, NCCL_INSPECTOR_PROM_DUMP="0")
    with pytest.raises(NoData):
        node.look()
    node.open(node.write(100))
    with pytest.raises(NoData):
        node.look(20.0)
    node.look(10.0)
    assert node.look()["means_ranks/read"] == 1.0


def test_who_is_not_silent(node: Node) -> None:
    """A rank whose file is read, or that will write soon, is not silent; every other rank is."""
    node.add_writer(0)
    node.add_rank(1)
    silent = {INTERVAL: "-1", "NCCL_INSPECTOR_PROM_DUMP": "0", "NCCL_INSPECTOR_ENABLE": "0", PLUGIN: "", THREAD: "0"}
    for rank, (name, value) in enumerate(silent.items(), 2):
        node.add_rank(rank, **{name: value})
    node.looks()
    assert {key.pid for key in node.ranks.snapshot().read_otherwise} == {10, 11}
    end_writers(node.ctx)
    assert node.ranks.snapshot().read_otherwise == frozenset()


def test_who_writes_records_is_not_looked_at(node: Node) -> None:
    """A rank that writes records is not searched for means, because one mode excludes the other."""
    node.add_writer()
    [process] = node.ranks.running().values()
    process.note_progress(1.0, 1.0)
    with pytest.raises(NoData):
        node.look()


def left_out(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the logged reasons for skipped lines."""
    fields = [getattr(record, "fields", {}) for record in caplog.records]
    return [str(one["reasons"]) for one in fields if "reasons" in one]


def test_series_are_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Above the budget the smallest messages' rows are dropped and logged; the exporter's end frees the budget."""
    node = Node(tmp_path, admit=Admission(per_rank=6))
    node.add_writer(rows=3)
    node.looks()
    assert left_out(caplog) == []
    node.write(200, rows=4)
    shown = node.looks()
    assert left_out(caplog) == ["series 1"]
    sizes = [name.split("/")[-2] for name in shown if name.startswith("mean_bus_bandwidth")]
    assert (sizes, node.ctx.admit.taken) == (["11-12MB", "10-11MB", "9-10MB"], 6)
    node.end()
    assert node.ctx.admit.taken == 0


def test_files_are_bounded_and_shared(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit of files, each user's first files are read; the ranks of the other files are `unreadable`."""
    monkeypatch.setattr(descriptors, "MAX_FILES", 3)
    for rank in range(4):
        node.add_writer(rank, uid=OTHER if rank == 3 else ME)
    shown = node.looks()
    assert (shown["means_ranks/read"], shown["means_ranks/unreadable"]) == (3.0, 1.0)
    assert f"means_timestamp_seconds/4711-u{OTHER}/3" in shown


def test_reads_and_processes_of_one_look_are_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and processes above the limit of one look are read in the next look."""
    monkeypatch.setattr(exporter, "MAX_READ", 2)
    for rank in range(3):
        node.add_writer(rank)
    assert node.looks()["means_ranks/read"] == 2.0
    assert node.look()["means_ranks/read"] == 3.0
    monkeypatch.setattr(descriptors, "MAX_PROCESSES", 2)
    for rank in range(3, 6):
        node.add_writer(rank)
    shown = node.look()
    assert (shown["means_ranks/idle"], shown["means_ranks/waiting"]) == (2.0, 1.0)
    assert node.looks(4)["means_ranks/read"] == 6.0


def test_intervals() -> None:
    """An interval is read as the plugin reads it, with 30 s as minimum and an hour as maximum."""
    texts = ["-1", "0", "soon", "500", "0x5f5e100", "3600000001", "9" * 50]
    assert [interval_seconds({INTERVAL: text}) for text in texts] == [30.0, 30.0, 30.0, 30.0, 100.0, 3600.0, 3600.0]
    assert interval_seconds({}) == 30.0


def test_an_answer_has_room() -> None:
    """The helper's largest reply fits into one frame."""
    assert exporter.MAX_READ * MAX_TEXT_BYTES + 1024 * descriptors.MAX_FILES < MAX_PAYLOAD_BYTES
