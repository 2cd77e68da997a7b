"""The web file in use: read at the start, and again whenever it or a certificate changes."""

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
"""How soon a renewed certificate, a new password or a mistake in the file shows."""


class WebTerms:
    """What the file at ``path`` requires of clients; nothing if ``path`` is None.

    An invalid file leaves the previous terms in force. So does a file without the earlier protection: it may be half
    written. ``refused``: why the newest text is not in use; empty if it is.
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
        """Read the file (blocking). On a mistake raise ConfigError and keep the old settings."""
        if self.path is None:
            return
        stamp = _stamp_of([self.path])
        web_file = parse(read_config(self.path), str(self.path))
        folder = self.path.parent
        self._known_files = tuple(web_file.files(folder))  # also of a file that is refused: they may be on their way
        stamp += _stamp_of(self._known_files)
        if self._file is None and not (web_file.tls_server_config or web_file.basic_auth_users):
            self._log.warning("web configuration without TLS and passwords: any client may read", path=str(self.path))
        if self._file is not None and (gone := web_file.opens(self._file)):
            raise ConfigError(f"{self.path}: {gone} would open what is closed: restart the agent if that is meant")
        terms = self._terms_of(web_file, folder)
        self.terms, self._file, self._stamp = terms, web_file, stamp

    async def watch(self) -> None:
        """Take what changes into use, for as long as the agent runs."""
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
        except Exception as error:  # noqa: BLE001  # of OpenSSL, bcrypt or a path: logged and shown, and nothing changes
            said = str(error) or type(error).__name__
            if self.refused != said:
                self._log.error("web configuration refused, the one before stays", error=said)
            self.refused = said
        else:
            self.refused = ""
            self._log.info("web configuration taken into use", path=str(path))

    def _terms_of(self, web_file: WebFile, folder: Path) -> Secured:
        tls = None
        if web_file.tls_server_config is not None:
            from agent.web.tls import context_of, has_allowed_name  # noqa: PLC0415  # loads OpenSSL, for those who need it

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
        """Those before, with what they remember, where the users are the same: scrapers are let in as they were."""
        if not web_file.basic_auth_users:
            return None
        if self._passwords is None or self._file is None or self._file.basic_auth_users != web_file.basic_auth_users:
            import bcrypt  # noqa: PLC0415  # likewise

            def matches(password: bytes, hashed: bytes) -> bool:
                try:
                    return bcrypt.checkpw(password, hashed)
                except ValueError:  # a password that bcrypt does not take, with a NUL
                    return False

            self._passwords = Passwords(web_file.basic_auth_users, self._checks, self._clock.monotonic, matches)
        return self._passwords


def local_socket(environ: Mapping[str, str]) -> Path | None:
    """Where root's commands ask the agent: in the directory of the unit's RuntimeDirectory=; None without."""
    directory = environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    return Path(directory, "web.sock") if directory else None


def parse(text: str, source: str) -> WebFile:
    """Return the parsed file. Raise ConfigError with the mistake and its line."""
    document = Document(text, source)
    web_file: WebFile = document.convert({} if document.value is None else document.value, WebFile, "$")
    return web_file


def _stamp_of(paths: Iterable[Path]) -> tuple[tuple[int, int, int], ...]:
    """When each file was changed, and which it is; zeros for one that is not there."""
    stamps = []
    for path in paths:
        try:
            status = os.stat(path)
        except (OSError, ValueError):  # of a path with a NUL
            stamps.append((0, 0, 0))
        else:
            stamps.append((status.st_mtime_ns, status.st_ino, status.st_size))
    return tuple(stamps)
