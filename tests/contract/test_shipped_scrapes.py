"""The agent's shipped selections are those of the shipped scrape jobs, plus the default."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.app.discovery import exporter_names
from agent.export.exposition import LIVENESS, SHIPPED, select

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = [DEPLOY / "prometheus" / "prometheus.yml", *sorted((DEPLOY / "prometheus" / "scrape").glob("*.yml"))]
TABLES = {"liveness", "ranks", "health", "agent"}
"""Names that a scrape may select in addition to exporters."""
Jobs = list[dict[str, Any]]


def jobs_of(path: Path) -> Jobs:
    """Return a file's scrape jobs for agents."""
    jobs: Jobs = yaml.safe_load(path.read_text())["scrape_configs"]
    return [job for job in jobs if job["job_name"].startswith("rankwatch")]


def selections(parameters: list[dict[str, list[str]]]) -> set[tuple[frozenset[str] | None, frozenset[str]]]:
    """Return the selections of these scrapes; each must be a shipped selection."""
    scrapes = [select(parameter, {}, frozenset({*exporter_names(), *TABLES})) for parameter in parameters]
    assert all(scrape.is_shipped for scrape in scrapes)
    return {(scrape.collect, scrape.exclude) for scrape in scrapes}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_file_asks_for_what_is_shipped(path: Path) -> None:
    """The scrape jobs of each file have the selections that the agent treats as shipped."""
    asked = selections([job["params"] for job in jobs_of(path)])
    assert asked | selections([{}]) == SHIPPED
    assert len(asked) == 2


def test_kubernetes_asks_for_what_is_shipped() -> None:
    """The PodMonitor's endpoints are the shipped scrape jobs; its limits are the jobs' largest."""
    monitor = yaml.safe_load((DEPLOY / "kubernetes" / "podmonitor.yaml").read_text())["spec"]
    jobs = jobs_of(FILES[0])
    for job, endpoint in zip(jobs, monitor["podMetricsEndpoints"], strict=True):
        assert endpoint["params"] == job["params"]
        assert (endpoint["interval"], endpoint["scrapeTimeout"]) == (job["scrape_interval"], job["scrape_timeout"])
        assert endpoint["relabelings"][0] == {"targetLabel": "job", "replacement": job["job_name"]}
    limits = ("sample_limit", "label_limit", "label_name_length_limit", "label_value_length_limit")
    shipped = {re.sub("_(.)", lambda at: at[1].upper(), limit): max(job[limit] for job in jobs) for limit in limits}
    assert {limit: monitor[limit] for limit in shipped} == shipped


def test_another_exporter_makes_it_another_scrape() -> None:
    """A scrape with one more or one fewer exporter is not a shipped selection."""
    exporters = frozenset({*exporter_names(), *TABLES})
    lists = ([*LIVENESS, "process"], ["ranks"])
    others = [{key: names} for key in ("collect[]", "exclude[]") for names in lists]
    assert not any(select(other, {}, exporters).is_shipped for other in others)
