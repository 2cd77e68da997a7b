"""The metric families of the exporter, rendered from a snapshot, and the kernel's counts of RDMA objects in use.

The kernel itself keeps these counts (RDMA_NLDEV_CMD_RES_GET of rdma/rdma_netlink.h), so reading them is cheap. A list
of queue pairs would need one firmware command for each pair on mlx5.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from agent.sdk.metrics import Family, Metric, Rows
from agent.sdk.system import netlink
from exporters.rdma.switches import PortName
from exporters.rdma.tree import WORD_BYTES, Port, RdmaDevice

KINDS = frozenset({"pd", "cq", "qp", "cm_id", "mr", "srq"})
"""Protection domains, completion queues, queue pairs, cm connections, memory regions, shared receive queues."""
MAX_COUNT = 2**53
Counts = dict[str, dict[str, int]]
"""Number of objects by device and kind."""
_GET_SUMMARIES = 5 << 10 | 9  # of the client NLDEV
_DEVICE_NAME, _SUMMARY, _ENTRY, _ENTRY_NAME, _ENTRY_COUNT = 2, 15, 16, 17, 18
_COUNT = struct.Struct("=Q")
_PORT = ("device", "port")
_EACH = "1 per port"
# fmt: off
DEVICE_INFO = Family("rankwatch_rdma_device_info", "gauge",
    "Facts about an RDMA device; always 1. driver_version: the module's version, for a driver from outside the kernel "
    "(such as OFED), else empty.",
    ("device", "driver", "driver_version", "firmware", "board", "pci"), "1 per device")
RESOURCES = Family("rankwatch_rdma_resources", "gauge",
    "Objects of all processes in use on an RDMA device, by kind: qp (queue pairs), mr (memory regions), cq, pd, cm_id, "
    "srq. Only if all_counters is set.",
    ("device", "kind"), "6 per device, if all_counters is set")
# fmt: on
PORT_FAULTS = frozenset(
    {
        *("link_downed", "symbol_error", "local_link_integrity_errors", "link_error_recovery"),
        *("port_rcv_errors", "port_xmit_discards", "port_xmit_wait"),
    }
)
"""The port's counters that show faults and congestion."""
DRIVER_FAULTS = frozenset(
    {
        *("local_ack_timeout_err", "packet_seq_err", "rnr_nak_retry_err"),  # mlx5
        *("to_retransmits", "seq_err_naks_rcvd"),  # bnxt_re
        *("retrans_timeout_events", "unresponsive_remote_events", "impaired_remote_conn_events"),  # efa
        *("retrans_pkts", "tx_pkts"),  # efa
        *("tx_rdma_ack_timeout", "req_rx_pkt_seq_err", "req_rx_rnr_retry_err"),  # ionic
        *("tx_rdma_retx_pkts", "tx_rdma_ucast_pkts"),  # ionic
        *("rp_cnp_handled", "rx_cnp_pkts"),  # mlx5, bnxt_re: congestion notifications
    }
)
"""The drivers' counters of retransmissions and congestion, and of all packets if the retransmitted share is needed."""
_VALUES = ("active_", "watermark_")
"""Name prefixes of values that are not counters: objects in use, and their highest number (bnxt_re: active_qps)."""


def summary(answer: bytes) -> tuple[str, dict[str, int]]:
    """Return a device's name, and its number of objects by kind, from one message of the answer."""
    parts = dict(netlink.attributes(answer))
    return _text(parts.get(_DEVICE_NAME, b"")), dict(_entries(parts.get(_SUMMARY, b"")))


def _entries(raw: bytes) -> Iterator[tuple[str, int]]:
    for kind, entry in netlink.attributes(raw):
        parts = dict(netlink.attributes(entry)) if kind == _ENTRY else {}
        name, count = _text(parts.get(_ENTRY_NAME, b"")), parts.get(_ENTRY_COUNT, b"")
        if name in KINDS and len(count) == _COUNT.size and (number := _COUNT.unpack(count)[0]) <= MAX_COUNT:
            yield name, number


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode(errors="replace")


def read_resources(open_channel: Callable[[int], netlink.Netlink] = netlink.open_channel) -> Counts:
    """Return the number of objects in use, by device and kind. Raise OSError if the netlink query fails."""
    with open_channel(netlink.RDMA) as kernel:
        return dict(map(summary, kernel.dump(_GET_SUMMARIES)))


def _gauge(name: str, text: str, cost: str = _EACH, *labels: str) -> Family:
    return Family(name, "gauge", text, (*_PORT, *labels), cost)


def _counter(name: str, text: str, cost: str = _EACH, *labels: str) -> Family:
    return Family(name, "counter", text, (*_PORT, *labels), cost)


# fmt: off
PORT_INFO = _gauge("rankwatch_rdma_port_info",
    "Facts about a port; always 1. link_layer is InfiniBand, Ethernet or Unspecified (EFA). netdev: the network device "
    "of an Ethernet port.",
    _EACH, "link_layer", "netdev")
PORT_STATE = _gauge("rankwatch_rdma_port_state_id",
    "The port's logical state: 1 DOWN, 2 INIT, 3 ARMED, 4 ACTIVE, 5 ACTIVE_DEFER.")
PORT_RATE = _gauge("rankwatch_rdma_port_rate_bytes_per_second", "The rate that the port has negotiated.")
DATA = _counter("rankwatch_rdma_data_bytes_total",
    "Data that the port received (port_rcv_data; EFA: rx_bytes; ionic: rx_rdma_ucast_bytes) and sent (port_xmit_data; "
    "EFA: tx_bytes; ionic: tx_rdma_ucast_bytes). direction: receive or transmit.",
    "2 per port", "direction")
COUNTER = _counter("rankwatch_rdma_port_counter_total",
    "Other counters of the port, by their names in the sysfs folder counters: only faults and congestion, or all "
    "counters if all_counters is set. link_downed: times that the link failed to recover and went down.",
    "7 per port, or about 20", "counter")
HARDWARE_COUNTER = _counter("rankwatch_rdma_hardware_counter_total",
    "Other counters that the driver has for the port, by their names in the sysfs folder hw_counters: only "
    "retransmissions and congestion, or all counters if all_counters is set.",
    "3 to 5 per port, or about 20 to 60", "counter")
SWITCH_INFO = _gauge("rankwatch_rdma_switch_info",
    "Always 1: the switch and the switch port at the other end of the port's cable. Source: the file switch_ports of "
    "the configuration, else lldp_neighbors.",
    "1 per port in the file, if there is one", "switch", "switch_port")
# fmt: on
FAMILIES = tuple(family for family in globals().values() if isinstance(family, Family))
_DIRECTIONS = {"port_rcv_data": "receive", "port_xmit_data": "transmit"}
_DIRECTIONS_OF_DRIVER = {
    "efa": {"rx_bytes": "receive", "tx_bytes": "transmit"},
    "ionic": {"rx_rdma_ucast_bytes": "receive", "tx_rdma_ucast_bytes": "transmit"},
}
"""Drivers that answer no MADs lack the folder counters: their byte counts are among the hardware counters."""


class RdmaSnapshot(msgspec.Struct, frozen=True):
    """``all_counters``: render every counter, not only those of faults and congestion.

    ``switches``: switch and switch port by device and port. ``neighbours``: switch and switch port by network device,
    for ports that ``switches`` does not have. ``resources``: number of RDMA objects in use.
    """

    devices: tuple[RdmaDevice, ...]
    all_counters: bool = False
    switches: Mapping[PortName, PortName] = {}
    neighbours: Mapping[str, PortName] = {}
    resources: Counts = {}


def render(snapshot: RdmaSnapshot) -> Iterable[Metric]:
    """Return the metric families of a snapshot."""
    rows = {family: family.rows() for family in FAMILIES}
    for device in snapshot.devices:
        facts = (device.driver, device.driver_version, device.firmware, device.board, device.pci)
        rows[DEVICE_INFO].add((device.name, *facts), 1)
        for kind, count in snapshot.resources.get(device.name, {}).items():
            rows[RESOURCES].add((device.name, kind), count)
        for port in device.ports:
            labels = (device.name, str(port.number))
            rows[PORT_INFO].add((*labels, port.link_layer, port.netdev), 1)
            if port.state is not None:
                rows[PORT_STATE].add(labels, port.state)
            if port.rate is not None:
                rows[PORT_RATE].add(labels, port.rate)
            if connected := snapshot.switches.get(labels) or snapshot.neighbours.get(port.netdev):
                rows[SWITCH_INFO].add((*labels, *connected), 1)
            _counters(rows, labels, port, snapshot.all_counters, _DIRECTIONS_OF_DRIVER.get(device.driver, {}))
    return [row.metric for row in rows.values()]


def _counters(
    rows: Mapping[Family, Rows], labels: PortName, port: Port, all_counters: bool, of_driver: Mapping[str, str]
) -> None:
    for counter, value in port.counters.items():
        if direction := _DIRECTIONS.get(counter):
            rows[DATA].add((*labels, direction), value * WORD_BYTES)
        elif all_counters or counter in PORT_FAULTS:
            rows[COUNTER].add((*labels, counter), value)
    for counter, value in port.hardware_counters.items():
        if counter in of_driver:
            rows[DATA].add((*labels, of_driver[counter]), value)
        elif counter in DRIVER_FAULTS or (all_counters and not counter.startswith(_VALUES)):
            rows[HARDWARE_COUNTER].add((*labels, counter), value)
