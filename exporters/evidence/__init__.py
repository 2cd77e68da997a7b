"""Evidence: a bundle of what this node knew when a rank died or hung, on the node's own disk.

Triggers are local: a rank here is dead or unresponsive, completes nothing for longer than ever, or root asks for one
(`rankwatch evidence take`); where the site says so, Prometheus is asked for open pages. Nothing is asked of a job: what
is read is the kernel's, and the agent's own.
"""

from exporters.evidence.config import EvidenceConfig
from exporters.evidence.exporter import SPEC, EvidenceExporter

__all__ = ["SPEC", "EvidenceConfig", "EvidenceExporter"]
