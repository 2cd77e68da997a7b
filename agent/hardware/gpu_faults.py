"""What a GPU driver's error means, by gpu_faults.tsv: for whoever reads the driver's numbers or lines. Reads that file.

An error is known by its code (an Xid's number, or a word for what AMD's driver says), and by the unit and the severity
that its line names, as far as there is a line.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import msgspec

Maker: TypeAlias = Literal["nvidia", "amd"]
MAX_WORD = 40
"""Characters of a unit's name, or of a place; the drivers' own are below 30."""
CLEAN_UP = "45"
"""The Xid whose row tells what any error is that says that another one caused it."""
REPEATED = "repeated"
"""The unit under which the table has what a program's error means that comes again under other users' programs."""
RECOVERY_ACTIONS = (
    "none",
    "gpu_reset",
    "node_reboot",
    "drain_p2p",
    "drain_and_reset",
    "recover_imex_domain",
    "bus_reset",
    "system_reboot",
)
"""What NVIDIA's driver may want done about a GPU, in the order of nvml.h's numbers; the units of Xid 154."""
_COLUMNS = ("maker", "code", "unit", "severity", "hurts", "role", "check", "meaning", "action")
_EMPTY = "-"


class Fault(msgspec.Struct, frozen=True):
    """An error of a GPU as it is shown: all words are ours, but for a unit's name.

    ``link``: the number of the NVLink, empty where it is about none. ``hurts``: who is. ``role``: whether it is a
    ``consequence`` of another error. ``action``: what its maker wants done.
    """

    code: str
    unit: str
    link: str
    severity: str
    meaning: str
    hurts: Literal["process", "gpu", "link", "node"]
    role: Literal["root", "consequence"]
    action: str


class Judged(NamedTuple):
    """A fault, and the check of the health ledger that it fails; empty when none."""

    fault: Fault
    check: str


class Told(msgspec.Struct, frozen=True):
    """What a number or a line says: see ``Fault``; ``cause``: the code of the error that it says was before it.

    ``place``: where in the GPU it happened, for the rows that are about a place.
    """

    code: str
    unit: str = ""
    link: str = ""
    severity: str = ""
    cause: str = ""
    place: str = ""


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of the table; ``code`` has one."""

    maker: Maker
    code: str
    unit: str
    severity: Literal["", "fatal", "nonfatal", "failed"]
    hurts: Literal["process", "gpu", "link", "node"]
    role: Literal["root", "consequence"]
    check: str
    meaning: str
    action: str


_UNKNOWN = _Row("nvidia", "", "", "", "gpu", "root", "", "not known to this version", "see the vendor's list")


def judge(maker: Maker, told: Told) -> Judged:
    """Say what an error means; one that the table does not have fails no check."""
    row = _row(maker, told)
    if told.cause:
        clean_up = _row("nvidia", Told(CLEAN_UP))
        meaning, action = f"clean-up after Xid {told.cause}", f"see Xid {told.cause}"
        row = msgspec.structs.replace(clean_up, meaning=meaning, action=action)
    words = {"link": told.link, "unit": told.unit or "GPU", "place": told.place}
    meaning = " ".join(row.meaning.format_map(words).split())
    unit, link = told.unit[:MAX_WORD], told.link
    return Judged(Fault(told.code, unit, link, told.severity, meaning, row.hurts, row.role, row.action), row.check)


def _row(maker: Maker, told: Told) -> _Row:
    """The row that fits best: of the unit (or of the one that it is a part of) and severity, then of less."""
    table = read_table()
    units = (told.unit, told.unit.partition("/")[0], "")
    for key in [*((unit, told.severity) for unit in units), (told.unit, ""), ("", "")]:
        row = table.get((maker, told.code, *key))
        if row is not None:
            return row
    return _UNKNOWN


@cache
def read_table() -> dict[tuple[str, str, str, str], _Row]:
    """The rows by maker, code, unit and severity. Blocking at the first call: make that where it may be."""
    found: dict[tuple[str, str, str, str], _Row] = {}
    for line in Path(__file__).with_suffix(".tsv").read_text().splitlines():
        if line.startswith("#"):
            continue
        values = ("" if value == _EMPTY else value for value in line.split("\t"))
        row = dict(zip(_COLUMNS, values, strict=True))
        for code in row["code"].split(","):
            each = msgspec.convert({**row, "code": code}, _Row)
            found[each.maker, each.code, each.unit, each.severity] = each
    return found
