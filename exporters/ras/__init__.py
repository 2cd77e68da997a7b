"""What ranks of a job report of each other, from NCCL's and RCCL's RAS threads: which ranks of which communicator are
missing. One node of a job asks, seldom; every node hears the events of one RAS thread.

Libraries from 2.29.2 on are asked; older ones can crash of it, and are asked where oldest_version says so. RCCL before
2.29.2 (ROCm up to 7.2) is therefore not asked by default. Its reports are text, which names communicators only while
something is wrong with them: launches and ranks of a healthy job cannot be told.

Needs asyncio.open_connection: RAS answers on a TCP socket, by default of the loopback, and nowhere else.
"""

from exporters.ras.config import RasConfig
from exporters.ras.exporter import SPEC, RasExporter

__all__ = ["SPEC", "RasConfig", "RasExporter"]
