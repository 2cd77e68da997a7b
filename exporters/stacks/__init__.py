"""Stacks: the calls of the Python code in a hanging job's ranks, read from outside by py-spy. Off by default.

While a rank on this node completes no operation for longer than ever before, or RAS reports a stall of the job, py-spy
reads the threads of the job's ranks, each rank at most once in ten minutes, without stopping them. The stacks can show
the rank that most ranks wait for: it runs other code.

Needs subprocess: py-spy is a program, which root installs; a helper process runs it.
"""

from exporters.stacks.exporter import SPEC, StacksConfig, StacksExporter

__all__ = ["SPEC", "StacksConfig", "StacksExporter"]
