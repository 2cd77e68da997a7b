"""Flight recorders, live: ranks whose environment names their dumps, dumps that appear there, and an agent."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from agents import Agent, Series, select
from flight_dumps import DATA, recorded
from neighbours import JOB, MALLORY, VICTIM, SharedNode, end, shared_node
from nodes import wait_until, why_no_nodes

from exporters.flight_recorder import book as families
from exporters.flight_recorder.exporter import LOOK_SECONDS

SCENARIO = "gpu_error_1st"
RANKS = (12, 13, 14)
SHOWN = (families.ENQUEUED.name, families.UNFINISHED.name)
DUMPS = families.DUMPS.name
LOOKS_SECONDS = 2 * LOOK_SECONDS + 10.0
"""A look, and what the machine's other work takes."""
_NUMBER = re.compile(rb"(?<=\x8a\x08).{8}", re.DOTALL)
"""One of eight bytes, as PyTorch's writer pickles all beyond 32 bits."""
_TIMES = range(1_500_000_000 * 10**9, 2_500_000_000 * 10**9)
"""Nanoseconds since the epoch, which no other number of these dumps is."""

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(why_no_nodes() is not None, reason=why_no_nodes() or ""),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv (util-linux) not found"),
]


def of_now(raw: bytes) -> bytes:
    """A recorded dump, but that its newest operation began just now."""
    newest = max(number for each in _NUMBER.findall(raw) if (number := int.from_bytes(each, "little")) in _TIMES)
    later = time.time_ns() - newest

    def shifted(found: re.Match[bytes]) -> bytes:
        number = int.from_bytes(found[0], "little")
        return (number + later * (number in _TIMES)).to_bytes(8, "little")

    return _NUMBER.sub(shifted, raw)


class Dumps:
    """Where the ranks of the job write theirs."""

    def __init__(self, shared: SharedNode) -> None:
        self._shared = shared
        self._directory = shared.directory / "victim-job"

    def rank(self, rank: int) -> subprocess.Popen[Any]:
        """Start a rank of the job, of sixteen; it can be told to kill itself."""
        names = {"RANK": str(rank), "LOCAL_RANK": str(rank % 8), "WORLD_SIZE": "16", "SLURM_JOB_ID": JOB}
        prefix = str(self._directory / "trace_rank_")
        return self._shared.rank(VICTIM, signal.SIGKILL, TORCH_NCCL_DEBUG_INFO_TEMP_FILE=prefix, **names)

    def put(self, rank: int, raw: bytes, uid: int = VICTIM) -> None:
        """Have a rank's dump there, written now by a user."""
        draft = self._directory / "draft"
        draft.write_bytes(raw)
        os.chown(draft, uid, uid)
        draft.replace(self._directory / f"trace_rank_{rank}")


def shown(agent: Agent, rank: int) -> Counter[tuple[str, ...]]:
    """What is shown of a rank of the job."""
    return told(each for name in SHOWN for each in agent.samples(name, job_id=JOB, rank=str(rank)))


def expected(rank: int) -> Counter[tuple[str, ...]]:
    """What the dump of a rank says, as the recorded exposition has it."""
    page = (DATA / "expected.prom").read_text()
    return told(each for name in SHOWN for each in select(page, name, rank=str(rank)))


def told(series: Iterable[Series]) -> Counter[tuple[str, ...]]:
    """Series without their job, in no order."""
    labels = [sorted((each.labels | {"job_id": "", "number": str(each.value)}).items()) for each in series]
    return Counter(tuple(f"{name}={value}" for name, value in each) for each in labels)


def test_dumps_are_shown_of_ranks_that_hang_and_that_left() -> None:
    """A dump is shown with its rank and job, also one written just before the rank was killed; no stranger's is."""
    raw = {rank: recorded(SCENARIO)[rank] for rank in RANKS}
    with shared_node() as shared:
        dumps = Dumps(shared)
        ranks = {rank: dumps.rank(rank) for rank in RANKS}
        with shared.agent() as agent:
            agent.wait_for_states({str(rank): "alive" for rank in RANKS})

            dumps.put(12, raw[12])  # of operations long ago
            agent.wait_for(DUMPS, 1.0, seconds=LOOKS_SECONDS, result="earlier_process")
            dumps.put(13, of_now(raw[13]), MALLORY)
            dumps.put(12, of_now(raw[12]))
            agent.wait_for(DUMPS, 1.0, seconds=LOOKS_SECONDS, result="read")
            agent.wait_for(DUMPS, 1.0, seconds=LOOKS_SECONDS, result="other_user")
            assert shown(agent, 12) == expected(12)
            written = agent.value(families.WRITTEN.name, job_id=JOB, rank="12")
            assert written == pytest.approx(time.time(), abs=2 * LOOKS_SECONDS)

            end(ranks[14])
            dumps.put(14, of_now(raw[14]))
            agent.wait_for(DUMPS, 2.0, seconds=LOOKS_SECONDS, result="read")
            assert shown(agent, 14) == expected(14)
            assert not shown(agent, 13)

            end(ranks[12])
            agent.wait_for_ending("12", ("signaled", "SIGKILL", ""))
            dumps.put(13, of_now(raw[13]))
            wait_until(lambda: shown(agent, 13) == expected(13), LOOKS_SECONDS, "the dump of rank 13")
            assert shown(agent, 12) == expected(12)
            assert shown(agent, 14) == expected(14)
            results = {each.labels["result"]: each.value for each in agent.samples(DUMPS)}
            assert results == {"read": 3.0, "earlier_process": 1.0, "other_user": 1.0}
            assert agent.value("rankwatch_exporter_up", exporter="flight_recorder") == 1.0
