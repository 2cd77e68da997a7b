"""The metric families of the exporter, and how a snapshot becomes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from agent.sdk.metrics import Family, Metric, Rows
from exporters.rdma.baseline import Baseline
from exporters.rdma.resources import RESOURCES, Counts
from exporters.rdma.switches import Place
from exporters.rdma.tree import WORD_BYTES, Port, RdmaDevice

LINK_UP = 5
"""A port's physical state while its link is up (ib_verbs.h)."""
_PORT = ("device", "port")
_EACH = "1 per port"

DEVICE_INFO = Family(
    "rankwatch_rdma_device_info",
    "gauge",
    "Facts about an RDMA device; always 1. driver_version: of the module, where it is not the kernel's own (as that of "
    "OFED).",
    ("device", "driver", "driver_version", "firmware", "board", "pci"),
    "1 per device",
)
DEVICE_UP = Family(
    "rankwatch_rdma_device_present",
    "gauge",
    "0 while a device of a physical PCI function that was there since the boot is missing; those that are there have "
    "rankwatch_rdma_device_info.",
    ("device",),
    "1 per missing device",
)
VANISHED = Family(
    "rankwatch_rdma_devices_vanished_total",
    "counter",
    "Devices of physical PCI functions that were there at one look and missing at the next.",
)
PORT_INFO = Family(
    "rankwatch_rdma_port_info",
    "gauge",
    "Facts about a port; always 1. link_layer is InfiniBand, Ethernet or Unspecified (EFA); netdev that of Ethernet.",
    (*_PORT, "link_layer", "netdev"),
    _EACH,
)
PORT_STATE = Family(
    "rankwatch_rdma_port_state_id",
    "gauge",
    "The port's logical state: 1 DOWN, 2 INIT, 3 ARMED, 4 ACTIVE, 5 ACTIVE_DEFER.",
    _PORT,
    _EACH,
)
PORT_PHYSICAL_STATE = Family(
    "rankwatch_rdma_port_physical_state_id",
    "gauge",
    "The port's physical state: 1 Sleep, 2 Polling, 3 Disabled, 4 training, 6 error recovery, 7 Phy Test; absent while "
    "it is 5, LinkUp.",
    _PORT,
    "1 per port without a link",
)
PORT_RATE = Family(
    "rankwatch_rdma_port_rate_bytes_per_second", "gauge", "The rate that the port has negotiated.", _PORT, _EACH
)
PORT_BEST_RATE = Family(
    "rankwatch_rdma_port_rate_best_bytes_per_second",
    "gauge",
    "The highest rate of the port since the boot, while it was active; absent while it has that rate, and of virtual "
    "devices.",
    _PORT,
    "1 per port that is slower than it was, or down",
)
RECEIVED = Family(
    "rankwatch_rdma_received_bytes_total",
    "counter",
    "Data received by the port (port_rcv_data; of EFA rx_bytes, of ionic rx_rdma_ucast_bytes).",
    _PORT,
    _EACH,
)
SENT = Family(
    "rankwatch_rdma_transmitted_bytes_total",
    "counter",
    "Data sent by the port (port_xmit_data; of EFA tx_bytes, of ionic tx_rdma_ucast_bytes).",
    _PORT,
    _EACH,
)
LINK_DOWNED = Family(
    "rankwatch_rdma_link_downed_total", "counter", "Times that the link failed to recover and went down.", _PORT, _EACH
)
COUNTER = Family(
    "rankwatch_rdma_port_counter_total",
    "counter",
    "Other counters of the port, by their names in the folder counters of sysfs: those of faults and congestion, or "
    "every one where the configuration asks for all_counters.",
    (*_PORT, "counter"),
    "6 per port, or about 20",
)
HARDWARE_COUNTER = Family(
    "rankwatch_rdma_hardware_counter_total",
    "counter",
    "Other counters of the device's driver for the port, by their names in the folder hw_counters of sysfs: those of "
    "what was sent again and of congestion, or every one where the configuration asks for all_counters.",
    (*_PORT, "counter"),
    "3 to 5 per port, or about 20 to 60",
)
HARDWARE_VALUE = Family(
    "rankwatch_rdma_hardware_value",
    "gauge",
    "What among the driver's counters goes up and down: objects in use and watermarks; only where the configuration "
    "asks for all_counters.",
    (*_PORT, "counter"),
    "0 to 20 per port, if asked for",
)
SWITCH_INFO = Family(
    "rankwatch_rdma_switch_info",
    "gauge",
    "Always 1: the switch, and its port, that the port is connected to, by the files that the configuration names: the "
    "site's own, else what lldpd has heard.",
    (*_PORT, "switch", "switch_port"),
    "1 per port in the file, if there is one",
)
UNREADABLE = Family(
    "rankwatch_rdma_counters_unreadable",
    "gauge",
    "Counters that the driver has and could not give at the last look; absent where it gave all.",
    _PORT,
    "1 per port with such counters",
)
FAMILIES = (
    DEVICE_INFO,
    DEVICE_UP,
    VANISHED,
    PORT_INFO,
    PORT_STATE,
    PORT_PHYSICAL_STATE,
    PORT_RATE,
    PORT_BEST_RATE,
    RECEIVED,
    SENT,
    LINK_DOWNED,
    COUNTER,
    HARDWARE_COUNTER,
    HARDWARE_VALUE,
    RESOURCES,
    SWITCH_INFO,
    UNREADABLE,
)
TELLING = frozenset(
    {
        "symbol_error",
        "local_link_integrity_errors",
        "link_error_recovery",
        "port_rcv_errors",
        "port_xmit_discards",
        "port_xmit_wait",
    }
)
"""The port's counters that tell of faults and congestion."""
TELLING_OF_DRIVER = frozenset(
    {
        *("local_ack_timeout_err", "packet_seq_err", "rnr_nak_retry_err"),  # mlx5
        *("to_retransmits", "seq_err_naks_rcvd"),  # bnxt_re
        *("retrans_timeout_events", "unresponsive_remote_events", "impaired_remote_conn_events"),  # efa
        *("retrans_pkts", "tx_pkts"),  # efa
        *("tx_rdma_ack_timeout", "req_rx_pkt_seq_err", "req_rx_rnr_retry_err"),  # ionic
        *("tx_rdma_retx_pkts", "tx_rdma_ucast_pkts"),  # ionic
        *("rp_cnp_handled", "rx_cnp_pkts"),  # mlx5, bnxt_re: told to slow down
    }
)
"""The drivers' counters of what was sent again, of all packets where its share of them tells, and of congestion."""
_NAMED = {
    "port_rcv_data": (RECEIVED, WORD_BYTES),
    "port_xmit_data": (SENT, WORD_BYTES),
    "link_downed": (LINK_DOWNED, 1),
}
_NAMED_OF_DRIVER = {
    "efa": {"rx_bytes": RECEIVED, "tx_bytes": SENT},
    "ionic": {"rx_rdma_ucast_bytes": RECEIVED, "tx_rdma_ucast_bytes": SENT},
}
"""Drivers that answer no MADs have no folder counters: their bytes are among the hardware counters."""
_VALUES = ("active_", "watermark_")
"""How names begin that tell what is in use, and the most that was (bnxt_re: active_qps, watermark_qps)."""


class RdmaSnapshot(msgspec.Struct, frozen=True):
    """What ``render`` needs. ``all_counters``: every one that there is, not only those that tell of faults.

    ``switches``: a switch and its port by device and port; ``neighbours``: the same by network device, for ports that
    the first does not name. ``resources``: empty unless they are asked for.
    """

    devices: tuple[RdmaDevice, ...]
    baseline: Baseline
    all_counters: bool = False
    switches: Mapping[Place, Place] = {}
    neighbours: Mapping[str, Place] = {}
    resources: Counts = {}


def render(snapshot: RdmaSnapshot) -> Iterable[Metric]:
    """The families of a snapshot."""
    rows = {family.name: family.rows() for family in FAMILIES}
    for expected in snapshot.baseline.functions.values():
        if expected.missing:
            rows[DEVICE_UP.name].add((expected.device,), 0)
    rows[VANISHED.name].add((), snapshot.baseline.vanished)
    for device in snapshot.devices:
        for kind, count in snapshot.resources.get(device.name, {}).items():
            rows[RESOURCES.name].add((device.name, kind), count)
        facts = (device.driver, device.driver_version, device.firmware, device.board, device.pci)
        rows[DEVICE_INFO.name].add((device.name, *facts), 1)
        for port in device.ports:
            place = (device.name, str(port.number))
            _port(rows, place, port)
            if connected := snapshot.switches.get(place) or snapshot.neighbours.get(port.netdev):
                rows[SWITCH_INFO.name].add((*place, *connected), 1)
            _counters(rows, place, port, snapshot.all_counters, _NAMED_OF_DRIVER.get(device.driver, {}))
    rates = {(device.name, port.number): port.rate for device in snapshot.devices for port in device.ports}
    for expected in snapshot.baseline.functions.values():
        for number, best in expected.ports.items():
            if best.rate and best.rate != rates.get((expected.device, number)):
                rows[PORT_BEST_RATE.name].add((expected.device, str(number)), best.rate)
    return [found.metric for found in rows.values()]


def _port(rows: Mapping[str, Rows], place: tuple[str, str], port: Port) -> None:
    rows[PORT_INFO.name].add((*place, port.link_layer, port.netdev), 1)
    if port.state is not None:
        rows[PORT_STATE.name].add(place, port.state)
    if port.physical_state not in (None, LINK_UP):
        rows[PORT_PHYSICAL_STATE.name].add(place, port.physical_state)
    if port.rate is not None:
        rows[PORT_RATE.name].add(place, port.rate)
    if port.unreadable:
        rows[UNREADABLE.name].add(place, port.unreadable)


def _counters(
    rows: Mapping[str, Rows], place: tuple[str, str], port: Port, is_every: bool, of_driver: Mapping[str, Family]
) -> None:
    for counter, value in port.counters.items():
        if named := _NAMED.get(counter):
            rows[named[0].name].add(place, value * named[1])
        elif is_every or counter in TELLING:
            rows[COUNTER.name].add((*place, counter), value)
    for counter, value in port.hardware_counters.items():
        if counter in of_driver:
            rows[of_driver[counter].name].add(place, value)
        elif is_every or counter in TELLING_OF_DRIVER:
            family = HARDWARE_VALUE if counter.startswith(_VALUES) else HARDWARE_COUNTER
            rows[family.name].add((*place, counter), value)
