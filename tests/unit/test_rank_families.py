"""The rank table's metrics."""

from client_metrics import samples
from rank_table import KILLED, WORLD, Table, environment

from agent.core.identity import Membership
from agent.core.log import Logger
from agent.core.threads import OwnThread
from agent.export.exposition import Selection
from agent.export.registry import Registry, Source
from agent.ranks import families as rank_families, liveness_families


def exposition(table: Table) -> set[str]:
    """Return the table's samples in the form name{values} value."""
    return {
        f"{s.name}{{{','.join(s.labels.values())}}} {s.value:g}"
        for page in (rank_families, liveness_families)
        for s in samples(page.families(table.ranks.timed_snapshot()))
    }


def test_families_of_live_and_dead(table: Table) -> None:
    """A live rank has an info series; a dead rank has exit series and no info; members and jobs are counted."""
    keys = [table.add(pid, environment(pid)) for pid in (1, 2)]
    for pid, key in zip((1, 2), keys, strict=True):
        table.record(pid, [Membership(WORLD, pid, 8, "world", 2)], key)
    table.tick(1.0)
    table.ranks.observe_exit(keys[0], KILLED)
    lines = exposition(table)
    assert "rankwatch_rank_up{4711,1} 0" in lines
    assert "rankwatch_rank_up{4711,2} 1" in lines
    assert "rankwatch_rank_exit_info{4711,1,signaled,SIGKILL,} 1" in lines
    assert "rankwatch_rank_info{4711,2,2,,,,,2,alice,,} 1" in lines
    assert not [line for line in lines if line.startswith("rankwatch_rank_info{4711,1")]
    assert "rankwatch_communicator_member_info{4711,aaaaaaaaaaaaaa,2,2} 1" in lines
    assert "rankwatch_communicator_info{4711,aaaaaaaaaaaaaa,world,8,2} 1" in lines
    assert "rankwatch_job_ranks{4711,exited} 1" in lines
    assert "rankwatch_job_ranks{4711,alive} 1" in lines
    assert not [line for line in lines if "rank_state{" in line or "job_ranks{" in line if line.endswith(" 0")]
    assert "rankwatch_job_expected_ranks{4711,environment} 8" in lines
    assert "rankwatch_job_expected_ranks{4711,communicator} 8" in lines


def test_a_rank_has_one_state(table: Table) -> None:
    """Each rank has exactly one state series, with value 1, in every state."""
    keys = [table.add(pid, environment(pid)) for pid in (1, 2)]
    table.tick(1.0)
    seen = []

    def look() -> None:
        rows = [
            s for s in samples(rank_families.families(table.ranks.timed_snapshot())) if s.name == "rankwatch_rank_state"
        ]
        assert [(s.labels["rank"], s.value) for s in rows] == [("1", 1.0), ("2", 1.0)]
        seen.append(rows[0].labels["state"])

    look()
    table.ranks.observe_state(keys[0], "T", None, kill_pending=False, finalized=False)
    table.tick(1.0)
    look()
    table.ranks.observe_exit(keys[0], None)
    look()
    table.ranks.observe_exit(keys[0], KILLED)
    table.tick(20.0)
    look()
    assert seen == ["alive", "unresponsive", "exited", "dead"]


async def test_the_time_of_the_node_is_that_of_the_scrape(table: Table) -> None:
    """Each page has the node's wall clock at the time of the page, even if no tick came since the last page."""
    registry = Registry(
        lambda: [Source("ranks", 50_000, table.ranks.timed_snapshot, rank_families.families)],
        Logger("registry"),
        OwnThread("render"),
    )
    for _ in range(2):
        table.clock.advance(0.25)
        page = (await registry.render(Selection(collect=frozenset({"ranks"})))).body.decode()
        [line] = [line for line in page.splitlines() if line.startswith("rankwatch_node_time_seconds ")]
        assert float(line.split()[1]) == table.clock.time()


def torchrun(rank: int, count: str, most: str = "3") -> dict[str, str]:
    """Return the environment of a rank after ``count`` restarts by torchrun."""
    return environment(rank) | {"TORCHELASTIC_MAX_RESTARTS": most, "TORCHELASTIC_RESTART_COUNT": count}


def test_restarts_to_come(table: Table) -> None:
    """torchrun's remaining restarts are shown during and after a run, from the newest processes."""
    old = [table.add(pid, torchrun(pid, "0")) for pid in (1, 2)]
    table.tick(1.0)
    assert "rankwatch_job_restarts_left{4711} 3" in exposition(table)
    for key in old:
        table.ranks.observe_exit(key, KILLED)
    table.tick(1.0)
    assert "rankwatch_job_restarts_left{4711} 3" in exposition(table)
    new = table.add(11, torchrun(1, "1"))
    table.tick(1.0)
    assert "rankwatch_job_restarts_left{4711} 2" in exposition(table)
    table.ranks.observe_exit(new, KILLED)
    table.tick(1.0)
    assert "rankwatch_job_restarts_left{4711} 2" in exposition(table.restarted())
