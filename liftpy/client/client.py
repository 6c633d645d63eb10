"""``connect`` and ``Client``: the connection of an application to a liftpy cluster."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, overload

from nats.aio.client import Client as NatsConnection

from liftpy import renamed
from liftpy.client import positions
from liftpy.client.admin import Admin
from liftpy.client.arguments import check_number, check_offset, checked_options
from liftpy.client.awaitable_context import AwaitableContext
from liftpy.client.batch_view import BatchSlice
from liftpy.client.consumer import Consumer, ReadOptions, filter_of
from liftpy.client.cursor import Cursor
from liftpy.client.group import Group, GroupOptions, Hook
from liftpy.client.group_admin import Cursors, GroupCoordinator, Groups, Queues
from liftpy.client.in_flight import PublishAck, PublishOptions
from liftpy.client.iteration import Iteration
from liftpy.client.metadata_requests import MetadataRequests
from liftpy.client.multi_consumer import ManyConsumer, Place
from liftpy.client.partition_sender import ProducerOptions, Source
from liftpy.client.positions import Bounds, Position, Start, Until
from liftpy.client.producer import Partitioner, Producer
from liftpy.client.progress import ReadProgress
from liftpy.client.publisher import MessageFields, Publisher
from liftpy.client.queue import Queue, QueueOptions
from liftpy.client.services import Services
from liftpy.client.shared_publishers import SharedPublishers
from liftpy.client.stream_directory import ClientFactories, StreamDirectory
from liftpy.config import AckPolicy
from liftpy.core.wire.batch import Record
from liftpy.core.wire.headers import HeadersLike
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import ConfigError
from liftpy.nats.cancellation import CloseOnce
from liftpy.nats.credentials import Credentials
from liftpy.nats.parser import make_strict
from liftpy.nats.transport import DEFAULT_URL, Transport, open_connection

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

_P = ParamSpec("_P")
_T = TypeVar("_T")


def connect(
    nats: str | Sequence[str] | NatsConnection = DEFAULT_URL,
    namespace: str = "liftpy",
    *,
    credentials: Credentials | None = None,
    name: str = "liftpy-client",
    timeout_s: float = 5.0,
    trace: bool | TracerProvider = False,
    **nats_options: Any,
) -> AwaitableContext[Client]:
    """Connect to a liftpy cluster through NATS.

    Args:
        nats: URL or URLs of NATS servers. Default: ``nats://127.0.0.1:4222``. Or a connected nats-py client: it stays
            open when this client closes, and gets the strict parser of ``liftpy.nats.parser``.
        namespace: Namespace of the cluster. Default ``liftpy``.
        credentials: User, token, keys or TLS files. Default None: no authentication.
        name: Name of this connection on the NATS server. Default ``liftpy-client``.
        timeout_s: Time limit for connecting, in seconds. Default 5.
        trace: True, or an OpenTelemetry TracerProvider, to create spans (needs ``liftpy[trace]``). Default False.
        **nats_options: More arguments for ``nats.connect``.

    Returns:
        A Client. Use it with ``async with``, or ``await`` it and call ``close``.

    Raises:
        UnavailableError: No server accepted the connection within ``timeout_s``.
        NotAllowedError: NATS rejected the credentials.
        ConfigError: An argument is not allowed, or a credentials file cannot be used.

    Example:
        async with liftpy.connect("nats://127.0.0.1:4222") as client:
            await client.create_stream("orders", "shop.orders", exist_ok=True)
            ack = await client.publish("orders", b"one", key=b"k")
    """

    async def opened() -> Client:
        check_number("timeout_s", timeout_s)
        factories = factories_for(trace)
        subjects = Subjects(namespace, principal=credentials.principal if credentials is not None else "")
        if isinstance(nats, NatsConnection):
            if not (nats.is_connected or nats.is_reconnecting):
                raise ConfigError(
                    "Invalid nats: this nats-py client is not connected, or is closed. Pass a connected one, or a URL."
                )
            make_strict(nats)
            return Client(Transport(nats), subjects, owns_connection=False, factories=factories)
        connection = await open_connection(nats, credentials=credentials, name=name, timeout_s=timeout_s, **nats_options)
        return Client(Transport(connection), subjects, owns_connection=True, factories=factories)

    return AwaitableContext(opened())


def factories_for(trace: bool | TracerProvider) -> ClientFactories:
    """Return the factories for the argument ``trace`` of ``connect``. OpenTelemetry is imported only for a traced client.

    Raises ConfigError if it is not a tracer provider, or if OpenTelemetry is not installed.
    """
    if trace is False:
        return ClientFactories()
    if trace is not True and not callable(getattr(trace, "get_tracer", None)):
        raise ConfigError(
            f"Invalid trace of type {type(trace).__name__}. Use True, False or a TracerProvider of OpenTelemetry."
        )
    try:
        from liftpy.client.traced import TracedFactories
    except ImportError as error:
        raise ConfigError(f"trace=True needs OpenTelemetry. Install it with `pip install 'liftpy[trace]'`. ({error})") from None
    return TracedFactories(None if trace is True else trace)


def _of_admin(
    method: Callable[Concatenate[Admin, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[Client, _P], Coroutine[Any, Any, _T]]:
    """Return a method for Client that calls the method ``method`` of ``client.admin``."""

    @functools.wraps(method)
    async def call(self: Client, /, *arguments: _P.args, **named: _P.kwargs) -> _T:
        return await method(self.admin, *arguments, **named)

    return call


class Client:
    """A connection to one liftpy cluster. Create it with ``liftpy.connect``.

    - Publish: ``publish`` (one message), ``publisher`` (many in flight), ``producer`` (each record once and in order).
    - Read: ``consume``, ``consume_many``, ``read_range``, ``bounds``, ``offset_at``.
    - Share work: ``group``, ``queue``, ``cursor``.
    - Manage streams and the cluster: ``create_stream``, ``stream``, ``admin``.
    - Manage groups, queues and cursors: ``groups``, ``queues``, ``cursors``.
    - Call services: ``services``.

    Use a Client only in the event loop that created it. Scripts without asyncio use ``liftpy.client.sync``.

    Example:
        async with liftpy.connect("nats://127.0.0.1:4222") as client:
            async for record in client.consume("orders", until="end"):
                print(record.offset, record.value)
    """

    def __init__(
        self, transport: Transport, subjects: Subjects, *, owns_connection: bool, factories: ClientFactories | None = None
    ) -> None:
        self._transport = transport
        self._owns_connection = owns_connection
        """True if ``close`` also closes the NATS connection."""
        self._factories = factories or ClientFactories()
        self._streams = StreamDirectory(MetadataRequests(transport, subjects), self._factories)
        self._closing = CloseOnce("closing of a client")
        self._publishers = SharedPublishers(self._streams)
        self.admin = Admin(self._streams)
        """Streams, placement, nodes and settings of the cluster."""
        self.services = Services(self._streams)
        """Commands and queries to replicated services."""
        self._coordinator = coordinator = GroupCoordinator(self._streams, self.services)
        self.groups = Groups(coordinator)
        """Administration of consumer groups. ``group`` joins one."""
        self.queues = Queues(coordinator)
        """Administration of work queues. ``queue`` joins one."""
        self.cursors = Cursors(coordinator)
        """Administration of cursors. ``cursor`` opens one."""

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all publishers and the connection.

        Messages without an ack fail with OutcomeUnknownError. Other pending calls, and all later calls, raise
        ClientClosedError. A nats-py client that you passed to ``connect`` stays open. A second call does nothing.
        """
        self._transport.end()
        await self._closing.run(self._close)

    async def _close(self) -> None:
        try:
            await self._publishers.close()
        finally:
            await (self._transport.close() if self._owns_connection else self._transport.leave())

    @property
    def transport(self) -> Transport:
        """The NATS connection, for other parts of this library."""
        return self._transport

    @property
    def counters(self) -> dict[str, int]:
        """Number of received messages that the client could not use, by kind.

        The kinds are damaged answers, batches that do not decompress, acks from another sender, and messages that the
        connection dropped. The client gave none of them to the application. If a counter grows, look at the logs of the
        nodes.
        """
        return dict(self._transport.counters + self._transport.parse_errors + self._factories.counters)

    # ---- streams -----------------------------------------------------------------------------------------------------
    create_stream = _of_admin(Admin.create_stream)
    stream = _of_admin(Admin.stream)

    # ---- reading -----------------------------------------------------------------------------------------------------
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
    ) -> Consumer:
        """Read the committed records of one partition.

        Args:
            stream: Name of the stream.
            partition: Number of the partition. Default 0.
            start: Where to start: ``earliest``, ``latest`` (the last committed record), ``new`` (after it), an offset
                (inclusive), or a datetime. Also a time before now (``-10m`` or a timedelta), a number of offsets before
                the end (``-1000``), or a Position or its text. Default: ``earliest``, or the end with ``backwards``.
            until: Where to stop: ``end`` (the high watermark at the start), an offset (inclusive), or a datetime
                (exclusive, by leader timestamp). Default None: follow new records forever. In a compacted stream,
                ``end`` also includes records that replaced older ones during the read.
            after_epoch: ``leader_epoch`` of the last record that you read before ``start``. The reader then detects
                records lost in an unclean election. Default 0: no check.
            subjects: Only records of these subjects. Wildcards are allowed. Default: all.
            keys: Only records with these keys. Default: all. With both filters, a record must match one of each.
            backwards: If True, newest record first, down to ``until`` or the log start. Default False.
            options: Timeouts, read-ahead and choice of replica. Default: ``ReadOptions()``.

        Returns:
            A Consumer: iterate over it for records, or over its ``batches()``.

        Raises:
            OffsetOutOfRangeError: On reading: the start was deleted by retention, or is past the end.
            LogTruncatedError: On reading: records that were read are lost by an unclean election.
            NotFoundError: On reading: no such stream or partition, or the stream was deleted and created again.
            UnavailableError: On reading: no replica answered for ``options.patience_s``.
            ConfigError: An argument is not allowed.

        Example:
            async for record in client.consume("orders", start="-10m", until="end"):
                print(record.offset, record.key, record.value)
        """
        wanted = filter_of(subjects, keys)
        if start == "":  # not `if not start`: the offset 0 is a start
            start = "new" if backwards else "earliest"
        return self._streams.consume(
            stream, partition, start, until, after_epoch=after_epoch, wanted=wanted, backwards=backwards, options=options
        )

    def consume_many(
        self,
        *names: str,
        start: Start = "earliest",
        until: Until = None,
        positions: Mapping[Place, Position] | None = None,
        subjects: Sequence[str] = (),
        keys: Sequence[bytes] = (),
        options: ReadOptions | None = None,
    ) -> ManyConsumer:
        """Read all partitions of several streams as one.

        Records of one partition stay in order. There is no order between partitions. The consumer finds new partitions,
        and new streams that match a pattern, while it runs. A deleted stream that a pattern selected leaves, and the
        others continue.

        Args:
            *names: Stream names, or patterns such as ``orders-*``.
            start: Where to start, as in ``consume``. Default ``earliest``. Partitions that appear later start at their
                first record.
            until: Where to stop, as in ``consume``. Default None: follow forever.
            positions: Positions of an earlier consumer. ``positions_from`` reads their text. ``start`` applies to the
                other partitions. A stream of a pattern that was created again since then starts at its first record.
                Default None.
            subjects: Only records of these subjects. Default: all.
            keys: Only records with these keys. Default: all.
            options: Timeouts, read-ahead and choice of replica. Default: ``ReadOptions()``.

        Returns:
            The consumer. Use it with ``async with``.

        Raises:
            ConfigError: An argument is not allowed, or there are more than 4096 partitions.
            NotFoundError: On reading: a stream that you named does not exist, was deleted, or was created again.

        Example:
            async with client.consume_many("orders", "pay-*", until="end") as many:
                async for record in many:
                    print(record.stream, record.partition, record.value)
        """
        wanted = filter_of(subjects, keys)
        return ManyConsumer(self._streams, names, start, until, positions, wanted=wanted, options=options)

    def read_range(
        self,
        stream: str,
        partition: int,
        start_offset: int,
        end_offset: int,
        *,
        uid: str = "",
        exact: bool = False,
        options: ReadOptions | None = None,
    ) -> Iteration[BatchSlice]:
        """Read exactly the records of an offset range that is committed.

        Only replicas that have committed the range answer. So the same range gives the same records every time. If a
        part is missing, the call raises an error. In a compacted stream, a later record may have replaced a record of
        the range. Then the range grows up to the end of that compaction, so that no key is missing.

        Args:
            stream: Name of the stream.
            partition: Number of the partition.
            start_offset: First offset, inclusive.
            end_offset: End offset, exclusive.
            uid: Only if the stream has this uid. Default '': whatever stream has the name.
            exact: If True, the range of a compacted stream does not grow. Default False.
            options: Timeouts, read-ahead and choice of replica. Default: ``ReadOptions()``.

        Returns:
            An asynchronous iterator of BatchSlice.

        Raises:
            ConfigError: The range is not valid.
            OffsetOutOfRangeError: On reading: a part of the range was deleted.
            NotFoundError: On reading: no such stream or partition, or another uid.
            UnavailableError: On reading: no replica answered for ``options.patience_s``.

        Example:
            async for piece in client.read_range("orders", 0, 0, 100):
                print(piece.first_offset, piece.record_count)
        """
        start_offset = check_offset(start_offset, "start_offset")
        end_offset = check_offset(end_offset, "end_offset")
        if start_offset > end_offset:
            raise ConfigError(f"Invalid range {start_offset}..{end_offset}. Use 0 <= start_offset <= end_offset.")
        progress = ReadProgress(
            stream, partition, start_offset, end_offset, uid=uid, floor_high_watermark=end_offset - 1, moves_end=not exact
        )
        return self._streams.read(progress, options)

    async def bounds(self, stream: str, partition: int = 0, *, options: ReadOptions | None = None) -> Bounds:
        """Return the log start, the high watermark and the leader of a partition.

        Args:
            stream: Name of the stream.
            partition: Number of the partition. Default 0.
            options: Timeouts. Default: ``ReadOptions()``.

        Returns:
            The bounds, as the leader knows them.

        Raises:
            NotFoundError: No such stream or partition.
            UnavailableError: No leader answered for ``options.patience_s``.

        Example:
            bounds = await client.bounds("orders")
            print(bounds.log_start_offset, bounds.high_watermark)
        """
        return (await self._streams.reader(stream, partition, options).bounds())[0]

    async def offset_at(self, stream: str, partition: int, moment: Any, *, options: ReadOptions | None = None) -> int:
        """Return the offset of the first record at or after a time.

        Args:
            stream: Name of the stream.
            partition: Number of the partition.
            moment: A datetime (UTC without a time zone), or nanoseconds since 1970.
            options: Timeouts. Default: ``ReadOptions()``.

        Returns:
            The offset, or the high watermark + 1 if all records are older. The time of a record is the timestamp that
            its leader set.

        Raises:
            ConfigError: ``moment`` is not a time between 1677 and 2262.
            NotFoundError: No such stream or partition.
            UnavailableError: No leader answered for ``options.patience_s``.
        """
        return (await self._streams.reader(stream, partition, options).bounds(at_ns=positions.timestamp_ns(moment, "moment")))[
            1
        ]

    # ---- publishing --------------------------------------------------------------------------------------------------
    @overload
    async def publish(
        self,
        stream: str,
        value: bytes | None,
        *,
        partition: int = ...,
        ack: Literal[AckPolicy.ALL, AckPolicy.LEADER] = ...,
        **fields: Unpack[MessageFields],
    ) -> PublishAck: ...

    @overload
    async def publish(
        self,
        stream: str,
        value: bytes | None,
        *,
        partition: int = ...,
        ack: Literal[AckPolicy.NONE],
        **fields: Unpack[MessageFields],
    ) -> None: ...

    @overload
    async def publish(
        self, stream: str, value: bytes | None, *, partition: int = ..., ack: AckPolicy, **fields: Unpack[MessageFields]
    ) -> PublishAck | None: ...

    async def publish(
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
        """Publish one message and wait for its ack.

        If no ack arrives, the client sends the message again with the same message id. The leader stores it once. For
        many messages use ``publisher``: it keeps many in flight.

        Args:
            stream: Name of the stream.
            value: Payload. None is a tombstone: compaction deletes ``key``.
            key: Key of the record, for compaction and filters. Default None: no key.
            headers: A mapping, or pairs of name and value. Names may repeat. ``Lift-*`` names are reserved. Default
                None.
            partition: Number of the partition. Default 0.
            ack: When to return. ALL (default): the record is flushed on all in-sync replicas. LEADER: flushed on the
                leader. NONE: sent, and the result is None.
            msg_id: Id for deduplication within the stream's ``dedup_window_s``. Default '': a new random id.
            expected_last: Store the record only directly after this offset. -1: only as the first record. Default None:
                no condition.
            timeout_s: Total time for all attempts, in seconds. Default None: 30.

        Returns:
            Partition, offset and LeaderEpoch of the record. None with ``ack=AckPolicy.NONE``.

        Raises:
            PublishRejectedError: Not stored. ``reason`` says why.
            NotFoundError: Not stored: no such stream or partition.
            NotAllowedError: Not stored: NATS denies publishing.
            UnavailableError: Not stored: no leader accepted the message in time.
            OutcomeUnknownError: No ack in time. The record may be stored. Send it again with
                ``msg_id=error.message_id``.

        Example:
            ack = await client.publish("orders", b'{"id": 17}', key=b"customer-3")
            print(ack.partition, ack.offset)
        """
        publisher, timeout_s = await self._publishers.open(stream, partition, timeout_s)
        return await publisher.publish(
            value, key=key, headers=headers, ack=ack, msg_id=msg_id, expected_last=expected_last, timeout_s=timeout_s
        )

    def publisher(
        self, stream: str, partition: int = 0, *, subject: str = "", options: PublishOptions | None = None
    ) -> AwaitableContext[Publisher]:
        """Open a publisher that keeps many messages in flight.

        Args:
            stream: Name of the stream.
            partition: Number of the partition. Default 0.
            subject: Subject to publish to. Needed if the stream's subject has wildcards, or if this user may not ask
                the metadata group. Default '': the subject of the stream.
            options: Window and timeouts. Default: ``PublishOptions()``.

        Returns:
            The publisher. Use it with ``async with``: leaving the block waits for all acks. Or ``await`` it and call
            ``close``.

        Raises:
            NotFoundError: No such stream or partition.
            ConfigError: The subject has a wildcard, or does not belong to the stream.
            UnavailableError: The metadata group did not answer in time.

        Example:
            async with client.publisher("orders") as publisher:
                for number in range(1000):
                    await publisher.send(b"%d" % number)
        """
        return self._streams.open_publisher(stream, partition, subject=subject, options=options)

    def producer(
        self,
        stream: str,
        *,
        id: str = "",
        options: ProducerOptions | None = None,
        partitioner: Partitioner = "key",
        source: Source | None = None,
    ) -> AwaitableContext[Producer]:
        """Open a producer that stores each record once and in order.

        The producer sends records in batches with sequence numbers. It retries a batch without creating duplicates,
        also after a restart of the process if you pass ``id``.

        Args:
            stream: Name of the stream.
            id: Identity of the producer. A process that opens the same id continues it and fences the older process.
                Default '': a new identity.
            options: Batch sizes, buffer and timeouts. Default: ``ProducerOptions()``.
            partitioner: How to choose the partition of a record. ``key`` (default): by Kafka's hash of the key.
                ``sticky``: one partition until its batch is full. ``round-robin``: the next one for each record. Or a
                function of (key, number of partitions).
            source: Partition of another stream that the records are made from. The leader then stores the source
                position with each batch. Needs ``id``. Default None.

        Returns:
            The producer. Use it with ``async with``: leaving the block waits for all acks.

        Raises:
            NotFoundError: No such stream.
            ConfigError: An argument is not allowed, or the stream sends no acks.
            PublishRejectedError: A leader rejected the producer.
            UnavailableError: A leader did not answer within ``options.patience_s``.

        Example:
            async with client.producer("orders", id="till-7") as producer:
                await producer.send(b"one", key=b"k")
                await producer.send_many([b"two", b"three"])
        """
        return self._streams.open_producer(stream, id=id, options=options, partitioner=partitioner, source=source)

    # ---- groups, queues and cursors ------------------------------------------------------------------------------------
    def group(
        self,
        name: str,
        streams: Sequence[str],
        *,
        instance: str = "",
        options: GroupOptions | None = None,
        on_assigned: Hook | None = None,
        on_revoked: Hook | None = None,
    ) -> AwaitableContext[Group]:
        """Join a consumer group and read the partitions that it assigns.

        The members of a group share the partitions of its streams. The group commits the position of each partition, so
        another member can continue. Delivery is at least once.

        Args:
            name: Name of the group.
            streams: Stream names, or patterns with ``*``. New streams that match join the group.
            instance: Static identity of this member. A process that returns with it within the session keeps its
                partitions. Default '': a new identity.
            options: Session timeout, start, commit interval and filters. Default: ``GroupOptions()``.
            on_assigned: Function that receives the list of new partitions. It runs between heartbeats and must not
                block.
            on_revoked: Function that receives the list of lost partitions. It runs between heartbeats and must not
                block.

        Returns:
            The member. Use it with ``async with``, or ``await`` it and call ``close``.

        Raises:
            NotFoundError: None of the streams exists.
            GroupRejectedError: The streams are more than one group can read.
            ConfigError: A name or an option is not allowed.
            UnavailableError: The coordinator did not answer in time.

        Example:
            async with client.group("billing", ["orders", "pay-*"]) as group:
                async for record in group:
                    print(record.stream, record.partition, record.value)
        """
        chosen = checked_options(options, GroupOptions)
        group = Group(self._coordinator, name, streams, instance, chosen, on_assigned, on_revoked)
        return AwaitableContext(group.open())

    def cursor(self, name: str, stream: str) -> AwaitableContext[Cursor]:
        """Open a named position in a stream that the cluster stores.

        A cursor serves one reader at a time. The process that opened it last holds it: commits of an earlier holder are
        rejected.

        Args:
            name: Name of the cursor.
            stream: Name of the stream.

        Returns:
            The cursor. Use it with ``async with``, or ``await`` it.

        Raises:
            NotFoundError: No such stream.
            GroupRejectedError: The name belongs to a consumer group.
            UnavailableError: The coordinator did not answer in time.

        Example:
            async with client.cursor("nightly", "orders") as cursor:
                async for record in await cursor.consume(until="end"):
                    await cursor.commit(record.offset + 1)
        """
        return AwaitableContext(Cursor(self._coordinator, name, stream).open())

    def queue(self, stream: str, group: str, *, options: QueueOptions | None = None) -> AwaitableContext[Queue]:
        """Join a work queue and receive its records one by one.

        The workers of a queue share the records of a stream. Each record goes to one worker at a time. A worker acks,
        returns or rejects each record. A record that is not acked within ``ack_wait_s`` is delivered again.

        Args:
            stream: Name of the stream.
            group: Name of the queue. Workers with the same name share the records.
            options: Ack wait, deliveries, dead letters, limits. All workers must use the same. Default:
                ``QueueOptions()``.

        Returns:
            The worker. Use it with ``async with``, or ``await`` it and call ``close``.

        Raises:
            NotFoundError: No such stream, or no such stream for dead letters.
            LogTruncatedError: An unclean election lost records that the queue has delivered.
            ConfigError: An option is not allowed.
            UnavailableError: The coordinator did not answer in time.

        Example:
            async with client.queue("jobs", "workers") as queue:
                async for job in queue:
                    print(job.record.value)
                    await job.ack()
        """
        chosen = checked_options(options, QueueOptions)
        return AwaitableContext(Queue(self._coordinator, self._publishers, stream, group, chosen).open())

    def processing(self, stream: str, what: Record | BatchSlice, *, partition: int = 0) -> AbstractContextManager[Any]:
        """Create a trace span ``process STREAM`` around the processing of a record or slice.

        Messages that you publish inside the block belong to the same trace.

        Args:
            stream: Name of the stream.
            what: The record or the slice.
            partition: Number of the partition. Default 0.

        Returns:
            A context manager. It yields the span, or None if this record is not traced.

        Example:
            async for record in client.consume("orders"):
                with client.processing("orders", record):
                    print(record.value)
        """
        return self._factories.around(stream, what, partition)

    if not TYPE_CHECKING:  # mypy reports the old names

        def __getattr__(self, name: str) -> Any:
            return renamed.client_method(self, name)
