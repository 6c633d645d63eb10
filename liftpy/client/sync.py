"""The client without asyncio, for scripts: publishing, reading, administration, each call waits until it is done.

    from liftpy.client import sync

    with sync.connect("nats://127.0.0.1:4222") as client:
        client.create_stream("orders", "shop.orders", exist_ok=True)
        ack = client.publish("orders", b"one", key=b"k")
        for record in client.consume("orders", until="end"):
            print(record.offset, record.value)

The asyncio client runs in an event loop of its own, in a thread of its own; arguments, answers and errors are those of
``liftpy.client.Client``. Any thread may call, also one in which another event loop runs (which then waits, too). Ctrl-C ends the call
that waits, not the client: a publish may be stored then. What is left open is closed when the program ends. Not over a fork.

Consumer groups and cursors without asyncio: what ``liftpy.client.sync`` gives for ``client.group`` and ``client.cursor``.

    with client.group("bills", ["orders"]) as group:
        for part in group:
            for record in part.slice.records(): ...

Heartbeats and commits go on in the client's own thread, so that a member that works long on a part stays one.

Work queues without asyncio: ``SyncClient.queue``. Each call waits until it is done; between two calls the client's own thread takes
what is due ahead, and gives back what nobody asks for.

    with client.queue("jobs", "workers") as queue:
        for job in queue:
            print(job.record.value, job.deliveries)
            job.ack()
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

from liftpy.client.batch_view import BatchSlice
from liftpy.client.client import Client
from liftpy.client.client import connect as _connect
from liftpy.client.consumer import Consumer, ReadOptions
from liftpy.client.cursor import Cursor
from liftpy.client.group import Group, GroupOptions, Hook
from liftpy.client.group_part import GroupBatch
from liftpy.client.in_flight import PublishAck, PublishOptions
from liftpy.client.partition_sender import ProducerOptions, Source
from liftpy.client.positions import Bounds, Position, Start, Until
from liftpy.client.producer import Partitioner, Producer
from liftpy.client.publisher import Publisher
from liftpy.client.queue import Job, Queue, QueueOptions
from liftpy.client.stream_copy import PartitionFor, Transform
from liftpy.config import AckPolicy
from liftpy.core.base.ids import PartitionKey
from liftpy.core.wire.batch import Record
from liftpy.core.wire.headers import HeadersLike
from liftpy.errors import ClientClosedError, ConfigError
from liftpy.nats.credentials import Credentials
from liftpy.nats.transport import DEFAULT_URL

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

_Reading = TypeVar("_Reading")


class Runs(Protocol):
    """The client's event loop, in its thread."""

    def run(self, work: Coroutine[Any, Any, _T], timeout_s: float | None = None) -> _T:
        """What it gives or raises."""
        ...


class SyncGroup:
    """As ``liftpy.client.group.Group``: an iterable of parts; the one before is finished when the next is asked for."""

    def __init__(self, loop: Runs, group: Group) -> None:
        self._loop = loop
        self._group = group
        self.name = group.name

    @property
    def owned(self) -> list[PartitionKey]:
        """The partitions that are read now."""

        async def now() -> list[PartitionKey]:
            return self._group.owned

        return self._loop.run(now())

    @property
    def counters(self) -> dict[str, int]:
        """What went wrong and was tried again, by kind."""
        return self._group.counters

    def __iter__(self) -> Iterator[GroupBatch]:
        async def following() -> GroupBatch | None:
            try:
                return await anext(self._group)
            except StopAsyncIteration:
                return None

        while (part := self._loop.run(following())) is not None:
            yield part

    def take(self) -> GroupBatch | None:
        """See ``Group.take``."""
        return self._loop.run(self._group.take())

    def finished(self, part: GroupBatch) -> None:
        """See ``Group.finished``."""

        async def told() -> None:
            self._group.finished(part)

        self._loop.run(told())

    def into(
        self,
        target: str,
        transform: Transform,
        *,
        partition_for: PartitionFor | None = None,
        options: ProducerOptions | None = None,
    ) -> None:
        """See ``Group.into``; ``transform`` is called in the client's thread. Until another closes the group, or Ctrl-C."""
        self._loop.run(self._group.into(target, transform, partition_for=partition_for, options=options))

    def commit(self) -> None:
        """See ``Group.commit``."""
        self._loop.run(self._group.commit())

    def close(self) -> None:
        """See ``Group.close``."""
        self._loop.run(self._group.close())

    def __enter__(self) -> SyncGroup:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class SyncCursor(Generic[_Reading]):
    """As ``liftpy.client.cursor.Cursor``."""

    def __init__(self, loop: Runs, cursor: Cursor, reading: Callable[[Consumer], _Reading]) -> None:
        self._loop = loop
        self._cursor = cursor
        self._reading = reading
        self.name, self.stream = cursor.name, cursor.stream

    def fetch(self, partition: int = 0) -> int | None:
        """See ``Cursor.fetch``."""
        return self._loop.run(self._cursor.fetch(partition))

    def commit(self, position: int | Position, partition: int = 0) -> None:
        """See ``Cursor.commit``."""
        self._loop.run(self._cursor.commit(position, partition))

    def consume(self, partition: int = 0, *, start: Start = "earliest", **how: Any) -> _Reading:
        """See ``Cursor.consume``."""
        return self._reading(self._loop.run(self._cursor.consume(partition, start=start, **how)))

    def __enter__(self) -> SyncCursor[_Reading]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Nothing is left to do: what was committed stands."""


class Waits(Protocol):
    """The event loop of a ``SyncClient``."""

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """What it gives or raises."""
        ...


class SyncJob:
    """As ``liftpy.client.Job``."""

    __slots__ = ("_job", "_loop")

    def __init__(self, loop: Waits, job: Job) -> None:
        self._loop = loop
        self._job = job

    @property
    def record(self) -> Record:
        """What is to be worked on."""
        return self._job.record

    @property
    def key(self) -> PartitionKey:
        """Where it is from."""
        return self._job.key

    @property
    def deliveries(self) -> int:
        """How often it was given, this time included."""
        return self._job.deliveries

    @property
    def until_ns(self) -> int:
        """Monotonic; when another may get it."""
        return self._job.until_ns

    def ack(self) -> None:
        """It is done, and never comes again. Raises as ``SyncQueue.ack``."""
        self._loop.run(self._job.ack())

    def nack(self, delay_s: float = 0.0) -> None:
        """It comes again, after ``delay_s``."""
        self._loop.run(self._job.nack(delay_s))

    def extend(self) -> None:
        """Its wait begins anew."""
        self._loop.run(self._job.extend())

    def reject(self, reason: str) -> None:
        """It goes to the dead letters."""
        self._loop.run(self._job.reject(reason))


class SyncQueue:
    """As ``liftpy.client.Queue``: one worker. An iterable of jobs that ends when the queue is closed."""

    def __init__(self, loop: Waits, queue: Queue) -> None:
        self._loop = loop
        self._queue = queue

    @property
    def counters(self) -> Counter[str]:
        """What went wrong and was tried again."""
        return self._queue.counters

    def take(self, max_records: int = 64, timeout_s: float = 5.0) -> list[SyncJob]:
        """See ``liftpy.client.Queue.take``."""
        return [SyncJob(self._loop, job) for job in self._loop.run(self._queue.take(max_records, timeout_s))]

    def ack(self, jobs: Iterable[SyncJob]) -> None:
        """See ``liftpy.client.Queue.ack``; the ``jobs`` of a LeaseLostError are those of the asynchronous queue."""
        self._loop.run(self._queue.ack([job._job for job in jobs]))

    def nack(self, jobs: Iterable[SyncJob], delay_s: float = 0.0) -> None:
        """See ``liftpy.client.Queue.nack``."""
        self._loop.run(self._queue.nack([job._job for job in jobs], delay_s))

    def extend(self, jobs: Iterable[SyncJob]) -> None:
        """See ``liftpy.client.Queue.extend``."""
        self._loop.run(self._queue.extend([job._job for job in jobs]))

    def reject(self, jobs: Iterable[SyncJob], reason: str) -> None:
        """See ``liftpy.client.Queue.reject``."""
        self._loop.run(self._queue.reject([job._job for job in jobs], reason))

    def close(self) -> None:
        """See ``liftpy.client.Queue.close``."""
        self._loop.run(self._queue.close())

    def __iter__(self) -> Iterator[SyncJob]:
        while (job := self._loop.run(self._next())) is not None:
            yield SyncJob(self._loop, job)

    async def _next(self) -> Job | None:
        async for job in self._queue:
            return job
        return None

    def __enter__(self) -> SyncQueue:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


_P = ParamSpec("_P")
_T = TypeVar("_T")
_CLOSE_S = 15.0


class _Loop:
    """An event loop in a thread that ends with the program, or by ``end``."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="liftpy-client", daemon=True)
        self._thread.start()
        self._ending = threading.Lock()
        self._lock = threading.RLock()
        """Nothing is begun between the last look at ``ended`` and the end."""
        self.ended = False

    def run(self, work: Coroutine[Any, Any, _T], timeout_s: float | None = None) -> _T:
        """What it gives or raises; who is interrupted here cancels it. Raises ConfigError in a forked child, which has no loop."""
        if os.getpid() != self._process:  # before the lock: whoever held it when the process was forked is not here
            work.close()
            raise ConfigError("this client was opened before a fork, and its thread is in the parent: open one in the child")
        with self._lock:
            if self.ended or threading.current_thread() is self._thread:
                work.close()
                if self.ended:
                    raise ClientClosedError("the client is closed")
                raise ConfigError("a callback in the client's own thread can't wait for the client")
            coming = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return coming.result(timeout_s)
        except concurrent.futures.CancelledError:
            raise ClientClosedError("the client was closed meanwhile") from None
        except BaseException:
            coming.cancel()  # nothing, where it is what the work has raised
            raise

    def end(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the last piece of work, then stop; once. A forked child has nothing to end."""
        if os.getpid() != self._process:
            return
        with self._ending:
            if self.ended:
                return
            if threading.current_thread() is self._thread:  # the collector runs anywhere: nobody can wait here
                self.ended = True
                self._loop.create_task(last()).add_done_callback(lambda _: self._loop.stop())
                return
            try:
                with contextlib.suppress(TimeoutError, concurrent.futures.TimeoutError):
                    self.run(last(), _CLOSE_S)
            finally:
                with self._lock:
                    self.ended = True
                    self._loop.call_soon_threadsafe(self._stop)
                self._thread.join(_CLOSE_S)
                if not self._thread.is_alive():
                    self._loop.close()

    def _stop(self) -> None:
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        gathered = asyncio.gather(*left, return_exceptions=True)
        gathered.add_done_callback(lambda _: self._loop.stop())


def connect(
    nats: str | Sequence[str] = DEFAULT_URL,
    namespace: str = "liftpy",
    *,
    credentials: Credentials | None = None,
    name: str = "liftpy-client",
    timeout_s: float = 5.0,
    trace: bool | TracerProvider = False,
    **nats_options: Any,
) -> SyncClient:
    """A connected client; use it as ``with connect(...) as client``, or ``close`` it. Arguments and errors as of ``liftpy.connect``."""

    async def opened() -> Client:
        return await _connect(
            nats, namespace, credentials=credentials, name=name, timeout_s=timeout_s, trace=trace, **nats_options
        )

    return waiting(opened)


def waiting(opened: Callable[[], Coroutine[Any, Any, Client]]) -> SyncClient:
    """The client that ``opened`` gives, in a thread of its own; raises what it raises. For what connects by other means than a URL."""
    loop = _Loop()
    try:
        return SyncClient(loop, loop.run(opened()))
    except BaseException:
        loop.end(_nothing)
        raise


async def _nothing() -> None:
    pass


def _waiting(method: Callable[Concatenate[Client, _P], Coroutine[Any, Any, _T]]) -> Callable[Concatenate[SyncClient, _P], _T]:
    def call(self: SyncClient, /, *arguments: _P.args, **named: _P.kwargs) -> _T:
        return self._loop.run(method(self._client, *arguments, **named))

    functools.update_wrapper(call, method)
    return call


class SyncClient:
    """As ``liftpy.client.Client``, with calls that wait. Made by ``connect``."""

    def __init__(self, loop: _Loop, client: Client) -> None:
        self._loop = loop
        self._client = client
        self._closing = weakref.finalize(self, loop.end, client.close)  # also when the program ends

    def close(self) -> None:
        """Close publishers and the connection, and end the thread. Who waits in another thread is told by ClientClosedError."""
        self._closing()

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    create_stream = _waiting(Client.create_stream)
    plan_stream = _waiting(Client.plan_stream)
    add_partitions = _waiting(Client.add_partitions)
    alter_stream = _waiting(Client.alter_stream)
    delete_stream = _waiting(Client.delete_stream)
    list_streams = _waiting(Client.list_streams)
    stream = _waiting(Client.stream)
    truncate_before = _waiting(Client.truncate_before)
    purge = _waiting(Client.purge)
    pause = _waiting(Client.pause)
    resume = _waiting(Client.resume)
    elect_leader = _waiting(Client.elect_leader)
    reassign = _waiting(Client.reassign)
    set_node = _waiting(Client.set_node)
    remove_node = _waiting(Client.remove_node)
    describe_cluster = _waiting(Client.describe_cluster)
    node_status = _waiting(Client.node_status)
    bounds = _waiting(Client.bounds)
    offset_at = _waiting(Client.offset_at)
    query_service = _waiting(Client.query_service)
    call_service = _waiting(Client.call_service)

    @property
    def counters(self) -> dict[str, int]:
        """What came and could not be used, by kind."""
        return self._client.counters

    def processing(self, stream: str, what: Record | BatchSlice, *, partition: int = 0) -> AbstractContextManager[Any]:
        """A span around what is done with a record; see ``liftpy.client.Client.processing``."""
        return self._client.processing(stream, what, partition=partition)

    @overload
    def publish(
        self,
        stream: str,
        value: bytes | None,
        *,
        key: bytes | None = ...,
        headers: HeadersLike | None = ...,
        partition: int = ...,
        ack: Literal[AckPolicy.ALL, AckPolicy.LEADER] = ...,
        msg_id: str = ...,
        expected_last: int | None = ...,
        timeout_s: float | None = ...,
    ) -> PublishAck: ...

    @overload
    def publish(
        self,
        stream: str,
        value: bytes | None,
        *,
        key: bytes | None = ...,
        headers: HeadersLike | None = ...,
        partition: int = ...,
        ack: AckPolicy,
        msg_id: str = ...,
        expected_last: int | None = ...,
        timeout_s: float | None = ...,
    ) -> PublishAck | None: ...

    def publish(
        self,
        stream: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        partition: int = 0,
        ack: AckPolicy = AckPolicy.ALL,
        msg_id: str = "",
        expected_last: int | None = None,
        timeout_s: float | None = None,
    ) -> PublishAck | None:
        """One message; see ``liftpy.client.Client.publish``. For many use ``publisher``: this waits for each."""
        return self._loop.run(
            self._client.publish(
                stream,
                value,
                key=key,
                headers=headers,
                partition=partition,
                ack=ack,
                msg_id=msg_id,
                expected_last=expected_last,
                timeout_s=timeout_s,
            )
        )

    def publisher(
        self, stream: str, partition: int = 0, *, subject: str = "", options: PublishOptions | None = None
    ) -> SyncPublisher:
        """Many messages in flight: ``with client.publisher("orders") as p: p.send(b"x")``."""
        made = self._loop.run(self._client.publisher(stream, partition, subject=subject, options=options))
        return SyncPublisher(self._loop, made)

    def producer(
        self,
        stream: str,
        *,
        id: str = "",
        options: ProducerOptions | None = None,
        partitioner: Partitioner = "key",
        source: Source | None = None,
    ) -> SyncProducer:
        """Many records, each once and in order: ``with client.producer("orders", id="till-7") as p: p.send_many(lines)``; see
        ``liftpy.client.Client.producer``."""

        async def made() -> Producer:
            return await self._client.producer(stream, id=id, options=options, partitioner=partitioner, source=source)

        return SyncProducer(self._loop, self._loop.run(made()))

    def queue(self, stream: str, group: str, *, options: QueueOptions | None = None) -> SyncQueue:
        """A worker of a work queue: ``with client.queue("jobs", "workers") as queue: for job in queue: ...; job.ack()``; see
        ``liftpy.client.Client.queue``."""

        async def made() -> Queue:
            return await self._client.queue(stream, group, options=options)

        return SyncQueue(self._loop, self._loop.run(made()))

    def consume(
        self,
        stream: str,
        partition: int = 0,
        *,
        start: Start = "",
        until: Until = None,
        after_epoch: int = 0,
        subjects: Sequence[str] = (),
        keys: Sequence[bytes] = (),
        backwards: bool = False,
        options: ReadOptions | None = None,
    ) -> SyncConsumer:
        """Read committed records: ``for record in client.consume("orders", until="end")``; see ``liftpy.client.Client.consume``."""

        async def made() -> Consumer:
            return self._client.consume(
                stream,
                partition,
                start=start,
                until=until,
                after_epoch=after_epoch,
                subjects=subjects,
                keys=keys,
                backwards=backwards,
                options=options,
            )

        return SyncConsumer(self._loop, self._loop.run(made()))

    def group(
        self,
        name: str,
        streams: Sequence[str],
        *,
        instance: str = "",
        options: GroupOptions | None = None,
        on_assigned: Hook | None = None,
        on_revoked: Hook | None = None,
    ) -> SyncGroup:
        """A member of a consumer group: ``with client.group("bills", ["orders"]) as group: for part in group``; see
        ``liftpy.client.Client.group``. Heartbeats go on in the client's thread, and the hooks are called there."""

        async def made() -> Group:
            return await self._client.group(
                name, streams, instance=instance, options=options, on_assigned=on_assigned, on_revoked=on_revoked
            )

        return SyncGroup(self._loop, self._loop.run(made()))

    def cursor(self, name: str, stream: str) -> SyncCursor[SyncConsumer]:
        """A named position, held from here on: ``with client.cursor("nightly", "orders") as cursor``; see
        ``liftpy.client.Client.cursor``."""

        async def made() -> Cursor:
            return await self._client.cursor(name, stream)

        return SyncCursor(self._loop, self._loop.run(made()), partial(SyncConsumer, self._loop))


class SyncPublisher:
    """As ``liftpy.client.Publisher``. Leaving it waits for every ack and raises the first error."""

    def __init__(self, loop: _Loop, publisher: Publisher) -> None:
        self._loop = loop
        self._publisher = publisher

    def send(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        ack: Literal[AckPolicy.ALL, AckPolicy.LEADER] = AckPolicy.ALL,
        msg_id: str = "",
        expected_last: int | None = None,
    ) -> None:
        """Send one; waits for room in the window only. What becomes of it, ``flush`` says."""
        self._loop.run(
            self._publisher.send(value, key=key, headers=headers, ack=ack, msg_id=msg_id, expected_last=expected_last)
        )

    def flush(self) -> None:
        """Wait until all that was sent is acknowledged; raise the first error that nobody was told."""
        self._loop.run(self._publisher.flush())

    def close(self) -> None:
        """Stop without waiting."""
        self._loop.run(self._publisher.close())

    def __enter__(self) -> SyncPublisher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.run(self._publisher.__aexit__(kind))


class SyncProducer:
    """As ``liftpy.client.Producer``. Leaving it waits for every answer and raises the first error. Each call hands over to another
    thread: for many records ``send_many`` is the faster by far."""

    def __init__(self, loop: _Loop, producer: Producer) -> None:
        self._loop = loop
        self._producer = producer

    def send(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        partition: int | None = None,
    ) -> None:
        """Take one record; waits only for room in the buffer. What becomes of it, ``flush`` says."""
        self._loop.run(self._producer.send(value, key=key, headers=headers, partition=partition))

    def send_many(
        self,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        partition: int | None = None,
        positions: int | Sequence[int] | None = None,
    ) -> None:
        """Take many records, in order; waits only for room in the buffer."""
        self._loop.run(self._producer.send_many(values, keys=keys, partition=partition, positions=positions))

    @property
    def begin_after(self) -> int:
        """With a source: read it behind this offset; see ``liftpy.client.Producer``."""
        return self._producer.begin_after

    @property
    def used_partitions(self) -> int:
        """Number of partitions that the partitioner chooses among; see ``liftpy.client.Producer``."""
        return self._producer.used_partitions

    def next_sequence(self, partition: int = 0) -> int:
        """That the next batch to the partition begins with; see ``liftpy.client.Producer``."""
        return self._producer.next_sequence(partition)

    def flush(self) -> None:
        """Wait until everything that was sent is stored; raise the first error."""
        self._loop.run(self._producer.flush())

    def close(self) -> None:
        """Stop without waiting."""
        self._loop.run(self._producer.close())

    def __enter__(self) -> SyncProducer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.run(self._producer.__aexit__(kind))


class SyncConsumer:
    """An iterable of records; ``batches`` of whole batches."""

    def __init__(self, loop: _Loop, consumer: Consumer) -> None:
        self._loop = loop
        self._consumer = consumer
        self._rest: Iterator[Record] = iter(())
        """Of the batch that was handed on last: an iteration that is broken off loses none of it."""
        self._last: Record | None = None
        """The last record handed on of a batch that is not through."""

    def begin(self) -> Bounds:
        """Settle where it starts now, not at the first record; see ``liftpy.client.Consumer.begin``."""
        return self._loop.run(self._consumer.begin())

    def getone(self, timeout_s: float | None = None) -> Record | None:
        """See ``liftpy.client.Consumer.getone``."""
        return self._loop.run(self._consumer.getone(timeout_s))

    def getmany(self, max_records: int = 500, timeout_s: float | None = None) -> list[Record]:
        """See ``liftpy.client.Consumer.getmany``."""
        return self._loop.run(self._consumer.getmany(max_records, timeout_s))

    def position(self) -> Position:
        """Behind the last record, or batch, that was handed on; see ``liftpy.client.Consumer.position``."""
        behind = self._loop.run(self._consumer.position())
        if self._last is None:
            return behind
        offset = self._last.offset + (not self._consumer.backwards)
        return Position(behind.uid, offset, 0 if self._consumer.backwards else self._last.leader_epoch)

    def seek(self, start: Start) -> None:
        """See ``liftpy.client.Consumer.seek``."""
        self._rest, self._last = iter(()), None
        self._loop.run(self._consumer.seek(start))

    def lag(self) -> int:
        """See ``liftpy.client.Consumer.lag``."""
        return self._loop.run(self._consumer.lag())

    def batches(self) -> Generator[BatchSlice, None, None]:
        """Slices of batches, in order."""

        async def begun() -> Any:
            return self._consumer.batches()

        batches = self._loop.run(begun())

        async def following() -> BatchSlice | None:
            try:
                found: BatchSlice = await anext(batches)
            except StopAsyncIteration:
                return None
            return found

        try:
            while (found := self._loop.run(following())) is not None:
                yield found
        finally:
            with contextlib.suppress(ClientClosedError, ConfigError):
                self._loop.run(batches.aclose())

    def __iter__(self) -> Iterator[Record]:
        for record in self._rest:
            self._last = record
            yield record  # not "yield from": that would end the rest with this iteration
        self._last = None
        with contextlib.closing(self.batches()) as batches:
            for batch in batches:
                self._rest = reversed(list(batch.records())) if self._consumer.backwards else batch.records()
                for record in self._rest:
                    self._last = record
                    yield record
                self._last = None
