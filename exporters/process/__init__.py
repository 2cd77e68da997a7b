"""Finds rank processes in /proc, and reports their state and, within milliseconds, their exit and its cause."""

from exporters.process.exporter import SPEC, ProcessConfig, ProcessExporter

__all__ = ["SPEC", "ProcessConfig", "ProcessExporter"]
