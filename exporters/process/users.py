"""Looks up user names by uid on a thread of their own: a directory service (LDAP, SSSD) may hang."""

import asyncio
import pwd
from collections.abc import Callable

from agent.sdk.exporter import Logger, OwnThread

MAX_USERS = 1024  # Limit of remembered names (the oldest is dropped), and of pending look-ups
SINGLE_PASS_SECONDS = 2.0  # How long a single pass waits for names


class UserNames:
    """Runs on the event loop, except the look-ups. Calls ``on_name`` with each new uid and name."""

    def __init__(self, thread: OwnThread, on_name: Callable[[int, str], None], log: Logger) -> None:
        self._thread = thread
        self._on_name = on_name
        self._log = log
        self._names: dict[int, str] = {}
        self._lookups: dict[int, asyncio.Task[None]] = {}

    def name(self, uid: int) -> str:
        """Return the user's name if known, else the uid as text, and call ``on_name`` later if there is a name."""
        if uid in self._names:
            return self._names[uid]
        if uid not in self._lookups and len(self._lookups) < MAX_USERS:
            self._lookups[uid] = asyncio.get_running_loop().create_task(self._look_up(uid), name=f"user-{uid}")
        return str(uid)

    async def settle(self) -> None:
        """Wait at most SINGLE_PASS_SECONDS for the pending names."""
        if self._lookups:
            await asyncio.wait(self._lookups.values(), timeout=SINGLE_PASS_SECONDS)

    def stop(self) -> None:
        """Stop waiting for names. A look-up that hangs keeps its thread."""
        for task in self._lookups.values():
            task.cancel()
        self._thread.stop()

    async def _look_up(self, uid: int) -> None:
        try:
            name = await self._thread.call(lambda: _name_of(uid))
        except OSError as error:  # the directory service failed, and did not say that the user is unknown
            self._log.warning("name of user {uid} could not be looked up, the uid is shown", uid=uid, error=error)
            name = None
        finally:
            del self._lookups[uid]
        if name is None:
            return
        while len(self._names) >= MAX_USERS:
            del self._names[next(iter(self._names))]
        self._names[uid] = name
        self._on_name(uid, name)


def _name_of(uid: int) -> str | None:
    """Return the user's name (blocking); None without one."""
    try:
        return pwd.getpwuid(uid).pw_name.encode("utf-8", "replace").decode()
    except (KeyError, OverflowError):
        return None
