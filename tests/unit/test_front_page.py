from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.web.front_page import MAX_CELL_CHARACTERS, MAX_ROWS, ExporterRow, Overview, RankRow, age_text, front_page


class Page(HTMLParser):
    """What a browser would see: the tags, and the text of every table cell by row."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str | None] = []
        self.rows: list[list[str]] = []
        self._in_cell = False
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("href", "src")]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.rows[-1][-1] += data


def overview(ranks: list[RankRow], exporters: list[ExporterRow] | None = None) -> Overview:
    """Make what the page shows of these ranks and exporters."""
    return Overview(
        version="0.1.0", hostname="gpu-7", uptime_seconds=90061, ready=True, ranks=ranks, exporters=exporters or []
    )


def test_page_shows_ranks_and_exporters() -> None:
    """The page tells host, version, uptime, every rank and every exporter, trouble first, then by job and number."""
    ranks = [
        RankRow(job_id="42", rank="10", state="alive"),
        RankRow(
            job_id="42",
            rank="9",
            state="alive",
            local_rank="1",
            gpu="0",
            pid=77,
            user="ada",
            bus_bandwidth_bytes_per_second=183_456_000_000,
            last_progress_age_seconds=0.4,
        ),
        RankRow(job_id="43", rank="0", state="dead", last_progress_age_seconds=125),
    ]
    exporters = [
        ExporterRow(name="process", up=True, last_success_age_seconds=1, series=12),
        ExporterRow(name="nvml", up=False, last_success_age_seconds=7260),
        ExporterRow(name="ras", up=None),
        ExporterRow(name="rdma", up=None, looked=False),
    ]
    html = front_page(overview(ranks, exporters))
    page = Page(html)
    assert page.rows[1:4] == [
        ["43", "0", "dead", "", "", "", "", "", "2 min 5 s ago"],
        ["42", "9", "alive", "1", "0", "77", "ada", "183.46", "0 s ago"],
        ["42", "10", "alive", "", "", "", "", "", ""],
    ]
    assert page.rows[5:] == [
        ["nvml", "down", "2 h 1 min ago", "0"],
        ["process", "up", "1 s ago", "12"],
        ["ras", "absent", "", "0"],
        ["rdma", "starting", "", "0"],
    ]
    assert "gpu-7" in html and "up 1 d 1 h" in html and "0.1.0" in html


def test_page_needs_nothing_else() -> None:
    """The page runs no script and fetches nothing."""
    page = Page(front_page(overview([])))
    assert page.links == ["/metrics", "/-/healthy", "/-/ready"]
    assert not {"script", "link", "img", "iframe"} & set(page.tags)


@given(st.text(alphabet=st.characters(codec=None)) | st.sampled_from(["<script>", '"><img src=x>', "&lt;", "</style>"]))
def test_hostile_text_makes_no_markup(text: str) -> None:
    """No text of a job makes a tag, and the page can always be sent."""
    tame = RankRow(job_id="j", rank="r", state="s", local_rank="l", gpu="g", user="u")
    hostile = RankRow(job_id=text, rank=text, state=text, local_rank=text, gpu=text, user=text)
    html = front_page(overview([hostile], [ExporterRow(name=text, up=True)]))
    html.encode()
    assert Page(html).tags == Page(front_page(overview([tame], [ExporterRow(name="e", up=True)]))).tags


def test_rows_and_cells_are_bounded() -> None:
    """One row more than the bound is counted and not shown (never one in trouble); one character more is cut."""
    ranks = [RankRow(job_id="1", rank=str(i), state="alive") for i in range(MAX_ROWS)]
    last = RankRow(job_id="z" * (MAX_CELL_CHARACTERS + 1), rank="9" * 30, state="unresponsive")
    html = front_page(overview([*ranks, last]))
    rows = Page(html).rows
    assert len(rows) == 1 + 256 + 1
    assert rows[1][0] == "z" * 127 + "…"
    assert "and 1 more" in html
    assert "more</p>" not in front_page(overview(ranks))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (-1.0, "0 s"),
        (59.9, "59 s"),
        (60, "1 min 0 s"),
        (3599, "59 min 59 s"),
        (3600, "1 h 0 min"),
        (86399, "23 h 59 min"),
        (86400, "1 d 0 h"),
    ],
)
def test_age_in_two_units(seconds: float | None, text: str) -> None:
    """A duration is told in its two largest units."""
    assert age_text(seconds) == text
