"""Queue workers and group members in a simulated history."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from liftpy.client import GroupOptions, QueueOptions
from liftpy.client.group_admin import ask_coordinator
from liftpy.core.wire._pb import group_pb2 as pb
from liftpy.errors import LiftError, NotFoundError, OutcomeUnknownError
from tests.simulation.world.load.clients import Clients, Model, Place
from tests.simulation.world.world import World

QUEUE, QUEUE_GROUP = "bills", "workers"
GROUP_STREAM, GROUP = "orders", "readers"
_ACK_WAIT_S = 3.0
"""Time after which the queue gives a job without an acknowledgment again, in seconds."""
_FINISHED_WITHIN_S = 120.0
"""Time for all records and jobs after recovery, in seconds. A node that a full disk has stopped restarts after 60 s."""


class Groups:
    """Groups and queues.

    ``acked``: offsets of the queue whose acknowledgment was confirmed. ``unconfirmed``: offsets whose acknowledgment got no answer, so
    that the queue may or may not give them again. ``committed``: positions of the group whose commit was confirmed.
    """

    def __init__(self, world: World, model: Model, clients: Clients) -> None:
        self.world = world
        self.model = model
        self.clients = clients
        self.acked: set[int] = set()
        self.unconfirmed: set[int] = set()
        self.handled: dict[Place, set[int]] = {}
        self.committed: dict[Place, int] = {}

    def start(self) -> None:
        """Start two of each kind."""
        for number in range(2):
            self.clients.begin(f"worker{number + 1}", self._work(random.Random(f"worker {number} {self.world.seed}")))
            self.clients.begin(f"member{number + 1}", self._member(random.Random(f"member {number} {self.world.seed}")))

    # ---- the queue -------------------------------------------------------------------------------------------------------
    async def _work(self, draw: random.Random) -> None:
        client = await self.clients.connect()
        while not self.clients.stopping:
            await self.model.call("queue", self._work_for(client, draw, draw.random() * 8))
            await asyncio.sleep(draw.random() * 0.3)
        await client.close()

    async def _work_for(self, client: Any, draw: random.Random, within_s: float) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + within_s
        async with client.queue(QUEUE, QUEUE_GROUP, options=QueueOptions(ack_wait_s=_ACK_WAIT_S, max_deliveries=1000)) as queue:
            while loop.time() < end_s and not self.clients.stopping:
                await self._take(queue, draw)

    async def _take(self, queue: Any, draw: random.Random) -> int:
        done = frozenset(self.acked)
        jobs = await queue.take(16, timeout_s=0.5)
        for job in jobs:
            if job.record.offset in done and job.deliveries and not self.model.may_lose:
                self.world.scheduler.violated(f"{QUEUE}: offset {job.record.offset} was given again after its acknowledgement")
        if jobs and draw.random() < 0.9:
            offsets = {job.record.offset for job in jobs}
            try:
                await queue.ack(jobs)
            except OutcomeUnknownError:
                self.unconfirmed |= offsets
                raise
            self.acked |= offsets
            self.world.scheduler.counters["jobs done"] += len(jobs)
        elif jobs and draw.random() < 0.5:
            await queue.nack(jobs)
        return len(jobs)

    # ---- the group -------------------------------------------------------------------------------------------------------
    async def _member(self, draw: random.Random) -> None:
        client = await self.clients.connect()
        while not self.clients.stopping:
            await self.model.call("group", self._member_for(client, draw, draw.random() * 8))
            await asyncio.sleep(draw.random() * 0.3)
        await client.close()

    async def _member_for(self, client: Any, draw: random.Random, within_s: float) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + within_s
        async with client.group(GROUP, [GROUP_STREAM], options=GroupOptions(auto_commit_s=0.5)) as group:
            while loop.time() < end_s and not self.clients.stopping:
                try:
                    async with asyncio.timeout(0.5):
                        part = await group.take()
                except TimeoutError:
                    continue
                if part is None:
                    return
                place = part.key.stream, part.key.partition
                found = self.handled.setdefault(place, set())
                for record in part.slice.records():
                    if record.offset < self.committed.get(place, 0) and not self.model.may_lose:
                        self.world.scheduler.violated(f"{place}: the group was given {record.offset} again after its commit")
                    found.add(record.offset)
                    self.world.scheduler.counters["records of the group"] += 1
                await self._finish_batch(group, part, draw)

    async def _finish_batch(self, group: Any, part: Any, draw: random.Random) -> None:
        """Mark the batch as finished, and sometimes commit at once. Otherwise the member commits it later."""
        group.finished(part)
        if draw.random() < 0.3 and group.generation_of(part.key) == part.generation:
            await group.commit()
            place = part.key.stream, part.key.partition
            self.committed[place] = max(self.committed.get(place, 0), part.slice.last_offset + 1)

    # ---- the end ---------------------------------------------------------------------------------------------------------
    async def finish(self, committed: dict[Place, set[int]]) -> None:
        """Check after recovery that exactly the unacknowledged records are delivered."""
        draw = random.Random(0)
        wanted = committed.get((QUEUE, 0), set())
        places = {place: offsets for place, offsets in committed.items() if place[0] == GROUP_STREAM and offsets}
        loop = asyncio.get_running_loop()
        end_s, given_s = loop.time() + _FINISHED_WITHIN_S, loop.time()

        def is_unfinished() -> bool:
            """A job with an unconfirmed acknowledgment is done, or the queue gives it again when the time for its worker ends."""
            missing = wanted - self.acked
            waits = loop.time() - given_s < _ACK_WAIT_S + 1
            return loop.time() < end_s and bool(missing) and (waits or not missing <= self.unconfirmed)

        async with self.world.connect() as client:
            while is_unfinished():
                try:
                    async with client.queue(
                        QUEUE, QUEUE_GROUP, options=QueueOptions(ack_wait_s=_ACK_WAIT_S, max_deliveries=1000)
                    ) as queue:
                        while is_unfinished():
                            if await self._take(queue, draw):
                                given_s = loop.time()
                except LiftError as error:
                    self.world.scheduler.trace("queue", type(error).__name__)
                    await asyncio.sleep(0.2)
            if missing := sorted(wanted - self.acked - self.unconfirmed):
                self.world.scheduler.violated(
                    f"{QUEUE}: the queue has not given {missing[:5]} ({len(missing)} of {len(wanted)})"
                )

            async def is_behind() -> bool:
                """A member may have read the last records without committing them. The next member reads them again."""
                try:
                    positions = (await client.groups.describe(GROUP)).positions
                except NotFoundError:  # the faults have kept all members away
                    return True
                ends = {(key.stream, key.partition): position for key, position in positions.items()}
                return any(
                    offsets - self.handled.get(place, set()) or max(offsets) >= ends.get(place, 0)
                    for place, offsets in places.items()
                )

            self.clients.stopping = False
            while places and loop.time() < end_s:
                try:
                    if not await is_behind():
                        break
                    await self._member_for(client, draw, 3)
                except LiftError as error:
                    self.world.scheduler.trace("group", type(error).__name__)
                    await asyncio.sleep(0.2)
            self.clients.stopping = True
            for place, offsets in places.items():
                if missing := sorted(offsets - self.handled.get(place, set())):
                    self.world.scheduler.violated(
                        f"{place}: the group has not read {missing[:5]} ({len(missing)} of {len(offsets)})"
                    )


async def hostile_member(world: World, stopping: Any) -> None:
    """Settle ranges that are as wide and as many as a command allows, as an attacker would."""
    draw = random.Random(f"hostile {world.seed}")
    async with world.connect() as client:
        try:
            stream = await client.groups.stream()
            await _take_all(client, len(stream.partitions))
        except LiftError as error:
            world.scheduler.trace("hostile member", type(error).__name__)
        while not stopping():
            await asyncio.sleep(draw.random() * 3)
            kind = draw.choice((pb.SETTLE_EXTEND, pb.SETTLE_ACK, pb.SETTLE_NACK))
            ranges = [pb.RecordRange(start=0, end=1 << 40, lease=draw.choice((1, 999)))]
            parts = [pb.Settlement(kind=kind, stream="s", uid="u", ranges=ranges) for _ in range(64)]
            await _say(client, pb.GroupCommand(group="hostile", settle=pb.SettleRecords(member="m", settlements=parts)))


async def _take_all(client: Any, partitions: int) -> None:
    take = pb.TakeRecords(member="m", stream="s", uid="u", partition=0, maxRecords=10_000, logEnd=1 << 40)
    await _say(client, pb.GroupCommand(group="hostile", take=take))
    every_second = [pb.RecordRange(start=at, end=at + 1, lease=1) for at in range(1, 9_999, 2)]
    for first in range(0, len(every_second), 500):
        part = pb.Settlement(kind=pb.SETTLE_ACK, stream="s", uid="u", ranges=every_second[first : first + 500])
        await _say(client, pb.GroupCommand(group="hostile", settle=pb.SettleRecords(member="m", settlements=[part])))


async def _say(client: Any, command: pb.GroupCommand) -> None:
    try:
        await ask_coordinator(client.services, 0, command, 3.0)
    except LiftError:
        return
