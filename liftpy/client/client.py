"""``connect`` and ``Client``: the connection of an application to a liftpy cluster.

Mixins group the methods of ``Client``: deleting records, groups and queues, internal streams, pausing, replicated
services.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol, SupportsIndex, cast, overload

from nats.aio.client import Client as NatsConnection

from liftpy.client import positions, service_commands, service_queries
from liftpy.client.admin import Admin, ClusterState, FeatureLevelsMixin, ReplicaMove
from liftpy.client.admin_requests import NodeViews
from liftpy.client.awaitable_context import Opening
from liftpy.client.batch_view import BatchSlice
from liftpy.client.closest_replica import Nearest
from liftpy.client.consumer import Consumer, PartitionReader, ReadOptions, read_range
from liftpy.client.cursor import Cursor, CursorHome
from liftpy.client.encode_publish import Address
from liftpy.client.factories import ClientFactories, Processing
from liftpy.client.group import Group, GroupHome, GroupOptions, Hook
from liftpy.client.in_flight import PublishAck, PublishOptions
from liftpy.client.iteration import Iteration
from liftpy.client.multi_consumer import ManyConsumer, Place, Places, bounded_ahead
from liftpy.client.partition_sender import ProducerOptions, Source, check_answers, name_for
from liftpy.client.placement_plans import PlacementOptions, PlacementPlan
from liftpy.client.positions import (
    Bounds,
    Position,
    Start,
    Until,
    check_offset,
    check_partition,
    checked_until,
    out_of_range,
    timestamp_ns,
)
from liftpy.client.positions import resolved as _resolved
from liftpy.client.producer import Partitioner, Producer
from liftpy.client.progress import ReadProgress
from liftpy.client.publisher import Publisher
from liftpy.client.queue import Queue, QueueHome, QueueOptions
from liftpy.client.retrying import retrying
from liftpy.client.tracing import making_of
from liftpy.config import AckPolicy, StreamConfig
from liftpy.core.base.ids import check_name, check_published, is_internal, is_utf8, shown
from liftpy.core.base.partition import PartitionState, Pause
from liftpy.core.metadata.image import INSUFFICIENT_NODES, NodeImage, StreamImage
from liftpy.core.wire.filters import Filter
from liftpy.core.wire.headers import HeadersLike, pairs_of
from liftpy.core.wire.partitioner import partition_of
from liftpy.core.wire.subjects import GROUPS_STREAM, Subjects, data_subject, matcher
from liftpy.errors import (
    AlreadyExistsError,
    ConfigError,
    NotAllowedError,
    NotFoundError,
    OffsetOutOfRangeError,
    UnavailableError,
)
from liftpy.nats.credentials import Credentials
from liftpy.nats.parser import make_strict
from liftpy.nats.transport import DEFAULT_URL, Transport, open_connection

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider


class _Home(Protocol):
    """The methods of Client that deleting records needs."""

    _admin: Admin

    async def stream(self, name: str) -> StreamImage:
        """Return the stream from the metadata group."""

    def _reader(self, stream: str, partition: int, options: ReadOptions | None) -> PartitionReader:
        """Return a reader of one partition."""

    def read_range(self, stream: str, partition: int, start_offset: int, end_offset: int, *, uid: str) -> Iteration[BatchSlice]:
        """Return the records of an offset range."""


class RecordDeletionMixin:
    """Methods of Client that delete records."""

    async def truncate_before(
        self, stream: str, partition: int, before: SupportsIndex | datetime, *, dry_run: bool = False, uid: str = ""
    ) -> int:
        """Delete the committed records below an offset or before a time.

        Readers stop seeing the records at once. The disk space is freed segment by segment. The deletion applies to
        every replica, also to replicas that are offline now. It cannot be undone. The batch that contains ``before``
        stays whole. The caller needs permission to read the stream.

        Args:
            stream: Name of the stream.
            partition: Number of the partition, from 0.
            before: First offset to keep, at most the high watermark + 1. Or a datetime: delete the records that the
                leader stamped before it.
            dry_run: If True, only return the result and delete nothing. Default False.
            uid: Only if the stream has this uid. Default '': whatever stream has the name.

        Returns:
            The first offset that remains. It is the start of the batch that contains ``before``.

        Raises:
            NotFoundError: No such stream or partition, or another uid.
            OffsetOutOfRangeError: The offset is above the high watermark + 1.
            ConfigError: ``before`` is neither an offset nor a time between 1677 and 2262.
            UnavailableError: No leader or no metadata group answered in time.

        Example:
            first = await client.truncate_before("orders", 0, 1000)
        """
        home = cast(_Home, self)
        found = await _stream_of(home, stream, uid)
        offset, bounds = await _until(home._reader(stream, partition, None), found, before)
        first = await _batch_start(home, found, partition, offset, bounds)
        if not dry_run and first > bounds.log_start_offset:
            await home._admin.truncate_before(found, partition, offset)
        return first

    async def purge(
        self,
        stream: str,
        partition: int,
        *,
        subjects: Sequence[str] = (),
        keys: Sequence[bytes] = (),
        before: SupportsIndex | datetime | None = None,
        dry_run: bool = False,
        uid: str = "",
    ) -> int:
        """Delete the committed records of some subjects or keys.

        If you pass both ``subjects`` and ``keys``, a record must match one of each. Every replica drops the records
        during its next housekeeping, usually within seconds. Records inside the deduplication window stay until the
        window is over. Readers may still see the records until then. Offsets do not change: readers skip the gaps. It
        cannot be undone. ``client.stream(name).partitions[p].purges`` lists the purges in progress. The caller needs
        permission to read the stream.

        Args:
            stream: Name of the stream.
            partition: Number of the partition, from 0.
            subjects: Subjects to delete. NATS wildcards ``*`` and ``>`` are allowed. Default: none.
            keys: Record keys to delete. Default: none.
            before: Delete only below this offset, or before this datetime. Default None: everything that is committed
                now.
            dry_run: If True, only return the result and delete nothing. Default False.
            uid: Only if the stream has this uid. Default '': whatever stream has the name.

        Returns:
            The offset (exclusive) below which matching records are deleted.

        Raises:
            ConfigError: Neither subjects nor keys, or too many purges in progress.
            InvalidNameError: A subject is malformed.
            NotFoundError: No such stream or partition, or another uid.
            OffsetOutOfRangeError: ``before`` is above the high watermark + 1.
            UnavailableError: No leader or no metadata group answered in time.

        Example:
            await client.purge("orders", 0, keys=[b"customer-17"])
        """
        wanted = Filter(tuple(subjects), tuple(keys))
        if not wanted:
            raise ConfigError(
                "purge needs at least one subject or key. To delete all records below an offset, use truncate_before()."
            )
        home = cast(_Home, self)
        found = await _stream_of(home, stream, uid)
        end_offset, _ = await _until(home._reader(stream, partition, None), found, before)
        if not dry_run and end_offset > 0:
            await home._admin.purge(found, partition, wanted, end_offset)
        return end_offset


async def _stream_of(home: _Home, name: str, uid: str) -> StreamImage:
    found = await home.stream(name)
    if uid and found.uid != uid:
        raise NotFoundError(
            f"Stream {name} was deleted and created again: its uid is {found.uid}, not {uid}. Check which of the "
            "two streams you mean."
        )
    return found


async def _batch_start(home: _Home, stream: StreamImage, partition: int, offset: int, bounds: Bounds) -> int:
    """Return where the log starts after the records below ``offset`` are deleted. Batches stay whole."""
    if offset <= bounds.log_start_offset:
        return bounds.log_start_offset
    if offset < bounds.end_offset:
        try:
            async for piece in home.read_range(stream.name, partition, offset, offset + 1, uid=stream.uid):
                return max(min(piece.batch.base_offset, offset), bounds.log_start_offset)
        except OffsetOutOfRangeError:  # given up meanwhile
            pass
    return offset


async def _until(reader: PartitionReader, stream: StreamImage, before: SupportsIndex | datetime | None) -> tuple[int, Bounds]:
    """Return the offset that ``before`` means, exclusive, at most HW + 1, and the partition's bounds."""
    at_ns = timestamp_ns(before, "before") if isinstance(before, datetime) else None
    bounds, found = await reader.bounds(stream.uid, at_ns)
    if before is None:
        return bounds.end_offset, bounds
    offset = found if isinstance(before, datetime) else check_offset(before, "before")
    if not 0 <= offset <= bounds.end_offset:
        raise out_of_range(offset, bounds.log_start_offset, bounds.high_watermark)
    return offset, bounds


class GroupsMixin:
    """Methods of Client for groups, queues and cursors."""

    def group(
        self,
        name: str,
        streams: Sequence[str],
        *,
        instance: str = "",
        options: GroupOptions | None = None,
        on_assigned: Hook | None = None,
        on_revoked: Hook | None = None,
    ) -> Opening[Group]:
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
            ConfigError: A name or an option is not allowed.
            UnavailableError: The coordinator did not answer in time.

        Example:
            async with client.group("billing", ["orders", "pay-*"]) as group:
                async for part in group:
                    for record in part.slice.records():
                        print(record.value)
        """
        made = Group(cast("GroupHome", self), name, streams, instance, options or GroupOptions(), on_assigned, on_revoked)
        return Opening(made.open())

    def cursor(self, name: str, stream: str) -> Opening[Cursor]:
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
        return Opening(Cursor(cast("CursorHome", self), name, stream).open())

    def queue(self, stream: str, group: str, *, options: QueueOptions | None = None) -> Opening[Queue]:
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
            ConfigError: An option is not allowed.
            UnavailableError: The coordinator did not answer in time.

        Example:
            async with client.queue("jobs", "workers") as queue:
                async for job in queue:
                    print(job.record.value)
                    await job.ack()
        """
        return Opening(Queue(cast("QueueHome", self), stream, group, options or QueueOptions()).open())


_PLACED_S = 10.0
_POLL_S = 0.25


class Internals:
    """Methods of Client for internal streams: streams of the cluster itself, whose names begin with ``_``."""

    _admin: Admin

    async def stream(self, name: str) -> StreamImage:
        """Return the stream from the metadata group."""
        raise NotImplementedError

    def allow_internal(self) -> None:
        """Allow this client to create, change and delete internal streams.

        Internal streams belong to the cluster. Their names begin with ``_``. Without this call, requests to change them
        are rejected. Clients never publish to them. Every client may read them by name.

        Example:
            client.allow_internal()
        """
        self._admin.internal = True

    async def groups_stream(self) -> StreamImage:
        """Return the internal stream of groups and queues. Create it if needed.

        The node settings ``groups_partitions`` and ``groups_replicas`` apply when it is created.

        Returns:
            The stream ``_groups`` with its partitions.

        Raises:
            UnavailableError: No metadata group answered, or there are too few nodes.
            ConfigError: The settings do not allow the stream.
        """
        give_up_at = asyncio.get_running_loop().time() + _PLACED_S
        try:
            found = await self.stream(GROUPS_STREAM)
        except NotFoundError:
            found = await self._admin.open_groups()
        while not found.partitions:
            if asyncio.get_running_loop().time() >= give_up_at:
                raise UnavailableError(
                    f"The internal stream {GROUPS_STREAM} was created but not placed ({INSUFFICIENT_NODES}). Start more "
                    "nodes, then retry."
                )
            await asyncio.sleep(_POLL_S)
            found = await self._admin.stream(GROUPS_STREAM)
        return found


class PauseMixin:
    """Methods of Client that pause and resume partitions."""

    _admin: Admin

    async def pause(
        self,
        stream: str,
        partitions: Iterable[int] | None = None,
        *,
        resume_on_publish: bool = False,
        resume_all: bool = False,
        uid: str = "",
    ) -> StreamImage:
        """Stop accepting publishes to some partitions until ``resume``.

        A publish that waits for an ack fails with PublishRejectedError (``PAUSED``). A publish without reply subject is
        dropped and counted. Records that were accepted before are committed and acked. Reading goes on. Leaders apply
        the change within milliseconds.

        Args:
            stream: Name of the stream.
            partitions: Partition numbers. Default None: all partitions.
            resume_on_publish: If True, the next publish to a partition resumes it. This publish is stored, and its ack
                takes a little longer. Default False.
            resume_all: If True, the next publish to one partition resumes all partitions that are paused this way.
                Default False.
            uid: Only if the stream has this uid. Default '': whatever stream has the name.

        Returns:
            The stream after the change.

        Raises:
            NotFoundError: No such stream or partition. No partition is paused then.
            ConfigError: ``partitions`` is empty or not valid.
            UnavailableError: The metadata group did not answer in time.

        Example:
            await client.pause("orders")
            await client.resume("orders")
        """
        on_publish = Pause.UNTIL_PUBLISH_TO_ANY if resume_all else Pause.UNTIL_PUBLISH
        until = on_publish if resume_on_publish or resume_all else Pause.UNTIL_RESUMED
        return await self._admin.pause(stream, partitions, until, uid=uid)

    async def resume(self, stream: str, partitions: Iterable[int] | None = None, *, uid: str = "") -> StreamImage:
        """Accept publishes to paused partitions again.

        Leaders apply the change within milliseconds. Partitions that are not paused do not change.

        Args:
            stream: Name of the stream.
            partitions: Partition numbers. Default None: all partitions.
            uid: Only if the stream has this uid. Default '': whatever stream has the name.

        Returns:
            The stream after the change.

        Raises:
            NotFoundError: No such stream or partition.
            ConfigError: ``partitions`` is empty or not valid.
            UnavailableError: The metadata group did not answer in time.

        Example:
            await client.resume("orders", [0, 1])
        """
        return await self._admin.pause(stream, partitions, Pause.NOT_PAUSED, uid=uid)


class ServiceCalls:
    """Methods of Client that call replicated services."""

    _transport: Transport
    _subjects: Subjects

    async def stream(self, name: str) -> StreamImage:
        """Return the stream from the metadata group."""
        raise NotImplementedError

    async def _address(self, stream: str, partition: int, *, refresh: bool) -> Address:
        """Return the subject and uid to publish a partition to. ``refresh``: whether to ask the metadata group instead of the cache."""
        raise NotImplementedError

    async def _known(self, stream: str, partition: int, *, refresh: bool = False) -> StreamImage:
        """Return the stream from the cache, or from the metadata group. ``refresh``: whether to skip the cache."""
        raise NotImplementedError

    async def query_service(
        self,
        service: str,
        query: bytes,
        *,
        partition: int | None = None,
        key: bytes | None = None,
        at_least: int | None = None,
        timeout_s: float = 5.0,
    ) -> service_queries.QueryAnswer:
        """Ask a replicated service a question about its state.

        Any node of the service may answer. By default the state contains every record that was committed before this
        call (linearizable).

        Args:
            service: Name of the service.
            query: Bytes for ``Service.on_query``.
            partition: Partition whose state to ask. Default None: the only partition, or the one of ``key``.
            key: Ask the partition that holds the records of this key. Default None.
            at_least: The state must contain all records below this offset. No leader is asked then. Use ``ack.offset +
                1`` to see your own publish, 0 for any state. Default None: linearizable.
            timeout_s: Total time to wait, in seconds. Default 5.

        Returns:
            The answer, with the offset that the state had reached and the node that answered.

        Raises:
            QueryFailedError: ``on_query`` raised an error.
            QueryRejectedError: The service cannot answer now. Retry.
            UnavailableError: No service answered in time.
            ConfigError: The service has several partitions and you named none, or you named both.

        Example:
            answer = await client.query_service("bank", b'{"account": "a"}')
            print(answer.value, answer.position)
        """
        return await service_queries.ask_for(
            self._transport, self._subjects, service, query, partition, key, at_least, timeout_s
        )

    async def call_service(
        self,
        service: str,
        stream: str,
        command: bytes,
        *,
        partition: int | None = None,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        message_id: str = "",
        timeout_s: float = 5.0,
    ) -> service_commands.CommandAnswer:
        """Send a command to a replicated service and wait for its reply.

        The command is a record of the stream that the service reads. When this call returns, the command is committed
        and its outputs are written. The client sends the command again with the same message id until it is answered. A
        service that replies runs it once (limits: ``liftpy.core.services.replies``).

        Args:
            service: Name of the service.
            stream: Name of the stream that the service reads.
            command: Value of the record.
            partition: Partition to publish to. Default None: the partition of ``key``, or the only partition.
            key: Key of the record. Default None.
            headers: Headers of the record. Default None.
            message_id: Id for deduplication. Default '': a random one.
            timeout_s: Total time to wait, in seconds. Default 5.

        Returns:
            The reply, with the offset of the command and the node that answered.

        Raises:
            ConfigError: The stream has several partitions. Set ``partition`` or ``key``.
            CommandFailedError: The service skipped the command.
            PublishRejectedError: The command was not stored.
            UnavailableError: The command was not stored. No node accepted it in time.
            OutcomeUnknownError: No reply in time. The command may be stored. Call again with the same ``message_id``.

        Example:
            answer = await client.call_service("bank", "commands", b'{"do": "deposit", "amount": 5}')
            print(answer.value)
        """
        check_name(service, "service")
        check_name(stream, "stream")
        if partition is not None:
            place = partition
        elif key is not None:
            place = partition_of(key, len((await self.stream(stream)).partitions))
        else:
            place = _only_partition(await self._known(stream, 0))
        check_partition(place)

        async def find(refresh: bool) -> Address:
            return await self._address(stream, place, refresh=refresh)

        sent = service_commands.Command(service, stream, place, command, key, pairs_of(headers), message_id)
        return await service_commands.call(self._transport, find, sent, timeout_s)


_READY = "LEADER_READY"
_PLACED_POLL_S = 0.25


def connect(
    nats: str | Sequence[str] | NatsConnection = DEFAULT_URL,
    namespace: str = "liftpy",
    *,
    credentials: Credentials | None = None,
    name: str = "liftpy-client",
    timeout_s: float = 5.0,
    trace: bool | TracerProvider = False,
    **nats_options: Any,
) -> Opening[Client]:
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
    return Opening(_connect(nats, namespace, credentials, name, timeout_s, trace, nats_options))


async def _connect(
    nats: str | Sequence[str] | NatsConnection,
    namespace: str,
    credentials: Credentials | None,
    name: str,
    timeout_s: float,
    trace: bool | TracerProvider,
    nats_options: dict[str, Any],
) -> Client:
    making = making_of(trace)
    subjects = Subjects(namespace, principal=credentials.principal if credentials is not None else "")
    if isinstance(nats, NatsConnection):
        make_strict(nats)
        return Client(Transport(nats), subjects, owns_connection=False, making=making)
    connection = await open_connection(nats, credentials=credentials, name=name, timeout_s=timeout_s, **nats_options)
    return Client(Transport(connection), subjects, owns_connection=True, making=making)


class Client(RecordDeletionMixin, GroupsMixin, Internals, FeatureLevelsMixin, NodeViews, PauseMixin, Processing, ServiceCalls):
    """A connection to one liftpy cluster. Create it with ``liftpy.connect``.

    - Publish: ``publish`` (one message), ``publisher`` (many in flight), ``producer`` (each record once and in order).
    - Read: ``consume``, ``consume_many``, ``read_range``, ``bounds``, ``offset_at``.
    - Share work: ``group``, ``queue``, ``cursor``.
    - Call services: ``call_service``, ``query_service``.
    - Manage streams: ``create_stream``, ``alter_stream``, ``add_partitions``, ``delete_stream``, ``purge``,
      ``truncate_before``, ``pause``.
    - Manage the cluster: ``describe_cluster``, ``reassign``, ``elect_leader``, ``set_node``, ``change_controllers``.

    Use a Client only in the event loop that created it. Scripts without asyncio use ``liftpy.client.sync``.

    Args:
        transport: The NATS connection.
        subjects: The subjects of the namespace.
        owns_connection: True if ``close`` also closes the NATS connection.
        making: Factories that add traces. Default None: no traces.

    Example:
        async with liftpy.connect("nats://127.0.0.1:4222") as client:
            async for record in client.consume("orders", until="end"):
                print(record.offset, record.value)
    """

    def __init__(
        self, transport: Transport, subjects: Subjects, *, owns_connection: bool, making: ClientFactories | None = None
    ) -> None:
        self._transport = transport
        self._subjects = subjects
        self._owns_connection = owns_connection
        self._made_by = making or ClientFactories()
        self._admin = Admin(transport, subjects)
        self._streams: dict[str, StreamImage] = {}
        """Streams as the cluster last described them. Code that finds a description out of date requests it again."""
        self._closing: asyncio.Task[None] | None = None
        self._describing: dict[str, asyncio.Task[StreamImage]] = {}
        self._publishers: dict[tuple[str, int], Publisher] = {}
        self._making = asyncio.Lock()
        """Locks for creating publishers and data subjects. The first caller creates one, and concurrent callers share it."""

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
        if self._closing is None:
            publishers, self._publishers = list(self._publishers.values()), {}
            self._closing = asyncio.create_task(self._close(publishers), name="closing of a client")
        await asyncio.shield(self._closing)  # who is cancelled here leaves nothing half closed

    async def _close(self, publishers: list[Publisher]) -> None:
        try:
            await asyncio.gather(*(publisher.close() for publisher in publishers))
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
        return dict(self._transport.counters + self._transport.parse_errors + self._made_by.counters)

    # ---- administration ----------------------------------------------------------------------------------------------
    async def create_stream(
        self,
        name: str,
        subject: str,
        *,
        partitions: int = 1,
        replicas: int = 0,
        config: StreamConfig | None = None,
        placement: PlacementOptions | None = None,
        ready_s: float = 15.0,
        exist_ok: bool = False,
        first_leader_epoch: int = 0,
    ) -> StreamImage:
        """Create a stream for a NATS subject and wait until its leaders are ready.

        With too few nodes, the stream is created and waits for more nodes.

        Args:
            name: Name of the stream.
            subject: NATS subject whose messages the stream stores. Wildcards are allowed.
            partitions: Number of partitions. Default 1.
            replicas: Replicas per partition. Default 0: 3, or the number of live nodes if there are fewer.
            config: Settings of the stream. Default None: ``StreamConfig()``.
            placement: Placement policy, or an assignment by hand. Default None: the default policy.
            ready_s: Time to wait for the leaders, in seconds. Default 15. With 0 the call does not wait, and messages
                sent before a leader listens are lost.
            exist_ok: If True, accept an existing stream with the same subject, partitions, replicas and config. Default
                False.
            first_leader_epoch: Lowest LeaderEpoch that the cluster uses from now on, up to 2**48. Only a restore needs
                it. Default 0.

        Returns:
            The stream with its partitions and leaders.

        Raises:
            InvalidNameError: The name or the subject is not allowed.
            AlreadyExistsError: The name is taken. With ``exist_ok``, the text lists the differences.
            ConfigError: A setting is not allowed, or no node has room.
            UnavailableError: The metadata group did not answer. Or the stream was created, but its leaders were not
                ready within ``ready_s``.

        Example:
            config = liftpy.StreamConfig(retention_age_s=7 * 86_400)
            await client.create_stream("orders", "shop.orders", partitions=3, config=config, exist_ok=True)
        """
        try:
            stream = await self._admin.create_stream(
                name,
                subject,
                partitions=partitions,
                replicas=replicas,
                config=config,
                placement=placement,
                first_leader_epoch=first_leader_epoch,
            )
        except AlreadyExistsError:
            if not exist_ok:
                raise
            stream = await self._admin.stream(name, linearizable=True)
            differ = differences(stream, subject, partitions, replicas, config)
            if differ:
                raise AlreadyExistsError(
                    f"Stream {name} already exists with other settings: {'; '.join(differ)}. Choose another name, or "
                    "change the stream with `liftpy stream alter`."
                ) from None
        self._streams[name] = stream
        return await self.until_ready(stream, ready_s) if ready_s else stream

    async def until_ready(self, stream: StreamImage, ready_s: float = 15.0, first: int = 0) -> StreamImage:
        """Wait until the leaders of a stream accept messages.

        Args:
            stream: The stream, as ``create_stream`` or ``stream`` returned it.
            ready_s: Time limit in seconds. Default 15.
            first: Number of the first partition to wait for. Default 0: all partitions.

        Returns:
            The stream, described again if it had to wait for nodes.

        Raises:
            UnavailableError: The leaders were not ready in time, or there are too few nodes.
        """
        give_up_at = asyncio.get_running_loop().time() + ready_s
        while stream.waiting:
            left_s = give_up_at - asyncio.get_running_loop().time()
            if left_s <= 0:
                raise UnavailableError(
                    f"Stream {stream.name} was created but not placed ({INSUFFICIENT_NODES}). Start more nodes, or create "
                    "it with fewer replicas."
                )
            await asyncio.sleep(min(left_s, _PLACED_POLL_S))
            stream = self._streams[stream.name] = await self._admin.stream(stream.name)
        new = [partition.partition for partition in stream.partitions[first:] if partition.leader]
        await asyncio.gather(*(self._led(stream, number, ready_s) for number in new))
        return stream

    async def plan_stream(
        self,
        name: str,
        subject: str,
        *,
        partitions: int = 1,
        replicas: int = 0,
        config: StreamConfig | None = None,
        placement: PlacementOptions | None = None,
    ) -> PlacementPlan:
        """Show where ``create_stream`` would place the replicas. Create nothing.

        Args:
            name: Name of the stream.
            subject: NATS subject of the stream.
            partitions: Number of partitions. Default 1.
            replicas: Replicas per partition. Default 0: 3, or the number of live nodes if there are fewer.
            config: Settings of the stream. Default None: ``StreamConfig()``.
            placement: Placement policy, or an assignment by hand. Default None: the default policy.

        Returns:
            The planned replicas, and the load of each node.

        Raises:
            AlreadyExistsError: The name is taken.
            ConfigError: A setting is not allowed, or no node has room.
            UnavailableError: The metadata group did not answer in time.
        """
        return await self._admin.plan_stream(
            name, subject, partitions=partitions, replicas=replicas, config=config, placement=placement
        )

    async def add_partitions(
        self,
        name: str,
        partitions: int = 0,
        *,
        uid: str = "",
        placement: PlacementOptions | None = None,
        ready_s: float = 15.0,
    ) -> StreamImage:
        """Add partitions to a stream and wait until their leaders are ready.

        Existing partitions stay where they are. Records with a key may go to another partition than before.

        Args:
            name: Name of the stream.
            partitions: New total number of partitions. Default 0: as many as the assignment in ``placement`` makes.
            uid: Only if the stream has this uid. Default '': whatever stream has the name.
            placement: Placement policy, or an assignment by hand. Default None: the policy of the stream.
            ready_s: Time to wait for the new leaders, in seconds. Default 15. With 0 the call does not wait.

        Returns:
            The stream with its new partitions.

        Raises:
            NotFoundError: No such stream.
            ConfigError: Fewer partitions than before, or not enough nodes.
            UnavailableError: No answer in time, or the new leaders were not ready.

        Example:
            await client.add_partitions("orders", 6)
        """
        before = len((await self._describe(check_name(name, "stream"))).partitions)
        stream = await self._admin.add_partitions(name, partitions, uid=uid, placement=placement)
        self._streams[name] = stream
        return await self.until_ready(stream, ready_s, before) if ready_s else stream

    async def plan_partitions(
        self, name: str, partitions: int = 0, *, uid: str = "", placement: PlacementOptions | None = None
    ) -> PlacementPlan:
        """Show where ``add_partitions`` would place new partitions. Add nothing.

        Args:
            name: Name of the stream.
            partitions: New total number of partitions. Default 0: as many as the assignment in ``placement`` makes.
            uid: Only if the stream has this uid. Default '': whatever stream has the name.
            placement: Placement policy, or an assignment by hand. Default None: the policy of the stream.

        Returns:
            The planned replicas, and the load of each node.

        Raises:
            NotFoundError: No such stream.
            ConfigError: Fewer partitions than before, or not enough nodes.
            UnavailableError: The metadata group did not answer in time.
        """
        return await self._admin.plan_partitions(name, partitions, uid=uid, placement=placement)

    async def set_node(
        self, node_id: str, *, weight: float | None = None, rack: str | None = None, leaving: bool | None = None
    ) -> NodeImage:
        """Set the weight or rack of a node, or start to drain it.

        The values replace the node's own settings for future placement. A node that is leaving receives no new
        replicas, and its replicas move to other nodes.

        Args:
            node_id: Id of the node.
            weight: Share of replicas compared with other nodes. Default None: no change.
            rack: Name of the rack, '' for none. Default None: no change.
            leaving: True drains the node, False stops draining. Default None: no change.

        Returns:
            The node after the change.

        Raises:
            NotFoundError: No such node.
            ConfigError: A value is not allowed.
            UnavailableError: The metadata group did not answer in time.

        Example:
            await client.set_node("n3", leaving=True)
        """
        return await self._admin.set_node(node_id, weight=weight, rack=rack, leaving=leaving)

    async def reassign(self, stream: StreamImage, partition: int, replicas: Sequence[str] = ()) -> PartitionState:
        """Move the replicas of one partition to other nodes.

        Replicas move one at a time in the background. Each new replica copies the log before an old one is removed.

        Args:
            stream: The stream, as ``stream`` returned it.
            partition: Number of the partition.
            replicas: Target nodes, preferred leader first. Default (): cancel a reassignment. A replica that already
                finished its copy stays.

        Returns:
            The partition with its targets. The move is not finished yet.

        Raises:
            NotFoundError: No such stream, partition or node.
            ConfigError: The targets are not possible.
            UnavailableError: The metadata group did not answer in time.

        Example:
            stream = await client.stream("orders")
            await client.reassign(stream, 0, ["n2", "n3", "n4"])
        """
        return await self._admin.reassign(stream, partition, replicas)

    async def reassign_all(self, wishes: Iterable[ReplicaMove]) -> list[str]:
        """Move the replicas of many partitions to other nodes.

        The client sends the requests in batches. If the call fails, the requests that were accepted so far stay in
        effect.

        Args:
            wishes: One ``ReplicaMove`` per partition.

        Returns:
            One text for each rejected request: partition and reason.

        Raises:
            UnavailableError: The metadata group did not answer in time.
        """
        return await self._admin.reassign_all(wishes)

    async def alter_stream(
        self, /, name: str, replication_factor: int = 0, *, uid: str = "", dry_run: bool = False, **settings: Any
    ) -> StreamImage:
        """Change the settings or the number of replicas of a stream.

        Settings take effect as soon as the nodes learn of them. New replicas are added, and surplus ones removed, one
        at a time.

        Args:
            name: Name of the stream.
            replication_factor: New number of replicas per partition. Default 0: no change.
            uid: Only if the stream has this uid. Default '': whatever stream has the name.
            dry_run: If True, only return the result and change nothing. Default False.
            **settings: New values of StreamConfig fields. Allowed are the fields in ``liftpy.config.ALTERABLE``.

        Returns:
            The stream after the change.

        Raises:
            NotFoundError: No such stream.
            ConfigError: Not enough nodes, or a setting is wrong or cannot be changed.
            UnavailableError: The metadata group did not answer in time.

        Example:
            await client.alter_stream("orders", retention_age_s=86_400, read_only=True)
        """
        return await self._admin.alter_stream(name, replication_factor, uid=uid, dry_run=dry_run, **settings)

    async def change_controllers(self, *, add: str = "", remove: str = "") -> str:
        """Add, remove or replace a controller of the metadata group.

        A new controller first receives the log. It votes after it has caught up. The change continues in the
        background. ``describe_cluster`` shows its progress.

        Args:
            add: Id of the node that becomes a controller. Default '': none.
            remove: Id of the controller to remove. Default '': none. With ``add``, the new node replaces it.

        Returns:
            A sentence that says what was decided.

        Raises:
            NotFoundError: No such node or controller.
            AlreadyExistsError: The node is a controller already, or another change is in progress.
            ConfigError: The change would leave no live majority, or too many or no controllers.
            UnavailableError: The metadata group did not answer in time.

        Example:
            print(await client.change_controllers(add="n4", remove="n1"))
        """
        return await self._admin.change_controllers(add=add, remove=remove)

    async def reset_node(self, node_id: str, *, weight: bool = False, rack: bool = False) -> NodeImage:
        """Reset the weight or rack of a node to the value in its own settings.

        The node's settings apply from its next start.

        Args:
            node_id: Id of the node.
            weight: If True, reset the weight. Default False.
            rack: If True, reset the rack. Default False.

        Returns:
            The node after the change.

        Raises:
            NotFoundError: No such node.
            UnavailableError: The metadata group did not answer in time.
        """
        return await self._admin.reset_node(node_id, weight=weight, rack=rack)

    async def _led(self, stream: StreamImage, partition: int, ready_s: float) -> None:
        """Wait until the leader accepts messages, by its own answer, or by that of its node to clients without read
        permissions."""
        try:
            options = ReadOptions(patience_s=ready_s, answer_timeout_s=1.0)
            await self._reader(stream.name, partition, options).bounds(stream.uid)
        except NotAllowedError:
            await self._led_as_nodes_say(stream, partition, ready_s)

    async def _led_as_nodes_say(self, stream: StreamImage, partition: int, ready_s: float) -> None:
        before = json.dumps({"after": [stream.name, partition - 1]}).encode()
        async for attempt in retrying(ready_s):
            with attempt:
                page = await self._status_page(stream.partitions[partition].leader, before, 1.0)
                said: dict[str, Any] = next(
                    (p for p in page.get("partitions", []) if (p["uid"], p["partition"]) == (stream.uid, partition)), {}
                )
                if said.get("phase") != _READY:
                    raise UnavailableError(
                        f"Node {stream.partitions[partition].leader} is not yet ready as leader of {stream.name}/{partition}. "
                        "Retry later, or check `liftpy status`."
                    )

    async def delete_stream(self, name: str, uid: str = "") -> None:
        """Delete a stream and all its records permanently.

        Args:
            name: Name of the stream.
            uid: Only if the stream has this uid. Default '': whatever stream has the name.

        Raises:
            NotFoundError: No such stream, or another uid.
            NotAllowedError: This user may not change streams.
            UnavailableError: The metadata group did not answer in time.

        Example:
            await client.delete_stream("orders")
        """
        await self._admin.delete_stream(name, uid)
        self._streams.pop(name, None)

    async def list_streams(self, *, internal: bool = False) -> list[StreamImage]:
        """Return all streams with their partitions, replicas, ISR and leaders.

        Args:
            internal: If True, include the internal streams of the cluster. Default False.

        Returns:
            The streams, sorted by name.

        Raises:
            UnavailableError: The metadata group did not answer in time.

        Example:
            for stream in await client.list_streams():
                print(stream.name, len(stream.partitions))
        """
        return [found for found in (await self._admin.describe()).streams() if internal or not is_internal(found.name)]

    async def stream(self, name: str) -> StreamImage:
        """Return one stream with its partitions, replicas, ISR and leaders.

        Args:
            name: Name of the stream.

        Returns:
            The stream.

        Raises:
            NotFoundError: No such stream.
            UnavailableError: The metadata group did not answer in time.

        Example:
            stream = await client.stream("orders")
            print(stream.partitions[0].leader)
        """
        found = self._streams[name] = await self._admin.stream(check_name(name, "stream"))
        return found

    async def elect_leader(
        self, stream: str, partition: int = 0, node_id: str = "", *, unclean: bool = False
    ) -> PartitionState:
        """Move the leadership of a partition, or elect a leader of an Offline one.

        WARNING: ``unclean=True`` may lose committed records. Use it only if no in-sync replica can come back.

        Args:
            stream: Name of the stream.
            partition: Number of the partition. Default 0.
            node_id: Id of the new leader. Default '': the preferred leader.
            unclean: If True, an Offline partition may get a leader that lacks committed records. These records are
                lost. Default False.

        Returns:
            The partition after the decision. The new leader may not be active yet.

        Raises:
            NotFoundError: No such stream, partition or node.
            ConfigError: The election is not possible now. The text says why.
            StaleRequestError: The partition changed at the same time.
            UnavailableError: The metadata group did not answer in time.

        Example:
            await client.elect_leader("orders", 0, "n2")
        """
        return await self._admin.elect_leader(await self.stream(stream), partition, node_id, unclean=unclean)

    async def remove_node(self, node_id: str) -> None:
        """Remove a stopped node that holds no replicas from the cluster.

        If the node starts again, it registers again. A controller stays in the metadata group until you call
        ``change_controllers``.

        Args:
            node_id: Id of the node.

        Raises:
            NotFoundError: No such node.
            ConfigError: The node still runs or holds replicas.
            UnavailableError: The metadata group did not answer in time.
        """
        await self._admin.remove_node(node_id)

    async def describe_cluster(self, *, linearizable: bool = False) -> ClusterState:
        """Return the nodes, the streams and the controllers of the cluster.

        Args:
            linearizable: If True, the answer contains every change that was committed before this call. Default False:
                the state that the metadata leader last applied.

        Returns:
            The state of the cluster.

        Raises:
            UnavailableError: The metadata group did not answer in time.

        Example:
            state = await client.describe_cluster()
            print(state.metadata_leader, sorted(state.image.nodes))
        """
        return await self._admin.describe(linearizable=linearizable)

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
        wanted = Filter(tuple(subjects), tuple(keys))
        if start == "":  # the offset 0 is one
            start = "new" if backwards else "earliest"
        reader = self._reader(stream, partition, options)
        return self._made_by.consumer(reader, start, until, after_epoch, wanted=wanted, backwards=backwards)

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
        and new streams that match a pattern, while it runs.

        Args:
            *names: Stream names, or patterns such as ``orders-*``.
            start: Where to start, as in ``consume``. Default ``earliest``. Partitions that appear later start at their
                first record.
            until: Where to stop, as in ``consume``. Default None: follow forever.
            positions: Positions of an earlier consumer. ``positions_from`` reads their text. ``start`` applies to the
                other partitions. Default None.
            subjects: Only records of these subjects. Default: all.
            keys: Only records with these keys. Default: all.
            options: Timeouts, read-ahead and choice of replica. Default: ``ReadOptions()``.

        Returns:
            The consumer. Use it with ``async with``.

        Raises:
            ConfigError: An argument is not allowed, or there are more than 4096 partitions.
            NotFoundError: On reading: a stream that you named does not exist.

        Example:
            async with client.consume_many("orders", "pay-*", until="end") as many:
                async for stream, partition, record in many:
                    print(stream, partition, record.value)
        """

        Filter(tuple(subjects), tuple(keys))  # what can't be asked for is said here, not by a task later
        begin_at = _resolved(start, datetime.now(UTC))
        checked_until(until)

        def made(place: Place, begin: Start, ahead_bytes: int) -> Consumer:
            bounded = bounded_ahead(options or ReadOptions(), ahead_bytes)
            return self.consume(*place, start=begin, until=until, subjects=subjects, keys=keys, options=bounded)

        async def places() -> list[Place]:
            return [(stream.name, p.partition) for stream in await self.list_streams(internal=True) for p in stream.partitions]

        return ManyConsumer(Places(places, made), names, begin_at, positions)

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
        start_offset = positions.check_offset(start_offset, "start_offset")
        end_offset = positions.check_offset(end_offset, "end_offset")
        if start_offset > end_offset:
            raise ConfigError(f"Invalid range {start_offset}..{end_offset}. Use 0 <= start_offset <= end_offset.")
        progress = ReadProgress(stream, partition, start_offset, end_offset, uid=uid, floor_high_watermark=end_offset - 1)
        progress.moves_end = not exact
        return read_range(self._reader(stream, partition, options), progress, self._made_by.handing_on(stream, partition))

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
        return (await self._reader(stream, partition, options).bounds())[0]

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
        return (await self._reader(stream, partition, options).bounds(at_ns=positions.timestamp_ns(moment, "moment")))[1]

    # ---- publishing --------------------------------------------------------------------------------------------------
    @overload
    async def publish(
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
    async def publish(
        self,
        stream: str,
        value: bytes | None,
        *,
        key: bytes | None = ...,
        headers: HeadersLike | None = ...,
        partition: int = ...,
        ack: Literal[AckPolicy.NONE],
        msg_id: str = ...,
        expected_last: int | None = ...,
        timeout_s: float | None = ...,
    ) -> None: ...

    @overload
    async def publish(
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
        found = self._publishers.get((stream, partition))
        if found is None:
            found = await self._own_publisher(stream, partition)
        return await found.publish(
            value, key=key, headers=headers, ack=ack, msg_id=msg_id, expected_last=expected_last, timeout_s=timeout_s
        )

    async def publisher(
        self, stream: str, partition: int = 0, *, subject: str = "", options: PublishOptions | None = None
    ) -> Publisher:
        """Open a publisher that keeps many messages in flight.

        Args:
            stream: Name of the stream.
            partition: Number of the partition. Default 0.
            subject: Subject to publish to. Needed if the stream's subject has wildcards, or if this user may not ask
                the metadata group. Default '': the subject of the stream.
            options: Window and timeouts. Default: ``PublishOptions()``.

        Returns:
            The publisher. Use it with ``async with``: leaving the block waits for all acks.

        Raises:
            NotFoundError: No such stream or partition.
            ConfigError: The subject has a wildcard, or does not belong to the stream.
            UnavailableError: The metadata group did not answer in time.

        Example:
            async with await client.publisher("orders") as publisher:
                for number in range(1000):
                    await publisher.send(b"%d" % number)
        """
        check_published(stream)
        check_partition(partition)
        if subject:
            known = self._streams.get(stream)
            address = _address(subject) if known is None else _address_of(known, partition, subject)
        else:
            address = _address_of(await self._known(stream, partition), partition)

        async def find() -> Address:
            return _address_of(await self._described(stream), partition, subject)

        return self._made_by.publisher(self._transport, stream, partition, address, options or PublishOptions(), find=find)

    def producer(
        self,
        stream: str,
        *,
        id: str = "",
        options: ProducerOptions | None = None,
        partitioner: Partitioner = "key",
        source: Source | None = None,
    ) -> Opening[Producer]:
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
            UnavailableError: A leader did not answer within ``options.patience_s``.

        Example:
            async with client.producer("orders", id="till-7") as producer:
                await producer.send(b"one", key=b"k")
                await producer.send_many([b"two", b"three"])
        """
        return Opening(self._producer(stream, name_for(id, source), options or ProducerOptions(), partitioner, source))

    async def _producer(
        self, stream: str, name: str, options: ProducerOptions, how: Partitioner, of: Source | None
    ) -> Producer:
        known = await self._described(check_published(stream))
        addresses = [_address_of(known, partition.partition) for partition in known.partitions]
        check_answers(known)

        async def find(partition: int) -> Address:
            return _address_of(await self._described(stream), partition)

        read = None if of is None else of.position_in(await self._described(check_name(of.stream, "stream")))
        made = self._made_by.producer(self._transport, stream, name, addresses, options, how, find, read)
        await made.open()
        return made

    async def _address(self, stream: str, partition: int, *, refresh: bool) -> Address:
        return _address_of(await self._known(stream, partition, refresh=refresh), partition)

    async def _known(self, stream: str, partition: int, *, refresh: bool = False) -> StreamImage:
        known = self._streams.get(stream)
        if refresh or known is None or partition >= len(known.partitions):  # the partition may be new
            known = await self._described(stream)
        return known

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _reader(self, stream: str, partition: int, options: ReadOptions | None) -> PartitionReader:
        check_name(stream, "stream")
        check_partition(partition)

        chosen = options or ReadOptions()

        async def now() -> PartitionState:
            return _partition_of(await self._described(stream), partition)

        nearest = Nearest(chosen.near, now, self._admin.nodes_near) if chosen.near or chosen.nearest else None
        return self._made_by.reader(self._transport, self._subjects, stream, partition, chosen, now, nearest)

    async def _own_publisher(self, stream: str, partition: int) -> Publisher:
        """Publisher of ``publish``. Concurrent callers share one."""
        self._transport.must_be_usable()
        async with self._making:
            found = self._publishers.get((stream, partition))
            if found is None:
                found = self._publishers[stream, partition] = await self.publisher(
                    stream, partition, options=PublishOptions(message_ids=True)
                )
            return found

    async def _described(self, stream: str) -> StreamImage:
        """Return the current stream.

        Simultaneous callers share one request. Raises NotFoundError and the errors of requests.
        """
        asking = self._describing.get(stream)
        if asking is None:
            asking = self._describing[stream] = asyncio.create_task(self._describe(stream), name=f"describe {stream}")
            asking.add_done_callback(lambda done: self._describing.pop(stream, None) and (done.cancelled() or done.exception()))
        return await asyncio.shield(asking)

    async def _describe(self, stream: str) -> StreamImage:
        self._streams.pop(stream, None)
        try:
            found = await self._admin.stream(stream)
        except NotFoundError:  # a leader that was deposed and does not know may be behind
            found = await self._admin.stream(stream, linearizable=True)
        self._streams[stream] = found
        return found


def _partition_of(stream: StreamImage, partition: int) -> PartitionState:
    if stream.waiting:
        raise UnavailableError(f"Stream {stream.name} is not placed ({INSUFFICIENT_NODES}). Start more nodes.")
    if partition >= len(stream.partitions):
        last = len(stream.partitions) - 1
        raise NotFoundError(f"Stream {stream.name} has no partition {partition}. Its partitions are 0 to {last}.")
    return stream.partitions[partition]


def _only_partition(stream: StreamImage) -> int:
    if len(stream.partitions) > 1:
        raise ConfigError(
            f"Stream {stream.name} has {len(stream.partitions)} partitions, and a service has its own state in each. Name the "
            "partition (partition=, --partition) or the key of the record (key=, --key)."
        )
    return 0


def _address(subject: str, uid: str = "", answers: bool = True, window_s: float = 0.0) -> Address:
    if any(token in ("*", ">") for token in subject.split(".")):
        raise ConfigError(f"Cannot publish on {subject}, because it has wildcards. Name one subject (subject=, --subject).")
    if not is_utf8(subject):
        raise ConfigError(f"Subject {shown(subject)} is not UTF-8 text. Use a subject of UTF-8 characters.")
    return Address(subject, uid, answers, window_s)


def _address_of(stream: StreamImage, partition: int, subject: str = "") -> Address:
    """Return the address of a partition, with ``subject`` if given."""
    _partition_of(stream, partition)
    own = data_subject(stream.subject, partition)
    if subject and not matcher(own)(subject):
        raise ConfigError(
            f"Subject {subject} does not belong to {stream.name}/{partition}, which stores {own}. Publish on a "
            f"subject that matches {own} (--subject, subject=)."
        )
    return _address(subject or own, stream.uid, stream.answers, stream.config.dedup_window_s)


# Compares an existing stream with a wanted one.


def differences(stream: StreamImage, subject: str, partitions: int, replicas: int, config: StreamConfig | None) -> list[str]:
    """Return the differences from the wanted stream for people, [] for none.

    ``replicas`` 0 and ``config`` None accept anything.
    """
    pairs: list[tuple[str, object, object]] = [
        ("subject", stream.subject, subject),
        ("partitions", stream.partition_count, partitions),
    ]
    if replicas:
        pairs.append(("replicas", stream.replica_count, replicas))
    if config is not None:
        pairs += [(f.name, getattr(stream.config, f.name), getattr(config, f.name)) for f in fields(config)]
    return [f"its {name} is {_shown(there)}, not {_shown(wanted)}" for name, there, wanted in pairs if there != wanted]


def _shown(value: object) -> str:
    return str(getattr(value, "value", value))
