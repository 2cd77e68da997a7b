"""Evidence: bundles of this node's data from the time when a rank died or hung, on the node's own disk.

Triggers are local: a rank on this node is dead or unresponsive, or completes no operation for longer than ever before,
or root requests a bundle (`rankwatch evidence take`). The job itself is not queried: the data come from the kernel and
from the agent.
"""

from exporters.evidence.config import EvidenceConfig
from exporters.evidence.exporter import SPEC, EvidenceExporter

__all__ = ["SPEC", "EvidenceConfig", "EvidenceExporter"]
