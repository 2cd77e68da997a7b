"""One pass over recorded data: `rankwatch --once`."""

from __future__ import annotations

import os

from agent.app.options import Options
from agent.app.supervisor import ExporterPlan, Supervisor
from agent.core.checkpoint import StateFile
from agent.core.clock import SystemClock
from agent.core.log import Logger
from agent.core.threads import OwnThread
from agent.export.exposition import Selection
from agent.export.registry import Registry, Source


async def run_once(options: Options, plan: ExporterPlan) -> bytes:
    """One pass over recorded data: every exporter once, no streams, no checkpoint; returns the text exposition."""
    clock = SystemClock()
    state = StateFile(None, "", Logger("checkpoint"))
    supervisor = Supervisor(clock, os.uname().nodename, options.roots, state, once=True)
    await supervisor.begin(plan, schedule=False)
    await supervisor.update_once()
    sources: list[Source] = [*supervisor.tables, *supervisor.running.values()]
    registry = Registry(lambda: sources, Logger("registry"), OwnThread("render"))
    rendered = await registry.render(Selection())
    await supervisor.stop()
    return rendered.body
