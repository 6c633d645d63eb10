"""The client without asyncio: each call waits until it is done.

    from liftpy.client import sync

    with sync.connect("nats://127.0.0.1:4222") as client:
        client.create_stream("orders", "shop.orders", exist_ok=True)
        ack = client.publish("orders", b"one", key=b"k")
        for record in client.consume("orders", until="end"):
            print(record.offset, record.value)

Arguments, results and errors are those of ``liftpy.client.Client``. The asynchronous client runs in a thread of its
own, with its own event loop. Calls may come from any thread. Ctrl-C ends the waiting call, not the client: a publish
may be stored. Open clients are closed when the program ends. A client does not work after a fork.

Heartbeats and commits of groups, and prefetching of queues, run in the client's thread. So a member stays in its group
while the application works on a part for a long time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import re
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

from liftpy.client.admin import Admin
from liftpy.client.batch_view import BatchSlice
from liftpy.client.client import Client
from liftpy.client.client import connect as _connect
from liftpy.client.consumer import Consumer, ReadOptions
from liftpy.client.cursor import Cursor
from liftpy.client.group import Group, GroupOptions, Hook
from liftpy.client.group_admin import Cursors, Groups, Queues
from liftpy.client.group_part import GroupBatch
from liftpy.client.in_flight import PublishAck, PublishOptions
from liftpy.client.partition_sender import ProducerOptions, Source
from liftpy.client.positions import Bounds, Position, Start, Until
from liftpy.client.producer import Partitioner, Producer
from liftpy.client.publisher import Publisher
from liftpy.client.queue import Job, Queue, QueueOptions
from liftpy.client.services import Services
from liftpy.client.stream_copy import PartitionFor, Transform
from liftpy.config import AckPolicy
from liftpy.core.base import renamed
from liftpy.core.base.ids import PartitionKey
from liftpy.core.wire.batch import Record
from liftpy.core.wire.headers import HeadersLike
from liftpy.errors import ClientClosedError, ConfigError
from liftpy.nats.credentials import Credentials
from liftpy.nats.transport import DEFAULT_URL

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

_Reading = TypeVar("_Reading")
_F = TypeVar("_F", bound=Callable[..., Any])


def _documented(method: Callable[..., Any]) -> Callable[[_F], _F]:
    """Give a method the docstring of its asynchronous counterpart, with an example that does not await."""

    def with_text(function: _F) -> _F:
        function.__doc__ = without_await(method.__doc__ or "")
        return function

    return with_text


def without_await(text: str) -> str:
    """Return a docstring whose example is code without asyncio."""
    return re.sub(r"\basync (with|for)\b", r"\1", text).replace("await ", "")


class Runs(Protocol):
    """The event loop of a client, in its own thread."""

    def run(self, work: Coroutine[Any, Any, _T], timeout_s: float | None = None) -> _T:
        """Run a coroutine and return its result, or raise its error."""
        ...


class SyncGroup:
    """One member of a consumer group. Iterate over it to get the parts to process.

    Create it with ``client.group``. Asking for the next part finishes the one before.

    Args:
        loop: The client's event loop.
        group: The asynchronous member.

    Example:
        with client.group("billing", ["orders"]) as group:
            for part in group:
                for record in part.slice.records():
                    print(record.value)
    """

    def __init__(self, loop: Runs, group: Group) -> None:
        self._loop = loop
        self._group = group
        self.name = group.name

    @property
    def owned(self) -> list[PartitionKey]:
        """The partitions that this member reads now, sorted."""

        async def now() -> list[PartitionKey]:
            return self._group.owned

        return self._loop.run(now())

    @property
    def counters(self) -> dict[str, int]:
        """Counters of errors that the member retried, by kind."""
        return self._group.counters

    def __iter__(self) -> Iterator[GroupBatch]:
        async def following() -> GroupBatch | None:
            try:
                return await anext(self._group)
            except StopAsyncIteration:
                return None

        while (part := self._loop.run(following())) is not None:
            yield part

    @_documented(Group.take)
    def take(self) -> GroupBatch | None:
        return self._loop.run(self._group.take())

    @_documented(Group.finished)
    def finished(self, part: GroupBatch) -> None:
        async def told() -> None:
            self._group.finished(part)

        self._loop.run(told())

    @_documented(Group.into)
    def into(
        self,
        target: str,
        transform: Transform,
        *,
        partition_for: PartitionFor | None = None,
        options: ProducerOptions | None = None,
    ) -> None:
        self._loop.run(self._group.into(target, transform, partition_for=partition_for, options=options))

    @_documented(Group.commit)
    def commit(self) -> None:
        self._loop.run(self._group.commit())

    @_documented(Group.close)
    def close(self) -> None:
        self._loop.run(self._group.close())

    def __enter__(self) -> SyncGroup:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class SyncCursor(Generic[_Reading]):
    """A named position in a stream. The process that opened it last holds it.

    Create it with ``client.cursor``.

    Args:
        loop: The client's event loop.
        cursor: The asynchronous cursor.
        reading: Turns a Consumer into its synchronous form.

    Example:
        with client.cursor("nightly", "orders") as cursor:
            for record in cursor.consume(until="end"):
                cursor.commit(record.offset + 1)
    """

    def __init__(self, loop: Runs, cursor: Cursor, reading: Callable[[Consumer], _Reading]) -> None:
        self._loop = loop
        self._cursor = cursor
        self._reading = reading
        self.name, self.stream = cursor.name, cursor.stream

    @_documented(Cursor.fetch)
    def fetch(self, partition: int = 0) -> int | None:
        return self._loop.run(self._cursor.fetch(partition))

    @_documented(Cursor.commit)
    def commit(self, position: int | Position, partition: int = 0) -> None:
        self._loop.run(self._cursor.commit(position, partition))

    @_documented(Cursor.consume)
    def consume(self, partition: int = 0, *, start: Start = "earliest", **how: Any) -> _Reading:
        return self._reading(self._loop.run(self._cursor.consume(partition, start=start, **how)))

    @_documented(Cursor.close)
    def close(self) -> None:
        self._loop.run(self._cursor.close())

    def __enter__(self) -> SyncCursor[_Reading]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Waits(Protocol):
    """The event loop of a ``SyncClient``."""

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine and return its result, or raise its error."""
        ...


class SyncJob:
    """One record that this worker has until its ack wait expires.

    Args:
        loop: The client's event loop.
        job: The asynchronous job.
    """

    __slots__ = ("_job", "_loop")

    def __init__(self, loop: Waits, job: Job) -> None:
        self._loop = loop
        self._job = job

    @property
    def record(self) -> Record:
        """The record of the job."""
        return self._job.record

    @property
    def key(self) -> PartitionKey:
        """The partition of the record."""
        return self._job.key

    @property
    def deliveries(self) -> int:
        """Number of deliveries, this one included."""
        return self._job.deliveries

    @property
    def until_ns(self) -> int:
        """Monotonic time at which another worker may receive the record, in nanoseconds."""
        return self._job.until_ns

    @_documented(Job.ack)
    def ack(self) -> None:
        self._loop.run(self._job.ack())

    @_documented(Job.nack)
    def nack(self, delay_s: float = 0.0) -> None:
        self._loop.run(self._job.nack(delay_s))

    @_documented(Job.extend)
    def extend(self) -> None:
        self._loop.run(self._job.extend())

    @_documented(Job.reject)
    def reject(self, reason: str) -> None:
        self._loop.run(self._job.reject(reason))


class SyncQueue:
    """One worker of a work queue. Iterate over it to get jobs. The loop ends when the queue is closed.

    Create it with ``client.queue``. A LeaseLostError has the jobs of the asynchronous queue.

    Args:
        loop: The client's event loop.
        queue: The asynchronous worker.

    Example:
        with client.queue("jobs", "workers") as queue:
            for job in queue:
                print(job.record.value)
                job.ack()
    """

    def __init__(self, loop: Waits, queue: Queue) -> None:
        self._loop = loop
        self._queue = queue

    @property
    def counters(self) -> Counter[str]:
        """Counters of errors that the worker retried, by kind."""
        return self._queue.counters

    @_documented(Queue.take)
    def take(self, max_records: int = 64, timeout_s: float = 5.0) -> list[SyncJob]:
        return [SyncJob(self._loop, job) for job in self._loop.run(self._queue.take(max_records, timeout_s))]

    @_documented(Queue.ack)
    def ack(self, jobs: Iterable[SyncJob]) -> None:
        self._loop.run(self._queue.ack([job._job for job in jobs]))

    @_documented(Queue.nack)
    def nack(self, jobs: Iterable[SyncJob], delay_s: float = 0.0) -> None:
        self._loop.run(self._queue.nack([job._job for job in jobs], delay_s))

    @_documented(Queue.extend)
    def extend(self, jobs: Iterable[SyncJob]) -> None:
        self._loop.run(self._queue.extend([job._job for job in jobs]))

    @_documented(Queue.reject)
    def reject(self, jobs: Iterable[SyncJob], reason: str) -> None:
        self._loop.run(self._queue.reject([job._job for job in jobs], reason))

    @_documented(Queue.close)
    def close(self) -> None:
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
    """An event loop in a thread. It stops with the program, or with ``end``."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="liftpy-client", daemon=True)
        self._thread.start()
        self._ending = threading.Lock()
        self._lock = threading.RLock()
        """Lock that orders new calls and the end of the loop. No call starts after ``ended`` is set."""
        self.ended = False

    def run(self, work: Coroutine[Any, Any, _T], timeout_s: float | None = None) -> _T:
        """Run a coroutine and return its result. An interrupt of the caller cancels it. Raises ConfigError in a forked
        child.
        """
        if os.getpid() != self._process:  # before the lock: whoever held it when the process was forked is not here
            work.close()
            raise ConfigError(
                "This client was opened before a fork, and its thread runs in the parent process. Open a new client "
                "in the child process."
            )
        with self._lock:
            if self.ended or threading.current_thread() is self._thread:
                work.close()
                if self.ended:
                    raise ClientClosedError("The client is closed. Open a new client.")
                raise ConfigError(
                    "Do not call the client from one of its own callbacks: the call would wait for itself. Call it from "
                    "another thread."
                )
            coming = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return coming.result(timeout_s)
        except concurrent.futures.CancelledError:
            raise ClientClosedError("The client was closed during the call. Open a new client.") from None
        except BaseException:
            coming.cancel()  # nothing, where it is what the work has raised
            raise

    def end(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the last coroutine, then stop. A second call does nothing, and so does a call in a forked child."""
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
    """Connect to a liftpy cluster through NATS, without asyncio.

    Args:
        nats: URL or URLs of NATS servers. Default: ``nats://127.0.0.1:4222``.
        namespace: Namespace of the cluster. Default ``liftpy``.
        credentials: User, token, keys or TLS files. Default None: no authentication.
        name: Name of this connection on the NATS server. Default ``liftpy-client``.
        timeout_s: Time limit for connecting, in seconds. Default 5.
        trace: True, or an OpenTelemetry TracerProvider, to create spans (needs ``liftpy[trace]``). Default False.
        **nats_options: More arguments for ``nats.connect``.

    Returns:
        A connected client. Use it with ``with``, or call ``close``.

    Raises:
        UnavailableError: No server accepted the connection within ``timeout_s``.
        NotAllowedError: NATS rejected the credentials.
        ConfigError: An argument is not allowed, or a credentials file cannot be used.

    Example:
        from liftpy.client import sync

        with sync.connect("nats://127.0.0.1:4222") as client:
            client.publish("orders", b"one", key=b"k")
    """

    async def opened() -> Client:
        return await _connect(
            nats, namespace, credentials=credentials, name=name, timeout_s=timeout_s, trace=trace, **nats_options
        )

    return waiting(opened)


def waiting(opened: Callable[[], Coroutine[Any, Any, Client]]) -> SyncClient:
    """Return a synchronous client for the client that ``opened`` connects, in a thread of its own.

    Args:
        opened: Connects the asynchronous client.
    """
    loop = _Loop()
    try:
        return SyncClient(loop, loop.run(opened()))
    except BaseException:
        loop.end(_nothing)
        raise


async def _nothing() -> None:
    pass


def _waiting(method: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]]) -> Callable[Concatenate[Any, _P], _T]:
    """Return the method of a synchronous class that runs ``method`` of the asynchronous object, and waits for its result."""

    def call(self: _Derived, /, *arguments: _P.args, **named: _P.kwargs) -> _T:
        return self._loop.run(method(self._wrapped, *arguments, **named))

    functools.update_wrapper(call, method)
    call.__doc__ = without_await(method.__doc__ or "")
    return call


class _Derived:
    """A synchronous object that wraps an asynchronous one."""

    def __init__(self, loop: _Loop, wrapped: Any) -> None:
        self._loop = loop
        self._wrapped = wrapped


class SyncAdmin(_Derived):
    """``client.admin`` without asyncio. Its methods are those of ``liftpy.client.admin.Admin``.

    Args:
        loop: The event loop of the client.
        wrapped: The asynchronous object.

    Example:
        client.admin.alter_stream("orders", retention_age_s=86_400)
    """

    create_stream = _waiting(Admin.create_stream)
    until_ready = _waiting(Admin.until_ready)
    plan_stream = _waiting(Admin.plan_stream)
    stream = _waiting(Admin.stream)
    list_streams = _waiting(Admin.list_streams)
    alter_stream = _waiting(Admin.alter_stream)
    add_partitions = _waiting(Admin.add_partitions)
    plan_partitions = _waiting(Admin.plan_partitions)
    delete_stream = _waiting(Admin.delete_stream)
    truncate_before = _waiting(Admin.truncate_before)
    purge = _waiting(Admin.purge)
    pause = _waiting(Admin.pause)
    resume = _waiting(Admin.resume)
    elect_leader = _waiting(Admin.elect_leader)
    reassign = _waiting(Admin.reassign)
    reassign_all = _waiting(Admin.reassign_all)
    set_node = _waiting(Admin.set_node)
    reset_node = _waiting(Admin.reset_node)
    remove_node = _waiting(Admin.remove_node)
    change_controllers = _waiting(Admin.change_controllers)
    feature_levels = _waiting(Admin.feature_levels)
    set_feature_level = _waiting(Admin.set_feature_level)
    default_quota = _waiting(Admin.default_quota)
    set_default_quota = _waiting(Admin.set_default_quota)
    session_times = _waiting(Admin.session_times)
    set_session_times = _waiting(Admin.set_session_times)
    describe_cluster = _waiting(Admin.describe_cluster)
    node_status = _waiting(Admin.node_status)
    node_health = _waiting(Admin.node_health)
    node_glance = _waiting(Admin.node_glance)
    ask_node = _waiting(Admin.ask_node)
    check_node = _waiting(Admin.check_node)
    node_ids = _waiting(Admin.node_ids)
    watch_majority = _waiting(Admin.watch_majority)
    check_majority = _waiting(Admin.check_majority)
    node_log_level = _waiting(Admin.node_log_level)
    node_settings = _waiting(Admin.node_settings)
    reload_settings = _waiting(Admin.reload_settings)
    remove_data = _waiting(Admin.remove_data)
    controller_ids = _waiting(Admin.controller_ids)
    cluster_events = _waiting(Admin.cluster_events)

    @_documented(Admin.allow_internal)
    def allow_internal(self) -> None:
        self._wrapped.allow_internal()


class SyncGroups(_Derived):
    """``client.groups`` without asyncio. Its methods are those of ``liftpy.client.group_admin.Groups``.

    Args:
        loop: The event loop of the client.
        wrapped: The asynchronous object.

    Example:
        print(client.groups.list())
    """

    stream = _waiting(Groups.stream)
    list = _waiting(Groups.list)
    describe = _waiting(Groups.describe)
    reset = _waiting(Groups.reset)
    delete = _waiting(Groups.delete)


class SyncQueues(_Derived):
    """``client.queues`` without asyncio. Its methods are those of ``liftpy.client.group_admin.Queues``.

    Args:
        loop: The event loop of the client.
        wrapped: The asynchronous object.

    Example:
        print(client.queues.list())
    """

    list = _waiting(Queues.list)
    describe = _waiting(Queues.describe)
    delete = _waiting(Queues.delete)


class SyncCursors(_Derived):
    """``client.cursors`` without asyncio. Its methods are those of ``liftpy.client.group_admin.Cursors``.

    Args:
        loop: The event loop of the client.
        wrapped: The asynchronous object.

    Example:
        print(client.cursors.list())
    """

    list = _waiting(Cursors.list)
    describe = _waiting(Cursors.describe)
    set = _waiting(Cursors.set)
    delete = _waiting(Cursors.delete)


class SyncServices(_Derived):
    """``client.services`` without asyncio. Its methods are those of ``liftpy.client.services.Services``.

    Args:
        loop: The event loop of the client.
        wrapped: The asynchronous object.

    Example:
        print(client.services.query("bank", b'{"account": "a"}').value)
    """

    query = _waiting(Services.query)
    call = _waiting(Services.call)


class SyncClient(_Derived):
    """A connection to one liftpy cluster, without asyncio. Create it with ``connect``.

    Its methods are those of ``liftpy.client.Client``. Each call waits for its result.

    Args:
        loop: The event loop.
        client: The asynchronous client.

    Example:
        with sync.connect("nats://127.0.0.1:4222") as client:
            for record in client.consume("orders", until="end"):
                print(record.offset, record.value)
    """

    def __init__(self, loop: _Loop, client: Client) -> None:
        super().__init__(loop, client)
        self._client = client
        self._closing = weakref.finalize(self, loop.end, client.close)  # also when the program ends

    def close(self) -> None:
        """Close all publishers and the connection, and stop the thread.

        Calls that wait in other threads raise ClientClosedError.
        """
        self._closing()

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def admin(self) -> SyncAdmin:
        """Streams, placement, nodes and settings of the cluster."""
        return SyncAdmin(self._loop, self._client.admin)

    @property
    def services(self) -> SyncServices:
        """Commands and queries to replicated services."""
        return SyncServices(self._loop, self._client.services)

    @property
    def groups(self) -> SyncGroups:
        """Administration of consumer groups. ``group`` joins one."""
        return SyncGroups(self._loop, self._client.groups)

    @property
    def queues(self) -> SyncQueues:
        """Administration of work queues. ``queue`` joins one."""
        return SyncQueues(self._loop, self._client.queues)

    @property
    def cursors(self) -> SyncCursors:
        """Administration of cursors. ``cursor`` opens one."""
        return SyncCursors(self._loop, self._client.cursors)

    create_stream = _waiting(Client.create_stream)
    stream = _waiting(Client.stream)
    bounds = _waiting(Client.bounds)
    offset_at = _waiting(Client.offset_at)

    @property
    def counters(self) -> dict[str, int]:
        """Number of received messages that the client could not use, by kind."""
        return self._client.counters

    @_documented(Client.processing)
    def processing(self, stream: str, what: Record | BatchSlice, *, partition: int = 0) -> AbstractContextManager[Any]:
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

    @_documented(Client.publish)
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

    @_documented(Client.publisher)
    def publisher(
        self, stream: str, partition: int = 0, *, subject: str = "", options: PublishOptions | None = None
    ) -> SyncPublisher:
        async def made() -> Publisher:
            return await self._client.publisher(stream, partition, subject=subject, options=options)

        return SyncPublisher(self._loop, self._loop.run(made()))

    @_documented(Client.producer)
    def producer(
        self,
        stream: str,
        *,
        id: str = "",
        options: ProducerOptions | None = None,
        partitioner: Partitioner = "key",
        source: Source | None = None,
    ) -> SyncProducer:
        async def made() -> Producer:
            return await self._client.producer(stream, id=id, options=options, partitioner=partitioner, source=source)

        return SyncProducer(self._loop, self._loop.run(made()))

    @_documented(Client.queue)
    def queue(self, stream: str, group: str, *, options: QueueOptions | None = None) -> SyncQueue:
        async def made() -> Queue:
            return await self._client.queue(stream, group, options=options)

        return SyncQueue(self._loop, self._loop.run(made()))

    @_documented(Client.consume)
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

    @_documented(Client.group)
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
        async def made() -> Group:
            return await self._client.group(
                name, streams, instance=instance, options=options, on_assigned=on_assigned, on_revoked=on_revoked
            )

        return SyncGroup(self._loop, self._loop.run(made()))

    @_documented(Client.cursor)
    def cursor(self, name: str, stream: str) -> SyncCursor[SyncConsumer]:
        async def made() -> Cursor:
            return await self._client.cursor(name, stream)

        return SyncCursor(self._loop, self._loop.run(made()), partial(SyncConsumer, self._loop))

    if not TYPE_CHECKING:  # mypy reports the old names

        def __getattr__(self, name: str) -> Any:
            return renamed.client_method(self, name)


class SyncPublisher:
    """Publishes messages to one partition and keeps many in flight.

    Create it with ``client.publisher``. Leaving the ``with`` block waits for all acks and raises the first error.

    Args:
        loop: The client's event loop.
        publisher: The asynchronous publisher.

    Example:
        with client.publisher("orders") as publisher:
            for number in range(1000):
                publisher.send(b"%d" % number)
    """

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
        """Send one message. Wait only for room in the window. ``flush`` raises the errors.

        Args:
            value: Payload. None is a tombstone: compaction deletes ``key``.
            key: Key of the record. Default None: no key.
            headers: A mapping, or pairs of name and value. Default None.
            ack: ALL (default) or LEADER.
            msg_id: Id for deduplication. Default '': none, or a random one with ``PublishOptions(message_ids=True)``.
            expected_last: Store the record only directly after this offset. -1: only as the first record. Default None:
                no condition.

        Raises:
            ConfigError: The message is not valid.
            NotFoundError: No such stream or partition.
            ClientClosedError: The publisher or its client is closed.
        """
        self._loop.run(
            self._publisher.send(value, key=key, headers=headers, ack=ack, msg_id=msg_id, expected_last=expected_last)
        )

    @_documented(Publisher.flush)
    def flush(self) -> None:
        self._loop.run(self._publisher.flush())

    @_documented(Publisher.close)
    def close(self) -> None:
        self._loop.run(self._publisher.close())

    def __enter__(self) -> SyncPublisher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.run(self._publisher.__aexit__(kind))


class SyncProducer:
    """Stores each record of one stream once and in order per partition.

    Create it with ``client.producer``. Leaving the ``with`` block waits for all acks and raises the first error. Use
    ``send_many`` for many records: each call switches to another thread.

    Args:
        loop: The client's event loop.
        producer: The asynchronous producer.

    Example:
        with client.producer("orders", id="till-7") as producer:
            producer.send_many([b"one", b"two"])
    """

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
        """Add one record to the next batch. Wait only for room in the buffer. ``flush`` raises the errors.

        Args:
            value: Payload. None is a tombstone.
            key: Key of the record. Default None: no key.
            headers: A mapping, or pairs of name and value. Default None.
            partition: Number of the partition. Default None: the partitioner chooses.
        """
        self._loop.run(self._producer.send(value, key=key, headers=headers, partition=partition))

    def send_many(
        self,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        partition: int | None = None,
        positions: int | Sequence[int] | None = None,
    ) -> None:
        """Add many records, in order. Wait only for room in the buffer. ``flush`` raises the errors.

        Args:
            values: Payloads. None is a tombstone.
            keys: One key or None for each value. Default None: no keys.
            partition: Number of the partition. Default None: the partitioner chooses.
            positions: With a source: source offset of each record, or one offset for all. Default None.
        """
        self._loop.run(self._producer.send_many(values, keys=keys, partition=partition, positions=positions))

    @property
    def begin_after(self) -> int:
        """Source offset (inclusive) whose results all partitions had when the producer was opened. -1: none, or no source."""
        return self._producer.begin_after

    @property
    def used_partitions(self) -> int:
        """Number of partitions that the partitioner chooses among."""
        return self._producer.used_partitions

    @_documented(Producer.next_sequence)
    def next_sequence(self, partition: int = 0) -> int:
        return self._producer.next_sequence(partition)

    @_documented(Producer.flush)
    def flush(self) -> None:
        self._loop.run(self._producer.flush())

    @_documented(Producer.close)
    def close(self) -> None:
        self._loop.run(self._producer.close())

    def __enter__(self) -> SyncProducer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.run(self._producer.__aexit__(kind))


class SyncConsumer:
    """Reads the committed records of one partition. Iterate over it, or over ``batches()``.

    Create it with ``client.consume``.

    Args:
        loop: The client's event loop.
        consumer: The asynchronous consumer.

    Example:
        for record in client.consume("orders", until="end"):
            print(record.offset, record.value)
    """

    def __init__(self, loop: _Loop, consumer: Consumer) -> None:
        self._loop = loop
        self._consumer = consumer
        self._rest: Iterator[Record] = iter(())
        """Remaining records of the last batch. An interrupted iteration loses none of them."""
        self._last: Record | None = None
        """Last delivered record of a batch with remaining records."""

    @_documented(Consumer.begin)
    def begin(self) -> Bounds:
        return self._loop.run(self._consumer.begin())

    @_documented(Consumer.getone)
    def getone(self, timeout_s: float | None = None) -> Record | None:
        return self._loop.run(self._consumer.getone(timeout_s))

    @_documented(Consumer.getmany)
    def getmany(self, max_records: int = 500, timeout_s: float | None = None) -> list[Record]:
        return self._loop.run(self._consumer.getmany(max_records, timeout_s))

    @_documented(Consumer.position)
    def position(self) -> Position:
        behind = self._loop.run(self._consumer.position())
        if self._last is None:
            return behind
        offset = self._last.offset + (not self._consumer.backwards)
        return Position(behind.uid, offset, 0 if self._consumer.backwards else self._last.leader_epoch)

    @_documented(Consumer.seek)
    def seek(self, start: Start) -> None:
        self._rest, self._last = iter(()), None
        self._loop.run(self._consumer.seek(start))

    @_documented(Consumer.lag)
    def lag(self) -> int:
        return self._loop.run(self._consumer.lag())

    @_documented(Consumer.batches)
    def batches(self) -> Generator[BatchSlice, None, None]:
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
