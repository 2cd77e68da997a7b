"""Panels of coloured cells: ranks or nodes now, states over time, values over time."""

from collections.abc import Mapping

from grafana_foundation_sdk.builders import common, dashboard as builders, stat, statetimeline, statushistory
from grafana_foundation_sdk.models import common as common_models, dashboard as models

from grafana.panels import OWN_JOB, Query, Size, Steps, board_link, dress, mapping, targets
from grafana.queries import Value
from grafana.tables import convert, sort


def grid(
    title: str,
    description: str,
    query: Query,
    *,
    size: Size,
    states: Mapping[str, Value],
    limit: int,
    label: str = "rank",
    link: builders.DashboardLink | None = None,
    nothing: str = "no ranks",
) -> stat.Panel:
    """Return a panel with a coloured cell for each ``label``, ranks in numeric order, nodes in alphabetic order.

    ``link``: target of a click; by default the Rank dashboard.
    """
    order = [sort(label)] if label != "rank" else [convert("rank", "number"), sort("rank"), convert("rank", "string")]
    panel = (
        stat.Panel()
        .reduce_options(common.ReduceDataOptions().values(True).limit(limit).fields(""))
        .text_mode(common_models.BigValueTextMode.NAME)
        .graph_mode(common_models.BigValueGraphMode.NONE)
        .color_mode(common_models.BigValueColorMode.BACKGROUND_SOLID)
        .justify_mode(common_models.BigValueJustifyMode.CENTER)
        .override_by_name("Value", [models.DynamicConfigValue("mappings", mapping(states))])  # hide the ranks' numbers
        .no_value(nothing)
        .data_links([link or board_link("Rank", "rank", "__data.fields.rank", OWN_JOB)])
        .transformations(order)
    )
    dress(panel, title, description, "none", size)
    return panel.targets(targets([query], instant=True, as_table=True))


def timeline(
    title: str, description: str, query: Query, *, size: Size, states: Mapping[str, Value]
) -> statetimeline.Panel:
    """Return a panel with a bar for each series, coloured by state."""
    legend = common.VizLegendOptions().show_legend(True).placement(common_models.LegendPlacement.BOTTOM)
    panel = (
        statetimeline.Panel()
        .mappings(mapping(states))
        .color_scheme(builders.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
        .merge_values(True)
        .show_value(common_models.VisibilityMode.AUTO)
        .row_height(0.9)
        .line_width(0)
        .legend(legend.display_mode(common_models.LegendDisplayMode.LIST))
    )
    dress(panel, title, description, "none", size)
    return panel.targets(targets([query]))


def heat(
    title: str, description: str, *queries: Query, unit: str, size: Size, steps: Steps, nothing: str
) -> statushistory.Panel:
    """Return a panel with a row of cells for each series, coloured by ``steps`` over time."""
    legend = common.VizLegendOptions().show_legend(False).placement(common_models.LegendPlacement.BOTTOM)
    panel = (
        statushistory.Panel()
        .thresholds(steps.build())
        .color_scheme(builders.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
        .show_value(common_models.VisibilityMode.NEVER)
        .row_height(0.95)
        .col_width(1)
        .line_width(0)
        .fill_opacity(85)
        .legend(legend.display_mode(common_models.LegendDisplayMode.LIST))
        .tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.SINGLE))
        .no_value(nothing)
    )
    dress(panel, title, description, unit, size)
    return panel.targets(targets(queries))
