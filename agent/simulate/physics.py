"""Compute when each rank arrives at each collective and how long its kernel runs. Pure: every process of the job
computes the same times.

The kernel time of a rank includes the wait for the last rank, so the late rank has the shortest time. NVIDIA's
Inspector measures the same: each GPU's kernel from its start to its stop.
"""

import random
from typing import NamedTuple

from agent.simulate.job import Job
from agent.simulate.layout import Collective, Layout, Operation, SimulatedCommunicator, make_layout

NVLINK_GIGABYTES_PER_SECOND = 350.0
NETWORK_GIGABYTES_PER_SECOND = 45.0
NVLINK_LATENCY_US = 12.0
NETWORK_LATENCY_US = 30.0
TRANSFER_JITTER = 0.05
COMPUTE_JITTER_US = 150.0
LEAST_COMPUTE_US = 20.0
CALIBRATION_STEPS = 32


class OperationTimes(NamedTuple):
    """Times of one operation by global rank: arrival (us after the step's start) and kernel time (us)."""

    arrival_us: list[float]
    kernel_us: list[float]


class StepTimes(NamedTuple):
    """Times of one step: its operations in order, and its length in us, which is equal for all ranks."""

    operations: list[OperationTimes]
    duration_us: float


class TimingPlan(NamedTuple):
    """Inputs of the computation. ``pace``: real seconds per simulated second, to keep the requested rate."""

    layout: Layout
    job: Job
    compute_us: float
    jitter_us: float
    pace: float


def bus_factor(collective: Collective, ranks: int) -> float:
    """Return the ratio of bus bandwidth to algorithm bandwidth for a communicator of ``ranks``."""
    return (2.0 if collective == "AllReduce" else 1.0) * (ranks - 1) / ranks


def moved_bytes(collective: Collective, size_bytes: int, ranks: int) -> int:
    """Return the bytes that count for the algorithm bandwidth of a message of ``size_bytes``."""
    return size_bytes if collective == "AllReduce" else size_bytes * ranks


def transfer_us(operation: Operation, communicator: SimulatedCommunicator) -> float:
    """Return the time (us) of ``operation`` after the last arrival, on healthy links."""
    ranks = len(communicator.members)
    bus_bytes = moved_bytes(operation.collective, operation.size_bytes, ranks) * bus_factor(operation.collective, ranks)
    if communicator.network:
        return NETWORK_LATENCY_US + bus_bytes / (NETWORK_GIGABYTES_PER_SECOND * 1e3)
    return NVLINK_LATENCY_US + bus_bytes / (NVLINK_GIGABYTES_PER_SECOND * 1e3)


def make_plan(job: Job) -> TimingPlan:
    """Return the job's plan, equal in all its processes. A healthy rank writes ``records_per_second``.

    If the transfers take too long for this rate, ``pace`` compresses simulated time into real time.
    """
    layout = make_layout(job.ranks, job.hosts, job.tp, job.job_id, job.seed)
    operations = len(layout.step)
    wanted_us = 1e6 / job.records_per_second
    transfers_us = (
        sum(transfer_us(planned, layout.communicators[planned.kind][0]) for planned in layout.step) / operations
    )
    compute_us = max(LEAST_COMPUTE_US, wanted_us - transfers_us - COMPUTE_JITTER_US)
    jitter_us = min(COMPUTE_JITTER_US, compute_us)
    healthy = TimingPlan(layout, job._replace(straggler=None, slow_link=None), compute_us, jitter_us, 1.0)
    mean_us = sum(step_times(healthy, step).duration_us for step in range(CALIBRATION_STEPS)) / CALIBRATION_STEPS
    return healthy._replace(job=job, pace=wanted_us * operations / mean_us)


def step_times(plan: TimingPlan, step: int) -> StepTimes:
    """Return the times of step number ``step``. Steps do not depend on each other."""
    job = plan.job
    dice = random.Random(f"{job.seed}/{step}").random  # noqa: S311  # simulated, no secret
    clock_us = [0.0] * plan.layout.ranks
    operations = []
    for operation in plan.layout.step:
        arrival_us = [start + plan.compute_us + plan.jitter_us * dice() for start in clock_us]
        if job.straggler is not None:
            arrival_us[job.straggler] += job.straggler_delay_us
        kernel_us = [0.0] * plan.layout.ranks
        for communicator in plan.layout.communicators[operation.kind]:
            took_us = transfer_us(operation, communicator) * (1.0 + TRANSFER_JITTER * dice())
            if communicator.network and job.slow_link in communicator.members:
                took_us *= job.slow_link_factor
            end_us = max([arrival_us[rank] for rank in communicator.members]) + took_us
            for rank in communicator.members:
                kernel_us[rank] = end_us - arrival_us[rank]
                clock_us[rank] = end_us
        operations.append(OperationTimes(arrival_us, kernel_us))
    return StepTimes(operations, clock_us[0])
