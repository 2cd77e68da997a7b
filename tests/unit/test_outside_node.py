"""Damaged input from the node: /proc, /sys, the kernel log, libraries of jobs, replies of helpers."""

import asyncio
import contextlib
import os
import struct
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from fake_clock import FakeClock
from hypothesis import HealthCheck, example, given, settings, strategies as st
from lent import lent
from odd_values import AtOnce, damaged, plain, reshaped, shown
from proc_tree import ProcTree, stat_line
from rank_table import environment
from test_ras_listeners import library

from agent.sdk.exporter import Exporter, NoData, Roots, StateSection
from agent.sdk.system import ProcFS, sysfs
from agent.system.process_lines import parse_stat
from exporters.amdgpu.exporter import AmdgpuConfig, AmdgpuExporter
from exporters.kernel_log.mounts import mounted_devices
from exporters.netdev import NetdevConfig, NetdevExporter
from exporters.process.oom_kills import oom_kills
from exporters.process.scan import Scanner, ScanRequest
from exporters.ras.local import job_files as library_module
from exporters.ras.local.job_files import MAX_SECTION_BYTES, MAX_SECTIONS, parse, version_in
from exporters.ras.local.listeners import MAX_FACTOR, read_settings
from exporters.ras.local.sockets import addresses_in, parse_sockets
from exporters.rdma.exporter import RdmaConfig, RdmaExporter
from exporters.storage.exporter import StorageConfig, StorageExporter
from exporters.storage.probe import Probe

DATA = Path(__file__).parents[1] / "data"


class Answers:
    """Stands in for a helper, and always gives the same reply."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    async def call(self, *_: object) -> object:
        return self._answer

    def rest(self) -> None:
        """Do nothing, because there is no process."""


def run(exporter: Exporter, root: Path, answer: object = None) -> StateSection:
    """Start an exporter, look twice and render; return its checkpoint section."""
    clock = FakeClock()
    context = lent("test", clock, root, thread=AtOnce, helper=lambda _: Answers(answer))

    async def live() -> None:
        await exporter.start(context)
        for _ in range(2):
            try:
                await exporter.update()
            except NoData:
                continue
            finally:
                clock.advance(15.0)
            shown(exporter.families(exporter.snapshot()))
        await exporter.drain()

    asyncio.run(live())
    assert not context.failures.skipped
    assert context.state.published is None or plain(context.state.published) is not None
    return context.state


def attributes(root: Path) -> dict[str, list[bytes]]:
    """Return the contents of the attributes of a recorded /sys, keyed by name."""
    result: dict[str, list[bytes]] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file():
            result.setdefault(path.name, []).append(path.read_bytes())
    return result


TREES: dict[str, tuple[Any, Any]] = {
    "amdgpu": (AmdgpuExporter, AmdgpuConfig()),
    "rdma": (RdmaExporter, RdmaConfig()),
    "netdev": (NetdevExporter, NetdevConfig()),
    "storage": (StorageExporter, StorageConfig(dump_paths=[])),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TREES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_attribute_of_sys_costs_itself(name: str, data: st.DataObject) -> None:
    """With any content in all attributes of one name, looks succeed, and their results can be shown and saved."""
    known = attributes(DATA / name)
    odd = data.draw(st.sampled_from(sorted(known)))
    content = data.draw(damaged(*known[odd]))[: sysfs.MAX_BYTES]
    read = sysfs.read_bytes
    with mock.patch.object(sysfs, "read_bytes", lambda path: content if path.name == odd else read(path)):
        build, config = TREES[name]
        run(build(config), DATA / name)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_file_of_a_process_costs_that_process(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A damaged file of one process hides no other rank."""
    root = tmp_path_factory.mktemp("node")
    tree = ProcTree(root / "proc")
    for pid in (10, 20):
        tree.add(pid, threads={pid + 1: "NCCL RAS"}, environment=environment(pid), maps="7f00-7f01 /lib/libnccl.so.2\n")
        tree.note(pid, pid, schedstat="5 7 1\n", wchan="rpc_wait_bit_killable")
    files = ["stat", "status", "cgroup", "environ", "maps"]
    files += [f"task/10/{name}" for name in ("stat", "status", "schedstat", "wchan")]
    path = tree.root / "10" / data.draw(st.sampled_from(files))
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    context = lent("process", FakeClock(), root)
    result = Scanner(Roots(root / "proc", root / "sys", root / "run"), context.failures).look(ScanRequest(1000.0))
    assert 20 in {rank.key.pid for rank in result.new}
    assert 20 in {key.pid for key in result.usages.ranks}
    msgspec.msgpack.encode(result)


TCP = (
    b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    b"   0: 0100007F:6D7C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 71 1\n"
    b"   1: 00000000000000000000000001000000:6D7C 00000000000000000000000000000000:0000 0A 0:0 0:0 0 1000 0 72 1\n"
)
TRIE = b"Main:\n  +-- 0.0.0.0/0 3 0 5\n  |-- 127.0.0.1\n    /32 host LOCAL\n  |-- 127.0.0.0\n    /8 host LOCAL\n"
INET6 = b"00000000000000000000000000000001 01 80 10 80       lo\nfe800000000000000000000000000001 02 40 20 80 eth0\n"
MOUNTS = b"29 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 ro,errors=remount-ro\n"
CONF = b"NCCL_RAS_ADDR=localhost:28028\nNCCL_RAS_TIMEOUT_FACTOR=2.5\n# NCCL_DEBUG=WARN\n"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=damaged(TCP, TRIE, INET6, MOUNTS, CONF, b"low 0\noom_kill 3\n"))
@example(raw=b"oom_kill " + b"9" * 4_000)
def test_any_table_is_read(tmp_path: Path, raw: bytes) -> None:
    """Damaged kernel tables, and a job's NCCL settings, are read as far as they are valid."""
    text = raw.decode("ascii", "replace")
    assert all(0 <= parse_socket.local.port < 65536 for parse_socket in parse_sockets(text, "0A"))
    for name in ("fib_trie", "if_inet6"):
        (tmp_path / name).write_bytes(raw)
    addresses_in(tmp_path)
    mounted_devices(text, {"nvme0n1p2": ("259:2", "nvme0n1p2")})
    result = read_settings(parse(text))
    assert 1.0 <= result.timeout_factor <= MAX_FACTOR
    assert all(0 < endpoint.port < 65536 for endpoint in result.endpoints)
    (tmp_path / "memory.events").write_bytes(raw)
    oom_kills(str(tmp_path / "memory.events"))


PROBES = [Probe("/a", ok=True, seconds=0.1, under_way_seconds=0.0, free=0.5)]


def taken(answer: object, kind: Any) -> object:
    """Return a reply as the agent decodes it; None if it is refused."""
    try:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(answer), type=kind)
    except (ValueError, RecursionError):
        return None


def fields_of(value: object) -> Any:
    """Return a reply as plain values."""
    return plain(msgspec.msgpack.encode(value))


@settings(max_examples=100, deadline=None)
@given(reshaped(fields_of(PROBES)))
def test_any_answer_of_the_storage_helper_is_shown_or_refused(answer: object) -> None:
    """Looks succeed for any reply of the storage helper."""
    result = taken(answer, list[Probe])
    if result is not None:
        run(StorageExporter(StorageConfig(paths=["/a"], dump_paths=["/a"])), DATA / "storage", result)


def test_a_process_starts_at_a_time_that_can_be_saved() -> None:
    """A stat line with a start time above the maximum, or a number above 64 bits, is refused."""
    assert parse_stat(stat_line(7, "a", "S", 1, 0, 1, 2**46, 0)) is not None
    for start, exit_code in ((2**46 + 1, 0), (-1, 0), (0, 2**64)):
        assert parse_stat(stat_line(7, "a", "S", 1, 0, 1, start, exit_code)) is None


def test_a_line_of_another_process_does_not_count(tmp_path: Path) -> None:
    """A stat line with another pid than its directory is refused."""
    tree = ProcTree(tmp_path)
    tree.add(10)
    (tmp_path / "10/stat").write_text(stat_line(100, "a", "S", 1, 0, 1, 5, 0))
    assert ProcFS(tmp_path).stat(10) is None


def test_a_port_has_16_bits() -> None:
    """A socket row with an invalid port is left out."""
    table = TCP.decode()
    assert len(parse_sockets(table, "0A")) == 2
    for port in ("10000", "-1", "F" * 4_000):
        assert len(parse_sockets(table.replace("7F:6D7C", f"7F:{port}"), "0A")) == 1


@pytest.mark.slow
def test_a_library_of_many_texts_is_read_once(tmp_path: Path) -> None:
    """An ELF file with a thousand .rodata sections is read as fast as one with a single section."""
    names, count, size = b"\0.rodata\0.shstrtab\0", MAX_SECTIONS, MAX_SECTION_BYTES
    entry = struct.Struct("<IIQQQQIIQQ")
    rows = entry.pack(1, 1, 0, 0, 1 << 20, size, 0, 0, 0, 0) * (count - 1)
    rows += entry.pack(9, 3, 0, 0, 64, len(names), 0, 0, 0, 0)
    shape = (b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 0, 4096, 0, 64, 0, 0, 64, count, count - 1)
    path = tmp_path / "libnccl.so.2"
    with path.open("wb") as file:
        file.write(struct.pack("<16sHHIQQQIHHHHHH", *shape) + names)
        file.seek(4096)
        file.write(rows)
        file.truncate(1 << 26)
    read = []
    with path.open("rb") as file, mock.patch.object(library_module.os, "pread", wraps=os.pread) as pread:
        assert version_in(file.fileno()) is None
        read = [call.args[1] for call in pread.call_args_list]
    assert sum(read) < 2 * size


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_library_has_a_version_or_none(tmp_path: Path, data: st.DataObject) -> None:
    """A damaged ELF file of a job is read, or raises struct.error or OSError."""
    whole = library(tmp_path / "whole", b"\0NCCL version 2.30.7+cuda13.3\0").read_bytes()
    content = data.draw(damaged(whole))
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(content)))
        content = content[:at] + data.draw(st.sampled_from([b"\0", b"\xff"])) * 8 + content[at + 8 :]
    path = tmp_path / "libnccl.so.2"
    path.write_bytes(content[: 1 << 14])
    with (
        path.open("rb") as file,
        mock.patch.object(library_module, "MAX_SECTION_BYTES", 1 << 14),
        contextlib.suppress(struct.error, OSError),
    ):
        version_in(file.fileno())
