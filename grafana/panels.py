"""Panels of numbers and of curves, and the settings of all panels. Tables: tables.py. Cells: cells.py."""

from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import NamedTuple

from grafana_foundation_sdk.builders import (
    common,
    dashboard as builders,
    prometheus,
    stat,
    statetimeline,
    statushistory,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import common as common_models, dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from grafana.queries import Value

DATASOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
TABLE_LEGEND_FROM = 12
"""A panel of at least this width lists its series in a table with their last and mean values."""
LEGEND_BESIDE_FROM = 16
"""A panel of at least this width has the table beside the curves, a narrower panel below them."""
COUNTED = frozenset({"cps", "none", "ops", "short"})
"""Units of counts.

The axis of a panel with such a unit reaches at least 1: if all values are 0, it ends at 1, not 100.
"""
NO_RECORDS = "no records of Inspector"
NO_REPORT = "no report of RAS"
RUNBOOKS = "RUNBOOKS"
"""Placeholder for the site's runbooks address until the files are written."""
NONE_KNOWN = "none known"
"""Text in a panel without data."""

Panel = stat.Panel | statetimeline.Panel | statushistory.Panel | table.Panel | timeseries.Panel


class Query(NamedTuple):
    """A PromQL query and the legend of its series."""

    expression: str
    legend: str = ""


class Size(NamedTuple):
    """A panel's size in grid units: the dashboard is 24 wide."""

    width: int
    height: int = 8


QUARTER, THIRD, HALF, WHOLE = Size(6, 4), Size(8), Size(12), Size(24)


class Steps(NamedTuple):
    """Colours of values. ``above``: the colour from each lower bound on. ``below``: the colour of all lower values."""

    below: str
    above: Mapping[float, str]

    def build(self) -> builders.ThresholdsConfig:
        """Return the steps in Grafana's form."""
        steps = [models.Threshold(None, self.below), *(models.Threshold(*step) for step in self.above.items())]
        return builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


SENTENCE_PIXELS = 18
SIZE = "≤ {{size}} B"
"""Part of a legend that names a size class by its limit in bytes; the panel shows KiB, MiB or GiB (``NAMES``)."""
SMALLEST = 8192
NAMES = (
    *(f"{count} KiB" for count in (8, 32, 128, 512)),
    *(f"{count} MiB" for count in (2, 8, 32, 128, 512)),
    *(f"{count} GiB" for count in (2, 8, 32)),
)
"""Limits of the size classes: powers of four from ``SMALLEST`` bytes on."""
PLAIN = Steps("text", {})
"""Steps of a number that is neither good nor bad."""
ODD_FROM_ONE = {"thresholds": Steps("green", {1: "yellow"}).build().build()}
BAD_FROM_ONE = {"thresholds": Steps("green", {1: "red"}).build().build()}  # for a number that should be 0


def mapping(states: Mapping[str, Value]) -> list[models.ValueMapping]:
    """Return the mapping of state numbers to names and colours."""
    if not states:
        return []
    options = {
        str(value.code): models.ValueMappingResult(text=state, color=value.color, index=index)
        for index, (state, value) in enumerate(states.items())
    }
    return [models.ValueMap(options=options)]


OWN_CLUSTER, OWN_JOB = "${cluster:queryparam}", "${job_id:queryparam}"
"""The dashboard's own job, as a link's parameter."""


def board_link(
    board: str, variable: str, value: str, job: str = "", cluster: str = OWN_CLUSTER
) -> builders.DashboardLink:
    """Return a link to a dashboard that keeps the time, and sets ``variable`` to the panel's field ``value``.

    ``job``, ``cluster``: the link's parameters for the job, if any, and the cluster.
    """
    parameters = filter(None, ("${datasource:queryparam}", cluster, job, "${__url_time_range}"))
    return builders.DashboardLink(board).url(
        f"/d/rankwatch-{board.lower()}?{'&'.join(parameters)}&var-{variable}=${{{value}}}"
    )


def fixed(color: str) -> dict[str, str]:
    """Return a fixed series colour in Grafana's form."""
    return {"mode": "fixed", "fixedColor": color}


def stats(
    title: str,
    description: str,
    *queries: Query,
    unit: str = "none",
    size: Size = QUARTER,
    steps: Steps = PLAIN,
    names_only: bool = False,
    states: Mapping[str, Value] | None = None,
    overrides: Mapping[str, Mapping[str, object]] | None = None,
    by_query: Mapping[str, Mapping[str, object]] | None = None,
    sentences: bool = False,
    nothing: str = "-",
) -> stat.Panel:
    """Return a panel of single current numbers, or (``names_only``) of their legends.

    ``states``: text and colour of each number. ``overrides``: field properties of single series, by legend;
    ``by_query``: properties of a query's series, by the query's letter. ``sentences``: show each number as a line:
    legend, then number.
    """
    text = common_models.BigValueTextMode.NAME if names_only else common_models.BigValueTextMode.AUTO
    if sentences:
        text = common_models.BigValueTextMode.VALUE_AND_NAME
    panel = (
        stat.Panel()
        .reduce_options(common.ReduceDataOptions().values(False).calcs(["lastNotNull"]).fields(""))
        .text_mode(text)
        .graph_mode(common_models.BigValueGraphMode.NONE)
        .color_mode(common_models.BigValueColorMode.VALUE)
        .thresholds(steps.build())
        .mappings(mapping(states or {}))
        .no_value(nothing)
    )
    for name, properties in (overrides or {}).items():
        panel = panel.override_by_name(name, [models.DynamicConfigValue(*value) for value in properties.items()])
    if sentences:
        panel = panel.orientation(common_models.VizOrientation.HORIZONTAL)
        panel = panel.text(common.VizTextDisplayOptions().title_size(SENTENCE_PIXELS).value_size(SENTENCE_PIXELS))
    for letter, properties in (by_query or {}).items():
        panel = panel.override_by_query(letter, [models.DynamicConfigValue(*value) for value in properties.items()])
    dress(panel, title, description, unit, size)
    return panel.targets(targets(queries, instant=True))


def lines(
    title: str,
    description: str,
    *queries: Query,
    unit: str,
    size: Size = THIRD,
    most: float | None = None,
    steps: Steps | None = None,
    links_to_rank: bool = False,
    stacked: bool = False,
    colors: Mapping[str, str] | None = None,
    nothing: str = "no data",
) -> timeseries.Panel:
    """Return a panel of curves. ``steps``: drawn as dashed lines. ``stacked``: the curves are shares of a whole.

    ``colors``: of single series, by legend. ``nothing``: text of a panel without curves, with the reason.
    """
    legend = common.VizLegendOptions().show_legend(True)
    if size.width >= TABLE_LEGEND_FROM:
        legend = legend.display_mode(common_models.LegendDisplayMode.TABLE).calcs(["lastNotNull", "mean"])
        legend = legend.sort_by("Last *").sort_desc(True)
    else:
        legend = legend.display_mode(common_models.LegendDisplayMode.LIST)
    beside = size.width >= LEGEND_BESIDE_FROM
    legend = legend.placement(common_models.LegendPlacement.RIGHT if beside else common_models.LegendPlacement.BOTTOM)
    tooltip = common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI)
    panel = (
        timeseries.Panel()
        .legend(legend)
        .tooltip(tooltip.sort(common_models.SortOrder.DESCENDING))
        .line_width(1)
        .fill_opacity(60 if stacked else 0)
        .show_points(common_models.VisibilityMode.AUTO)
        .color_scheme(builders.FieldColor().mode(models.FieldColorModeId.PALETTE_CLASSIC))
        .no_value(nothing)
        .min(0)
    )
    for name, color in (colors or {}).items():
        panel = panel.override_by_name(name, [models.DynamicConfigValue("color", fixed(color))])
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    if most is not None:
        panel = panel.max(most)
    elif unit in COUNTED:
        panel = panel.axis_soft_max(1)
    if steps is not None:
        style = common.GraphThresholdsStyleConfig().mode(common_models.GraphThresholdsStyleMode.DASHED)
        panel = panel.thresholds(steps.build()).thresholds_style(style)
    if links_to_rank:
        panel = panel.data_links([board_link("Rank", "rank", "__field.labels.rank", OWN_JOB)])
    if any(SIZE in query.legend for query in queries):
        patterns = ((f"/≤ {SMALLEST * 4**step} B/", f"≤ {name}") for step, name in enumerate(NAMES))
        panel = panel.transformations(
            [
                models.DataTransformerConfig(id_val="renameByRegex", options={"regex": regex, "renamePattern": name})
                for regex, name in patterns
            ]
        )
    dress(panel, title, description, unit, size)
    return panel.targets(targets(queries))


def dress(panel: Panel, title: str, description: str, unit: str, size: Size) -> None:
    """Set the properties that every panel has."""
    panel.title(title).description(description).datasource(DATASOURCE).unit(unit).span(size.width).height(size.height)


def targets(queries: Sequence[Query], *, instant: bool = False, as_table: bool = False) -> list[Builder[Dataquery]]:
    """Return the queries in Grafana's form. ``instant``: at the range's end, not over the range."""
    targets: list[Builder[Dataquery]] = []
    for index, query in enumerate(queries):
        target = prometheus.Dataquery().ref_id(ascii_uppercase[index]).datasource(DATASOURCE).expr(query.expression)
        target = target.instant() if instant else target.range()
        target = target.format(PromQueryFormat.TABLE if as_table else PromQueryFormat.TIME_SERIES)
        targets.append(target.legend_format(query.legend) if query.legend else target)
    return targets
