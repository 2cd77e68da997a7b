"""Functions that the helper processes of the tests run."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable

import msgspec

PR_SET_PDEATHSIG = 1


class Order(msgspec.Struct):
    """The name of a behaviour, and a number for it."""

    what: str = "nothing"
    amount: int = 0


class Outcome(msgspec.Struct):
    """The pid of the process, the result, and the length of the request's body."""

    pid: int
    found: list[str]
    body_bytes: int


def obey(order: Order, body: bytes) -> Outcome:
    """Run the ordered behaviour, which can be a failure."""
    return Outcome(os.getpid(), ORDERS[order.what](order.amount) or [], len(body))


def lie(order: Order, body: bytes) -> str:
    """Reply with something other than an ``Outcome``."""
    return order.what


def nest(order: Order, body: bytes) -> msgspec.Raw:
    """Reply with an ``Outcome`` with an extra field, which is nested deeper than any reader's limit."""
    return msgspec.Raw(b"\x84\xa3pid\x01\xa5found\x90\xaabody_bytes\x00\xa1x" + b"\x91" * order.amount + b"\xc0")


def stop_at_once(request: dict[str, object], body: bytes) -> None:
    """Stop the process, so that it never replies."""
    os.kill(os.getpid(), signal.SIGSTOP)


def _fail(_: int) -> None:
    raise ValueError("as it was told")


def _say(amount: int) -> None:
    os.write(1, b"x" * amount + b"\n")
    os.write(2, b"\xff and an unfinished line")


def _speak_out_of_turn(number: int) -> None:
    sockets = [fd for fd in range(3, 8) if os.path.exists(f"/proc/self/fd/{fd}")]
    os.write(sockets[-1], bytes.fromhex("ffffffff05") if number else b"\1\0\0\0\1x")


def _outlive(_: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)


ORDERS: dict[str, Callable[[int], list[str] | None]] = {
    "nothing": lambda _: None,
    "say your niceness": lambda _: [str(os.getpriority(os.PRIO_PROCESS, 0)), str(os.getsid(0))],
    "say what is open": lambda _: sorted(
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    ),
    "say what is imported": lambda _: sorted(sys.modules),
    "leave": os._exit,
    "crash": lambda number: os.kill(os.getpid(), number) if number else ctypes.string_at(0) and None,
    "fail": _fail,
    "talk": _say,
    "speak out of turn": _speak_out_of_turn,
    "take memory": lambda amount: bytearray(amount) and None,
    "answer at length": lambda amount: ["x" * amount],
    "outlive your parent and stop": _outlive,
    "stop": lambda _: os.kill(os.getpid(), signal.SIGSTOP),
}
