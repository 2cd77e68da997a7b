"""The node's own agent, which commands query; another process in its place is not trusted and its text is escaped."""

import argparse
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cli import healthy, main, own_agent
from agent.cli.doctor import facts
from agent.cli.doctor.checks import as_text, wrong
from agent.cli.own_agent import AgentAddress, listeners, stranger_at
from agent.cli.terminal import as_json

Capture = pytest.CaptureFixture[str]
STRANGER = 4242
FIRST_USER = 1001 if os.geteuid() == 1000 else 1000
"""The lowest uid of a person who is not the test's own user."""
_LISTENS = (
    "   0: {address}:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  {uid}        0 3 1 0\n"
)


def table(*rows: tuple[str, int, str, int]) -> str:
    """Return a table in the format of /proc/net/tcp: address, port, state and uid of each socket."""
    lines = [_LISTENS.format(address=a, port=port, state=state, uid=uid) for a, port, state, uid in rows]
    return "".join(("  sl  local_address rem_address   st tx_queue rx_queue\n", *lines))


@pytest.fixture
def answering() -> Iterator[tuple[int, list[bytes]]]:
    """Serve the first item of a list to each client; provide the port and the list."""
    answers = [b""]
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                with client:
                    client.recv(65536)
                    client.sendall(answers[0])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1], answers
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def test_who_listens() -> None:
    """Listening sockets of both families at the port are found; connections, other ports and damaged lines are not."""
    four = table(("0100007F", 19028, "0A", 7), ("0100007F", 19028, "01", 8), ("0100007F", 9028, "0A", 9)).encode()
    six = table(("0" * 32, 19028, "0A", 10)).encode()
    assert listeners(19028, [four, six, b"half a li", b"0: 0:4A54 0 0A 0 0 0 x 0\n"]) == [7, 10]


@pytest.mark.parametrize(
    ("uid", "is_stranger"),
    [(0, False), (999, False), (FIRST_USER, True), (STRANGER, True), (61184, False), (65535, False), (65536, True)],
)
def test_who_is_a_stranger(tmp_path: Path, uid: int, is_stranger: bool) -> None:
    """Root, service users and the caller may run the agent; other users are strangers."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net/tcp").write_text(table(("0100007F", 19028, "0A", uid), ("0100007F", 19028, "0A", os.geteuid())))
    assert stranger_at(19028, tmp_path) == (uid if is_stranger else None)
    assert stranger_at(1, tmp_path) is None


def test_a_port_that_a_user_took_is_not_asked(
    answering: tuple[int, list[bytes]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    """A reply from a port that another user took is refused, unless the caller named that address."""
    port, answers = answering
    answers[0] = b"HTTP/1.1 200 OK\r\n\r\n# TYPE rankwatch_node_healthy gauge\nrankwatch_node_healthy 0\n"
    monkeypatch.setattr(own_agent, "stranger_at", lambda at: STRANGER if at == port else None)
    config = tmp_path / "r.yml"
    config.write_text(f"web: {{listen_address: '127.0.0.1:{port}'}}\n")
    assert main.main(["healthy", "--config.file", str(config)]) == healthy.CANNOT_TELL
    warning = f"user {STRANGER} listens at this port; if that is the agent, use --web.listen-address"
    assert warning in capsys.readouterr().out
    assert main.main(["healthy", "--web.listen-address", f"127.0.0.1:{port}"]) == healthy.NOT_HEALTHY
    flags = argparse.Namespace(address=None, config_file=None)
    monkeypatch.setattr(own_agent, "CONFIG_FILE", tmp_path / "none")
    assert own_agent.address_of(flags, tmp_path / "no.sock") == AgentAddress("127.0.0.1:19028", is_given=False)


@pytest.mark.parametrize("said", [
    b"HTTP/1.1 503 \x1b[31mred\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\nrankwatch_node_healthy 0\nrankwatch_check_failed_since_timestamp_seconds"
    b'{check="\x1b[31m",kind="gpu",name="\xc2\x9b31m"} 1\n',
    b"\x1b[31m\r\n\r\n",
])  # fmt: skip
@pytest.mark.parametrize("command", ["healthy", "status", "doctor"])
def test_a_reply_cannot_control_the_terminal(
    answering: tuple[int, list[bytes]], said: bytes, command: str, capsys: Capture
) -> None:
    """No reply can send control characters to the terminal."""
    port, answers = answering
    answers[0] = said
    main.main([command, "--web.listen-address", f"127.0.0.1:{port}"])
    shown = capsys.readouterr()
    assert all(sign.isprintable() or sign == "\n" for sign in shown.out + shown.err)
    assert all(sign.isprintable() or sign == "\n" for sign in as_text([wrong("x", "\x1b[31m", "\u202e")]))


def test_doctor_waits_for_an_agent_that_starts(
    answering: tuple[int, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`rankwatch doctor` waits up to START_SECONDS for an agent that replies with status 503."""
    port, answers = answering
    starting = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
    answers[0] = starting
    monkeypatch.setattr(facts.time, "sleep", lambda _: answers.__setitem__(0, b"HTTP/1.1 200 OK\r\n\r\nup 1\n"))
    assert facts.metrics(AgentAddress(f"127.0.0.1:{port}")) == b"up 1\n"
    answers[0] = starting
    monkeypatch.setattr(facts, "START_SECONDS", 0.0)
    with pytest.raises(OSError, match=r"503 .*perhaps it is starting: try again"):
        facts.metrics(AgentAddress(f"127.0.0.1:{port}"))


def test_json_for_a_terminal() -> None:
    """Control characters are escaped on a terminal, and the JSON has the same value."""
    value = {"a": "\x9b31m\u202e\U000e0001é\n"}
    text = as_json(value)
    assert all(sign.isprintable() or sign == "\n" for sign in text)
    assert json.loads(text) == value


def test_an_unforeseen_page_is_no_verdict(monkeypatch: pytest.MonkeyPatch, answering: tuple[int, list[bytes]]) -> None:
    """If reading the reply fails in any way, the node is not reported as unhealthy."""
    port, answers = answering
    answers[0] = b"HTTP/1.1 200 OK\r\n\r\n"
    monkeypatch.setattr(healthy, "judge", lambda *_: {}["x"])
    assert main.main(["healthy", "--web.listen-address", f"127.0.0.1:{port}"]) == healthy.CANNOT_TELL


def test_an_encoding_without_the_letter(answering: tuple[int, list[bytes]]) -> None:
    """A character that the terminal's encoding lacks is replaced; the output and the exit status stay."""
    port, answers = answering
    page = '# TYPE rankwatch_node_healthy gauge\nrankwatch_node_healthy 1\nx{name="\u4e2d"} 1\n'
    answers[0] = b"HTTP/1.1 200 OK\r\n\r\n" + page.encode()
    command = [sys.executable, "-m", "agent", "healthy", "--job", "\u4e2d", "--web.listen-address", f"127.0.0.1:{port}"]
    done = subprocess.run(command, check=False, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "latin-1"})
    assert (done.returncode, done.stderr) == (healthy.CANNOT_TELL, b"")
    assert b"no rank of job ?" in done.stdout
