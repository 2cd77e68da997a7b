"""Check an installation and suggest fixes: pure checks, and the command line of `rankwatch doctor`."""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from agent.app.yaml_document import ConfigError
from agent.cli import own_agent
from agent.cli.doctor.facts import Facts, gather
from agent.cli.terminal import as_json, plain, say
from agent.export.exporter import HARDWARE_RIGHTS
from agent.page.describe import OTHER_USERS, WITHOUT_NCCL

FREE_SHARE = 0.05
CLOCK_SECONDS = 1.0
_RULES = "rules/*.yml in deploy/prometheus or /usr/share/rankwatch/prometheus"
SHIPPED_JOBS = ("rankwatch", "rankwatch-liveness")
_PUBLIC_STICKY = 0o1777
_LOOPBACK = ("127.", "localhost", "[::1]")

Level = Literal["wrong", "note"]


class NodeFinding(NamedTuple):
    """The result of one check.

    Level ``wrong`` needs a fix; level ``note`` reports a setting or past error that the reader perhaps does not know.
    """

    check: str
    text: str
    remedy: str
    level: Level = "wrong"


wrong = NodeFinding
note = partial(NodeFinding, level="note")


def examine(facts: Facts) -> list[NodeFinding]:
    """Return all findings; findings that need a fix come first."""
    findings = [finding for check in CHECKS for finding in check(facts)]
    return sorted(findings, key=lambda finding: finding.level != "wrong")


def _configuration(facts: Facts) -> Iterator[NodeFinding]:
    if facts.config_error:
        problem, _, remedy = facts.config_error.partition("; ")
        yield wrong("configuration", problem, remedy or "correct the file")
        return
    document = facts.document
    if not facts.config_file and document is not None:
        yield note(
            "configuration",
            "the agent has no configuration file: all settings are defaults",
            "to change a setting, write /etc/rankwatch/rankwatch.yml",
        )
    if document is not None and document.configuration.refused:
        yield wrong(
            "configuration",
            f"the agent refused it: {document.configuration.refused}",
            "correct the file, then reload; after a change of an address, web.config_file or state restart the agent",
        )
    uses = "" if document is None else document.configuration.file or "none"
    if uses and facts.config_file and Path(uses).resolve() != Path(facts.config_file).resolve():
        yield wrong(
            "configuration", f"the agent uses another file: {uses}", f"start it with --config.file={facts.config_file}"
        )


def _agent(facts: Facts) -> Iterator[NodeFinding]:
    if facts.agent_error:
        problem, _, remedy = f"no answer from {facts.agent_error}".partition("; ")
        yield wrong("agent", problem, remedy or "systemctl start rankwatch; journalctl -u rankwatch")
    elif facts.document is not None and not facts.document.ready:
        yield note("agent", "the agent is starting: not every exporter has run yet", "try again in a few seconds")


def _address(facts: Facts) -> Iterator[NodeFinding]:
    if not facts.agent_error and facts.addresses and all(address.startswith(_LOOPBACK) for address in facts.addresses):
        yield note(
            "address",
            f"the agent listens only on loopback ({', '.join(facts.addresses)}): no other host can reach it",
            'set web.listen_address to ":19028", and see docs/web.md for TLS',
        )


_PROBLEMS = "rankwatch_rank_identity_problems"


def _ranks(facts: Facts) -> Iterator[NodeFinding]:
    problems = {labels.get("problem"): count for labels, count in facts.samples.get(_PROBLEMS, [])}
    duplicate, unreadable, unidentified = map(problems.get, ("duplicate", "unreadable", "unidentified"))
    if unreadable:
        yield wrong("rights", f"the agent may not read the environment of {unreadable:.0f} rank processes", OTHER_USERS)
    elif unidentified:
        yield wrong(
            "ranks",
            f"{unidentified:.0f} rank processes without a known rank: their environment does not name it",
            "set RANK and WORLD_SIZE in the launcher, or enable Inspector",
        )
    if facts.sees_own_user and not unreadable:
        yield note("rights", "the service may not read the processes of other users", OTHER_USERS)
    if duplicate:
        yield wrong(
            "ranks",
            f"{duplicate:.0f} processes claim the job id and rank of another process",
            "give each job its own id: identity.job_id_variables",
        )


_SERIES: tuple[tuple[str, NodeFinding], ...] = (
    ("rankwatch_processes_without_nccl",
     note("ranks", WITHOUT_NCCL, "to show them as ranks: docs/jobs.md, Ranks without NCCL")),
    ("rankwatch_process_exit_status_unknown_total",
     note("kernel", "{count} rank processes ended with an unknown signal or exit status",
          "Linux from 6.15 on shows both without rights; else rankwatch-setup --with-other-users shows most exits")),
    ("rankwatch_checkpoint_save_errors_total",
     note("checkpoint", "{count} writes failed since the agent's start: without a checkpoint, counters restart at zero",
          "see the log for the reason; state.path must be writable for the agent")),
    ("rankwatch_exporter_series_dropped_total",
     note("series", "{count} series were dropped at a limit since the agent's start",
          "see RankwatchSeriesDropped in runbooks.md")),
)  # fmt: skip
"""The finding for each series with a value above 0."""


def _series(facts: Facts) -> Iterator[NodeFinding]:
    for name, finding in _SERIES:
        if count := sum(value for _, value in facts.samples.get(name, [])):
            yield finding._replace(text=finding.text.format(count=f"{count:.0f}"))
    for labels, up in facts.samples.get("rankwatch_helper_up", []):
        if not up:
            yield wrong("helper", f"helper process {labels.get('helper', '')} does not run", "see the log")


def _records(facts: Facts) -> Iterator[NodeFinding]:
    jobs, young = facts.without_records()
    for job_id, number in {} if "rankwatch_inspector_silent_ranks" in facts.samples else jobs.items():
        text = f"{number} rank(s) of job {job_id} write no records: no bandwidth, no late ranks"
        yield note("inspector", text, "set the variables of docs/jobs.md, if the job lacks them")
    if young:
        yield note("ranks", f"{young} rank(s) are new to the agent: not judged yet", "try again in a minute")


def _directories(facts: Facts) -> Iterator[NodeFinding]:
    for directory in facts.records:
        if directory.mode is None:
            remedy = f"mkdir -m 1777 {directory.path} (Permission denied: sudo rankwatch doctor)"
            yield wrong("inspector", f"{directory.path}: {directory.error}", remedy)
        elif directory.mode & _PUBLIC_STICKY != _PUBLIC_STICKY:
            yield note(
                "inspector",
                f"{directory.path} has mode {directory.mode:04o}: not every user's job can write to it",
                f"chmod 1777 {directory.path}, unless a TaskProlog makes directories in it",
            )
        if directory.mode is not None and directory.free_share < FREE_SHARE:
            free = f"{directory.free_share:.1%} free"
            yield wrong("disk", f"{directory.path}: {free}", "make room, or set `reclaim` of the exporter inspector")


def _exporters(facts: Facts) -> Iterator[NodeFinding]:
    for exporter in facts.document.exporters if facts.document is not None else ():
        problem = f"{exporter.name}: {exporter.why or 'see the log'}"
        if exporter.remedy == HARDWARE_RIGHTS:
            yield note("rights", problem, HARDWARE_RIGHTS)
        elif exporter.remedy or exporter.state == "down":
            yield wrong("exporter", problem, exporter.remedy or "journalctl -u rankwatch")
        elif exporter.state == "up" and exporter.why:
            yield note("exporter", problem, "journalctl -u rankwatch")
        elif exporter.name == "nvml" and exporter.state == "absent" and facts.nvidia_device:
            yield wrong("nvml", "this node has NVIDIA GPUs, but the agent sees none", "rankwatch-setup --with-hardware")


def _ras(facts: Facts) -> Iterator[NodeFinding]:
    reasons = {labels.get("reason", "") for labels, _ in facts.samples.get("rankwatch_ras_not_asked", [])}
    remedies = {
        "version_old": "update NCCL, and PyTorch's copy, to 2.29.2 or newer: older ones can crash when RAS is queried",
        "no_listener": "NCCL_RAS_ENABLE=0 disables RAS; NCCL_RAS_ADDR must be in `addresses` of exporter ras",
        "unowned_listener": "no process of the job listens at the RAS address: see NCCL_RAS_ADDR",
        "version_unknown": "the agent cannot read the version of the job's NCCL: use NVIDIA's or PyTorch's build",
        "network_namespace": "let the job use the network of the host, or run the agent in the job's network namespace",
        "too_large": "raise `max_ranks` of the exporter ras; docs/benchmarks.md has the cost of a query",
    }
    for reason in sorted(reasons & remedies.keys()):
        yield note("ras", f"the agent does not query RAS for a job: {reason}", remedies[reason])


def _clock(facts: Facts) -> Iterator[NodeFinding]:
    if not facts.clock_is_kept:
        text = "the kernel reports an unsynchronised clock"
        yield note("clock", text, "run chrony (with rtcsync), ntpd or systemd-timesyncd")


def _prometheus(facts: Facts) -> Iterator[NodeFinding]:
    watcher = facts.watcher
    if watcher is None:
        return
    if watcher.shows_password:
        text = "the password in Prometheus' address crosses the network unencrypted"
        yield note("prometheus", text, "use an https:// address")
    if watcher.error:
        yield wrong("prometheus", f"{watcher.url}: {watcher.error}", "give its address: http://prometheus:9090")
        return
    for job in SHIPPED_JOBS:
        if job not in watcher.targets:
            yield wrong(
                "prometheus",
                f"job {job} does not scrape this node",
                "add it: scrape/file_sd.yml in deploy/prometheus or /usr/share/rankwatch/prometheus",
            )
        elif not watcher.targets[job]:
            yield wrong("prometheus", f"job {job}'s last scrape of this node failed", f"{watcher.url}/targets says why")
    if not watcher.alertmanagers:
        yield wrong("alertmanager", "Prometheus has no Alertmanager", "alerting.alertmanagers in prometheus.yml")
    elif watcher.unsent:
        yield wrong("alertmanager", "alerts could not be sent in the last 5 minutes", "Prometheus' log says why")
    ahead = watcher.clock_ahead_seconds
    if ahead is not None and abs(ahead) > CLOCK_SECONDS:
        side = "ahead of" if ahead > 0 else "behind"
        yield wrong("clock", f"this node's clock is {abs(ahead):.1f} s {side} Prometheus'", "run chrony or ntpd")


def _rules(facts: Facts) -> Iterator[NodeFinding]:
    watcher = facts.watcher
    if watcher is None or watcher.error:
        return
    if not watcher.rule_groups:
        yield wrong("rules", "Prometheus has not loaded our rules", f"rule_files: {_RULES}")
    elif missing := watcher.rules_missing:
        text = f"{len(missing)} of this version's rules are not loaded, such as {missing[0]}"
        yield note("rules", text, f"{_RULES}, of the version that the agents have; then reload")
    for name, rule_value in {} if facts.config_error else watcher.verdict.items():
        if (agent_value := getattr(facts.verdict, name, rule_value)) != rule_value:
            text = f"the rules use {name} {rule_value:g}, the agent {agent_value:g}"
            yield wrong("rules", text, "build.py --agent, with this configuration")
    if watcher.placeholders:
        text = f"the runbook links of {watcher.placeholders} alerts have an example address"
        remedy = "set `runbooks` in your thresholds to your copy of docs/runbooks.md, and build the rules"
        yield note("rules", text, remedy)


CHECKS: tuple[Callable[[Facts], Iterable[NodeFinding]], ...] = (
    _agent, _configuration, _address, _ranks, _series, _exporters, _records, _directories, _ras, _clock,
    _prometheus, _rules,
)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Check the node and print the findings; return the exit status: 0 no fix is needed, 1 a fix is needed."""
    parser = argparse.ArgumentParser(
        prog="rankwatch doctor",
        description="Check this node's installation and print fixes. Exit status: 0 all is well, 1 something is wrong.",
    )
    own_agent.add_flags(parser)
    watches = "also check that this Prometheus scrapes the agent and has the rules"
    parser.add_argument("--prometheus", metavar="URL", help=watches)
    parser.add_argument("--json", action="store_true", help="the findings as JSON: check, level, text, remedy")
    flags = parser.parse_args(list(arguments))
    try:
        agent = own_agent.address_of(flags)
    except ConfigError:  # the check of the configuration reports it
        agent = own_agent.DEFAULT_ADDRESS
    findings = examine(gather(agent, flags.config_file, flags.prometheus))
    say(as_json([finding._asdict() for finding in findings]) if flags.json else as_text(findings))
    return 1 if any(finding.level == "wrong" for finding in findings) else 0


def as_text(findings: Sequence[NodeFinding]) -> str:
    """Return the findings with their remedies as lines of text."""
    lines = [
        f"{finding.level.upper():5}  {finding.check}: {plain(finding.text)}\n       -> {plain(finding.remedy)}"
        for finding in findings
    ]
    faults = sum(finding.level == "wrong" for finding in findings)
    return "\n".join([*lines, f"{faults} to mend" if faults else "the installation is well"])
