"""GPUs and NICs of this node, and their health.

Gpu, Nic: one device. HardwareSource: who found it. Checks, CheckState, Levels: health checks with hysteresis.
Subject, NODE: what a check is about. fault_table, gpu_faults: what error codes mean; Told: a code as a driver reports
it; Judged, Fault: its meaning; FaultSeen, FaultsByPci: faults by device. gpu_families: metric families of all GPU
exporters.
"""

from agent.hardware import fault_table, gpu_families, gpu_faults
from agent.hardware.fault_table import FaultsByPci, FaultSeen
from agent.hardware.gpu_faults import Fault, Judged, Told
from agent.hardware.inventory import Gpu, HardwareSource, Nic
from agent.hardware.ledger import NODE, Checks, CheckState, Levels, Subject, SubjectKind
