"""The configuration: what is refused, and where the message says the mistake stands."""

from __future__ import annotations

import pytest

from agent.app.config import Loaded
from agent.app.supervisor import prepare
from agent.app.yaml_document import MAX_DEPTH, ConfigError
from agent.core.log import Logger
from exporters.ras import RasConfig


@pytest.mark.parametrize(("text", "message"), [
    ("exporters: &all [*all]", "f:1: aliases are not taken: write it out"),
    ("web: &w {}\nexporters: {a: *w}", "f:2: aliases are not taken: write it out"),
    ("exporters:\n " + "[" * MAX_DEPTH + "]" * MAX_DEPTH, f"f:2: nested deeper than {MAX_DEPTH}"),
    ("[" * 1_000_000, f"f:1: nested deeper than {MAX_DEPTH}"),
    ("web:\n  listen_address: 2026-13-45\n", "f:2: '2026-13-45' cannot be read"),
    ("exporters:\n  ras:\n    max_ranks: 0x_\n", "f:3: '0x_' cannot be read"),
    ("a: " + "9" * 5000, "f:1: '" + "9" * 40 + "' cannot be read"),
    ("a: !!int ''\n", "f:1: '' cannot be read"),
    ("a: !!timestamp x\n", "f:1: 'x' cannot be read"),
    ("a: 1\n---\na: 2\n", "f:2: not valid YAML: "),
    ("exporters:\n  inspector: 5\n", "f:2: $.exporters.inspector: expected a section (key: value), got a whole number"),
    ('state:\n  path: "/a\\0b"\n', "f:2: $.state.path: expected text matching regex"),
    ("web:\n  listen_adress: x\n", "f:2: $.web.listen_adress: unknown key"),
    ("web: {}\nweb: {}\n", "f:2: $.web: key given twice"),
    ("web: ]\n", "f:1: not valid YAML: "),
])  # fmt: skip
def test_a_mistake_is_refused_with_its_place(text: str, message: str) -> None:
    """Each mistake is one line that begins with file, line and path."""
    with pytest.raises(ConfigError) as error:
        Loaded(text, "f")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text", ["exporters:\n  # inspector: {}\n", "web:\nstate:\nhealth:\nexporters:\n", "exporters:\n  inspector:\n"]
)
def test_a_section_without_content_is_as_one_that_is_not_there(text: str) -> None:
    """A key with nothing but comments under it means its defaults."""
    assert prepare(Loaded(text, "f"), Logger("test")) == prepare(Loaded("", "f"), Logger("test"))


@pytest.mark.parametrize(("word", "role"), [("off", "off"), ("'off'", "off"), ("false", "off"), ("monitor", "monitor")])
def test_the_role_off_needs_no_quotes(word: str, role: str) -> None:
    """YAML takes a bare `off` for its false; as a role of RAS it means off."""
    loaded = Loaded(f"exporters: {{ras: {{role: {word}}}}}", "f")
    assert loaded.section("ras", RasConfig).configured_role() == role  # type: ignore[attr-defined]


def test_a_role_that_is_none_is_refused() -> None:
    """YAML's true is no role."""
    with pytest.raises(ConfigError, match=r"^f:1: \$.exporters.ras: role: "):
        Loaded("exporters: {ras: {role: on}}", "f").section("ras", RasConfig)


def test_nesting_up_to_the_bound_is_taken() -> None:
    """A section may be as deep as the bound says; what it may hold is its exporter's matter."""
    depth = MAX_DEPTH - 2  # beside the file itself and `exporters`
    text = "exporters: {a: " + "{b: " * depth + "1" + "}" * (depth + 1)
    assert list(Loaded(text, "f").config.exporters) == ["a"]
