"""Finds lines that make madengine fail a run. Pure. The lists are copies of madengine's."""

from __future__ import annotations

import re

MAX_LINE_CHARACTERS = 4096
"""The parser ignores the rest of a longer line."""

FAILURES = (
    "OutOfMemoryError", "HIP out of memory", "CUDA out of memory", "RuntimeError:", "AssertionError:", "ValueError:",
    "SystemExit", "failed (exitcode:", "Traceback (most recent call last)", "FAILED", "Exception:", "ImportError:",
    "ModuleNotFoundError:",
)  # fmt: skip
BENIGN = (
    "Failed to establish connection to the metrics exporter agent",
    "RpcError: Running out of retries to initialize the metrics agent",
    "Metrics will not be exported",
    "FutureWarning",
    "Opened result file:",
    "SQLite3 generation ::",
    "rocpd_op:",
    "rpd_tracer:",
    "RuntimeError: Console script timeout",
    "rocEnvTool/console.py",
    "rocEnvTool/rocenv_tool.py",
    "Found error pattern",
    "[rocprofv3]",
)
"""madengine ignores lines with one of these texts."""
_BENIGN = re.compile(
    r"^(?:[EW][0-9]{8}.{0,256}generateRocpd\.cpp|W[0-9]{8}.{0,256}simple_timer\.cpp|E[0-9]{8}.{0,256}tool\.cpp)",
    re.ASCII,
)


def read_failure(line: str) -> str:
    """Return the pattern by which a line fails a run; an empty text for nearly all lines and for benign lines."""
    text = line[:MAX_LINE_CHARACTERS]
    failure = next((words for words in FAILURES if words in text), "")
    if not failure or _BENIGN.search(text) or any(words in text for words in BENIGN):
        return ""
    return failure
