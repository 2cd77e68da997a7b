"""Storage: probes of the paths that jobs need, free space for their dumps, and Lustre's own health check.

A file system that hangs blocks its callers. Therefore the probes run in a helper process, each in its own thread.
"""

from exporters.storage.exporter import SPEC, StorageConfig, StorageExporter

__all__ = ["SPEC", "StorageConfig", "StorageExporter"]
