"""One link of a rack fails, and all its nodes have errors: the alerts of 16 nodes with four GPUs each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rules import DEPLOY, promtools, run_promtool, why_no_promtool, write_case

from agent.sdk.hardware import Told, gpu_faults

pytestmark = [
    pytest.mark.skipif(why_no_promtool() is not None, reason=why_no_promtool() or ""),
    pytest.mark.timeout(300),
]

RULES, GROUPS = [DEPLOY / "rules/hardware.yml"], ["rankwatch-hardware-wear", "rankwatch-hardware"]
NODES, GPUS = 16, 4
DOMAIN = "0a0b0c0d-0000-4000-8000-000000000001"
CULPRIT = ("n07", 1)
FAILED_AT = 120
"""When the link fails; all times in seconds of the test."""
LINK_DOWN = Told("149", "NETIR_LINK_EVT", "14", "fatal")
NO_ANSWER = Told("145", "RLW_SRC_TRACK", "3", "nonfatal")
STEPS = 70
ALERTS = 'ALERTS{alertname=~"RankUnhealthy|HardwareFailed",alertstate="firing"}'

Series = dict[str, str]


def series(name: str, labels: dict[str, str], first: int, values: str) -> Series:
    """A series that begins at a step of 15 s; ``values`` as promtool reads them."""
    inside = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return {"series": f"{name}{{{inside}}}", "values": (f"_x{first} " if first else "") + values}


def gpu_series(node: str, gpu: int, told: Told, failed: tuple[str, ...], delay: int) -> list[Series]:
    """A GPU and its rank, whose driver reports an error ``delay`` seconds after FAILED_AT."""
    job, uuid = {"job_id": "7", "node": node}, f"GPU-{node}-{gpu}"
    rank = {**job, "rank": str(int(node[1:]) * GPUS + gpu)}
    fault, _ = gpu_faults.judge("nvidia", told)
    words = {name: getattr(fault, name) for name in fault.__struct_fields__}
    at = FAILED_AT + delay
    first = -(-at // 15)
    fabric = {"gpu": str(gpu), "gpu_uuid": uuid, "cluster_uuid": DOMAIN, "clique": "1", "node": node}
    since = {"kind": "gpu", "name": uuid, "node": node}
    return [
        series("rankwatch_job_ranks_live", job, 0, f"{GPUS}x{STEPS}"),
        series("rankwatch_job_start_age_seconds", job, 0, f"900+15x{STEPS}"),
        series("rankwatch_gpu_fabric_info", fabric, 0, f"1x{STEPS}"),
        series(
            "rankwatch_gpu_fault_last_timestamp_seconds",
            {"gpu": str(gpu), "gpu_uuid": uuid, "pci": f"000{gpu}:01:00.0", **words, "node": node},
            first,
            f"{at}x{STEPS}",
        ),
        *(series("rankwatch_rank_unhealthy", {**rank, "reason": check}, first, f"1x{STEPS}") for check in failed),
        *(
            series("rankwatch_check_failed_since_timestamp_seconds", {"check": check, **since}, first, f"{at}x{STEPS}")
            for check in failed
        ),
    ]


def rack(told: Told, failed: tuple[str, ...]) -> list[Series]:
    """All of a rack, in which every GPU but the culprit's reports this and has these checks failed."""
    found: list[Series] = []
    for number in range(NODES):
        for gpu in range(GPUS):
            node = f"n{number:02}"
            if (node, gpu) == CULPRIT:
                found += gpu_series(node, gpu, LINK_DOWN, ("gpu_xid", "gpu_recovery_action"), 0)
            else:
                found += gpu_series(node, gpu, told, failed, number % 3)
    return list({each["series"]: each for each in found}.values())


def ask(directory: Path, given: list[Series], by: str, expected: dict[str, int]) -> list[str]:
    """Return what the promtools said against these numbers of alerts that fired, counted by these labels."""
    question: dict[str, Any] = {
        "expr": f"count by ({by}) (max_over_time({ALERTS}[20m]))",
        "eval_time": "1000s",
        "exp_samples": [{"labels": f"{{{labels}}}", "value": number} for labels, number in expected.items()],
    }
    test = {"interval": "15s", "input_series": given, "promql_expr_test": [question]}
    file = write_case(directory, [test], "15s", RULES, GROUPS)
    return [said for promtool in promtools() if (said := run_promtool(promtool, "test", "rules", file))]


def test_one_link_of_a_rack_is_one_group_in_which_the_driver_names_it(tmp_path: Path) -> None:
    """Where 63 GPUs have no answer and one reports its link down, all pages have one domain and one says the link."""
    given = rack(NO_ANSWER, ("gpu_recovery_action",))
    (tmp_path / "words").mkdir()
    everywhere = {f'alertname="RankUnhealthy",cluster_uuid="{DOMAIN}"': NODES * GPUS + 1}
    assert ask(tmp_path, given, "alertname, cluster_uuid", everywhere) == []
    link = 'node="n07",name="GPU-n07-1",code="149",meaning="NVLink 14 down",action="GPU reset required"'
    others = 'check="gpu_recovery_action"'
    by_word = {link + ',check="gpu_xid"': 1} | {
        f'node="n{number:02}",name="GPU-n{number:02}-{gpu}",{others}': 1
        for number in range(NODES)
        for gpu in range(GPUS)
    }
    assert ask(tmp_path / "words", given, "node, name, check, code, meaning, action", by_word) == []


def test_neighbours_that_only_lose_their_peer_raise_no_alert(tmp_path: Path) -> None:
    """Where the driver asks for no action on the neighbours, the one node alone has alerts."""
    assert ask(tmp_path, rack(NO_ANSWER, ()), "alertname, node", {'alertname="RankUnhealthy",node="n07"': 2}) == []


def test_nodes_of_no_common_domain_are_groups_of_their_own(tmp_path: Path) -> None:
    """Without a known NVLink domain no alert has one."""
    given = [each for each in rack(LINK_DOWN, ("gpu_xid",)) if "fabric_info" not in each["series"]]
    assert ask(tmp_path, given, "alertname, cluster_uuid", {'alertname="RankUnhealthy"': NODES * GPUS + 1}) == []


def test_clean_up_on_all_gpus_after_a_crash_is_no_hardware(tmp_path: Path) -> None:
    """Xid 45 on all GPUs of a node, as a program's crash leaves it, raises no alert."""
    given = [each for gpu in range(GPUS) for each in gpu_series("n00", gpu, Told("45", cause="31"), (), 15)]
    assert ask(tmp_path, list({each["series"]: each for each in given}.values()), "alertname", {}) == []
