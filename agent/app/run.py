"""Run the daemon, a single pass or a check of the configuration, as the command line requests."""

import argparse
import asyncio
import os
import sys

from agent.app.config import Options, load
from agent.app.daemon import Daemon
from agent.app.discovery import ExporterPlan, prepare
from agent.app.supervisor import Supervisor
from agent.app.web_terms import WebTerms
from agent.app.yaml_document import ConfigError
from agent.core.checkpoint import StateFile
from agent.core.clock import Clock
from agent.core.log import Logger
from agent.core.threads import OwnThread
from agent.export.exporter import Roots
from agent.export.exposition import Selection
from agent.export.registry import Registry
from agent.web.listen import inherited_listeners, parse_listen_address


def run(flags: argparse.Namespace) -> int:
    """Run what ``flags`` (of ``agent.cli.main``) request; return its exit status."""
    roots = Roots(proc=flags.path_procfs, sys=flags.path_sysfs)
    options = Options(
        config_path=flags.config_file,
        listen_addresses=tuple(flags.web_listen_address or ()),
        web_config_file=flags.web_config_file,
        roots=roots,
    )
    try:
        for address in options.listen_addresses:
            parse_listen_address(address)
        loaded = load(options)
        plan = prepare(loaded, Logger("config"))
        terms = WebTerms(options.web_file(loaded), Clock(), Logger("web"))
        terms.load()
        is_daemon = not flags.check_config and not flags.once
        inherited = inherited_listeners(os.environ, os.getpid()) if flags.web_systemd_socket and is_daemon else []
    except (ConfigError, ValueError) as error:
        print(f"rankwatch: {error}", file=sys.stderr)  # noqa: T201  # a command's answer
        return 2

    if flags.check_config:
        print(f"rankwatch: the configuration is valid; exporters: {', '.join(plan.enabled)}")  # noqa: T201  # a command's answer
        return 0
    if flags.once:
        sys.stdout.buffer.write(asyncio.run(run_once(options, plan)))
        return 0
    return asyncio.run(Daemon(options, loaded, os.environ, terms=terms, inherited=inherited).run(plan))


async def run_once(options: Options, plan: ExporterPlan) -> bytes:
    """Update every exporter once over recorded data, without streams and checkpoint; return the text exposition."""
    clock = Clock()
    state = StateFile(None, "", Logger("checkpoint"))
    supervisor = Supervisor(clock, os.uname().nodename, options.roots, state, once=True)
    await supervisor.begin(plan, schedule=False)
    await supervisor.update_once()
    sources = [*supervisor.tables, *(running.source for running in supervisor.running.values())]
    registry = Registry(lambda: sources, Logger("registry"), OwnThread("render"))
    rendered = await registry.render(Selection())
    await supervisor.stop()
    return rendered.body
