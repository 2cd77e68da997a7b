"""The command line of the doctor."""

import argparse
from collections.abc import Sequence

import msgspec

from agent.app.yaml_document import ConfigError
from agent.cli import own_agent
from agent.cli.doctor.checks import Diagnosis, examine
from agent.cli.doctor.facts import gather
from agent.cli.terminal import plain, plain_json


def main(arguments: Sequence[str]) -> int:
    """Ask, judge and print; returns the exit status: 0 all is well (notes aside), 1 something is wrong."""
    parser = argparse.ArgumentParser(
        prog="rankwatch doctor",
        description="Check this node's installation and print fixes. Exit status: 0 all is well, 1 something is wrong.",
    )
    own_agent.add_flags(parser)
    parser.add_argument("--prometheus", metavar="URL", help="also ask whether this Prometheus scrapes and watches us")
    parser.add_argument("--json", action="store_true", help="the findings as JSON: check, level, text, remedy")
    flags = parser.parse_args(list(arguments))
    try:
        place = own_agent.place_of(flags)
    except ConfigError:  # said by the configuration's own check
        place = own_agent.DEFAULT_PLACE
    diagnoses = examine(gather(place, flags.config_file, flags.prometheus))
    if flags.json:
        print(plain_json(msgspec.json.encode([each._asdict() for each in diagnoses]).decode()))  # noqa: T201  # its answer
    else:
        print(told(diagnoses))  # noqa: T201  # its answer
    return 1 if any(each.level == "wrong" for each in diagnoses) else 0


def told(found: Sequence[Diagnosis]) -> str:
    """Return the findings as lines of text, each with its remedy."""
    lines = [
        f"{each.level.upper():5}  {each.check}: {plain(each.text)}\n       -> {plain(each.remedy)}" for each in found
    ]
    wrong = sum(each.level == "wrong" for each in found)
    return "\n".join([*lines, "all is well" if not wrong else f"{wrong} to mend"])
