"""The page at / in a real browser: updates, accessibility, cost, and use without its script."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import Agent
from browser import AXE, Browser, why_no_browser
from full import full
from jobs import SimulatedJob
from machines import Machine, alive
from nodes import wait_until

pytestmark = [pytest.mark.skipif(why_no_browser() is not None, reason=why_no_browser() or ""), pytest.mark.timeout(180)]
PICTURES = os.environ.get("RANKWATCH_PICTURES")
"""A directory for the picture in README; without a directory the test makes no picture."""
KILL_SECONDS = 3.0
"""Time from a rank's kill until an open page shows it."""
PAGES = 20
CPU_SHARE = 0.02
STATES = (
    "return [...document.querySelectorAll('tbody tr')].map(row => [...row.cells].slice(0, 2).map(c => c.innerText))"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Agent, SimulatedJob]]:
    """Provide a job of eight ranks and its agent."""
    machine = Machine(tmp_path_factory.mktemp("site"))
    with machine.job("--ranks", "8") as job, machine.agent(job) as agent:
        agent.wait_for_states(alive(8))
        yield agent, job


def address(agent: Agent) -> str:
    """Return the address of the agent's page."""
    return f"http://127.0.0.1:{agent.port}/"


def violations(browser: Browser) -> list[str]:
    """Return axe-core's violations in the current page (rules of WCAG and best practices)."""
    browser.run(AXE.read_text())
    broken = browser.run("return axe.run().then(r => r.violations.map(v => [v.id, v.nodes.map(n => n.html)]))")
    return [json.dumps(rule) for rule in broken]


def test_without_its_script(site: tuple[Agent, SimulatedJob], tmp_path: Path) -> None:
    """Without its script the page is complete and reloads every ten seconds."""
    agent, _ = site
    with Browser(tmp_path, scripts=False) as browser:
        browser.open(address(agent))
        tree = json.dumps(browser.developer("DOM.getDocument", {"depth": -1}))
        assert tree.count('"tr"') >= 9
        assert tree.count("alive") >= 8


@pytest.mark.parametrize(("size", "dark"), [((1280, 900), False), ((390, 844), True)], ids=["desk", "phone"])
def test_the_page_is_accessible(
    site: tuple[Agent, SimulatedJob], tmp_path: Path, size: tuple[int, int], dark: bool
) -> None:
    """axe-core finds no violation on a light desktop and a dark phone; state, rank and progress come first."""
    agent, _ = site
    with Browser(tmp_path, size, dark=dark) as browser:
        browser.open(address(agent))
        browser.run("document.querySelector('details').open = true")
        assert violations(browser) == []
        shown = browser.run(
            "return [...document.querySelectorAll('th')].filter(h => h.offsetParent).map(h => h.innerText)"
        )
        assert shown[:3] == ["State", "Rank", "Progress"]
        assert ("Pid" in shown) is (size[0] > 640)


@full
def test_twenty_open_pages(site: tuple[Agent, SimulatedJob], tmp_path: Path) -> None:
    """Twenty open pages cost the agent at most 1 % of a CPU and request only the page."""
    agent, _ = site
    before = cpu_share(agent)
    with Browser(tmp_path) as browser:
        browser.open(address(agent))
        fetched = "return performance.getEntriesByType('resource').map(e => new URL(e.name).pathname)"
        wait_until(lambda: len(browser.run(fetched)) > 5, 30, "some looks")
        assert set(browser.run(fetched)) == {"/", "/page.css", "/page.js"}
        # One page polls as often as many pages, because a hidden window does not poll.
        browser.run(
            "for (let i = 1; i < arguments[0]; i++) (async () => { for (;;) { await look(); "
            "await new Promise(go => setTimeout(go, 2000)); } })()",
            PAGES,
        )
        share = cpu_share(agent) - before
        print(f"{PAGES} pages: {share:.4f} of a CPU more than {before:.4f}")  # noqa: T201  # stands in docs/benchmarks.md
        assert share <= CPU_SHARE


def test_a_kill_shows_by_itself(site: tuple[Agent, SimulatedJob], tmp_path: Path) -> None:
    """The open page shows a killed rank within 3 s, later the rank that waits for it, and the agent's end."""
    agent, job = site
    with Browser(tmp_path) as browser:
        browser.open(address(agent))
        agent.wait_for_states(alive(8))
        wait_until(
            lambda: browser.run(STATES)[:8] == [["alive", str(rank)] for rank in range(8)],
            20,
            f"the ranks, {browser.run(STATES)}, {agent.states()}",
        )
        browser.run("window.mark = 1; document.querySelector('details').open = true")
        job.kill(job.pid(3))
        begun = time.monotonic()
        wait_until(lambda: ["exited", "3"] in browser.run(STATES), 20, "the death")
        assert time.monotonic() - begun <= KILL_SECONDS
        wait_until(lambda: "waits for rank 3" in browser.run("return document.body.innerText"), 60, "who waits")
        assert browser.run("return [window.mark, document.querySelector('details').open]") == [1, True]
        assert "rank 3 killed (SIGKILL)" in browser.run("return document.querySelector('section p').innerText")
        assert browser.run("return document.title").startswith("(1) ")
        assert violations(browser) == []
        if PICTURES is not None:
            browser.picture(Path(PICTURES) / "page.png")
        agent.kill9()
        wait_until(lambda: "No answer from the agent" in browser.run("return document.body.innerText"), 20, "its end")


def cpu_share(agent: Agent, seconds: float = 15.0) -> float:
    """Return the share of a CPU that the agent used over ``seconds``, by its own counter."""

    def used() -> tuple[float, float]:
        return time.monotonic(), agent.value("process_cpu_seconds_total") or 0.0

    begun = used()
    wait_until(lambda: time.monotonic() - begun[0] >= seconds, seconds + 5, "the time")
    ended = used()
    return (ended[1] - begun[1]) / (ended[0] - begun[0])
