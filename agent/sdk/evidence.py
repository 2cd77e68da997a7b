"""Bundles of evidence about dead ranks.

EvidenceBoard: the exporters' offers. Wanted: the request for a bundle. Offers: an exporter's writer. Offered: a part.
folder, summary: directory of bundles, and their summaries.
"""

from agent.evidence import folder, summary
from agent.evidence.board import EvidenceBoard, Offered, Offers, Wanted
