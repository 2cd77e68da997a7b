"""Netlink: messages, attributes, parsing of the kernel's replies, and the refresh of statistics."""

import errno
import os

import pytest
from fake_kernel import FakeKernel, done, refuse, reply

from agent.system import netlink
from agent.system.ethtool import refresh_statistics
from agent.system.netlink import DUMP, REQUEST, Message, attribute, attributes, message, messages

KIND = 33


def test_what_is_cut_is_left() -> None:
    """The complete attributes or messages before a cut one are read."""
    raw = attribute(1, b"abcd") + attribute(2, b"efgh")[:-1]
    assert list(attributes(raw)) == [(1, b"abcd")]
    raw = message(KIND, 0, 1, b"abcd") + message(KIND, 0, 1, b"efgh")[:-1]
    assert [entry.payload for entry in messages(raw)] == [b"abcd"]


def test_one_answer() -> None:
    """`ask` returns the payload of the reply; a reply to an earlier request is skipped."""
    kernel = FakeKernel(
        lambda _, question: [message(KIND, 0, question.number - 1, b"late"), reply(question, b"yes!", b"more")]
    )
    with kernel.connect(netlink.ROUTE) as channel:
        assert channel.ask(KIND, b"what") == b"yes!"
    assert (kernel.questions, kernel.open) == ([(netlink.ROUTE, Message(KIND, REQUEST, 1, b"what"))], 0)


def test_a_dump() -> None:
    """A dump returns all messages up to its end, over any number of datagrams; an error at the end is raised."""

    def answer(_: int, query: Message) -> list[bytes]:
        return [reply(query, b"aaaa", b"bbbb"), reply(query, b"cccc") + done(query, errno.EPERM * (query.number - 1))]

    kernel = FakeKernel(answer)
    with kernel.connect(netlink.RDMA) as channel:
        assert channel.dump(KIND) == [b"aaaa", b"bbbb", b"cccc"]
        with pytest.raises(PermissionError):
            channel.dump(KIND)
    assert kernel.questions[0][1].flags == REQUEST | DUMP


def test_what_is_no_answer() -> None:
    """The kernel's error is raised, and so is an error for an empty, cut or missing reply."""
    for answer, error in (
        (lambda question: [refuse(question, errno.EOPNOTSUPP)], "not supported"),
        (lambda question: [done(question)], "empty"),
        (lambda question: [b""], "cut"),
        (lambda question: [], "timed out"),
    ):
        kernel = FakeKernel(lambda _, question, answer=answer: answer(question))  # type: ignore[misc]
        with kernel.connect(netlink.ROUTE) as channel, pytest.raises(OSError, match=error):
            channel.ask(KIND, b"")


def test_an_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply of up to MAX_ANSWER_BYTES is read; a larger one is an error."""
    late = message(KIND, 0, 9, b"late")
    kernel = FakeKernel(lambda _, question: [late, reply(question, b"yes!")])
    with kernel.connect(netlink.ROUTE) as channel:
        monkeypatch.setattr(netlink, "MAX_ANSWER_BYTES", 2 * len(late))
        assert channel.ask(KIND, b"") == b"yes!"
        monkeypatch.setattr(netlink, "MAX_ANSWER_BYTES", 2 * len(late) - 1)
        with pytest.raises(OSError, match="too long"):
            channel.ask(KIND, b"")


def refresh(device: str) -> int:
    """Return 0, or the number of the error."""
    try:
        refresh_statistics(device)
    except OSError as error:
        return error.errno or -1
    return 0


def test_drivers_are_asked() -> None:
    """Each device refreshes its statistics or does not support this; a missing device raises ENODEV."""
    assert {refresh(name) for name in os.listdir("/sys/class/net")} <= {0, errno.EOPNOTSUPP}
    assert (refresh("lo"), refresh("none-such0")) == (errno.EOPNOTSUPP, errno.ENODEV)
