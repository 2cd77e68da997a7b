"""What a rank's environment says of the plugin's Prometheus mode. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from agent.sdk.files import atoi, strtoll

PLUGIN = "NCCL_PROFILER_PLUGIN"
ENABLE = "NCCL_INSPECTOR_ENABLE"
THREAD = "NCCL_INSPECTOR_DUMP_THREAD_ENABLE"
PROM_DUMP = "NCCL_INSPECTOR_PROM_DUMP"
INTERVAL = "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS"
VARIABLES = frozenset({PLUGIN, ENABLE, THREAD, PROM_DUMP, INTERVAL})
LEAST_INTERVAL_SECONDS = 30.0
"""The plugin writes no more often, whatever its setting. Also used for a setting in nccl.conf, which is not read."""
MOST_INTERVAL_SECONDS = 3600.0
"""A longer one is taken for this: values that are hours old are useless."""


def asks_for_means(environment: Mapping[str, str] | None) -> bool:
    """Whether the plugin is to write such files; False too where the environment does not say (nccl.conf may)."""
    settings = environment or {}
    return bool(atoi(settings.get(ENABLE, "0"))) and bool(atoi(settings.get(PROM_DUMP, "0")))


def will_write(environment: Mapping[str, str] | None) -> bool:
    """Whether it surely will, once there was an operation. Without an interval 2.30 never does, and 2.29 does."""
    settings = environment or {}
    has_thread = bool(settings.get(PLUGIN)) and bool(atoi(settings.get(THREAD, "1")))
    return asks_for_means(settings) and has_thread and strtoll(settings.get(INTERVAL, "-1")) >= 0


def interval_seconds(environment: Mapping[str, str] | None) -> float:
    """Return how far apart the plugin writes, at least."""
    seconds = strtoll((environment or {}).get(INTERVAL, "0")) / 1e6
    return min(max(seconds, LEAST_INTERVAL_SECONDS), MOST_INTERVAL_SECONDS)
