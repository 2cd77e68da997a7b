"""What the command line says of the daemon, and the configuration that it names."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from agent.app.config import Loaded, read_config
from agent.export.exporter import Roots


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says. ``listen_addresses`` and ``web_config_file`` override the file's; ``config_path``
    None: all defaults.
    """

    config_path: Path | None = None
    listen_addresses: tuple[str, ...] = ()
    web_config_file: Path | None = None
    roots: Roots = field(default_factory=Roots)

    def web_file(self, loaded: Loaded) -> Path | None:
        """Return the web file, by the command line or else the configuration; None for none."""
        named = loaded.config.web.config_file
        return self.web_config_file or (Path(named) if named else None)


def load(options: Options) -> Loaded:
    """Read and parse the configuration (blocking). Raise ConfigError with the mistake and its line."""
    return parsed(options, "" if options.config_path is None else read_config(options.config_path))


def parsed(options: Options, text: str) -> Loaded:
    """Parse the configuration's text. Raise ConfigError with the mistake and its line."""
    return Loaded(text, str(options.config_path or "(defaults)"))
