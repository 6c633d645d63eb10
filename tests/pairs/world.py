"""The cluster of a scenario, its stream, and what features need of both."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from liftpy.client import Client, Publisher, PublishOptions, ReadOptions
from liftpy.config import ReplicationConfig, StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.metadata.image import StreamImage
from liftpy.core.wire.batch import Record, split_batches
from liftpy.core.wire.subjects import data_subject
from liftpy.errors import LiftError
from liftpy.testing.memory import MemoryCluster
from tests.pairs.model import MARKER, FoundLog, Model, Outcome, Reading, Sent, check_replicas

_T = TypeVar("_T")
NODES = 4
REPLICAS = 3
PARTITIONS = 2
KEYS = 5
COLD_KEYS = 40
QUIET_S = 20.0
"""So long everything may take to become quiet after the faults."""
_POLL_S = 0.01
_QUICK = ReplicationConfig(
    max_lag_time_s=1.0,
    max_leader_timeout_s=1.0,
    fetch_timeout_s=0.4,
    fetch_backoff_max_s=0.2,
    candidate_timeout_s=1.0,
    max_idle_wait_s=0.3,
    notice_interval_s=0.3,
    copy_fetch_bytes=4096,
    copy_bytes_per_s=150_000,
    copy_min_bytes_per_s=0,
)
READ = ReadOptions(patience_s=QUIET_S, wait_s=0.2, answer_timeout_s=1.0)


class World:
    """``scratch``: a folder for backups."""

    def __init__(self, name: str, scratch: Path) -> None:
        self.stream = name
        self.subject = f"data.{name}"
        self.scratch = scratch
        self.model = Model()
        self.model.subject = self.subject
        self.cluster = MemoryCluster(NODES, config=_QUICK)
        self.client: Client
        self.uid = ""
        self.partitions = PARTITIONS
        self.replicas = REPLICAS
        self.config = StreamConfig()
        self.away: dict[str, str] = {}
        """Node -> what is wrong with it. One at a time: two faults may take more than the promises allow."""
        self.changing = asyncio.Lock()
        """Held while replicas, leaders or nodes change, so that two faults do not meet by chance."""
        self.readings: list[Reading] = []
        self.logs: dict[int, FoundLog] = {}
        """By partition, when all is quiet."""
        self._cut: _Cut | None = None
        """Rule that cuts off the isolated node. None: no node was isolated."""
        self.jumped_s = 0.0
        """How far the wall clock was set ahead."""
        self.recreations = 0
        self.side_streams: dict[str, str] = {}
        """Streams that services write to, with their subjects."""
        self.side_losses: set[str] = set()
        """Of those: records were removed by an operator."""
        self._publishers: dict[tuple[int, bool], Publisher] = {}
        self._conditions: dict[int, asyncio.Lock] = {}
        self._numbers: dict[str, int] = {}

    # ---- life --------------------------------------------------------------------------------------------------------------
    @asynccontextmanager
    async def running(self, settings: dict[str, Any]) -> AsyncIterator[World]:
        """The cluster runs, the stream is there."""
        await asyncio.to_thread(self.cluster.start_all)
        for node in self._nodes.values():
            node.wall_ns = self.now_ns
        assert self.cluster._loop is not None
        self.cluster._loop.set_exception_handler(self._loop_failed)
        asyncio.get_running_loop().set_exception_handler(self._loop_failed)
        try:
            async with self.cluster.client() as self.client:
                self.config = StreamConfig(**{"segment_bytes": 4096, **settings})
                await self.create()
                yield self
                await self._close_publishers()
        finally:
            asyncio.get_running_loop().set_exception_handler(None)
            await asyncio.to_thread(self.cluster.stop)

    def _loop_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.model.violate(f"an event loop reports: {context.get('message')}: {error!r}")

    async def create(self) -> None:
        """Make the stream of the scenario."""
        image = await self.client.create_stream(
            self.stream, self.subject, partitions=self.partitions, replicas=self.replicas, config=self.config
        )
        self._is(image)

    def _is(self, image: StreamImage) -> None:
        self.uid, self.partitions = image.uid, len(image.partitions)
        self.model.recreated(image.uid)
        self.model.config = self.config
        self.model.retentions.append(self.config)

    async def recreate(self) -> None:
        """Delete the stream and make it again, while others publish and read."""
        self.model.recreating = {sent.id for sent in self.model.sent.values() if sent.outcome is Outcome.OPEN}
        await self.client.admin.delete_stream(self.stream)
        self.model.retentions.clear()
        self.recreations += 1
        await self.create()

    def is_same(self, uid: str) -> bool:
        """Whether the stream is still that one, and is not about to be made again."""
        return uid == self.uid and self.model.recreating is None

    async def altered(self, replication_factor: int = 0, **settings: Any) -> None:
        """Change settings of the stream."""
        image = await self.client.admin.alter_stream(self.stream, replication_factor, **settings)
        self.config = image.config
        self.model.config = image.config
        self.model.retentions.append(image.config)
        self.replicas = replication_factor or self.replicas

    async def side_stream(self, what: str, partitions: int = 1) -> str:
        """Make a stream that a service writes to; its name."""
        name = f"{self.stream}-{what}"
        subject = self.side_streams[name] = f"{what}.{self.stream}"
        await self.client.create_stream(name, subject, partitions=partitions, replicas=REPLICAS)
        return name

    def any_stream(self, rng: random.Random) -> str:
        """The stream of the scenario, or one that a service writes to."""
        return rng.choice([self.stream, *sorted(self.side_streams)])

    async def image(self) -> StreamImage:
        """The stream as it is now."""
        return await self.client.stream(self.stream)

    @property
    def grew(self) -> bool:
        """Whether partitions were added."""
        return self.partitions > PARTITIONS

    def data_subject(self, partition: int) -> str:
        """On which a partition is published to."""
        return data_subject(self.subject, partition)

    # ---- publishing --------------------------------------------------------------------------------------------------------
    def new(self, writer: str, rng: random.Random, *, key: bytes | None = None, tombstone: bool = False) -> Sent:
        """The next record of a writer."""
        number = self._numbers[writer] = self._numbers.get(writer, -1) + 1
        filler = bytes(rng.choices(b"abcdefgh", k=rng.choice((0, 20, 100, 400))))
        return self.model.begin(writer, number, self.now_ns(), key=key, filler=filler, tombstone=tombstone)

    def a_key(self, rng: random.Random) -> bytes:
        """One of a few keys that are often written, or of more that are not."""
        return b"k%d" % rng.randrange(KEYS) if rng.random() < 0.5 else b"cold%d" % rng.randrange(COLD_KEYS)

    async def publisher(self, partition: int, *, ids: bool = True) -> Publisher:
        """Of this world; with ``ids`` it sends again under message ids, else a record without an answer is given up."""
        if (partition, ids) not in self._publishers:
            options = PublishOptions(timeout_s=0.4, patience_s=4.0, message_ids=ids)
            self._publishers[partition, ids] = await self.client.publisher(self.stream, partition, options=options)
        return self._publishers[partition, ids]

    async def publish(self, sent: Sent, partition: int, *, ids: bool = True, **how: Any) -> None:
        """Publish one record and note what comes of it."""
        if self.config.optimistic_concurrency and "expected_last" not in how:
            async with self._conditions.setdefault(partition, asyncio.Lock()):
                with self.model.noting(sent):
                    last = (await self.client.bounds(self.stream, partition)).end_offset - 1
                    await self._publish(sent, partition, ids, {**how, "expected_last": last})
            return
        with self.model.noting(sent):
            await self._publish(sent, partition, ids, how)

    async def _publish(self, sent: Sent, partition: int, ids: bool, how: dict[str, Any]) -> None:
        publisher = await self.publisher(partition, ids=ids)
        ack = await publisher.publish(sent.value, key=sent.key, headers=sent.headers or None, **how)
        self.model.acked(sent, ack.partition, ack.offset)

    async def write(self, rng: random.Random, count: int = 10, writer: str = "plain") -> None:
        """Publish some records at once, some with keys, some that delete keys."""
        waiting = []
        for _ in range(count):
            key = self.a_key(rng) if rng.random() < 0.8 else None
            tombstone = key is not None and rng.random() < 0.25
            sent = self.new(writer, rng, key=key, tombstone=tombstone)
            waiting.append(self.publish(sent, rng.randrange(self.partitions), ids=rng.random() < 0.6))
        await asyncio.gather(*waiting)

    @asynccontextmanager
    async def writing(self, rng: random.Random, count: int) -> AsyncIterator[None]:
        """Publish some records while something else goes on."""
        task = asyncio.create_task(self.write(rng, count))
        await asyncio.sleep(0)
        yield
        await task

    async def _close_publishers(self) -> None:
        for publisher in self._publishers.values():
            with suppress(LiftError):
                await publisher.close()

    # ---- time and housekeeping -----------------------------------------------------------------------------------------------
    def now_ns(self) -> int:
        """The wall clock of the nodes."""
        return time.time_ns() + round(self.jumped_s * 1e9)

    def pass_time(self, seconds: float) -> None:
        """Set the wall clock of all nodes ahead."""
        self.jumped_s += seconds

    async def keep_house(self) -> None:
        """Run retention and compaction now."""
        await asyncio.to_thread(self.cluster.keep_house)

    # ---- nodes and faults ----------------------------------------------------------------------------------------------------
    @property
    def _nodes(self) -> dict[str, Any]:
        return self.cluster._nodes

    def on_cluster(self, work: Callable[[], _T]) -> _T:
        """Run ``work`` on the thread of the cluster in memory."""
        return self.cluster._call(work)

    async def leader(self, partition: int) -> str:
        """The node that leads now."""
        return await asyncio.to_thread(partial(self.cluster.leader, self.stream, partition))

    async def follower(self, rng: random.Random, partition: int) -> str:
        """A follower in the ISR, '' where there is none."""
        state = (await self.image()).partitions[partition]
        found = sorted(node for node in state.isr if node != state.leader)
        return rng.choice(found) if found else ""

    async def kill(self, node: str) -> None:
        """End a node; it is away until ``bring_back``."""
        self.away[node] = "killed"
        await asyncio.to_thread(self.cluster.kill, node)

    async def isolate(self, node: str) -> None:
        """A node reaches no other node, and is reached by none; the metadata group and clients still see it."""
        self.away[node] = "isolated"

        self._cut = self.on_cluster(lambda: _Cut(self._nodes[node].process.connection, self.cluster.namespace))

    async def fill_disk(self, node: str) -> None:
        """Nothing more fits on the disk of a node."""
        self.away[node] = "full"

        def fill() -> None:
            for storage in self._nodes[node].storages.values():
                storage.capacity_bytes = storage.used_bytes()

        self.on_cluster(fill)

    def lose_messages(self, share: float, seed: int) -> None:
        """From now on that share of the messages to leaders and of their answers is lost; 0: none."""
        assert self.cluster._server is not None
        bus: Any = self.cluster._server.bus
        rng, subject, replies = random.Random(seed), self.subject.encode(), set[bytes]()

        def lossy(where: bytes, reply: bytes, payload: bytes, block: bytes = b"") -> int:
            to_leader = where == subject or where.startswith(subject + b".")
            if to_leader and reply:
                replies.add(reply.rpartition(b".")[0])
            if (to_leader or where.rpartition(b".")[0] in replies) and rng.random() < share:
                return 1
            return int(type(bus).publish(bus, where, reply, payload, block))

        def change() -> None:
            if share:
                bus.publish = lossy
            else:
                vars(bus).pop("publish", None)

        self.on_cluster(change)

    async def lose_logs(self, node: str) -> None:
        """End a node and remove its logs."""
        await self.kill(node)
        self.on_cluster(self._nodes[node].storages.clear)

    async def bring_back(self) -> None:
        """No node is away any more."""
        away, self.away = self.away, {}
        for node, what in away.items():
            if what == "isolated":
                assert self._cut is not None
                self.on_cluster(self._cut.mend)
            elif what == "full":
                await self._restart_with_room(node)
            elif node not in self.cluster.running:
                await asyncio.to_thread(self.cluster.start, node)

    async def _restart_with_room(self, node: str) -> None:
        """As the node of a full disk does by itself when there is room again."""
        await asyncio.to_thread(self.cluster.kill, node)

        def empty() -> None:
            for storage in self._nodes[node].storages.values():
                storage.capacity_bytes = 1 << 40

        self.on_cluster(empty)
        await asyncio.to_thread(self.cluster.start, node)

    async def until(self, condition: Callable[[], Awaitable[object]], what: str, timeout_s: float = QUIET_S) -> bool:
        """Wait for a condition; it is a violation when it does not come."""
        end, last = time.monotonic() + timeout_s, "false"
        while time.monotonic() < end:
            try:
                if await condition():
                    return True
            except LiftError as error:
                last = repr(error)
            await asyncio.sleep(_POLL_S)
        self.model.violate(f"{what}: not within {timeout_s:g} s ({last})")
        return False

    async def until_image(self, condition: Callable[[StreamImage], bool], what: str) -> None:
        """Wait until the stream is as it is wanted, or is made again."""
        uid = self.uid

        async def there() -> bool:
            image = await self.image()
            return image.uid != uid or condition(image)

        await self.until(there, what)

    # ---- the end -------------------------------------------------------------------------------------------------------------
    async def settle(self) -> bool:
        """All nodes are back, every replica is in sync, each partition ends with a marker; then look at the logs."""
        await self.bring_back()
        rng = random.Random(0)
        for partition in range(self.partitions):
            await self.until(partial(self._mark, partition, rng), f"partition {partition} takes a record again")
        if self.model.violations or not await self.until(self.is_in_sync, "every replica is in sync"):
            return False
        await self.keep_house()
        for partition in range(self.partitions):
            self.logs[partition] = await self._read(partition)
        return True

    async def _mark(self, partition: int, rng: random.Random) -> bool:
        sent = self.new(MARKER, rng, key=b"marker%d" % self._numbers.get(MARKER, 0))
        await self.publish(sent, partition)
        return sent.outcome is Outcome.ACKED

    async def is_in_sync(self) -> bool:
        """Whether every partition is led, and every replica is in its ISR: of all streams, that of groups included, because a fault
        may take the last copy of any of them."""
        return all(
            partition.leader and sorted(partition.isr) == sorted(partition.replicas)
            for stream in await self.client.admin.list_streams(internal=True)
            for partition in stream.partitions
        )

    async def _read(self, partition: int) -> FoundLog:
        bounds = await self.client.bounds(self.stream, partition)
        records = [r async for r in self.client.consume(self.stream, partition, start="earliest", until="end", options=READ)]
        return FoundLog(partition, bounds.log_start_offset, bounds.end_offset, records)

    def end_of(self, partition: int) -> int:
        """Offset of the last record, its marker."""
        return self.logs[partition].records[-1].offset if self.logs[partition].records else -1

    async def check(self) -> None:
        """The logs, the readers, the replicas."""
        for partition, log in self.logs.items():
            self.model.check_log(log, self.now_ns())
            self.model.check_log(await self._read(partition), self.now_ns())
            await self._check_replicas(partition)
        for reading in self.readings:
            if reading.uid == self.uid:
                self.model.check_reading(reading, self.logs[reading.partition])

    async def _check_replicas(self, partition: int) -> None:
        state = (await self.image()).partitions[partition]
        end = self.logs[partition].end
        logs = {node: self._log_of(node, self.key(partition)) for node in state.replicas}
        await self.until(
            lambda: _true(all(log.high_watermark + 1 >= end for log in logs.values())), f"every replica of {partition} is whole"
        )
        found = self.on_cluster(lambda: {node: log_records(log, end) for node, log in logs.items()})
        starts = {node: log.log_start_offset for node, log in logs.items()}
        held = {node: [r for r in records if r.offset >= starts[node]] for node, (records, _) in found.items()}
        check_replicas(self.model, partition, held, starts)
        if not self.model.may_shorten and len({data for _, data in found.values()}) != 1:
            sizes = {node: len(data) for node, (_, data) in found.items()}
            self.model.violate(f"replicas of partition {partition} differ in bytes: {sizes}")

    def _log_of(self, node: str, key: PartitionKey) -> Any:
        (log,) = self.on_cluster(lambda: [worker.log for worker in self._nodes[node].process.partitions if worker.key == key])
        return log

    def key(self, partition: int) -> PartitionKey:
        """Of a partition of the stream as it is now."""
        return PartitionKey(self.stream, self.uid, partition)


def failure_of(task: asyncio.Task[None]) -> BaseException | None:
    """The error that has ended a task. None: it runs, was cancelled or is done. The event loop does not report it again."""
    return task.exception() if task.done() and not task.cancelled() else None


async def stop_task(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end. It may have failed by itself just before: its feature judges that elsewhere."""
    task.cancel()
    await asyncio.wait([task])
    failure_of(task)


async def _true(value: object) -> object:
    return value


class _Cut:
    """Drops the messages between one node and the others until ``mend``. Clients still reach the node."""

    def __init__(self, connection: Any, namespace: str) -> None:
        self._connection = connection
        self._prefix = f"{namespace}."
        self._sinks: dict[Any, Any] = {}
        for subscription in connection.subscriptions:
            self._silence(subscription)
        connection.send, connection.listen = self._send, self._listen

    def _silence(self, subscription: Any) -> Any:
        subject = subscription.subject.decode()
        if subject.startswith(self._prefix) and "read" not in subject.split("."):
            self._sinks[subscription] = subscription.sink
            subscription.sink = lambda *message: None
        return subscription

    def _send(self, subject: str, *rest: Any, **options: Any) -> bool:
        connection = self._connection
        return subject.startswith(self._prefix) or bool(type(connection).send(connection, subject, *rest, **options))

    def _listen(self, *arguments: Any, **options: Any) -> Any:
        connection = self._connection
        return self._silence(type(connection).listen(connection, *arguments, **options))

    def mend(self) -> None:
        """The node is connected again, unless it was restarted before."""
        del self._connection.send, self._connection.listen
        for subscription, sink in self._sinks.items():
            subscription.sink = sink


def log_records(log: Any, end: int) -> tuple[list[Record], bytes]:
    """Records and bytes of a replica's log."""
    records: list[Record] = []
    data = b""
    offset = log.log_start_offset
    while offset < end:
        result = log.read(offset, 1 << 22, end_offset=end)
        piece = b"".join(bytes(chunk) for chunk in result.chunks)
        if not piece:
            break
        data += piece
        for batch in split_batches(memoryview(piece)):
            if not batch.header.control:
                records += batch.records()
            offset = batch.next_offset
    return records, data
