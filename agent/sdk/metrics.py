"""Metrics of an exporter.

Family: a metric's name, type, labels, help and cost. COUNT, SUM: marks of the series `_count` and `_sum` of a
histogram. Metric: a family with its series. Rows: a family under construction. declared: the families of a module.
comm_label, label_fields, clean_label: safe label values. Admission: reserves series before their counters start.
FairBudget, Group: equal shares of a limit.
"""

from agent.core.identity import comm_label, label_fields
from agent.core.metrics import COUNT, SUM, Family, Metric, Rows, declared
from agent.core.series_budget import Admission, FairBudget, Group
from agent.ranks.rank.environment import clean_label
