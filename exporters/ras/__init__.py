"""Exports the ranks that are missing from a job's communicators, as RAS threads of NCCL and RCCL report them. One or
two nodes of a job send rare queries; every node reads the events of one RAS thread.

The exporter queries libraries from 2.29.2 on. Older libraries can crash on a query, so it queries them only if
oldest_version allows it. By default it therefore does not query RCCL before 2.29.2 (ROCm up to 7.2). Reports of these
RCCL versions are text and name only communicators in trouble: launches and ranks of a healthy job are unknown.

Needs asyncio.open_connection: RAS answers only on a TCP socket, by default on the loopback address.
"""

from exporters.ras.config import RasConfig
from exporters.ras.exporter import SPEC, RasExporter

__all__ = ["SPEC", "RasConfig", "RasExporter"]
