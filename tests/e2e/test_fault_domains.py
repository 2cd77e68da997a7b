"""One link of a rack fails, and all its nodes say something: what people are told of 16 nodes with four GPUs each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rules import DEPLOY, GROUPS, promtools, run_promtool, why_no_promtool, write_case

from agent.api import Told, gpu_faults

pytestmark = [
    pytest.mark.skipif(why_no_promtool() is not None, reason=why_no_promtool() or ""),
    pytest.mark.timeout(300),
]

RULES = [DEPLOY / "rules/liveness.yml", DEPLOY / "rules/hardware.yml"]
NODES, GPUS = 16, 4
DOMAIN = "0a0b0c0d-0000-4000-8000-000000000001"
CULPRIT = ("n07", 1)
FAILED_AT = 120
"""When the link fails; all times in seconds of the test."""
LINK_DOWN = Told("149", "NETIR_LINK_EVT", "14", "fatal")
NO_ANSWER = Told("145", "RLW_SRC_TRACK", "3", "nonfatal")
STEPS = 70
BOTH_ALERTS = 'ALERTS{alertname=~"RankUnhealthy|HardwareFailed",alertstate="firing"}'
BOARDS, RUNBOOKS = "http://localhost:3000/d", "http://wiki.example/rankwatch/runbooks"
RACK_PAGE = (
    "4 rank(s) on n07 run on hardware that failed under them: 28 of job 7 (gpu_recovery_action) 29 of job 7 "
    "(gpu_recovery_action gpu_xid) 30 of job 7 (gpu_recovery_action) 31 of job 7 (gpu_recovery_action). Its driver "
    "said: Xid 149 (NVLink 14 down, fatal) on GPU 1 at 00:02:{seconds:02} UTC: GPU reset required. 15 more node(s) of "
    "its NVLink domain failed with it. Likely cause: that GPU or NIC, its link or driver, or the node, as the checks "
    "say. Do first: drain the node."
)
CRASH_TEXT = (
    "Rank 0 on n00 aborted (SIGABRT), the first of job 7. 3 ranks still run, and wait for it. Left so far, first ones "
    "first: 0 (n00, SIGABRT), 1 in all. Likely cause: an assertion, or NCCL's watchdog. Do first: read the rank's log."
)
"""No word of the driver or of the hardware."""

Series = dict[str, str]


def series(name: str, labels: dict[str, str], first: int, values: str) -> Series:
    """A series that begins at a step of 15 s; ``values`` as promtool reads them."""
    inside = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return {"series": f"{name}{{{inside}}}", "values": (f"_x{first} " if first else "") + values}


def gpu_series(node: str, gpu: int, told: Told, failed: tuple[str, ...], delay: int, domain: str) -> list[Series]:
    """What is told of a GPU and of its rank, whose driver tells of an error ``delay`` seconds after FAILED_AT."""
    rank = str(int(node[1:]) * GPUS + gpu)
    job, uuid = {"job_id": "7", "rank": rank, "node": node}, f"GPU-{node}-{gpu}"
    fault, _ = gpu_faults.judge("nvidia", told)
    words = {name: getattr(fault, name) for name in fault.__struct_fields__}
    at = FAILED_AT + delay
    first = -(-at // 15)
    fabric = {"gpu": str(gpu), "gpu_uuid": uuid, "cluster_uuid": domain, "clique": "1", "node": node}
    since = {"kind": "gpu", "name": uuid, "node": node}
    return [
        series("rankwatch_rank_start_timestamp_seconds", job, 0, f"-900x{STEPS}"),
        series("rankwatch_rank_up", job, 0, f"1x{STEPS}"),
        series("rankwatch_gpu_fabric_info", fabric, 0, f"1x{STEPS}"),
        series(
            "rankwatch_gpu_fault_last_timestamp_seconds",
            {"gpu": str(gpu), "gpu_uuid": uuid, "pci": f"000{gpu}:01:00.0", **words, "node": node},
            first,
            f"{at}x{STEPS}",
        ),
        *(series("rankwatch_rank_unhealthy", {**job, "reason": check}, first, f"1x{STEPS}") for check in failed),
        *(
            series("rankwatch_check_failed_since_timestamp_seconds", {"check": check, **since}, first, f"{at}x{STEPS}")
            for check in failed
        ),
    ]


def rack(told: Told, failed: tuple[str, ...], *, culprits_delay: int = 0, domain: str = DOMAIN) -> list[Series]:
    """All of a rack, in which every GPU but the culprit's tells this and has these checks failed."""
    found: list[Series] = []
    for number in range(NODES):
        for gpu in range(GPUS):
            node = f"n{number:02}"
            if (node, gpu) == CULPRIT:
                found += gpu_series(node, gpu, LINK_DOWN, ("gpu_xid", "gpu_recovery_action"), culprits_delay, domain)
            else:
                found += gpu_series(node, gpu, told, failed, number % 3, domain)
    return found


def ask(
    directory: Path, given: list[Series], *questions: dict[str, Any], text: dict[str, Any] | None = None
) -> list[str]:
    """Put the rules to the series; return what the promtools said against the expectations."""
    test: dict[str, Any] = {"interval": "15s", "input_series": given, "promql_expr_test": list(questions)}
    if text is not None:
        test["alert_rule_test"] = [text]
    file = write_case(directory, [test], "15s", RULES, GROUPS[: GROUPS.index("rankwatch-ras")])
    return [said for promtool in promtools() if (said := run_promtool(promtool, "test", "rules", file))]


def alerts(seconds: int, *nodes: str) -> dict[str, Any]:
    """One page of RankUnhealthy for each of these nodes, and no other alert of hardware, up to that time."""
    return {
        "expr": f"count by (alertname, node) (max_over_time({BOTH_ALERTS}[20m]))",
        "eval_time": f"{seconds}s",
        "exp_samples": [{"labels": f'{{alertname="RankUnhealthy",node="{node}"}}', "value": 1} for node in nodes],
    }


@pytest.mark.parametrize("culprits_delay", [0, 20])
def test_one_link_of_a_rack_is_one_page_that_names_it(tmp_path: Path, culprits_delay: int) -> None:
    """Where 63 GPUs say that nobody answers and one that its link is down, that one's node is told, and no other."""
    notes = {
        "summary": "Hardware of n07 has failed under 4 rank(s): gpu_recovery_action gpu_xid",
        "description": RACK_PAGE.format(seconds=culprits_delay),
        "dashboard_url": f"{BOARDS}/rankwatch-node?var-cluster=&var-node=n07&from=-3000000&to=1200000",
        "runbook_url": f"{RUNBOOKS}#rankunhealthy",
    }
    labels = {"severity": "page", "node": "n07"}
    told = [{"exp_labels": labels, "exp_annotations": notes}]
    page = {"eval_time": "10m", "alertname": "RankUnhealthy", "exp_alerts": told}
    given = rack(NO_ANSWER, ("gpu_recovery_action",), culprits_delay=culprits_delay)
    assert ask(tmp_path, given, alerts(1000, "n07"), text=page) == []


def test_an_error_that_goes_on_is_still_the_first(tmp_path: Path) -> None:
    """The text names no neighbour as the first whose one error came after the first of those that go on."""
    given = gpu_series("n03", 0, LINK_DOWN, ("gpu_xid",), 20, DOMAIN)
    for each in gpu_series("n07", 0, LINK_DOWN, ("gpu_xid",), 0, DOMAIN):
        goes_on = {"values": f"_x8 120+15x{STEPS}"} if "gpu_fault" in each["series"] else {}
        given.append(each | goes_on)
    notes = {
        "summary": "Hardware of n07 has failed under 1 rank(s): gpu_xid",
        "description": (
            "1 rank(s) on n07 run on hardware that failed under them: 28 of job 7 (gpu_xid). Its driver said: Xid 149 "
            "(NVLink 14 down, fatal) on GPU 0 at 00:02:00 UTC: GPU reset required. 1 more node(s) of its NVLink domain "
            "failed with it. Likely cause: that GPU or NIC, its link or driver, or the node, as the checks say. Do "
            "first: drain the node."
        ),
        "dashboard_url": f"{BOARDS}/rankwatch-node?var-cluster=&var-node=n07&from=-3300000&to=900000",
        "runbook_url": f"{RUNBOOKS}#rankunhealthy",
    }
    told = [{"exp_labels": {"severity": "page", "node": "n07"}, "exp_annotations": notes}]
    page = {"eval_time": "5m", "alertname": "RankUnhealthy", "exp_alerts": told}
    assert ask(tmp_path, given, alerts(1000, "n07"), text=page) == []


def test_neighbours_that_only_lose_their_peer_are_not_told_of(tmp_path: Path) -> None:
    """Where the driver wants nothing done about the neighbours, nothing has failed there at all."""
    assert ask(tmp_path, rack(NO_ANSWER, ()), alerts(1000, "n07")) == []


def test_a_switch_that_takes_all_links_is_one_page(tmp_path: Path) -> None:
    """Where every GPU says that a link is down, the first node is told, with how many more there are."""
    given = rack(LINK_DOWN, ("gpu_xid",), culprits_delay=-10)
    assert ask(tmp_path, given, alerts(1000, "n07")) == []


def test_nodes_of_no_common_domain_are_told_one_by_one(tmp_path: Path) -> None:
    """Without an NVLink domain that they share, each node's failure is its own."""
    given = [each for each in rack(LINK_DOWN, ("gpu_xid",)) if "fabric_info" not in each["series"]]
    assert ask(tmp_path, given, alerts(1000, *(f"n{number:02}" for number in range(NODES)))) == []


def test_what_fails_besides_on_a_neighbour_is_told(tmp_path: Path) -> None:
    """A neighbour whose GPU falls off the bus at that time has a failure of its own."""
    given = rack(NO_ANSWER, ("gpu_recovery_action",))
    given += gpu_series("n03", 0, Told("79"), ("gpu_lost",), 5, DOMAIN)[3:]
    assert ask(tmp_path, given, alerts(1000, "n03", "n07")) == []


def test_what_may_wait_is_no_failure_of_a_neighbours_own(tmp_path: Path) -> None:
    """Neighbours whose power smoothing was switched, or with a row to be remapped, still follow."""
    given = rack(NO_ANSWER, ("gpu_recovery_action",))
    for node, code in (("n03", "162"), ("n04", "63")):
        given += gpu_series(node, 0, Told(code), (), -60, DOMAIN)[3:]
    assert ask(tmp_path, given, alerts(1000, "n07")) == []


def test_a_ticket_hides_no_page(tmp_path: Path) -> None:
    """A node where nobody runs is told first, by a ticket: that ranks are struck on another is told all the same."""
    idle = [each for each in gpu_series("n00", 0, LINK_DOWN, ("gpu_xid",), 0, DOMAIN) if "_rank_" not in each["series"]]
    given = idle + gpu_series("n01", 0, NO_ANSWER, ("gpu_recovery_action",), 480, DOMAIN)
    page = alerts(1000, "n01")
    page["exp_samples"].append({"labels": '{alertname="HardwareFailed",node="n00"}', "value": 1})
    assert ask(tmp_path, given, page) == []


def test_nodes_that_recover_one_by_one_wake_nobody_again(tmp_path: Path) -> None:
    """While the page of the first lasts, none of the others takes its place."""
    given: list[Series] = []
    for number in range(6):
        steps = (480 + 30 * number) // 15
        for each in gpu_series(f"n{number:02}", 0, NO_ANSWER, ("gpu_fabric",), number, DOMAIN):
            is_of_failure = "check_failed" in each["series"] or "unhealthy" in each["series"]
            given.append(each | {"values": each["values"].replace(f"x{STEPS}", f"x{steps if is_of_failure else 150}")})
    assert ask(tmp_path, given, alerts(1300, "n00")) == []


def test_another_link_later_is_another_page(tmp_path: Path) -> None:
    """A failure that is old, and not mended, hides no new one of its domain."""
    given = gpu_series("n00", 0, LINK_DOWN, ("gpu_xid",), 0, DOMAIN)
    given += gpu_series("n01", 0, LINK_DOWN, ("gpu_xid",), 901, DOMAIN)
    given += gpu_series("n02", 0, NO_ANSWER, ("gpu_recovery_action",), 902, DOMAIN)
    given = [each | {"values": each["values"].replace(f"x{STEPS}", "x150")} for each in given]
    assert ask(tmp_path, given, alerts(1300, "n00", "n01")) == []


def test_a_crash_with_clean_up_on_all_gpus_is_no_hardware(tmp_path: Path) -> None:
    """A rank that aborts, and Xid 45 on all GPUs of its node: no word of the hardware, nor of the driver."""
    given: list[Series] = []
    for gpu in range(GPUS):
        job = {"job_id": "7", "rank": str(gpu), "node": "n00"}
        left = (
            series("rankwatch_rank_up", job, 0, "1x8 0x60") if gpu == 0 else series("rankwatch_rank_up", job, 0, "1x70")
        )
        given += [left, series("rankwatch_rank_start_timestamp_seconds", job, 0, "-900x70")]
        given += gpu_series("n00", gpu, Told("45", cause="31"), (), 15, DOMAIN)[2:]
        if gpu:
            given.append(series("rankwatch_rank_state", {**job, "state": "alive"}, 0, "1x70"))
    gone = {"job_id": "7", "rank": "0", "node": "n00"}
    given += [
        series("rankwatch_rank_exit_timestamp_seconds", gone, 9, "133x60"),
        series("rankwatch_rank_state", {**gone, "state": "dead"}, 9, "1x60"),
        series("rankwatch_rank_exit_info", {**gone, "reason": "signal", "signal": "SIGABRT", "code": ""}, 9, "1x60"),
        series(
            "rankwatch_kernel_event_last_timestamp_seconds",
            {"category": "gpu_xid", "code": "45", "node": "n00"},
            9,
            "135x60",
        ),
    ]
    notes = {
        "summary": "Job 7: rank 0 on n00 aborted (SIGABRT); 3 ranks wait for it",
        "description": CRASH_TEXT,
        "dashboard_url": f"{BOARDS}/rankwatch-job?var-cluster=&var-job_id=7&from=-3300000&to=900000",
        "runbook_url": f"{RUNBOOKS}#rankdead",
    }
    labels = {"severity": "info", "job_id": "7"}
    told = [{"exp_labels": labels, "exp_annotations": notes}]
    death = {"eval_time": "5m", "alertname": "RankDead", "exp_alerts": told}
    assert ask(tmp_path, given, alerts(1000), text=death) == []
