"""The shipped configuration shows all settings."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml

from agent.app.discovery import exporter_names, load_spec
from agent.sdk.exporter import ExporterConfig

SHIPPED = Path(__file__).parents[2] / "deploy" / "systemd" / "rankwatch.yml"


@pytest.mark.parametrize("name", exporter_names())
def test_every_setting_is_shown_with_its_default(name: str) -> None:
    """The shipped file shows each setting of each exporter with its default."""
    spec = load_spec(name)
    section = yaml.safe_load(SHIPPED.read_text())["exporters"].get(name)
    if section is None:
        assert spec.config is ExporterConfig
        return
    assert section.keys() == set(spec.config.__struct_fields__)
    assert msgspec.convert(section, spec.config) == spec.config()
