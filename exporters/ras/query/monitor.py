"""Reads the events that RAS threads of this node report: one MONITOR connection for each address.

Unlike a query, MONITOR involves only the process that serves the connection, so every node uses MONITOR. That process
buffers unread events without limit, so the exporter reads every stream to its end.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from agent.sdk.exporter import Clock, Logger
from agent.sdk.ranks import ProcessKey
from exporters.ras.protocol.client import Endpoint, QueryError, QueryLimits, Stage, command, greet, split_events
from exporters.ras.query.policy import ALARMS, LAST_RETRY_SECONDS, retry_seconds

PIECE_BYTES = 8 * 1024
PAUSE_SECONDS = 0.05
"""Pause after a piece, longer if there are several streams: all streams together are read at a rate of about 2,000
events/s, more than RAS ever sends for long."""
SILENCE_SECONDS = 10.0
"""A RAS thread that sends nothing for this long is pinged. If it stays silent as long again, it counts as stopped."""

Servers = frozenset[ProcessKey]
ServerCheck = Callable[[Endpoint, Endpoint], Awaitable[bool]]
"""Gets the server's and the agent's end of a connection; returns True if a process to monitor has accepted it."""


class Monitored(msgspec.Struct):
    """Counts over all addresses; ``up``: by address, whether its stream runs."""

    up: dict[str, bool] = {}
    errors: Counter[Stage] = msgspec.field(default_factory=Counter)
    events: Counter[str] = msgspec.field(default_factory=Counter)


class _Stream(msgspec.Struct):
    """The stream of one address. ``retry_at`` is monotonic; ``refused``: ``servers`` do not know the command."""

    servers: Servers
    task: asyncio.Task[None] | None = None
    up: bool = False
    refused: bool = False
    failures: int = 0
    retry_at: float = 0.0
    was_up: bool = False


class Monitors:
    """The streams of all addresses. Only ``follow`` starts a stream, right after a search for listening processes."""

    def __init__(self, clock: Clock, log: Logger, accept: ServerCheck) -> None:
        self._clock = clock
        self._accept = accept
        self._log = log
        self._random = random.Random()  # noqa: S311  # spreads connections over time; no secret
        self._streams: dict[Endpoint, _Stream] = {}
        self._wakes: set[Endpoint] = set()
        self._counts = Monitored()

    async def follow(self, servers: Mapping[Endpoint, Servers]) -> None:
        """Read events at these addresses and at no others; restart ended streams whose retry is due."""
        closed = [self._streams.pop(endpoint).task for endpoint in self._streams.keys() - servers.keys()]
        tasks = [task for task in closed if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for endpoint, keys in servers.items():
            stream = self._streams.setdefault(endpoint, _Stream(keys))
            if stream.servers != keys:
                stream.servers, stream.refused = keys, False
            ended = stream.task is None or stream.task.done()
            if ended and not stream.refused and self._clock.monotonic() >= stream.retry_at:
                stream.task = asyncio.get_running_loop().create_task(
                    self._run(endpoint, stream), name=f"monitor-{endpoint.label}"
                )

    def take_wakes(self) -> set[Endpoint]:
        """Return the addresses to query soon, as noted since the last call."""
        wakes, self._wakes = self._wakes, set()
        return wakes

    def snapshot(self) -> Monitored:
        """Copy the counts."""
        up, counts = {endpoint.label: stream.up for endpoint, stream in self._streams.items()}, self._counts
        return Monitored(up, counts.errors.copy(), counts.events.copy())

    async def drain(self) -> None:
        """End every stream; closing a MONITOR connection does the library no harm."""
        await self.follow({})

    async def _run(self, endpoint: Endpoint, stream: _Stream) -> None:
        began = self._clock.monotonic()
        try:
            await self._listen(endpoint, stream)
        except QueryError as error:
            self._counts.errors[error.stage] += 1
            self._log.warning(
                "events of RAS at {endpoint} cannot be read", endpoint=endpoint.label, stage=error.stage, error=error
            )
        finally:
            now = self._clock.monotonic()
            lasted = stream.up and now - began >= LAST_RETRY_SECONDS
            stream.up = False
            stream.failures = 1 if lasted else stream.failures + 1
            stream.retry_at = now + retry_seconds(stream.failures, self._random.random())

    async def _listen(self, endpoint: Endpoint, stream: _Stream) -> None:
        limits = QueryLimits()
        reader, writer = await greet(endpoint, limits, lambda client: self._accept(endpoint, client))
        try:
            if (answer := await command(reader, writer, "MONITOR all", limits)) != "OK":
                stream.refused = True
                raise QueryError("command", f"MONITOR was refused: {answer[:64]}")
            if stream.was_up:
                self._wakes.add(endpoint)  # events may have been missed since
            else:
                self._log.info("reading the events of RAS at {endpoint}", endpoint=endpoint.label)
            stream.up = stream.was_up = True
            stage = await self._read(endpoint, reader, writer)
        finally:
            writer.close()
        self._counts.errors[stage] += 1
        self._wakes.add(endpoint)
        self._log.info("the events of RAS at {endpoint} have ended", endpoint=endpoint.label, stage=stage)

    async def _read(self, endpoint: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Stage:
        """Read until the stream ends (``cut``) or the process stops answering (``deadline``)."""
        unfinished, warned = b"", False
        try:
            while piece := await _next_piece(reader, writer):
                events, unfinished = split_events(unfinished + piece)
                self._counts.events.update(filter(None, events))
                if not ALARMS.isdisjoint(events):
                    self._wakes.add(endpoint)
                if "" in events and not warned:
                    self._log.warning("RAS at {endpoint} sends lines that are not events", endpoint=endpoint.label)
                    warned = True
                await asyncio.sleep(PAUSE_SECONDS * max(1.0, len(self._streams) * len(piece) / PIECE_BYTES))
        except TimeoutError:
            return "deadline"
        except OSError:  # the connection broke
            pass
        return "cut"


async def _next_piece(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Return the next piece, empty at the end of the stream; TimeoutError when the RAS thread ignores a ping."""
    try:
        async with asyncio.timeout(SILENCE_SECONDS):
            return await reader.read(PIECE_BYTES)
    except TimeoutError:
        writer.write(b"CLIENT PROTOCOL 2\n")
    async with asyncio.timeout(SILENCE_SECONDS):
        return await reader.read(PIECE_BYTES)
