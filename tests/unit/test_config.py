"""The configuration and its mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from agent.app.config import DEFAULT_LISTEN_ADDRESS, MAX_BYTES, Loaded, read_config
from agent.app.supervisor import prepare
from agent.app.yaml_document import ConfigError
from agent.core.log import Logger
from agent.ranks.rank.numbers import Numbers
from exporters.inspector import SPEC


def test_empty_file_is_all_defaults() -> None:
    """An empty file means the defaults."""
    loaded = Loaded("", "f.yml")
    assert loaded.config.web.listen_address == DEFAULT_LISTEN_ADDRESS
    assert loaded.section("inspector", SPEC.config) == SPEC.config()


def test_whole_file() -> None:
    """Every key arrives where it belongs."""
    text = "web: {listen_address: ':1'}\nstate: {path: /s}\nexporters: {inspector: {paths: [/a], enabled: true}}\n"
    loaded = Loaded(text, "f.yml")
    assert (loaded.config.web.listen_address, loaded.config.state.path) == (":1", "/s")
    section = loaded.section("inspector", SPEC.config)
    assert section.enabled is True
    assert section.paths == ["/a"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("seconds", [0.9, 86_401])
def test_numbers_of_the_verdict_are_bounded(seconds: float) -> None:
    """The section verdict sets single numbers, from a second to a day."""
    loaded = Loaded("verdict: {killed_behind_seconds: 1, end_seconds: 86400}", "f.yml")
    assert loaded.config.verdict == Numbers(killed_behind_seconds=1, end_seconds=86_400)
    assert prepare(loaded, Logger("test")).numbers == loaded.config.verdict
    with pytest.raises(ConfigError, match=r"\$\.verdict\.killed_behind_seconds"):
        Loaded(f"verdict: {{killed_behind_seconds: {seconds}}}", "f.yml")


@pytest.mark.parametrize(("text", "message"), [
    ("web:\n  listen_adress: ':1'\n", "f.yml:2: $.web.listen_adress: unknown key"),
    ("web:\n  listen_address: 7\n", "f.yml:2: $.web.listen_address: expected text or a list (a line `- value`"),
    ("web:\n\n  listen_address: x\n", "f.yml:3: $.web.listen_address: listen address 'x' is not"),
    ("webb: {}\n", "f.yml:1: $.webb: unknown key; did you mean web?"),
    ("- a\n", "f.yml: $: expected a section (key: value), got a list"),
    ("web: {}\nweb: {}\n", "f.yml:2: $.web: key given twice"),
    ("web: [\n", "f.yml:2: not valid YAML: "),
    ("web: !!python/object:os.system {}\n", "f.yml:1: not valid YAML: "),
    ("a: b: c\n", "f.yml:1: not valid YAML: "),
    ("\x00", "f.yml: not valid YAML: "),
    ("exporters:\n  nvlm: {}\n", "f.yml:2: $.exporters.nvlm: no such exporter; did you mean nvml?"),
    ("exporters:\n  inspector:\n    path: [/x]\n",
     "f.yml:3: $.exporters.inspector.path: unknown key; did you mean paths?"),
    ("exporters:\n  inspector:\n    paths:\n      - /a\n      - b\n", "f.yml:5: $.exporters.inspector.paths[1]: "),
    ("exporters:\n  inspector: {poll_interval_seconds: 0.01}\n", "$.exporters.inspector.poll_interval_seconds: "),
    ("exporters:\n  inspector: {enabled: maybe}\n", "$.exporters.inspector.enabled: "),
    ("exporters: {process: {enabled: false, ioctl: 1}}\n",
     "f.yml:1: $.exporters.process.ioctl: unknown key; there are: all_values, "),
    ("exporters: {inspector: {paths: /x}}", "$.exporters.inspector.paths: expected a list (a line `- value`"),
    ("exporters: {inspector: {reclaim: [1]}}", "reclaim: expected a section (key: value), got a list"),
    ("exporters: {zebra: {}}", "$.exporters.zebra: no such exporter; there are: amdgpu, "),
    ("health: {count: [x]}", "'x' is none of the checks: "),
    ("exporters: {process: 3}\n", "f.yml:1: $.exporters.process: expected a section (key: value), got a whole number"),
])  # fmt: skip
def test_mistakes_are_located(text: str, message: str) -> None:
    """Each mistake is told on one line, with file, line, key and reason."""
    with pytest.raises(ConfigError) as caught:
        prepare(Loaded(text, "f.yml"), Logger("test"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_disabled_exporter_is_not_prepared() -> None:
    """An exporter with `enabled: false` is left alone."""
    plan = prepare(Loaded("exporters: {process: {enabled: false}}", "f.yml"), Logger("test"))
    assert "process" not in plan.enabled
    assert "inspector" in plan.enabled


def test_reading_is_bounded(tmp_path: Path) -> None:
    """A file of one byte more than the bound, a missing one, a directory and binary are refused with a reason."""
    large, binary = tmp_path / "large", tmp_path / "binary"
    large.write_bytes(b"#" * (MAX_BYTES + 1))
    binary.write_bytes(b"\xff\xfe")
    for path, reason in ((large, "larger"), (tmp_path / "none", "No such"), (tmp_path, "directory"), (binary, "UTF-8")):
        with pytest.raises(ConfigError, match=reason):
            read_config(path)
    large.write_bytes(b"#" * MAX_BYTES)
    assert len(read_config(large)) == MAX_BYTES


_YAMLISH = st.text(alphabet="0123456789-+:.xeb_TZ[]{}!&*'\"#\n abfnortuyil", max_size=60)


@given(st.text(max_size=60) | _YAMLISH | _YAMLISH.map(lambda text: f"web: {{listen_address: {text}"))
def test_any_text_loads_or_is_refused(text: str) -> None:
    """Any text is a configuration or a ConfigError."""
    try:
        prepare(Loaded(text, "f.yml"), Logger("test"))
    except ConfigError as error:
        assert "f.yml" in str(error)
