"""The switch and switch port of each port of the node, from files that the site provides.

One file is CSV with a header line: the columns device, port, switch and switch_port. A file for many nodes also has the
column node. Lines of other nodes are ignored. The other file is the output of `lldpcli -f json0 show neighbors`. This
format (lldpcli(8)) is the same for one interface and for many: every member is a list. The device at the other end of a
cable chooses the texts. Therefore their length is limited.
"""

import csv
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

MAX_BYTES = 16 * 1024 * 1024  # Room for about 200,000 lines
MAX_ROWS = 512  # Limit of lines for this node
MAX_NAME = 128
_COLUMNS = {"device", "port", "switch", "switch_port"}

PortName = tuple[str, str]  # A device and one of its ports, or a switch and one of its ports
MAX_LLDP_BYTES = 1024 * 1024  # Room for about 1,000 neighbours
MAX_INTERFACES = 512
_NAMED_PORTS = frozenset({"ifname", "local"})
"""Kinds of port ids that people use as the port's name. For other ids (addresses) the description is used."""


class Wiring(NamedTuple):
    """The switch and switch port by device and port, and the numbers of invalid lines (from 1)."""

    switches: Mapping[PortName, PortName]
    bad_lines: tuple[int, ...] = ()


def read_wiring(raw: bytes, hostname: str) -> Wiring:
    """Return the wiring of this node from the file's content. Raise ValueError for a missing column or invalid CSV."""
    try:
        return _read(raw.decode("utf-8-sig"), hostname)
    except csv.Error as error:
        raise ValueError(str(error)) from None


def _read(text: str, hostname: str) -> Wiring:
    rows = csv.DictReader(text.splitlines(), skipinitialspace=True)
    if missing := _COLUMNS - set(rows.fieldnames or ()):
        raise ValueError(f"columns are missing: {', '.join(sorted(missing))}")
    switches: dict[PortName, PortName] = {}
    bad = []
    for row in rows:
        if row.get("node") and _short(row["node"]) != _short(hostname):
            continue
        device, port, switch, switch_port = (row[name] or "" for name in ("device", "port", "switch", "switch_port"))
        if all(map(_is_name, (device, port, switch))) and len(switches) < MAX_ROWS:
            switches[device, port] = (switch, switch_port[:MAX_NAME])
        else:
            bad.append(rows.line_num)
    return Wiring(switches, tuple(bad))


def _short(hostname: str) -> str:
    return hostname.partition(".")[0]


def _is_name(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME and text.isprintable()


class _Value(msgspec.Struct):
    value: str = ""
    type: str = ""


class _Chassis(msgspec.Struct):
    id: list[_Value] = []
    name: list[_Value] = []


class _Port(msgspec.Struct):
    id: list[_Value] = []
    descr: list[_Value] = []


class _Interface(msgspec.Struct):
    name: str
    via: str = ""
    chassis: list[_Chassis] = []
    port: list[_Port] = []


class _Lldp(msgspec.Struct):
    interface: list[_Interface] = []


class _Neighbours(msgspec.Struct):
    lldp: list[_Lldp]


_DECODER = msgspec.json.Decoder(_Neighbours)


def read_neighbours(raw: bytes) -> dict[str, PortName]:
    """Return switch and switch port by network device; a device's first neighbour is used.

    Raise ValueError for text in another format.
    """
    try:
        neighbours_file = _DECODER.decode(raw)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    neighbours: dict[str, PortName] = {}
    for interface in (interface for lldp in neighbours_file.lldp for interface in lldp.interface):
        name, switch = interface.name, _switch(interface.chassis)
        if not (name and switch and interface.via == "LLDP"):
            continue
        if name not in neighbours and len(neighbours) < MAX_INTERFACES:
            neighbours[name] = (switch, _port(interface.port))
    return neighbours


def _switch(chassis: Sequence[_Chassis]) -> str:
    return next(
        (text for chassis_item in chassis for text in (_text(chassis_item.name), _text(chassis_item.id)) if text), ""
    )


def _port(ports: Sequence[_Port]) -> str:
    for port in ports:
        names = [port_id for port_id in port.id if port_id.type in _NAMED_PORTS]
        if text := _text(names) or _text(port.descr) or _text(port.id):
            return text
    return ""


def _text(values: Sequence[_Value]) -> str:
    text = values[0].value.strip()[:MAX_NAME] if values else ""
    return text if text.isprintable() else ""
