"""``Admin``: manage streams, placement, elections, controllers, quotas and session times. ``client.admin`` is one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, SupportsIndex

from liftpy.client.admin_requests import NodeRequests
from liftpy.client.arguments import MAX_INT32, check_count, check_number, check_offset, check_partition
from liftpy.client.consumer import PartitionReader, ReadOptions, filter_of
from liftpy.client.placement_plans import PlacementOptions, PlacementPlan, plan_from_pb
from liftpy.client.positions import Bounds, out_of_range, timestamp_ns
from liftpy.client.progress import ReadProgress
from liftpy.client.retrying import retry_attempts
from liftpy.client.stream_directory import StreamDirectory
from liftpy.client.stream_info import PartitionInfo, StreamInfo
from liftpy.config import (
    ALTERABLE,
    MAX_SESSION_MS,
    MIN_LEASE_MS,
    MIN_SESSION_MS,
    DefaultQuota,
    ReplicationConfig,
    SessionTimes,
    StreamConfig,
)
from liftpy.core.base.ids import check_data_subject, check_name, check_new_stream, check_uid, is_internal, is_utf8, quote
from liftpy.core.base.partition import MoveReason, Pause
from liftpy.core.metadata import codec
from liftpy.core.metadata.codec import CONFIG, QUOTA, TIMES
from liftpy.core.metadata.features import FeatureLevels, level_range_in
from liftpy.core.metadata.image import INSUFFICIENT_NODES, NodeImage, StreamImage
from liftpy.core.metadata.request_limits import MAX_BATCH_BYTES, MAX_REQUEST_BYTES, SENT_TOGETHER
from liftpy.core.wire._pb import cluster_pb2
from liftpy.errors import (
    AlreadyExistsError,
    ConfigError,
    NotAllowedError,
    NotFoundError,
    OffsetOutOfRangeError,
    ProtocolError,
    TooFewNodesError,
    UnavailableError,
)
from liftpy.renamed import SETTINGS

_Error = cluster_pb2.ControlResponse.Error
DEFAULT_REPLICAS = 3
"""Default number of replicas per partition. A cluster with fewer live nodes uses the number of live nodes."""
_LIVE_S, _LIVE_AGAIN_S = 5.0, 0.25
"""How long a change retries while nodes are fenced, and the interval of the attempts, both in seconds."""
_READY = "LEADER_READY"
_PLACED_POLL_S = 0.25
_REQUEST_BYTES = 1024
"""Bytes of a control request besides the replica lists. Request and lists must fit into one NATS message."""
_ITEM_BYTES = 16
_MAX_READY_S = 3600
"""Maximum value of ``ready_s``, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMove:
    """A request to move the replicas of one partition.

    Args:
        stream: Name of the stream.
        uid: Uid of the stream.
        partition: Number of the partition.
        replicas: Target nodes, preferred leader first. Default (): cancel a reassignment. A replica that already
            finished its copy stays.
        reason: Why it moves, for events and status. Default: an operator asked for it.
    """

    stream: str
    uid: str
    partition: int
    replicas: tuple[str, ...] = ()
    reason: MoveReason = MoveReason.BY_HAND


def _check_size(request: cluster_pb2.CreateStream | cluster_pb2.AddPartitions, what: str) -> None:
    """Raise ConfigError if the replica lists in ``request`` are too large for one control request."""
    beyond_bytes = request.ByteSize() + _REQUEST_BYTES - MAX_REQUEST_BYTES
    if beyond_bytes <= 0 or not request.manual:
        return
    fitting = len(request.manual)
    while fitting and beyond_bytes > 0:
        fitting -= 1
        size_bytes = request.manual[fitting].ByteSize()
        beyond_bytes -= size_bytes + 2 + (size_bytes > 127)
    raise ConfigError(
        f"Cannot {what} with an assignment of {len(request.manual)} partitions: one request holds at most "
        f"{fitting} of them ({MAX_REQUEST_BYTES} bytes). Create the stream with the first partitions. Then "
        "add the others in steps with add_partitions (liftpy stream add-partitions --assignment)."
    )


def check_min_isr(config: StreamConfig, replicas: int) -> None:
    """Raise ConfigError if ``min_isr`` is greater than the number of replicas of a partition."""
    if config.min_isr > replicas:
        raise ConfigError(
            f"min_isr = {config.min_isr} (--min-isr) is more than the {replicas} replicas of a partition. "
            "Increase the replicas (--replicas) or decrease min_isr."
        )


class Admin(NodeRequests):
    """Streams, placement, nodes and settings of a cluster. ``client.admin`` is one.

    - Streams: ``create_stream``, ``stream``, ``list_streams``, ``alter_stream``, ``add_partitions``, ``delete_stream``.
    - Records: ``truncate_before``, ``purge``, ``pause``, ``resume``.
    - Partitions: ``elect_leader``, ``reassign``, ``reassign_all``.
    - Cluster: ``describe_cluster``, ``set_node``, ``change_controllers``, ``set_default_quota``, ``set_feature_level``.
    - Single nodes: ``node_status``, ``node_health``, ``node_settings``, ``reload_settings``.

    Each method raises UnavailableError if the metadata group or the node did not answer in time. It raises NotAllowedError
    if this user lacks the permission, and ProtocolError if the answer cannot be read.

    Example:
        await client.admin.alter_stream("orders", retention_age_s=86_400)
        print(await client.admin.node_ids())
    """

    def __init__(self, streams: StreamDirectory) -> None:
        super().__init__(streams.requests.transport, streams.requests.subjects, streams.requests)
        self._streams = streams

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
    ) -> StreamInfo:
        """Create a stream for a NATS subject and wait until its leaders are ready.

        With too few nodes, the stream is created and waits for more nodes.

        Args:
            name: Name of the stream.
            subject: NATS subject whose messages the stream stores. Wildcards are allowed.
            partitions: Number of partitions. Default 1.
            replicas: Replicas per partition. Default 0: 3, or the number of live nodes if there are fewer.
            config: Settings of the stream. Default None: ``StreamConfig()``.
            placement: Placement policy, or an assignment by hand. Default None: the default policy.
            ready_s: Time to wait for the leaders, in seconds (0 to 3,600). Default 15. With 0 the call does not wait, and
                messages sent before a leader listens are lost.
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
        check_number("ready_s", ready_s, 0, _MAX_READY_S)
        check_count("first_leader_epoch", first_leader_epoch)
        create = self._create(name, subject, partitions, replicas, config, placement or PlacementOptions())
        create.firstLeaderEpoch = first_leader_epoch
        try:
            stream = await self._metadata.whole(await self._metadata.command(cluster_pb2.ControlRequest(createStream=create)))
        except AlreadyExistsError:
            if not exist_ok:
                raise
            stream = await self._metadata.stream(name, linearizable=True)
            differ = differences(stream, subject, partitions, replicas, config)
            if differ:
                raise AlreadyExistsError(
                    f"Stream {name} already exists with other settings: {'; '.join(differ)}. Choose another name, or "
                    "change the stream with `liftpy stream alter`."
                ) from None
        self._streams.cached[name] = stream
        return await self._until_ready(stream, ready_s) if ready_s else StreamInfo.of(stream)

    async def until_ready(self, stream: StreamInfo, ready_s: float = 15.0, first: int = 0) -> StreamInfo:
        """Wait until the leaders of a stream accept messages.

        Args:
            stream: The stream, as ``create_stream`` or ``stream`` returned it.
            ready_s: Time limit in seconds (0 to 3,600). Default 15.
            first: Number of the first partition to wait for. Default 0: all partitions.

        Returns:
            The stream, described again if it had to wait for nodes.

        Raises:
            UnavailableError: The leaders were not ready in time, or there are too few nodes.
        """
        check_number("ready_s", ready_s, 0, _MAX_READY_S)
        check_partition(first)
        return await self._until_ready(stream.image, ready_s, first)

    async def _until_ready(self, stream: StreamImage, ready_s: float, first: int = 0) -> StreamInfo:
        """Wait until the leaders of the partitions from number ``first`` on accept messages, and return the stream."""
        give_up_at = asyncio.get_running_loop().time() + ready_s
        while stream.waiting:
            left_s = give_up_at - asyncio.get_running_loop().time()
            if left_s <= 0:
                raise UnavailableError(
                    f"Stream {stream.name} was created, but it has no replicas yet: the cluster has too few nodes "
                    f"({INSUFFICIENT_NODES}). Start more nodes, or delete the stream and create it with fewer "
                    "replicas."
                )
            await asyncio.sleep(min(left_s, _PLACED_POLL_S))
            stream = self._streams.cached[stream.name] = await self._metadata.stream(stream.name)
        new = [partition.partition for partition in stream.partitions[first:] if partition.leader]
        await asyncio.gather(*(self._wait_for_leader(stream, number, ready_s) for number in new))
        return StreamInfo.of(stream)

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
        """Return where ``create_stream`` would place the replicas, and the load of each node. Create nothing.

        The arguments and errors are those of ``create_stream``.
        """
        create = self._create(name, subject, partitions, replicas, config, placement or PlacementOptions())
        create.dryRun = True
        return await self._plan(cluster_pb2.ControlRequest(createStream=create))

    def _create(
        self, name: str, subject: str, partitions: int, replicas: int, config: StreamConfig | None, placement: PlacementOptions
    ) -> cluster_pb2.CreateStream:
        check_new_stream(name)
        check_data_subject(subject, self._metadata.subjects.namespace)
        check_count("partitions", partitions, 0, MAX_INT32)
        check_count("replicas", replicas, 0, MAX_INT32)
        if config is not None and not placement.allow_offline:  # a restore begins with one replica
            by_hand = [len(nodes) for _, nodes in placement.assignment]
            check_min_isr(config, min(by_hand, default=replicas or DEFAULT_REPLICAS))
        create = cluster_pb2.CreateStream(
            name=name,
            subject=subject,
            partitions=partitions,
            replicationFactor=replicas,
            config=CONFIG.to_pb(config or StreamConfig()),
            placement=placement.policy,
            manual=placement.lists(),
            allowOffline=placement.allow_offline,
            laterPlacement=placement.later_policy,
        )
        _check_size(create, f"create stream {name}")
        return create

    async def stream(self, name: str) -> StreamInfo:
        """Return one stream with its partitions, replicas, ISR and leaders.

        Args:
            name: Name of the stream.

        Raises:
            NotFoundError: No such stream.
            UnavailableError: The metadata group did not answer in time.

        Example:
            stream = await client.stream("orders")
            print(stream.partitions[0].leader)
        """
        return StreamInfo.of(await self._streams.stream(name))

    async def list_streams(self, *, internal: bool = False) -> list[StreamInfo]:
        """Return all streams, sorted by name, with their partitions, replicas, ISR and leaders.

        Args:
            internal: If True, include the internal streams of the cluster. Default False.
        """
        streams = await self._streams.list_streams()
        return [StreamInfo.of(stream) for stream in streams if internal or not is_internal(stream.name)]

    async def alter_stream(
        self,
        /,
        name: str,
        replication_factor: int = 0,
        *,
        uid: str = "",
        dry_run: bool = False,
        config_version: int | None = None,
        **settings: Any,
    ) -> StreamInfo:
        """Change the settings or the number of replicas of a stream.

        Settings take effect as soon as the nodes learn of them. New replicas are added, and surplus ones removed, one
        at a time.

        Args:
            name: Name of the stream.
            replication_factor: New number of replicas per partition. Default 0: no change.
            uid: Only if the stream has this uid. Default '': whatever stream has the name.
            dry_run: If True, only return the result and change nothing. Default False.
            config_version: Only if the stream has this config version. Default None: any.
            **settings: New values of StreamConfig fields. Allowed are the fields in ``liftpy.config.ALTERABLE``.

        Returns:
            The stream after the change.

        Raises:
            NotFoundError: No such stream.
            ConfigError: Not enough nodes, or a setting is wrong or cannot be changed.
            StaleRequestError: The stream has another config version.

        Example:
            await client.admin.alter_stream("orders", retention_age_s=86_400, read_only=True)
        """
        check_name(name, "stream")
        fixed = sorted(set(settings) - set(ALTERABLE))
        if fixed:
            if fixed[0] in SETTINGS:
                raise ConfigError(f"The setting {fixed[0]} was renamed. Use {SETTINGS[fixed[0]]}.")
            raise ConfigError(
                f"Cannot change {', '.join(fixed)} of an existing stream. You can change: {', '.join(ALTERABLE)}. For "
                "the others, create a new stream."
            )
        check_count("replicas", replication_factor, 0, MAX_INT32)
        alteration = cluster_pb2.AlterStream(
            name=name, uid=check_uid(uid), replicationFactor=replication_factor, dryRun=dry_run
        )
        if settings:
            alteration.config.CopyFrom(CONFIG.to_pb(StreamConfig(**settings)))
            alteration.changed.extend(CONFIG.wire_names[setting] for setting in sorted(settings))
        if config_version is not None:
            check_count("config_version", config_version)
            alteration.configVersion = config_version
        altered = await self._with_live_nodes(cluster_pb2.ControlRequest(alterStream=alteration))
        return StreamInfo.of(await self._metadata.whole(altered))

    async def add_partitions(
        self,
        name: str,
        partitions: int = 0,
        *,
        uid: str = "",
        placement: PlacementOptions | None = None,
        ready_s: float = 15.0,
    ) -> StreamInfo:
        """Add partitions to a stream and wait until their leaders are ready.

        Existing partitions stay where they are. Records with a key may go to another partition than before.

        Args:
            name: Name of the stream.
            partitions: New total number of partitions. Default 0: as many as the assignment in ``placement`` makes.
            uid: Only if the stream has this uid. Default '': whatever stream has the name.
            placement: Placement policy, or an assignment by hand. Default None: the policy of the stream.
            ready_s: Time to wait for the new leaders, in seconds (0 to 3,600). Default 15. With 0 the call does not wait.

        Returns:
            The stream with its new partitions.

        Raises:
            NotFoundError: No such stream.
            ConfigError: Fewer partitions than before, or not enough nodes.
            UnavailableError: No answer in time, or the new leaders were not ready.
        """
        check_number("ready_s", ready_s, 0, _MAX_READY_S)
        more = self._add_partitions_request(name, partitions, uid, placement or PlacementOptions())
        before = len((await self._streams.describe(name)).partitions) if ready_s else 0
        added = await self._with_live_nodes(cluster_pb2.ControlRequest(addPartitions=more))
        stream = self._streams.cached[name] = await self._metadata.whole(added)
        return await self._until_ready(stream, ready_s, before) if ready_s else StreamInfo.of(stream)

    async def plan_partitions(
        self, name: str, partitions: int = 0, *, uid: str = "", placement: PlacementOptions | None = None
    ) -> PlacementPlan:
        """Return where ``add_partitions`` would place the replicas, and the load of each node. Add nothing.

        The arguments and errors are those of ``add_partitions``.
        """
        more = self._add_partitions_request(name, partitions, uid, placement or PlacementOptions())
        more.dryRun = True
        return await self._plan(cluster_pb2.ControlRequest(addPartitions=more))

    def _add_partitions_request(
        self, name: str, partitions: int, uid: str, placement: PlacementOptions
    ) -> cluster_pb2.AddPartitions:
        check_name(name, "stream")
        check_count("partitions", partitions, 0, MAX_INT32)
        more = cluster_pb2.AddPartitions(
            name=name,
            uid=check_uid(uid),
            partitions=partitions,
            placement=placement.policy,
            manual=placement.lists(),
            allowOffline=placement.allow_offline,
        )
        _check_size(more, f"add partitions to stream {name}")
        return more

    async def _plan(self, request: cluster_pb2.ControlRequest) -> PlacementPlan:
        response = await self._metadata.command(request)
        if not response.HasField("plan"):
            raise ConfigError(response.detail or "The metadata group returned no plan. There is nothing to place.")
        try:
            return plan_from_pb(response.plan)
        except ValueError as error:
            raise ProtocolError(
                f"Cannot decode the plan from the metadata group: {error}. Check that nodes and client have "
                "compatible versions."
            ) from None

    async def delete_stream(self, name: str, uid: str = "") -> None:
        """Delete a stream and all its records permanently.

        Args:
            name: Name of the stream.
            uid: Only if the stream has this uid. Default '': whatever stream has the name.

        Raises:
            NotFoundError: No such stream, or another uid.

        Example:
            await client.admin.delete_stream("orders")
        """
        check_name(name, "stream")
        await self._metadata.command(
            cluster_pb2.ControlRequest(deleteStream=cluster_pb2.DeleteStream(name=name, uid=check_uid(uid)))
        )
        self._streams.cached.pop(name, None)

    async def truncate_before(
        self, stream: str, partition: int, before: SupportsIndex | datetime, *, dry_run: bool = False, uid: str = ""
    ) -> int:
        """Delete the committed records below an offset or before a time.

        Readers stop seeing the records at once. The deletion cannot be undone, and also applies to replicas that are
        offline now. The batch that contains ``before`` stays whole. The caller needs permission to read the stream.

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
            first = await client.admin.truncate_before("orders", 0, 1000)
        """
        stream_image = await self._stream_with(stream, uid)
        offset, bounds = await _until(self._streams.reader(stream, partition), stream_image, before)
        first = await self._batch_start(stream_image, partition, offset, bounds)
        if not dry_run and first > bounds.log_start_offset:
            request = cluster_pb2.TruncateBefore(
                stream=stream_image.name, uid=stream_image.uid, partition=partition, offset=offset
            )
            await self._metadata.command(cluster_pb2.ControlRequest(truncateBefore=request))
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
        cannot be undone. ``(await client.stream(name)).partitions[p].state.purges`` lists the purges in progress. The caller needs
        permission to read the stream.

        Args:
            stream: Name of the stream.
            partition: Number of the partition, from 0.
            subjects: Subjects to delete. NATS wildcards ``*`` and ``>`` are allowed. Default: none.
            keys: Record keys to delete. Default: none.
            before: Delete only below this offset, or before this datetime. Default None: everything that is committed
                now.
            dry_run: If True, only return the result and delete nothing. Default False.
            uid: Purge only if the stream has this uid. Default '': do not check the uid.

        Returns:
            The offset (exclusive) below which matching records are deleted.

        Raises:
            ConfigError: Neither subjects nor keys, or too many purges in progress.
            InvalidNameError: A subject is malformed.
            NotFoundError: No such stream or partition, or another uid.
            OffsetOutOfRangeError: ``before`` is above the high watermark + 1.
            UnavailableError: No leader or no metadata group answered in time.

        Example:
            await client.admin.purge("orders", 0, keys=[b"customer-17"])
        """
        wanted = filter_of(subjects, keys)
        if not wanted:
            raise ConfigError(
                "purge needs at least one subject or key. To delete all records below an offset, use truncate_before()."
            )
        stream_image = await self._stream_with(stream, uid)
        end_offset, _ = await _until(self._streams.reader(stream, partition), stream_image, before)
        if not dry_run and end_offset > 0:
            request = cluster_pb2.PurgeRecords(
                stream=stream_image.name,
                uid=stream_image.uid,
                partition=partition,
                subjects=wanted.subjects,
                keys=wanted.keys,
                endOffset=end_offset,
            )
            await self._metadata.command(cluster_pb2.ControlRequest(purgeRecords=request))
        return end_offset

    async def _stream_with(self, name: str, uid: str) -> StreamImage:
        """Return the stream. Raise NotFoundError if ``uid`` is given and the stream has another one."""
        stream = await self._streams.stream(name)
        if uid and stream.uid != uid:  # the answering controller may be behind
            stream = await self._streams.newest_stream(name)
        if uid and stream.uid != uid:
            raise NotFoundError(
                f"Stream {name} was deleted and created again: its uid is {stream.uid}, not {uid}. Check which of the "
                "two streams you mean."
            )
        return stream

    async def _batch_start(self, stream: StreamImage, partition: int, offset: int, bounds: Bounds) -> int:
        """Return the first offset that remains if the records below ``offset`` are deleted. Batches stay whole."""
        if offset <= bounds.log_start_offset:
            return bounds.log_start_offset
        if offset < bounds.end_offset:
            end = offset + 1
            progress = ReadProgress(
                stream.name, partition, offset, end, uid=stream.uid, floor_high_watermark=offset, moves_end=True
            )
            try:
                async for piece in self._streams.read(progress):
                    return max(min(piece.batch.base_offset, offset), bounds.log_start_offset)
            except OffsetOutOfRangeError:  # deleted by retention
                pass
        return offset

    async def pause(
        self,
        stream: str,
        partitions: Iterable[int] | None = None,
        *,
        resume_on_publish: bool = False,
        resume_all: bool = False,
        uid: str = "",
        config_version: int | None = None,
    ) -> StreamInfo:
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
            config_version: Only if the stream has this config version. Default None: any.

        Returns:
            The stream after the change.

        Raises:
            NotFoundError: No such stream or partition. No partition is paused then.
            ConfigError: ``partitions`` is empty or not valid.
            StaleRequestError: The stream has another config version.

        Example:
            await client.admin.pause("orders")
            await client.admin.resume("orders")
        """
        on_publish = Pause.UNTIL_PUBLISH_TO_ANY if resume_all else Pause.UNTIL_PUBLISH
        until = on_publish if resume_on_publish or resume_all else Pause.UNTIL_RESUMED
        return await self._pause(stream, partitions, until, uid, config_version)

    async def resume(self, stream: str, partitions: Iterable[int] | None = None, *, uid: str = "") -> StreamInfo:
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
        """
        return await self._pause(stream, partitions, Pause.NOT_PAUSED, uid, None)

    async def _pause(
        self, name: str, partitions: Iterable[int] | None, pause: Pause, uid: str, config_version: int | None
    ) -> StreamInfo:
        """Set the pause state of some partitions (None: all) and return the stream. ``Pause.NOT_PAUSED`` resumes them."""
        check_name(name, "stream")
        request = cluster_pb2.PausePartitions(stream=name, uid=check_uid(uid), pause=codec.pause_to_pb(pause))
        if partitions is not None:
            for number in partitions:
                check_partition(number)
                request.partitions.append(number)
            if not request.partitions:
                raise ConfigError("The list of partitions is empty. Name at least one partition, or pass None for all.")
        if config_version is not None:
            check_count("config_version", config_version)
            request.configVersion = config_version
        paused = await self._metadata.command(cluster_pb2.ControlRequest(pausePartitions=request))
        return StreamInfo.of(await self._metadata.whole(paused))

    async def elect_leader(
        self, stream: str, partition: int = 0, node_id: str = "", *, unclean: bool = False, uid: str = ""
    ) -> PartitionInfo:
        """Move the leadership of a partition, or elect a leader of an Offline one.

        WARNING: ``unclean=True`` may lose committed records. Use it only if no in-sync replica can come back.

        Args:
            stream: Name of the stream.
            partition: Number of the partition. Default 0.
            node_id: Id of the new leader. Default '': the preferred leader.
            unclean: If True, an Offline partition may get a leader that lacks committed records. These records are
                lost. Default False.
            uid: Only if the stream has this uid. Default '': whatever stream has the name.

        Returns:
            The partition after the decision. The new leader may not be active yet.

        Raises:
            NotFoundError: No such stream, partition or node.
            ConfigError: The election is not possible now. The text says why.
            StaleRequestError: The partition changed at the same time.

        Example:
            await client.admin.elect_leader("orders", 0, "n2")
        """
        if node_id:
            check_name(node_id, "node")
        check_name(stream, "stream")
        check_partition(partition)
        uid = check_uid(uid) or (await self._streams.stream(stream)).uid
        wish = cluster_pb2.ElectLeader(stream=stream, uid=uid, partition=partition, node=node_id, unclean=unclean)
        request = cluster_pb2.ControlRequest(electLeader=wish)
        return PartitionInfo.of(codec.PARTITION.from_pb((await self._metadata.command(request)).partition))

    async def reassign(self, stream: StreamInfo, partition: int, replicas: Sequence[str] = ()) -> PartitionInfo:
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

        Example:
            stream = await client.stream("orders")
            await client.admin.reassign(stream, 0, ["n2", "n3", "n4"])
        """
        check_partition(partition)
        for node_id in replicas:
            check_name(node_id, "node")
        request = cluster_pb2.Reassign(
            stream=stream.name, uid=stream.uid, partition=partition, replicas=replicas, cancel=not replicas
        )
        moved = await self._metadata.command(cluster_pb2.ControlRequest(reassign=request))
        return PartitionInfo.of(codec.PARTITION.from_pb(moved.partition))

    async def reassign_all(self, wishes: Iterable[ReplicaMove]) -> list[str]:
        """Move the replicas of many partitions to other nodes.

        The requests are sent in batches. If the call fails, the requests that were accepted so far stay in effect.

        Args:
            wishes: One ``ReplicaMove`` per partition.

        Returns:
            One text for each rejected request: partition and reason.
        """
        refused: list[str] = []
        for batch in _batches(wishes):
            requests = [cluster_pb2.BatchedRequest(number=number, request=one) for number, (_, one) in enumerate(batch)]
            response = await self._metadata.command(cluster_pb2.ControlRequest(batch=cluster_pb2.Batch(requests=requests)))
            answers = {answer.number: answer for answer in response.batch.answers}
            for number, (move, _) in enumerate(batch):
                answer = answers.get(number)
                if answer is None or answer.error != _Error.OK:
                    refused.append(f"{move.stream}/{move.partition}: {answer.detail if answer is not None else 'no answer'}")
        return refused

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
        """
        check_name(node_id, "node")
        request = cluster_pb2.SetNode(nodeId=node_id)
        if weight is not None:
            check_number("weight", weight)
            request.weight = weight
        if rack is not None:
            if not is_utf8(rack):
                raise ConfigError(f"Invalid rack {quote(rack)}. Use UTF-8 text.")
            request.rack = rack
        if leaving is not None:
            request.leaving = leaving
        return codec.NODE.from_pb((await self._metadata.command(cluster_pb2.ControlRequest(setNode=request))).node)

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
        """
        check_name(node_id, "node")
        request = cluster_pb2.SetNode(nodeId=node_id, weightAsItSays=weight, rackAsItSays=rack)
        return codec.NODE.from_pb((await self._metadata.command(cluster_pb2.ControlRequest(setNode=request))).node)

    async def remove_node(self, node_id: str) -> None:
        """Remove a stopped node that holds no replicas from the cluster.

        If the node starts again, it registers again. A controller stays in the metadata group until you call
        ``change_controllers``.

        Args:
            node_id: Id of the node.

        Raises:
            NotFoundError: No such node.
            ConfigError: The node still runs or holds replicas.
        """
        check_name(node_id, "node")
        await self._metadata.command(cluster_pb2.ControlRequest(removeNode=cluster_pb2.RemoveNode(nodeId=node_id)))

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

        Example:
            print(await client.admin.change_controllers(add="n4", remove="n1"))
        """
        for node_id in filter(None, (add, remove)):
            check_name(node_id, "node")
        if not add and not remove:
            raise ConfigError("Nothing to change. Name a node to add, a node to remove, or both.")
        change = cluster_pb2.ChangeControllers(node=add or remove, replaced=remove if add else "")
        change.what = (change.REPLACE if remove else change.ADD) if add else change.REMOVE
        return (await self._metadata.command(cluster_pb2.ControlRequest(changeControllers=change))).detail

    async def feature_levels(self, level: int = 0) -> FeatureLevels:
        """Return the feature level of the cluster and the levels that each node supports.

        Args:
            level: Also check whether this level can be finalized. Default 0: no check.

        Returns:
            The levels. ``reasons`` says why ``level`` cannot be finalized now.
        """
        check_count("level", level, 0, MAX_INT32)
        request = cluster_pb2.SetFeatureLevel(level=level, dryRun=True)
        levels = (await self._metadata.command(cluster_pb2.ControlRequest(setFeatureLevel=request))).levels
        ranges = {n.nodeId: level_range_in(n) if n.maxLevel else None for n in levels.nodes}
        return FeatureLevels(levels.level, ranges, {n.nodeId: n.version for n in levels.nodes}, tuple(levels.reasons))

    async def set_feature_level(self, level: int) -> str:
        """Finalize a feature level, or return to the previous one.

        Args:
            level: The level. All nodes must support it.

        Returns:
            A sentence that says what was decided.

        Raises:
            ConfigError: A node does not support the level. The text names it.
            StaleRequestError: A node registered at the same time. Retry.
        """
        check_count("level", level, 0, MAX_INT32)
        request = cluster_pb2.SetFeatureLevel(level=level)
        return (await self._metadata.command(cluster_pb2.ControlRequest(setFeatureLevel=request))).detail

    async def default_quota(self) -> DefaultQuota:
        """Return the quota of streams that have no quota of their own.

        All rates are 0 if there is none.
        """
        return QUOTA.from_pb((await self._metadata.summary()).image.defaultQuota)

    async def set_default_quota(
        self, *, records_per_s: int | None = None, bytes_per_s: int | None = None, by_token: int | None = None
    ) -> DefaultQuota:
        """Set the quota of streams that have no quota of their own.

        Args:
            records_per_s: Records per second and stream. Default None: no change. 0: no limit.
            bytes_per_s: Bytes per second and stream. Default None: no change. 0: no limit.
            by_token: Number of the subject token (from 1) whose values have separate quotas. Default None: no change.
                0: one quota per stream.

        Returns:
            The default quota after the change.

        Raises:
            ConfigError: A value is out of range, or the feature level of the cluster is below 4.
        """
        for name, value in (("records_per_s", records_per_s), ("bytes_per_s", bytes_per_s), ("by_token", by_token)):
            check_count(name, value or 0)
        # raises ConfigError for values outside the bounds
        DefaultQuota(records_per_s=records_per_s or 0, bytes_per_s=bytes_per_s or 0, by_token=by_token or 0)
        request = cluster_pb2.SetDefaultQuota()
        for name, value in (("recordsPerS", records_per_s), ("bytesPerS", bytes_per_s), ("byToken", by_token)):
            if value is not None:
                setattr(request, name, value)
        return QUOTA.from_pb((await self._metadata.command(cluster_pb2.ControlRequest(setDefaultQuota=request))).defaultQuota)

    async def session_times(self) -> SessionTimes | None:
        """Return the session and lease times of the cluster.

        None below feature level 5: then each node uses its own settings.
        """
        image = (await self._metadata.summary()).image
        return TIMES.from_pb(image.sessionTimes) if image.HasField("sessionTimes") else None

    async def set_session_times(self, *, session_s: float | None = None, lease_s: float | None = None) -> SessionTimes:
        """Change the session and lease times of the cluster while nodes run.

        Args:
            session_s: Time without a heartbeat after which a node is fenced, in seconds (0.1 to 3600). Default None: no
                change.
            lease_s: Time that a leader may serve without a heartbeat answer, in seconds (0.05 to 3600, below
                ``session_s``). Default None: no change.

        Returns:
            The times after the change. A further change must wait until this one is settled.

        Raises:
            ConfigError: The times are not allowed, or the feature level of the cluster is below 5.
            StaleRequestError: Another change is not settled, or came first.
        """
        for name, value, low_ms in (("session_s", session_s, MIN_SESSION_MS), ("lease_s", lease_s, MIN_LEASE_MS)):
            if value is not None:
                check_number(name, value, low_ms / 1000, MAX_SESSION_MS / 1000)
        current = await self.session_times() or ReplicationConfig().session_times
        request = cluster_pb2.SetSessionTimes(
            sessionMs=current.session_ms if session_s is None else round(session_s * 1000),
            leaseMs=current.lease_ms if lease_s is None else round(lease_s * 1000),
            change=current.change,
        )
        return TIMES.from_pb((await self._metadata.command(cluster_pb2.ControlRequest(setSessionTimes=request))).sessionTimes)

    def allow_internal(self) -> None:
        """Allow this client to create, change and delete internal streams.

        Internal streams belong to the cluster. Their names begin with ``_``. Without this call, requests to change them
        are rejected. Clients never publish to them. Every client may read them by name.
        """
        self._metadata.internal = True

    async def _with_live_nodes(self, request: cluster_pb2.ControlRequest) -> cluster_pb2.ControlResponse:
        """Send a change that needs live nodes, and return the answer.

        While there are too few live nodes, the change is retried for a short time. A fenced node usually registers again by then.
        """
        until_s = asyncio.get_running_loop().time() + min(_LIVE_S, self._metadata.deadline_s)
        are_live = False
        while True:
            try:
                return await self._metadata.command(request)
            except TooFewNodesError:
                if are_live or asyncio.get_running_loop().time() >= until_s:
                    raise
                # the fenced nodes may have registered since the request: try once more
                are_live = not any(node.fenced for node in await self._metadata.nodes())
            await asyncio.sleep(0 if are_live else _LIVE_AGAIN_S)

    async def _wait_for_leader(self, stream: StreamImage, partition: int, ready_s: float) -> None:
        """Ask the leader for its bounds. A client without read permissions asks the node of the leader for its status."""
        try:
            options = ReadOptions(patience_s=max(ready_s, 0.01), answer_timeout_s=1.0)
            await self._streams.reader(stream.name, partition, options).bounds(stream.uid)
        except NotAllowedError:
            await self._check_leader_status(stream, partition, ready_s)

    async def _check_leader_status(self, stream: StreamImage, partition: int, ready_s: float) -> None:
        before = json.dumps({"after": [stream.name, partition - 1]}).encode()
        async for attempt in retry_attempts(ready_s):
            with attempt:
                page = await self.ask_node(stream.partitions[partition].leader, before, 1.0)
                status: dict[str, Any] = next(
                    (p for p in page.get("partitions", []) if (p["uid"], p["partition"]) == (stream.uid, partition)), {}
                )
                if status.get("phase") != _READY:
                    raise UnavailableError(
                        f"Node {stream.partitions[partition].leader} is not yet ready as leader of {stream.name}/{partition}. "
                        "Retry later, or check `liftpy status`."
                    )


_MoveRequest = tuple[ReplicaMove, cluster_pb2.ControlRequest]


def _batches(moves: Iterable[ReplicaMove]) -> Iterator[list[_MoveRequest]]:
    """Divide the requests to move replicas into lists that are small enough for one metadata entry."""
    batch: list[_MoveRequest] = []
    size_bytes = 0
    for move in moves:
        request = cluster_pb2.ControlRequest(
            reassign=cluster_pb2.Reassign(
                stream=move.stream,
                uid=move.uid,
                partition=move.partition,
                replicas=move.replicas,
                cancel=not move.replicas,
                movedFor=codec.reason_to_pb(move.reason),
            )
        )
        cost_bytes = request.ByteSize() + _ITEM_BYTES
        if batch and (len(batch) == SENT_TOGETHER or size_bytes + cost_bytes > MAX_BATCH_BYTES):
            yield batch
            batch, size_bytes = [], 0
        batch.append((move, request))
        size_bytes += cost_bytes
    if batch:
        yield batch


async def _until(reader: PartitionReader, stream: StreamImage, before: SupportsIndex | datetime | None) -> tuple[int, Bounds]:
    """Return (exclusive end of a deletion, bounds of the partition).

    ``before``: an offset, a time, or None for all committed records. The end is at most the high watermark + 1.
    """
    at_ns = timestamp_ns(before, "before") if isinstance(before, datetime) else None
    bounds, time_offset = await reader.bounds(stream.uid, at_ns)
    if before is None:
        return bounds.end_offset, bounds
    offset = time_offset if isinstance(before, datetime) else check_offset(before, "before")
    if not 0 <= offset <= bounds.end_offset:
        raise out_of_range(f"{reader.stream}/{reader.partition}", offset, bounds.log_start_offset, bounds.high_watermark)
    return offset, bounds


def differences(stream: StreamImage, subject: str, partitions: int, replicas: int, config: StreamConfig | None) -> list[str]:
    """Return one text for each difference between a stream and the requested settings.

    Args:
        stream: The existing stream.
        subject: Requested subject.
        partitions: Requested number of partitions.
        replicas: Requested replicas per partition. 0: any.
        config: Requested settings. None: any.
    """
    pairs: list[tuple[str, object, object]] = [
        ("subject", stream.subject, subject),
        ("partitions", stream.partition_count, partitions),
    ]
    if replicas:
        pairs.append(("replicas", stream.replica_count, replicas))
    if config is not None:
        pairs += [(f.name, getattr(stream.config, f.name), getattr(config, f.name)) for f in fields(config)]
    return [
        f"its {name} is {_short_text(there)}, not {_short_text(wanted)}" for name, there, wanted in pairs if there != wanted
    ]


def _short_text(value: object) -> str:
    return str(getattr(value, "value", value))
