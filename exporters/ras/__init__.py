"""Which ranks a job's communicators miss, as the ranks report each other through NCCL's and RCCL's RAS threads.
One node of a job queries, seldom; every node reads the events of one RAS thread.

The exporter queries libraries from 2.29.2 on. Older ones can crash on a query: it queries them only if oldest_version
allows it. By default it therefore does not query RCCL before 2.29.2 (ROCm up to 7.2). Their reports are text and name
communicators only in trouble: launches and ranks of a healthy job are unknown.

Needs asyncio.open_connection: RAS answers on a TCP socket, by default of the loopback, and nowhere else.
"""

from exporters.ras.config import RasConfig
from exporters.ras.exporter import SPEC, RasExporter

__all__ = ["SPEC", "RasConfig", "RasExporter"]
