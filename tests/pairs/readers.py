"""Ways to read."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import suppress

from liftpy.client import ReadOptions
from liftpy.client.cursor import Cursor
from liftpy.config import StreamConfig
from liftpy.core.backup.manifest import Manifest
from liftpy.core.log.log import Log
from liftpy.core.wire.batch import Record
from liftpy.errors import LiftError, LogTruncatedError, NotFoundError, OffsetOutOfRangeError, UnavailableError
from sidecar.backup.create import BackupOptions, take_backup
from sidecar.backup.inspect import verify_backup
from sidecar.backup.staging import NOWHERE, stage
from sidecar.backup.store import Store
from sidecar.disk.files import DirectoryStorage
from tests.pairs.feature import Feature
from tests.pairs.model import FoundLog, Reading, id_of
from tests.pairs.world import QUIET_S, READ, World, log_records, stop_task

_GONE = (OffsetOutOfRangeError, NotFoundError, LogTruncatedError)


class Consume(Feature):
    """A consumer follows each partition; it is closed now and then, and goes on from its stored position."""

    name, kind = "consume", "readers"

    def __init__(self) -> None:
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._readings: dict[int, Reading] = {}
        self._positions: dict[int, str] = {}

    async def start(self, world: World) -> None:
        self._follow(world)

    def _follow(self, world: World) -> None:
        for partition in range(world.partitions):
            task = self._tasks.get(partition)
            if task is None or task.done():
                self._tasks[partition] = asyncio.create_task(self._read(world, partition))

    async def _read(self, world: World, partition: int) -> None:
        start = self._positions.get(partition, "earliest")
        while True:
            reading, uid = self._readings.get(partition), world.uid
            if reading is None or reading.uid != uid:
                reading, start = self._begun(world, uid, partition), "earliest"
                reading.start = (await world.client.bounds(world.stream, partition)).log_start_offset
            consumer = world.client.consume(world.stream, partition, start=start, options=READ)
            try:
                async for record in consumer:
                    position = await consumer.position()
                    if position.uid != reading.uid:
                        reading = self._begun(world, position.uid, partition)
                    if record.offset < reading.passed:
                        world.model.violate(f"{self.name} of partition {partition}: {record.offset} after {reading.passed - 1}")
                    reading.given[record.offset] = id_of(record)
                    reading.passed = record.offset + 1
                    self._positions[partition] = str(position)
            except _GONE as error:
                start = await self._go_on(world, partition, reading, error)
            except UnavailableError:
                start = self._positions.get(partition, "earliest")

    def _begun(self, world: World, uid: str, partition: int) -> Reading:
        made = self._readings[partition] = Reading(self.name, uid, partition)
        world.readings.append(made)
        return made

    async def _go_on(self, world: World, partition: int, reading: Reading, error: LiftError) -> str:
        """Where a reader goes on of which the next record is gone."""
        self._positions.pop(partition, None)
        with suppress(LiftError):
            await world.image()
            if world.is_same(reading.uid):
                if not isinstance(error, OffsetOutOfRangeError):
                    world.model.violate(f"{self.name} of partition {partition}: {error!r}")
                start = (await world.client.bounds(world.stream, partition)).log_start_offset
                if start <= reading.passed and not world.model.may_shorten:
                    world.model.violate(f"{self.name} of partition {partition}: {error!r}, and the log starts at {start}")
        await asyncio.sleep(0.01)
        return "earliest"

    async def act(self, world: World, rng: random.Random) -> None:
        self._follow(world)
        partition = rng.choice(sorted(self._tasks))
        task = self._tasks.pop(partition)
        await stop_task(task)
        await world.write(rng, 5)
        self._follow(world)

    async def check(self, world: World) -> None:
        self._follow(world)
        for partition in range(world.partitions):

            async def done(partition: int = partition) -> bool:
                reading = self._readings.get(partition)
                if self._tasks[partition].done():
                    self._tasks[partition].result()
                return reading is not None and world.is_same(reading.uid) and reading.passed > world.end_of(partition)

            await world.until(done, f"{self.name} of partition {partition} reaches {world.end_of(partition)}")

    async def end(self) -> None:
        for task in self._tasks.values():
            await stop_task(task)


async def read_all(records: AsyncIterator[Record]) -> list[Record]:
    """All of them."""
    return [record async for record in records]


class ReadRange(Feature):
    """A range that was planned once is read the same every time, from whichever replica."""

    name, kind = "read-range", "readers"

    async def act(self, world: World, rng: random.Random) -> None:
        await world.write(rng, 5)
        partition, uid = rng.randrange(world.partitions), world.uid
        bounds = await world.client.bounds(world.stream, partition)
        start = rng.randint(bounds.log_start_offset, bounds.end_offset)
        try:
            one = await self._read(world, partition, start, bounds.end_offset, uid)
            two = await self._read(world, partition, start, bounds.end_offset, uid)
        except _GONE:
            if world.is_same(uid):
                now = await world.client.bounds(world.stream, partition)
                assert now.log_start_offset > start or not world.is_same(uid), (
                    f"a range from {start} is refused, the log starts at {now}"
                )
            return
        reading = Reading(self.name, uid, partition, start, bounds.end_offset, {r.offset: id_of(r) for r in one})
        world.readings.append(reading)
        both = {r.offset: r for r in one}
        for record in two:
            if both.get(record.offset, record) != record:
                world.model.violate(f"{self.name}: {record.offset} was {both[record.offset]}, and is {record}")
        if len(two) > len(one) or (len(two) < len(one) and not world.model.may_shorten):
            world.model.violate(f"{self.name} {start}..{bounds.end_offset} gave {len(one)} records, then {len(two)}")

    async def _read(self, world: World, partition: int, start: int, end: int, uid: str) -> list[Record]:
        slices = world.client.read_range(world.stream, partition, start, end, uid=uid, options=READ)
        return [record async for piece in slices for record in piece.records()]


class Reverse(Feature):
    """A consumer reads backwards, from the end to the log start."""

    name, kind = "reverse", "readers"

    async def act(self, world: World, rng: random.Random) -> None:
        await world.write(rng, 5)
        partition, uid = rng.randrange(world.partitions), world.uid
        end = (await world.client.bounds(world.stream, partition)).end_offset
        if not end:
            return
        reading = Reading(self.name, uid, partition, end, end)
        last = end
        try:
            async for record in world.client.consume(world.stream, partition, start=end - 1, backwards=True, options=READ):
                if record.offset >= last:
                    world.model.violate(f"{self.name}: {record.offset} comes after {last}")
                last = reading.start = record.offset
                reading.given[record.offset] = id_of(record)
        except _GONE:
            pass
        else:
            reading.start = 0
        world.readings.append(reading)


class KeyFilter(Feature):
    """A reader asks for the records of one key."""

    name, kind = "filter", "readers"
    writes = 8

    async def check(self, world: World) -> None:
        for partition, log in world.logs.items():
            keys = {record.key for record in log.records if record.key is not None}
            for key in sorted(keys)[:3]:
                found = await read_all(world.client.consume(world.stream, partition, keys=[key], until="end", options=READ))
                offsets, wanted = [r.offset for r in found], [r.offset for r in log.records if r.key == key]
                if offsets != wanted and world.model.may_shorten:  # compaction has dropped old delete markers since
                    later = await read_all(world.client.consume(world.stream, partition, until="end", options=READ))
                    still = {record.offset for record in later}
                    wanted = [offset for offset in wanted if offset in still or offset in offsets]
                assert offsets == wanted, f"key {key!r} gives {offsets}, not {wanted}"


class SeveralPartitions(Feature):
    """One reader of all partitions, by a pattern; its positions are kept as text."""

    name, kind = "consume-many", "readers"
    writes = 5

    def __init__(self) -> None:
        self._given: dict[tuple[str, int], dict[int, str]] = {}
        self._text = ""

    async def check(self, world: World) -> None:
        given: dict[int, dict[int, str]] = {partition: {} for partition in world.logs}
        many = world.client.consume_many(f"{world.stream}*", until="end", options=READ)
        async with many:
            async for stream, partition, record in many:
                if stream == world.stream:
                    given[partition][record.offset] = id_of(record)
        for partition, found in given.items():
            end = world.end_of(partition) + 1
            world.readings.append(Reading(self.name, world.uid, partition, world.logs[partition].start, end, found))


class NamedCursor(Feature):
    """A named cursor: read, commit, and go on from what is committed."""

    name, kind = "cursor", "readers"

    def __init__(self) -> None:
        self._given: dict[tuple[str, int], Reading] = {}
        self._cursor: Cursor | None = None
        self._committed: dict[tuple[str, int], int] = {}

    async def act(self, world: World, rng: random.Random) -> None:
        await world.write(rng, 5)
        if self._cursor is None or rng.random() < 0.5:
            self._cursor = await world.client.cursor(f"cursor-{world.stream}", world.stream)
        for partition in range(world.partitions):
            await self._some(world, partition, rng.randint(1, 20))

    async def _some(self, world: World, partition: int, most: int) -> None:
        uid, cursor = world.uid, self._cursor
        assert cursor is not None
        try:
            reader = await cursor.consume(partition, until="end", options=READ)
            reading = self._reading(world, uid, partition)
            at = await cursor.fetch(partition)
            if at is not None and at > reading.passed and world.is_same(uid):
                world.model.violate(f"{self.name} of partition {partition}: {at} is committed, {reading.passed} was passed")
            known = self._committed.get((uid, partition))
            if known is not None and at != known and world.is_same(uid):
                world.model.violate(f"{self.name} of partition {partition}: {known} was committed, {at} is told")
            count = 0
            async for record in reader:
                if record.offset < (at or 0):
                    world.model.violate(
                        f"{self.name} of partition {partition}: {record.offset} is below {at}, which is committed"
                    )
                reading.given[record.offset] = id_of(record)
                reading.passed = max(reading.passed, record.offset + 1)
                if (count := count + 1) >= most:
                    break
            if count:
                await cursor.commit(record.offset + 1, partition)
                if world.is_same(uid):
                    self._committed[uid, partition] = record.offset + 1
        except _GONE:
            if world.is_same(uid):
                await self._overtaken(world, cursor, partition)
        except LiftError:
            self._cursor = None  # another stream, or nobody answers: opened again
            if world.is_same(uid) and not world.recreations and not world.away and partition < 2 and not world.grew:
                raise

    async def _overtaken(self, world: World, cursor: Cursor, partition: int) -> None:
        """Retention has taken what comes next: go on at the log start."""
        try:
            start = (await world.client.bounds(world.stream, partition)).log_start_offset
            if start > ((await cursor.fetch(partition)) or 0):
                self._reading(world, world.uid, partition).passed = start
                await cursor.commit(start, partition)
                self._committed[world.uid, partition] = start
            else:
                self._cursor = None
        except LiftError:
            self._cursor = None

    def _reading(self, world: World, uid: str, partition: int) -> Reading:
        found = self._given.get((uid, partition))
        if found is None:
            found = self._given[uid, partition] = Reading(self.name, uid, partition)
            world.readings.append(found)
        return found

    async def check(self, world: World) -> None:
        self._cursor = await world.client.cursor(f"cursor-{world.stream}", world.stream)
        for partition in range(world.partitions):
            await self._some(world, partition, 1 << 30)
            await self._some(world, partition, 1 << 30)
            reading = self._reading(world, world.uid, partition)
            assert reading.passed == world.end_of(partition) + 1, (
                f"cursor: it ends at {reading.passed} of partition {partition}"
            )


class SparkBatches(Feature):
    """Ranges are planned as a streaming query plans them, read in two tasks, and read again as after a failure."""

    name, kind = "spark-batches", "readers"

    def __init__(self) -> None:
        self._planned: dict[int, int] = {}
        self._uid = ""

    async def act(self, world: World, rng: random.Random) -> None:
        await world.write(rng, 8)
        if self._uid != world.uid:
            self._uid, self._planned = world.uid, {}
        uid = world.uid
        for partition in range(world.partitions):
            bounds = await world.client.bounds(world.stream, partition)
            start = max(self._planned.get(partition, 0), bounds.log_start_offset)
            middle = rng.randint(start, max(start, bounds.end_offset))
            found: dict[int, str] = {}
            try:
                for _ in range(2):
                    for begin, end in ((middle, bounds.end_offset), (start, middle)):
                        options = ReadOptions(patience_s=QUIET_S, answer_timeout_s=1.0)
                        async for piece in world.client.read_range(
                            world.stream, partition, begin, end, uid=uid, options=options
                        ):
                            for record in piece.records():
                                if found.setdefault(record.offset, id_of(record)) != id_of(record):
                                    world.model.violate(f"{self.name}: {record.offset} is another record when it is read again")
            except _GONE:
                continue  # a query would fail, or go on with failOnDataLoss=false
            world.readings.append(Reading(self.name, uid, partition, start, bounds.end_offset, found))
            self._planned[partition] = bounds.end_offset


class Backup(Feature):
    """Backups are taken while others act; what each restores is compared with the model."""

    name, kind, acts = "backup", "readers", 2

    def __init__(self) -> None:
        self._taken: list[tuple[str, Manifest]] = []

    def _store(self, world: World) -> Store:
        return Store.at(str(world.scratch / "store"))

    async def act(self, world: World, rng: random.Random) -> None:
        await world.write(rng, 10)
        await self._take(world)

    async def _take(self, world: World) -> None:
        options = BackupOptions(namespace=world.cluster.namespace, streams=(world.stream,), piece_bytes=8192)
        uid = world.uid
        try:
            taken = await take_backup(world.client, self._store(world), options)
        except NotFoundError:
            assert world.uid != uid or world.recreations, "a backup does not find its stream"
            return
        self._taken.append((uid, taken.manifest))

    async def check(self, world: World) -> None:
        await self._take(world)
        for number, (uid, manifest) in enumerate(self._taken):
            if uid != world.uid or manifest.streams[0].uid != uid:
                continue
            await asyncio.to_thread(verify_backup, self._store(world), manifest)
            config: StreamConfig = world.config
            for copy in manifest.streams[0].partitions:
                folder = world.scratch / f"restored-{number}-{copy.partition}"
                staged = await asyncio.to_thread(stage, self._store(world), copy, config, folder, NOWHERE, lambda path: None)
                log, _ = Log.open(DirectoryStorage(folder), config, now_wall_ns=world.now_ns())
                found = FoundLog(copy.partition, log.log_start_offset, staged.end, log_records(log, staged.end)[0])
                log.close()
                world.model.check_log(found, world.now_ns(), f"backup {number}")


FEATURES: tuple[type[Feature], ...] = (
    Consume, ReadRange, Reverse, KeyFilter, SeveralPartitions, NamedCursor, SparkBatches, Backup,
)  # fmt: skip
