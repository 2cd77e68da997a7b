"""What an exporter exports.

Family: one metric's name, type, labels, help and cost. COUNT, SUM: how its values add up. Metric: a family with its
rows. Rows: rows collected under the series limit. comm_label, label_fields, clean_label: text that may become a label
value. Admission: asks for room for a new series before its counter starts. FairBudget, Group: equal shares of a
limit.
"""

from agent.core.identity import comm_label, label_fields
from agent.core.metrics import COUNT, SUM, Family, Metric, Rows
from agent.core.series_budget import Admission, FairBudget, Group
from agent.ranks.rank.environment import clean_label
