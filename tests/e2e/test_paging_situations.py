"""Situations of jobs, nodes and watches, and their notifications, with the shipped rules, routes and times."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml
from memory_groups import NoMemoryGroupError, small_group
from nodes import wait_until
from paging import FULL, WATCHES, why_no_pages
from situations import LOST, NODES, PECULIAR, RANK_DEAD, SITUATIONS
from stages import Cast, Disturbance, Situation, Stage, stage
from stories import run_out_of_memory
from watches import LOSSY, Watch

WHY_NOT = why_no_pages()
if not FULL:
    WHY_NOT = "only with RANKWATCH_TEST_FULL=1: takes ten minutes"
pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or ""),
]

LARGE_AND_OLD = {"page_lived": "long|short", "page_ranks": 4}
"""Jobs of four ranks count as large, and young jobs as old; all else is as shipped, even Alertmanager's waits."""
TICKETS = {("ticket", "ClockSkew"), ("ticket", "LemonNode"), ("ticket", "RankwatchDown")}
"""The causes: a clock is fast, many jobs lose their first rank on one node, and a node is lost."""
MEMORY = "memory"
SMALL = Situation(
    "The OOM killer takes a rank, and the launcher ends the other",
    Cast((0, 1), ranks=2),
    run_out_of_memory,
    (RANK_DEAD,),
    ("rank 0 on 10.0.0.10 was killed by the OOM killer",),
)


def reload(stage: Stage) -> None:
    """Let Prometheus read changed rules: each group has one more rule."""
    for path in stage.site.rules.glob("*.yml"):
        rules = yaml.safe_load(path.read_text())
        for group in rules["groups"]:
            own = {"record": "site:targets:count", "expr": "count(up)", "labels": {"group": group["name"]}}
            group["rules"].append(own)
        path.write_text(yaml.safe_dump(rules))
    for watch in stage.site.watches:
        watch.prometheus.reload()


def restart_alertmanager(stage: Stage) -> None:
    """Stop Alertmanager for 40 s; a rank dies in this time."""
    for watch in stage.site.watches:
        watch.alertmanagers[0].kill(signal.SIGTERM)
    with stage.event("no-alertmanager") as job:
        job.signal_rank(1, signal.SIGSEGV)
    stage.pass_time(40.0)
    for watch in stage.site.watches:
        watch.alertmanagers[0].start()


def restart_prometheus(stage: Stage) -> None:
    """Kill Prometheus for 20 s, in which a rank dies."""
    for watch in stage.site.watches:
        watch.prometheus.kill()
    with stage.event("no-prometheus") as job:
        job.signal_rank(1, signal.SIGKILL)
    stage.pass_time(20.0)
    for watch in stage.site.watches:
        watch.prometheus.start()


def restart_agents(stage: Stage) -> None:
    """Restart all agents within a few seconds."""
    agents = [node.agent for number, node in enumerate(stage.cluster.nodes) if number != LOST]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda agent: agent.restart(), agents))


def cut_off(stage: Stage) -> None:
    """Cut Prometheus off from all nodes for 100 s, in which a rank dies."""
    stage.cluster.cut()
    stage.pass_time(20.0)
    with stage.event("no-network") as job:
        job.signal_rank(1, signal.SIGKILL)
    stage.pass_time(80.0)
    stage.cluster.join()


DISTURBANCES = {
    "rules": Disturbance("The rules are changed and read anew (SIGHUP), with open pages", reload, 30.0),
    "alertmanager": Disturbance("Alertmanager is stopped for 40 s, with open pages", restart_alertmanager, 40.0),
    "prometheus": Disturbance("Prometheus is killed and back after 20 s, with open pages", restart_prometheus, 50.0),
    "agents": Disturbance("All agents are started anew within seconds, with open pages", restart_agents, 60.0),
    "network": Disturbance("Prometheus is cut off from all nodes for 100 s, with open pages", cut_off, 95.0),
}


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Provide the results of all situations; without memory groups one situation is missing."""
    with contextlib.ExitStack() as stack:
        situations = dict(SITUATIONS)
        with contextlib.suppress(NoMemoryGroupError):
            group = stack.enter_context(small_group())
            situations[MEMORY] = SMALL._replace(cast=SMALL.cast._replace(group=group))
        directory = tmp_path_factory.mktemp("situations")
        options = {"watches": WATCHES, "peculiar": PECULIAR, "ticket_wait": "1m"}
        yield stack.enter_context(stage(directory, NODES, situations, DISTURBANCES, LARGE_AND_OLD, **options))


@pytest.fixture(params=WATCHES)
def watch(after: Stage, request: pytest.FixtureRequest) -> Watch:
    """Provide one of the watches."""
    return next(watch for watch in after.site.watches if watch.name == request.param)


@pytest.mark.parametrize("name", [*SITUATIONS, MEMORY])
def test_each_situation_notifies_once(after: Stage, watch: Watch, name: str) -> None:
    """Each incident is one notification of its cause, in time, and is not resolved while it lasts."""
    if name not in after.situations:
        pytest.skip("no memory group can be made")
    after.check(name, watch)


@pytest.mark.parametrize("what", DISTURBANCES)
def test_a_disturbed_monitor_notifies_no_receiver(after: Stage, watch: Watch, what: str) -> None:
    """A fault of Prometheus or Alertmanager repeats no notification and resolves none."""
    assert after.notifications_since(what, watch).pages == []


def test_no_other_notification_is_sent(after: Stage, watch: Watch) -> None:
    """No other page and no other ticket is sent."""
    known = {after.about(name) for name in after.situations}
    others = [page for page in watch.notifications() if page.about not in known]
    assert [page for page in others if (page.receiver, page.about) not in TICKETS] == []


def test_the_watchdog_goes_on(after: Stage, watch: Watch) -> None:
    """The dead man's switch gets its message again after all faults of Prometheus and Alertmanager."""
    began = max(after.disturbed.values())
    wait_until(
        lambda: any(message.time > began for message in watch.inbox.at("/dead-mans-switch")), 60.0, "the watchdog"
    )


def test_scrapes_were_lost(after: Stage) -> None:
    """The second Prometheus lost about one scrape in a hundred."""
    lossy = next(watch for watch in after.site.watches if watch.name == LOSSY)
    lost = lossy.lost.read_text().splitlines()
    asked = lossy.prometheus.value('sum(count_over_time(up{job=~"rankwatch.*"}[1h]))') or 0.0
    assert 0.002 < len(lost) / asked < 0.03, (len(lost), asked)
