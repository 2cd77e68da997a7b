"""GPUs and NICs of this node, and their health.

Gpu, Nic: a device. HardwareSource: an exporter's writer of devices. Checks, CheckState, Levels: an exporter's writer of
check results. Subject, NODE: the hardware of a check. fault_table, gpu_faults: meanings of error codes; DriverReport: a
driver's report of an error; Judged, Fault: the meaning of an error; TimedFault, FaultsByPci: errors by device.
gpu_families: metric families of all GPU exporters.
"""

from agent.hardware import fault_table, gpu_families, gpu_faults
from agent.hardware.fault_table import FaultsByPci, TimedFault
from agent.hardware.gpu_faults import DriverReport, Fault, Judged
from agent.hardware.inventory import Gpu, HardwareSource, Nic
from agent.hardware.ledger import NODE, Checks, CheckState, Levels, Subject, SubjectKind
