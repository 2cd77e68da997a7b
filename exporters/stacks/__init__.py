"""Stacks: where the Python code of a hanging job's ranks is, read from outside by py-spy. Off unless it is switched on.

While ranks of a job here complete nothing for longer than ever, each rank's main thread is looked at once in ten
minutes, without stopping it. A rank whose code is elsewhere than that of most others may be the one they wait for.

Needs subprocess: py-spy is a program, which root installs; it is run in a helper process.
"""

from exporters.stacks.exporter import SPEC, StacksConfig, StacksExporter

__all__ = ["SPEC", "StacksConfig", "StacksExporter"]
