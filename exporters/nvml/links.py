"""The NVLinks of a GPU over time: which links should be up, and which have repeated errors.

Pure except for its own state. A link that was never up since boot is not a fault: boards connect fewer links than the
GPU has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import msgspec

from agent.sdk.hardware import CheckState
from exporters.nvml.judge import Windows
from exporters.nvml.reading import Link

ERROR_KINDS = ("replay", "recovery", "crc", "receive", "phy_retry")
MAX_COUNT = 2**62
"""A greater error count of one link is not plausible."""


class LinksView(msgspec.Struct, frozen=True):
    """The links as rendered. ``up``: by link number, for links with a known state that were up before.

    ``errors``: errors on all links, by kind. ``flagged``: by link number, the share of the last looks with new errors.
    """

    up: dict[int, bool] = {}
    errors: dict[str, int] = {}
    flagged: dict[int, float] = {}


class NvLinks:
    """The links of one GPU. ``expected``: the numbers of the links that were up before.

    The error sums never fall: after a link restarts its counter, or does not answer for some time, only new errors are
    added.
    """

    def __init__(self, expected: Collection[int] = ()) -> None:
        self.expected = set(expected)
        self._errors: Counter[str] = Counter()
        self._counted: dict[tuple[int, str], int] = {}
        self._windows: Windows[int] = Windows()
        self._before: Mapping[int, Mapping[str, int]] = {}

    def look(self, links: Collection[Link]) -> LinksView:
        """Add a look and return the view of the links."""
        self.expected |= {link.number for link in links if link.up}
        errors = {link.number: _plausible(link.errors) for link in links}
        for number, now in errors.items():
            before = self._before.get(number)
            if before is not None and now:
                self._windows.add(number, any(value > before.get(kind, value) for kind, value in now.items()))
            for kind, value in now.items():
                counted = self._counted.get((number, kind), 0)
                self._errors[kind] += value - counted if value >= counted else value
                self._counted[number, kind] = value
        self._before = errors
        up = {link.number: link.up for link in links if link.up is not None and link.number in self.expected}
        ratios = {number: self._windows.ratio(number) for number in errors}
        flagged = {number: ratio for number, ratio in ratios.items() if ratio is not None}
        return LinksView(up, dict(self._errors), flagged)

    def forget_errors(self) -> None:
        """Drop the windows after a reset of the GPU: earlier errors flag no later look."""
        self._windows = Windows()
        self._before = {}

    def checks(self, view: LinksView) -> dict[str, CheckState]:
        """Return the state of each check that has data."""
        states: dict[str, CheckState] = {}
        if view.up:
            states["nvlink_down"] = CheckState.of(all(view.up.values()))
        if view.flagged:
            levels = self._windows.levels()
            states["nvlink_errors"] = CheckState.of(all(levels[number] is CheckState.OK for number in view.flagged))
        return states


def _plausible(errors: Mapping[str, int]) -> dict[str, int]:
    return {kind: value for kind, value in errors.items() if kind in ERROR_KINDS and 0 <= value <= MAX_COUNT}
