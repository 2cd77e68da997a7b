"""The path of a page: a cluster, its Prometheus and its Alertmanager."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from alerting import why_no_alertmanager
from clusters import Cluster, ClusterJob, Peculiarity, why_no_cluster
from full import FULL
from prometheus import why_no_prometheus
from rules import build_rules
from watches import LOSSY, WHOLE, Page, Watch, watch

WATCHES = (WHOLE, LOSSY) if FULL else (WHOLE,)
"""Watches (each with a Prometheus and an Alertmanager) of one cluster; the second watch loses scrapes."""


def why_no_pages() -> str | None:
    """Return the reason why no page can be sent (for a skipped test), or None."""
    return why_no_cluster() or why_no_prometheus() or why_no_alertmanager()


class Site:
    """The running cluster with its watches."""

    def __init__(self, cluster: Cluster, watches: Sequence[Watch], rules: Path) -> None:
        self.cluster = cluster
        self.watches = watches
        self.rules = rules

    def wait_until_seen(self, job: ClusterJob) -> None:
        """Wait until all watches have seen all ranks of a job."""
        for each in self.watches:
            each.wait_until_seen(job)

    def pages(self, job_id: str, receiver: str = "page") -> list[Page]:
        """Return the notifications about a job that the first watch sent."""
        return self.watches[0].pages(job_id, receiver)


@contextlib.contextmanager
def site(
    directory: Path,
    nodes: int,
    thresholds: Mapping[str, Any],
    *,
    ioctl: bool = True,
    shorter: Mapping[str, str] | None = None,
    watches: Sequence[str] = (WHOLE,),
    replicas: int = 1,
    peculiar: Mapping[int, Peculiarity] | None = None,
    ticket_wait: str = "20s",
) -> Iterator[Site]:
    """Provide a site of ``nodes`` nodes with these thresholds instead of the shipped ones.

    ``shorter``: texts in the rules (windows that are no thresholds) and their replacements. ``replicas``: of Prometheus
    and Alertmanager, in each watch. ``ticket_wait``: how long Alertmanager delays notifications that are no pages."""
    with (
        Cluster(directory, nodes, exit_status_ioctl=ioctl, peculiar=peculiar) as cluster,
        contextlib.ExitStack() as stack,
    ):
        rules = build_rules(directory, thresholds, shorter or {})
        running = [
            stack.enter_context(watch(name, directory, cluster, rules, replicas=replicas, ticket_wait=ticket_wait))
            for name in watches
        ]
        yield Site(cluster, running, rules)
