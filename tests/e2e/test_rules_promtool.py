"""The shipped Prometheus files, checked by every available promtool; and the scrape jobs with a live agent."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from full import full
from machines import Machine, alive
from nodes import wait_until
from rules import DEPLOY, RULE_TESTS, RULES, promtools, run_promtool, why_no_promtool
from victoria import dry_run_of_vmalert, unit_test, why_no_victoria

SCRAPES = sorted((DEPLOY / "scrape").glob("*.yml"))
OPTIONAL = DEPLOY / "optional" / "nvidia_inspector.yml"

pytestmark = [
    pytest.mark.skipif(why_no_promtool() is not None, reason=why_no_promtool() or ""),
    pytest.mark.timeout(240),
]


@pytest.mark.parametrize("promtool", promtools())
def test_rules_are_good(promtool: str) -> None:
    """`promtool check rules` accepts the rules."""
    assert run_promtool(promtool, "check", "rules", "--lint-fatal", *RULES) == ""


@pytest.mark.skipif(why_no_victoria() is not None, reason=why_no_victoria() or "")
def test_rules_are_good_metricsql() -> None:
    """VictoriaMetrics parses every expression and text."""
    assert dry_run_of_vmalert(RULES) == ""


@pytest.mark.skipif(why_no_victoria() is not None, reason=why_no_victoria() or "")
@pytest.mark.parametrize("name", ["hangs_explained", "hangs_nixl_ep", pytest.param("hangs_long", marks=full)])
def test_alerts_by_vmalert(name: str, tmp_path: Path) -> None:
    """vmalert fires the same alerts as Prometheus."""
    [file] = [path for path in RULE_TESTS if path.stem == name]
    assert unit_test(file, tmp_path) == ""


@pytest.mark.parametrize("promtool", promtools())
@pytest.mark.parametrize("file", RULE_TESTS, ids=lambda path: path.stem)
def test_alerts(promtool: str, file: Path) -> None:
    """Each alert fires at the times of the cases, with the texts of the cases, and at no other time."""
    assert run_promtool(promtool, "test", "rules", file) == ""


@pytest.mark.parametrize("promtool", promtools())
def test_names_of_nvidias_plugin(promtool: str) -> None:
    """The optional rules give the names, labels and units of NVIDIA's Grafana template."""
    assert run_promtool(promtool, "check", "rules", "--lint-fatal", OPTIONAL) == ""
    assert run_promtool(promtool, "test", "rules", OPTIONAL.with_suffix(".test.yml")) == ""


@pytest.mark.parametrize("promtool", promtools())
@pytest.mark.parametrize("file", [*SCRAPES, DEPLOY / "prometheus.yml"], ids=lambda path: path.stem)
def test_configurations_are_good(promtool: str, file: Path) -> None:
    """promtool accepts the scrape jobs and the whole configuration."""
    assert run_promtool(promtool, "check", "config", file) == ""


def test_scrape_jobs_share_no_series(tmp_path: Path) -> None:
    """Both scrape jobs together return all series of a live agent, each once."""
    liveness, rest = (query(job) for job in yaml.safe_load(SCRAPES[0].read_text())["scrape_configs"])
    machine = Machine(tmp_path)
    with machine.job() as job, machine.agent(job) as agent:
        job.wait_for("ready")
        agent.wait_for_states(alive(8))
        wait_until(lambda: agent.samples("rankwatch_collective_operations_total"))
        pages = [families(agent.page(path)) for path in ("", f"?{liveness}", f"?{rest}", "")]
    before, *pages, after = pages
    assert pages[0] & pages[1] == set()
    assert before & after <= pages[0] | pages[1] <= before | after  # series of helpers come and go
    assert {"rankwatch_job_ranks_live", "rankwatch_job_expected_ranks"} <= pages[0]
    assert {"rankwatch_exporter_up", "rankwatch_collective_operations_total"} <= pages[1]


def query(job: dict[str, dict[str, list[str]]]) -> str:
    """Return the query of a scrape job's URL."""
    return "&".join(f"{name}={value}" for name, values in job["params"].items() for value in values)


def families(page: str) -> set[str]:
    """Return the names of the families on a page."""
    return {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")}
