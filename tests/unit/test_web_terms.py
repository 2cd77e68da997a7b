"""Changes of the web file while the agent runs; a change that removes a protection is refused."""

import asyncio
from pathlib import Path

import pytest
from test_web_tls import Node

from agent.app.web_terms import WebTerms

HASH = "$2y$10$mDwo.lAisC94iLAyP81MCesa29IzH37oigHC/42V2pdJlUprsJPze"
TLS = "cert_file: server.pem, key_file: server.key"
VERIFIED = f"{TLS}, client_ca_file: ca.pem, client_auth_type: RequireAndVerifyClientCert"
IF_GIVEN = "VerifyClientCertIfGiven"
USERS = f'\nbasic_auth_users: {{prom: "{HASH}"}}\n'
WHOLE = f"tls_server_config: {{{VERIFIED}, client_allowed_sans: [prometheus.example]}}{USERS}"


class Watched(Node):
    """A web file that changes while the agent runs."""

    async def write(self, text: str) -> None:
        """Write the file, and let the agent read it."""
        await asyncio.to_thread(self.file.write_text, text)
        await self.terms._look(self.file)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    """Provide a file with every protection."""
    return Watched(tmp_path, WHOLE)


@pytest.mark.parametrize(("text", "named"), [
    ("", "tls_server_config, client_auth_type, client_allowed_sans, basic_auth_users"),
    ("# nothing yet\n", "tls_server_config"),
    (f"tls_server_config:\n{USERS}", "tls_server_config"),
    (WHOLE.removesuffix(USERS), "basic_auth_users"),
    (f"tls_server_config: {{{TLS}}}{USERS}", "client_auth_type"),
    (f"tls_server_config: {{{VERIFIED.replace('RequireAndVerifyClientCert', IF_GIVEN)}}}{USERS}", "client_auth_type"),
    (f"tls_server_config: {{{VERIFIED}}}{USERS}", "client_allowed_sans"),
])  # fmt: skip
async def test_a_file_that_would_open_is_refused(watched: Watched, text: str, named: str) -> None:
    """An empty or cut file, or a file that lacks a protection, changes nothing, and ``refused`` has the reason."""
    before = watched.terms.terms
    await watched.write(text)
    assert watched.terms.terms is before
    assert named in watched.terms.refused
    assert "would remove protection: restart the agent" in watched.terms.refused
    await watched.write(WHOLE)
    assert watched.terms.refused == ""
    assert watched.terms.terms.tls is not None


async def test_what_closes_more_is_taken(tmp_path: Path) -> None:
    """A file without protections can get TLS and users at any time."""
    watched = await asyncio.to_thread(Watched, tmp_path, "")
    await watched.write(WHOLE)
    assert (watched.terms.refused, watched.terms.terms.tls is None) == ("", False)


async def test_nothing_in_the_file_ends_the_agent(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """An impossible path or an unexpected error is a refusal, and the agent goes on."""
    before = watched.terms.terms
    for _ in range(2):
        await watched.write(WHOLE.replace("server.pem", '"server\\0.pem"'))
        assert "null byte" in watched.terms.refused
    monkeypatch.setattr(WebTerms, "_terms_of", lambda *_: {}["unforeseen"])
    await watched.write(WHOLE)
    assert watched.terms.refused == "'unforeseen'"
    assert watched.terms.terms is before


async def test_a_renewal_forgets_no_password(watched: Watched) -> None:
    """After a change, the passwords that were checked stay known if the users are the same."""
    first = watched.terms._passwords
    assert first is not None
    await watched.write(WHOLE + "rate_limit: {interval: 1s}\n")
    assert watched.terms._passwords is first
    await watched.write(WHOLE.replace("prom:", "other:"))
    assert watched.terms.refused == ""
    assert watched.terms._passwords is not first
