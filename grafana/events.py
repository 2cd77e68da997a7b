"""Events as marks in the time line of the dashboards (Grafana's annotations)."""

from grafana.queries import CLUSTER, JOB, NODE, endings

LISTED_EXITS = 32
FIRST_CAUSE = f"max by (category, rank) (1000 * rankwatch_job_log_first_root_timestamp_seconds{{{JOB}}})"


def _events(name: str, color: str, query: str, title: str, *, at_value: bool = True) -> dict[str, object]:
    """Return an annotation: an event at the value of each series (epoch ms), or as long as the series exists."""
    return {
        "name": name,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "enable": True,
        "iconColor": color,
        "expr": query,
        "step": "60s",
        "titleFormat": title,
        "useValueForTime": "on" if at_value else "",
    }


LEFT_TITLE = "rank {{rank}} on {{node}}: {{reason}} {{signal}}{{code}}"
ALERT_TITLE = "{{alertname}} ({{severity}})"


def _firing(selector: str, by: str) -> str:
    return f'max by ({by}) (ALERTS{{{selector}, alertname!="Watchdog", alertstate="firing"}})'


JOB_EVENTS = [
    _events("Marks", "purple", f"max by (text) (1000 * rankwatch_job_mark_timestamp_seconds{{{JOB}}})", "{{text}}"),
    _events(
        "Ranks that left",
        "orange",
        f"bottomk({LISTED_EXITS}, {endings(JOB, 'rank, node, reason, signal, code')})",
        LEFT_TITLE,
    ),
    _events(
        "Starts",
        "blue",
        f"1000 * max by (job_id) (job:rankwatch_run:time{{{JOB}}})",
        "ranks of {{job_id}} were started",
    ),
    _events("First cause by its own log", "yellow", FIRST_CAUSE, "{{category}}, rank {{rank}}"),
    _events("Alerts", "red", _firing(JOB, "alertname, severity"), ALERT_TITLE, at_value=False),
]
"""Kinds of events of a job and its ranks, which a user can switch off. `rankwatch mark` sets the marks."""
NODE_EVENTS = [
    _events(
        "Ranks that left",
        "orange",
        f"bottomk({LISTED_EXITS}, {endings(NODE, 'rank, node, reason, signal, code')})",
        LEFT_TITLE,
    ),
    _events("Alerts", "red", _firing(NODE, "alertname, severity"), ALERT_TITLE, at_value=False),
]
FLEET_EVENTS = [
    _events(
        "Pages",
        "red",
        _firing(f'{CLUSTER}, severity="page"', "alertname, job_id, node"),
        "{{alertname}} {{job_id}} {{node}}",
        at_value=False,
    )
]
BY_DASHBOARD = {
    "agent.json": FLEET_EVENTS,
    "fabric.json": FLEET_EVENTS,
    "fleet.json": FLEET_EVENTS,
    "job.json": JOB_EVENTS,
    "launchers.json": JOB_EVENTS,
    "node.json": NODE_EVENTS,
    "rank.json": JOB_EVENTS,
}
