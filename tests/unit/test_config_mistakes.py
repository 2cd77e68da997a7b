"""The configuration: what is refused, and where the message says the mistake stands."""

from __future__ import annotations

import pytest

from agent.app.config import MAX_DEPTH, ConfigError, Loaded


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exporters: &all [*all]", "f:1: aliases are not taken: write it out"),
        ("web: &w {}\nexporters: {a: *w}", "f:2: aliases are not taken: write it out"),
        ("exporters:\n " + "[" * MAX_DEPTH + "]" * MAX_DEPTH, f"f:2: nested deeper than {MAX_DEPTH}"),
        ("[" * 1_000_000, f"f:1: nested deeper than {MAX_DEPTH}"),
        ("exporters:\n  inspector:\n", "f:2: $.exporters.inspector: Expected `object`, got `null`"),
        ("exporters:\n  inspector: 5\n", "f:2: $.exporters.inspector: Expected `object`, got `int`"),
        ('state:\n  path: "/a\\0b"\n', "f:2: $.state.path: Expected `str` matching regex"),
        ("web:\n  listen_adress: x\n", "f:2: $.web.listen_adress: unknown key"),
        ("web: {}\nweb: {}\n", "f:2: $.web: key given twice"),
        ("web: ]\n", "f:1: not valid YAML: "),
    ],
)
def test_a_mistake_is_refused_with_its_place(text: str, message: str) -> None:
    """Each mistake is one line that begins with file, line and path."""
    with pytest.raises(ConfigError) as error:
        Loaded(text, "f")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_nesting_up_to_the_bound_is_taken() -> None:
    """A section may be as deep as the bound says; what it may hold is its exporter's matter."""
    depth = MAX_DEPTH - 2  # beside the file itself and `exporters`
    text = "exporters: {a: " + "{b: " * depth + "1" + "}" * (depth + 1)
    assert list(Loaded(text, "f").config.exporters) == ["a"]
