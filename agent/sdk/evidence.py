"""Bundles of evidence about dead ranks.

EvidenceBoard: parts of bundles, from exporters. Wanted: the request for a bundle. Offers: an exporter's writer to the
board. Offered: a part of a bundle. folder: the directory of bundles. summary: the summary of a bundle.
"""

from agent.evidence import folder, summary
from agent.evidence.board import EvidenceBoard, Offered, Offers, Wanted
