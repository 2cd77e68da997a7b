"""Building blocks of every exporter.

Exporter: the five methods that the agent calls. Spec: name, configuration, families and intervals, read before the
start. Context: resources lent to one exporter run. NoData: raise it if the source is absent. HARDWARE_RIGHTS: a remedy
in notes. LeaseEnded: every write raises it after the run. ExporterConfig: base of a section of the configuration.
Roots: paths such as /proc and /sys. ShownExporter: base of an exporter that exports its last result. SysfsExporter:
base of an exporter that reads small files. OwnThread: a thread for blocking calls. Clock, Logger. FailureCounter: logs
and counts an exception. StateSection: a section of the checkpoint; SavedCount, SavedSeconds, saved_sum: numbers in a
section; MAX_SECTION_BYTES: limit of a section. write_own_file: replaces a file atomically. Outputs: the files that
processes write.
"""

from agent.core.checkpoint import MAX_SECTION_BYTES, SavedCount, SavedSeconds, StateSection, saved_sum, write_own_file
from agent.core.clock import Clock
from agent.core.leased import LeaseEnded
from agent.core.log import FailureCounter, Logger
from agent.core.threads import OwnThread
from agent.export.bases import ShownExporter, SysfsExporter
from agent.export.exporter import HARDWARE_RIGHTS, Context, Exporter, ExporterConfig, NoData, Roots, Spec
from agent.system.outputs import Outputs
