"""Bundles of evidence about dead ranks.

EvidenceRegistry: parts of bundles, from exporters. Wanted: the request for a bundle. Offers: an exporter's writer to
the registry. Offered: a part of a bundle. folder: the directory of bundles. summary: the summary of a bundle.
"""

from agent.evidence import folder, summary
from agent.evidence.registry import EvidenceRegistry, Offered, Offers, Wanted
