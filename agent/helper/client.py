"""Helpers: processes for calls that can hang, or that cost memory which hostile data would run up.

A thread that hangs in a driver cannot be got rid of; a process mostly can. One in uninterruptible sleep cannot be
killed: it is left alone, never waited for, and no second one is started beside it.
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
"""After the second failure in a row no process is started for this long; it doubles with each that follows. One alone
must not cost the next call, which may be about another user."""
KILL_SECONDS = 0.5  # A killed process goes within milliseconds; one that is there after this long hangs in the kernel
STOP_SECONDS = 1.0  # Time for a process to exit on request, before it is killed
_MAX_DOUBLINGS = 16
IDLE_SECONDS = 120.0  # A process without calls for this long is ended: it holds memory

CallResult: TypeAlias = Literal["ok", "failed", "hung"]
CALL_RESULTS: tuple[CallResult, ...] = ("ok", "failed", "hung")
Answer = TypeVar("Answer")
T = TypeVar("T")


class HelperError(Exception):
    """A call without an answer; its process is killed."""


class HelperFailed(HelperError):  # noqa: N818  # what happened, as the metric's label has it
    """The process crashed, broke the protocol or ran out of memory, or waits for its next start after that."""


class HelperHung(HelperError):  # noqa: N818  # likewise
    """The process did not answer in time, or one that did not is still there."""


@dataclass(frozen=True, slots=True)
class HelperSpec(Generic[Answer]):
    """``target``: MODULE:FUNCTION that answers calls, see ``agent.helper.serve``; ``answer``: the type it returns.

    ``memory_bytes``: what calls may take there beyond the interpreter and the module's imports. The module is imported
    without its packages' ``__init__``.
    """

    name: str
    target: str
    answer: type[Answer]
    memory_bytes: int


class Helper(Generic[Answer]):
    """One helper: at most one process, started by the first call; calls wait for each other.

    ``calls`` count since the agent started; ``ok`` is how the last call went, None before the first.
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
        """Count one more user; each must ``stop`` once."""
        self._users += 1

    async def call(self, request: object, deadline_seconds: float) -> Answer:
        """Send what msgspec can encode and return the answer; HelperHung, HelperFailed.

        ``deadline_seconds`` is for the process to take the request (and to start, if need be), and again to answer.
        """
        return await self.call_with_body(request, _no_pieces(), deadline_seconds)

    async def call_with_body(self, request: object, pieces: AsyncIterable[bytes], deadline_seconds: float) -> Answer:
        """Likewise, with a body that need never be whole in this process; ``pieces`` of up to 4 MiB.

        The process gets the deadline for each piece too; the time that the pieces take to come is not counted. What
        ``pieces`` raises is raised here; the next call has a fresh process.
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
                self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._kill)
            self._note("ok")
            return answer

    def rest(self) -> None:
        """End the process now, as after two idle minutes, when the next call is long in coming: it holds memory."""
        if not self._turn.locked():
            self._kill()

    async def stop(self) -> None:
        """End the process for its last user: it may answer a call under way, within STOP_SECONDS."""
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
        """Return the process, a fresh one if need be."""
        if self._users <= 0:
            raise HelperFailed("it was stopped")
        if self._process is not None and not self._process.killed:
            if not self._process.is_gone:
                return self._process
            self._failures += 1  # between two calls; the kernel's OOM killer does that
        await self._dismiss()
        if self._process is not None and not self._process.is_gone:  # it sleeps in the kernel
            raise HelperHung("its killed process is still there")
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
        """Note a failure, and put the next start off unless it is the first."""
        if self._failures > 0:
            wait = min(BACK_OFF_SECONDS * 2.0 ** min(self._failures - 1, _MAX_DOUBLINGS), MAX_BACK_OFF_SECONDS)
            self._start_at = self._clock.monotonic() + wait
        self._failures += 1

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    async def _dismiss(self) -> None:
        """Kill the process, if there is one, and see it go, unless it hangs."""
        if self._process is None:
            return
        self._process.kill()
        if await self._process.gone_within(KILL_SECONDS):
            self._process = None

    def _note(self, result: CallResult) -> None:
        self.calls[result] += 1
        self.ok = result == "ok"

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
            self._kill()  # in the middle of a call: its answer could be taken for the next call's
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
            raise HelperFailed(f"{kind.name} in the place of an answer")
        try:
            return self._decoder.decode(answer)
        except (ValueError, RecursionError) as error:  # not msgpack, another type, bad UTF-8, nested too deep
            raise HelperFailed(str(error)) from None


async def _within(process: HelperProcess, deadline_seconds: float, step: Awaitable[T]) -> T:
    """Wait for one step of a process; every failure is a HelperError."""
    try:
        async with asyncio.timeout(deadline_seconds):
            return await step
    except TimeoutError:
        raise HelperHung(f"no answer after {deadline_seconds} s") from None
    except FrameError as error:
        raise HelperFailed(str(error)) from None
    except (EOFError, OSError):
        await process.gone_within(KILL_SECONDS)
        raise HelperFailed(process.ending or "it closed its stream") from None


class Helpers:
    """The helpers of the agent, by name; they keep their counters over reloads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._helpers: dict[str, Helper[Any]] = {}

    def lend(self, spec: HelperSpec[Answer]) -> Helper[Answer]:
        """Return the helper of that name, for one more user; ValueError when another has the name."""
        helper = self._helpers.setdefault(spec.name, Helper(spec, self._clock))
        if helper.spec != spec:
            raise ValueError(f"another helper is called {spec.name}")
        helper.lend()
        return helper

    def all(self) -> Sequence[Helper[Any]]:
        """Every helper there has been."""
        return tuple(self._helpers.values())


class LendHelper(Protocol):
    """How an exporter is lent a helper; its ``drain`` must ``stop`` it."""

    def __call__(self, spec: HelperSpec[Answer]) -> Helper[Answer]:
        """Return the helper; no process is started before its first call."""
        ...


async def _no_pieces() -> AsyncIterator[bytes]:
    for piece in tuple[bytes, ...]():
        yield piece
