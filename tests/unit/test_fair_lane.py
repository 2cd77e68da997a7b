"""The lane does one piece of work at a time, and its peers take turns."""

import asyncio

import pytest

from agent.core.fair_lane import FairLane


class Work:
    """Work that a test finishes piece by piece."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.go = asyncio.Semaphore(0)

    async def __call__(self, key: int) -> str:
        self.begun.append(key)
        await self.go.acquire()
        if key < 0:
            raise ValueError(key)
        return f"result {key}"


async def ask(lane: FairLane[int, str], *wanted: tuple[str, int]) -> list[asyncio.Task[str]]:
    """Request these keys for these peers, in order."""
    tasks = []
    for peer, key in wanted:
        tasks.append(asyncio.create_task(lane.get(peer, key)))
        await asyncio.sleep(0)
    return tasks


async def finish(work: Work, tasks: list[asyncio.Task[str]]) -> list[str | BaseException]:
    """Finish all work, and return the results."""
    for _ in tasks:
        work.go.release()
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_peers_take_turns() -> None:
    """While other peers wait, a peer with many keys is never served twice in a row."""
    work = Work()
    lane = FairLane(work)
    tasks = await ask(lane, ("many", 1), ("many", 2), ("many", 3), ("many", 4), ("few", 5), ("one", 6), ("few", 7))
    assert work.begun == [1]
    assert (await finish(work, tasks), work.begun) == ([f"result {key}" for key in range(1, 8)], [1, 5, 2, 6, 7, 3, 4])


async def test_equal_keys_share_and_the_first_place_counts() -> None:
    """A key that several peers request runs once, at the earliest of their turns."""
    work = Work()
    lane = FairLane(work)
    tasks = await ask(lane, ("many", 1), ("many", 2), ("many", 3), ("many", 4), ("few", 4), ("few", 1))
    assert await finish(work, tasks) == ["result 1", "result 2", "result 3", "result 4", "result 4", "result 1"]
    assert work.begun == [1, 4, 2, 3]


async def test_a_request_that_is_cancelled_disturbs_no_other() -> None:
    """If the first request for a key is cancelled, the second request and the next key still get their results."""
    work = Work()
    lane = FairLane(work)
    first, second, third = await ask(lane, ("one", 1), ("one", 1), ("one", 2))
    first.cancel()
    assert await finish(work, [second, third]) == ["result 1", "result 2"]
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_nothing_is_done_for_a_client_that_left() -> None:
    """A key whose last request is cancelled leaves all queues; the other keys keep their order."""
    work = Work()
    lane = FairLane(work)
    tasks = await ask(lane, ("one", 1), ("one", 2), ("other", 2), ("one", 3), ("other", 4))
    for task in tasks[1:4]:
        task.cancel()
        await asyncio.sleep(0)
    assert (set(lane._flights), lane._queues) == ({1, 4}, {"other": {4: None}})
    assert (await finish(work, [tasks[0], tasks[4]]), work.begun) == (["result 1", "result 4"], [1, 4])
    assert await finish(work, await ask(lane, ("one", 2))) == ["result 2"]
