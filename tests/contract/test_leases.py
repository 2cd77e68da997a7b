"""After the end of an exporter's lease, every write raises and no table changes."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any

import pytest
from bench import DATA, Bench
from fake_clock import FakeClock

from agent.app.discovery import exporter_names
from agent.app.lease import Lease, Lender, end_writers
from agent.core.checkpoint import StateFile
from agent.core.log import Logger
from agent.hardware.ledger import CheckState
from agent.ranks.table import RankTable
from agent.sdk.exporter import Context, LeaseEnded, NoData, Roots
from agent.sdk.hardware import NODE
from agent.sdk.helper import HelperSpec
from agent.sdk.ranks import (
    ExitStatus,
    ProcessFacts,
    ProcessKey,
    RankLabel,
    RankSpeed,
    RankWriter,
    RasSilence,
    WriterKey,
)

CONSTANT = {"roots", "clock", "hostname", "once"}
OWN = {"log", "failures", "hangs"}
"""Fields that an update may use after the lease's end: they change nothing in the agent."""
KEY, RANK, RECORDS = ProcessKey(1, 2), RankLabel("7", "0"), WriterKey(64, 1, 0, "here", 1)
FACTS = ProcessFacts(KEY, 1.0, 1, "ann", "thread", {"RANK": "0", "SLURM_JOB_ID": "7"})
HELPER = HelperSpec("lease", "helper_targets:obey", int, memory_bytes=1024)

WRITES: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "ranks": {
        "keep_variables": (frozenset({"HOME"}),), "observe_process": (FACTS,), "observe_state": (KEY, "D"),
        "lose_sight": (), "observe_without_nccl": (1,), "observe_held_files": ({(1, 2): "/x"},),
        "observe_user": (1, "ann"), "observe_memberships": (KEY, ()), "observe_silences": ({},),
        "observe_exit": (KEY, ExitStatus(known=True)), "observe_exception": (KEY, "ValueError"),
        "observe_oom_kill": (KEY,), "observe_job_ends": ((),), "judge_changed": (),
        "observe_records": (RECORDS, (), None), "link": (RECORDS, KEY),
        "observe_read_otherwise": (frozenset({KEY}),), "observe_speeds": ({},),
    },
    "state": {"publish": (b"section",)},
    "admit": {"admit": ("owner", 1), "give_back": ("owner", 1), "release": ("owner",)},
    "checks": {
        "report": (NODE, "gpu_hot", CheckState.OK), "report_all": ({},), "latch": (NODE, "gpu_xid"),
        "clear": (NODE, ()), "rename": ("gpu", {}), "forget": ((),),
    },
    "hardware": {
        "observe_gpus": ((),), "observe_nics": ((),), "observe_gpu_processes": ({},), "observe_faults": ({},),
    },
    "evidence": {"offer": (None,), "tell_stalls": (dict,), "serve": (None,)},
    "exits": {"set_causes": ({},), "set_planned": ((),)},
    "note": {"say": ("text",)},
    "thread": {"__call__": ("late",)},
    "helper": {"__call__": (HELPER,)},
}  # fmt: skip
"""For each field of the Context, the calls that write, with arguments that they accept before the end."""
READS = {
    "ranks": {
        "snapshot", "kept_variables", "label", "recording_settings", "is_expired", "unlinked_writers", "process",
        "late_share",
    },
    "state": {"restore"},
    "hardware": {"gpus", "nics", "gpu_users"},
    "evidence": {"all", "stalls", "struck", "read_stalls"},
}  # fmt: skip
"""Calls that only read, and succeed after the end: their results are copies or immutable."""


def tables(lender: Lender) -> tuple[object, ...]:
    """Return the agent's tables that exporters fill."""
    ranks, facts = lender.ranks, lender.ranks.liveness.facts
    return (
        ranks.dump(),
        ranks.snapshot(),
        dict(ranks.variables),
        lender.ledger.entries(),
        dict(lender.hardware._by_source),
        [(offers.source, offers.make, offers.files) for offers in lender.evidence.offers],
        (dict(facts.causes), dict(facts.planned)),
        (lender.series.shares.taken, lender.series.refused),
        lender.state.encode().content,
        len(lender.helpers.all()),
    )


@pytest.fixture
def agent() -> Lender:
    """Provide an agent that knows one rank."""
    clock = FakeClock()
    ranks = RankTable(clock, "here", settle_at_once=True)
    state = StateFile(None, "", Logger("test"))
    made = Lender(roots=Roots(), clock=clock, hostname="here", ranks=ranks, state=state, once=False)
    RankWriter(ranks, "process").observe_process(FACTS)
    ranks.tick()
    return made


def calls_of(lent: object) -> set[str]:
    """Return the names of the public methods; `__call__` for a function."""
    if inspect.isroutine(lent):
        return {"__call__"}
    calls = {name for name in dir(lent) if not name.startswith("_") and callable(getattr(lent, name))}
    return calls - {"ensure_open", "close"}


def test_each_field_of_the_context_is_known(agent: Lender) -> None:
    """Each field of the context is a constant, belongs to the exporter, or has all its methods in WRITES and READS."""
    context = Lease(agent, "any").context
    assert {field.name for field in fields(Context)} == CONSTANT | OWN | WRITES.keys()
    for name, writes in WRITES.items():
        assert calls_of(getattr(context, name)) == writes.keys() | READS.get(name, set()), name


@pytest.mark.parametrize(("field", "name"), [(field, name) for field, calls in WRITES.items() for name in calls])
async def test_no_write_reaches_the_agent_after_the_end(agent: Lender, field: str, name: str) -> None:
    """A call that worked before the lease's end raises after it, and changes nothing."""
    lease = Lease(agent, "any", 1024)
    write, arguments = getattr(getattr(lease.context, field), name), WRITES[field][name]
    write(*arguments)
    await lease.close()
    before = tables(agent)
    with pytest.raises(LeaseEnded):
        write(*arguments)
    assert tables(agent) == before


async def test_what_holds_only_while_the_exporter_runs_ends_with_it(agent: Lender) -> None:
    """The end of a lease removes what its exporter wrote: series, offers of evidence, causes of exits, levels of
    hardware checks, and temporary facts about ranks."""
    agent.ranks.tick()
    before, lease = tables(agent), Lease(agent, "any", 1024)
    lent = lease.context
    lent.ranks.observe_silences({KEY: RasSilence(1.0, 2.0)})
    lent.ranks.observe_read_otherwise(frozenset({KEY}))
    lent.ranks.observe_without_nccl(3)
    lent.ranks.observe_speeds({RANK: RankSpeed(1e9)})
    lent.admit.admit("owner", 7)
    lent.checks.report(NODE, "gpu_hot", CheckState.FAILED)
    lent.exits.set_causes({RANK: "cuda_oom"})
    lent.evidence.offer(None)  # type: ignore[arg-type]
    assert (tables(agent) == before, agent.ranks.speeds.bandwidth(RANK) is None) == (False, False)
    await lease.close()
    assert (tables(agent) == before, agent.ranks.speeds.bandwidth(RANK) is None) == (True, True)


@pytest.mark.parametrize("name", exporter_names())
def test_a_late_update_of_an_exporter_changes_nothing(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A late update raises LeaseEnded or writes nothing, and logs no error."""
    bench = Bench(name, DATA / name)

    async def look() -> None:
        await bench.look()
        end_writers(bench._lease.context)
        bench.clock.advance(3600.0)  # each action at intervals is due
        before = tables(bench.lender)
        caplog.clear()
        for late in (bench.exporter.update, bench.exporter.drain):
            with suppress(LeaseEnded, NoData):
                await late()
            assert tables(bench.lender) == before
        await bench._lease.close()

    asyncio.run(look())
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []
