"""The kernel's interfaces.

ProcFS: /proc; OpenFile, Stat: results of ProcFS. sysfs: small files; pci_address, pci_path: PCI devices. netlink,
ethtool: network devices. expand_hosts: a scheduler's host list as names.
"""

from agent.core.hosts import expand_hosts
from agent.system import ethtool, netlink, sysfs
from agent.system.process_lines import Stat
from agent.system.procfs import OpenFile, ProcFS
from agent.system.sysfs import pci_address, pci_path
