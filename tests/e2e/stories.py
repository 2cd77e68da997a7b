"""The stories of situations: the events of a job, step by step."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from stages import Stage
from watches import Watch

ONE_SCRAPE_SECONDS = 6.0
CUT_SECONDS = 60.0
CRASHES = 4
RUN_SECONDS = 75.0
"""Starts of a job that are more than 65 s apart count separately."""
LEAVE_SECONDS = 90.0


def send(rank: int, number: int) -> Callable[[Stage, str], None]:
    """Return the story of a signal to one rank."""

    def story(stage: Stage, name: str) -> None:
        with stage.event(name) as job:
            job.signal_rank(rank, number)

    return story


def leave(rank: int, code: int) -> Callable[[Stage, str], None]:
    """Return the story of a rank that exits."""

    def story(stage: Stage, name: str) -> None:
        with stage.event(name) as job:
            job.leave(rank, code)

    return story


def crash_and_abort(stage: Stage, name: str) -> None:
    """Crash a rank, and let the others abort because they miss it."""
    with stage.event(name) as job:
        job.signal_rank(1, signal.SIGSEGV)
        stage.pass_time(1.0)
        job.signal_all(signal.SIGABRT)


def kill_all(stage: Stage, name: str) -> None:
    """Kill all ranks by SIGKILL."""
    with stage.event(name) as job:
        job.signal_all(signal.SIGKILL)


def cancel_and_abort(stage: Stage, name: str) -> None:
    """Send SIGTERM to one node first; the ranks of the other node abort."""
    with stage.event(name) as job:
        job.signal_rank(0, signal.SIGTERM)
        job.signal_rank(1, signal.SIGTERM)
        stage.pass_time(2.0)
        job.signal_all(signal.SIGABRT)


def cancel(stage: Stage, name: str) -> None:
    """Send SIGTERM to all launchers, which forward it."""
    with stage.event(name) as job:
        job.signal_launchers(signal.SIGTERM)


def preempt(stage: Stage, name: str) -> None:
    """End the job, and start it again under its id once all ranks have exited."""
    cancel(stage, name)
    job = stage.jobs[name]
    for part in job.parts:
        part.wait(LEAVE_SECONDS)
    job.requeue(job.nodes)


def run_out_of_memory(stage: Stage, name: str) -> None:
    """Let the OOM killer kill a rank; the launcher ends the other one."""
    with stage.event(name) as job:
        job.grow(0)
        job.wait(0)
        job.signal_all(signal.SIGTERM)


def crash_twice(stage: Stage, name: str) -> None:
    """Crash ranks on two nodes within a second."""
    with stage.event(name) as job:
        job.signal_rank(0, signal.SIGSEGV)
        stage.pass_time(0.5)
        job.signal_rank(3, signal.SIGSEGV)


def die_one_by_one(stage: Stage, name: str) -> None:
    """Kill a rank, and another one within a minute after the page."""
    send(1, signal.SIGKILL)(stage, name)
    stage.wait_until_notified(name)
    stage.pass_time(10.0)
    stage.jobs[name].signal_rank(3, signal.SIGKILL)


def die_again(stage: Stage, name: str) -> None:
    """Kill a rank, start the job again under its id, and kill the rank again once the page is resolved."""
    send(1, signal.SIGKILL)(stage, name)
    stage.wait_until_notified(name)
    job = stage.jobs[name]
    job.signal_all(signal.SIGTERM)
    job.start()
    stage.wait_until_over(name)
    stage.site.wait_until_seen(job)
    send(1, signal.SIGKILL)(stage, name)
    stage.wait_until_notified(name, 2)


def crash_again_and_again(stage: Stage, name: str) -> None:
    """Crash the job RUN_SECONDS after the agent saw its start, and restart it some seconds later, several times."""
    job = stage.jobs[name]

    def noted(watch: Watch) -> float:
        try:
            age = f'rankwatch_job_start_age_seconds{{job_id="{name}"}}'
            return watch.prometheus.value(f"min(timestamp({age}) - {age})") or 0.0
        except OSError:  # a disturbance is in progress
            return 0.0

    def wait_until_noted(since: float) -> None:
        stage.wait(lambda: all(noted(watch) >= since for watch in stage.site.watches), 120.0, "the start")

    wait_until_noted(1.0)
    for _ in range(CRASHES):
        stage.pass_time(RUN_SECONDS)
        with stage.event(name):
            job.signal_rank(1, signal.SIGSEGV)
            job.signal_all(signal.SIGTERM)
        stage.pass_time(ONE_SCRAPE_SECONDS)
        started = time.time()
        job.start()
        wait_until_noted(started - 1.0)
    stage.wait_until_notified(name)


def lose_power(stage: Stage, name: str) -> None:
    """Cut the power of the only node."""
    with stage.event(name) as job:
        job.nodes[0].lose_power()
    stage.wait_until_notified(name, seconds=300.0)


def unplug(stage: Stage, name: str) -> None:
    """Take a node off the network for a minute; its programs keep running."""
    with stage.event(name) as job:
        job.nodes[1].cut()
        stage.pass_time(CUT_SECONDS)
        job.nodes[1].join()


def crash_on_a_fast_clock(stage: Stage, name: str) -> None:
    """Crash a rank on a node with a fast clock. The others end a second later, but earlier by the clocks."""
    with stage.event(name) as job:
        job.signal_rank(2, signal.SIGSEGV)
        stage.pass_time(1.0)
        job.signal_all(signal.SIGTERM)


def die_unseen(stage: Stage, name: str) -> None:
    """Kill a rank while its node is cut for one scrape; cut the node again for one scrape after the page."""
    node = stage.jobs[name].nodes[1]
    for _ in range(2):
        node.cut()
        if not stage.happened[name]:
            send(2, signal.SIGKILL)(stage, name)
        stage.pass_time(ONE_SCRAPE_SECONDS)
        node.join()
        stage.wait_until_notified(name)


def die_and_lose_the_agent(stage: Stage, name: str) -> None:
    """After the page, kill and restart the agent of the dead rank's node."""
    send(2, signal.SIGKILL)(stage, name)
    stage.wait_until_notified(name)
    agent = stage.jobs[name].nodes[1].agent
    agent.kill9()
    agent.start()
