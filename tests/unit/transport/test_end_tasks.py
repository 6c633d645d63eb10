"""Test the cancellation of tasks that swallow cancellations."""

from __future__ import annotations

import asyncio

from liftpy.nats.cancellation import end_tasks


async def test_end_tasks_repeats_the_cancellation_of_a_task_that_swallows_cancelled_error() -> None:
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed == 2:
                    raise

    async def failed() -> None:
        raise ValueError("of no interest any more")

    tasks = [asyncio.create_task(stubborn()), asyncio.create_task(asyncio.sleep(3600)), asyncio.create_task(failed())]
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await end_tasks([*tasks, None])
    assert swallowed == 2
    assert tasks[1].cancelled()
    assert isinstance(tasks[2].exception(), ValueError)
