"""Commits beside the load, of a cursor and of a group's member that reads the load's records: each one confirmed before the next. What
was confirmed stays, and no position falls. Coordinators store their state all the while, so that a fault meets them at it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from liftpy.client import Client, GroupOptions
from liftpy.core.wire import frames
from liftpy.core.wire._pb.service_pb2 import SnapshotRequest
from liftpy.core.wire.subjects import GROUPS_SERVICE, GROUPS_STREAM, Subjects
from liftpy.errors import LiftError
from liftpy.nats.cancellation import end_tasks
from tests.system.faults.ground import STREAM

_T = TypeVar("_T")
CURSOR = "kept"
GROUP = "members"
_SNAPSHOT_S = 0.2
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
        there = max((await _answered(lambda: self._client.cursors.describe(CURSOR))).values(), default=0)
        if not before <= there <= self.asked:
            self.problems.append(f"the cursor is at {there}: {before} was confirmed, {self.asked} asked for")


class GroupLoad:
    """The same of one member. ``confirmed``, ``asked``: by partition of the load's stream."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._news = asyncio.Condition()
        self.confirmed: dict[int, int] = {}
        self.asked: dict[int, int] = {}
        self.commits = 0
        self.problems: list[str] = []

    async def run(self) -> None:
        """For ever; what ends the member is followed by the next, under the same name."""
        options = GroupOptions(session_s=3.0, auto_commit_s=0.0)
        while True:
            try:
                async with self._client.group(GROUP, [STREAM], instance="one", options=options) as group:
                    async for part in group.batches():
                        number, first = part.key.partition, int(part.slice.offsets()[0])
                        if first > self.asked.get(number, 0):
                            self.problems.append(
                                f"partition {number}: given from {first} on, {self.asked.get(number, 0)} was asked for"
                            )
                        self.asked[number] = max(self.asked.get(number, 0), part.slice.last_offset + 1)
                        await group.commit()
                        async with self._news:
                            self.confirmed[number], self.commits = part.slice.last_offset + 1, self.commits + 1
                            self._news.notify_all()
            except LiftError:
                await asyncio.sleep(_AGAIN_S)

    async def more(self, count: int = 3) -> None:
        """Wait until so many more are confirmed."""
        wanted = self.commits + count
        async with asyncio.timeout(_DEADLINE_S), self._news:
            await self._news.wait_for(lambda: self.commits >= wanted)

    async def look(self) -> None:
        """As that of a cursor."""
        before = dict(self.confirmed)
        found = await _answered(lambda: self._client.groups.describe(GROUP))
        there = {key.partition: at for key, at in found.positions.items()}
        for number, at in before.items():
            if not at <= there.get(number, 0) <= self.asked[number]:
                self.problems.append(
                    f"the group is at {there.get(number)} of {number}: {at} was confirmed, {self.asked[number]} asked for"
                )


class Commits:
    """Both."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.cursor, self.group = CursorLoad(client), GroupLoad(client)

    @property
    def problems(self) -> list[str]:
        """What should not be."""
        return self.cursor.problems + self.group.problems

    def __str__(self) -> str:
        return f"cursor at {self.cursor.confirmed}, group at {sorted(self.group.confirmed.values())}"

    async def more(self, count: int = 3) -> None:
        """Wait until so many more are confirmed."""
        await asyncio.gather(self.cursor.more(count), self.group.more(count))

    async def look(self) -> None:
        """Note what should not be."""
        await asyncio.gather(self.cursor.look(), self.group.look())

    async def snapshots(self) -> None:
        """Have every coordinator store its state, again and again."""
        while True:
            with contextlib.suppress(LiftError):
                groups = await self._client.stream(GROUPS_STREAM)
                for part in groups.partitions:
                    request = SnapshotRequest(service=GROUPS_SERVICE, stream=GROUPS_STREAM, partition=part.partition)
                    for node in part.replicas:
                        subject = Subjects().service_session(node, GROUPS_STREAM, GROUPS_SERVICE)
                        await self._client.transport.publish(subject, frames.seal(request))
            await asyncio.sleep(_SNAPSHOT_S)


async def _answered(ask: Callable[[], Awaitable[_T]]) -> _T:
    async with asyncio.timeout(_DEADLINE_S):
        while True:
            try:
                return await ask()
            except LiftError:
                await asyncio.sleep(_AGAIN_S)


@asynccontextmanager
async def committing(client: Client) -> AsyncIterator[Commits]:
    """Loads that run meanwhile, and have begun."""
    load = Commits(client)
    tasks = [asyncio.create_task(work) for work in (load.cursor.run(), load.group.run(), load.snapshots())]
    try:
        await load.more()
        yield load
    finally:
        await end_tasks(tasks)
