"""`rankwatch healthy`: report whether this node's hardware is healthy, for health checks of schedulers and launchers.

The command judges the hardware and not the ranks, because launchers run it before they restart ranks. The command ends
within two seconds, even if the agent hangs.
"""

import argparse
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from agent.app.yaml_document import ConfigError
from agent.cli import own_agent
from agent.cli.terminal import plain, say
from agent.hardware.ledger import CHECKS
from agent.ranks.health import CHECK_FAILED, NODE_HEALTHY, RANK_HEALTHY, RANK_UNHEALTHY

HEALTHY, NOT_HEALTHY, CANNOT_TELL = 0, 1, 2
"""Exit statuses, as node-problem-detector expects them."""
ASK_SECONDS = 1.5
"""Timeout of the query: with the start of Python, the command takes at most two seconds."""
MAX_NAMED = 8
"""Limit of failed checks named in the output, before "N more"."""
_QUERY = "/metrics?collect[]=health"


class Answer(NamedTuple):
    """The exit status, and one line of text."""

    status: int
    text: str


def main(arguments: Sequence[str]) -> int:
    """Query the agent, print one line and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="rankwatch healthy",
        description="Report whether this node's hardware is healthy. Exit status: 0 healthy, 1 not healthy, 2 unknown.",
    )
    parser.add_argument("--job", metavar="ID", help="only the hardware of this job's ranks on this node")
    own_agent.add_flags(parser)
    flags = parser.parse_args(list(arguments))
    agent: own_agent.AgentAddress | str = "the agent"
    try:
        with _ended_after(ASK_SECONDS):
            agent = own_agent.address_of(flags)
            text = own_agent.read(agent, _QUERY, ASK_SECONDS).decode("utf-8", "replace")
        answer = judge(text_string_to_metric_families(text), flags.job)
    except ConfigError as error:
        answer = Answer(CANNOT_TELL, f"cannot tell: {error}")
    except (OSError, ValueError) as error:
        answer = Answer(CANNOT_TELL, f"cannot tell: no answer from {agent}: {error}")
    except Exception as error:  # noqa: BLE001  # an uncaught error would exit with 1, which means not healthy
        answer = Answer(CANNOT_TELL, f"cannot tell: cannot read the answer of {agent}: {error!r}")
    say(plain(answer.text))
    return answer.status


def judge(families: Iterable[Metric], job_id: str | None = None) -> Answer:
    """Return the verdict of the metrics on the node, or on the ranks of one job on this node."""
    samples = [sample for family in families for sample in family.samples]
    if job_id is None:
        verdicts = [sample.value for sample in samples if sample.name == NODE_HEALTHY.name]
        failed = [sample.labels for sample in samples if sample.name == CHECK_FAILED.name]
        against = [_failed(labels) for labels in sorted(failed, key=_order)]
        unknown = "cannot tell: no hardware of this node is checked"
    else:
        of_job = [sample for sample in samples if sample.labels.get("job_id") == job_id]
        verdicts = [sample.value for sample in of_job if sample.name == RANK_HEALTHY.name]
        failed = [sample.labels for sample in of_job if sample.name == RANK_UNHEALTHY.name]
        against = sorted(f"{labels['reason'].replace('_', ' ')} under rank {labels['rank']}" for labels in failed)
        unknown = f"cannot tell: this node has no rank of job {job_id} with known hardware"
    if not verdicts:
        return Answer(CANNOT_TELL, unknown)
    if all(verdicts):
        return Answer(HEALTHY, "healthy")
    more = len(against) - MAX_NAMED
    named = "; ".join(against[:MAX_NAMED]) or "the agent does not say why"
    return Answer(NOT_HEALTHY, f"not healthy: {named}" + (f"; {more} more" if more > 0 else ""))


def _order(labels: dict[str, str]) -> tuple[bool, str, str]:
    """Return a sort key: checks that by default make a node unhealthy come first."""
    return not CHECKS.get(labels["check"], True), labels["check"], labels["name"]


def _failed(labels: dict[str, str]) -> str:
    """Return a failed check with its hardware as text: ``nvlink down on gpu GPU-1``."""
    hardware = f" on {labels['kind']} {labels['name']}" if labels["name"] else ""
    return f"{labels['check'].replace('_', ' ')}{hardware}"


@contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """Raise TimeoutError after ``seconds``, even while a reply still arrives."""

    def end(_number: int, _frame: object) -> None:
        raise TimeoutError(f"not within {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
