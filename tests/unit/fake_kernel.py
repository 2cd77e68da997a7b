"""A fake kernel that replies to netlink requests from a table, in the kernel's formats."""

import struct
from collections.abc import Callable

from agent.system.netlink import Message, Netlink, message, messages

ERROR, DONE = 2, 3
MULTI = 0x2


def reply(question: Message, *payloads: bytes, kind: int | None = None) -> bytes:
    """Return a datagram with one reply message for each payload."""
    number = question.number
    return b"".join(message(question.kind if kind is None else kind, MULTI, number, payload) for payload in payloads)


def refuse(question: Message, code: int) -> bytes:
    """Return an error reply."""
    return message(ERROR, 0, question.number, struct.pack("=i", -code) + b"\0" * 16)


def done(question: Message, code: int = 0) -> bytes:
    """Return the message that ends a dump."""
    return message(DONE, MULTI, question.number, struct.pack("=i", -code))


class FakeKernel:
    """Opens channels; ``questions`` lists (protocol, request) in order, ``open`` counts the open channels."""

    def __init__(self, answer: Callable[[int, Message], list[bytes]]) -> None:
        self._answer = answer
        self.questions: list[tuple[int, Message]] = []
        self.open = 0

    def connect(self, protocol: int) -> Netlink:
        self.open += 1
        return Netlink(_Channel(self, protocol))

    def answer(self, protocol: int, question: Message) -> list[bytes]:
        self.questions.append((protocol, question))
        return self._answer(protocol, question)


class _Channel:
    def __init__(self, kernel: FakeKernel, protocol: int) -> None:
        self._kernel = kernel
        self._protocol = protocol
        self._waiting: list[bytes] = []

    def send(self, raw: bytes, /) -> int:
        (question,) = messages(raw)
        self._waiting += self._kernel.answer(self._protocol, question)
        return len(raw)

    def recv(self, size: int, /) -> bytes:
        if not self._waiting:
            raise TimeoutError("timed out")
        return self._waiting.pop(0)[:size]

    def close(self) -> None:
        self._kernel.open -= 1
