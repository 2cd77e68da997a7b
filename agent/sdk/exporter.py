"""What every exporter is made of.

Exporter: the five calls that the agent makes. Spec: name, configuration, families and intervals, read before it
starts. Context: what the agent lends to one run of an exporter, and takes back when it ends. NoData: raised when the
source is not there. ExporterConfig: the base of a section of the configuration. Roots: where /proc, /sys and others
are mounted. SysfsExporter: the base of an exporter that reads small files. OwnThread: a thread for calls that block.
Clock, Logger. Guard: logs an exception and counts it. StateSection: a part of the checkpoint; SavedCount,
SavedSeconds, saved_sum are its bounded numbers, MAX_SECTION_BYTES its limit. Outputs: command output read with a
limit.
"""

from agent.core.checkpoint import (
    MAX_SECTION_BYTES as MAX_SECTION_BYTES,
    SavedCount as SavedCount,
    SavedSeconds as SavedSeconds,
    StateSection as StateSection,
    saved_sum as saved_sum,
)
from agent.core.clock import Clock as Clock
from agent.core.log import Guard as Guard, Logger as Logger
from agent.core.threads import OwnThread as OwnThread
from agent.export.bases import SysfsExporter as SysfsExporter
from agent.export.exporter import (
    Context as Context,
    Exporter as Exporter,
    ExporterConfig as ExporterConfig,
    NoData as NoData,
    Roots as Roots,
    Spec as Spec,
)
from agent.system.outputs import Outputs as Outputs
