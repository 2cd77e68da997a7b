"""What happens to jobs that hang: each takes a HungJob, and most the places of nodes in it."""

from __future__ import annotations

import signal
from collections.abc import Callable

from hangs import RANKS_PER_NODE, HungJob

Timed = tuple[float, Callable[[HungJob], None]]
"""When something happens to a job, in seconds since the first job hangs."""
CULPRIT = 6
"""On the second node of the job."""
LEAVER = 9
ONCE_STOPPED = 13
REPORTER, VICTIM, STANDBY = 0, 1, 3
"""Nodes by their place in the job."""


def wait_for_culprit(job: HungJob) -> None:
    """All ranks wait for one."""
    job.wait_for([CULPRIT])


def pause(job: HungJob) -> None:
    """No rank launches any more, all are equally far."""
    job.moving = False


def stop_rank(rank: int, job: HungJob) -> None:
    """A rank is stopped, and the others wait for it."""
    job.ras.signal(rank, signal.SIGSTOP)
    job.wait_for([rank])


def continue_rank(rank: int, job: HungJob) -> None:
    """The stopped rank goes on, and so does the job."""
    job.ras.signal(rank, signal.SIGCONT)
    job.go_on()


def leave_world(job: HungJob) -> None:
    """One rank leaves the world communicator."""
    job.leave_world(LEAVER)


def stop_node(place: int, job: HungJob) -> None:
    """SIGSTOP for all ranks of a node."""
    job.signal_node(place, signal.SIGSTOP)


def continue_node(place: int, job: HungJob) -> None:
    """SIGCONT for them."""
    job.signal_node(place, signal.SIGCONT)


def cut(place: int, job: HungJob) -> None:
    """A node's link in the ranks' network is down."""
    job.link(place, "down")


def cut_and_wait(place: int, job: HungJob) -> None:
    """A node's link is down, and all wait in the next collective."""
    cut(place, job)
    job.wait_for([])


def mend(place: int, job: HungJob) -> None:
    """The link is up."""
    job.link(place, "up")


def mend_and_go_on(place: int, job: HungJob) -> None:
    """The link is up, and the job goes on."""
    mend(place, job)
    job.go_on()


def refuse(job: HungJob) -> None:
    """The agent cannot connect to the ranks of its node."""
    job.loopback(REPORTER, "del")


def admit(job: HungJob) -> None:
    """It can again."""
    job.loopback(REPORTER, "add")


def restart_agent(place: int, job: HungJob) -> None:
    """A node's agent is killed and started."""
    job.restart_agent(place)


def end_agent(job: HungJob) -> None:
    """The asking agent is killed."""
    job.nodes[REPORTER].agent.kill9()


def start_agent(job: HungJob) -> None:
    """It is back."""
    job.nodes[REPORTER].agent.start()


def missing(place: int) -> dict[str, str]:
    """Return the ranks of a node, as missing."""
    return {str(rank): "missing" for rank in range(RANKS_PER_NODE * place, RANKS_PER_NODE * (place + 1))}
