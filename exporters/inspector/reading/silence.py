"""Finds rank processes that enable Inspector, but whose other settings keep its records from the agent. Pure.

The rules are those of plugins/profiler/inspector, NCCL 2.28-2.30. Without a dump interval there is no dump thread, and
the plugin never writes, not even when the process ends (Inspector's README says otherwise). Prometheus mode and the
OTLP mode of newer versions write no JSON; OTLP mode takes precedence. Processes that inspector_prom reads do not count.
"""

from __future__ import annotations

import os.path
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum

from agent.sdk.files import atoi, strtoll
from agent.sdk.metrics import label_fields
from agent.sdk.ranks import ProcessFacts, RankSnapshot

GRACE_SECONDS = 60.0  # A process is judged only after this time: a first record shows that its settings work

RECORDING_VARIABLES = frozenset([
    "NCCL_PROFILER_PLUGIN", "NCCL_INSPECTOR_ENABLE", "NCCL_INSPECTOR_DUMP_THREAD_ENABLE",
    "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", "NCCL_INSPECTOR_DUMP_DIR", "NCCL_INSPECTOR_DUMP_COLL_RING_SIZE",
    "NCCL_INSPECTOR_DUMP_P2P_RING_SIZE", "NCCL_INSPECTOR_PROM_DUMP", "NCCL_INSPECTOR_OTEL_EXPORT", "SLURM_JOBID",
])  # fmt: skip
"""The environment variables that decide whether, where and how a process writes records."""


class SilenceCause(StrEnum):
    """Why the agent will never read a record of a process."""

    NO_PLUGIN = "no_plugin"
    NO_DUMP_THREAD = "no_dump_thread"
    OTLP_MODE = "otlp_mode"
    PROMETHEUS_MODE = "prometheus_mode"
    NO_INTERVAL = "no_interval"
    OTHER_DIRECTORY = "other_directory"


REMEDIES = {
    SilenceCause.NO_PLUGIN: "set NCCL_PROFILER_PLUGIN to the Inspector plugin",
    SilenceCause.NO_DUMP_THREAD: "unset NCCL_INSPECTOR_DUMP_THREAD_ENABLE",
    SilenceCause.OTLP_MODE: "records go to an OTLP endpoint; unset NCCL_INSPECTOR_OTEL_EXPORT to write files",
    SilenceCause.PROMETHEUS_MODE: "unset NCCL_INSPECTOR_PROM_DUMP, which replaces the JSON lines; or, if means are "
    "enough, enable exporters.inspector_prom and set NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS",
    SilenceCause.NO_INTERVAL: "set NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS, to 100000 for instance",
    SilenceCause.OTHER_DIRECTORY: "add NCCL_INSPECTOR_DUMP_DIR to exporters.inspector.paths, or set it to one of them",
}


def silence_of(facts: ProcessFacts, paths: Sequence[str]) -> SilenceCause | None:
    """Return why the agent will never read the process's records in ``paths``; None if it can, or Inspector is off."""
    settings = facts.environment
    if settings is None or not atoi(settings.get("NCCL_INSPECTOR_ENABLE", "0")):
        return None
    if not settings.get("NCCL_PROFILER_PLUGIN"):
        return SilenceCause.NO_PLUGIN
    if not atoi(settings.get("NCCL_INSPECTOR_DUMP_THREAD_ENABLE", "1")):
        return SilenceCause.NO_DUMP_THREAD
    if atoi(settings.get("NCCL_INSPECTOR_OTEL_EXPORT", "0")):
        return SilenceCause.OTLP_MODE
    if atoi(settings.get("NCCL_INSPECTOR_PROM_DUMP", "0")):
        return SilenceCause.PROMETHEUS_MODE
    # 0: no dump thread before NCCL 2.30; a dump thread that never pauses since 2.30. Only records can show which.
    if strtoll(settings.get("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", "-1")) < 0:
        return SilenceCause.NO_INTERVAL
    directory = _dump_directory(facts, settings)
    return SilenceCause.OTHER_DIRECTORY if directory and not _is_read(directory, paths) else None


def silent_ranks(ranks: RankSnapshot, paths: Sequence[str], now: float) -> Counter[tuple[str, SilenceCause]]:
    """Count processes without records by job and cause, GRACE_SECONDS after their discovery; ``now`` is monotonic."""
    silent = [
        (label_fields(process.labels)["job_id"], silence_of(process.facts, paths))
        for key, process in ranks.running.items()
        if key not in ranks.read_otherwise and process.has_no_records(now - GRACE_SECONDS)
    ]
    return Counter((job_id, cause) for job_id, cause in silent if cause is not None)


def in_words(silent: Counter[tuple[str, SilenceCause]]) -> tuple[str, str]:
    """Return a sentence about the most frequent job and cause, and the remedy; both are empty if no rank is silent."""
    for (job_id, cause), count in silent.most_common(1):
        return f"{count} rank(s) of job {job_id} enable Inspector, but the agent reads no records", REMEDIES[cause]
    return "", ""


def _dump_directory(facts: ProcessFacts, settings: Mapping[str, str]) -> str:
    """Return the plugin's dump directory; "" when unknown, as in a container, which has paths of its own."""
    if facts.container or facts.pod or facts.namespace_pid != facts.key.pid:
        return ""
    job = re.match(r"\s*[+-]?[0-9]{1,20}", settings.get("SLURM_JOBID", ""), re.ASCII)
    default = f"nccl-inspector-{int(job[0])}" if job is not None else "nccl-inspector-unknown-jobid"
    configured = settings.get("NCCL_INSPECTOR_DUMP_DIR") or default
    if not configured.startswith("/") and not facts.directory.startswith("/"):
        return ""
    return os.path.normpath(os.path.join(facts.directory, configured))


def _is_read(directory: str, paths: Sequence[str]) -> bool:
    """Return True when ``paths``, searched one level deep, reach files in ``directory``."""
    roots = {os.path.normpath(path) for path in paths}
    return directory in roots or os.path.dirname(directory) in roots
