"""Run helpers: processes for calls that may hang, or whose memory hostile data could increase.

A thread that hangs in a driver cannot be ended; a process usually can be killed. If a killed process does not exit
(uninterruptible sleep), the agent stops waiting, and starts no other while it exists.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from agent.core.clock import Clock
from agent.core.log import Logger
from agent.helper.frames import FrameError, FrameKind
from agent.helper.process import HelperProcess

BACK_OFF_SECONDS = 1.0
MAX_BACK_OFF_SECONDS = 60.0
"""Longest wait before a start. The wait is BACK_OFF_SECONDS after the second failure in a row, and doubles after each
further failure. A single failure causes no wait: the next call can concern another user."""
KILL_SECONDS = 0.5  # A killed process exits within milliseconds; if it exists after this time, it hangs in the kernel
STOP_SECONDS = 1.0  # Time for a process to exit on request, before it is killed
_MAX_DOUBLINGS = 16
IDLE_SECONDS = 120.0  # The agent ends a process without calls for this time, to free its memory

CallResult: TypeAlias = Literal["ok", "failed", "hung"]
CALL_RESULTS: tuple[CallResult, ...] = ("ok", "failed", "hung")
Answer = TypeVar("Answer")
T = TypeVar("T")


class HelperError(Exception):
    """A call failed; the agent kills the helper's process."""


class HelperFailed(HelperError):  # noqa: N818  # named like the metric's label
    """The process crashed, broke the protocol, ran out of memory, or waits for its next start after such a failure."""


class HelperHung(HelperError):  # noqa: N818  # named like the metric's label
    """The process did not answer in time, or an earlier process of the helper still exists."""


@dataclass(frozen=True, slots=True)
class HelperSpec(Generic[Answer]):
    """Description of a helper. ``target``: MODULE:FUNCTION that answers calls (see ``agent.helper.serve``).

    ``answer``: type of the answers. ``memory_bytes``: limit of memory for calls, in addition to the interpreter and the
    module's imports. The module is imported without its packages' ``__init__``.
    """

    name: str
    target: str
    answer: type[Answer]
    memory_bytes: int


class Helper(Generic[Answer]):
    """A helper with at most one process, started by the first call; calls run one after the other.

    ``calls``: results since the agent's start. ``ok``: the last result; None before the first call and after ``stop``.
    """

    def __init__(self, spec: HelperSpec[Answer], clock: Clock) -> None:
        self.spec = spec
        self.ok: bool | None = None
        self.calls: Counter[CallResult] = Counter()
        self._clock = clock
        self._log = Logger(f"helper.{spec.name}")
        self._decoder = msgspec.msgpack.Decoder(spec.answer)
        self._turn = asyncio.Lock()
        self._users = 0
        self._process: HelperProcess | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._failures = 0
        self._start_at = float("-inf")

    def lend(self) -> None:
        """Count another exporter that uses the helper. Each exporter must call ``stop`` once."""
        self._users += 1

    async def call(self, request: object, deadline_seconds: float) -> Answer:
        """Send a request that msgspec can encode and return the answer; raises HelperHung or HelperFailed.

        The process has ``deadline_seconds`` to start and receive the request, and the same time again to answer.
        """
        return await self.call_with_body(request, _no_pieces(), deadline_seconds)

    async def call_with_body(self, request: object, pieces: AsyncIterable[bytes], deadline_seconds: float) -> Answer:
        """Send a request with a body in ``pieces`` of up to 4 MiB: the agent never has the whole body in memory.

        The deadline also limits the receipt of each piece; waiting for ``pieces`` does not count. An error of
        ``pieces`` is raised, and the next call gets a new process.
        """
        async with self._turn:
            if self._idle is not None:
                self._idle.cancel()
            try:
                answer = await self._call(request, pieces, deadline_seconds)
            except HelperError as error:
                self._note("hung" if isinstance(error, HelperHung) else "failed")
                raise
            finally:
                seconds = IDLE_SECONDS if self._users > 0 else 0.0
                self._idle = asyncio.get_running_loop().call_later(seconds, self._kill)
            self._note("ok")
            return answer

    def rest(self) -> None:
        """End the process now to free its memory: for a helper whose next call is far off."""
        if not self._turn.locked():
            self._kill()

    async def stop(self) -> None:
        """End the process when the last exporter stops it; a running call has STOP_SECONDS for its answer."""
        self._users -= 1
        if self._users > 0:
            return
        if self._idle is not None:
            self._idle.cancel()
        if self._process is not None and not self._process.killed:
            self._process.end()
            await self._process.gone_within(STOP_SECONDS)
        await self._dismiss()
        self.ok = None

    # -- the process -----------------------------------------------------------------------------------------------

    async def _running(self) -> HelperProcess:
        if self._users <= 0:
            raise HelperFailed("it was stopped")
        if self._process is not None and not self._process.killed:
            if not self._process.is_gone:
                return self._process
            self._failures += 1  # it ended between two calls, for example by the OOM killer
        await self._dismiss()
        if self._process is not None and not self._process.is_gone:  # it hangs in the kernel
            raise HelperHung("its killed process still exists")
        wait = self._start_at - self._clock.monotonic()
        if wait > 0:
            raise HelperFailed(f"it starts again in {wait:.1f} s")
        try:
            self._process = await HelperProcess.start(self.spec.target, self.spec.memory_bytes, self._log)
        except OSError as error:
            self._back_off()
            raise HelperFailed(f"no process: {error}") from None
        return self._process

    def _back_off(self) -> None:
        """Note a failure; from the second in a row on, delay the next start."""
        if self._failures > 0:
            wait = min(BACK_OFF_SECONDS * 2.0 ** min(self._failures - 1, _MAX_DOUBLINGS), MAX_BACK_OFF_SECONDS)
            self._start_at = self._clock.monotonic() + wait
        self._failures += 1

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    async def _dismiss(self) -> None:
        """Kill the process, if any, and wait KILL_SECONDS for its exit."""
        if self._process is None:
            return
        self._process.kill()
        if await self._process.gone_within(KILL_SECONDS):
            self._process = None

    def _note(self, result: CallResult) -> None:
        self.calls[result] += 1
        self.ok = result == "ok" if self._users > 0 else None

    # -- a call ----------------------------------------------------------------------------------------------------

    async def _call(self, request: object, pieces: AsyncIterable[bytes], deadline_seconds: float) -> Answer:
        process = await self._running()
        try:
            answer = await self._exchange(process, deadline_seconds, request, pieces)
        except HelperError:
            self._back_off()
            await self._dismiss()
            raise
        except BaseException:  # cancelled, or the pieces failed
            self._kill()  # its answer could be taken for the answer to the next call
            raise
        self._failures = 0
        return answer

    async def _exchange(
        self, process: HelperProcess, deadline_seconds: float, request: object, pieces: AsyncIterable[bytes]
    ) -> Answer:
        async def send(kind: FrameKind, payload: bytes = b"") -> None:
            await _within(process, deadline_seconds, process.send(kind, payload))

        await send(FrameKind.REQUEST, msgspec.msgpack.encode(request))
        async for piece in pieces:
            await send(FrameKind.BODY, piece)
        await send(FrameKind.END)
        kind, answer = await _within(process, deadline_seconds, process.receive())
        if kind is not FrameKind.ANSWER:
            raise HelperFailed(f"{kind.name} instead of an answer")
        try:
            return self._decoder.decode(answer)
        except (ValueError, RecursionError) as error:  # not msgpack, another type, bad UTF-8, nested too deep
            raise HelperFailed(str(error)) from None


async def _within(process: HelperProcess, deadline_seconds: float, step: Awaitable[T]) -> T:
    """Wait for one step of a process; raise each failure as a HelperError."""
    try:
        async with asyncio.timeout(deadline_seconds):
            return await step
    except TimeoutError:
        raise HelperHung(f"no answer after {deadline_seconds} s") from None
    except FrameError as error:
        raise HelperFailed(str(error)) from None
    except (EOFError, OSError, RuntimeError):  # RuntimeError: a further piece after `end`
        await process.gone_within(KILL_SECONDS)
        raise HelperFailed(process.ending or "it closed its stream") from None


class Helpers:
    """The agent's helpers by name. Reloads do not reset their counters."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._helpers: dict[str, Helper[Any]] = {}

    def lend(self, spec: HelperSpec[Answer]) -> Helper[Answer]:
        """Return the helper of this spec for another exporter; raises ValueError if its name has another spec."""
        helper = self._helpers.setdefault(spec.name, Helper(spec, self._clock))
        if helper.spec != spec:
            raise ValueError(f"another helper is called {spec.name}")
        helper.lend()
        return helper

    def all(self) -> Sequence[Helper[Any]]:
        """Return all helpers since the start."""
        return tuple(self._helpers.values())


class LendHelper(Protocol):
    """Function that lends a helper to an exporter. The exporter's ``drain`` must ``stop`` the helper."""

    def __call__(self, spec: HelperSpec[Answer]) -> Helper[Answer]:
        """Return the helper; no process is started before its first call."""
        ...


async def _no_pieces() -> AsyncIterator[bytes]:
    for piece in tuple[bytes, ...]():
        yield piece
