"""The configuration, and errors in it."""

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from agent.app.config import MAX_BYTES, Loaded, read_config
from agent.app.discovery import prepare
from agent.app.yaml_document import MAX_DEPTH, ConfigError
from agent.core.log import Logger
from agent.ranks.rank.verdict_thresholds import Thresholds


@pytest.mark.parametrize(("text", "message"), [
    ("web:\n  listen_adress: ':1'\n", "f.yml:2: $.web.listen_adress: unknown key"),
    ("web:\n  listen_address: 7\n", "f.yml:2: $.web.listen_address: Expected text or a list ([a, b]), got a"),
    ("web:\n\n  listen_address: x\n", "f.yml:3: $.web.listen_address: listen address 'x' is not"),
    ("webb: {}\n", "f.yml:1: $.webb: unknown key; did you mean web?"),
    ("- a\n", "f.yml: $: Expected a mapping (name: value), got a list ([a, b])"),
    ("web: {}\nweb: {}\n", "f.yml:2: $.web: duplicate key"),
    ("web: [\n", "f.yml:2: not valid YAML: "),
    ("web: !!python/object:os.system {}\n", "f.yml:1: not valid YAML: "),
    ("a: b: c\n", "f.yml:1: not valid YAML: "),
    ("\x00", "f.yml: not valid YAML: "),
    ("exporters:\n  nvlm: {}\n", "f.yml:2: $.exporters.nvlm: no such exporter; did you mean nvml?"),
    ("exporters:\n  inspector:\n    path: [/x]\n",
     "f.yml:3: $.exporters.inspector.path: unknown key; did you mean paths?"),
    ("exporters:\n  inspector:\n    paths:\n      - /a\n      - b\n", "f.yml:5: $.exporters.inspector.paths[1]: "),
    ("exporters:\n  inspector: {poll_interval_seconds: 0.01}\n", "$.exporters.inspector.poll_interval_seconds: "),
    ("exporters:\n  inspector: {enabled: maybe}\n", "enabled: 'maybe' is not one of true, false, auto"),
    ("exporters: {process: {enabled: false, ioctl: 1}}\n",
     "f.yml:1: $.exporters.process.ioctl: unknown key; known: all_values, "),
    ("exporters: {inspector: {paths: [x]}}", "$.exporters.inspector.paths[0]: Expected an absolute path (/...)"),
    ("exporters: {inspector: {paths: /x}}", "$.exporters.inspector.paths: Expected a list ([a, b]), got text"),
    ("exporters: {inspector: {reclaim: [1]}}", "reclaim: Expected a mapping (name: value), got a list ([a, b])"),
    ("exporters: {zebra: {}}", "$.exporters.zebra: no such exporter; known: amdgpu, "),
    ("health: {count: [x]}", "'x' is not one of the checks: "),
    ("exporters: &all [*all]", "f.yml:1: aliases are not supported: repeat the value"),
    ("exporters:\n " + "[" * MAX_DEPTH + "]" * MAX_DEPTH, f"f.yml:2: nested deeper than {MAX_DEPTH}"),
    ("[" * 1_000_000, f"f.yml:1: nested deeper than {MAX_DEPTH}"),
    ("web:\n  listen_address: 2026-13-45\n", "f.yml:2: not valid YAML: '2026-13-45' cannot be read"),
    ("exporters:\n  ras:\n    max_ranks: 0x_\n", "f.yml:3: not valid YAML: '0x_' cannot be read"),
    ("a: " + "9" * 5000, "f.yml:1: not valid YAML: '" + "9" * 40 + "' cannot be read"),
    ("a: !!int ''\n", "f.yml:1: not valid YAML: '' cannot be read"),
    ("a: !!timestamp x\n", "f.yml:1: not valid YAML: 'x' cannot be read"),
    ("a: 1\n---\na: 2\n", "f.yml:2: not valid YAML: "),
    ('state:\n  path: "/a\\0b"\n', "f.yml:2: $.state.path: Expected text matching regex"),
    ("exporters: {process: 3}\n", "f.yml:1: $.exporters.process: Expected a mapping (name: value), got a whole number"),
    ("verdict: {end_seconds: 0.9}\n", "f.yml:1: $.verdict.end_seconds: "),
    ("verdict: {end_seconds: 86401}\n", "f.yml:1: $.verdict.end_seconds: "),
])  # fmt: skip
def test_mistakes_are_located(text: str, message: str) -> None:
    """Each error is one line with file, line, key and reason."""
    with pytest.raises(ConfigError) as caught:
        prepare(Loaded(text, "f.yml"), Logger("test"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_reading_is_bounded(tmp_path: Path) -> None:
    """A file above the limit, a missing file, a directory and a binary file are refused with a reason."""
    large, binary = tmp_path / "large", tmp_path / "binary"
    large.write_bytes(b"#" * (MAX_BYTES + 1))
    binary.write_bytes(b"\xff\xfe")
    for path, reason in ((large, "larger"), (tmp_path / "none", "No such"), (tmp_path, "directory"), (binary, "UTF-8")):
        with pytest.raises(ConfigError, match=reason):
            read_config(path)
    large.write_bytes(b"#" * MAX_BYTES)
    assert len(read_config(large)) == MAX_BYTES


@pytest.mark.parametrize(
    "text", ["exporters:\n  # inspector: {}\n", "web:\nstate:\nhealth:\nexporters:\n", "exporters:\n  inspector:\n"]
)
def test_a_section_without_content_is_as_one_that_is_not_there(text: str) -> None:
    """A section with only comments has its defaults."""
    assert prepare(Loaded(text, "f"), Logger("test")) == prepare(Loaded("", "f"), Logger("test"))


_YAMLISH = st.text(alphabet="0123456789-+:.xeb_TZ[]{}!&*'\"#\n abfnortuyil", max_size=60)


@given(st.text(max_size=60) | _YAMLISH | _YAMLISH.map(lambda text: f"web: {{listen_address: {text}"))
def test_any_text_loads_or_is_refused(text: str) -> None:
    """Any text is a valid configuration or raises ConfigError."""
    try:
        prepare(Loaded(text, "f.yml"), Logger("test"))
    except ConfigError as error:
        assert "f.yml" in str(error)


def test_a_sites_thresholds_are_used() -> None:
    """The section `verdict` sets the thresholds of the plan; the others keep their defaults."""
    plan = prepare(Loaded("verdict: {killed_behind_seconds: 1, end_seconds: 86400}", "f.yml"), Logger("test"))
    assert plan.thresholds == Thresholds(killed_behind_seconds=1, end_seconds=86_400)
