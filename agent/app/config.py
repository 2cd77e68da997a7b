"""The configuration: YAML, validated as a whole; each error names its line."""

import errno
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import aiofiles
import msgspec

from agent.app.yaml_document import ConfigError, Document
from agent.export.exporter import ExporterConfig, Roots
from agent.hardware.ledger import CHECKS
from agent.ranks.rank.verdict_thresholds import DEFAULTS, Thresholds
from agent.web.listen import parse_listen_address

MAX_BYTES = 1024 * 1024
MAX_JOB_ID_VARIABLES = 16
MAX_ADDRESSES = 8
DEFAULT_LISTEN_ADDRESS = "127.0.0.1:19028"
DEFAULT_STATE_PATH = "/var/lib/rankwatch/checkpoint"
_REMEDIES: dict[int | None, str] = {
    errno.ENOENT: "; every setting has a default: leave out --config.file, or copy deploy/systemd/rankwatch.yml",
    errno.EACCES: "; run it as root or as the service's user",
}

VariableName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
Address = Annotated[str, msgspec.Meta(pattern=r"^(https?://[^\s\0\"'<>]+)?$", max_length=1024)]


class WebConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section `web`. ``listen_address``: host:port, :port or [address]:port, or a list of them.

    ``config_file``: TLS and passwords, as ``--web.config.file``; empty for none. ``dashboards``, ``runbooks``:
    addresses of links on the page at `/`; empty for no links.
    """

    listen_address: str | Annotated[list[str], msgspec.Meta(min_length=1, max_length=MAX_ADDRESSES)] = (
        DEFAULT_LISTEN_ADDRESS
    )
    config_file: Annotated[str, msgspec.Meta(pattern=r"^(/[^\0]*)?$", max_length=4096)] = ""
    dashboards: Address = ""
    runbooks: Address = ""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the addresses to listen at."""
        return (self.listen_address,) if isinstance(self.listen_address, str) else tuple(self.listen_address)


class StateConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section `state`. ``path``: the checkpoint file; if it is empty, a restart of the agent resets counters to 0."""

    path: Annotated[str, msgspec.Meta(pattern=r"^[^\0]*$")] = DEFAULT_STATE_PATH


class IdentityConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section `identity`. ``job_id_variables``: variables with the job id; the first variable that names a job wins.

    These variables come before the built-in variables. A change applies to processes discovered later: a process keeps
    its job id.
    """

    job_id_variables: Annotated[list[VariableName], msgspec.Meta(max_length=MAX_JOB_ID_VARIABLES)] = []


class HealthConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section `health`: these checks make a rank unhealthy: the default checks plus ``count`` minus ``ignore``."""

    count: list[str] = []
    ignore: list[str] = []

    def __post_init__(self) -> None:
        for name in (*self.count, *self.ignore):
            if name not in CHECKS:
                raise ValueError(f"{name!r} is not one of the checks: {', '.join(sorted(CHECKS))}")


class AgentConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole configuration.

    ``exporters``: the sections as parsed; ``Loaded.section`` validates each section as its exporter's type.
    """

    web: WebConfig = WebConfig()
    state: StateConfig = StateConfig()
    health: HealthConfig = HealthConfig()
    identity: IdentityConfig = IdentityConfig()
    verdict: Thresholds = DEFAULTS
    exporters: dict[str, Any] = {}


class Loaded(Document):
    """A parsed file: the configuration, and the line of each of its parts.

    ``text``: the file's text. ``source``: the file's name in messages. An empty section (``exporters:`` with all keys
    commented out) counts as missing. Raises ConfigError with the first error.
    """

    def __init__(self, text: str, source: str) -> None:
        super().__init__(text, source)
        self.text = text
        self.config: AgentConfig = self.convert(_without_empty(self.value), AgentConfig, "$")
        for name, section in self.config.exporters.items():
            self.convert(section, dict[str, Any], f"$.exporters.{name}")
        for address in self.config.web.addresses:
            try:
                parse_listen_address(address)
            except ValueError as error:
                raise self.error("$.web.listen_address", str(error)) from None

    def section(self, name: str, type_: type[ExporterConfig]) -> ExporterConfig:
        """Return the section of exporter ``name`` as the exporter's own type."""
        config: ExporterConfig = self.convert(self.config.exporters.get(name, {}), type_, f"$.exporters.{name}")
        return config


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line, which override the configuration. ``config_path`` None: all defaults."""

    config_path: Path | None = None
    listen_addresses: tuple[str, ...] = ()
    web_config_file: Path | None = None
    roots: Roots = field(default_factory=Roots)

    def web_file(self, loaded: Loaded) -> Path | None:
        """Return the web file of the command line, else the web file of the configuration, else None."""
        named = loaded.config.web.config_file
        return self.web_config_file or (Path(named) if named else None)


def load(options: Options, text: str | None = None) -> Loaded:
    """Parse the configuration from ``text`` or its file (blocking); raises ConfigError with the error and its line."""
    if text is None:
        text = "" if options.config_path is None else read_config(options.config_path)
    return Loaded(text, str(options.config_path or "(defaults)"))


def read_config(path: Path) -> str:
    """Return the file's text (blocking); raises ConfigError if it cannot be read."""
    with _as_config_errors(path), path.open("rb") as file:
        return _decoded(path, file.read(MAX_BYTES + 1))


async def read_config_in(executor: Executor, path: Path) -> str:
    """Return the file's text, read by ``executor``; raises ConfigError if it cannot be read."""
    with _as_config_errors(path):
        file = await aiofiles.open(path, "rb", executor=executor)  # `async with` closes files in the shared pool
        try:
            return _decoded(path, await file.read(MAX_BYTES + 1))
        finally:
            await file.close()


def _decoded(path: Path, raw: bytes) -> str:
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_BYTES} bytes")
    return raw.decode()


@contextmanager
def _as_config_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}{_REMEDIES.get(error.errno, '')}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None


def _without_empty(raw: object) -> object:
    """Return the file's value without null sections and exporters (YAML keys without a value)."""
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        return raw
    sections = {name: section for name, section in raw.items() if section is not None}
    if isinstance(exporters := sections.get("exporters"), dict):
        sections["exporters"] = {name: section for name, section in exporters.items() if section is not None}
    return sections
