"""The rules on late ranks and slow links, on recorded jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from full import FULL
from recordings import Phase
from replays import replay
from rules import GROUPS, build_rules, promtools, run_promtool, why_no_promtool

SOON = {"slow_for": "1m"}
SHIPPED: dict[str, str] = {}
DP = "1fa4c2eba3da83"
"""The communicator of all ranks."""
WAITING_SECONDS = 420
"""Longer than the five-minute window of the rates."""


class Verdict(NamedTuple):
    """The only alert that fires, the rank that it names, and the slow communicators."""

    alert: str | None = None
    late: str = ""
    slow: tuple[str, ...] = ()


RANK_IS_LATE = Verdict("StragglerRank", late="2")
DP_IS_SLOW = Verdict("SlowCommunicator", slow=(DP,))
NOTHING = Verdict()


class Case(NamedTuple):
    """A job on one node (all operations are matched) or two (counters are used for the DP communicator)."""

    name: str
    phases: list[Phase]
    hosts: int
    verdict: Verdict
    thresholds: dict[str, str] = SOON


def straggler(folder: str, hosts: int, lossy_rank: int | None = None) -> Case:
    """Return a job in which rank 2 computes 2 ms longer, so that its TP group enters the world communicator late."""
    return Case(folder, [Phase(folder, WAITING_SECONDS, lossy_rank)], hosts, RANK_IS_LATE)


def slow_link(hosts: int, lossy_rank: int | None = None) -> Case:
    """Return a job in which the network of rank 6 falls to 30 % of its speed."""
    phases = [Phase("late_nobody", 1080, lossy_rank), Phase("late_nic", 480, lossy_rank)]
    return Case("late_nic", phases, hosts, DP_IS_SLOW)


def healthy(hosts: int, lossy_rank: int | None = None) -> Case:
    """Return a healthy job, long enough that the rules compare a communicator with its own past."""
    return Case("late_nobody", [Phase("late_nobody", 1200, lossy_rank)], hosts, NOTHING)


QUICK = [straggler("late_tp", 2)]
REST = [
    straggler("late_verbose", 2, lossy_rank=2),
    slow_link(2),
    straggler("late_tp", 1),
    straggler("late_tp", 1, lossy_rank=2),
    straggler("late_tp", 2, lossy_rank=2),
    straggler("late_verbose", 2),
    slow_link(1),
    slow_link(1, lossy_rank=6),
    slow_link(2, lossy_rank=6),
    healthy(1),
    healthy(2),
    healthy(1, lossy_rank=2),
    healthy(2, lossy_rank=2),
    Case("shipped late_tp", [Phase("late_tp", 1080)], 2, RANK_IS_LATE, SHIPPED),
    Case("shipped late_nic", [Phase("late_nobody", 1080), Phase("late_nic", 1080)], 2, DP_IS_SLOW, SHIPPED),
]


def case_id(case: Case) -> str:
    """Return the name of the recording, the number of nodes and the rank with lost records."""
    lossy = case.phases[0].lossy_rank
    return f"{case.name}-nodes{case.hosts}" + ("" if lossy is None else f"-lossy{lossy}")


@pytest.mark.skipif(why_no_promtool() is not None, reason=why_no_promtool() or "")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", QUICK + (REST if FULL else []), ids=case_id)
def test_culprits(tmp_path: Path, case: Case) -> None:
    """The rules name only the straggler and the slow communicator at any time, and no other alert fires."""
    gigabyte = "comm_size:rankwatch_gigabyte:seconds"
    alerts = ['{alertname="Watchdog",severity="info"}']
    if case.verdict.alert:
        rank = f',rank="{case.verdict.late}"' if case.verdict.late else ""
        alerts.append(f'{{alertname="{case.verdict.alert}",severity="ticket"{rank}}}')
    judged = {
        'group by (alertname, severity, rank) (max_over_time(ALERTS{alertstate="firing"}[2h]))': alerts,
        "group by (comm) (max_over_time(comm_size:rankwatch_slow:ratio[2h]))": (
            slow := [f'{{comm="{comm}"}}' for comm in case.verdict.slow]
        ),
        # The alert ignores operations that take little time, such as TP's, which have not become slower either.
        f"group by (comm) ({gigabyte} offset {case.phases[-1].seconds}s / {gigabyte} < 0.95)": slow,
    }
    test = {
        "name": case_id(case),
        "interval": "1s",
        "input_series": replay(case.phases, case.hosts),
        "promql_expr_test": [
            {
                "expr": expr,
                "eval_time": f"{sum(phase.seconds for phase in case.phases)}s",
                "exp_samples": [{"labels": labels, "value": 1} for labels in expected],
            }
            for expr, expected in judged.items()
        ],
    }
    file = tmp_path / "test.yml"
    rules = rules_with(case.thresholds, tmp_path)
    whole = {"rule_files": rules, "evaluation_interval": "45s", "group_eval_order": GROUPS, "tests": [test]}
    file.write_text(json.dumps(whole))  # JSON is YAML
    judges = promtools() if FULL else promtools()[:1]
    assert [said for promtool in judges if (said := run_promtool(promtool, "test", "rules", file))] == []


@pytest.mark.skipif(why_no_promtool() is not None, reason=why_no_promtool() or "")
@pytest.mark.parametrize(("expected", "slow"), [(0, False), (40, True), (20, False)])
def test_what_the_network_should_give(tmp_path: Path, expected: int, slow: bool) -> None:
    """A communicator with 25 GB/s is slow at once if 40 GB/s are expected, but not if 20 or none are expected."""
    labels = 'job_id="7",comm="c",collective="AllReduce",size="134217728"'
    series = {
        f'rankwatch_collective_operations_total{{{labels},rank="0",node="a"}}': "0+120x60",
        f'rankwatch_collective_bus_bytes_total{{{labels},rank="0",node="a"}}': "0+12e9x60",
        f'rankwatch_communicator_transfer_seconds{{{labels},node="a"}}': "0.004x60",
    }
    rules = rules_with({"expected_bandwidth_gigabytes_per_second": expected}, tmp_path)
    found = [{"labels": f'{{{labels},against="expected"}}', "value": 63}] if slow else []
    asked = {"expr": "round(comm_size:rankwatch_slow:ratio * 100)", "eval_time": "25m", "exp_samples": found}
    test = {
        "interval": "30s",
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "promql_expr_test": [asked],
    }
    file = tmp_path / "test.yml"
    whole = {"rule_files": rules, "evaluation_interval": "30s", "group_eval_order": GROUPS, "tests": [test]}
    file.write_text(json.dumps(whole))  # JSON is YAML
    assert [said for promtool in promtools() if (said := run_promtool(promtool, "test", "rules", file))] == []


def rules_with(thresholds: dict[str, Any], scratch: Path) -> list[str]:
    """Return the rules with these thresholds instead of the shipped ones."""
    return sorted(map(str, build_rules(scratch, thresholds).glob("*.yml")))
