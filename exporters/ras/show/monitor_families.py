"""The metric families of MONITOR's events. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from agent.sdk.metrics import Family, Metric
from exporters.ras.asking.monitor import Monitored
from exporters.ras.protocol.client import Stage
from exporters.ras.protocol.events import EVENTS, OTHER, Unread

MONITOR_UP = Family(
    "rankwatch_ras_monitor_up",
    "gauge",
    "1 while a RAS thread at the address tells its events, 0 while none does; absent where the agent listens to none.",
    ("endpoint",),
    "1 per address that is listened to",
)
MONITOR_STREAMS = Family(
    "rankwatch_ras_monitor_streams_total",
    "counter",
    "Event streams that were opened: the first at an address, and one after each that ended.",
    aggregate="sum",
)
MONITOR_ERRORS = Family(
    "rankwatch_ras_monitor_errors_total",
    "counter",
    "Streams of events that were not had, by where they failed: connect, handshake, command (the library has no "
    "MONITOR) or size; or that ended: cut (the process that told them did) or deadline (it does not answer any more).",
    ("stage",),
    "1 per stage seen, at most 6",
    "sum",
)
MONITOR_UNREAD = Family(
    "rankwatch_ras_monitor_unread_total",
    "counter",
    "What streams of events hold and no event is read from: a long_line, a long_object, what is unreadable, or cut by "
    "the end of the stream.",
    ("reason",),
    "1 per reason seen, at most 4",
    "sum",
)
EVENTS_HEARD = Family(
    "rankwatch_ras_events_total",
    "counter",
    "What one RAS thread of the node learned of its peers, by the library's own names, and other: PEER_NEW and "
    "PEER_DEAD are learned by every process of a job, all else by a process's neighbours in the RAS network alone.",
    ("event",),
    "13 per node",
    "sum",
)
FAMILIES = (MONITOR_UP, MONITOR_STREAMS, MONITOR_ERRORS, MONITOR_UNREAD, EVENTS_HEARD)
STREAM_STAGES: tuple[Stage, ...] = ("connect", "handshake", "command", "size", "cut", "deadline")
UNREAD_REASONS: tuple[Unread, ...] = ("long_line", "long_object", "unreadable", "cut")


def render(heard: Monitored) -> Iterable[Metric]:
    """Return the families of MONITOR's events."""
    up = MONITOR_UP.rows()
    for endpoint, value in heard.up.items():
        up.add((endpoint,), float(value))
    yield up.metric
    yield MONITOR_STREAMS.single(heard.streams)
    errors = MONITOR_ERRORS.rows()
    for stage in filter(heard.errors.get, STREAM_STAGES):
        errors.add((stage,), heard.errors[stage])
    yield errors.metric
    unread = MONITOR_UNREAD.rows()
    for reason in filter(heard.unread.get, UNREAD_REASONS):
        unread.add((reason,), heard.unread[reason])
    yield unread.metric
    events = EVENTS_HEARD.rows()
    for event in (*EVENTS, OTHER):
        events.add((event,), heard.events[event])
    yield events.metric
