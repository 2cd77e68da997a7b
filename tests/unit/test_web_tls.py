"""TLS: the clients that are served, the clients that are refused, and silent clients."""

import asyncio
import json
import os
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from fake_clock import FakeClock
from lent import until
from web_log import WebLog

from agent.app.web_terms import WebTerms
from agent.app.yaml_document import ConfigError
from agent.core.log import Logger
from agent.web.connection import ServerLimits
from agent.web.listen import ListenAddress, open_listeners
from agent.web.messages import TEXT, HttpRequest, HttpResponse
from agent.web.server import WebServer
from agent.web.serving import Serving
from agent.web.tls_context import has_allowed_name

DATA = Path(__file__).parents[1] / "data" / "web"
BIG = b"rankwatch_x 1\n" * 300_000
TLS = "tls_server_config: {cert_file: server.pem, key_file: server.key"
MUTUAL = f"{TLS}, client_ca_file: ca.pem, client_auth_type: RequireAndVerifyClientCert"
INLINE_CA = f"client_ca: {json.dumps('# Müller' + chr(10) + (DATA / 'ca.pem').read_text(), ensure_ascii=False)}"
CLOSE = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"


async def big(request: HttpRequest) -> HttpResponse:
    """Return a page of four megabytes."""
    return HttpResponse(200, TEXT, BIG if request.path == "/" else request.client.encode())


class Node:
    """A directory with a web file and certificates, and the terms in use."""

    def __init__(self, folder: Path, text: str) -> None:
        self.folder = folder
        for path in DATA.glob("*.*"):
            shutil.copy(path, folder)
        self.file = folder / "web.yml"
        self.file.write_text(text)
        self.terms = WebTerms(self.file, FakeClock(), Logger("test"))
        self.terms.load()

    def replace(self, name: str) -> None:
        """Replace the server's certificate and key by those named ``name``."""
        for kind in ("pem", "key"):
            shutil.copy(DATA / f"{name}.{kind}", self.folder / f".{kind}")
            os.replace(self.folder / f".{kind}", self.folder / f"server.{kind}")

    def client(self, name: str = "") -> ssl.SSLContext:
        """Return a client's TLS context, with a certificate if ``name`` is given."""
        context = ssl.create_default_context(cafile=DATA / "ca.pem")
        if name:
            context.load_cert_chain(DATA / f"{name}.pem", DATA / f"{name}.key")
        return context

    async def context(self, name: str = "") -> ssl.SSLContext:
        """Return a client's TLS context, made off the event loop."""
        return await asyncio.to_thread(self.client, name)


@asynccontextmanager
async def served(node: Node, limits: ServerLimits | None = None) -> AsyncIterator[tuple[WebServer, WebLog, int]]:
    """Run a server with the TLS settings of the node."""
    log = WebLog()
    server = WebServer(big, log, limits, tls=lambda: node.terms.terms.tls)
    [opened] = open_listeners(ListenAddress("127.0.0.1", 0))
    await server.listen([opened])
    port = opened.getsockname()[1]
    try:
        yield server, log, port
    finally:
        await server.stop(1.0)


async def ask(port: int, context: ssl.SSLContext, sent: bytes = CLOSE) -> bytes:
    """Request a page over TLS; return everything until the server closes the TLS session."""
    reader, writer = await asyncio.open_connection("localhost", port, ssl=context)
    with closing(writer):
        writer.write(sent)
        return await reader.read(-1)


@pytest.mark.slow
async def test_refusals_arrive_whole(tmp_path: Path) -> None:
    """An invalid request gets its response before the connection closes."""
    node = await asyncio.to_thread(Node, tmp_path, f"{TLS}}}")
    async with served(node) as (_, _log, port):
        refusal = await ask(port, await node.context(), b"POST / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert refusal.startswith(b"HTTP/1.1 405 ")
        whole = b"GET /who HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
        assert (await ask(port, await node.context(), whole)).endswith((b"loopback", f"uid {os.geteuid()}".encode()))


@pytest.mark.parametrize(("text", "name", "is_served"), [
    (f"{TLS}}}", "", True),
    (f"{MUTUAL}}}", "scraper", True),
    (f"{MUTUAL}}}", "", False),
    (f"{MUTUAL}, client_allowed_sans: [prometheus.example]}}", "scraper", True),
    (f"{MUTUAL}, client_allowed_sans: [prometheus.example]}}", "other", False),
    (f"{TLS}, client_ca_file: ca.pem, client_auth_type: VerifyClientCertIfGiven}}", "", True),
    (f"{MUTUAL.replace('client_ca_file: ca.pem', INLINE_CA)}}}", "scraper", True),
    (f"{TLS}, min_version: TLS13}}", "", True),
    (f"{TLS}, max_version: TLS12, cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]}}", "", True),
])  # fmt: skip
async def test_who_is_served(tmp_path: Path, text: str, name: str, is_served: bool) -> None:
    """A client without the required certificate, or with another name in its certificate, gets no response."""
    node = await asyncio.to_thread(Node, tmp_path, text)
    async with served(node) as (_server, log, port):
        try:
            received = await ask(port, await node.context(name))
        except (OSError, ssl.SSLError):
            received = b""
        assert received.startswith(b"HTTP/1.1 200 ") is is_served
        await until(lambda: bool(log.closed["handshake_failed"]) is not is_served)
        assert log.faults == 0


async def test_who_leaves_as_the_handshake_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that asyncio loses during the handshake counts as a failed handshake, and as no fault."""

    async def lost(*_: object, **__: object) -> None:
        """Return None, as asyncio does for such a client."""

    node = await asyncio.to_thread(Node, tmp_path, f"{TLS}}}")
    monkeypatch.setattr(asyncio.get_running_loop(), "start_tls", lost)
    async with served(node) as (_server, log, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        with closing(writer):
            await until(lambda: log.closed["handshake_failed"] == 1)
        assert log.faults == 0


async def test_who_speaks_no_tls(tmp_path: Path) -> None:
    """A client that sends plain HTTP, or nothing, is closed at the handshake, and counted."""
    node = await asyncio.to_thread(Node, tmp_path, f"{TLS}}}")
    async with served(node, ServerLimits(handshake_seconds=0.1)) as (_server, log, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CLOSE)
        assert not (await reader.read(-1)).startswith(b"HTTP")
        silent, other = await asyncio.open_connection("127.0.0.1", port)
        assert await silent.read(-1) == b""
        await until(lambda: log.closed["handshake_timeout"] == 1)
        assert log.closed["handshake_failed"] == 1
        for stream in (writer, other):
            stream.close()


async def test_silent_clients_give_way(tmp_path: Path) -> None:
    """At the limit of connections, a silent client's connection is closed so that a scrape is served."""
    node = await asyncio.to_thread(Node, tmp_path, f"{TLS}}}")
    async with served(node, ServerLimits(tls_connections=4)) as (server, log, port):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        await until(lambda: len(server._connections) == 4)
        assert (await ask(port, await node.context())).endswith(BIG)
        assert log.closed["evicted"] == 1
        for _, writer in silent:
            writer.close()


async def test_a_renewed_certificate(tmp_path: Path) -> None:
    """A renewed certificate is used for new clients; a damaged certificate leaves the previous one in use."""
    node = await asyncio.to_thread(Node, tmp_path, f"{TLS}}}")

    async def shown() -> str:
        _, writer = await asyncio.open_connection("localhost", port, ssl=await node.context())
        [[(_, name)]] = writer.get_extra_info("peercert")["subject"]
        writer.close()
        return str(name)

    async with served(node) as (_, _log, port):
        assert await shown() == "server"
        await asyncio.to_thread(node.replace, "renewed")
        await node.terms._look(node.file)
        assert await shown() == "renewed"
        await asyncio.to_thread((tmp_path / "server.pem").write_text, "broken")
        await node.terms._look(node.file)
        assert await shown() == "renewed"
        assert "server.pem or server.key" in node.terms.refused
        await asyncio.to_thread(node.replace, "server")
        await node.terms._look(node.file)
        assert (await shown(), node.terms.refused) == ("server", "")


@pytest.mark.parametrize(("text", "expected"), [
    (TLS.replace("server.pem", "none.pem") + "}", "none.pem: No such file or directory"),
    (TLS.replace("server.key", "other.key") + "}", "server.pem or other.key"),
])  # fmt: skip
def test_certificates_that_cannot_be_used(tmp_path: Path, text: str, expected: str) -> None:
    """A missing certificate, or one that does not match its key, is an error that names the file."""
    with pytest.raises(ConfigError, match=expected):
        Node(tmp_path, text)


def test_names_in_certificates() -> None:
    """A name can be of any kind; without a list all certificates are allowed, with a list none without a name."""
    known = {"subjectAltName": (("DNS", "a"), ("URI", "spiffe://b"))}
    for certificate, names, allowed in ((known, {"spiffe://b"}, True), (known, {"b"}, False), (None, (), True)):
        assert has_allowed_name(certificate, names) is allowed
    assert not has_allowed_name(None, {"a"})


async def test_several_addresses_and_a_local_socket(tmp_path: Path) -> None:
    """Each address serves the same page as a socket for root and the group; the stopped server removes the socket."""
    local = tmp_path / "web.sock"
    await asyncio.to_thread(local.write_text, "left by a crash")
    serving = Serving(big, Logger("web"), local_path=local)
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    await serving.start([f"127.0.0.1:{port}" for port in ports])
    try:
        assert (await asyncio.to_thread(local.stat)).st_mode & 0o777 == 0o660
        opened = [asyncio.open_connection("127.0.0.1", port) for port in ports]
        for stream in (*opened, asyncio.open_unix_connection(local)):
            reader, writer = await stream
            writer.write(CLOSE)
            assert (await reader.read(-1)).endswith(BIG)
            writer.close()
    finally:
        await serving.stop()
    assert not await asyncio.to_thread(local.exists)


async def test_a_local_socket_that_cannot_be_made_or_removed() -> None:
    """If a local socket's directory is a file, the server starts and stops without the socket."""
    serving = Serving(big, Logger("web"), local_path=Path("/dev/null/web.sock"))
    await serving.start(["127.0.0.1:0"])
    await serving.stop()


async def test_none_of_several_addresses_stays_open(tmp_path: Path) -> None:
    """If one of several addresses cannot be bound, the listeners on the others are closed again."""
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        serving = Serving(big, Logger("web"))
        with pytest.raises(OSError, match="cannot listen on"):
            await serving.start([f"127.0.0.1:{port}", f"127.0.0.1:{taken.getsockname()[1]}"])
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
