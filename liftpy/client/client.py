"""``connect`` and ``Client``: the one object that an application holds; everything else is reached from it.

Giving up records of a partition: the oldest ones, or those of some subjects or keys; a part of ``liftpy.client.Client``.

How far that may go is asked of a replica; the wish is the metadata group's, which tells every replica.

What a Client knows of consumer groups; a part of ``liftpy.client.Client``.

What a Client has to do with internal streams: the cluster's own, whose names begin with ``_``.

Pausing: partitions that take no publishes for a while; their records stay, and are read.

The part of a Client that speaks to replicated services: queries and commands.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol, SupportsIndex, cast, overload

from nats.aio.client import Client as NatsConnection

from liftpy.client import positions, service_commands, service_queries
from liftpy.client.admin import Admin, ClusterState, FeatureLevelsMixin, MoveWish
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
from liftpy.client.placement_plans import PlacementPlan, PlacementWish
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
from liftpy.client.stream_diff import differences
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
    """What it needs of the Client."""

    _admin: Admin

    async def stream(self, name: str) -> StreamImage:
        """As it is now."""

    def _reader(self, stream: str, partition: int, options: ReadOptions | None) -> PartitionReader:
        """Of a partition."""

    def read_range(self, stream: str, partition: int, start_offset: int, end_offset: int, *, uid: str) -> Iteration[BatchSlice]:
        """The records of a range."""


class RecordDeletionMixin:
    """Mixed into Client."""

    async def truncate_before(
        self, stream: str, partition: int, before: SupportsIndex | datetime, *, dry_run: bool = False, uid: str = ""
    ) -> int:
        """Give up what is committed below an offset, or was stamped by the leader before a datetime: at once for readers, and on the
        disks as far as whole segments go. It holds on every replica, on those that are away now when they come back, and can't be
        taken back. The batch that ``before`` lies in stays whole. Returns the offset from which on records stay, the first of that
        batch; ``dry_run``: nothing is done. ``uid``: of the stream that is meant, not of one that was made under its name since.
        Who asks has to be allowed to read the stream too.

        Raises NotFoundError, OffsetOutOfRangeError (above HW + 1: what is not committed is nobody's to give up), ConfigError (no
        offset, a time outside 64-bit nanoseconds), UnavailableError.
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
        """Give up the committed records of some subjects (``*`` and ``>`` as NATS has them), or of some keys; of both: those that fit
        both. ``before``: only those below an offset, or stamped before a datetime; None: all that are committed now.

        Every replica drops them by itself when its housekeeping comes by (seconds), those that are away now when they come back, and
        what may have a message id when its dedup window is over; until then readers may meet them. It can't be taken back. Offsets
        stay: readers pass over the gaps. ``client.stream(name).partitions[p].purges`` shows what is under way. Returns the offset
        below which records go (exclusive); ``dry_run``: nothing is done. ``uid``: of the stream that is meant, not of one that was made
        under its name since. Who asks has to be allowed to read the stream too.

        Raises ConfigError (neither subjects nor keys, too many under way), InvalidNameError, NotFoundError, OffsetOutOfRangeError,
        UnavailableError.
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
    """Where the log starts once the records below ``offset`` are given up: batches stay whole."""
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
    """The offset that ``before`` means, exclusive, at most HW + 1, and the partition's bounds."""
    at_ns = timestamp_ns(before, "before") if isinstance(before, datetime) else None
    bounds, found = await reader.bounds(stream.uid, at_ns)
    if before is None:
        return bounds.end_offset, bounds
    offset = found if isinstance(before, datetime) else check_offset(before, "before")
    if not 0 <= offset <= bounds.end_offset:
        raise out_of_range(offset, bounds.log_start_offset, bounds.high_watermark)
    return offset, bounds


class GroupsMixin:
    """Mixed into Client."""

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
        """A member of the consumer group ``name``: ``async with client.group("bills", ["orders"]) as group: async for part in group``.

        ``streams``: names, or patterns with ``*``, which new streams join. ``instance``: a static identity; a process that comes back
        with it within the session goes on with its partitions. The hooks are told of partitions as they come and when they are gone;
        they are called between heartbeats and must not wait. Raises NotFoundError (no such stream), ConfigError, UnavailableError.
        """
        made = Group(cast("GroupHome", self), name, streams, instance, options or GroupOptions(), on_assigned, on_revoked)
        return Opening(made.open())

    def cursor(self, name: str, stream: str) -> Opening[Cursor]:
        """A named position in ``stream``, kept by the cluster: ``async with client.cursor("nightly", "orders") as cursor``, then
        ``fetch``, ``commit``, ``consume``. Who opens it holds it: commits of whoever did before are refused.

        Raises NotFoundError (no such stream, no stream of groups), GroupRefusedError (the name is a group's).
        """
        return Opening(Cursor(cast("CursorHome", self), name, stream).open())

    def queue(self, stream: str, group: str, *, options: QueueOptions | None = None) -> Opening[Queue]:
        """A worker of the work queue ``group`` over ``stream``: ``async with client.queue("jobs", "workers") as queue: async for job in
        queue: ...; await job.ack()``.

        Raises NotFoundError (no such stream), ConfigError, UnavailableError.
        """
        return Opening(Queue(cast("QueueHome", self), stream, group, options or QueueOptions()).open())


_PLACED_S = 10.0
_POLL_S = 0.25


class Internals:
    """Mixed into Client."""

    _admin: Admin

    async def stream(self, name: str) -> StreamImage:
        """As ``Client.stream``."""
        raise NotImplementedError

    def allow_internal(self) -> None:
        """From here on this client may make, change, cut and delete internal streams: without it that is refused. Nobody publishes to
        one, or finds one by a pattern that does not begin with ``_`` itself; they are read by name, as any other."""
        self._admin.internal = True

    async def groups_stream(self) -> StreamImage:
        """The stream of what members of groups and workers of queues say; made where it is not there yet, as the nodes' settings say
        (``groups_partitions``, ``groups_replicas``). Raises UnavailableError (also: there are not enough nodes), ConfigError."""
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
    """What a Client has of it."""

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
        """Have partitions (None: all) take no publishes until ``resume``. Who waits for an answer is refused (PublishRejectedError,
        PAUSED), plain messages are dropped and counted; what was taken before is committed and acknowledged, reading goes on.

        ``resume_on_publish``: until somebody publishes; the first publish is stored and acknowledged, a moment later than else.
        ``resume_all``: the same, and a publish to one partition resumes all of the stream that are paused so. Leaders know within
        milliseconds. Returns the stream as it is decided; pausing what is paused so changes nothing.
        Raises NotFoundError (no such stream, or partition: then none is paused), ConfigError, UnavailableError.
        """
        on_publish = Pause.UNTIL_PUBLISH_TO_ANY if resume_all else Pause.UNTIL_PUBLISH
        until = on_publish if resume_on_publish or resume_all else Pause.UNTIL_RESUMED
        return await self._admin.pause(stream, partitions, until, uid=uid)

    async def resume(self, stream: str, partitions: Iterable[int] | None = None, *, uid: str = "") -> StreamImage:
        """Have partitions (None: all) take publishes again, as soon as their leaders know: within milliseconds. Of what is not paused
        nothing is changed. Raises as ``pause`` does."""
        return await self._admin.pause(stream, partitions, Pause.NOT_PAUSED, uid=uid)


class ServiceCalls:
    """What a Client has of it."""

    _transport: Transport
    _subjects: Subjects

    async def stream(self, name: str) -> StreamImage:
        """The stream as the cluster knows it."""
        raise NotImplementedError

    async def _address(self, stream: str, partition: int, *, anew: bool) -> Address:
        """Where a partition is published to; ``anew``: as it is now, not as it was described last."""
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
        """What the ``on_query`` of a replicated service answers, on whichever node.

        The state holds every record that was committed before this call (linearizable); with ``at_least`` every record below that
        offset, and no leader has to be asked: the offset of a PublishAck + 1 shows what was published, 0 takes any state.
        A service over a stream of several partitions has a state for each: name ``partition``, or the ``key`` whose records the query
        is about. ``at_least`` is an offset in that partition.

        Raises QueryFailedError (what ``on_query`` raised), UnavailableError or QueryRefusedError when nobody answers in time,
        ConfigError when the service has several partitions and none is named.
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
        """Publish a command to the stream that ``service`` reads, and return what it replies: committed, and its outputs written.

        ``partition`` None: the partition that publishers choose for ``key``, 0 without a key.

        Sent again under one ``message_id`` (a random one by default) until it is answered: a service that replies carries it out
        once, within the bounds of ``liftpy.core.services.replies``. Raises CommandFailedError (it was passed over),
        PublishRejectedError
        (not stored), UnavailableError (not stored), OutcomeUnknownError (no answer in time: ask again under the same message id).
        """
        check_name(service, "service")
        check_name(stream, "stream")
        if partition is None:
            partition = 0 if key is None else partition_of(key, len((await self.stream(stream)).partitions))
        check_partition(partition)

        async def find(anew: bool) -> Address:
            return await self._address(stream, partition, anew=anew)

        sent = service_commands.Command(service, stream, partition, command, key, pairs_of(headers), message_id)
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
    """A Client of the cluster ``namespace`` on these NATS servers: ``async with connect(...) as client``, or ``await connect(...)`` and
    ``close`` at the end.

    ``nats``: URL(s), or a connected nats-py client, which then stays the caller's to close; it gets our
    parser (``liftpy.nats.parser``), because nats-py's lets a publisher choose the subscription. ``nats_options``: more arguments for
    ``nats.connect``. ``trace``: spans by OpenTelemetry's global provider of tracers, or by this one (``liftpy[trace]``).
    Raises UnavailableError when no server lets us in within ``timeout_s``, ConfigError for bad arguments.
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
    """Streams, consumers, publishers of one cluster over one NATS connection. Bound to the event loop that made it."""

    def __init__(
        self, transport: Transport, subjects: Subjects, *, owns_connection: bool, making: ClientFactories | None = None
    ) -> None:
        self._transport = transport
        self._subjects = subjects
        self._owns_connection = owns_connection
        self._made_by = making or ClientFactories()
        self._admin = Admin(transport, subjects)
        self._streams: dict[str, StreamImage] = {}
        """As they were last described; code that finds a description out of date asks for it again."""
        self._closing: asyncio.Task[None] | None = None
        self._describing: dict[str, asyncio.Task[StreamImage]] = {}
        self._publishers: dict[tuple[str, int], Publisher] = {}
        self._making = asyncio.Lock()
        """Of publishers and data subjects: the first of many who ask for the same makes it for all."""

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close publishers (what is in flight fails with OutcomeUnknownError) and the connection if it is ours.

        Whoever still reads, or waits to send, is told by ClientClosedError, at once, and so is every later call.
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
        """What it sends with; for this library's own parts."""
        return self._transport

    @property
    def counters(self) -> dict[str, int]:
        """What came and could not be used, by kind: damaged answers, batches that do not decompress, acks by somebody else, and what
        the connection left out. Nothing of it was handed on; what is there is worth a look at the nodes' logs."""
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
        placement: PlacementWish | None = None,
        ready_s: float = 15.0,
        exist_ok: bool = False,
        first_leader_epoch: int = 0,
    ) -> StreamImage:
        """Attach a new stream to ``subject`` and wait until its leaders take messages.

        ``replicas``: 0 means 3, or the number of live nodes if fewer. Where there are too few nodes the stream is made and waits for
        them. ``ready_s``: how long to wait for the leaders; 0: don't (a plain message sent before a leader listens is heard by nobody).
        ``exist_ok``: one that is there is as good, if its subject, partitions, ``replicas`` and ``config`` (where given) are these.
        ``first_leader_epoch``: the cluster gives no LeaderEpoch below this one from now on (up to 2**48); a restore needs it.
        Raises InvalidNameError, AlreadyExistsError (with ``exist_ok`` it names what differs), ConfigError, and UnavailableError (with
        ``ready_s``: the stream is made, its leaders are not there yet).
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
        """Wait until the leaders of the partitions from ``first`` on take messages; UnavailableError after ``ready_s`` seconds."""
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
        placement: PlacementWish | None = None,
    ) -> PlacementPlan:
        """Where ``create_stream`` would place it; nothing is done."""
        return await self._admin.plan_stream(
            name, subject, partitions=partitions, replicas=replicas, config=config, placement=placement
        )

    async def add_partitions(
        self,
        name: str,
        partitions: int = 0,
        *,
        uid: str = "",
        placement: PlacementWish | None = None,
        ready_s: float = 15.0,
    ) -> StreamImage:
        """Give a stream so many partitions, and wait for the leaders of the new ones; see ``Admin.add_partitions``."""
        before = len((await self._describe(name)).partitions)
        stream = await self._admin.add_partitions(name, partitions, uid=uid, placement=placement)
        self._streams[name] = stream
        return await self.until_ready(stream, ready_s, before) if ready_s else stream

    async def plan_partitions(
        self, name: str, partitions: int = 0, *, uid: str = "", placement: PlacementWish | None = None
    ) -> PlacementPlan:
        """Where ``add_partitions`` would place them; nothing is done."""
        return await self._admin.plan_partitions(name, partitions, uid=uid, placement=placement)

    async def set_node(
        self, node_id: str, *, weight: float | None = None, rack: str | None = None, leaving: bool | None = None
    ) -> NodeImage:
        """Say a node's weight or rack, or that it is leaving; see ``Admin.set_node``."""
        return await self._admin.set_node(node_id, weight=weight, rack=rack, leaving=leaving)

    async def reassign(self, stream: StreamImage, partition: int, replicas: Sequence[str] = ()) -> PartitionState:
        """Say where a partition's replicas are to be; see ``Admin.reassign``."""
        return await self._admin.reassign(stream, partition, replicas)

    async def reassign_all(self, wishes: Iterable[MoveWish]) -> list[str]:
        """The same of many partitions; see ``Admin.reassign_all``."""
        return await self._admin.reassign_all(wishes)

    async def alter_stream(
        self, /, name: str, replication_factor: int = 0, *, uid: str = "", dry_run: bool = False, **settings: Any
    ) -> StreamImage:
        """Another number of replicas, or other settings, as ``read_only=True``; see ``Admin.alter_stream``."""
        return await self._admin.alter_stream(name, replication_factor, uid=uid, dry_run=dry_run, **settings)

    async def change_controllers(self, *, add: str = "", remove: str = "") -> str:
        """Change who forms the metadata group; see ``Admin.change_controllers``."""
        return await self._admin.change_controllers(add=add, remove=remove)

    async def reset_node(self, node_id: str, *, weight: bool = False, rack: bool = False) -> NodeImage:
        """Take that back; see ``Admin.reset_node``."""
        return await self._admin.reset_node(node_id, weight=weight, rack=rack)

    async def _led(self, stream: StreamImage, partition: int, ready_s: float) -> None:
        """Return when its leader takes messages, as it says itself, or as its node tells clients that may not read."""
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
        """Delete a stream and its records for good; with ``uid`` only that incarnation of it. Raises NotFoundError."""
        await self._admin.delete_stream(name, uid)
        self._streams.pop(name, None)

    async def list_streams(self, *, internal: bool = False) -> list[StreamImage]:
        """All streams with partitions, replicas, ISR and leaders, by name; ``internal``: the cluster's own, too."""
        return [found for found in (await self._admin.describe()).streams() if internal or not is_internal(found.name)]

    async def stream(self, name: str) -> StreamImage:
        """One stream; raises NotFoundError."""
        found = self._streams[name] = await self._admin.stream(check_name(name, "stream"))
        return found

    async def elect_leader(
        self, stream: str, partition: int = 0, node_id: str = "", *, unclean: bool = False
    ) -> PartitionState:
        """Move a partition's leadership, or elect a leader of an offline partition.

        Warning: ``unclean=True`` can LOSE committed and acknowledged records permanently.

        Args:
            stream: Name of the stream.
            partition: Number of the partition.
            node_id: Replica that becomes leader. '' means the preferred leader, or the best replica of an offline partition.
            unclean: Whether a replica that may lack committed records is allowed. Only for an offline partition. Use it only if no
                replica with all committed records can be started again.

        Returns:
            The partition as it was decided. The new leader may not be ready yet.

        Raises:
            NotFoundError: The stream or the partition does not exist.
            ConfigError: The election is not possible. The text says why.
            StaleRequestError: The partition changed during the request. Retry.
            UnavailableError: The metadata group does not answer. Retry.
        """
        return await self._admin.elect_leader(await self.stream(stream), partition, node_id, unclean=unclean)

    async def remove_node(self, node_id: str) -> None:
        """Forget a node that has stopped and holds no replica; see ``Admin.remove_node``."""
        await self._admin.remove_node(node_id)

    async def describe_cluster(self, *, linearizable: bool = False) -> ClusterState:
        """Nodes, streams, metadata leader and its group; ``linearizable``: certainly as of now, behind a barrier."""
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
        """Read committed records: ``async for record in client.consume("orders"): ...`` or ``.batches()``.

        ``start``: ``earliest``, ``latest`` (the last committed record), ``new`` (after it), an offset (inclusive), a datetime, a
        timedelta or ``-10m`` (so long ago), ``-1000`` (so many before the end), a Position or its text (``liftpy.client.positions``).
        Default: ``earliest``, ``backwards`` the end. ``subjects`` (with wildcards), ``keys``: only records that fit one of them, both
        where both are given; the others are not sent. ``backwards``: the newest first, down to ``until``, or the log start.
        ``until``: ``end`` (what is committed now; in a compacted stream also what superseded some of it while it was read),
        the last offset wanted (inclusive), a datetime (records that the leader stamped
        before it; one to come is waited for, by this machine's clock), None (follow). ``after_epoch``: to go on after
        a record that was read earlier, its ``leader_epoch``, with ``start`` the offset after it. Iterating raises
        OffsetOutOfRangeError (retention, or past the end: never a silent reset), LogTruncatedError (records that were read are
        gone, by an unclean election), NotFoundError (deleted and made again), UnavailableError (nobody answered for
        ``options.patience_s``).
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
        """All partitions of some streams as one: names, or patterns as ``orders-*``, whose streams may come while it is read.

        ``async with client.consume_many("orders", "pay-*") as many: async for stream, partition, record in many: ...``, or
        ``many.batches()``. ``positions``: of an earlier one, ``positions_from`` its text; ``start`` is for the other partitions.
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
        """Exactly the records ``start_offset`` (inclusive) to ``end_offset`` (exclusive), which must be committed already.

        Only replicas whose HW covers the range answer, so that a range planned once reads the same every time [R5]; what
        can't be given whole is an error, never a short success. ``uid``: refuse a stream that was made again.

        In a compacted stream a record of the range may be gone because a later one, past ``end_offset``, superseded it. Then the range
        grows to where compaction has looked, so that no key is missing [R11]. ``exact``: it does not grow.
        """
        start_offset = positions.check_offset(start_offset, "start_offset")
        end_offset = positions.check_offset(end_offset, "end_offset")
        if start_offset > end_offset:
            raise ConfigError(f"Invalid range {start_offset}..{end_offset}. Use 0 <= start_offset <= end_offset.")
        progress = ReadProgress(stream, partition, start_offset, end_offset, uid=uid, floor_high_watermark=end_offset - 1)
        progress.moves_end = not exact
        return read_range(self._reader(stream, partition, options), progress, self._made_by.handing_on(stream, partition))

    async def bounds(self, stream: str, partition: int = 0, *, options: ReadOptions | None = None) -> Bounds:
        """Log start, HW and leader of a partition, as its leader says. Raises UnavailableError when nobody serves it."""
        return (await self._reader(stream, partition, options).bounds())[0]

    async def offset_at(self, stream: str, partition: int, moment: Any, *, options: ReadOptions | None = None) -> int:
        """Offset of the first record stamped at or after ``moment`` (a datetime, or ns since 1970), or HW + 1. Raises ConfigError for
        what is no time of 64-bit nanoseconds (years 1678 to 2261)."""
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
        """Publish one message and wait until it is committed (ALL), flushed on the leader (LEADER), or not at all (NONE: None).

        ``value`` None: a tombstone, by which compaction deletes ``key``. ``msg_id``: within the stream's window an id is stored once;
        by default a new one, under which this client sends the message again when no answer comes. ``expected_last``: store it only
        behind the record of this offset, -1: as the first. ``timeout_s``: the whole patience, default 30 s.
        Raises PublishRejectedError (not stored, ``reason``), UnavailableError (not stored), OutcomeUnknownError (no ack came; under its
        ``message_id`` it can be sent again). For more than a few messages use ``publisher()``: it keeps many in flight.
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
        """A Publisher with many messages in flight: ``async with await client.publisher("orders") as p: await p.send(...)``.

        ``subject``: publish there without asking the metadata group first, for those who may not, or where the stream's subject
        has wildcards. Raises NotFoundError (also: no such partition), ConfigError (a wildcard, or not of the stream: said
        here where this client knows the stream, else by the first publish that nobody takes), UnavailableError.
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
        """Many records, each once and in order: ``async with client.producer("orders", id="till-7") as p: await p.send(...)``.

        ``id``: under which another process goes on, fencing this one; '': one of its own. ``source``: what its records are made from
        (``begin_after``, ``positions``), one id for each partition of it. Raises NotFoundError, ConfigError, UnavailableError.
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

    async def _address(self, stream: str, partition: int, *, anew: bool) -> Address:
        return _address_of(await self._known(stream, partition, anew=anew), partition)

    async def _known(self, stream: str, partition: int, *, anew: bool = False) -> StreamImage:
        known = self._streams.get(stream)
        if anew or known is None or partition >= len(known.partitions):  # it may have been added meanwhile
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
        """The one publisher of ``publish``; however many ask for it at once, one is made."""
        self._transport.must_be_usable()
        async with self._making:
            found = self._publishers.get((stream, partition))
            if found is None:
                found = self._publishers[stream, partition] = await self.publisher(
                    stream, partition, options=PublishOptions(message_ids=True)
                )
            return found

    async def _described(self, stream: str) -> StreamImage:
        """The stream as it is now; those who ask at the same time ask once. Raises NotFoundError, and as requests do."""
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


def _address(subject: str, uid: str = "", answers: bool = True, window_s: float = 0.0) -> Address:
    if any(token in ("*", ">") for token in subject.split(".")):
        raise ConfigError(f"Cannot publish on {subject}, because it has wildcards. Name one subject (subject=, --subject).")
    if not is_utf8(subject):
        raise ConfigError(f"Subject {shown(subject)} is not UTF-8 text. Use a subject of UTF-8 characters.")
    return Address(subject, uid, answers, window_s)


def _address_of(stream: StreamImage, partition: int, subject: str = "") -> Address:
    """Of a partition; on ``subject`` where one was named."""
    _partition_of(stream, partition)
    own = data_subject(stream.subject, partition)
    if subject and not matcher(own)(subject):
        raise ConfigError(
            f"Subject {subject} does not belong to {stream.name}/{partition}, which stores {own}. Publish on a "
            f"subject that matches {own} (--subject, subject=)."
        )
    return _address(subject or own, stream.uid, stream.answers, stream.config.dedup_window_s)
