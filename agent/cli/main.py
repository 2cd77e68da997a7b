"""The command line of rankwatch: flags in Prometheus' dotted style, and commands."""

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
    "job": ("agent.cli.job.command", "show a job over all its nodes, from Prometheus"),
    "explain": ("agent.cli.explain.command", "explain the last incident of a job"),
    "evidence": ("agent.cli.evidence", "show the evidence saved when ranks died"),
    "exclude": ("agent.cli.exclude", "list nodes where jobs repeatedly fail first"),
    "doctor": ("agent.cli.doctor.checks", "check the installation and print fixes"),
    "healthy": ("agent.cli.healthy", "report whether the hardware of this node is healthy"),
    "mark": ("agent.cli.mark", "set a mark in the time line of a job"),
    "simulate": ("agent.simulate.cli", "run a simulated job"),
}
"""Each command's module and description. The module's ``main`` takes the arguments and returns the exit status."""
HELP = "help"

_NAMES_A_WEB_FILE = re.compile(rb"""\bconfig_file["']?\s*:\s*(?!""|'')\S""")
"""Matches `config_file` with a value in every spelling of YAML. A false match only costs memory."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: 0 success, 1 failure, 2 wrong arguments.

    `rankwatch healthy` returns 0 healthy, 1 not healthy, 2 unknown. A command returns 2 if Prometheus does not reply.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == [HELP]:
        given = [*(name for name in given[1:2] if name != HELP), "--help"]
    if given and given[0] in COMMANDS:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # the terminal's encoding may lack characters of a job's name
        module = importlib.import_module(COMMANDS[given[0]][0])  # imported late: the daemon needs no command
        try:
            return int(module.main(given[1:]))
        except BrokenPipeError:  # `| head` has read enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
    if given and not given[0].startswith("-"):
        near = difflib.get_close_matches(given[0], [*COMMANDS, HELP], n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; commands: {', '.join(sorted(COMMANDS))}"
        if given[0] in ("agent", "run", "start"):
            hint = ": the agent runs without a command: rankwatch --config.file FILE"
        print(f"rankwatch: no command {given[0]!r}{hint}", file=sys.stderr)  # noqa: T201  # the command's output
        return 2
    flags = _parser().parse_args(given)
    log.configure(flags.log_level, flags.log_format)
    if not _may_serve_tls(flags):
        leave_out_openssl()
    from agent.app.run import run  # noqa: PLC0415  # imports asyncio, so it must follow leave_out_openssl

    try:
        return run(flags)
    finally:
        log.flush()


def leave_out_openssl() -> None:
    """Make ``import ssl`` raise ImportError from now on, which asyncio handles; too late once ssl is loaded.

    Call this before asyncio is imported: asyncio loads ssl (6 MB of memory) wherever it can, even if unused.
    """
    cast(dict[str, object], sys.modules).setdefault("ssl", None)


def _may_serve_tls(flags: argparse.Namespace) -> bool:
    """Return True if OpenSSL may be needed; called before any import that would load it."""
    if flags.web_config_file is not None:
        return True
    if flags.config_file is None:
        return False
    try:
        return _NAMES_A_WEB_FILE.search(flags.config_file.read_bytes()) is not None
    except OSError:
        return False  # the daemon reports the error when it reads the file


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rankwatch",
        description="Per-rank bandwidth, liveness and health of NCCL and RCCL jobs on this node, for Prometheus.",
        epilog="commands:\n" + "".join(f"  {name:10}{does}\n" for name, (_, does) in COMMANDS.items()) + "\nexamples:\n"
        "  rankwatch --config.file /etc/rankwatch/rankwatch.yml   run the agent\n"
        "  rankwatch status                                       show the ranks on this node\n"
        "  rankwatch help explain                                 options of a command\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--config.file", dest="config_file", type=Path, metavar="FILE", help="YAML configuration")
    where = "address to serve at, can be repeated; overrides the configuration (default 127.0.0.1:19028)"
    add("--web.listen-address", dest="web_listen_address", metavar="HOST:PORT", action="append", help=where)
    web = "TLS, passwords and headers, in the format of Prometheus' exporters; overrides the configuration"
    add("--web.config.file", dest="web_config_file", type=Path, metavar="FILE", help=web)
    sockets = "serve at the sockets of rankwatch.socket"
    add("--web.systemd-socket", dest="web_systemd_socket", action="store_true", help=sockets)
    add("--path.procfs", dest="path_procfs", type=Path, default=Path("/proc"), metavar="DIR")
    add("--path.sysfs", dest="path_sysfs", type=Path, default=Path("/sys"), metavar="DIR")
    add("--log.level", dest="log_level", choices=log.LEVELS, default="info")
    add("--log.format", dest="log_format", choices=log.FORMATS, default="logfmt")
    add("--check-config", action="store_true", help="validate the configuration and exit")
    once = "read all recorded data of every host from the beginning, print the metrics and exit"
    add("--once", action="store_true", help=once)
    add("--version", action="version", version=f"rankwatch {__version__}")
    return parser
