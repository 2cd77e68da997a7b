"""The page as it is served: made seldom, and pages that are open share the looks."""

import re

import pytest
from fake_clock import FakeClock

from agent.app.config import WebConfig
from agent.app.front import HOLD_SECONDS, STATIC, Front
from agent.page.document import NodeDocument, Rank, read
from agent.page.static import SCRIPT, STYLE
from agent.ranks.speeds import SpeedView

RANKS = (Rank(job_id="1", rank="0", state="alive"),)


class Served:
    """A front with its clock, and how often the document was asked for."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.made = 0
        self.front = Front(self.clock, self.document, lambda label: SpeedView(), lambda: WebConfig(runbooks="http://r"))

    def document(self) -> NodeDocument:
        """What there is to see."""
        self.made += 1
        return NodeDocument(rankwatch="0", hostname="h", now_seconds=1.0, up_seconds=1.0, ready=True, ranks=RANKS)

    def look(self, pages: int, seconds: float) -> float:
        """Have so many pages look as they are told, for so long; return the looks per second at the end."""
        period, rate = 1.0, 0.0
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            for _ in range(pages):
                [told] = re.findall(r'data-period-ms="(\d+)"', self.front.text())
                self.clock.advance(period / pages)
            rate = pages / period
            period = int(told) / 1000
        return rate


def test_it_is_made_at_most_twice_a_second() -> None:
    """However many look, the page is made anew after HOLD_SECONDS and not before."""
    served = Served()
    assert (len({served.front.text() for _ in range(100)}), served.made) == (1, 1)
    served.clock.advance(HOLD_SECONDS)
    assert "http://r" in served.front.text()
    assert served.made == 2


def test_the_document_is_made_at_most_twice_a_second() -> None:
    """However many ask for it, the document is made anew after HOLD_SECONDS, not before; no page counts for that."""
    served = Served()
    assert ({read(served.front.json()).ranks for _ in range(100)}, served.made) == ({RANKS}, 1)
    served.clock.advance(HOLD_SECONDS)
    served.front.json()
    assert served.made == 2
    assert 'data-period-ms="1000"' in served.front.text()


@pytest.mark.parametrize(("pages", "rate"), [(1, 1.0), (6, 6.0), (20, 6.0), (180, 6.0), (200, 200 / 30)])
def test_open_pages_share_the_looks(pages: int, rate: float) -> None:
    """Six pages look every second; more look more seldom, all together no oftener; none waits for more than 30 s."""
    assert Served().look(pages, 300) == pytest.approx(rate, rel=0.15)


def test_few_pages_look_often_again() -> None:
    """When most are closed the others are told to look every second again."""
    served = Served()
    served.look(50, 100)
    assert served.look(2, 200) == 2.0


def test_script_and_style_are_served() -> None:
    """Both, by the paths that the page names."""
    assert {path: answer.body for path, answer in STATIC.items()} == {"/page.js": SCRIPT.text, "/page.css": STYLE.text}
