"""Marks: what users say of their own jobs (`rankwatch mark`), for the time lines of dashboards.

A socket that every user of the node may open; the kernel says who did. Users mark the jobs that they have ranks of here
and no other; root marks all.

Needs socket: to make the one that it listens on, and to ask who is at the other end.
Needs asyncio.start_unix_server: it is the one that listens.
"""

from exporters.marks.exporter import SPEC, MarksConfig, MarksExporter

__all__ = ["SPEC", "MarksConfig", "MarksExporter"]
