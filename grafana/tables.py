"""Tables with links to jobs, nodes, ranks and runbooks."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_uppercase
from typing import NamedTuple

from grafana_foundation_sdk.builders import common, dashboard as builders, table
from grafana_foundation_sdk.models import common as common_models, dashboard as models

from grafana.panels import NONE_KNOWN, RUNBOOKS, Query, Size, dress, rank_link, targets

WIDTHS = {"comm": 150, "comm_name": 260, "comm_rank": 100, "description": 320, "gpu": 70, "rank": 80}
"""Widths in pixels of columns with short or long names; the others share the rest."""
TIME_WIDTH = 180
"""Width of a column of times, in pixels."""


class Column(NamedTuple):
    """A further column of a table: its name, its query, its unit."""

    name: str
    query: Query
    unit: str = "none"


def job_link(job: str) -> builders.DashboardLink:
    """Return a link to the Job dashboard for the column ``job`` of the panel's data."""
    keep = "${datasource:queryparam}&${cluster:queryparam}&${__url_time_range}"
    return builders.DashboardLink("Job").url(f"/d/rankwatch-job?{keep}&var-job_id=${{__data.fields.{job}}}")


def node_link(node: str) -> builders.DashboardLink:
    """Return a link to the Node dashboard for the column ``node`` of the panel's data."""
    keep = "${datasource:queryparam}&${cluster:queryparam}&${__url_time_range}"
    return builders.DashboardLink("Node").url(f"/d/rankwatch-node?{keep}&var-node=${{__data.fields.{node}}}")


def runbook_link(alert: str) -> builders.DashboardLink:
    """Return a link to the runbook of the alert in the column ``alert`` of the panel's data."""
    return builders.DashboardLink("Runbook").url(f"{RUNBOOKS}#${{__data.fields.{alert}}}").target_blank(True)


LINKS = {"alertname": runbook_link, "job_id": job_link, "node": node_link}
"""Link of a table's cells, by column."""


def rows(
    title: str,
    description: str,
    query: Query,
    *,
    columns: Sequence[str],
    value: str = "",
    unit: str = "none",
    more: Sequence[Column] = (),
    size: Size,
    sort_by: str,
    descending: bool = False,
    links_to_rank: bool = False,
    nothing: str = NONE_KNOWN,
) -> table.Panel:
    """Return a table of the labels ``columns``, then of the value under the name ``value`` (empty: hidden).

    ``more``: values of other queries, joined by their labels. Jobs, nodes and alerts are links. ``nothing``: the text
    of an empty table.
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
    # Convert only labels that every row has: a missing one would become 0.
    numeric = {"comm_rank", "rank"} if links_to_rank else {"comm_rank"}
    numbers = [convert(name, "number") for name in columns if name in numeric]
    panel = (
        table.Panel()
        .transformations([*merge, *numbers, organize])
        .sort_by([common.TableSortByFieldState().display_name(sort_by).desc(descending)])
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
    if links_to_rank:
        of_row = ("var-job_id=${__data.fields.job_id}",) if "job_id" in columns else ()
        link = rank_link("__data.fields.rank", *of_row).build()
        panel = panel.override_by_name("rank", [models.DynamicConfigValue("links", [link])])
    for name, leads in LINKS.items():
        if name in columns:
            panel = panel.override_by_name(name, [models.DynamicConfigValue("links", [leads(name).build()])])
    dress(panel, title, description, "none", size)
    return panel.targets(targets([query, *(column.query for column in more)], instant=True, as_table=True))


def convert(field: str, kind: str) -> models.DataTransformerConfig:
    """Return the transformation of a column to another type."""
    conversion = {"targetField": field, "destinationType": kind}
    return models.DataTransformerConfig(id_val="convertFieldType", options={"conversions": [conversion], "fields": {}})


def sort(field: str) -> models.DataTransformerConfig:
    """Return the transformation that sorts rows by a column."""
    return models.DataTransformerConfig(id_val="sortBy", options={"fields": {}, "sort": [{"field": field}]})
