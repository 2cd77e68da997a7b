"""The command line: flags in Prometheus' dotted style, and the commands `simulate` and `status`."""

from __future__ import annotations

import agent.core.without_tls  # noqa: F401  # before asyncio, which loads OpenSSL otherwise

# isort: split

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from agent import __version__
from agent.api import Roots
from agent.app.config import Loaded
from agent.app.daemon import Daemon, Options, load, run_once
from agent.app.supervisor import ExporterPlan, prepare
from agent.app.yaml_document import ConfigError
from agent.core import log
from agent.core.log import Logger
from agent.web.listen import parse_listen_address


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: 0 well, 1 it failed, 2 it was asked for wrongly."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["simulate"]:
        from agent.simulate.cli import main as simulate  # noqa: PLC0415  # the daemon needs none of it in memory

        return simulate(given[1:])
    if given[:1] == ["status"]:
        from agent.app.status import main as status  # noqa: PLC0415  # likewise

        return status(given[1:])
    flags = _parser().parse_args(given)
    log.configure(flags.log_level, flags.log_format)
    try:
        return _run(flags)
    finally:
        log.flush()


def _run(flags: argparse.Namespace) -> int:
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rankwatch",
        description="Per-rank bandwidth, liveness and health of NCCL and RCCL jobs on this node, for Prometheus.",
        epilog="Commands: `rankwatch status` shows the ranks of a running agent; `rankwatch simulate` runs a "
        "simulated job.",
    )
    parser.add_argument("--config.file", dest="config_file", type=Path, metavar="FILE", help="YAML configuration")
    parser.add_argument(
        "--web.listen-address",
        dest="web_listen_address",
        metavar="HOST:PORT",
        help="where to serve; overrides the configuration (default 127.0.0.1:19028)",
    )
    parser.add_argument("--path.procfs", dest="path_procfs", type=Path, default=Path("/proc"), metavar="DIR")
    parser.add_argument("--path.sysfs", dest="path_sysfs", type=Path, default=Path("/sys"), metavar="DIR")
    parser.add_argument("--log.level", dest="log_level", choices=log.LEVELS, default="info")
    parser.add_argument("--log.format", dest="log_format", choices=log.FORMATS, default="logfmt")
    parser.add_argument("--check-config", action="store_true", help="validate the configuration and leave")
    parser.add_argument(
        "--once",
        action="store_true",
        help="read all recorded data from its beginning, of every host, print the metrics and leave",
    )
    parser.add_argument("--version", action="version", version=f"rankwatch {__version__}")
    return parser
