"""Switches and their ports by LLDP, from the output of `lldpcli -f json0 show neighbors`. Pure.

This format (lldpcli(8)) is the same for one interface and for many: every member is a list. The device at the other
end of a cable chooses the texts. Therefore their length is limited.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from exporters.rdma.switches import MAX_NAME, Place

MAX_LLDP_BYTES = 1024 * 1024
"""Room for about 1,000 neighbours."""
MAX_INTERFACES = 512
_NAMED_PORTS = frozenset({"ifname", "local"})
"""Kinds of port ids that people use as the port's name. For other ids (addresses) the description is used."""


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


class _Heard(msgspec.Struct):
    lldp: list[_Lldp]


_DECODER = msgspec.json.Decoder(_Heard)


def read_neighbours(raw: bytes) -> dict[str, Place]:
    """Return switch and switch port by network device; the first neighbour of a device counts.

    Raise ValueError for text in another format.
    """
    try:
        heard = _DECODER.decode(raw)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    neighbours: dict[str, Place] = {}
    for interface in (each for part in heard.lldp for each in part.interface):
        name, switch = interface.name, _switch(interface.chassis)
        if not (name and switch and interface.via == "LLDP"):
            continue
        if name not in neighbours and len(neighbours) < MAX_INTERFACES:
            neighbours[name] = (switch, _port(interface.port))
    return neighbours


def _switch(chassis: Sequence[_Chassis]) -> str:
    return next((text for each in chassis for text in (_text(each.name), _text(each.id)) if text), "")


def _port(ports: Sequence[_Port]) -> str:
    for each in ports:
        named = [one for one in each.id if one.type in _NAMED_PORTS]
        if text := _text(named) or _text(each.descr) or _text(each.id):
            return text
    return ""


def _text(values: Sequence[_Value]) -> str:
    text = values[0].value.strip()[:MAX_NAME] if values else ""
    return text if text.isprintable() else ""
