"""The page as it is served: made seldom, with its script and style."""

from fake_clock import FakeClock

from agent.app.front import HOLD_SECONDS, STATIC, HeldAnswer
from agent.page.static import SCRIPT, STYLE


def test_it_is_made_at_most_twice_a_second() -> None:
    """However many look, the page is made anew after HOLD_SECONDS and not before."""
    clock, made = FakeClock(), iter(("first", "second"))
    page = HeldAnswer(clock, lambda: next(made))
    assert {page() for _ in range(100)} == {"first"}
    clock.advance(HOLD_SECONDS)
    assert page() == "second"


def test_script_and_style_are_served() -> None:
    """Both, by the paths that the page names."""
    assert {path: answer.body for path, answer in STATIC.items()} == {"/page.js": SCRIPT.text, "/page.css": STYLE.text}
