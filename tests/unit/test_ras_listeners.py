"""The process that listens on RAS's port, and its NCCL library, in a fake /proc."""

import asyncio
import errno
import os
import struct
import threading
from collections.abc import Iterable
from pathlib import Path
from unittest.mock import Mock

import pytest
from fake_clock import FakeClock
from msgspec.msgpack import decode, encode
from proc_tree import ProcTree

from agent.helper.by_user import ByUser
from agent.helper.client import Helpers
from agent.sdk.exporter import Logger, OwnThread
from agent.sdk.ranks import ProcessKey
from agent.system import inside
from agent.system.inside import MAX_LINKS, MAX_NAMES, MAX_PATH_BYTES, open_inside
from exporters.ras.local import job_files, listeners, sockets as sockets_module
from exporters.ras.local.job_files import (
    MAX_LINE,
    MAX_SECTIONS,
    FileFacts,
    FileRequest,
    files_of,
    parse,
    read_conf,
    read_files,
    read_one,
    version_in,
)
from exporters.ras.local.listeners import MAX_FACTOR, ListenerSearch, Server, Site, timeout_factor
from exporters.ras.local.sockets import parse_sockets
from exporters.ras.protocol.client import Endpoint
from exporters.ras.query import runner as runner_module
from exporters.ras.query.runner import FILE_READER, JobFiles

V4 = Endpoint("127.0.0.1", 28028)
V6 = Endpoint("::1", 28028)
RAS_THREAD = {12: "NCCL RAS"}
NAMED = "7f00-7f01 r-xp 00000000 08:01 99 /usr/lib/x86_64-linux-gnu/libnccl.so.2.30.7\n"
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def row(address: str, inode: int, state: str = "0A", uid: int = 0) -> str:
    """Return a line of /proc/net/tcp."""
    return f"   0: {address} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  {uid}        0 {inode} 1\n"


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    """Provide a /proc with two listeners on RAS's port, inodes 71 and 72."""
    tree = ProcTree(tmp_path / "proc")
    (tree.root / "net").mkdir()
    append(tree, HEAD + row("0100007F:6D7C", 71) + row("0100007F:6D7C", 72))
    return tree


def append(tree: ProcTree, rows: str, table: str = "tcp") -> None:
    """Append to a table of sockets."""
    with (tree.root / "net" / table).open("a") as file:
        file.write(rows)


def add(
    tree: ProcTree, pid: int, *inodes: int, threads: dict[int, str] | None = None, factor: str | None = None
) -> ProcessKey:
    """Add a process that holds these sockets."""
    environment = {} if factor is None else {"NCCL_RAS_TIMEOUT_FACTOR": factor}
    tree.add(pid, threads=RAS_THREAD if threads is None else threads, maps=NAMED, environment=environment)
    for number, inode in enumerate(inodes, 40):
        (tree.root / f"{pid}/fd/{number}").symlink_to(f"socket:[{inode}]")
    return ProcessKey(pid, 5000)


class Search(ListenerSearch):
    """Reads the files of jobs immediately."""

    def look(self, processes: Iterable[ProcessKey]) -> dict[Endpoint, Site]:
        """Look until no file is left to read."""
        sites = super().look(processes)
        while requests := self.requests():
            sent = decode(encode([*requests.values()]), type=list[FileRequest])
            answers = zip(requests, map(read_one, sent), strict=True)
            self.note(requests, {key: facts for key, facts in answers if facts is not None})
            sites = super().look(processes)
        return sites


def effective_environment(proc_root: Path, pid: int, environment: dict[str, str]) -> dict[str, str]:
    """Return an environment together with the settings in NCCL's configuration files."""
    return read_conf(f"{proc_root}/{pid}/root", files_of(environment)) | environment


def look(tree: ProcTree, *keys: ProcessKey) -> dict[Endpoint, Site]:
    """Return the result of a first look, with these rank processes."""
    return Search(tree.root, (V4, V6)).look(keys)


def test_a_table_gives_its_listening_sockets() -> None:
    """Addresses of both families are read in the kernel's byte order; connections and damaged lines are left out."""
    v6 = row("00000000000000000000000001000000:6D7C", 3)
    table = HEAD + row("0100007F:6D7C", 1) + row("00000000:0016", 2) + v6 + row("0100007F:6D7C", 4, state="01")
    table += row("zz:6D7C", 6) + row("0100007F:6D7C", 7).replace(" 7 1", " x 1") + "nonsense\n"
    listening = [(row.local, row.inode) for row in parse_sockets(table, "0A")]
    assert listening == [(V4, 1), (Endpoint("0.0.0.0", 22), 2), (V6, 3)]  # noqa: S104  # what it says


def test_a_listener_belongs_to_the_rank_that_holds_it(tree: ProcTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener is unowned if its rank has exited, has closed it, or has it above the limit of descriptors."""
    first, second = add(tree, 10, 71), add(tree, 20, 72, 73)
    search = Search(tree.root, (V4,))
    assert search.look([first, second]) == {V4: Site(dict.fromkeys((first, second), Server((2, 30, 7), 1.0)), 0)}
    assert search.look([second])[V4] == Site({second: Server((2, 30, 7), 1.0)}, 1)
    (tree.root / "20/fd/40").unlink()
    assert search.look([first, second])[V4].unowned == 1
    (tree.root / "10/fd/50").symlink_to("socket:[72]")
    assert search.look([first, second])[V4] == Site({first: Server((2, 30, 7), 1.0)}, 0)
    for bound, unowned in ((2, 0), (1, 1)):
        monkeypatch.setattr(listeners, "MAX_DESCRIPTORS", bound)
        assert look(tree, first)[V4].unowned == unowned


@pytest.mark.parametrize(
    ("threads", "owned"),
    [({12: "NCCL RAS", 13: "NCCL Service"}, True), ({13: "NCCL Service"}, False), ({12: "python3"}, True), ({}, False)],
)
def test_a_rank_without_a_ras_thread_serves_nothing(tree: ProcTree, threads: dict[int, str], *, owned: bool) -> None:
    """If NCCL names its threads, the process must have the RAS thread; otherwise any further thread is enough."""
    key = add(tree, 10, 71, 72, threads=threads)
    assert look(tree, key)[V4].unowned == (0 if owned else 2)


def test_other_ports_and_addresses_are_no_sites(tree: ProcTree) -> None:
    """A listener at another port or address does not count; a listener at `::` counts for each RAS address."""
    (tree.root / "net/tcp").write_text(HEAD + row("0100007F:6D7D", 71) + row("0200007F:6D7C", 72))
    assert look(tree) == {}
    (tree.root / "net/tcp6").write_text(HEAD + row("0" * 32 + ":6D7C", 73))
    assert look(tree) == {V4: Site({}, 1), V6: Site({}, 1)}


@pytest.mark.parametrize(("text", "factor"), [
    ("3", 3.0), ("0.1", 1.0), ("1e9", MAX_FACTOR), ("inf", MAX_FACTOR), ("nan", 1.0), ("-2", 1.0), ("x", 1.0),
    ("", 1.0),
])  # fmt: skip
def test_timeout_factor(tree: ProcTree, text: str, factor: float) -> None:
    """The job's factor extends the query's deadline, within limits, and never shortens it."""
    assert timeout_factor({"NCCL_RAS_TIMEOUT_FACTOR": text}) == factor
    key = add(tree, 10, 71, factor=text)
    assert look(tree, key)[V4].servers[key].timeout_factor == factor


def library(path: Path, text: bytes, *, sections: int = 3, names_index: int = 2, offset: int | None = None) -> Path:
    """Write an ELF file with ``text`` in its .rodata section (elf(5))."""
    names = b"\0.rodata\0.shstrtab\0"
    rodata, table = 64, 64 + len(text) + len(names)
    entry = struct.Struct("<IIQQQQIIQQ")
    rows = [
        entry.pack(0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        entry.pack(1, 1, 0, 0, rodata, len(text), 0, 0, 0, 0),
        entry.pack(9, 3, 0, 0, rodata + len(text), len(names), 0, 0, 0, 0),
    ]
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 0, offset or table, 0, 64, 0, 0, 64, sections,
        names_index,
    )  # fmt: skip
    path.write_bytes(header + text + names + b"".join(rows))
    return path


def version_of(path: Path) -> tuple[int, int, int] | None:
    """Return the version in a file."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return version_in(fd)
    finally:
        os.close(fd)


def test_a_file_that_is_no_library_has_no_version(tmp_path: Path) -> None:
    """Other files, too many sections and missing tables give None or a struct.error."""
    good, path = b"NCCL version 2.30.7+cuda13.3\0", tmp_path / "library"
    path.write_bytes(good[:-1])
    assert version_of(path) is None
    assert version_of(library(path, b"NCCL version 2.30\0")) is None
    odd: list[dict[str, int]] = [{"sections": MAX_SECTIONS + 1}, {"names_index": 3}, {"offset": 2**62}]
    for header in odd:
        assert version_of(library(path, good, **header)) is None
    with pytest.raises(struct.error):
        version_of(library(path, good, sections=4))


@pytest.mark.parametrize(("name", "text", "server"), [
    ("libnccl.so.2", b"NCCL version 2.31.2+cuda13.3\0", Server((2, 31, 2), 1.0)),
    ("librccl.so.1.0.70000", b"RCCL version : 2.28.3-HEAD:1a2b\0", Server((2, 28, 3), 1.0, "rccl")),
])  # fmt: skip
def test_the_version_of_an_unnumbered_library_is_read_from_it(
    tree: ProcTree, name: str, text: bytes, server: Server
) -> None:
    """A library without a version in its name is read by its mapping; a FIFO in its place does not block."""
    key, inside = add(tree, 10, 71, 72), tree.root / "10/root" / os.fsdecode(b"not UTF-8: \xff")
    inside.mkdir(parents=True)
    maps = f"7f00-7f01 r-xp 00000000 08:01 99 /{inside.name}/{name}\n"
    (tree.root / "10/maps").write_text(maps, errors="surrogateescape")
    library(inside / name, text)
    assert look(tree, key)[V4].servers[key] == server
    (inside / name).unlink()
    os.mkfifo(inside / name)
    assert look(tree, key)[V4].servers[key].version is None
    (tree.root / "10/maps").unlink()
    assert look(tree, key)[V4].servers[key].version is None


def test_a_library_is_read_again_after_an_error_that_ends(tree: ProcTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a file system or the helper fails for a moment, the request for the version stays."""
    key, inside = add(tree, 10, 71, 72), tree.root / "10/root/opt"
    inside.mkdir(parents=True)
    (tree.root / "10/maps").write_text("7f00-7f01 r-xp 00000000 08:01 99 /opt/libnccl.so.2\n")
    library(inside / "libnccl.so.2", b"NCCL version 2.32.3+cuda13.3\0")
    search = ListenerSearch(tree.root, (V4,))
    search.look([key])
    for error in (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EMFILE):
        with monkeypatch.context() as patch:
            patch.setattr(job_files, "version_in", Mock(side_effect=OSError(error, os.strerror(error))))
            assert read_files(list(search.requests().values()), b"") == [None]
    assert look(tree, key)[V4].servers[key].version == (2, 32, 3)


def test_a_plugin_is_not_the_library(tree: ProcTree) -> None:
    """A plugin, even one mapped below the library, is not taken for NCCL."""
    key, line = add(tree, 10, 71, 72), "7e00-7e01 r-xp 00000000 08:01 98 /opt/{}\n"
    plugins = ("libnccl-net.so", "libnccl-net-ofi.so.1", "libnccl-profiler-inspector.so", "libnccl_tuner.so")
    (tree.root / "10/maps").write_text("".join(map(line.format, plugins)) + NAMED)
    assert look(tree, key)[V4].servers[key].version == (2, 30, 7)


def test_a_library_that_was_replaced_is_not_the_one_that_runs(tree: ProcTree) -> None:
    """Of a deleted library the mapping is read; a rewritten file is read again."""
    key, inside = add(tree, 10, 71, 72), tree.root / "10/root/opt"
    inside.mkdir(parents=True)
    maps = "7f00-7f01 r-xp 00000000 08:01 99 /opt/libnccl.so.2"
    (tree.root / "10/maps").write_text(maps + "\n")
    search = Search(tree.root, (V4,))
    library(inside / "libnccl.so.2", b"NCCL version 2.32.3+cuda13.3\0")
    assert search.look([key])[V4].servers[key].version == (2, 32, 3)
    (tree.root / "10/fd").rename(tree.root / "10/closed")
    search.look([key])  # an exec has closed the listener
    (tree.root / "10/closed").rename(tree.root / "10/fd")
    library(inside / "libnccl.so.2", b"NCCL version 2.26.12+cuda12.9\0")
    assert search.look([key])[V4].servers[key].version == (2, 26, 12)
    (tree.root / "10/maps").write_text(maps + " (deleted)\n")
    assert look(tree, key)[V4].servers[key].version is None
    (tree.root / "10/map_files").mkdir()
    library(tree.root / "10/map_files/7f00-7f01", b"NCCL version 2.27.7+cuda12.9\0")
    assert look(tree, key)[V4].servers[key].version == (2, 27, 7)


def test_the_oldest_of_several_libraries_counts(tree: ProcTree) -> None:
    """If a process maps two libraries, the older version is used, whatever their order in memory."""
    key, inside = add(tree, 10, 71, 72), tree.root / "10/root/opt"
    inside.mkdir(parents=True)
    library(inside / "libnccl.so.2", b"NCCL version 2.27.7+cuda12.9\0")
    unnamed = "7f00-7f01 r-xp 00000000 08:01 99 /opt/libnccl.so.2\n"
    for maps in (unnamed + NAMED, NAMED + unnamed):
        (tree.root / "10/maps").write_text(maps)
        assert look(tree, key)[V4].servers[key].version == (2, 27, 7)
    (inside / "libnccl.so.2").unlink()
    assert look(tree, key)[V4].servers[key].version is None


def test_a_process_of_too_many_libraries_has_no_version(tree: ProcTree) -> None:
    """If a process maps more libraries than the limit, the version is unknown, so the job gets no query."""
    key, line = add(tree, 10, 71, 72), "7f0{0}-7f1{0} r-xp 00000000 08:01 99 /opt/{0}/libnccl.so.2.30.7\n"
    for count, version in ((job_files.MAX_LIBRARIES, (2, 30, 7)), (job_files.MAX_LIBRARIES + 1, None)):
        (tree.root / "10/maps").write_text("".join(line.format(number) for number in range(count)))
        assert look(tree, key)[V4].servers[key].version == version


def test_libraries_beyond_the_bound_are_forgotten(tree: ProcTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit of cached versions, an evicted library is read again."""
    monkeypatch.setattr(job_files, "_versions", {})
    monkeypatch.setattr(job_files, "MAX_VERSIONS", 1)
    reads: list[int] = []
    monkeypatch.setattr(job_files, "version_in", lambda fd: reads.append(fd) or (2, 30, 7))
    for pid, name in ((10, "a"), (11, "a"), (12, "b"), (10, "a")):
        inside = tree.root / f"{pid}/root/{name}"
        if not inside.is_dir():
            add(tree, pid)
            inside.mkdir(parents=True)
            (inside / "libnccl.so.2").write_text(name)
        os.utime(inside / "libnccl.so.2", ns=(pid, pid))
        request = FileRequest(str(tree.root), pid, 0, libraries=(f"/{name}/libnccl.so.2".encode(),))
        assert read_one(request) == FileFacts({}, (2, 30, 7))
    assert len(reads) == 4


def test_settings_in_nccl_s_own_files_count(tree: ProcTree) -> None:
    """The environment wins over the user's file, and the user's file over the system's file; FIFOs are skipped."""
    key, root, factor = add(tree, 10, 71, 72), tree.root / "10/root", "NCCL_RAS_TIMEOUT_FACTOR"
    (root / "etc").mkdir(parents=True)
    (root / "home/ada").mkdir(parents=True)
    (root / "etc/nccl.conf").write_text(f"# site\n{factor}=3\r\nNCCL_DEBUG=WARN\nNCCL_RAS_ADDR\n")
    (root / "home/ada/.nccl.conf").write_text(f"{factor}=2\nNCCL_RAS_ADDR=10.0.0.1:4000\n")
    (root / "own").symlink_to("etc/nccl.conf")
    assert look(tree, key)[V4].servers[key].timeout_factor == 3.0
    environments: list[tuple[dict[str, str], dict[str, str]]] = [
        ({"A": "1"}, {factor: "3"}),
        ({"HOME": "/home/ada"}, {factor: "2", "NCCL_RAS_ADDR": "10.0.0.1:4000"}),
        ({factor: "9", "HOME": "/"}, {}),
        ({"NCCL_CONF_FILE": "/own"}, {factor: "3"}),
    ]
    for environment, added in environments:
        assert effective_environment(tree.root, 10, environment) == environment | added
    (root / "etc/nccl.conf").unlink()
    os.mkfifo(root / "etc/nccl.conf")
    for path in ("/own", "own", "/none", "/a\0b"):
        assert effective_environment(tree.root, 10, {"NCCL_CONF_FILE": path}) == {"NCCL_CONF_FILE": path}


def test_a_file_of_settings_is_read_to_its_bound(monkeypatch: pytest.MonkeyPatch, tree: ProcTree) -> None:
    """A setting that ends at the limit is read whole; a longer setting is cut."""
    text = "NCCL_RAS_TIMEOUT_FACTOR=12"
    (tree.root / "10/root/etc").mkdir(parents=True)
    (tree.root / "10/root/etc/nccl.conf").write_text(text)
    for size, factor in ((len(text) - 1, "1"), (len(text), "12")):
        monkeypatch.setattr(job_files, "MAX_FILE_BYTES", size)
        assert effective_environment(tree.root, 10, {}) == {"NCCL_RAS_TIMEOUT_FACTOR": factor}
    assert parse("NCCL_RAS_ADDR=" + "1" * MAX_LINE) == {"NCCL_RAS_ADDR": "1" * (MAX_LINE - len("NCCL_RAS_ADDR="))}


def test_what_lies_beyond_a_bound_of_proc_is_not_read(tree: ProcTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table is read up to its limit, without the line that does not fit."""
    table = (tree.root / "net/tcp").read_text()
    for size, unowned in ((len(table), 2), (table.rindex("72"), 1)):
        monkeypatch.setattr(sockets_module, "MAX_TABLE_BYTES", size)
        assert look(tree)[V4].unowned == unowned


def test_a_section_or_a_map_beyond_its_bound_gives_no_version(tree: ProcTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """A section up to its limit is searched, a longer one is not; maps are read up to their limit."""
    text = b"NCCL version 2.30.7+cuda13.3\0"
    path = library(tree.root / "libnccl.so.2", text)
    for size, version in ((len(text), (2, 30, 7)), (len(text) - 1, None)):
        monkeypatch.setattr(job_files, "MAX_SECTION_BYTES", size)
        assert version_of(path) == version
    key = add(tree, 10, 71, 72)
    monkeypatch.setattr(job_files, "MAX_MAPS_BYTES", NAMED.index("libnccl"))
    assert look(tree, key)[V4].servers[key].version is None


def test_a_job_is_found_where_its_environment_has_it_listen(tree: ProcTree) -> None:
    """NCCL_RAS_ADDR names a further address if the rank itself listens there."""
    tree.add(10, threads=RAS_THREAD, maps=NAMED, environment={"NCCL_RAS_ADDR": "10.0.0.1:4000"})
    (tree.root / "10/fd/40").symlink_to("socket:[73]")
    key, there = ProcessKey(10, 5000), Endpoint("10.0.0.1", 4000)
    append(tree, row("0100000A:0FA0", 73) + row("0200000A:0FA0", 74))
    (tree.root / "net/fib_trie").write_text("|-- 10.0.0.1\n   /32 host LOCAL\n")
    assert look(tree, key) == {there: Site({key: Server((2, 30, 7), 1.0)}, 0), V4: Site({}, 2)}
    (tree.root / "10/fd/40").unlink()
    assert look(tree, key) == {V4: Site({}, 2)}


def test_the_settings_after_an_exec_count(tree: ProcTree) -> None:
    """An exec can change the environment of a process, once and again; a process within an exec serves no site, and
    the environment of a blocked process is not read again, because these reads can hang."""
    key, search = add(tree, 10, 71, 72, factor="2"), Search(tree.root, (V4,))
    (tree.root / "10/fd").rename(tree.root / "10/closed")
    for factor in ("2", "9", "5"):
        (tree.root / "10/environ").write_text(f"NCCL_RAS_TIMEOUT_FACTOR={factor}\0")
        assert search.look([key])[V4] == Site({}, 2)
        (tree.root / "10/closed").rename(tree.root / "10/fd")
        assert search.look([key])[V4] == Site({key: Server((2, 30, 7), float(factor))}, 0)
        (tree.root / "10/fd").rename(tree.root / "10/closed")
        (tree.root / "10/statm").write_text("34 1 0 0 0 34 0\n")
        assert search.look([key])[V4] == Site({}, 2)
        (tree.root / "10/statm").unlink()
        assert search.look([key])[V4] == Site({}, 2)
    (tree.root / "10/stat").write_text((tree.root / "10/stat").read_text().replace(" S ", " D "))
    (tree.root / "10/environ").write_text("NCCL_RAS_TIMEOUT_FACTOR=7\0")
    (tree.root / "10/closed").rename(tree.root / "10/fd")
    assert search.look([key])[V4].servers[key].timeout_factor == 5.0


def test_the_most_specific_listener_takes_the_connections(tree: ProcTree) -> None:
    """If another user listens on every address, a listener at the exact address still gets all connections.

    If one user has both, either can accept. An IPv6 socket bound to an IPv4 address counts as bound to that address."""
    key = add(tree, 10, 71)
    (tree.root / "net/tcp").write_text(HEAD + row("0100007F:6D7C", 71) + row("00000000:6D7C", 72))
    (tree.root / "net/tcp6").write_text(HEAD + row("0" * 32 + ":6D7C", 73, uid=7))
    assert look(tree, key) == {V4: Site({key: Server((2, 30, 7), 1.0)}, 0), V6: Site({}, 1)}
    append(tree, row("0000000000000000FFFF00000100007F:6D7C", 74), "tcp6")
    assert look(tree, key)[V4].unowned == 1


def test_a_connection_is_searched_for_to_the_bound(tree: ProcTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row within the limit of the table is read; a listener of both families has its connections in tcp6."""
    client = Endpoint("127.0.0.1", 40001)
    line = row("0100007F:6D7C", 99, state="01").replace("00000000:0000 01", "0100007F:9C41 01")
    (tree.root / "net/tcp").write_text(HEAD + row("0100007F:6D7C", 71) * 50 + line)
    size, entry = (tree.root / "net/tcp").stat().st_size, sockets_module.Socket(V4, client, 0, 99)
    for bound, tcp6, expected in ((size, "", entry), (size - 1, "", None), (size - 1, line, entry)):
        monkeypatch.setattr(sockets_module, "MAX_SEARCHED_BYTES", bound)
        (tree.root / "net/tcp6").write_text(tcp6.replace("0100007F", "0000000000000000FFFF00000100007F"))
        assert sockets_module.connection(tree.root / "net", V4, client) == expected


def test_a_connection_that_another_user_accepted_has_no_owner(tree: ProcTree) -> None:
    """A process that holds another user's socket did not accept the connection."""
    key, search = add(tree, 10, 71, 72, 99), Search(tree.root, (V4,))
    site = search.look([key])[V4]
    append(tree, "8: 0100007F:6D7C 0100007F:9C41 01 0:0 0:0 0 5 0 99 1\n")
    assert search.server_of(site, V4, Endpoint("127.0.0.1", 40001)) is None


SETTING = "NCCL_RAS_TIMEOUT_FACTOR=7\n"
FOUND = FileFacts({"NCCL_RAS_TIMEOUT_FACTOR": "7"}, None)


@pytest.fixture
def job_root(tmp_path: Path) -> Path:
    """Provide a process's root directory with a file; a file outside it is not the job's."""
    job_root = tmp_path / "proc/10/root"
    (job_root / "etc/deep").mkdir(parents=True)
    (job_root / "etc/nccl.conf").write_text(SETTING)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/nccl.conf").write_text("not the job's")
    return job_root


def text_of(job_root: Path, path: str) -> str:
    """Return the file's text, or the name of the error if it cannot be opened."""
    try:
        with open_inside(str(job_root), path) as fd:
            return os.read(fd, 100).decode()
    except OSError as error:
        return type(error).__name__


def test_links_lead_nowhere_but_below_the_root(job_root: Path) -> None:
    """Absolute links and any number of .. stay below the job's root, both in directories and in the last name."""
    outside = job_root.parents[2] / "outside"
    for name, target in {"dir": outside, "up": "../../../outside", "file": outside / "nccl.conf"}.items():
        (job_root / name).symlink_to(target)
    for path in ("/dir/nccl.conf", "/up/nccl.conf", "/file", "/../../../outside/nccl.conf"):
        assert text_of(job_root, path) == "FileNotFoundError"
    (job_root / "own").symlink_to("/etc")
    (job_root / "etc/deep/conf").symlink_to("../nccl.conf")
    for path in ("/own/nccl.conf", "/own/deep/conf", "/../etc//./deep/../nccl.conf", "/own/deep/../../etc/nccl.conf"):
        assert text_of(job_root, path) == SETTING


def test_nothing_but_a_regular_file_is_opened(job_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A FIFO, a directory and a socket are not opened; a name below a file does not exist."""
    os.mkfifo(job_root / "fifo")
    opened = []
    monkeypatch.setattr(inside, "open_regular", lambda fd: opened.append(fd) or inside_regular(fd))
    assert [text_of(job_root, path) for path in ("/fifo", "/etc", "/")] == ["OSError"] * 3
    assert text_of(job_root, "/etc/nccl.conf/x") == "NotADirectoryError"
    assert len(opened) == 3


inside_regular = inside.open_regular


def test_a_way_ends_at_its_bounds(job_root: Path) -> None:
    """A path is followed up to the limits of links, directories and bytes; no descriptor stays open."""
    before = len(os.listdir("/proc/self/fd"))
    (job_root / "l0").symlink_to("etc/nccl.conf")
    for number in range(1, MAX_LINKS + 1):
        (job_root / f"l{number}").symlink_to(f"l{number - 1}")
    assert (text_of(job_root, f"/l{MAX_LINKS - 1}"), text_of(job_root, f"/l{MAX_LINKS}")) == (SETTING, "OSError")
    level = job_root
    for _ in range(MAX_NAMES - 1):
        level /= "d"
    level.mkdir(parents=True)
    (level / "f").write_text(SETTING)
    assert text_of(job_root, "/d" * (MAX_NAMES - 1) + "/f") == SETTING
    (level / "d").mkdir()
    (level / "d/f").write_text(SETTING)
    assert text_of(job_root, "/d" * MAX_NAMES + "/f") == "OSError"
    path = "/etc/nccl.conf"
    assert text_of(job_root, "/" * (MAX_PATH_BYTES - len(path)) + path) == SETTING
    assert text_of(job_root, "/" * (MAX_PATH_BYTES - len(path) + 1) + path) == "OSError"
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_of_the_kernels_is_not_read(job_root: Path) -> None:
    """A file of size 0, such as kmsg, is not read."""
    proc = str(job_root.parents[1])
    (job_root / "empty").write_text("")
    assert job_files.read_one(FileRequest(proc, 10, 0, ("/empty",))) == FileFacts({}, None)


def test_a_file_system_that_hangs_costs_its_user_alone(job_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that hangs delays only its user's requests."""
    gate = threading.Event()

    def read_or_hang(request: FileRequest) -> FileFacts:
        if request.uid:
            gate.wait()
        return job_files.read_one(request)

    monkeypatch.setattr(job_files, "GRACE_SECONDS", 0.05)
    monkeypatch.setattr(job_files, "_readers", ByUser(read_or_hang))
    both = [FileRequest(str(job_root.parents[1]), 10, uid, ("/etc/nccl.conf",)) for uid in (100, 0)]
    assert read_files(both, b"") == [None, FOUND]
    gate.set()


class ScriptedSearch(ListenerSearch):
    """Requests these files, and records the replies."""

    def __init__(self, unread: dict[ProcessKey, FileRequest]) -> None:
        self.unread = unread
        self.answers: dict[ProcessKey, FileFacts] = {}

    def requests(self) -> dict[ProcessKey, FileRequest]:
        return {key: request for key, request in self.unread.items() if key not in self.answers}

    def note(self, _requests: object, answers: object) -> None:
        self.answers.update(answers)  # type: ignore[call-overload]


async def test_files_are_read_in_a_helper(job_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests above the limit wait; after a failure the helper is called again."""
    monkeypatch.setattr(runner_module, "MAX_REQUESTS", 2)
    helper, thread = Helpers(FakeClock()).lend(FILE_READER), OwnThread("ras")
    request = FileRequest(str(job_root.parents[1]), 10, 0, ("/etc/nccl.conf",))
    search = ScriptedSearch({ProcessKey(pid, 1): request for pid in (1, 2, 3)})
    reader = JobFiles(helper, thread, Logger("ras"))
    for expected in (2, 3):
        assert await reader.read_for(search)
        assert search.answers == {ProcessKey(pid, 1): FOUND for pid in range(1, expected + 1)}
    assert not await reader.read_for(search)
    search.answers.clear()
    process = helper._process
    assert process is not None
    process.kill()
    async with asyncio.timeout(10.0):
        while not await reader.read_for(search):
            pass
    await helper.stop()
    thread.stop()
