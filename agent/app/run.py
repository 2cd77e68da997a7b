"""The daemon, a single pass or a check of the configuration, as the command line asks."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from agent.api import Roots
from agent.app.config import Loaded
from agent.app.daemon import Daemon, Options, load
from agent.app.once import run_once
from agent.app.supervisor import ExporterPlan, prepare
from agent.app.yaml_document import ConfigError
from agent.core.log import Logger
from agent.web.listen import parse_listen_address


def run(flags: argparse.Namespace) -> int:
    """Do what ``flags`` (of ``agent.cli.main``) say; return the exit status, as there."""
    roots = Roots(proc=flags.path_procfs, sys=flags.path_sysfs)
    options = Options(config_path=flags.config_file, listen_address=flags.web_listen_address, roots=roots)
    try:
        if options.listen_address is not None:
            parse_listen_address(options.listen_address)
        loaded = load(options)
        plan = prepare(loaded, Logger("config"))
    except (ConfigError, ValueError) as error:
        print(f"rankwatch: {error}", file=sys.stderr)  # noqa: T201  # a command's answer
        return 2
    if flags.check_config:
        print(f"rankwatch: the configuration is good; exporters: {', '.join(plan.enabled)}")  # noqa: T201  # likewise
        return 0
    if flags.once:
        sys.stdout.buffer.write(asyncio.run(run_once(options, plan)))
        return 0
    return asyncio.run(_serve(options, loaded, plan))


async def _serve(options: Options, loaded: Loaded, plan: ExporterPlan) -> int:
    return await Daemon(options, loaded, os.environ).run(plan)
