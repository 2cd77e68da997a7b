"""The Helm chart, rendered by Helm: its pod equals kustomize's, and a scrape with TLS and a password works."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from agents import Agent
from jobs import ROOT
from nodes import wait_until
from prometheus import Prometheus, why_no_prometheus
from test_kubernetes import KUBERNETES, documents, kustomized, mistakes, monitoring, needs_kubectl, pod_of

HELM = ROOT / ".cache" / "helm" / "helm"
CHART = KUBERNETES / "chart"

pytestmark = [
    pytest.mark.skipif(not HELM.exists(), reason="no Helm in .cache: scripts/test fetches it"),
    pytest.mark.timeout(180),
]
Manifests = list[dict[str, Any]]


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run Helm."""
    return subprocess.run([HELM, *arguments], check=False, capture_output=True, text=True)


def rendered(*values: str, chart: Path = CHART) -> Manifests:
    """Return the manifests that ``helm template`` renders with these ``--set`` values."""
    options = [option for value in values for option in ("--set-json", value)]
    done = helm("template", "rankwatch", chart, "--namespace", "rankwatch", *options)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(manifests: Manifests, kind: str) -> Manifests:
    """Return the manifests of one kind."""
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def secrets_of(manifests: Manifests, name: str) -> dict[str, str]:
    """Return the decoded data of a Secret."""
    [secret] = [manifest for manifest in of_kind(manifests, "Secret") if manifest["metadata"]["name"] == name]
    return {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}


def test_lint() -> None:
    """`helm lint --strict` accepts the chart."""
    done = helm("lint", "--strict", CHART)
    assert done.returncode == 0, done.stdout


def test_every_field_is_one_of_the_api(tmp_path: Path) -> None:
    """Each field of the chart's manifests is a field of the API, with default values and with all components."""
    components = 'components={"kernel-log": true, "all-processes": true}'
    for values in ((), (components, "auth.enabled=false", 'priorityClassName="high"')):
        manifests = [each for each in rendered(*values) if each["kind"] != "Secret"]
        assert mistakes(manifests, tmp_path) == ""


def test_secrets_of_the_site() -> None:
    """With auth.makeSecrets=false only the Secrets are missing; pods and PodMonitor still use them."""
    made, others = rendered(), rendered("auth.makeSecrets=false")
    assert [manifest for manifest in made if manifest["kind"] != "Secret"] == others


@needs_kubectl
@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_same_as_kustomize(tmp_path: Path, vendor: str) -> None:
    """Without a password the chart's pod, rules and PodMonitor equal those of kustomize."""
    made = rendered(f'gpu="{vendor}"', "auth.enabled=false")
    pod = pod_of(made)
    theirs = pod_of(kustomized(KUBERNETES / "overlays" / vendor))
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container.pop("imagePullPolicy") == "IfNotPresent"
    [config] = [volume["configMap"] for volume in theirs["volumes"] if volume["name"] == "config"]
    config["name"] = "rankwatch"
    assert pod == theirs
    shipped = {document["metadata"]["name"]: document for document in documents(monitoring(tmp_path))}
    ours = of_kind(made, "PodMonitor") + of_kind(made, "PrometheusRule")
    assert {our["metadata"]["name"]: our for our in ours} == shipped


def test_values(tmp_path: Path) -> None:
    """Image, tolerations, labels, configuration and components reach the manifests; a change restarts the pods."""
    made = rendered(
        'image={"repository": "registry.example/rankwatch", "tag": "7"}',
        'tolerations=[{"key": "gpu", "operator": "Exists"}]',
        'nodeSelector={"pool": "a"}',
        'config={"process": {"interval": "5s"}}',
        'components={"kernel-log": true}',
        'rules.labels={"release": "kps"}',
        'podMonitor.labels={"release": "kps"}',
        "dashboards.enabled=false",
    )
    pod = pod_of(made)
    assert {each["image"] for each in pod["initContainers"] + pod["containers"]} == {"registry.example/rankwatch:7"}
    assert pod["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.present": "true", "pool": "a"}
    assert pod["containers"][0]["securityContext"]["privileged"] is True
    assert "capabilities" not in pod["containers"][0]["securityContext"]
    [config] = of_kind(made, "ConfigMap")
    assert yaml.safe_load(config["data"]["rankwatch.yml"])["process"] == {"interval": "5s"}
    for manifest in of_kind(made, "PodMonitor") + of_kind(made, "PrometheusRule"):
        assert manifest["metadata"]["labels"] == {"app.kubernetes.io/name": "rankwatch", "release": "kps"}
    sums = {
        of_kind(each, "DaemonSet")[0]["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        for each in (made, rendered())
    }
    assert len(sums) == 2


@pytest.mark.parametrize(("value", "complaint"), [
    ('gpu="intel"', "/gpu"),
    ('rule={"enabled": true}', "rule"),
    ('tolerations={"operator": "Exists"}', "tolerations"),
])  # fmt: skip
def test_wrong_values_are_refused(value: str, complaint: str) -> None:
    """Helm refuses an unknown value and a value of a wrong type, and names the value."""
    done = helm("template", "rankwatch", CHART, "--set-json", value)
    assert done.returncode != 0
    assert complaint in done.stderr


def test_packed_chart_is_the_same(tmp_path: Path) -> None:
    """The packed chart renders without a checkout, and a release of it fits into a Secret."""
    assert helm("package", CHART, "--destination", tmp_path).returncode == 0
    [packed] = tmp_path.glob("rankwatch-*.tgz")
    assert packed.stat().st_size < 300_000
    without = ("auth.enabled=false",)
    assert rendered(*without, chart=packed) == rendered(*without)


@pytest.mark.skipif(why_no_prometheus() is not None, reason=why_no_prometheus() or "")
def test_the_shipped_scrape_works_and_others_get_nothing(tmp_path: Path) -> None:
    """Prometheus scrapes a real agent with the chart's certificate and password; without the password it gets 401."""
    made = rendered()
    web = tmp_path / "web"
    web.mkdir()
    for name, text in secrets_of(made, "rankwatch-web").items():
        (web / name).write_text(text.replace("/etc/rankwatch-web", str(web)))
    scrape = secrets_of(made, "rankwatch-scrape")
    (tmp_path / "ca.crt").write_text(scrape["ca.crt"])
    [monitor] = of_kind(made, "PodMonitor")
    jobs = []
    with SecuredAgent(tmp_path, web / "web.yml") as agent:
        for number, endpoint in enumerate(monitor["spec"]["podMetricsEndpoints"]):
            assert endpoint["tlsConfig"]["ca"]["secret"] == {"name": "rankwatch-scrape", "key": "ca.crt"}
            jobs.append(
                {
                    "job_name": f"job{number}",
                    "scrape_interval": "1s",
                    "scrape_timeout": "1s",
                    "params": endpoint["params"],
                    "scheme": endpoint["scheme"],
                    "tls_config": {
                        "ca_file": str(tmp_path / "ca.crt"),
                        "server_name": endpoint["tlsConfig"]["serverName"],
                    },
                    "basic_auth": {key: scrape[endpoint["basicAuth"][key]["key"]] for key in ("username", "password")},
                    "static_configs": [{"targets": [f"127.0.0.1:{agent.port}"]}],
                }
            )
        with Prometheus(tmp_path / "prometheus", yaml.safe_dump({"scrape_configs": jobs})) as server:
            wait_until(lambda: len(server.query("up == 1")) == 2, 20, "both scrapes")
        assert agent.status("/metrics") == 401


class SecuredAgent(Agent):
    """An agent with the web file ``web``, which the test queries over TLS."""

    def __init__(self, directory: Path, web: Path) -> None:
        self._web = web
        super().__init__(directory, {}, command=(sys.executable, "-m", "agent"))

    def configure(self, config: Any) -> None:
        """Write the configuration with the web file."""
        own = {"listen_address": f"127.0.0.1:{self.port}", "config_file": str(self._web)}
        super().configure({**config, "web": own})

    def status(self, path: str) -> int:
        """Return the HTTP status of a page, without a password."""
        context = ssl.create_default_context(cafile=self._web.parent / "tls.crt")
        context.check_hostname = False
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=5, context=context)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        finally:
            connection.close()

    def _is_ready(self) -> bool:
        try:
            return self.status("/-/ready") == 200
        except OSError:
            return False


def test_values_name_the_version() -> None:
    """Chart and agent have the same version."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    [container] = pod_of(rendered())["containers"]
    assert container["image"] == f"rankwatch:{chart['appVersion']}"
    assert json.loads((CHART / "values.schema.json").read_text())["properties"].keys() >= set(
        yaml.safe_load((CHART / "values.yaml").read_text())
    )
