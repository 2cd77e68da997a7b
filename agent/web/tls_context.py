"""TLS settings from the web file. Only this module imports OpenSSL, and only if a certificate is configured."""

import os
import ssl
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from agent.web.web_file import CIPHERS, CURVES, TlsConfig

_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_CLIENTS = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}


def context_of(config: TlsConfig, folder: Path) -> ssl.SSLContext:
    """Return the server's context (blocking: reads files); ValueError names the file and the error."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = _VERSIONS[config.min_version], _VERSIONS[config.max_version]
    context.verify_mode = _CLIENTS[config.client_auth_type]
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    if config.prefer_server_cipher_suites:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    if suites := [CIPHERS[suite] for suite in config.cipher_suites if suite in CIPHERS]:
        context.set_ciphers(":".join(suites))
    for curve in config.curve_preferences:
        context.set_ecdh_curve(CURVES[curve])
    context.set_alpn_protocols(["http/1.1"])
    source = f"{config.cert_file or 'cert'} or {config.key_file or 'key'}"
    try:
        _load_certificate(context, config, folder)
        source = config.client_ca_file or "client_ca"
        if config.client_ca:
            # ssl refuses other characters, even in comments
            context.load_verify_locations(cadata=config.client_ca.encode("ascii", "replace").decode())
        elif config.client_ca_file:
            context.load_verify_locations(cafile=folder / config.client_ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"tls_server_config: {error.filename or source}: {error.strerror}") from error
    return context


def has_allowed_name(certificate: Mapping[str, Any] | None, allowed: Collection[str]) -> bool:
    """Return True if a verified certificate (from ssl) has a name in ``allowed``, or if ``allowed`` is empty."""
    names = {value for _, value in (certificate or {}).get("subjectAltName", ())}
    return not allowed or not names.isdisjoint(allowed)


def _load_certificate(context: ssl.SSLContext, config: TlsConfig, folder: Path) -> None:
    """Load the certificate chain. Inline text is written to memory files, as OpenSSL reads only files."""
    descriptors: list[int] = []

    def path_of(text: str, name: str) -> str:
        if not text:
            (folder / name).open("rb").close()  # OpenSSL's own error does not name the file
            return str(folder / name)
        fd = os.memfd_create("rankwatch-tls")
        descriptors.append(fd)
        os.write(fd, text.encode())
        return f"/proc/self/fd/{fd}"

    try:
        certificate, key = path_of(config.cert, config.cert_file), path_of(config.key, config.key_file)
        context.load_cert_chain(certificate, key, password=_no_password)
    finally:
        for fd in descriptors:
            os.close(fd)


def _no_password() -> str:
    """Refuse an encrypted key: a daemon cannot prompt for its password."""
    raise ssl.SSLError(0, "the key is encrypted")
