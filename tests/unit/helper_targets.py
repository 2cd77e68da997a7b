"""What the helper processes of the tests run."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

import msgspec


class Order(msgspec.Struct):
    """What to do, and how much of it."""

    what: str
    amount: int = 0


class Outcome(msgspec.Struct):
    """The process that did it, what it found, and how long the body was."""

    pid: int
    found: list[str]
    body_bytes: int


def obey(order: Order, body: bytes) -> Outcome:
    """Behave, or not."""
    found: list[str] = []
    match order.what:
        case "descriptors":
            found = sorted(f"{name} {os.readlink(f'/proc/self/fd/{name}')}" for name in ("0", "1", "2"))
            found += [name for name in os.listdir("/proc/self/fd") if name not in ("0", "1", "2")]
        case "nice":
            found = [str(os.getpriority(os.PRIO_PROCESS, 0))]
        case "modules":
            found = sorted(sys.modules)
        case "exit":
            os._exit(order.amount)
        case "crash":
            ctypes.string_at(0)
        case "raise":
            raise ValueError("as it was told")
        case "print":
            print("x" * order.amount)
        case "garbage":
            os.write(next(fd for fd in range(3, 10) if _is_socket(fd)), b"\xff" * order.amount)
        case "wrong type":
            return "a string"  # type: ignore[return-value]  # on purpose
        case "take":
            bytearray(order.amount)
        case "answer":
            found = ["x" * order.amount]
        case "sleep":
            time.sleep(order.amount)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
    return Outcome(os.getpid(), found, len(body))


def _is_socket(fd: int) -> bool:
    return os.readlink(f"/proc/self/fd/{fd}").startswith("socket:") if os.path.lexists(f"/proc/self/fd/{fd}") else False
