"""Bundles of evidence on dead ranks.

EvidenceBoard: where exporters offer their part. Wanted: a bundle that waits for parts; Offers, Offered: the parts.
folder, summary: where bundles lie and what their summary says.
"""

from agent.evidence import folder, summary
from agent.evidence.board import EvidenceBoard, Offered, Offers, Wanted
