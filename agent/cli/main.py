"""The command line: flags in Prometheus' dotted style, and commands."""

import argparse
import difflib
import importlib
import io
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from agent import __version__
from agent.core import log

COMMANDS = {
    "status": ("agent.cli.status", "show the ranks of the agent on this node"),
    "job": ("agent.cli.job.command", "show a job over all its nodes, by Prometheus"),
    "explain": ("agent.cli.explain.command", "tell the last incident of a job"),
    "evidence": ("agent.cli.evidence", "show what was saved when ranks died"),
    "exclude": ("agent.cli.exclude", "list nodes where jobs fail first, again and again"),
    "doctor": ("agent.cli.doctor.command", "check the installation and print fixes"),
    "healthy": ("agent.cli.healthy", "report whether the hardware of this node is healthy"),
    "mark": ("agent.cli.mark", "set a mark in the time line of a job"),
    "simulate": ("agent.simulate.cli", "run a simulated job"),
}
"""The module of each command, whose ``main`` takes its arguments and returns its exit status, and what it does."""
HELP = "help"

_NAMES_A_WEB_FILE = re.compile(rb"""\bconfig_file["']?\s*:\s*(?!""|'')\S""")
"""However YAML writes it; what is meant otherwise costs memory alone."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: 0 success, 1 failure, 2 wrong arguments.

    Those of `rankwatch healthy`: 0 healthy, 1 not healthy, 2 it cannot tell.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == [HELP]:
        given = [*given[1:2], "--help"]
    if given and given[0] in COMMANDS:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a job's name, say, which the terminal's encoding does not have
        module = importlib.import_module(COMMANDS[given[0]][0])  # the daemon needs none of it in memory
        try:
            return int(module.main(given[1:]))
        except BrokenPipeError:  # of `| head`, which has what it wants
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
    if given and not given[0].startswith("-"):
        near = difflib.get_close_matches(given[0], [*COMMANDS, HELP], n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(sorted(COMMANDS))}"
        print(f"rankwatch: no command {given[0]!r}{hint}", file=sys.stderr)  # noqa: T201  # its answer
        return 2
    flags = _parser().parse_args(given)
    log.configure(flags.log_level, flags.log_format)
    if not _may_serve_tls(flags):
        leave_out_openssl()
    from agent.app.run import run  # noqa: PLC0415  # imports asyncio: only now

    try:
        return run(flags)
    finally:
        log.flush()


def leave_out_openssl() -> None:
    """Have ``import ssl`` raise ImportError from now on, which asyncio expects; no effect once it is loaded.

    To be called before asyncio is imported, which loads it (6 MB of memory) wherever it is, needed or not.
    """
    cast(dict[str, object], sys.modules).setdefault("ssl", None)


def _may_serve_tls(flags: argparse.Namespace) -> bool:
    """Return whether OpenSSL may be needed: asked before anything is imported that would load it for nothing."""
    if flags.web_config_file is not None:
        return True
    if flags.config_file is None:
        return False
    try:
        return _NAMES_A_WEB_FILE.search(flags.config_file.read_bytes()) is not None
    except OSError:
        return False  # said when it is read


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rankwatch",
        description="Per-rank bandwidth, liveness and health of NCCL and RCCL jobs on this node, for Prometheus.",
        epilog="commands:\n" + "".join(f"  {name:10}{does}\n" for name, (_, does) in COMMANDS.items()) + "\nexamples:\n"
        "  rankwatch --config.file /etc/rankwatch/rankwatch.yml   run the agent\n"
        "  rankwatch status                                       what runs here, and how it is\n"
        "  rankwatch help explain                                 options of a command\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--config.file", dest="config_file", type=Path, metavar="FILE", help="YAML configuration")
    where = "where to serve, may be given again; overrides the configuration (default 127.0.0.1:19028)"
    add("--web.listen-address", dest="web_listen_address", metavar="HOST:PORT", action="append", help=where)
    web = "TLS, passwords and headers, in the format of Prometheus' exporters; overrides the configuration"
    add("--web.config.file", dest="web_config_file", type=Path, metavar="FILE", help=web)
    sockets = "serve at rankwatch.socket's sockets"
    add("--web.systemd-socket", dest="web_systemd_socket", action="store_true", help=sockets)
    add("--path.procfs", dest="path_procfs", type=Path, default=Path("/proc"), metavar="DIR")
    add("--path.sysfs", dest="path_sysfs", type=Path, default=Path("/sys"), metavar="DIR")
    add("--log.level", dest="log_level", choices=log.LEVELS, default="info")
    add("--log.format", dest="log_format", choices=log.FORMATS, default="logfmt")
    add("--check-config", action="store_true", help="validate the configuration and leave")
    once = "read all recorded data from its beginning, of every host, print the metrics and leave"
    add("--once", action="store_true", help=once)
    add("--version", action="version", version=f"rankwatch {__version__}")
    return parser
