"""Threads with one owner each: blocking calls of two owners never share a thread."""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

from agent.core.leased import LeaseEnded

P = ParamSpec("P")
T = TypeVar("T")

_Settle = Callable[[object, BaseException | None], object]
_Job = tuple[Callable[[], object], _Settle]


class OwnThread(Executor):
    """A daemon thread that runs one owner's blocking calls in order; an executor for aiofiles.

    A call that hangs delays only its owner, never the exit of the process: the thread is a daemon and is not joined,
    unlike threads of ThreadPoolExecutor. A thread in uninterruptible sleep cannot be joined.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._stopped = False

    async def call(self, function: Callable[[], T]) -> T:
        """Run ``function`` on this thread and return its result or raise its exception.

        Cancelling the caller does not stop ``function``; the result is dropped. Raises LeaseEnded after ``stop``.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()
        self._put(function, lambda result, error: loop.call_soon_threadsafe(_settle, future, result, error))
        return await future  # type: ignore[return-value]  # the future has the result of `function`

    def submit(self, function: Callable[P, T], /, *arguments: P.args, **options: P.kwargs) -> Future[T]:
        """Run ``function`` on this thread as Executor.submit does. Raises LeaseEnded after ``stop``."""
        future: Future[T] = Future()
        self._put(partial(function, *arguments, **options), partial(_settle, future))
        return future

    def stop(self) -> None:
        """Return at once; the thread ends after the queued calls."""
        self._stopped = True
        self._jobs.put(None)

    def _put(self, function: Callable[[], object], settle: _Settle) -> None:
        if self._stopped:
            raise LeaseEnded(f"thread {self.name} was stopped")
        if self._thread.ident is None:  # not started yet
            self._thread.start()
        self._jobs.put((function, settle))

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, settle = job
            try:
                result: object = function()
                error: BaseException | None = None
            except BaseException as caught:  # noqa: BLE001  # any exception is passed to the caller
                result, error = None, caught
            try:
                settle(result, error)
            except RuntimeError:  # the loop closed during the call: no task waits for the result
                return


def _settle(future: asyncio.Future[Any] | Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():  # the caller was cancelled
        return
    if isinstance(error, StopIteration):  # a future refuses StopIteration: the caller would wait for ever
        error = RuntimeError(f"a call ended in {error!r}")
    with suppress(InvalidStateError):  # the caller was cancelled just now, in another thread
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
