"""From the accident to the page, with everything as we ship it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from clusters import ClusterJob
from paging import site, why_no_pages

pytestmark = [pytest.mark.root, pytest.mark.skipif(why_no_pages() is not None, reason=why_no_pages() or "")]

YOUNG = {"page_age_seconds": 0}
"""No test waits for ten minutes until a job is worth a page; all other thresholds are the shipped ones."""


@pytest.mark.timeout(150)
def test_skeleton(tmp_path: Path) -> None:
    """A rank that is killed is one page."""
    with site(tmp_path, 2, YOUNG) as here, ClusterJob(here.cluster, "kill9", here.cluster.nodes, 4) as job:
        here.wait_until_seen(job)
        job.signal_rank(2)
        killed_at = time.time()
        page = here.wait_for_page("kill9", 90.0)
        print(page.time - killed_at, page.text)
        assert page.names == ["RankDead"]
        assert len(here.pages("kill9")) == 1
