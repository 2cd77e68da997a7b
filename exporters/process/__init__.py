"""Rank processes from /proc: which there are, their state, and, within milliseconds, that and how they left."""

from exporters.process.exporter import SPEC, ProcessConfig, ProcessExporter

__all__ = ["SPEC", "ProcessConfig", "ProcessExporter"]
