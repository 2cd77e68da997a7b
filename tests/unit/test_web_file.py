"""The web file: the accepted parts of Prometheus's format, and messages about the other parts."""

from pathlib import Path

import pytest

from agent.app.web_terms import parse
from agent.app.yaml_document import ConfigError
from agent.web.web_file import MAX_SANS, MAX_USERS

DATA = Path(__file__).parents[1] / "data" / "web"
HASH = "$2y$10$mDwo.lAisC94iLAyP81MCesa29IzH37oigHC/42V2pdJlUprsJPze"
TLS = "cert_file: server.pem, key_file: server.key"
GOOD = {
    "empty": "",
    "tls": f"tls_server_config: {{{TLS}}}",
    "mutual": f"tls_server_config: {{{TLS}, client_ca_file: ca.pem, client_auth_type: RequireAndVerifyClientCert}}",
    "if-given": f"tls_server_config: {{{TLS}, client_ca_file: ca.pem, client_auth_type: VerifyClientCertIfGiven}}",
    "versions": f"tls_server_config: {{{TLS}, min_version: TLS12, max_version: TLS13}}",
    "suites": f"tls_server_config: {{{TLS}, cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256], "
    "prefer_server_cipher_suites: false}",
    "curve": f"tls_server_config: {{{TLS}, curve_preferences: [CurveP256]}}",
    "users": f'basic_auth_users: {{prom: "{HASH}", other: "{HASH}"}}',
    "headers": "http_server_config: {http2: false, headers: {X-Frame-Options: deny, Strict-Transport-Security: a}}",
}
"""promtool accepts these files as well (tests/e2e/test_web_file_promtool.py)."""
BAD = {
    "unknown": ("tls_sever_config: {}", "tls_sever_config: unknown key"),
    "no-key": ("tls_server_config: {cert_file: server.pem}", "key_file is missing"),
    "no-certificate": ("tls_server_config: {key_file: server.key}", "cert_file is missing"),
    "ca-without-policy": (f"tls_server_config: {{{TLS}, client_ca_file: ca.pem}}", "use RequireAndVerifyClientCert"),
    "policy": (f"tls_server_config: {{{TLS}, client_auth_type: Always}}", "'Always' is not one of NoClientCert, "),
    "suite": (f"tls_server_config: {{{TLS}, cipher_suites: [RC4]}}", "RC4 is none of TLS_AES_128_GCM_SHA256"),
    "header": ("http_server_config: {headers: {X-Own: a}}", "X-Own is none of Content-Security-Policy"),
    "no-hash": ("basic_auth_users: {prom: secret}", "'prom' has no bcrypt hash"),
}
REFUSED_HERE = {
    "policy-without-ca": (f"tls_server_config: {{{TLS}, client_auth_type: RequireAndVerifyClientCert}}",
     "needs client_ca_file"),
    "any-certificate": (f"tls_server_config: {{{TLS}, client_auth_type: RequireAnyClientCert}}",
     "RequireAnyClientCert is not supported: certificates are always verified"),
    "old": (f"tls_server_config: {{{TLS}, min_version: TLS10}}", "TLS10 and TLS11 are not supported"),
    "curves": (f"tls_server_config: {{{TLS}, curve_preferences: [CurveP256, CurveP384]}}", "one curve is supported"),
    "costly": (f'basic_auth_users: {{prom: "{HASH.replace("$10$", "$15$")}"}}', "costs 15; the limit is 14"),
    "upside-down": (f"tls_server_config: {{{TLS}, min_version: TLS13, max_version: TLS12}}", "min_version is above"),
    "both": ("tls_server_config: {cert: a, cert_file: b, key_file: c}", "cert and cert_file exclude each other"),
    "sans": (f"tls_server_config: {{{TLS}, client_allowed_sans: [a]}}", "client_allowed_sans needs"),
    "newline": ('http_server_config: {headers: {X-Frame-Options: "a\\nb"}}', "has characters that a header may"),
    "header-blank": ('http_server_config: {headers: {X-Frame-Options: " deny"}}', "has characters that a header may"),
    "interval": ("rate_limit: {interval: soon}", "'soon' is not a time span"),
    "users": (f"basic_auth_users: {{{', '.join(f'u{n}: x' for n in range(MAX_USERS + 1))}}}", "length <= 64"),
    "many-sans": (f"tls_server_config: {{{TLS}, client_allowed_sans: [{', '.join(['a'] * (MAX_SANS + 1))}]}}",
     "length <= 64"),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_what_is_taken(name: str) -> None:
    """Supported settings of the format are accepted."""
    parse(GOOD[name], "web.yml")


@pytest.mark.parametrize("name", [*BAD, *REFUSED_HERE])
def test_what_is_refused(name: str) -> None:
    """Errors and unsupported settings are refused with line and reason."""
    text, expected = (BAD | REFUSED_HERE)[name]
    with pytest.raises(ConfigError) as caught:
        parse(text, "web.yml")
    assert str(caught.value).startswith("web.yml")
    assert expected in str(caught.value)


def test_files_that_it_names() -> None:
    """The files of the terms are certificate, key and authority; a relative path starts at the web file's directory."""
    terms = parse(GOOD["mutual"], "web.yml")
    assert terms.files(Path("/etc")) == [Path("/etc/server.pem"), Path("/etc/server.key"), Path("/etc/ca.pem")]
