"""What ranks of a job report of each other, from NCCL's and RCCL's RAS threads: which ranks of which communicator are
missing. One node of a job asks, seldom; every node hears the events of one RAS thread.

Needs asyncio.open_connection: RAS answers on a TCP socket, by default of the loopback, and nowhere else.
"""

from exporters.ras.config import RasConfig
from exporters.ras.exporter import SPEC, RasExporter

__all__ = ["SPEC", "RasConfig", "RasExporter"]
