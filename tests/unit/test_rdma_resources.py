"""RDMA objects in use: the question to the kernel, its answers (made up after the header), and when it is asked."""

import errno
import struct

import pytest
from fake_kernel import FakeKernel, done, refuse, reply
from hypothesis import given, strategies as st

from agent.system import netlink
from agent.system.netlink import Message, attribute
from exporters.rdma.families import MAX_COUNT, read_resources, summary

RES_GET = 5 << 10 | 9


def entry(kind: bytes, count: int) -> bytes:
    """A line of the summary."""
    told = attribute(17, kind + b"\0") + attribute(18, struct.pack("=Q", count))
    return attribute(16, told, nested=True)


def device(name: str, *entries: bytes) -> bytes:
    """What the kernel says of a device."""
    inside = attribute(15, b"".join(entries), nested=True)
    return attribute(1, struct.pack("=I", 3)) + attribute(2, name.encode() + b"\0") + inside


MLX5 = device("mlx5_0", entry(b"qp", 42), entry(b"mr", 7), entry(b"unheard_of", 1), entry(b"cq", MAX_COUNT + 1))
BNXT = device("bnxt_re0", entry(b"pd", MAX_COUNT))


def test_what_is_asked_and_understood() -> None:
    """One dump of summaries gives the known kinds by device; numbers beyond a float's are left out."""
    kernel = FakeKernel(lambda _, question: [reply(question, MLX5, BNXT), done(question)])
    assert read_resources(kernel.connect) == {"mlx5_0": {"qp": 42, "mr": 7}, "bnxt_re0": {"pd": MAX_COUNT}}
    ((protocol, question),) = kernel.asked
    assert (protocol, question.kind, question.flags & netlink.DUMP) == (netlink.RDMA, RES_GET, netlink.DUMP)
    assert kernel.open == 0


def test_a_kernel_that_refuses() -> None:
    """A refusal is the caller's, and the socket is closed."""

    def answer(_: int, question: Message) -> list[bytes]:
        return [refuse(question, errno.EPERM)]

    kernel = FakeKernel(answer)
    with pytest.raises(PermissionError):
        read_resources(kernel.connect)
    assert kernel.open == 0


@given(st.binary(max_size=200))
def test_any_answer_is_read(raw: bytes) -> None:
    """Nothing that a kernel could send is an error."""
    summary(raw)
