"""The metric families of the exporter, and how a snapshot becomes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from agent.sdk.metrics import Family, Metric, Rows
from exporters.rdma.resources import RESOURCES, Counts
from exporters.rdma.switches import Place
from exporters.rdma.tree import WORD_BYTES, Port, RdmaDevice

_PORT = ("device", "port")
_EACH = "1 per port"


def _gauge(name: str, text: str, cost: str = _EACH, *labels: str) -> Family:
    return Family(name, "gauge", text, (*_PORT, *labels), cost)


def _counter(name: str, text: str, cost: str = _EACH, *labels: str) -> Family:
    return Family(name, "counter", text, (*_PORT, *labels), cost)


DEVICE_INFO = Family(
    "rankwatch_rdma_device_info",
    "gauge",
    "Facts about an RDMA device; always 1. driver_version: of the module, where it is not the kernel's own (as that of "
    "OFED).",
    ("device", "driver", "driver_version", "firmware", "board", "pci"),
    "1 per device",
)
PORT_INFO = _gauge(
    "rankwatch_rdma_port_info",
    "Facts about a port; always 1. link_layer is InfiniBand, Ethernet or Unspecified (EFA); netdev that of Ethernet.",
    _EACH,
    "link_layer",
    "netdev",
)
PORT_STATE = _gauge(
    "rankwatch_rdma_port_state_id", "The port's logical state: 1 DOWN, 2 INIT, 3 ARMED, 4 ACTIVE, 5 ACTIVE_DEFER."
)
PORT_RATE = _gauge("rankwatch_rdma_port_rate_bytes_per_second", "The rate that the port has negotiated.")
PORT_BEST_RATE = _gauge(
    "rankwatch_rdma_port_rate_best_bytes_per_second",
    "The highest rate of the port since the boot, while it was active; absent while it has that rate, and of virtual "
    "devices.",
    "1 per port that is slower than it was, or down",
)
RECEIVED = _counter(
    "rankwatch_rdma_received_bytes_total",
    "Data received by the port (port_rcv_data; of EFA rx_bytes, of ionic rx_rdma_ucast_bytes).",
)
SENT = _counter(
    "rankwatch_rdma_transmitted_bytes_total",
    "Data sent by the port (port_xmit_data; of EFA tx_bytes, of ionic tx_rdma_ucast_bytes).",
)
LINK_DOWNED = _counter("rankwatch_rdma_link_downed_total", "Times that the link failed to recover and went down.")
COUNTER = _counter(
    "rankwatch_rdma_port_counter_total",
    "Other counters of the port, by their names in the folder counters of sysfs: those of faults and congestion, or "
    "every one where the configuration asks for all_counters.",
    "6 per port, or about 20",
    "counter",
)
HARDWARE_COUNTER = _counter(
    "rankwatch_rdma_hardware_counter_total",
    "Other counters of the device's driver for the port, by their names in the folder hw_counters of sysfs: those of "
    "what was sent again and of congestion, or every one where the configuration asks for all_counters.",
    "3 to 5 per port, or about 20 to 60",
    "counter",
)
SWITCH_INFO = _gauge(
    "rankwatch_rdma_switch_info",
    "Always 1: the switch, and its port, that the port is connected to, by the files that the configuration names: the "
    "site's own, else what lldpd has heard.",
    "1 per port in the file, if there is one",
    "switch",
    "switch_port",
)
FAMILIES = (
    DEVICE_INFO,
    PORT_INFO,
    PORT_STATE,
    PORT_RATE,
    PORT_BEST_RATE,
    RECEIVED,
    SENT,
    LINK_DOWNED,
    COUNTER,
    HARDWARE_COUNTER,
    RESOURCES,
    SWITCH_INFO,
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
"""Prefixes of names that are no counters: objects in use, and the most that were (bnxt_re: active_qps)."""


class RdmaSnapshot(msgspec.Struct, frozen=True):
    """``all_counters``: every counter, not only those of faults and congestion.

    ``best_rates``: by device and port, of ports that are slower than they were. ``switches``: a switch and its port by
    device and port; ``neighbours``: the same by network device, for ports that ``switches`` does not have.
    ``resources``: objects in use.
    """

    devices: tuple[RdmaDevice, ...]
    best_rates: Mapping[Place, float] = {}
    all_counters: bool = False
    switches: Mapping[Place, Place] = {}
    neighbours: Mapping[str, Place] = {}
    resources: Counts = {}


def render(snapshot: RdmaSnapshot) -> Iterable[Metric]:
    """The families of a snapshot."""
    rows = {family: family.rows() for family in FAMILIES}
    for device in snapshot.devices:
        for kind, count in snapshot.resources.get(device.name, {}).items():
            rows[RESOURCES].add((device.name, kind), count)
        facts = (device.driver, device.driver_version, device.firmware, device.board, device.pci)
        rows[DEVICE_INFO].add((device.name, *facts), 1)
        for port in device.ports:
            labels = (device.name, str(port.number))
            rows[PORT_INFO].add((*labels, port.link_layer, port.netdev), 1)
            if port.state is not None:
                rows[PORT_STATE].add(labels, port.state)
            if port.rate is not None:
                rows[PORT_RATE].add(labels, port.rate)
            if connected := snapshot.switches.get(labels) or snapshot.neighbours.get(port.netdev):
                rows[SWITCH_INFO].add((*labels, *connected), 1)
            _counters(rows, labels, port, snapshot.all_counters, _NAMED_OF_DRIVER.get(device.driver, {}))
    for labels, rate in snapshot.best_rates.items():
        rows[PORT_BEST_RATE].add(labels, rate)
    return [row.metric for row in rows.values()]


def _counters(
    rows: Mapping[Family, Rows], labels: Place, port: Port, is_every: bool, of_driver: Mapping[str, Family]
) -> None:
    for counter, value in port.counters.items():
        if named := _NAMED.get(counter):
            rows[named[0]].add(labels, value * named[1])
        elif is_every or counter in TELLING:
            rows[COUNTER].add((*labels, counter), value)
    for counter, value in port.hardware_counters.items():
        if counter in of_driver:
            rows[of_driver[counter]].add(labels, value)
        elif counter in TELLING_OF_DRIVER or (is_every and not counter.startswith(_VALUES)):
            rows[HARDWARE_COUNTER].add((*labels, counter), value)
