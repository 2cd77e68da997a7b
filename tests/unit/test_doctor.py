"""The doctor names each broken setting and nothing else; it reports that all is well if nothing is broken."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.cli.doctor import facts as facts_module
from agent.cli.doctor.checks import SHIPPED_JOBS, as_text, examine, main
from agent.cli.doctor.facts import DumpDirectory, Facts, Watcher, ask_prometheus
from agent.core import prometheus
from agent.export.exporter import HARDWARE_RIGHTS
from agent.page.ranks_json import Configuration, ExporterView, NodeDocument, Rank

FILE = "/etc/rankwatch/rankwatch.yml"
DOCUMENT = NodeDocument(
    rankwatch="0.2.0", hostname="gpu-7", now_seconds=1.0, up_seconds=60.0, ready=True,
    configuration=Configuration(FILE),
    exporters=(ExporterView(name="nvml", state="up"), ExporterView(name="amdgpu", state="absent")),
)  # fmt: skip
RANK = Rank(job_id="7", rank="0", state="alive", started_at_seconds=-59.0)
SILENT = ExporterView(name="inspector", state="absent", why="no records of x; run evil", remedy="set X")
BLIND = ExporterView(name="netdev", state="up", why="no pause frames", remedy=HARDWARE_RIGHTS)
WATCHER = Watcher(
    "http://p", targets=dict.fromkeys(SHIPPED_JOBS, True), rule_groups=9, alertmanagers=1, clock_ahead_seconds=0.1
)
PROBLEMS = "rankwatch_rank_identity_problems"
GOOD = Facts(
    config_file=FILE, addresses=(":19028",), document=DOCUMENT,
    samples={"rankwatch_helper_up": [({"helper": "ras"}, 1.0)], PROBLEMS: [({"problem": "duplicate"}, 0.0)]},
    records=(DumpDirectory("/var/lib/rankwatch/inspector", 0o1777, 0.5),), nvidia_device=True, watcher=WATCHER,
)  # fmt: skip


def shown(**more: Any) -> Facts:
    """Return a good node with other values in its document."""
    fields = {name: getattr(DOCUMENT, name) for name in DOCUMENT.__struct_fields__}
    return replace(GOOD, document=NodeDocument(**(fields | more)))


def test_the_document_is_as_new_as_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the agent was starting at the first query, doctor reads the agent's document again after the metrics."""
    documents = [shown(ready=False).document, DOCUMENT]
    monkeypatch.setattr(facts_module.own_agent, "document", lambda *_: documents.pop(0))
    monkeypatch.setattr(facts_module.own_agent, "read", lambda *_: b"up 1\n")
    gathered = facts_module.gather(facts_module.own_agent.DEFAULT_ADDRESS, Path("/dev/null"), None)
    assert (gathered.document, gathered.agent_error, documents) == (DOCUMENT, "", [])


def counted(name: str, value: float = 2.0, **labels: str) -> Facts:
    """Return a good node whose family ``name`` has only this series."""
    return replace(GOOD, samples={**GOOD.samples, name: [(labels, value)]})


def watched(**more: Any) -> Facts:
    """Return a good node with other replies of Prometheus."""
    return replace(GOOD, watcher=WATCHER._replace(**more))


BROKEN: dict[str, tuple[Facts, str, str, str]] = {
    "no-agent": (replace(GOOD, config_file="", addresses=("127.0.0.1:1",), document=None, agent_error="x; start it"),
     "agent", "no answer from x", "start it"),
    "no-such-key": (replace(GOOD, config_error=f"{FILE}:3: $.wbe: unknown key"), "configuration", "unknown key",
     "correct"),
    "not-readable": (  # the rules are not compared with default values
        replace(watched(verdict={"killed_behind_seconds": 20.0}), config_error=f"{FILE}: denied; as root"),
        "configuration", "denied", "as root",
    ),
    "refused": (shown(configuration=Configuration(FILE, "line 3")), "configuration", "the agent refused it: line 3",
     "reload"),
    "another-file": (shown(configuration=Configuration("/tmp/x.yml")), "configuration", "uses another file", FILE),
    "no-right": (counted(PROBLEMS, problem="unreadable"), "rights", "2 rank processes", "--with-other-users"),
    "no-rank": (counted(PROBLEMS, problem="unidentified"), "ranks", "2 rank processes without", "WORLD_SIZE"),
    "duplicates": (counted(PROBLEMS, problem="duplicate"), "ranks", "claim the job id and rank", "job_id_variables"),
    "silent": (replace(shown(ranks=(RANK,), exporters=(SILENT,)), samples={"rankwatch_inspector_silent_ranks": []}),
     "exporter", "inspector: no records of x; run evil", "set X"),
    "no-directory": (replace(GOOD, records=(DumpDirectory("/x", None, error="not there"),)), "inspector",
     "/x: not there", "mkdir -m 1777 /x"),
    "full-disk": (replace(GOOD, records=(DumpDirectory("/x", 0o1777, 0.02),)), "disk", "2.0% free", "reclaim"),
    "exporter-fails": (shown(exporters=(ExporterView(name="nvml", state="down", why="no library"),)), "exporter",
     "nvml: no library", "journalctl"),
    "gpus-unseen": (shown(exporters=(ExporterView(name="nvml", state="absent"),)), "nvml", "sees none",
     "--with-hardware"),
    "helper": (counted("rankwatch_helper_up", 0.0, helper="ras"), "helper", "ras does not run", "log"),
    "not-scraped": (watched(targets={"rankwatch": True}), "prometheus", "rankwatch-liveness does not scrape",
     "file_sd.yml"),
    "scrape-fails": (watched(targets={"rankwatch": True, "rankwatch-liveness": False}), "prometheus",
     "job rankwatch-liveness's last scrape", "/targets"),
    "no-rules": (watched(rule_groups=0), "rules", "has not loaded our rules", "rule_files"),
    "no-alertmanager": (watched(alertmanagers=0), "alertmanager", "no Alertmanager", "alerting"),
    "clock": (watched(clock_ahead_seconds=-3.2), "clock", "3.2 s behind", "chrony"),
    "numbers": (watched(verdict={"killed_behind_seconds": 20.0, "left_behind_seconds": 45.0}), "rules",
     "the rules use killed_behind_seconds 20, the agent 15", "build.py --agent"),
    "unsent": (watched(unsent=3.0), "alertmanager", "could not be sent", "log"),
    "no-prometheus": (watched(error="refused"), "prometheus", "http://p: refused", "address"),
}  # fmt: skip
NOTES: dict[str, tuple[Facts, str, str]] = {
    "defaults": (replace(shown(configuration=Configuration()), config_file=""), "configuration",
     "no configuration file"),
    "loopback": (replace(GOOD, addresses=("127.0.0.1:19028", "[::1]:1")), "address", "listens only on loopback"),
    "starting": (shown(ready=False), "agent", "the agent is starting"),
    "mode": (replace(GOOD, records=(DumpDirectory("/x", 0o755, 0.5),)), "inspector", "mode 0755"),
    "checkpoint": (counted("rankwatch_checkpoint_save_errors_total"), "checkpoint",
     "2 writes failed since the agent's start"),
    "dropped": (counted("rankwatch_exporter_series_dropped_total"), "series", "2 series"),
    "blind": (shown(exporters=(BLIND,)), "rights", "netdev: no pause frames"),
    "no-variables": (shown(ranks=(RANK,)), "inspector", "1 rank(s) of job 7 write no records"),
    "too-young": (shown(ranks=(RANK,), up_seconds=59.0), "ranks", "1 rank(s) are new to the agent"),
    "unreadable": (shown(exporters=(ExporterView(name="inspector", state="up", why="cannot read /x: see the log"),)),
     "exporter", "inspector: cannot read /x"),
    "own-user": (replace(GOOD, sees_own_user=True), "rights", "may not read the processes of other users"),
    "free-clock": (replace(GOOD, clock_is_kept=False), "clock", "unsynchronised clock"),
    "unknown-ends": (counted("rankwatch_process_exit_status_unknown_total"), "kernel",
     "2 rank processes ended"),
    "placeholders": (watched(placeholders=41), "rules", "the runbook links of 41 alerts"),
    "other-rules": (watched(rules_missing=("a:b", "c")), "rules",
     "2 of this version's rules are not loaded, such as a:b"),
    "bare-password": (watched(shows_password=True), "prometheus", "crosses the network unencrypted"),
    "old-nccl": (counted("rankwatch_ras_not_asked", 1.0, job_id="1", reason="version_old"), "ras", "version_old"),
}  # fmt: skip


def test_a_link_to_the_configuration_is_no_other_file(tmp_path: Path) -> None:
    """If the agent was started with a link to the configuration file, the doctor has no finding."""
    link = tmp_path / "link.yml"
    link.symlink_to(FILE)
    assert examine(shown(configuration=Configuration(str(link)))) == []


def test_all_is_well() -> None:
    """A good installation gives no finding, with and without Prometheus; a missing directory has its reason."""
    assert facts_module._directory("/dev/null/x") == DumpDirectory("/dev/null/x", None, error="Not a directory")
    assert (examine(GOOD), examine(replace(GOOD, watcher=None)), as_text([])) == ([], [], "the installation is well")


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken(name: str) -> None:
    """Each fault gives one finding, with its remedy."""
    facts, check, text, remedy = BROKEN[name]
    [finding] = examine(facts)
    assert (finding.check, finding.level) == (check, "wrong")
    assert text in finding.text
    assert remedy in finding.remedy


@pytest.mark.parametrize("name", NOTES)
def test_what_is_a_choice(name: str) -> None:
    """A setting that a site can have chosen is a note, not a fault."""
    facts, check, text = NOTES[name]
    [finding] = examine(facts)
    assert (finding.check, finding.level) == (check, "note")
    assert text in finding.text


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an agent the exit status is 1; JSON has all fields of a finding; a wrong configuration is one finding."""
    monkeypatch.setattr("agent.cli.doctor.facts.UNITS", ())
    config = tmp_path / "r.yml"
    config.write_text("wbe: {}\n")
    arguments = ["--web.listen-address", "127.0.0.1:1", "--config.file", str(config), "--json"]
    assert main(arguments) == 1
    findings = json.loads(capsys.readouterr().out)
    checks = [entry["check"] for entry in findings if entry["check"] != "clock"]  # varies by machine
    assert (checks, set(findings[0])) == (["agent", "configuration"], {"check", "level", "text", "remedy"})


@pytest.mark.parametrize(("url", "expected"), [
    ("http://u:secret@p:9090/x", "http://p:9090/x"),
    ("u:secret@p:9090", "p:9090"),
    ("http://u:se//secret@p/", "http://p/"),
    ("http://u:se/secret@p", "http://p"),
    ("http://u:secret@p//x", "http://p//x"),
    ("http://u:sec@secret@p", "http://p"),
])  # fmt: skip
def test_no_message_has_the_password(url: str, expected: str) -> None:
    """No message has any part of an address's password, even if the address is invalid."""
    assert prometheus.shown(url) == expected
    said = ask_prometheus(url)
    assert not any(part in said.url + said.error for part in ("u:", "secret", "'se", "sec@"))


def test_rules_of_another_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The doctor names the shipped rules that a Prometheus lacks, if the package is on this machine."""
    groups: list[dict[str, Any]] = [{"name": "rankwatch-agent", "rules": [{"name": "a:b"}, {"name": "Down"}]}]
    answers: dict[str, Any] = {
        "/api/v1/rules": {"groups": groups},
        "/api/v1/alertmanagers": {"activeAlertmanagers": [1]},
        "/api/v1/targets": {"activeTargets": []},
    }
    monkeypatch.setattr(prometheus, "get", lambda _url, path, _query: answers[path])
    monkeypatch.setattr(prometheus, "samples", lambda *_: [])
    monkeypatch.setattr(facts_module, "SHARED_RULES", (tmp_path, tmp_path / "none"))
    assert ask_prometheus("http://p").rules_missing == ()
    text = "groups:\n- name: x\n  rules:\n  - record: a:b\n    expr: c\n  - alert: Down\n  - alert: New\n"
    (tmp_path / "agent.yml").write_text(text)
    assert ask_prometheus("http://p").rules_missing == ("New",)
    assert ask_prometheus("http://p").verdict == {}
    groups[0]["rules"][1]["annotations"] = {"runbook_url": "http://wiki.example/rankwatch/runbooks#down"}
    assert ask_prometheus("http://p").placeholders == 1
    description = "It fires. The rules judge by killed_behind_seconds=20 end_seconds=300.5."
    groups[0]["rules"].append({"name": "Watchdog", "annotations": {"description": description}})
    assert ask_prometheus("http://p").verdict == {"killed_behind_seconds": 20.0, "end_seconds": 300.5}
    answers["/api/v1/targets"] = {"activeTargets": [{"labels": [], "scrapeUrl": ""}]}
    assert ask_prometheus("http://p").error == prometheus.NOT_PROMETHEUS
