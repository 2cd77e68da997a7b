"""docs/web.md and the document that it describes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import msgspec

from agent.page.ranks_json import MAX_RANKS, Configuration, ExporterView, JobView, NodeDocument, Rank, RankEnd
from agent.ranks.rank.evidence import State, VerdictReason
from agent.ranks.rank.process import RankGpu

_, PAGE = (Path(__file__).parents[2] / "docs/web.md").read_text().split("## What scripts can read")


def test_every_field_is_documented() -> None:
    """The page documents each field of the document, and no other."""
    kinds = (NodeDocument, Configuration, JobView, Rank, RankGpu, RankEnd, ExporterView)
    fields = {field for kind in kinds for field in kind.__struct_fields__}
    named = set(re.findall(r"`([a-z_]+)`", PAGE)) - {"rankwatch_rank_state", "rankwatch_rank_unhealthy", "_seconds"}
    assert named == fields


def test_words_and_bounds_are_those_of_the_agent() -> None:
    """The page has the agent's states, reasons and limit of ranks."""
    assert all(word in PAGE for word in (*get_args(State), *get_args(VerdictReason), f"{MAX_RANKS:,}"))


def test_times_are_in_seconds() -> None:
    """The name of every time, speed and share has its unit."""
    for kind in (NodeDocument, Rank, RankEnd, ExporterView):
        for field in msgspec.structs.fields(kind):
            if field.type in (float, float | None):
                assert field.name.endswith(("_seconds", "_per_second", "_share")), field.name
