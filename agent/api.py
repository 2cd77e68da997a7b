"""All that an exporter may import: the seam between what a source means and how the agent runs it."""

from __future__ import annotations

from agent.core.c_numbers import atoi, strtoll
from agent.core.checkpoint import SavedCount, SavedSeconds, StateSection, saved_sum
from agent.core.clock import Clock
from agent.core.config_base import ExporterConfig
from agent.core.fair_budget import FairBudget, Group
from agent.core.guard import Guard
from agent.core.hosts import hosts as expand_hosts
from agent.core.identity import (
    UNKNOWN_RANK,
    Membership,
    ProcessKey,
    RankLabel,
    WriterKey,
    comm_label,
    label_fields,
)
from agent.core.log import Logger
from agent.core.metrics import COUNT, SUM, Family, Metric, Rows
from agent.core.series_budget import Admission
from agent.core.threads import OwnThread
from agent.evidence import folder as evidence_folder
from agent.evidence import summary as evidence_summary
from agent.evidence.board import EvidenceBoard, Offered, Offers, Wanted
from agent.export.exporter import Context, Exporter, NoData, Roots, Spec
from agent.export.job_texts import JobLines, JobTexts, PathPatterns, SavedPositions
from agent.export.sysfs_exporter import SysfsExporter
from agent.hardware import fault_table, gpu_families, gpu_faults
from agent.hardware.fault_table import FaultsByPci, FaultSeen
from agent.hardware.gpu_faults import Fault, Judged, Told
from agent.hardware.inventory import Gpu, HardwareSource, Nic
from agent.hardware.ledger import NODE, Checks, CheckState, Levels, Subject
from agent.helper.client import Helper, HelperError, HelperFailed, HelperHung, HelperSpec, LendHelper
from agent.ranks import mark as mark_socket
from agent.ranks.job_users import JobUsers
from agent.ranks.mark import MarkAnswer, MarkRequest
from agent.ranks.rank.environment import clean as clean_label
from agent.ranks.rank.evidence import RasSilence
from agent.ranks.rank.exit_status import ExitStatus
from agent.ranks.rank.facts import ProcessFacts
from agent.ranks.rank.job_end import JobEnd
from agent.ranks.rank.owner import Owner, OwnerKind, Proof
from agent.ranks.rank.pause import Pauses
from agent.ranks.rank.process import RankProcess
from agent.ranks.snapshot import RankSnapshot, RankView
from agent.ranks.speeds import RankSpeed
from agent.ranks.table import RankTable
from agent.ranks.writers import is_record_file
from agent.system import ethtool, netlink, sysfs
from agent.system.outputs import Outputs
from agent.system.pci import pci_address, pci_path
from agent.system.process_lines import Stat
from agent.system.procfs import OpenFile, ProcFS
from agent.system.whole_file import FilePlace, read_changed
from agent.tail.file import FollowedFile, Position
from agent.tail.follower import Follower
from agent.tail.patterns import compiled as compiled_path_pattern
from agent.tail.shares import FairTable, Holdings, Share, ShareOf, share_of
from agent.tail.text_files import TextFiles, TextLines

__all__ = [
    "COUNT",
    "NODE",
    "SUM",
    "UNKNOWN_RANK",
    "Admission",
    "CheckState",
    "Checks",
    "Clock",
    "Context",
    "EvidenceBoard",
    "ExitStatus",
    "Exporter",
    "ExporterConfig",
    "FairBudget",
    "FairTable",
    "Family",
    "Fault",
    "FaultSeen",
    "FaultsByPci",
    "FilePlace",
    "FollowedFile",
    "Follower",
    "Gpu",
    "Group",
    "Guard",
    "HardwareSource",
    "Helper",
    "HelperError",
    "HelperFailed",
    "HelperHung",
    "HelperSpec",
    "Holdings",
    "JobEnd",
    "JobLines",
    "JobTexts",
    "JobUsers",
    "Judged",
    "LendHelper",
    "Levels",
    "Logger",
    "MarkAnswer",
    "MarkRequest",
    "Membership",
    "Metric",
    "Nic",
    "NoData",
    "Offered",
    "Offers",
    "OpenFile",
    "Outputs",
    "OwnThread",
    "Owner",
    "OwnerKind",
    "PathPatterns",
    "Pauses",
    "Position",
    "ProcFS",
    "ProcessFacts",
    "ProcessKey",
    "Proof",
    "RankLabel",
    "RankProcess",
    "RankSnapshot",
    "RankSpeed",
    "RankTable",
    "RankView",
    "RasSilence",
    "Roots",
    "Rows",
    "SavedCount",
    "SavedPositions",
    "SavedSeconds",
    "Share",
    "ShareOf",
    "Spec",
    "Stat",
    "StateSection",
    "Subject",
    "SysfsExporter",
    "TextFiles",
    "TextLines",
    "Told",
    "Wanted",
    "WriterKey",
    "atoi",
    "clean_label",
    "comm_label",
    "compiled_path_pattern",
    "ethtool",
    "evidence_folder",
    "evidence_summary",
    "expand_hosts",
    "fault_table",
    "gpu_families",
    "gpu_faults",
    "is_record_file",
    "label_fields",
    "mark_socket",
    "netlink",
    "pci_address",
    "pci_path",
    "read_changed",
    "saved_sum",
    "share_of",
    "strtoll",
    "sysfs",
]
