"""A fake node with a scripted RAS server, and the exporter that queries the server."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType

import msgspec
from lent import Admission, lent, until
from proc_tree import ProcTree
from rank_table import Table, environment, facts, writer_key
from ras_server import conversing, served

from agent.app.lease import end_writers
from agent.sdk.exporter import OwnThread, StateSection
from agent.sdk.ranks import Membership, Owner, ProcessKey
from exporters.ras import RasConfig, RasExporter
from exporters.ras.protocol.client import Endpoint
from exporters.ras.query.policy import MIN_INTERVAL_SECONDS
from exporters.ras.show import RasSnapshot

MAPS = "7f00-7f01 r-xp 00000000 08:01 99 /usr/lib/libnccl.so.2.30.7\n"


def report(
    missing: int = 0,
    size: int = 4,
    pids: tuple[int, ...] = (11, 12),
    hash_number: int = 0xAB,
    launched: int | None = None,
) -> bytes:
    """Return a report of a communicator whose last ranks are missing; ``launched``: AllReduce launches of each rank."""
    counts = {} if launched is None else {"collective_counts": {"AllReduce": launched}}
    locations = [
        {"rank": rank, "host": "10.0.0.1", "pid": pids[rank % len(pids)], "nvml_dev": rank, **counts}
        for rank in range(size)
    ]
    communicator = {
        "hash": f"{hash_number:#x}",
        "size": size,
        "ranks": locations[: size - missing],
        "missing_ranks": [
            {**spot, "status": {"unresponsive": True, "considered_dead": False}} for spot in locations[size - missing :]
        ],
    }
    whole = {"nccl_version": "2.30.7", "communicators": [communicator], "ras": {"timeouts_count": 0}}
    return json.dumps(whole).encode()


class Node:
    """A node with ranks 0 and 1 of job 4711 (pids 11 and 12) of four ranks; RAS sends the ``replies`` in order.

    The last reply is sent again and again; None: no reply comes. ``streams``: open connections that sent MONITOR.
    The pids accept connections in turns."""

    def __init__(
        self, path: Path, ranks: Mapping[int, int] = MappingProxyType({11: 0, 12: 1}), address: str = "10.0.0.1"
    ) -> None:
        self.address = address
        self.tree = ProcTree(path / "proc")
        (self.tree.root / "net").mkdir()
        self.table = Table()
        self.replies: list[bytes | None] = [report()]
        self.pids: list[int] = []
        self.listening: dict[int, tuple[int, int]] = {}
        self.queries = 0
        self.streams: list[asyncio.StreamWriter] = []
        self.admission = Admission()
        self.state = StateSection("ras", None)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        for pid, rank in ranks.items():
            self.add(pid, environment(rank, world=4))

    def add(
        self,
        pid: int,
        env: dict[str, str],
        membership: Membership | None = None,
        evidence: str = "thread",
        *,
        uid: int = 0,
        port: int | None = None,
    ) -> None:
        """Add a rank process with a listener at ``port``, and records of its membership in a communicator."""
        if port is None:
            self.pids.append(pid)
        self.listening[pid] = (port or self.port, uid)
        whole = {"NCCL_RAS_ADDR": f"127.0.0.1:{self.port}", "NCCL_RAS_TIMEOUT_FACTOR": "1", **env}  # no file sets more
        self.tree.add(pid, threads={pid + 1000: "NCCL RAS"}, maps=MAPS, environment=whole, uid=uid)
        (self.tree.root / f"{pid}/fd/40").symlink_to(f"socket:[{pid}]")
        (self.tree.root / f"{pid}/net").mkdir()
        (self.tree.root / f"{pid}/net/fib_trie").write_text(f"|-- {self.address}\n   /32 host LOCAL\n")
        self.listen(pid, port, uid)
        process_facts = msgspec.structs.replace(facts(pid, env), evidence=evidence, uid=uid, owner=Owner(name=str(uid)))
        assert self.table.ranks.observe_process(process_facts)
        if membership is not None:
            self.table.ranks.observe_records(writer_key(pid), [membership], None)
            self.table.ranks.link(writer_key(pid), ProcessKey(pid, 5000))
        self.table.tick(20.0)

    def listen(self, inode: int, port: int | None = None, uid: int = 0) -> None:
        address = f"0100007F:{port or self.port:04X}"
        with (self.tree.root / "net/tcp").open("a") as table:
            table.write(f"0: {address} 00000000:0000 0A 0:0 0:0 0 {uid} 0 {inode} 1\n")

    async def report(self) -> bytes | None:
        self.queries += 1
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]

    async def monitor(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"OK\n")
        self.streams.append(writer)
        await reader.read()
        self.streams.remove(writer)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = Endpoint(*writer.get_extra_info("peername"))
        pid = self.pids[0]
        self.pids = [*self.pids[1:], pid]
        thread = OwnThread("table")
        await thread.call(lambda: self.accept(pid, client))
        thread.stop()
        await conversing(self.report, self.monitor)(reader, writer)

    def accept(self, pid: int, client: Endpoint) -> None:
        """In the fake /proc, let the process own the server's end of a connection."""
        (self.tree.root / f"{pid}/fd/{client.port}").symlink_to(f"socket:[{client.port}]")
        port, uid = self.listening[pid]
        ends = f"0100007F:{port:04X} 0100007F:{client.port:04X}"
        row = f"1: {ends} 01 0:0 0:0 0 {uid} 0 {client.port} 1\n"
        with (self.tree.root / "net/tcp").open("a") as table:
            table.write(row)

    @asynccontextmanager
    async def exporter(self, role: str = "auto", *, once: bool = False) -> AsyncIterator[RasExporter]:
        """Start the server and the exporter; yield the exporter."""
        async with served(self.serve, self.listener) as endpoint:
            config = msgspec.convert({"addresses": [f"127.0.0.1:{endpoint.port}"], "role": role}, RasConfig)
            exporter = await self.start(config, once=once)
            yield exporter
            await exporter.drain()
            end_writers(self.context)

    async def start(self, config: RasConfig, *, once: bool = False) -> RasExporter:
        exporter = RasExporter(config)
        lends = {"ranks": self.table.ranks, "admit": self.admission, "state": self.state, "once": once}
        self.context = lent("ras", self.table.clock, self.tree.root.parent, **lends)
        await exporter.start(self.context)
        return exporter

    async def look(self, exporter: RasExporter, after: float) -> RasSnapshot:
        """Move the clock, and update."""
        self.table.tick(after)
        await exporter.update()
        await exporter.settle()
        return exporter.snapshot()

    async def first_query(self, exporter: RasExporter) -> RasSnapshot:
        """Let the exporter find the listeners, and move the clock to the exporter's first query."""
        await self.look(exporter, 1.0)
        return await self.look(exporter, MIN_INTERVAL_SECONDS)

    async def listened_to(self, exporter: RasExporter) -> asyncio.StreamWriter:
        """Wait until the exporter monitors events; return the server's end of the stream."""
        await until(lambda: exporter.snapshot().monitored.up == {f"127.0.0.1:{self.port}": True})
        return self.streams[-1]

    async def tell(self, exporter: RasExporter, event: str, times: int = 1) -> None:
        """Send events from RAS, and wait until the exporter has counted them."""
        before = exporter.snapshot().monitored.events[event]
        self.streams[-1].write(f"[2026-11-20 18:05:23] {event}: 10.0.0.1<4711> \n".encode() * times)
        await until(lambda: exporter.snapshot().monitored.events[event] == before + times)
