"""The command line of `rankwatch job`."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict

import msgspec

from agent.cli.job.facts import UNSEEN, gather
from agent.cli.job.text import told
from agent.cli.terminal import has_colours, plain, plain_json
from agent.core import prometheus

_BAD = frozenset({"dead", "unresponsive", "unknown", UNSEEN})


def main(arguments: Sequence[str]) -> int:
    """Ask Prometheus and print; returns the exit status: 0 all its ranks are well, 1 some are not, 2 no answer."""
    parser = argparse.ArgumentParser(
        prog="rankwatch job",
        description="Show a whole job over all its nodes: who is dead, late or missing, and who was first to go. "
        "Exit status: 0 no rank is dead, unresponsive or missing, 1 some are, or there is no such job, 2 no answer.",
    )
    parser.add_argument("job", metavar="ID", help="the job's id")
    parser.add_argument("--prometheus", metavar="URL", required=True, help="as http://prometheus:9090")
    parser.add_argument("--cluster", metavar="NAME", help="where one Prometheus watches several")
    parser.add_argument("--all", action="store_true", help="list the ranks without trouble, too")
    parser.add_argument("--json", action="store_true", help="all that is known, as JSON")
    flags = parser.parse_args(list(arguments))
    try:
        facts = gather(flags.prometheus, flags.job, flags.cluster)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        where = prometheus.shown(flags.prometheus)
        print(f"rankwatch job: no answer from {plain(where)}: {plain(str(error))}", file=sys.stderr)  # noqa: T201  # its answer
        return 2
    if flags.json:
        text = plain_json(msgspec.json.format(msgspec.json.encode(asdict(facts)), indent=2).decode())
    else:
        text = told(facts, every=flags.all, colour=has_colours())
    print(text)  # noqa: T201  # its answer
    is_well = facts.ranks and not any(each.state in _BAD for each in facts.ranks)
    return 0 if is_well else 1
