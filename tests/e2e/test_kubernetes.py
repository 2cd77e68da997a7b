"""The manifests: kustomize accepts them, and every field of the result is a field of the API with the right type.

The types are those of the packages kubernetes-models and @kubernetes-models/prometheus-operator. TypeScript checks
them, and refuses unknown fields. The test has no API server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from jobs import ROOT
from nodes import wait_until
from pages import FixedPage
from prometheus import Prometheus, why_no_prometheus
from rules import RULES

KUBERNETES = ROOT / "deploy" / "kubernetes"
KUBECTL = ROOT / ".cache" / "kubectl" / "usr" / "bin" / "kubectl"
NPM = ROOT / ".cache" / "npm"
TYPES = {
    "Namespace": "kubernetes-models/v1/Namespace",
    "ServiceAccount": "kubernetes-models/v1/ServiceAccount",
    "ConfigMap": "kubernetes-models/v1/ConfigMap",
    "DaemonSet": "kubernetes-models/apps/v1/DaemonSet",
    "PodMonitor": "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PodMonitor",
    "PrometheusRule": "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PrometheusRule",
}
PAGE = b"""\
# TYPE rankwatch_rank_info gauge
rankwatch_rank_info{job_id="team-a/train-7",rank="0",pod="0f5a-of-the-job",container="c0ffee"} 1
"""
_OPERATORS = [
    {"source_labels": ["job"], "target_label": "__tmp_prometheus_job_name"},
    {"action": "keep", "source_labels": ["__meta_kubernetes_pod_container_port_name"], "regex": "metrics"},
    {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
    {"source_labels": ["__meta_kubernetes_pod_container_name"], "target_label": "container"},
    {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
    {"target_label": "job", "replacement": "rankwatch/rankwatch"},
    {"target_label": "endpoint", "replacement": "metrics"},
]
"""The relabelings that the operator puts before a PodMonitor's own (its generated configuration, 2018 to 2026)."""
COMPILER = ["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--moduleResolution", "nodenext"]

pytestmark = [
    pytest.mark.skipif(
        not (NPM / "node_modules/typescript").exists(), reason="no TypeScript in .cache/npm: scripts/test fetches it"
    ),
    pytest.mark.timeout(180),
]
needs_kubectl = pytest.mark.skipif(not KUBECTL.exists(), reason="no kubectl in .cache: scripts/test fetches it")


def monitoring(directory: Path, *options: str) -> Path:
    """Return the directory that build.py writes."""
    command = [ROOT / ".venv/bin/python", KUBERNETES / "build.py", "--output", directory / "monitoring", *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return directory / "monitoring"


def documents(folder: Path) -> list[dict[str, Any]]:
    """Return the manifests in a directory, without the kustomizations."""
    texts = [path.read_text() for path in sorted(folder.glob("*.yaml")) if path.name != "kustomization.yaml"]
    return [document for text in texts for document in yaml.safe_load_all(text)]


def kustomized(folder: Path) -> list[dict[str, Any]]:
    """Return the output of `kubectl kustomize` for a directory, which must give no warning."""
    done = subprocess.run([KUBECTL, "kustomize", folder], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return list(yaml.safe_load_all(done.stdout))


def mistakes(manifests: list[dict[str, Any]], directory: Path) -> str:
    """Return TypeScript's errors about these manifests; empty if none."""
    work = directory / "types"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    (work / "node_modules").symlink_to(NPM / "node_modules")
    (work / "package.json").write_text('{"type": "module"}')
    lines = [f'import type {{ I{kind} }} from "{module}";' for kind, module in TYPES.items()]
    lines += [
        f"export const a{i}: I{manifest['kind']} = {json.dumps(manifest)};" for i, manifest in enumerate(manifests)
    ]
    (work / "manifests.ts").write_text("\n".join(lines))
    tsc = work / "node_modules" / ".bin" / "tsc"
    done = subprocess.run([tsc, *COMPILER, "manifests.ts"], check=False, cwd=work, capture_output=True, text=True)
    return done.stdout + done.stderr


def test_every_field_is_the_apis(tmp_path: Path) -> None:
    """Each field of the base and of the operator's resources is a field of the API; an unknown field is found."""
    manifests = documents(KUBERNETES / "base") + documents(monitoring(tmp_path))
    assert {manifest["kind"] for manifest in manifests} == set(TYPES) - {"ConfigMap"}
    assert mistakes(manifests, tmp_path) == ""
    daemon_set = next(manifest for manifest in manifests if manifest["kind"] == "DaemonSet")
    daemon_set["spec"]["template"]["spec"]["hostPids"] = True
    assert "hostPids" in mistakes([daemon_set], tmp_path)


def test_what_it_may(tmp_path: Path) -> None:
    """The pod is not root, has three capabilities and no token, and writes only its own state on the host."""
    daemon_set = next(document for document in documents(KUBERNETES / "base") if document["kind"] == "DaemonSet")
    pod = daemon_set["spec"]["template"]["spec"]
    [container] = pod["containers"]
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["SYS_PTRACE", "DAC_READ_SEARCH", "SYSLOG"]}
    assert (security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]) == (True, False)
    assert (security["runAsUser"], security["runAsNonRoot"]) == (19028, True)
    assert security["seccompProfile"] == {"type": "Localhost", "localhostProfile": "rankwatch.json"}
    assert security["appArmorProfile"] == {"type": "RuntimeDefault"}
    [first] = pod["initContainers"]
    assert first["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
    assert pod["automountServiceAccountToken"] is False
    host = {volume["name"] for volume in pod["volumes"] if "hostPath" in volume}
    writable = {volumemount["name"] for volumemount in container["volumeMounts"] if not volumemount.get("readOnly")}
    assert host & writable == {"state"}


def test_rules_and_scrapes_are_the_shipped_ones(tmp_path: Path) -> None:
    """Each rule file is one PrometheusRule, both scrape jobs are endpoints, and a site's thresholds apply."""
    folder = monitoring(tmp_path)
    made = {document["metadata"]["name"]: document for document in documents(folder)}
    for path in map(Path, RULES):
        name = f"rankwatch-{path.stem.replace('_', '-')}"
        assert made[name]["spec"] == yaml.safe_load(path.read_text()), path.name
    endpoints = made["rankwatch"]["spec"]["podMetricsEndpoints"]
    jobs = yaml.safe_load((ROOT / "deploy/prometheus/scrape/file_sd.yml").read_text())["scrape_configs"]
    names = [
        label["replacement"]
        for endpoint in endpoints
        for label in endpoint["relabelings"]
        if label.get("targetLabel") == "job"
    ]
    assert names == [job["job_name"] for job in jobs]
    assert [endpoint["params"] for endpoint in endpoints] == [job["params"] for job in jobs]
    own = tmp_path / "own.yml"
    own.write_text("page_ranks: 77\n")
    rules = (monitoring(tmp_path / "own", "--thresholds", str(own)) / "rules-deaths.yaml").read_text()
    assert ">= 77" in rules
    own.write_text("page_rank: 77\n")
    command = [ROOT / ".venv/bin/python", KUBERNETES / "build.py", "--output", tmp_path / "x", "--thresholds", own]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ})
    assert (done.returncode, done.stderr) == (1, f"{own}: there is no threshold page_rank\n")


def scrape_configs(monitor: dict[str, Any], targets: Path) -> list[dict[str, Any]]:
    """Return the operator's configuration for a PodMonitor, with the targets of a file instead of the API's."""
    snake = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    return [
        {
            "job_name": f"podMonitor/rankwatch/rankwatch/{number}",
            "scrape_interval": "1s",
            "scrape_timeout": "1s",
            "params": endpoint["params"],
            "relabel_configs": [
                *_OPERATORS,
                *(
                    {snake.get(key, key): value for key, value in relabeling.items()}
                    for relabeling in endpoint["relabelings"]
                ),
            ],
            "file_sd_configs": [{"files": [str(targets)]}],
        }
        for number, endpoint in enumerate(monitor["spec"]["podMetricsEndpoints"])
    ]


@pytest.mark.skipif(why_no_prometheus() is not None, reason=why_no_prometheus() or "")
def test_labels_of_ranks_are_the_jobs(tmp_path: Path) -> None:
    """A rank's labels pod and container are those of its job; jobs and nodes have the names that the rules use."""
    folder = monitoring(tmp_path)
    monitor = yaml.safe_load((folder / "podmonitor.yaml").read_text())
    labels = {
        "__meta_kubernetes_namespace": "rankwatch",
        "__meta_kubernetes_pod_name": "rankwatch-x7x7x",
        "__meta_kubernetes_pod_container_name": "rankwatch",
        "__meta_kubernetes_pod_container_port_name": "metrics",
        "__meta_kubernetes_pod_node_name": "gpu-node-07",
    }
    targets = tmp_path / "targets.json"
    with FixedPage(PAGE) as page:
        targets.write_text(json.dumps([{"targets": [f"127.0.0.1:{page.port}"], "labels": labels}]))
        config = yaml.safe_dump({"scrape_configs": scrape_configs(monitor, targets)})
        with Prometheus(tmp_path / "prometheus", config) as server:
            wait_until(lambda: len(server.query("rankwatch_rank_info")) == 2, 20, "both scrapes")
            infos = [series["metric"] for series in server.query("rankwatch_rank_info")]
    of_target = {"node": "gpu-node-07", "namespace": "rankwatch", "instance": f"127.0.0.1:{page.port}"}
    of_job = {"job_id": "team-a/train-7", "rank": "0", "pod": "0f5a-of-the-job", "container": "c0ffee"}
    wanted = {"__name__": "rankwatch_rank_info", **of_target, **of_job}
    for job in ("rankwatch", "rankwatch-liveness"):
        assert {**wanted, "job": job} in infos
    assert len(infos) == 2


def with_component(directory: Path, name: str) -> list[dict[str, Any]]:
    """Return a site's kustomization with AMD's overlay and a component; each field must be the API's."""
    site = directory / "site"
    site.mkdir()
    shutil.copytree(KUBERNETES, site / "rankwatch")
    parts = {"resources": ["rankwatch/overlays/amd"], "components": [f"rankwatch/components/{name}"]}
    (site / "kustomization.yaml").write_text(yaml.safe_dump(parts))
    manifests = kustomized(site)
    assert mistakes(manifests, directory) == ""
    return manifests


def pod_of(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the DaemonSet's pod."""
    pod: dict[str, Any] = next(manifest for manifest in manifests if manifest["kind"] == "DaemonSet")["spec"][
        "template"
    ]["spec"]
    return pod


@needs_kubectl
def test_without_rights(tmp_path: Path) -> None:
    """Component without-rights removes all capabilities, root, our seccomp profile, and the node's writable mounts."""
    pod = pod_of(with_component(tmp_path, "without-rights"))
    assert not pod["initContainers"]
    [container] = pod["containers"]
    assert container["command"] == ["/usr/bin/rankwatch"]
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    host = {volume["name"] for volume in pod["volumes"] if "hostPath" in volume}
    assert not host & {
        volumemount["name"] for volumemount in container["volumeMounts"] if not volumemount.get("readOnly")
    }


@needs_kubectl
def test_all_processes(tmp_path: Path) -> None:
    """The component all-processes turns the AppArmor profile off, and changes nothing else."""
    [plain] = pod_of(kustomized(KUBERNETES / "overlays/amd"))["containers"]
    [container] = pod_of(with_component(tmp_path, "all-processes"))["containers"]
    assert container["securityContext"].pop("appArmorProfile") == {"type": "Unconfined"}
    assert plain["securityContext"].pop("appArmorProfile") == {"type": "RuntimeDefault"}
    assert container == plain


@needs_kubectl
def test_the_kernels_log_has_its_price(tmp_path: Path) -> None:
    """The component kernel-log makes the container privileged, without fields that the API refuses in that case."""
    [container] = pod_of(with_component(tmp_path, "kernel-log"))["containers"]
    assert container["securityContext"] == {
        "privileged": True,
        "allowPrivilegeEscalation": True,
        "readOnlyRootFilesystem": True,
        "runAsUser": 19028,
        "runAsGroup": 19028,
        "runAsNonRoot": True,
    }


@needs_kubectl
@pytest.mark.parametrize(
    ("overlay", "label"), [("nvidia", "nvidia.com/gpu.present"), ("amd", "feature.node.kubernetes.io/amd-gpu")]
)
def test_overlays(tmp_path: Path, overlay: str, label: str) -> None:
    """Each overlay is the base with its node selector and configuration; NVIDIA's has the runtime class for NVML."""
    manifests = kustomized(KUBERNETES / "overlays" / overlay)
    assert mistakes(manifests, tmp_path) == ""
    by_kind = {manifest["kind"]: manifest for manifest in manifests}
    pod = by_kind["DaemonSet"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {label: "true"}
    assert ("runtimeClassName" in pod) is (overlay == "nvidia")
    assert pod["hostPID"] and pod["hostNetwork"]
    config = next(volume for volume in pod["volumes"] if volume["name"] == "config")["configMap"]["name"]
    assert config == by_kind["ConfigMap"]["metadata"]["name"] != "rankwatch", "a change of it rolls the pods"
    assert {manifest["metadata"].get("namespace", "rankwatch") for manifest in manifests} == {"rankwatch"}


@needs_kubectl
def test_monitoring_is_put_together(tmp_path: Path) -> None:
    """The monitoring has the operator's kinds and one labelled ConfigMap per dashboard, within etcd's limit."""
    manifests = kustomized(monitoring(tmp_path))
    assert mistakes(manifests, tmp_path) == ""
    dashboards = [manifest for manifest in manifests if manifest["kind"] == "ConfigMap"]
    assert len(dashboards) == len(list((ROOT / "grafana/dashboards").glob("*.json")))
    assert {dashboard["metadata"]["labels"]["grafana_dashboard"] for dashboard in dashboards} == {"1"}
    assert max(len(json.dumps(manifest)) for manifest in manifests) < 1_000_000
