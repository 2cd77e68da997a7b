"""What every exporter is made of.

Exporter: the five calls that the agent makes. Spec: name, configuration, families and intervals, read before it
starts. Context: what the agent lends to one run of an exporter, and takes back when it ends. NoData: raised when the
source is not there. LeaseEnded: raised by every write after that. ExporterConfig: the base of a section of the
configuration. Roots: where /proc, /sys and others are mounted. SysfsExporter: the base of an exporter that reads
small files. OwnThread: a thread for calls that block. Clock, Logger. Guard: logs an exception and counts it.
StateSection: a part of the checkpoint; SavedCount, SavedSeconds, saved_sum are its bounded numbers, MAX_SECTION_BYTES
its limit. Outputs: command output read with a limit.
"""

from agent.core.checkpoint import MAX_SECTION_BYTES, SavedCount, SavedSeconds, StateSection, saved_sum
from agent.core.clock import Clock
from agent.core.leased import LeaseEnded
from agent.core.log import Guard, Logger
from agent.core.threads import OwnThread
from agent.export.bases import SysfsExporter
from agent.export.exporter import Context, Exporter, ExporterConfig, NoData, Roots, Spec
from agent.system.outputs import Outputs
