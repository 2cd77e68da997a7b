"""Tables with links to jobs, nodes, ranks and runbooks."""

from collections.abc import Sequence
from string import ascii_uppercase
from typing import NamedTuple

from grafana_foundation_sdk.builders import common, dashboard as builders, table
from grafana_foundation_sdk.models import common as common_models, dashboard as models

from grafana.panels import NONE_KNOWN, OWN_CLUSTER, OWN_JOB, RUNBOOKS, THIRD, Query, Size, board_link, dress, targets

WIDTHS = {"comm": 150, "comm_name": 260, "comm_rank": 100, "description": 320, "gpu": 70, "rank": 80}
"""Widths in pixels of columns with short or long names; other columns share the rest."""
TIME_WIDTH = 180
"""Width of a column of times, in pixels."""


class Column(NamedTuple):
    """A further column of a table: its name, its query, its unit."""

    name: str
    query: Query
    unit: str = "none"


RUNBOOK = builders.DashboardLink("Runbook").url(f"{RUNBOOKS}#${{__data.fields.alertname}}").target_blank(True)


def rows(
    title: str,
    description: str,
    query: Query,
    *,
    columns: Sequence[str],
    value: str = "",
    unit: str = "none",
    more: Sequence[Column] = (),
    size: Size = THIRD,
    sort_by: str = "",
    descending: bool = False,
    links_to_rank: bool = False,
    nothing: str = NONE_KNOWN,
) -> table.Panel:
    """Return a table of the labels ``columns``, then of the value under the name ``value`` (empty: hidden).

    ``more``: values of other queries, joined by their labels. Jobs, nodes and alerts are links. ``sort_by``: the column
    that sorts the rows; by default the value, the greatest first, or the first column. ``nothing``: the text of an
    empty table.
    """
    values = {
        f"Value #{letter}" if more else "Value": name
        for letter, name in zip(ascii_uppercase, (value, *(column.name for column in more)), strict=False)
    }
    hidden = {"Time": True, **{name: True for name, shown in values.items() if not shown}}
    order = {name: index for index, name in enumerate((*columns, *values))}
    organize = models.DataTransformerConfig(
        id_val="organize", options={"excludeByName": hidden, "indexByName": order, "renameByName": values}
    )
    merge = [models.DataTransformerConfig(id_val="merge", options={})] if more else []
    # Convert only labels that every row has: a missing label would become 0.
    numeric = {"comm_rank", "rank"} if links_to_rank else {"comm_rank"}
    numbers = [convert(name, "number") for name in columns if name in numeric]
    order_by, is_falling = (sort_by, descending) if sort_by else (value or columns[0], bool(value))
    panel = (
        table.Panel()
        .transformations([*merge, *numbers, organize])
        .sort_by([common.TableSortByFieldState().display_name(order_by).desc(is_falling)])
        .show_header(True)
        .align(common_models.FieldTextAlignment.LEFT)
        .no_value(nothing)
        .override_by_regexp("/.*/", [models.DynamicConfigValue("noValue", "")])  # a cell without a value stays empty
    )
    for name in columns:
        if name in WIDTHS:
            panel = panel.override_by_name(name, [models.DynamicConfigValue("custom.width", WIDTHS[name])])
    for name, of_unit in ((value, unit), *((column.name, column.unit) for column in more)):
        properties = [models.DynamicConfigValue("unit", of_unit)]
        if of_unit == "dateTimeAsIso":
            properties.append(models.DynamicConfigValue("custom.width", TIME_WIDTH))
        if name:
            panel = panel.override_by_name(name, properties)
    for name, link in _links(columns, to_rank=links_to_rank).items():
        panel = panel.override_by_name(name, [models.DynamicConfigValue("links", [link.build()])])
    dress(panel, title, description, "none", size)
    return panel.targets(targets([query, *(column.query for column in more)], instant=True, as_table=True))


def _links(columns: Sequence[str], *, to_rank: bool) -> dict[str, builders.DashboardLink]:
    """Return the links of a table's cells by column; a row's own job and cluster come before the dashboard's."""
    cluster = "var-cluster=${__data.fields.cluster}" if "cluster" in columns else OWN_CLUSTER
    job = "var-job_id=${__data.fields.job_id}" if "job_id" in columns else OWN_JOB
    links = {
        "alertname": RUNBOOK,
        "job_id": board_link("Job", "job_id", "__data.fields.job_id", cluster=cluster),
        "node": board_link("Node", "node", "__data.fields.node", cluster=cluster),
    }
    if to_rank:
        links["rank"] = board_link("Rank", "rank", "__data.fields.rank", job, cluster)
    return {name: link for name, link in links.items() if name in columns}


def convert(field: str, kind: str) -> models.DataTransformerConfig:
    """Return the transformation of a column to another type."""
    conversion = {"targetField": field, "destinationType": kind}
    return models.DataTransformerConfig(id_val="convertFieldType", options={"conversions": [conversion], "fields": {}})


def sort(field: str) -> models.DataTransformerConfig:
    """Return the transformation that sorts rows by a column."""
    return models.DataTransformerConfig(id_val="sortBy", options={"fields": {}, "sort": [{"field": field}]})
