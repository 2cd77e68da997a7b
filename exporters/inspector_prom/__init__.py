"""Inspector's Prometheus mode: mean bandwidths and times per rank, from the files that the plugin writes for a scraper.

A file names a GPU but no rank. It counts for the rank whose process holds it open for writing, as long as it does.
"""

from exporters.inspector_prom.exporter import SPEC, InspectorPromConfig, InspectorPromExporter

__all__ = ["SPEC", "InspectorPromConfig", "InspectorPromExporter"]
