"""Stacks: the calls of the Python code in a hanging job's ranks, read from outside by py-spy. Off by default.

While ranks of a job on this node complete nothing for longer than ever before, py-spy reads each rank's threads at most
once in ten minutes, without stopping them. If one rank runs other code than most ranks, most may wait for it.

Needs subprocess: py-spy is a program, which root installs; a helper process runs it.
"""

from exporters.stacks.exporter import SPEC, StacksConfig, StacksExporter

__all__ = ["SPEC", "StacksConfig", "StacksExporter"]
