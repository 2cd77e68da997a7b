"""madengine's runs on Slurm: how far each node's task came, what was measured, and where its verdict is wrong."""

from exporters.madengine.exporter import SPEC, MadengineConfig, MadengineExporter

__all__ = ["SPEC", "MadengineConfig", "MadengineExporter"]
