"""Runs of madengine on Slurm: progress of each node's task, measured results, and wrong verdicts of madengine."""

from exporters.madengine.exporter import SPEC, MadengineConfig, MadengineExporter

__all__ = ["SPEC", "MadengineConfig", "MadengineExporter"]
