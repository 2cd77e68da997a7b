"""Evidence: bundles of this node's data from the time when a rank died or hung, on the node's own disk.

Triggers: a rank on this node is dead, unresponsive, silent for longer than ever before, or on failed hardware; RAS
reports that a job stands still; root requests a bundle (`rankwatch evidence take`). The exporter does not query the
job: the data come from the kernel and from the agent.
"""

from exporters.evidence.config import EvidenceConfig
from exporters.evidence.exporter import SPEC, EvidenceExporter

__all__ = ["SPEC", "EvidenceConfig", "EvidenceExporter"]
