"""Finds the meaning of a GPU driver's error in gpu_faults.tsv, for exporters that read error numbers or log lines.

An error has a code: an Xid's number, or a word for an error of AMD's driver. If there is a log line, the line can also
name the unit and the severity.
"""

from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import msgspec

Maker: TypeAlias = Literal["nvidia", "amd"]
MAX_WORD = 40  # Characters of the name of a unit or place. The drivers' own names have fewer than 30 characters.
CLEAN_UP = "45"  # The row of this Xid judges every error whose log line names another error as its cause
REPEATED = "repeated"  # The table's unit for an error at one place of the GPU in programs of several users
RECOVERY_ACTIONS = (
    "none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain", "bus_reset",
    "system_reboot",
)  # fmt: skip
"""Actions that NVIDIA's driver can request for a GPU, in the order of nvml.h's numbers; also the units of Xid 154."""
_COLUMNS = ("maker", "code", "unit", "severity", "hurts", "role", "check", "meaning", "action")
_EMPTY = "-"


class Fault(msgspec.Struct, frozen=True):
    """An error of a GPU as shown. All texts are from gpu_faults.tsv, except the unit's name.

    ``link``: the number of the NVLink, empty without one. ``hurts``: what the error affects. ``role``: ``root``, or
    ``consequence`` of another error. ``action``: what the GPU's maker recommends.
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
    """A fault, and the check of the health ledger that the fault fails; empty if it fails no check."""

    fault: Fault
    check: str


class DriverReport(msgspec.Struct, frozen=True):
    """An error as the driver reports it, by number or line; see ``Fault``.

    ``cause``: the code of the error that caused this error. ``place``: where in the GPU the error happened.
    """

    code: str
    unit: str = ""
    link: str = ""
    severity: str = ""
    cause: str = ""
    place: str = ""


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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


def judge(maker: Maker, report: DriverReport) -> Judged:
    """Return the meaning of an error. An error that the table does not have fails no check."""
    row = _row(maker, report)
    if report.cause:
        clean_up = _row("nvidia", DriverReport(CLEAN_UP))
        meaning, action = f"clean-up after Xid {report.cause}", f"see Xid {report.cause}"
        row = msgspec.structs.replace(clean_up, meaning=meaning, action=action)
    words = {"link": report.link, "unit": report.unit or "GPU", "place": report.place}
    meaning = " ".join(row.meaning.format_map(words).split())
    unit, link = report.unit[:MAX_WORD], report.link
    return Judged(Fault(report.code, unit, link, report.severity, meaning, row.hurts, row.role, row.action), row.check)


def _row(maker: Maker, report: DriverReport) -> _Row:
    """Return the row that fits best.

    Rows with the severity come first: for the unit, for the unit that contains this unit, for no unit. Then follow the
    row of the unit without a severity, and the row without unit and severity.
    """
    table = read_table()
    units = (report.unit, report.unit.partition("/")[0], "")
    for key in [*((unit, report.severity) for unit in units), (report.unit, ""), ("", "")]:
        row = table.get((maker, report.code, *key))
        if row is not None:
            return row
    return _UNKNOWN


@cache
def read_table() -> dict[tuple[str, str, str, str], _Row]:
    """Return the rows by maker, code, unit and severity. The first call reads the file: it must run in a thread."""
    rows: dict[tuple[str, str, str, str], _Row] = {}
    for line in Path(__file__).with_suffix(".tsv").read_text().splitlines():
        if line.startswith("#"):
            continue
        values = ("" if value == _EMPTY else value for value in line.split("\t"))
        row = dict(zip(_COLUMNS, values, strict=True))
        for code in row["code"].split(","):
            fault_row = msgspec.convert({**row, "code": code}, _Row)
            rows[fault_row.maker, fault_row.code, fault_row.unit, fault_row.severity] = fault_row
    return rows
