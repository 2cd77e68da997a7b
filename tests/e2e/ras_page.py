"""A page with what RAS would tell of a job in all kinds of trouble, rendered by the exporter's own code."""

from __future__ import annotations

import json
import time
from typing import Any

from client_metrics import encode
from ras_views import ENDPOINT, VERSION, WELL, families

from agent.sdk.metrics import Admission
from agent.sdk.ranks import ProcessKey, RankLabel
from exporters.ras.asking.jobs import LocalProcess
from exporters.ras.asking.reports import Reports
from exporters.ras.report.json_report import read_json
from exporters.ras.report.model import COLLECTIVES

WORLD = 8
BEHIND, FAILED, ABORTED, UNMADE, SILENT = 5, 1, 2, 3, 7
"""The ranks in trouble; the one behind has left another communicator, too."""
LAUNCHES, LAG = 50, 10


def ras_page(job_id: str) -> bytes:
    """Return the text after two reports that are the same, of a node that asks and of one that does not."""
    report = read_json(json.dumps(_report()).encode())
    reports = Reports(Admission())
    owner = LocalProcess(ProcessKey(100, 100), (RankLabel(job_id, "0"),), WORLD, 100, 0.0)
    for _ in range(2):
        assert reports.keep(owner, report, float("inf"), time.time())
    return encode(
        families([(job_id, "reporter"), (job_id, "none")], {ENDPOINT: True}, {job_id: (7.0, 0)}, 2, reports.named({}))
    ).body


def _report() -> dict[str, Any]:
    present = [_rank(number, number) for number in range(WORLD) if number != SILENT]
    present[BEHIND]["collective_counts"]["AllReduce"] -= LAG
    present[FAILED]["status"]["async_error"] = 6
    present[ABORTED]["status"]["abort_flag"] = True
    present[UNMADE]["status"]["init_state"] = 2
    pair = [_rank(0, 4), _missing(1, BEHIND, unresponsive=False)]
    groups = [("0xaaaaaaaaaaaaaa01", [*present, _missing(SILENT, SILENT, unresponsive=True)]), ("0xbb01", pair)]
    communicators = [
        {
            "hash": name,
            "size": len(ranks),
            "ranks": [each for each in ranks if "collective_counts" in each],
            "missing_ranks": [each for each in ranks if "collective_counts" not in each],
        }
        for name, ranks in groups
    ]
    return {"nccl_version": VERSION, "communicators": communicators, "ras": {"timeouts_count": 0}}


def _rank(number: int, process: int) -> dict[str, Any]:
    counts = dict.fromkeys(COLLECTIVES, 0) | {"AllReduce": LAUNCHES}
    place = {"host": f"10.0.0.{process // 4}", "pid": 100 + process, "nvml_dev": process % 4}
    return {"rank": number, **place, "status": dict(WELL), "collective_counts": counts}


def _missing(number: int, process: int, *, unresponsive: bool) -> dict[str, Any]:
    rank = _rank(number, process)
    del rank["collective_counts"]
    return {**rank, "status": {"unresponsive": unresponsive, "considered_dead": False}}
