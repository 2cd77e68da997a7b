from html.parser import HTMLParser
from typing import Any

import msgspec
from hypothesis import given, strategies as st

from agent.page.front_page import MAX_CELL_CHARACTERS, MAX_ROWS, SiteLinks, front_page as made_page
from agent.page.ranks_json import Configuration, ExporterView, JobView, NodeDocument, Rank, RankEnd
from agent.ranks.rank.process import RankGpu

NOW = 1_700_000_000.0


class Page(HTMLParser):
    """The page in a browser: its tags, and the text of every table cell by row."""

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


def front_page(shown: NodeDocument, links: SiteLinks | None = None) -> str:
    """Return the page of a document."""
    return made_page(shown, links or SiteLinks())


def document(ranks: list[Rank], exporters: list[ExporterView] | None = None, **more: Any) -> NodeDocument:
    """Return a document with these ranks and exporters."""
    return NodeDocument(
        rankwatch="0.2.0", hostname="gpu-7", now_seconds=NOW, up_seconds=90061, ready=True, ranks=tuple(ranks),
        exporters=tuple(exporters or []), **more,
    )  # fmt: skip


def test_page_shows_jobs_ranks_and_exporters() -> None:
    """The page has host, version, uptime, jobs and ranks in the document's order, and the exporters, failed first."""
    ranks = [
        Rank(job_id="43", rank="0", state="dead", last_progress_seconds=NOW - 125,
         ended=RankEnd(NOW - 61, "signaled", "SIGSEGV")),
        Rank(job_id="42", rank="9", state="alive", local_rank="1", gpus=(RankGpu(0, "GPU-a"),), pid=77, user="ada",
         bus_bandwidth_bytes_per_second=183_456_000_000, last_progress_seconds=NOW - 0.4, unhealthy=("gpu_xid",)),
        Rank(job_id="42", rank="10", state="finished", ended=RankEnd(NOW - 5, "exited", "", 0)),
    ]  # fmt: skip
    exporters = [
        ExporterView(name="process", state="up", last_success_seconds=NOW - 1, series=12),
        ExporterView(name="nvml", state="down", why="no library", last_success_seconds=NOW - 7260),
    ]
    jobs = (JobView(job_id="42", name="train", user="ada", sentence="all is well", states={}, world_size=16),)
    html = front_page(document(ranks, exporters, jobs=jobs))
    page = Page(html)
    assert page.rows[1:2] == [
        ["dead", "0", "2 min 5 s ago", "", "", "", "", "", "", "crashed (SIGSEGV), 1 min 1 s ago"]
    ]
    assert page.rows[3:5] == [
        ["alive gpu_xid", "9", "0 s ago", "183.5", "", "0", "77", "ada", "1", ""],
        ["finished", "10", "", "", "", "", "", "", "", "exited with status 0, 5 s ago"],
    ]
    assert page.rows[6:] == [
        ["nvml", "down", "2 h 1 min ago", "0", "no library"],
        ["process", "up", "1 s ago", "12", ""],
    ]
    assert "Job 42 <small>train &middot; ada &middot; 16 ranks in all</small>" in html
    assert ">all is well</p>" in html
    assert "<title>(1) gpu-7 - rankwatch</title>" in html
    assert "<details open>" in html and "1 down" in html
    assert "gpu-7" in html and "up 1 d 1 h" in html and "0.2.0" in html


def test_the_waits_between_ranks() -> None:
    """A rank without progress has no bandwidth and waits for the job's dead rank; of two it names none."""
    stands = Rank(
        job_id="1", rank="0", state="alive", last_progress_seconds=NOW - 46, bus_bandwidth_bytes_per_second=2e9
    )
    gone = Rank(job_id="1", rank="3", state="dead", ended=RankEnd(NOW - 50, "signaled", "SIGKILL"))
    assert Page(front_page(document([gone, stands]))).rows[2][2:4] == ["waits for rank 3, 46 s", ""]
    assert "none for 46 s" in front_page(document([gone, msgspec.structs.replace(gone, rank="4"), stands]))
    assert "none for 46 s" in front_page(document([msgspec.structs.replace(gone, job_id="2"), stands]))


def test_lateness_is_drawn() -> None:
    """A bar shows the share of time that other ranks wait for the rank; if the share is unknown, there is no bar."""
    rank = Rank(job_id="1", rank="0", state="alive", late_share=0.312)
    html = front_page(document([rank]))
    assert 'value="0.31" aria-label="share of time that other ranks wait for rank 0"></meter>31%' in html
    assert "meter" not in Page(front_page(document([msgspec.structs.replace(rank, late_share=None)]))).tags


def test_links_are_those_of_the_configuration() -> None:
    """Node and job link to their dashboards; names in the links are escaped."""
    links = SiteLinks("http://grafana:3000", "https://wiki/runbooks")
    page = Page(front_page(document([Rank(job_id='1"&x', rank="0", state="alive")]), links=links))
    assert "http://grafana:3000/d/rankwatch-node?var-node=gpu-7" in page.links
    assert "https://wiki/runbooks" in page.links
    assert "http://grafana:3000/d/rankwatch-job?var-job_id=1%22%26x" in page.links


def odd(text: str) -> NodeDocument:
    """Return a document with this text in every name, id and error."""
    rank = Rank(
        job_id=text, rank=text, state=text, local_rank=text, user=text, ended=RankEnd(NOW, text, text),
        unhealthy=(text,),
    )  # fmt: skip
    job = JobView(job_id=text, name=text, user=text, sentence=text, states={text: 1})
    exporter = ExporterView(name=text, state=text, why=text)
    return document([rank], [exporter], jobs=(job,), notes=(text,), configuration=Configuration(text, text))


@given(st.text(alphabet=st.characters(codec=None)) | st.sampled_from(["<script>", '"><img src=x>', "&lt;", "</style>"]))
def test_hostile_text_makes_no_markup(text: str) -> None:
    """No text of a job makes a tag, and every page can be encoded."""
    html = front_page(odd(f"x{text}"))  # a prefix, since the page marks words such as down
    html.encode()
    assert Page(html).tags == Page(front_page(odd("x"))).tags


def test_rows_and_cells_are_bounded() -> None:
    """Rows above MAX_ROWS, of users in turn, are counted and not shown; text above MAX_CELL_CHARACTERS is cut."""
    ranks = [Rank(job_id="1", rank=str(i), state="dead", user="eve") for i in range(MAX_ROWS)]
    last = Rank(job_id="z" * (MAX_CELL_CHARACTERS + 1), rank="9" * 30, state="unresponsive")
    html = front_page(document([*ranks, last]))
    assert len(Page(html).rows) == 2 + 256 + 1
    assert "Job " + "z" * 127 + "… <small>" in html
    assert "and 1 more" in html
    assert "more ranks</p>" not in front_page(document(ranks))
    assert "and 7 more" in front_page(document(ranks, ranks_left_out=7))
