import asyncio

import pytest

from agent.core.single_flight import SingleFlight


class Work:
    """Work that ends when told to."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.go = asyncio.Event()

    async def __call__(self, key: int) -> str:
        self.begun.append(key)
        await self.go.wait()
        if key < 0:
            raise ValueError(key)
        return f"result {key}"


async def ask(flights: SingleFlight[int, str], *keys: int) -> list[asyncio.Task[str]]:
    """Ask for each key at the same time and let the questions be heard."""
    tasks = [asyncio.create_task(flights.get(key)) for key in keys]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


async def test_equal_questions_share_one_answer() -> None:
    """Askers of the same key while it is worked on get the one result; another key has its own."""
    work = Work()
    flights = SingleFlight(work)
    tasks = await ask(flights, 1, 1, 2, 1)
    work.go.set()
    assert (await asyncio.gather(*tasks), work.begun) == (["result 1", "result 1", "result 2", "result 1"], [1, 2])
    assert flights.shared == 2


async def test_nothing_is_kept() -> None:
    """A question after the answer is worked on anew."""
    work = Work()
    work.go.set()
    flights = SingleFlight(work)
    await flights.get(1)
    await flights.get(1)
    assert work.begun == [1, 1]


async def test_failure_reaches_all_and_is_not_kept() -> None:
    """Every asker gets the failure, and the next one may try again."""
    work = Work()
    flights = SingleFlight(work)
    tasks = await ask(flights, -1, -1)
    work.go.set()
    assert [type(result) for result in await asyncio.gather(*tasks, return_exceptions=True)] == [ValueError] * 2
    with pytest.raises(ValueError, match="-1"):
        await flights.get(-1)
    assert work.begun == [-1, -1]


async def test_asker_that_leaves_disturbs_nobody() -> None:
    """When the first asker is cancelled, the others still get the result."""
    work = Work()
    flights = SingleFlight(work)
    first, second = await ask(flights, 1, 1)
    first.cancel()
    await asyncio.sleep(0)
    work.go.set()
    assert (await second, work.begun) == ("result 1", [1])
