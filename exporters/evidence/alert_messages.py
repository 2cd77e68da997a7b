"""The requests to the helper about open alerts, and its answers."""

import msgspec

MAX_JOBS = 64  # Jobs in one query: a node has a few
MAX_ALERTS = 256
MAX_LABEL = 200


class AlertsRequest(msgspec.Struct, frozen=True):
    """``url``: Prometheus' address; ``cluster``: the alerts' label, empty for any; ``job_ids``: this node's jobs."""

    url: str
    cluster: str
    job_ids: list[str]


class OpenAlert(msgspec.Struct, frozen=True):
    """An open page; ``rank`` is empty if its alert names none."""

    job_id: str
    name: str
    rank: str


class AlertsAnswer(msgspec.Struct, frozen=True):
    """The open pages on the jobs, or the error."""

    alerts: list[OpenAlert] = []
    error: str = ""
