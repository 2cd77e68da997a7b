"""`rankwatch explain` on a real Prometheus with artificial series, named as the shipped rules record them.

They cover events that tests cannot cause within minutes: hangs with PyTorch's flight recorder, hardware, lost nodes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import yaml
from prometheus import ROOT, Prometheus, why_no_prometheus
from rules import DEPLOY

pytestmark = [
    pytest.mark.skipif(why_no_prometheus() is not None, reason=why_no_prometheus() or ""),
    pytest.mark.timeout(120),
]
BEGIN = 1_800_000_000
"""2027-01-15T08:00:00Z."""
STEP, LENGTH = 5, 3600
HANG = BEGIN + 1207
DEATH = BEGIN + 1830
AGAIN = BEGIN + 2100
NODES = {"n1": range(8), "n2": range(8, 16)}
Value = Callable[[int], float | None]
"""The value of a series at a time, or None."""


def during(start: float, end: float, value: float | None = None) -> Value:
    """Return a function that returns ``value`` from ``start`` to ``end``, or the time itself if ``value`` is None."""
    return lambda at: (at if value is None else value) if start <= at < end else None


def hung_for(at: int) -> float | None:
    """Return the seconds since the last progress; None from the ranks' death until 30 s after the restart."""
    if at < HANG or at >= AGAIN + 30:
        return 2.0
    return float(at - HANG) if at < DEATH else None


def hang(of: str) -> dict[str, Value]:
    """Return series of a late rank that then does not enter a collective, another rank's watchdog, and a restart."""
    whole = (BEGIN, BEGIN + LENGTH)
    exit_labels = f'{of},rank="3",node="n1",reason="signaled",signal="SIGABRT",code="",class="fail"'
    made: dict[str, Value] = {
        f"job:rankwatch_ranks_live:sum{{{of}}}": lambda at: 0.0 if DEATH <= at < AGAIN else 16.0,
        f"job:rankwatch_run:time{{{of}}}": lambda at: float(BEGIN if at < AGAIN else AGAIN - 5),
        f"job:rankwatch_ranks_expected:max{{{of}}}": during(*whole, 16.0),
        f"job:rankwatch_gpus:count{{{of}}}": during(*whole, 16.0),
        f'rankwatch_job_progress_age_seconds{{{of},node="n1"}}': hung_for,
        f"job:rankwatch_silence:seconds{{{of}}}": hung_for,
        f"job:rankwatch_launch_silence:seconds{{{of}}}": hung_for,
        f'ALERTS{{{of},alertname="StragglerRank",rank="12",node="n2",why="gpu_clocks",alertstate="firing",'
        f'severity="ticket"}}': during(HANG - 300, HANG, 1),
        f'comm_rank:rankwatch_late:ratio{{{of},rank="12",node="n2",comm="c"}}': during(HANG - 300, HANG, 0.25),
        f'rank:rankwatch_suspect:bool{{{of},rank="12",host="n2",gpu="4",reason="behind"}}': during(
            HANG + 300, DEATH, 1
        ),
        f'rankwatch_communicator_rank_lag{{{of},rank="12",node="n1",comm="c",collective="AllReduce"}}': during(
            HANG + 300, DEATH, 3
        ),
        f'rank:rankwatch_flight_recorder_behind:sequence{{{of},rank="12",node="n2",what="not_begun",'
        f'operation="_allreduce_base",process_group="0",description="dp"}}': during(DEATH + 15, AGAIN, 812),
        f"rank:rankwatch_dead:time{{{exit_labels}}}": during(DEATH + 5, AGAIN, DEATH),
        f"rank:rankwatch_exit:time{{{exit_labels}}}": during(DEATH + 5, AGAIN, DEATH),
        f'rankwatch_rank_exit_timestamp_seconds{{{of},rank="3",node="n1"}}': during(DEATH + 5, AGAIN, DEATH),
        f'ALERTS{{{of},alertname="CommunicatorStalled",alertstate="pending",severity="page"}}': during(
            HANG + 300, HANG + 315, 1
        ),
        f'ALERTS{{{of},alertname="CommunicatorStalled",alertstate="firing",severity="page"}}': during(
            HANG + 315, DEATH, 1
        ),
        f"rankwatch_train_checkpoint_last_success_timestamp_seconds{{{of}}}": during(*whole, HANG - 900.0),
        f'rankwatch_rank_info{{{of},rank="12",node="n2",gpu="4",pid="1212"}}': during(*whole, 1),
        f'rankwatch_job_info{{{of},name="pretrain",user="alice"}}': during(*whole, 1),
    }
    for node in NODES:
        made[f'rankwatch_job_ranks{{{of},node="{node}",state="alive"}}'] = during(*whole, 8)
    return made


def lost_node(of: str) -> dict[str, Value]:
    """Return the series of a GPU that fails under a rank, after which the node is lost with all eight ranks."""
    cluster = of.partition(",")[0]
    lost = f'{of},node="n2",domain="none"'
    made: dict[str, Value] = {
        f"job:rankwatch_ranks_live:sum{{{of}}}": during(BEGIN, DEATH + 900, 16.0),
        f"job:rankwatch_run:time{{{of}}}": during(BEGIN, BEGIN + LENGTH, BEGIN),
        f"job:rankwatch_ranks_expected:max{{{of}}}": during(BEGIN, BEGIN + LENGTH, 16.0),
        f"job:rankwatch_gpus:count{{{of}}}": during(BEGIN, DEATH + 600, 16.0),
        f'rankwatch_job_progress_age_seconds{{{of},node="n1"}}': lambda at: float(max(at - DEATH, 0)),
        f'rankwatch_job_ranks_live{{{of},node="n2"}}': during(BEGIN, DEATH + 5, 8),
        f"job_node:rankwatch_silent:time{{{lost}}}": during(DEATH + 15, DEATH + 60, DEATH),
        f'ALERTS{{{lost},alertname="NodeLost",alertstate="pending",severity="page"}}': during(
            DEATH + 50, DEATH + 60, 1
        ),
        f'ALERTS{{{lost},alertname="NodeLost",alertstate="firing",severity="page"}}': during(
            DEATH + 60, DEATH + 900, 1
        ),
        f'rankwatch_rank_unhealthy{{{of},rank="9",node="n2",reason="gpu_xid"}}': during(DEATH - 60, DEATH, 1),
        f'rankwatch_gpu_fault_last_timestamp_seconds{{{cluster},node="n2",gpu="1",code="79",role="root",hurts="gpu",'
        f'meaning="fell off the bus",action="restart the node"}}': during(DEATH - 60, DEATH, DEATH - 62.0),
        f'ALERTS{{{cluster},alertname="RankUnhealthy",alertstate="firing",severity="page",node="n2"}}': during(
            DEATH - 30, DEATH, 1
        ),
        f'ALERTS{{{cluster},alertname="RankUnhealthy",alertstate="firing",severity="ticket",node="n9"}}': during(
            DEATH - 30, DEATH, 1
        ),
    }
    for node, ranks in NODES.items():
        made[f'rankwatch_job_ranks{{{of},node="{node}",state="alive"}}'] = during(BEGIN, DEATH + 15, 8)
        for rank in ranks:
            name = f'rankwatch_rank_start_timestamp_seconds{{{of},rank="{rank}",node="{node}"}}'
            made[name] = during(BEGIN, DEATH + 15, BEGIN)
    return made


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Provide a Prometheus with these series, and with the shipped rules loaded but not evaluated."""
    home = tmp_path_factory.mktemp("made")
    series = {
        **hang('cluster="x",job_id="7"'),
        **lost_node('cluster="y",job_id="7"'),
        **lost_node('cluster="z",job_id="8"'),
    }
    lines = []
    for name in sorted(series):
        values = ((at, series[name](at)) for at in range(BEGIN, BEGIN + LENGTH, STEP))
        lines += [f"{name} {value} {at}" for at, value in values if value is not None]
    (home / "made.txt").write_text("\n".join([*lines, "# EOF\n"]))
    rules = {"rule_files": [str(DEPLOY / "rules" / "*.yml")], "global": {"evaluation_interval": "1d"}}
    for group in (DEPLOY / "rules").glob("*.yml"):
        text = re.sub(r"^  interval: .*$", "  interval: 1d", group.read_text(), flags=re.MULTILINE)
        (home / group.name).write_text(text)
    rules["rule_files"] = [str(home / "*.yml")]
    # Artificial series end without stale markers, which rules write, so the series stay visible for five more minutes.
    forever = ("--storage.tsdb.retention.time=100y", "--query.lookback-delta=4s")
    with Prometheus(home / "prometheus", str(yaml.safe_dump(rules)), more=forever) as made:
        made.kill()
        backfill = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "made.txt", "prometheus/data"]
        subprocess.run(backfill, check=True, cwd=home, capture_output=True, timeout=60)
        made.start()
        yield made


def explanation(prometheus: Prometheus, job_id: str, *more: str) -> str:
    """Return the output of explain at the end of the series."""
    where = f"http://127.0.0.1:{prometheus.port}"
    until = str(BEGIN + LENGTH - STEP)
    command = [sys.executable, "-m", "agent", "explain", job_id, "--prometheus", where, "--until", until, *more]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stderr == ""
    return done.stdout


def rows(page: str, heading: str) -> list[str]:
    """Return the lines below a heading, with bars between cells."""
    below = page.partition(f"\n{heading}\n")[2].partition("\n\n")[0].splitlines()
    return [re.sub(r" {2,}", " | ", line.strip()) for line in below]


def test_two_clusters(prometheus: Prometheus) -> None:
    """Jobs with one id in two clusters are two stories."""
    assert explanation(prometheus, "7") == "clusters x, y each have a job 7: choose one by --cluster\n"


def test_a_hang(prometheus: Prometheus) -> None:
    """Three sources name the rank that the others waited for; the rank with the watchdog's timeout has its own line."""
    page = explanation(prometheus, "7", "--cluster", "x")
    print(page)  # noqa: T201  # shown where the test fails
    assert page.startswith("job 7 (pretrain, alice) of cluster x: 16 ranks on 2 nodes\nthe job hung: ")
    assert rows(page, "Who") == [
        "rank 12 (n2, GPU 4, pid 1212): 3 of 4 witnesses agree",
        "flight recorder | rank 12 | had not begun allreduce no. 812 of group dp",
        "NCCL's RAS | rank 12 | 3 launches behind the others, which wait for it",
        "NCCL's records | rank 12 | kept the others waiting 25% of the time (gpu clocks)",
    ]
    assert rows(page, "Disagrees") == ["process | rank 3 | crashed (SIGABRT): first to go"]
    when = rows(page, "What happened when (UTC)")
    assert [line.partition(" | ")[2] for line in when] == [
        "rank 12 | late (gpu clocks) | NCCL's records",
        "ticket StragglerRank | alerts",
        "last progress | NCCL's records",
        "page CommunicatorStalled | alerts",
        "rank 3 | n1 | crashed (SIGABRT): first to go | process",
        "all ranks restarted | process",
        "the job works again | NCCL's records",
    ]
    assert when[2].startswith("08:20:07 | "), "the hang"
    assert when[4].startswith("08:30:30 | "), "the death"
    # 16 GPUs: from 1207 s to the next progress, 2128 s; 900 s since the checkpoint; late 300 s * 25 %.
    cost = rows(page, "Cost")
    assert re.match(r"4\.09 GPU-hours \| no work done for 15 min 21 s$", cost[0]), cost
    assert cost[1].startswith("4.00 GPU-hours | of work after the last checkpoint")
    assert re.match(r"0\.3[0-9] GPU-hours \| all ranks waited for a late rank", cost[2]), cost
    assert rows(page, "What to do") == [
        "CommunicatorStalled | http://wiki.example/rankwatch/runbooks#communicatorstalled",
        "StragglerRank | http://wiki.example/rankwatch/runbooks#stragglerrank",
    ]


@pytest.mark.parametrize("asked", [("7", "--cluster", "y"), ("8",)])
def test_a_lost_node(prometheus: Prometheus, asked: tuple[str, ...]) -> None:
    """The rank on the failed GPU is the culprit; the ranks that were lost with its node are only listed after it."""
    page = explanation(prometheus, *asked)
    print(page)  # noqa: T201  # shown where the test fails
    assert "\na node was lost: from 2027-01-15T08:29:30Z" in page
    who = rows(page, "Who")
    assert who[0] == "rank 9 (n2): 2 of 2 witnesses agree"
    assert who[1:] == [
        "hardware checks | rank 9 | the check gpu_xid failed on its hardware",
        "process | rank 9 | its node was lost",
    ]
    assert rows(page, "Also said") == ["process | ranks 8,10-15 | its node was lost"]
    when = [line.partition(" | ")[2] for line in rows(page, "What happened when (UTC)")]
    assert when[:3] == [
        "n2 | driver: Xid 79 fell off the bus on GPU 1 | kernel log",
        "rank 9 | n2 | check gpu_xid fails | hardware checks",
        "page RankUnhealthy | alerts",
    ]
    assert "n2 | node lost | process" in when
    assert "page NodeLost | alerts" in when
    assert not [line for line in when if "ticket" in line], "an alert of a node without ranks of the job"
    assert rows(page, "Cost")[0].startswith("2.67 GPU-hours | "), "16 GPUs for 600 s, then they are given back"
    assert "GPU 1 of n2: restart the node." in rows(page, "What to do")
