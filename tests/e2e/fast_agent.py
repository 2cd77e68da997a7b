"""The agent on a node with a fast clock: `python fast_agent.py SECONDS [the agent's options]`."""

from __future__ import annotations

import sys
import time

from agent.cli.main import main
from agent.system.procfs import ProcFS

SECONDS = float(sys.argv.pop(1))
_time, _boot_seconds = time.time, ProcFS.boot_seconds

time.time = lambda: _time() + SECONDS
ProcFS.boot_seconds = lambda self: _boot_seconds(self) + SECONDS  # type: ignore[method-assign]
"""The kernel computes the boot time from the clock."""

if __name__ == "__main__":
    sys.exit(main())
