import socket

import pytest

from agent.web.listen import MAX_INHERITED, ListenAddress, inherited_listeners, open_listeners, parse_listen_address


@pytest.mark.parametrize(("text", "host", "port"), [
    ("127.0.0.1:19028", "127.0.0.1", 19028),
    (":19028", "", 19028),
    ("[::1]:9", "::1", 9),
    ("[::]:65535", "::", 65535),
    ("[fe80::1%eth0]:1", "fe80::1%eth0", 1),
    ("node-7.example:0", "node-7.example", 0),
])  # fmt: skip
def test_listen_address_is_read(text: str, host: str, port: int) -> None:
    """Every form of host and port is read, and is written back unchanged."""
    address = parse_listen_address(text)
    assert (address, str(address)) == (ListenAddress(host, port), text)


@pytest.mark.parametrize(
    "text", ["", "19028", "host", "host:", "::1:80", "[::1]", "[::1]80", "host:-1", "host:65536", "host:١", "[]:80"]
)
def test_odd_listen_address_is_refused(text: str) -> None:
    """An invalid listen address is refused in a message that quotes it."""
    with pytest.raises(ValueError, match="listen address"):
        parse_listen_address(text)


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host", "a..b"])
def test_an_address_without_a_listener_has_a_clear_message(host: str) -> None:
    """An address of another machine, or an unknown name, raises an OSError that quotes it."""
    with pytest.raises(OSError, match=f"cannot listen on {host}:0: "):
        open_listeners(ListenAddress(host, 0))


def test_empty_host_listens_on_every_address() -> None:
    """Without a host, IPv4 clients reach the single socket."""
    (listener,) = open_listeners(ListenAddress("", 0))
    with listener, socket.create_connection(("127.0.0.1", listener.getsockname()[1]), timeout=5):
        pass


def test_answers_are_not_held_back() -> None:
    """Sockets have TCP_NODELAY, without which the end of a response waits up to 40 ms for an ACK."""
    (listener,) = open_listeners(ListenAddress("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


@pytest.mark.parametrize(
    ("pid", "count"), [("1", "1"), ("7", ""), ("7", "x"), ("7", "0"), ("7", f"{MAX_INHERITED + 1}")]
)
def test_sockets_of_systemd_that_do_not_count(pid: str, count: str) -> None:
    """Sockets of another process, no sockets, too many, or an invalid number raise an error with a remedy."""
    with pytest.raises(ValueError, match=r"is rankwatch\.socket started"):
        inherited_listeners({"LISTEN_PID": pid, "LISTEN_FDS": count}, 7)
