#!/usr/bin/env python3
"""Write a PodMonitor, PrometheusRules and dashboards for kustomize, for Prometheus' operator and Grafana's sidecar.

The sources are deploy/prometheus and grafana/dashboards. --thresholds: a file with the site's own thresholds:

    build.py --thresholds my.yml --agent base/rankwatch.yml --output monitoring
    kubectl apply --server-side -k monitoring
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
PROMETHEUS = HERE.parent / "prometheus"
DASHBOARDS = HERE.parents[1] / "grafana" / "dashboards", HERE.parent / "grafana"
"""Directories of dashboards: in a checkout or bundle, and in packages."""
NAMESPACE = "rankwatch"
LABELS = {"app.kubernetes.io/name": "rankwatch"}


def rule(name: str, text: str) -> dict[str, Any]:
    """Return a file of rules as a PrometheusRule."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": f"rankwatch-{name.replace('_', '-')}", "labels": dict(LABELS)},
        "spec": yaml.safe_load(text),
    }


def write(output: Path, thresholds: Path | None, agent: Path | None = None) -> None:
    """Write everything below ``output``; raises RulesError for errors in the thresholds."""
    rules = builder()
    output.mkdir(parents=True, exist_ok=True)
    documents = {}
    sources = {path.name: path.read_text() for path in sorted((PROMETHEUS / "sources").glob("*.yml"))}
    values = rules.read_thresholds(PROMETHEUS / "thresholds.yml", thresholds)
    if agent is not None:
        values = rules.with_verdict(values, agent)
    for name, text in rules.build(sources, values).items():
        stem = name.removesuffix(".yml")
        documents[f"rules-{stem}.yaml"] = rule(stem, text)
    shutil.copy(HERE / "podmonitor.yaml", output)
    for name, document in documents.items():
        (output / name).write_text(yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=True))
    folder = next(path for path in DASHBOARDS if path.is_dir())
    dashboards = sorted(folder.glob("*.json"))
    for path in dashboards:
        shutil.copy(path, output)
    (output / "kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "apiVersion": "kustomize.config.k8s.io/v1beta1",
                "kind": "Kustomization",
                "namespace": NAMESPACE,
                "resources": ["podmonitor.yaml", *documents],
                "configMapGenerator": [
                    {
                        "name": f"rankwatch-dashboard-{path.stem}",
                        "files": [path.name],
                        "options": {"labels": {"grafana_dashboard": "1"}, "disableNameSuffixHash": True},
                    }
                    for path in dashboards
                ],
            },
            sort_keys=False,
        )
    )


def builder() -> ModuleType:
    """Return the builder of the rules, deploy/prometheus/build.py."""
    spec = importlib.util.spec_from_file_location("rules_builder", PROMETHEUS / "build.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(PROMETHEUS / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Write all files; on an error exit with status 1 and one line on standard error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--thresholds", type=Path, metavar="FILE", help="the site's thresholds that differ")
    parser.add_argument("--agent", type=Path, metavar="FILE", help="the agents' configuration, for its section verdict")
    parser.add_argument("--output", type=Path, metavar="DIR", required=True)
    options = parser.parse_args()
    try:
        write(options.output, options.thresholds, options.agent)
    except (OSError, ValueError) as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
