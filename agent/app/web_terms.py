"""The web file in use: read at the start, and again after each change of the file or of a certificate."""

import asyncio
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from agent.app.config import read_config
from agent.app.yaml_document import ConfigError, Document
from agent.core.clock import Clock
from agent.core.log import Logger
from agent.core.threads import OwnThread
from agent.web.connection import TlsTerms
from agent.web.secured import Passwords, Secured
from agent.web.web_file import WebFile

POLL_SECONDS = 5.0
"""Interval of checks for changes of the web file and of its certificates."""


class WebTerms:
    """What the web file at ``path`` requires of clients; nothing if ``path`` is None.

    An invalid file, or one without an earlier protection, changes no terms: it can be half written.
    ``refused``: why the newest text is not in use; else empty.
    """

    def __init__(self, path: Path | None, clock: Clock, log: Logger) -> None:
        self.path = path
        self.terms = Secured()
        self.refused = ""
        self._clock = clock
        self._log = log
        self._checks = OwnThread("passwords")
        self._files = OwnThread("web-file")
        self._stamp: tuple[tuple[int, int, int], ...] = ()
        self._known_files: tuple[Path, ...] = ()
        self._file: WebFile | None = None
        self._passwords: Passwords | None = None

    def load(self) -> None:
        """Read the file (blocking); on an error raise ConfigError and keep the old terms."""
        if self.path is None:
            return
        stamp = _stamp_of([self.path])
        web_file = parse(read_config(self.path), str(self.path))
        folder = self.path.parent
        self._known_files = tuple(web_file.files(folder))  # even of a refused file: its certificates can arrive later
        stamp += _stamp_of(self._known_files)
        if self._file is None and not (web_file.tls_server_config or web_file.basic_auth_users):
            self._log.warning("web configuration without TLS and passwords: any client may read", path=str(self.path))
        before = [] if self._file is None else self._file.protections()
        if lacking := ", ".join(name for name in before if name not in web_file.protections()):
            why = f"the new file lacks {lacking} and would remove protection: restart the agent if that is intended"
            raise ConfigError(f"{self.path}: {why}")
        terms = self._terms_of(web_file, folder)
        self.terms, self._file, self._stamp = terms, web_file, stamp

    async def watch(self) -> None:
        """Apply changes of the files while the agent runs."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if self.path is not None:
                await self._look(self.path)

    async def _look(self, path: Path) -> None:
        files = self._known_files
        stamp = await self._files.call(lambda: _stamp_of([path, *files]))
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            await self._files.call(self.load)
        except Exception as error:  # noqa: BLE001  # errors of OpenSSL, bcrypt, paths: logged and shown, the terms stay
            reason = str(error) or type(error).__name__
            if self.refused != reason:
                self._log.error("web configuration refused, the previous one stays", error=reason)
            self.refused = reason
        else:
            self.refused = ""
            self._log.info("web configuration taken into use", path=str(path))

    def _terms_of(self, web_file: WebFile, folder: Path) -> Secured:
        tls = None
        if web_file.tls_server_config is not None:
            from agent.web.tls_context import context_of, has_allowed_name  # noqa: PLC0415  # loads OpenSSL only if needed

            allowed = frozenset(web_file.tls_server_config.client_allowed_sans)
            try:
                context = context_of(web_file.tls_server_config, folder)
            except ValueError as error:
                raise ConfigError(f"{self.path}: {error}") from error
            tls = TlsTerms(context, lambda certificate: has_allowed_name(certificate, allowed))
        passwords = self._passwords_of(web_file)
        headers = web_file.http_server_config.headers
        return Secured(passwords, headers, web_file.rate_limit, self._clock.monotonic, tls)

    def _passwords_of(self, web_file: WebFile) -> Passwords | None:
        """Return the password checker; if the users are unchanged, the previous checker with its cache."""
        if not web_file.basic_auth_users:
            return None
        if self._passwords is None or self._file is None or self._file.basic_auth_users != web_file.basic_auth_users:
            import bcrypt  # noqa: PLC0415  # imported only if passwords are set

            def matches(password: bytes, hashed: bytes) -> bool:
                try:
                    return bcrypt.checkpw(password, hashed)
                except ValueError:  # bcrypt refuses a password with a NUL
                    return False

            self._passwords = Passwords(web_file.basic_auth_users, self._checks, self._clock.monotonic, matches)
        return self._passwords


def local_socket(environ: Mapping[str, str]) -> Path | None:
    """Return the path of the socket for commands of root, in the unit's RuntimeDirectory=; None if unset."""
    directory = environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    return Path(directory, "web.sock") if directory else None


def parse(text: str, source: str) -> WebFile:
    """Return the parsed file; raises ConfigError with the error and its line."""
    document = Document(text, source)
    web_file: WebFile = document.convert({} if document.value is None else document.value, WebFile, "$")
    return web_file


def _stamp_of(paths: Iterable[Path]) -> tuple[tuple[int, int, int], ...]:
    """Return (modification time, inode, size) of each file; zeros for a missing file."""
    stamps = []
    for path in paths:
        try:
            status = os.stat(path)
        except (OSError, ValueError):  # ValueError: a path with a NUL
            stamps.append((0, 0, 0))
        else:
            stamps.append((status.st_mtime_ns, status.st_ino, status.st_size))
    return tuple(stamps)
