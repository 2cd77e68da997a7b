"""The file of `--web.config.file`: TLS, passwords and headers, in the format of Prometheus' exporter-toolkit.

Format: prometheus/exporter-toolkit, docs/web-configuration.md. Settings that this server does not support are refused
with a message, never ignored.
"""

import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec

MAX_USERS = 64
MAX_SANS = 64
MAX_INLINE_CHARACTERS = 64 * 1024
ClientAuth = Literal[
    "NoClientCert", "RequestClientCert", "RequireAnyClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"
]
TlsVersion = Literal["TLS10", "TLS11", "TLS12", "TLS13"]
CIPHERS = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}
"""TLS 1.2 suites: name in the file (Go's crypto/tls) to OpenSSL's name. TLS 1.3 suites are always on."""
TLS13_CIPHERS = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})
CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1"}
HEADERS = {
    "Content-Security-Policy", "Strict-Transport-Security", "X-Content-Type-Options", "X-Frame-Options",
    "X-XSS-Protection",
}  # fmt: skip
_BCRYPT = re.compile(r"\$2[aby]\$(0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}")
_MAX_COST = 14
_DURATION = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

_Text = Annotated[str, msgspec.Meta(max_length=4096)]
_Inline = Annotated[str, msgspec.Meta(max_length=MAX_INLINE_CHARACTERS)]


class TlsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section ``tls_server_config``. Paths are relative to the web file's directory."""

    cert: _Inline = ""
    key: _Inline = ""
    client_ca: _Inline = ""
    cert_file: _Text = ""
    key_file: _Text = ""
    client_ca_file: _Text = ""
    client_auth_type: ClientAuth = "NoClientCert"
    client_allowed_sans: Annotated[list[_Text], msgspec.Meta(max_length=MAX_SANS)] = []
    min_version: TlsVersion = "TLS12"
    max_version: TlsVersion = "TLS13"
    cipher_suites: Annotated[list[_Text], msgspec.Meta(max_length=64)] = []
    prefer_server_cipher_suites: bool = True
    curve_preferences: Annotated[list[_Text], msgspec.Meta(max_length=8)] = []

    def __post_init__(self) -> None:
        for mistake in (*self._contradictions(), *self._unsupported()):
            raise ValueError(mistake)

    def _contradictions(self) -> list[str]:
        given = {name: (getattr(self, name), getattr(self, f"{name}_file")) for name in ("cert", "key", "client_ca")}
        mistakes = [f"{name} and {name}_file exclude each other" for name, both in given.items() if all(both)]
        mistakes += [f"{name}_file is missing" for name in ("cert", "key") if not any(given[name])]
        has_ca = bool(self.client_ca or self.client_ca_file)
        verifies = self.client_auth_type in ("VerifyClientCertIfGiven", "RequireAndVerifyClientCert")
        if has_ca and self.client_auth_type == "NoClientCert":
            mistakes.append("client_ca_file without client_auth_type: use RequireAndVerifyClientCert")
        if verifies and not has_ca:
            mistakes.append(f"client_auth_type {self.client_auth_type} needs client_ca_file")
        if self.client_allowed_sans and not verifies:
            mistakes.append("client_allowed_sans needs client_auth_type RequireAndVerifyClientCert")
        if self.min_version > self.max_version:
            mistakes.append("min_version is above max_version")
        return mistakes

    def _unsupported(self) -> list[str]:
        mistakes = []
        if self.client_auth_type in ("RequestClientCert", "RequireAnyClientCert"):
            mistakes.append(
                f"client_auth_type {self.client_auth_type} is not supported: certificates are always verified"
            )
        if self.max_version < "TLS12" or self.min_version < "TLS12":
            mistakes.append("TLS10 and TLS11 are not supported: use TLS12 or TLS13")
        unknown = [suite for suite in self.cipher_suites if suite not in CIPHERS and suite not in TLS13_CIPHERS]
        if unknown:
            mistakes.append(f"cipher_suites: {unknown[0]} is none of {', '.join(sorted({*CIPHERS, *TLS13_CIPHERS}))}")
        if len(self.curve_preferences) > 1:
            mistakes.append("curve_preferences: one curve is supported, or none for OpenSSL's own curves")
        if self.curve_preferences and self.curve_preferences[0] not in CURVES:
            mistakes.append(f"curve_preferences: {self.curve_preferences[0]} is none of {', '.join(CURVES)}")
        return mistakes


class HttpConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section ``http_server_config``. ``http2`` has no effect: the server speaks HTTP/1.1, like all scrapers."""

    http2: bool = True
    headers: dict[str, _Text] = {}

    def __post_init__(self) -> None:
        for name, value in self.headers.items():
            if name not in HEADERS:
                raise ValueError(f"headers: {name} is none of {', '.join(sorted(HEADERS))}")
            if not value.isprintable() or not value.isascii() or value != value.strip():
                raise ValueError(f"headers: {name} has characters that a header may not have")


class RateLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section ``rate_limit``: one request per ``interval``, and ``burst`` at once. "0": no limit."""

    interval: str = "0"
    burst: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0

    def __post_init__(self) -> None:
        if self.interval != "0" and _DURATION.fullmatch(self.interval) is None:
            raise ValueError(f"interval {self.interval!r} is not a time span such as 100ms, 1s or 1m")

    @property
    def seconds(self) -> float:
        """Return the interval; 0 for none."""
        match = _DURATION.fullmatch(self.interval)
        return float(match[1]) * _SECONDS[match[2]] if match else 0.0


class WebFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole web file. ``basic_auth_users``: bcrypt hashes of passwords by user."""

    tls_server_config: TlsConfig | None = None
    http_server_config: HttpConfig = HttpConfig()
    basic_auth_users: Annotated[dict[str, str], msgspec.Meta(max_length=MAX_USERS)] = {}
    rate_limit: RateLimit = RateLimit()

    def __post_init__(self) -> None:
        """Refuse invalid hashes, and hashes that take seconds to check."""
        for user, hashed in self.basic_auth_users.items():
            match = _BCRYPT.fullmatch(hashed)
            if match is None:
                raise ValueError(f"basic_auth_users: {user!r} has no bcrypt hash ($2y$10$...)")
            if int(match[1]) > _MAX_COST:
                raise ValueError(f"basic_auth_users: the hash of {user!r} costs {match[1]}; the limit is {_MAX_COST}")

    def protections(self) -> list[str]:
        """Return the names of the settings that restrict clients."""
        tls = self.tls_server_config
        settings = {
            "tls_server_config": tls is not None,
            "client_auth_type": tls is not None and tls.client_auth_type == "RequireAndVerifyClientCert",
            "client_allowed_sans": tls is not None and bool(tls.client_allowed_sans),
            "basic_auth_users": bool(self.basic_auth_users),
        }
        return [name for name, protects in settings.items() if protects]

    def files(self, folder: Path) -> list[Path]:
        """Return the files that the web file names. A change of such a file counts as a change of the web file."""
        tls = self.tls_server_config
        names = () if tls is None else (tls.cert_file, tls.key_file, tls.client_ca_file)
        return [folder / name for name in names if name]
