"""The NVLinks of a GPU over time: which should be up, and which keep making errors. Pure but for its own state.

A link that was never up since boot is no fault: boards connect fewer links than the GPU has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import msgspec

from agent.sdk.hardware import CheckState
from agent.sdk.metrics import Family
from exporters.nvml.fields import GPU_LABELS
from exporters.nvml.reading import Link
from exporters.nvml.windows import Windows

ERROR_KINDS = ("replay", "recovery", "crc", "receive", "phy_retry")
MAX_COUNT = 2**62
"""More errors than this on one link is no number of errors."""

LINK_UP = Family(
    "rankwatch_nvlink_up",
    "gauge",
    "0 while the NVLink is down, of those that were up at some time since boot, as a GPU has links that its board does "
    "not connect; 1 while it is up, only where the configuration asks for each_nvlink.",
    (*GPU_LABELS, "link"),
    "1 per NVLink that is down",
)
LINKS_UP = Family(
    "rankwatch_nvlink_links_up",
    "gauge",
    "NVLinks of the GPU that are up.",
    GPU_LABELS,
    "1 per GPU with NVLinks",
)
LINK_ERRORS = Family(
    "rankwatch_nvlink_errors_total",
    "counter",
    "Errors of all NVLinks of the GPU together, without link, or of each where the configuration asks for each_nvlink, "
    "as far as its generation counts them: replay (packets sent again), recovery (the link was "
    "trained again), crc (of a flow control unit), receive (by the receiver), phy_retry (blocks that the physical "
    "layer sent again).",
    (*GPU_LABELS, "link", "kind"),
    "1 to 5 per GPU",
)
LINK_FLAGGED = Family(
    "rankwatch_nvlink_flagged_ratio",
    "gauge",
    "Share of the last 30 looks (5 minutes) in which the NVLink made errors of any kind; more than half is a bad link. "
    "0 only where the configuration asks for each_nvlink.",
    (*GPU_LABELS, "link"),
    "1 per NVLink with errors",
)
FAMILIES = (LINK_UP, LINKS_UP, LINK_ERRORS, LINK_FLAGGED)


class LinkView(msgspec.Struct, frozen=True):
    """One link as rendered; ``up`` None: never up, or the driver did not tell this time."""

    number: int
    up: bool | None
    errors: dict[str, int]
    flagged_ratio: float | None


class NvLinks:
    """The links of one GPU. ``expected``: the numbers of those that were up at some time; ``errors``: of all, by kind.

    ``errors`` never falls: links that begin to count anew, or do not tell for a while, add what is new.
    """

    def __init__(self, expected: Collection[int] = ()) -> None:
        self.expected = set(expected)
        self.errors: Counter[str] = Counter()
        self._counted: dict[tuple[int, str], int] = {}
        self._windows: Windows[int] = Windows()
        self._errors: Mapping[int, Mapping[str, int]] = {}

    def look(self, links: Collection[Link]) -> tuple[LinkView, ...]:
        """Take a look."""
        self.expected |= {link.number for link in links if link.up}
        errors = {link.number: _plausible(link.errors) for link in links}
        for number, now in errors.items():
            before = self._errors.get(number)
            if before is not None and now:
                self._windows.add(number, any(value > before.get(kind, value) for kind, value in now.items()))
        self._errors = errors
        for number, now in errors.items():
            self._add(number, now)
        return tuple(self._view(link, errors[link.number]) for link in links)

    def forget_errors(self) -> None:
        """The GPU was reset: what was counted and flagged before is over."""
        self._windows = Windows()
        self._errors = {}

    def checks(self, links: Collection[LinkView]) -> dict[str, CheckState]:
        """By check: what it found, as far as it is known."""
        found: dict[str, CheckState] = {}
        told = [link.up for link in links if link.up is not None]
        if told:
            found["nvlink_down"] = CheckState.of(all(told))
        flagged = [link.number for link in links if link.flagged_ratio is not None]
        if flagged:
            found["nvlink_errors"] = CheckState.of(all(self._windows.is_well(number) for number in flagged))
        return found

    def _add(self, number: int, errors: Mapping[str, int]) -> None:
        for kind, value in errors.items():
            before = self._counted.get((number, kind), 0)
            self.errors[kind] += value - before if value >= before else value
            self._counted[number, kind] = value

    def _view(self, link: Link, errors: dict[str, int]) -> LinkView:
        up = link.up if link.number in self.expected else None
        return LinkView(link.number, up, errors, self._windows.ratio(link.number))


def _plausible(errors: Mapping[str, int]) -> dict[str, int]:
    return {kind: value for kind, value in errors.items() if kind in ERROR_KINDS and 0 <= value <= MAX_COUNT}
