"""Replicated services, consumer groups, work queues."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, Literal

from liftpy.client.group import Group, GroupOptions
from liftpy.client.queue import Job, LeaseLostError, QueueOptions
from liftpy.core.base.ids import PartitionKey
from liftpy.core.services.service import Service
from liftpy.core.wire.batch import Record
from liftpy.errors import LiftError, NotFoundError, OffsetOutOfRangeError
from tests.pairs.feature import Feature
from tests.pairs.model import Newer, Reading, id_of
from tests.pairs.readers import read_all
from tests.pairs.world import PARTITIONS, READ, World, failure_of, stop_task


class Echo(Service):
    """Gives the id of each record to its output stream."""

    def on_start(self, snapshot: bytes | None) -> None:
        self.count = int(snapshot or b"0")

    def on_record(self, record: Record) -> None:
        self.count += 1
        self.emit(b"%s|%d" % (id_of(record).encode(), record.offset))

    def take_snapshot(self) -> bytes:
        return b"%d" % self.count


class ReplicatedService(Feature):
    """A service puts out one record for each record of partition 0."""

    name, kind = "service", "services"
    writes = 15

    async def start(self, world: World) -> None:
        self._outputs = await world.side_stream("outputs")
        serve = world.cluster.serve
        await asyncio.to_thread(lambda: serve(Echo, "echo", world.stream, output_stream=self._outputs, tick_interval_s=0.1))

    async def check(self, world: World) -> None:
        if world.recreations:
            return  # a service stops when its stream is made again: an operator starts it
        last = world.end_of(0)
        found: list[Record] = []

        async def done() -> bool:
            found[:] = await read_all(world.client.consume(self._outputs, until="end", options=READ))
            return any((r.value or b"").endswith(b"|%d" % last) for r in found)

        if await world.until(done, f"the service has put out what came up to {last}"):
            logs = [] if self._outputs in world.side_losses else [world.logs[0]]  # those that are gone are not there twice
            world.model.check_once("outputs of the service", [id_of(record) for record in found], logs)
            offsets = [int((r.value or b"").rpartition(b"|")[2]) for r in found]
            if offsets != sorted(offsets):
                world.model.violate(f"outputs of the service are out of order: {offsets}")


def _is_overtaken(world: World, error: BaseException | None) -> bool:
    """Whether retention has taken the position of a group. Any other end of a member is a LiftError, or a violation."""
    if not isinstance(error, LiftError):
        world.model.violate(f"a member of the group ended with {error!r}")
    is_overtaken = isinstance(error, OffsetOutOfRangeError)
    if is_overtaken and not world.model.may_shorten and not world.recreations:
        world.model.violate(f"a member of the group: {error!r}")
    return is_overtaken


async def _reset_to_log_start(world: World, group: str) -> None:
    """Reset the group, as an operator does when retention has taken its positions: a group never moves them itself."""
    starts = {
        PartitionKey(world.stream, world.uid, partition): (await world.client.bounds(world.stream, partition)).log_start_offset
        for partition in range(world.partitions)
    }
    try:
        known = (await world.client.groups.describe(group)).positions
    except NotFoundError:  # it had committed nothing, and its last member has left: it begins at the log start by itself
        return
    behind = {key: start for key, start in starts.items() if known.get(key, start) < start}
    if behind:
        await world.client.groups.reset(group, behind)


class ConsumerGroup(Feature):
    """Members of a group come and go; what is committed was handed on."""

    name, kind = "group", "services"
    begin: Literal["earliest", "new"] = "earliest"

    def __init__(self) -> None:
        self._members: list[tuple[Group, asyncio.Task[None]]] = []
        self._readings: dict[tuple[str, int], Reading] = {}
        self._overtaken = False

    async def start(self, world: World) -> None:
        await self._join(world)

    async def _join(self, world: World) -> None:
        options = GroupOptions(session_s=3.0, auto_commit_s=0.05, start=self.begin, read=READ)
        group = await world.client.group(f"{self.name}-{world.stream}", [world.stream], options=options)
        self._members.append((group, asyncio.create_task(self._read(world, group))))

    async def _read(self, world: World, group: Group) -> None:
        async for part in group.batches():
            at = part.key.uid, part.key.partition
            if at not in self._readings:
                first = part.slice.first_offset if self.begin == "new" and at[1] < PARTITIONS else 0
                self._readings[at] = Reading(self.name, *at, start=first)
                world.readings.append(self._readings[at])
            reading = self._readings[at]
            for record in part.slice.records():
                reading.given[record.offset] = id_of(record)
                reading.passed = max(reading.passed, record.offset + 1)

    async def act(self, world: World, rng: random.Random) -> None:
        await world.write(rng, 8)
        await self._tend(world)
        if len(self._members) > 1 or rng.random() < 0.5:
            await self._leave(world, self._members.pop(0))
        if len(self._members) < 2:
            await self._join(world)
        await world.write(rng, 4)

    async def _leave(self, world: World, member: tuple[Group, asyncio.Task[None]]) -> None:
        """Close a member and judge how its reading ended: it can fail also while it leaves."""
        group, task = member
        await group.close()
        await asyncio.wait([task], timeout=5)
        error = failure_of(task)
        if error is not None:
            self._overtaken |= _is_overtaken(world, error)

    async def _tend(self, world: World) -> None:
        """A member whose reading has failed is replaced; of what retention has taken the group is set to the log start."""
        for member in list(self._members):
            if not member[1].done():
                continue
            self._members.remove(member)
            if failure_of(member[1]) is None:
                world.model.violate("the reading of a member of the group ended without an error")
            await self._leave(world, member)
        if not self._members:
            if self._overtaken:
                self._overtaken = False
                await _reset_to_log_start(world, f"{self.name}-{world.stream}")
            await self._join(world)

    async def check(self, world: World) -> None:
        for partition in range(world.partitions):

            async def done(partition: int = partition) -> bool:
                await self._tend(world)
                reading = self._readings.get((world.uid, partition))
                if reading is None and self.begin == "new" and partition < PARTITIONS:
                    return True  # nothing has come since the group looked at it first
                return reading is not None and reading.passed > world.end_of(partition)

            if not await world.until(done, f"the group reaches {world.end_of(partition)} of partition {partition}", 40):
                return
        described = await world.client.groups.describe(f"{self.name}-{world.stream}")
        for key, position in described.positions.items():
            reading = self._readings.get((key.uid, key.partition))
            if reading is not None and world.is_same(key.uid) and position > reading.passed:
                world.model.violate(
                    f"the group has committed {position} of partition {key.partition}, {reading.passed} was handed on"
                )

    async def end(self) -> None:
        for group, task in self._members:
            await stop_task(task)
            await group.close()


class LateGroup(ConsumerGroup):
    """A group that begins at what is new; of a partition that is added later it reads every record."""

    name, begin = "group-new", "new"

    async def start(self, world: World) -> None:
        await super().start(world)

        async def begun() -> bool:
            return len((await world.client.groups.describe(f"{self.name}-{world.stream}")).positions) == PARTITIONS

        await world.until(begun, "the group has begun: what is added from here on comes later")


class GroupInto(Feature):
    """A group copies the stream into another one, each record once."""

    name, kind = "group-into", "services"

    def __init__(self) -> None:
        self._group: Group | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, world: World) -> None:
        self._target = await world.side_stream("copy", 2)
        await self._run(world)

    async def _run(self, world: World) -> None:
        options = GroupOptions(session_s=3.0, auto_commit_s=0.1, read=READ)
        self._group = await world.client.group(f"into-{world.stream}", [world.stream], options=options)
        self._task = asyncio.create_task(self._group.into(self._target, _copied))

    async def act(self, world: World, rng: random.Random) -> None:
        await world.write(rng, 8)
        if rng.random() < 0.6:
            await self.end()
            await self._run(world)
        else:
            await self._tend(world)
        await world.write(rng, 4)

    async def _tend(self, world: World) -> None:
        """Start the copy again where it has ended. A group that retention has overtaken is reset first."""
        task = self._task
        if task is None or not task.done():
            return
        await self.end()
        if _is_overtaken(world, failure_of(task)):
            await _reset_to_log_start(world, f"into-{world.stream}")
        await self._run(world)

    async def check(self, world: World) -> None:
        found: list[str] = []

        async def done() -> bool:
            await self._tend(world)
            found.clear()
            for partition in range(2):
                records = await read_all(world.client.consume(self._target, partition, until="end", options=READ))
                found.extend(id_of(record) for record in records)
            return {id_of(log.records[-1]) for log in world.logs.values() if log.records} <= set(found)

        if await world.until(done, "the copy has all records", 40):
            world.model.check_once("the copy", found, () if self._target in world.side_losses else world.logs.values())

    async def end(self) -> None:
        if self._task is not None:
            await stop_task(self._task)
        if self._group is not None:
            await self._group.close()


def _copied(record: Record) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, id_of(record).encode() + b"|copy")]


class WorkQueue(Feature):
    """Workers take records, acknowledge, give back and reject them; what is rejected is in the dead letters once."""

    name, kind = "queue", "services"
    ordered = False

    def __init__(self) -> None:
        self._acked: dict[tuple[str, int], set[int]] = {}
        self._rejected: set[str] = set()
        self._unsure: set[str] = set()

    async def start(self, world: World) -> None:
        self._dead = await world.side_stream(f"dead-{self.name}")
        self._options = QueueOptions(
            ack_wait_s=1.0, max_deliveries=50, dead_letters=self._dead, order_by_key=self.ordered, read=READ
        )

    async def act(self, world: World, rng: random.Random) -> None:
        await world.write(rng, 10)
        async with world.client.queue(world.stream, f"{self.name}-{world.stream}", options=self._options) as queue:
            for _ in range(3):
                try:
                    jobs = await queue.take(rng.randint(1, 20), timeout_s=0.3)
                    await self._settle(world, queue, jobs, rng)
                except NotFoundError:
                    return
                except LiftError:
                    if not world.away:
                        await asyncio.sleep(0.05)

    async def _settle(self, world: World, queue: Any, jobs: list[Job], rng: random.Random | None) -> None:
        for job in jobs:
            if job.record.offset in self._acked.get((job.key.uid, job.key.partition), ()):
                world.model.violate(f"queue: {job.record.offset} of partition {job.key.partition} comes again after its ack")
            if world.is_same(job.key.uid):
                world.model.check_given("queue", job.record.offset, id_of(job.record), job.key.uid, job.key.partition)
        lots: dict[str, list[Job]] = {"ack": [], "nack": [], "reject": []}
        for job in jobs:
            lot = "ack" if rng is None else rng.choices(("ack", "nack", "reject"), (70, 20, 10))[0]
            lots[lot].append(job)
        self._unsure |= {id_of(job.record) for job in lots["reject"]}
        lost: set[Job] = set()
        for lot, some in lots.items():
            if not some:
                continue
            try:
                await (queue.reject(some, "bad") if lot == "reject" else getattr(queue, lot)(some))
            except LeaseLostError as error:
                lost |= set(error.jobs)
            for job in some:
                if job not in lost and lot == "ack":
                    self._acked.setdefault((job.key.uid, job.key.partition), set()).add(job.record.offset)
                if job not in lost and lot == "reject" and world.is_same(job.key.uid):
                    self._rejected.add(id_of(job.record))

    async def check(self, world: World) -> None:
        dead: list[str] = []
        newer = {partition: Newer(world.model, log) for partition, log in world.logs.items()}

        def missing() -> list[str]:
            return [
                id_of(record)
                for partition, log in world.logs.items()
                for record in log.records
                if record.offset not in self._acked.get((world.uid, partition), ())
                and id_of(record) not in (self._unsure if self._dead in world.side_losses else dead)
                and not world.model.may_be_cleaned(id_of(record), record.offset, log, newer[partition])
            ]

        async with world.client.queue(world.stream, f"{self.name}-{world.stream}", options=self._options) as queue:

            async def done() -> bool:
                try:
                    await self._settle(world, queue, await queue.take(64, timeout_s=0.2), None)
                finally:
                    records = await read_all(world.client.consume(self._dead, until="end", options=READ))
                    dead[:] = [id_of(record) for record in records]
                return not missing()

            if not await world.until(done, "the queue has given every record", 40):
                world.model.violate(f"the queue never gave {missing()[:5]}")
        twice = [id for id, count in Counter(dead).items() if count > 1]
        if twice:
            world.model.violate(f"the dead letters have {twice[:3]} twice")
        alien = set(dead) - self._unsure
        if alien:
            world.model.violate(f"the dead letters have {sorted(alien)[:3]}, which nobody rejected")


class OrderedQueue(WorkQueue):
    """The same, of one key one record at a time."""

    name, ordered = "ordered-queue", True


FEATURES: tuple[type[Feature], ...] = (ReplicatedService, ConsumerGroup, LateGroup, GroupInto, WorkQueue, OrderedQueue)
