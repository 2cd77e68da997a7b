"""Storage: probes of the paths that jobs depend on, room where they dump, and Lustre's word on its health.

A file system that hangs hangs whoever asks it: the probes run in a helper process, each in a thread of its own.
"""

from exporters.storage.exporter import SPEC, StorageConfig, StorageExporter

__all__ = ["SPEC", "StorageConfig", "StorageExporter"]
