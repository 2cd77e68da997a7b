"""Marks: users' notes on their own jobs (`rankwatch mark`), for the time lines of dashboards.

Every user of the node may open the socket, and the kernel identifies the user. Users may mark only jobs in which they
have ranks on this node; root may mark all jobs.

Needs socket: to make its socket, and to identify the peer. Needs asyncio.start_unix_server: to listen.
"""

from exporters.marks.exporter import SPEC, MarksConfig, MarksExporter

__all__ = ["SPEC", "MarksConfig", "MarksExporter"]
