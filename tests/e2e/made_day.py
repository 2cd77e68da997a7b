"""A day of one job, minute by minute, and what its GPUs' time went into as it was made: the truth for goodput."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

GPUS = 8
MINUTES = 24 * 60
WAITING_SHARE = 0.25
"""While it trains, half of the ranks wait in a collective for the others, for half of the time."""
_LATE, _WAITING = 0.9, 0.9 - 2 * WAITING_SHARE
"""The shares of time that these halves are elsewhere than in the collective."""

Minutes = list[float | None]


class Stretch(NamedTuple):
    """What the job does, and for how many minutes."""

    what: str
    minutes: int


DAY = [
    Stretch("starts", 12),
    *[Stretch("trains", 100), Stretch("saves", 8)] * 2,
    Stretch("stalls", 40),
    Stretch("trains and saves", 20),
    Stretch("trains", 60),
    Stretch("is dead", 15),
    Stretch("starts again", 9),
    Stretch("trains", 170),
    Stretch("saves", 8),
    Stretch("is dead", 6),
    Stretch("starts again", 14),
    Stretch("trains", 300),
    Stretch("stalls", 75),
    Stretch("trains", 140),
    Stretch("saves", 8),
]
"""What is left of the day, it trains. Each save is a checkpoint, which a death throws the job back to; one is written
beside the work."""


class Day(NamedTuple):
    """The series by name, a value for each minute, and the truth: GPU seconds by class."""

    series: dict[str, Minutes]
    gpu_seconds: dict[str, float]


def made_day() -> Day:
    """Live through the day."""
    done = sum(stretch.minutes for stretch in DAY)
    whole = [*DAY, Stretch("trains", MINUTES - done)]
    labels = '{job_id="7"}'
    live: Minutes = []
    death: Minutes = []
    since: Minutes = []
    age: Minutes = []
    iteration: Minutes = []
    saving: Minutes = []
    truth: Counter[str] = Counter()
    began, worked, died, save_began = 0.0, None, 0.0, 0.0
    reached, highest, saved = 0, 0, 0
    for what, minutes in whole:
        if what == "is dead":
            died, reached = 60.0 * len(live), saved
        if what == "starts again":
            began = 60.0 * len(live)
        if "saves" in what:
            save_began, saved = 60.0 * len(live), reached
        for _ in range(minutes):
            now = 60.0 * len(live)
            if "trains" in what:
                worked = now
                reached += 1
                _train(truth, is_new=reached > highest)
                highest = max(highest, reached)
            else:
                name = {"starts": "not_started", "saves": "checkpointing", "stalls": "stalled"}.get(what, "down")
                truth[name] += 60.0 * GPUS
            live.append(0.0 if what == "is dead" else float(GPUS))
            death.append(died if what == "is dead" else None)
            since.append(began)
            age.append(None if what == "is dead" or worked is None or worked < began else now - worked)
            iteration.append(float(reached) if worked is not None else None)
            saving.append(save_began if "saves" in what else None)
    series = {
        f"job:rankwatch_ranks_live:sum{labels}": live,
        f"job:rankwatch_ranks_expected:max{labels}": [float(GPUS)] * MINUTES,
        'rank:rankwatch_exit:time{job_id="7",rank="3",node="a",class="crash"}': death,
        f"job:rankwatch_run:time{labels}": since,
        'rankwatch_job_progress_age_seconds{job_id="7",node="a"}': age,
        'rankwatch_train_iteration{job_id="7",node="a"}': iteration,
        'rankwatch_train_checkpoint_began_timestamp_seconds{job_id="7",node="a"}': saving,
        'comm_node:rankwatch_operations:per_record{job_id="7",comm="c",node="a"}': [1.0] * MINUTES,
    }
    for rank in range(GPUS):
        key = f'comm_rank:rankwatch_elsewhere:ratio{{job_id="7",comm="c",rank="{rank}",node="a",by="means"}}'
        series[key] = [_WAITING if rank % 2 else _LATE] * MINUTES
    return Day(series, dict(truth))


def _train(truth: Counter[str], is_new: bool) -> None:
    """Count a minute of training: done before a death, it is done again."""
    if is_new:
        truth["productive"] += (1 - WAITING_SHARE) * 60.0 * GPUS
        truth["waiting"] += WAITING_SHARE * 60.0 * GPUS
    else:
        truth["recomputing"] += 60.0 * GPUS
