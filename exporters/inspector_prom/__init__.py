"""Inspector's Prometheus mode: mean bandwidths and times per rank, from the files that the plugin writes for a scraper.

A file names a GPU but no rank. If a rank's process holds a file open for writing, the file's values belong to this
rank.
"""

from exporters.inspector_prom.exporter import SPEC

__all__ = ["SPEC"]
