"""Listeners on a node that has just become idle."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from ras_node import Node

from agent.sdk.exporter import NoData
from agent.sdk.ranks import ProcessKey


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node with two ranks."""
    return Node(tmp_path)


def leave(node: Node) -> None:
    """Both ranks leave; a child that one of them forked holds its listener on."""
    for pid in (11, 12):
        node.table.ranks.observe_exit(ProcessKey(pid, 5000), None)


async def test_streams_are_not_begun_at_an_orphan(node: Node) -> None:
    """After the last rank has left, no stream is begun at a listener that belongs to nobody."""
    connections, original = [], node.serve

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        await original(reader, writer)

    node.serve = serve  # type: ignore[method-assign]
    async with node.exporter(role="monitor") as exporter:
        await node.look(exporter, 1.0)
        await node.until(lambda: len(node.streams) == 1)
        leave(node)
        await asyncio.to_thread(node.listen, 13)
        before = len(connections)
        for stream in list(node.streams):
            stream.close()
        await asyncio.sleep(0.1)
        for _ in range(8):
            with contextlib.suppress(NoData):
                await node.look(exporter, 1.0)
            await asyncio.sleep(0.02)
        assert len(connections) == before
