"""Gather the doctor's facts from the running agent, this machine and a Prometheus."""

import ctypes
import os
import re
import shutil
import stat
import time
import urllib.parse
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from agent.app.config import AgentConfig, Options, load
from agent.app.yaml_document import ConfigError
from agent.cli import own_agent
from agent.core import prometheus
from agent.page.ranks_json import NodeDocument
from agent.ranks.rank.verdict_thresholds import DEFAULTS, Thresholds

ASK_SECONDS = 10.0
START_SECONDS = 30.0  # An agent begins to serve metrics at most this long after its start
RETRY_SECONDS = 0.5
YOUNG_SECONDS = 60.0  # Inspector's exporter judges younger ranks neither
DEFAULT_RECORDS = "/var/lib/rankwatch/inspector"

UNITS = tuple(Path(f"/{folder}/systemd/system/rankwatch.service") for folder in ("etc", "lib", "usr/lib"))
DROP_IN = Path("/etc/systemd/system/rankwatch.service.d/50-other-users.conf")
SHARED_RULES = (Path("/usr/share/rankwatch/prometheus/rules"), Path("/opt/rankwatch/share/prometheus/rules"))
_RULE = re.compile(r"^ *- (?:record|alert): (\S+)$", re.MULTILINE)
_TIMEX_BYTES = 256
"""Larger than struct timex on any machine."""
_TIME_ERROR = 5

Samples = Mapping[str, list[tuple[dict[str, str], float]]]
"""(labels, value) of each series, by metric name."""


class DumpDirectory(NamedTuple):
    """A directory for records. ``mode`` None: it does not exist, or this user may not see it, as ``error`` says."""

    path: str
    mode: int | None
    free_share: float = 1.0
    error: str = ""


class Watcher(NamedTuple):
    """Facts from a Prometheus. ``targets``: for each shipped scrape job, False if the last scrape of this node failed.

    ``error``: why the query failed. ``unsent``: number of alerts that could not be sent in the last 5 minutes.
    ``clock_ahead_seconds``: how far this node's clock is ahead of Prometheus'; None if unknown. ``rules_missing``:
    names of the rules on this machine that Prometheus has not loaded. ``shows_password``: the password in Prometheus'
    address crosses the network unencrypted. ``placeholders``: alerts whose runbook link is still the example address.
    """

    url: str
    error: str = ""
    targets: Mapping[str, bool] = {}
    rule_groups: int = 0
    alertmanagers: int = 0
    unsent: float = 0.0
    clock_ahead_seconds: float | None = None
    rules_missing: tuple[str, ...] = ()
    verdict: Mapping[str, float] = MappingProxyType({})
    shows_password: bool = False
    placeholders: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts.

    ``config_error``, ``agent_error``: why the configuration or the agent could not be read; empty without an error.
    ``sees_own_user``: the service can read only the processes of its own user.
    """

    config_file: str = ""
    config_error: str = ""
    addresses: tuple[str, ...] = ()
    agent_error: str = ""
    document: NodeDocument | None = None
    samples: Samples = field(default_factory=dict)
    records: tuple[DumpDirectory, ...] = ()
    verdict: Thresholds = DEFAULTS
    nvidia_device: bool = False
    sees_own_user: bool = False
    clock_is_kept: bool = True
    watcher: Watcher | None = None

    def without_records(self) -> tuple[Counter[str], int]:
        """Return the number of running ranks without records by job, and the number of those too young to judge."""
        document = self.document
        if document is None or not self.records or "rankwatch_inspector_means_timestamp_seconds" in self.samples:
            return Counter(), 0
        now, up = document.now_seconds, document.up_seconds
        quiet = [rank for rank in document.ranks if rank.state == "alive" and rank.last_progress_seconds is None]
        old = [rank for rank in quiet if min(up, now - (rank.started_at_seconds or 0.0)) >= YOUNG_SECONDS]
        return Counter(rank.job_id for rank in old), len(quiet) - len(old)


def gather(agent: own_agent.AgentAddress, config_file: Path | None, url: str | None) -> Facts:
    """Query every source; failures become part of the facts.

    ``config_file`` None: the running agent's file, or without an agent the default file.
    """
    facts = Facts(
        nvidia_device=Path("/dev/nvidiactl").exists(),
        sees_own_user=any(path.exists() for path in UNITS) and not DROP_IN.exists(),
        clock_is_kept=_clock_is_kept(),
        watcher=None if url is None else ask_prometheus(url),
    )
    used = ""
    try:
        document = own_agent.document(agent, ASK_SECONDS)
        used = document.configuration.file
        samples = _samples(metrics(agent).decode("utf-8", "replace"))
        if not document.ready:  # the document is older than the wait for metrics
            document = own_agent.document(agent, ASK_SECONDS)
        facts = replace(facts, document=document, samples=samples)
    except (OSError, ValueError) as error:
        facts = replace(facts, agent_error=f"{agent}: {error}")
    path = (config_file or Path(used or own_agent.CONFIG_FILE)).absolute()
    is_named = bool(config_file or used)
    facts = replace(facts, config_file=str(path) if is_named or _may_be_there(path) else "")
    if config_file is None and used and not own_agent.is_text(path):
        return replace(facts, config_error=f"{path}: the agent's file cannot be read here; sudo rankwatch doctor")
    try:
        config = load(Options(path if facts.config_file else None)).config
        addresses = (agent.address,) if agent.is_given and not agent.is_local else config.web.addresses
        return replace(facts, addresses=addresses, records=_directories(config), verdict=config.verdict)
    except ConfigError as error:
        return replace(facts, config_error=str(error))


def metrics(agent: own_agent.AgentAddress) -> bytes:
    """Return the agent's metrics; wait up to START_SECONDS if the agent is starting. Raises as ``own_agent.read``."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return own_agent.read(agent, "/metrics", ASK_SECONDS)
        except own_agent.NotReadyError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(RETRY_SECONDS)


def _may_be_there(path: Path) -> bool:
    """Return True if the file exists, or if this user has no right to see the directory."""
    try:
        return path.is_file()
    except PermissionError:
        return True


def _clock_is_kept() -> bool:
    """Return True if the kernel's clock is synchronised (adjtimex(2), called here to read only)."""
    try:
        return bool(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)) != _TIME_ERROR)
    except (OSError, AttributeError):
        return True


def _directories(config: AgentConfig) -> tuple[DumpDirectory, ...]:
    section = config.exporters.get("inspector", {})  # the agent has already reported an invalid path
    paths = section.get("paths", [DEFAULT_RECORDS])
    is_on = section.get("enabled", True) is not False and isinstance(paths, list)
    return tuple(_directory(str(path)) for path in paths) if is_on else ()


def _directory(path: str) -> DumpDirectory:
    try:
        status = os.stat(f"{path}/")  # fails if the path is a file
        usage = shutil.disk_usage(path)
    except OSError as error:
        return DumpDirectory(path, None, error=error.strerror or "")
    return DumpDirectory(path, stat.S_IMODE(status.st_mode), usage.free / usage.total if usage.total else 1.0)


def _samples(text: str) -> Samples:
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples


_UNSENT = "increase(prometheus_notifications_errors_total[5m]) > 0"
_NUMBER = re.compile(r"(\w+_seconds)=([0-9.]*[0-9])")
PLACEHOLDER = "http://wiki.example/"
"""Example address of the runbooks in the shipped thresholds."""
_AHEAD = "rankwatch_node_time_seconds - timestamp(rankwatch_node_time_seconds)"


def ask_prometheus(url: str) -> Watcher:
    """Query the Prometheus at ``url`` for facts about this node."""
    node = os.uname().nodename
    try:
        groups = prometheus.get(url, "/api/v1/rules", {})["groups"]
        managers = prometheus.get(url, "/api/v1/alertmanagers", {})["activeAlertmanagers"]
        targets = prometheus.get(url, "/api/v1/targets", {"state": "active"})["activeTargets"]
        agents = [target for target in targets if str(target["labels"].get("job", "")).startswith("rankwatch")]
        ours = [target for target in agents if _is_here(target, node)]
        instances = {str(target["labels"]["instance"]) for target in ours}
        clocks = prometheus.samples(url, _AHEAD)
        ahead = [sample.value for sample in clocks if sample.labels.get("instance") in instances]
        rules = [rule for group in groups for rule in group["rules"]]
        runbooks = [(rule["name"], str(rule.get("annotations", {}).get("runbook_url", ""))) for rule in rules]
        # The description of alert Watchdog has the thresholds for exits.
        texts = [str(rule["annotations"]["description"]) for rule in rules if rule["name"] == "Watchdog"]
        return Watcher(
            prometheus.shown(url),
            targets={str(target["labels"]["job"]): target["health"] != "down" for target in ours},
            rule_groups=sum(str(group["name"]).startswith("rankwatch") for group in groups),
            alertmanagers=len(managers),
            unsent=sum(sample.value for sample in prometheus.samples(url, _UNSENT)),
            clock_ahead_seconds=max(ahead, key=abs, default=None),
            rules_missing=tuple(sorted(_shipped_rules() - {str(rule["name"]) for rule in rules})),
            verdict={name: float(value) for text in texts for name, value in _NUMBER.findall(text)},
            shows_password=prometheus.shows_password(url),
            placeholders=len({name for name, address in runbooks if address.startswith(PLACEHOLDER)}),
        )
    except (KeyError, TypeError, AttributeError):
        return Watcher(prometheus.shown(url), error=prometheus.NOT_PROMETHEUS)
    except (OSError, ValueError) as error:
        return Watcher(prometheus.shown(url), error=str(error))


def _shipped_rules() -> set[str]:
    """Return the names of the rules in the package on this machine; empty without the package."""
    names: set[str] = set()
    for folder in SHARED_RULES:
        with suppress(OSError):
            for path in sorted(folder.glob("*.yml")):
                names.update(_RULE.findall(path.read_text("utf-8", "replace")))
    return names


def _is_here(target: Mapping[str, Any], node: str) -> bool:
    import psutil  # noqa: PLC0415  # only --prometheus needs it

    host = str(urllib.parse.urlsplit(str(target["scrapeUrl"])).hostname or "")
    own_addresses = {address.address for interface in psutil.net_if_addrs().values() for address in interface}
    return host.partition(".")[0] == node.partition(".")[0] or host in own_addresses | {"localhost"}
