"""A page with what RAS would tell of a job in all kinds of trouble, rendered by the exporter's own code."""

from __future__ import annotations

import http.server
import json
import threading
import time
from types import TracebackType
from typing import Any

from agents import free_port
from ras_views import ENDPOINT, VERSION, WELL, families

from agent.api import Admission, ProcessKey, RankLabel
from agent.exposition import Selection, encode
from exporters.ras.jobs import LocalProcess
from exporters.ras.json_report import read_json
from exporters.ras.report import COLLECTIVES
from exporters.ras.reports import Reports

WORLD = 8
BEHIND, FAILED, ABORTED, UNMADE, SILENT = 5, 1, 2, 3, 7
"""The ranks in trouble; the one behind has left another communicator, too."""
LAUNCHES, LAG = 50, 10


class RasPage:
    """A server of the page on the loopback; a context manager."""

    def __init__(self, job_id: str) -> None:
        self.port = free_port()
        self._body = page(job_id)
        body = self._body

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> RasPage:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def page(job_id: str) -> bytes:
    """Return the text after two reports that are the same."""
    report = read_json(json.dumps(_report()).encode())
    reports = Reports(Admission())
    owner = LocalProcess(ProcessKey(100, 100), RankLabel(job_id, "0"), WORLD, 100, 0.0)
    for _ in range(2):
        assert reports.keep(owner, report, float("inf"), time.time())
    return encode(families([(job_id, "reporter")], {ENDPOINT: True}, 2, reports.by_job), Selection()).body


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
