"""The last errors of each GPU in the log, places of a GPU where programs of several users fail, and details of Xids.

After its number an Xid's line can have a unit, severity, NVLink, previous error, place in the GPU, and process name. A
user chooses the process name (up to 15 bytes). So a pattern either skips the longest possible name, or needs a text
longer than a name: no name can pass as the driver's text. The Xid of a line without a match still counts. Pure."""

import re
from typing import Annotated

import msgspec

from agent.sdk.exporter import SavedSeconds
from agent.sdk.hardware import DriverReport, Fault, TimedFault, fault_table, gpu_faults

MAX_GPUS = 64
MAX_PLACES = 256
"""Places of GPUs where a program failed. At this limit, a new place evicts the place with the oldest failure."""
MAX_USERS = 8  # Limit of users per place. More users would add no information.
REPEAT_USERS = 3
"""When the programs of this many users fail at one place of a GPU, the place is the cause.

Two users are too few: both programs may have an error in their first block, which mostly runs at the same place.
"""
REPEAT_SECONDS = 3 * 86400.0

_Users = dict[int, SavedSeconds]


class GpuErrors(msgspec.Struct):
    """Part of the checkpoint.

    ``faults``: by PCI address. ``places``: by address, code and place, the time of each user's last failure there.
    """

    faults: dict[str, Annotated[list[TimedFault], msgspec.Meta(max_length=fault_table.MAX_FAULTS)]] = {}
    places: dict[tuple[str, str, str], _Users] = {}

    def note(self, pci: str, fault: Fault, seconds: float) -> None:
        """Add an error that occurred at ``seconds`` (epoch)."""
        if pci in self.faults or len(self.faults) < MAX_GPUS:
            self.faults[pci] = fault_table.add(self.faults.get(pci, ()), fault, seconds)

    def repeats(self, pci: str, error: DriverReport, user: int, seconds: float) -> DriverReport | None:
        """Add the place where a user's program failed, at ``seconds`` (epoch).

        Return the error with the unit REPEATED if programs of REPEAT_USERS users failed there, else None.
        """
        if not error.place or user < 0:
            return None
        key = (pci, error.code, error.place)
        users = {uid: at for uid, at in self.places.pop(key, {}).items() if seconds - at <= REPEAT_SECONDS}
        if user in users or len(users) < MAX_USERS:
            users[user] = seconds
        while len(self.places) >= MAX_PLACES:
            del self.places[next(iter(self.places))]
        self.places[key] = users  # the newest place comes last
        if len(users) < REPEAT_USERS:
            return None
        return msgspec.structs.replace(error, unit=gpu_faults.REPEATED)

    def forget(self, now_seconds: float) -> None:
        """Drop the faults that are too old to be shown."""
        recent = {pci: fault_table.recent(faults, now_seconds) for pci, faults in self.faults.items()}
        self.faults = {pci: faults for pci, faults in recent.items() if faults}


_COMM = r"(?:\\x[0-9a-f]{2}|[^\\]){1,15}"
_PROCESS = rf"(?:, pid='?(?:\d{{1,10}}|<unknown>)'?)?(?:, name='?{_COMM}'?)?, "
"""Matches the longest name first: a name can have commas, and ends at the last comma before the driver's text."""
_NVLINK5 = re.compile(
    rf"{_PROCESS}(?P<unit>[A-Z][A-Z0-9_/]{{1,38}})\s+(?P<severity>Fatal|Nonfatal)\s+XC\d{{1,2}} i\d{{1,2}} "
    r"(?:Link (?P<link>-?\d{1,3}) \()?"
)
_NVLINK = re.compile(rf"{_PROCESS}NVLink: fatal error detected on link (?P<link>\d{{1,3}})\(")
_CAUSED = re.compile(rf"{_PROCESS}Ch [0-9a-f]{{1,8}} caused by previous Xid (?P<cause>\d{{1,4}})\Z")
_ACTION = re.compile(
    rf"{_PROCESS}GPU recovery action changed from 0x[0-9a-f]{{1,8}} \([\w ]{{1,40}}\) "
    r"to 0x(?P<action>[0-9a-f]{1,8}) \("
)
_PLACES = {
    "13": re.compile(
        rf"{_PROCESS}Graphics SM (?:Warp|Global) Exception on \((?P<place>GPC \d{{1,3}}, TPC \d{{1,3}}), SM"
    ),
    "31": re.compile(
        rf"{_PROCESS}Ch [0-9a-f]{{1,8}}, intr [0-9a-f]{{1,8}}\. MMU Fault: ENGINE GRAPHICS "
        r"(?P<place>(?:GPC ?\d{1,3} )?GPCCLIENT_T\d{1,3}_\d{1,3}) faulted @ "
    ),
}
_NVLINK5_CODES = frozenset(map(str, range(144, 151)))


def read_xid(code: str, details: str) -> DriverReport | None:
    """Return the error in a line with the Xid ``code`` and the text ``details`` after it; None if there is no error.

    Only Xid 154 can report no error: then the driver no longer requests an action.
    """
    if caused := _CAUSED.match(details):
        return DriverReport(code, cause=caused["cause"])
    if code in _NVLINK5_CODES:
        return _nvlink5(code, details)
    if code == "154":
        return _recovery(details)
    if code == "74" and (match := _NVLINK.match(details)):
        return DriverReport(code, link=_number(match["link"]), severity="fatal")
    if code in _PLACES and (match := _PLACES[code].match(details)):
        return DriverReport(code, place=match["place"])
    return DriverReport(code)


def _nvlink5(code: str, details: str) -> DriverReport:
    match = _NVLINK5.match(details)
    if match is None:
        return DriverReport(code)
    severity = match["severity"].lower()
    return DriverReport(code, unit=match["unit"], link=_number(match["link"] or ""), severity=severity)


def _recovery(details: str) -> DriverReport | None:
    match = _ACTION.match(details)
    actions = gpu_faults.RECOVERY_ACTIONS
    number = int(match["action"], 16) if match else len(actions)
    if number == 0:
        return None
    return DriverReport("154", unit=actions[number] if number < len(actions) else "")


def _number(text: str) -> str:
    """Return a link's number without leading zeros; empty for -1, which means no link."""
    return str(int(text)) if text.isdigit() else ""
