"""Queries Prometheus for open pages on jobs, in the helper. The URL decides between HTTP and HTTPS."""

import json
import re
from functools import partial

from agent.core.prometheus import samples
from agent.sdk.files import in_turns
from exporters.evidence.alert_messages import MAX_ALERTS, MAX_JOBS, MAX_LABEL, AlertsAnswer, AlertsRequest, OpenAlert

_string = partial(json.dumps, ensure_ascii=False)  # PromQL has the escapes of JSON


def open_alerts(request: AlertsRequest, _body: bytes = b"") -> AlertsAnswer:
    """Return the open pages on the jobs, or the reason for no answer; the request has no body."""
    jobs = "|".join(re.escape(job_id) for job_id in request.job_ids[:MAX_JOBS])
    matchers = [f"cluster={_string(request.cluster)}"] if request.cluster else []
    matchers += ['alertstate="firing"', 'severity="page"', f"job_id=~{_string(jobs)}"]
    try:
        firing = samples(request.url, f"ALERTS{{{','.join(matchers)}}}")
    except (OSError, ValueError) as error:
        return AlertsAnswer(error=f"{type(error).__name__}: {error}"[:MAX_LABEL])
    names = ("job_id", "alertname", "rank")
    alerts = [OpenAlert(*(sample.labels.get(name, "")[:MAX_LABEL] for name in names)) for sample in firing]
    return AlertsAnswer(in_turns(alerts, lambda alert: alert.job_id, MAX_ALERTS))
