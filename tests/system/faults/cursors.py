"""Cursor commits beside the load: one position that only rises, each commit confirmed before the next. What was confirmed stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from liftpy.client import Client
from liftpy.client.ending import end_tasks
from liftpy.client.group_admin import describe_cursor
from liftpy.errors import LiftError
from tests.system.faults.ground import STREAM

CURSOR = "kept"
_DEADLINE_S = 60.0
_AGAIN_S = 0.05


class CursorLoad:
    """``confirmed``: the last position whose commit was confirmed; ``asked``: the last one that was asked for."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._news = asyncio.Condition()
        self.confirmed = self.asked = 0
        self.problems: list[str] = []

    async def run(self) -> None:
        """For ever: the next one when the one before is confirmed; who is not answered asks again."""
        while True:
            try:
                cursor = await self._client.cursor(CURSOR, STREAM)
                while True:
                    self.asked = self.confirmed + 1
                    await cursor.commit(self.asked)
                    async with self._news:
                        self.confirmed = self.asked
                        self._news.notify_all()
            except LiftError:
                await asyncio.sleep(_AGAIN_S)

    async def more(self, count: int = 3) -> None:
        """Wait until so many more are confirmed."""
        wanted = self.confirmed + count
        async with asyncio.timeout(_DEADLINE_S), self._news:
            await self._news.wait_for(lambda: self.confirmed >= wanted)

    async def look(self) -> None:
        """Note it where the cluster has less than was confirmed before it was asked, or more than was ever asked for."""
        before = self.confirmed
        async with asyncio.timeout(_DEADLINE_S):
            while True:
                try:
                    there = await self._there()
                    break
                except LiftError:
                    await asyncio.sleep(_AGAIN_S)
        if not before <= there <= self.asked:
            self.problems.append(f"the cursor is at {there}: {before} was confirmed, {self.asked} asked for")

    async def _there(self) -> int:
        return max((await describe_cursor(self._client, CURSOR)).values(), default=0)


@asynccontextmanager
async def committing(client: Client) -> AsyncIterator[CursorLoad]:
    """A load that runs meanwhile, and has begun."""
    load = CursorLoad(client)
    task = asyncio.create_task(load.run(), name="cursor commits")
    try:
        await load.more()
        yield load
    finally:
        await end_tasks([task])
