"""Administration requests: streams, placement, elections, controllers, quotas, session times.

Each change carries an operation id. ``Admin`` repeats a request with the same id until it is answered or the deadline
passes. The metadata group applies each id once, so a lost answer never creates two streams.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from liftpy.client.closest_replica import this_host
from liftpy.client.placement_plans import PlacementOptions, PlacementPlan, plan_from_pb
from liftpy.client.positions import check_partition
from liftpy.client.retrying import retrying
from liftpy.config import ALTERABLE, DefaultQuota, ReplicationConfig, SessionTimes, StreamConfig
from liftpy.core.base.ids import check_data_subject, check_name, check_new_stream, check_uid, is_utf8, shown
from liftpy.core.base.partition import MoveReason, PartitionState, Pause
from liftpy.core.base.renamed import SETTINGS
from liftpy.core.metadata import codec
from liftpy.core.metadata.codec import config_to_pb, quota_from_pb, times_from_pb, wire_name
from liftpy.core.metadata.describe import ClusterPages, StreamPages
from liftpy.core.metadata.feature_range import FeatureLevels, said
from liftpy.core.metadata.image import ClusterImage, NodeImage, StreamImage
from liftpy.core.metadata.request_limits import MAX_BATCH_BYTES, MAX_REQUEST_BYTES, SENT_TOGETHER
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import (
    AlreadyExistsError,
    ConfigError,
    FencedError,
    LiftError,
    NoClusterError,
    NoMajorityError,
    NotFoundError,
    OutcomeUnknownError,
    ProtocolError,
    StaleRequestError,
    TooFewNodesError,
    UnavailableError,
)
from liftpy.nats.transport import NoRespondersError, Transport

if TYPE_CHECKING:
    from liftpy.core.wire.filters import Filter

_Error = cluster_pb2.ControlResponse.Error
DEADLINE_S = 15.0
ATTEMPT_S = 1.5
_NO_RESPONDERS_S = 1.0
"""Time to retry without responders before the first answer. A controller that reconnects is back by then."""
DEFAULT_REPLICAS = 3
"""Replicas of a stream whose creator names no number, in a cluster of at least three nodes."""
_LIVE_S, _LIVE_AGAIN_S = 5.0, 0.25
"""Time that a change waits for fenced nodes if it needs more live nodes, and interval of the checks."""
_LEAST_S = 0.25
"""Minimum time for an attempt. With less time left, no attempt is made."""
MAJORITY_S = 1.5
"""A lone controller is believed that too few of them are there when it says so again after this time: an election is over by then."""
_WHO_S = 1.0
"""Time for a controller to answer which controllers are connected."""
OPERATION_ID_SIZE_BYTES = 16
_REQUEST_BYTES = 1024
"""Largest size of a control request without its payload."""
_ITEM_BYTES = 16
_MAX_COUNT = 1 << 31
_NODES_BYTES = 64 * 1024
"""Maximum size of a page of node ids in a request, in bytes."""

_ERRORS: dict[int, type[LiftError]] = {
    _Error.INVALID: ConfigError,
    _Error.EXISTS: AlreadyExistsError,
    _Error.NOT_FOUND: NotFoundError,
    _Error.STALE: StaleRequestError,
    _Error.FENCED: FencedError,
    _Error.UNAVAILABLE: UnavailableError,
    _Error.OUTCOME_UNKNOWN: OutcomeUnknownError,
    _Error.NOT_ENOUGH_NODES: TooFewNodesError,
    _Error.NOT_METADATA_LEADER: UnavailableError,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """One controller: a member of the metadata group.

    Attributes:
        node_id: Id of its node.
        leader: True if it is the metadata leader.
        term: Its Raft term.
        commit_index: Index of the last committed log entry that it knows.
        applied_index: Index of the last log entry that it applied.
        lag: Number of log entries that it is behind the leader.
        connected: True if the answering controller is connected to it.
        learner: True if it has no vote yet, because it still receives the log.
        leaving: True if it is being removed.
        waits_for: Why the current change of controllers does not proceed, as text. '': it does, or there is none.
    """

    node_id: str
    leader: bool
    term: int
    commit_index: int
    applied_index: int
    lag: int
    connected: bool
    learner: bool = False
    leaving: bool = False
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The cluster metadata, as the metadata leader answered.

    Attributes:
        image: Nodes, streams and partitions.
        metadata_leader: Id of the metadata leader, '' if there is none.
        controllers: The members of the metadata group.
    """

    image: ClusterImage
    metadata_leader: str
    controllers: tuple[Controller, ...]

    def streams(self) -> list[StreamImage]:
        """Return all streams, sorted by name."""
        return [self.image.streams[name] for name in sorted(self.image.streams)]

    def stream(self, name: str) -> StreamImage:
        """Return the stream with this name.

        Args:
            name: Name of the stream.

        Raises:
            NotFoundError: No such stream.
        """
        found = self.image.streams.get(name)
        if found is None:
            known = ", ".join(sorted(self.image.streams)[:10]) or "none"
            raise NotFoundError(f"Stream {name!r} does not exist. Existing streams: {known}.")
        return found


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
    """Target nodes, preferred leader first. (): cancel a reassignment. A replica that already finished its copy stays."""
    reason: MoveReason = MoveReason.BY_HAND


def _must_fit(request: cluster_pb2.CreateStream | cluster_pb2.AddPartitions, what: str) -> None:
    """Raise ConfigError where an assignment is too large for one request, and say how many of its partitions fit."""
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


def _count(count: int, what: str) -> int:
    """Check that ``count`` fits into a request. Raise ConfigError with ``what`` otherwise."""
    if not 0 <= count < _MAX_COUNT:
        raise ConfigError(f"Invalid number for {what}: {count}. Use a number from 0 to {_MAX_COUNT - 1}.")
    return count


def check_min_isr(config: StreamConfig, replicas: int) -> None:
    """Raise ConfigError if ``min_isr`` is greater than the number of replicas of a partition."""
    if config.min_isr > replicas:
        raise ConfigError(
            f"min_isr = {config.min_isr} (--min-isr) is more than the {replicas} replicas of a partition. "
            "Increase the replicas (--replicas) or decrease min_isr."
        )


class _Majority:
    """Detects, over several answers, that the metadata group has no majority."""

    def __init__(self) -> None:
        self._missing_since_s: float | None = None

    @property
    def is_missed(self) -> bool:
        """True if the last answer showed too few controllers for a majority."""
        return self._missing_since_s is not None

    def said(self, cluster: cluster_pb2.ClusterDescription | None, now_s: float) -> None:
        """Take an answer of a controller, or None for no answer. Raise NoMajorityError after ``MAJORITY_S`` without a
        majority.
        """
        voters = [one for one in cluster.controllers if not one.learner] if cluster is not None else []
        missing = sorted(one.nodeId for one in voters if not one.connected)
        if len(voters) - len(missing) > len(voters) // 2 or not voters:
            self._missing_since_s = None
            return
        if self._missing_since_s is None:
            self._missing_since_s = now_s
        elif now_s - self._missing_since_s >= MAJORITY_S:
            raise NoMajorityError(
                f"{len(missing)} of {len(voters)} controllers do not answer ({', '.join(missing)}). Without a "
                "majority, the cluster cannot decide. Start these controllers and repeat the command. The request "
                "may still have been applied."
            )


class Admin:
    """Requests to the metadata group. ``Client`` has the same methods for applications.

    Args:
        transport: The NATS connection.
        subjects: The subjects of the namespace.
        deadline_s: Time limit of each call, retries included, in seconds. Default 15.

    Example:
        from liftpy.client.admin import Admin

        admin = Admin(transport, subjects, deadline_s=5)
        state = await admin.describe()
    """

    def __init__(self, transport: Transport, subjects: Subjects, deadline_s: float = DEADLINE_S) -> None:
        self._transport = transport
        self._subjects = subjects
        self._deadline_s = deadline_s
        self._done_index = 0
        """Index of the metadata image that the last command, or linearizable question, was answered with."""
        self._has_answered = False
        """True if a controller of the namespace has answered. Missing responders then mean an outage, and requests wait."""
        self.internal = False
        """True if requests may create, change and delete internal streams (names that begin with ``_``)."""

    async def create_stream(
        self,
        name: str,
        subject: str,
        *,
        partitions: int = 1,
        replicas: int = 0,
        config: StreamConfig | None = None,
        placement: PlacementOptions | None = None,
        first_leader_epoch: int = 0,
    ) -> StreamImage:
        """Create a stream for a NATS subject. Do not wait for its leaders.

        With too few nodes, the stream is created and waits for more nodes (``waiting`` is True).

        Args:
            name: Name of the stream.
            subject: NATS subject whose messages the stream stores. Wildcards are allowed.
            partitions: Number of partitions. Default 1.
            replicas: Replicas per partition. Default 0: 3, or the number of live nodes if there are fewer.
            config: Settings of the stream. Default None: ``StreamConfig()``.
            placement: Placement policy, or an assignment by hand. Default None: the default policy.
            first_leader_epoch: Lowest LeaderEpoch that the cluster uses from now on. Only a restore needs it. Default
                0.

        Returns:
            The stream with its partitions.

        Raises:
            InvalidNameError: The name or the subject is not allowed.
            AlreadyExistsError: The name is taken.
            ConfigError: A setting is not allowed, or no node has room.
            UnavailableError: The metadata group did not answer in time.

        Example:
            stream = await admin.create_stream("orders", "shop.orders", partitions=3)
        """
        create = self._create(name, subject, partitions, replicas, config, placement or PlacementOptions())
        if not 0 <= first_leader_epoch < 1 << 63:
            raise ConfigError(f"Invalid first_leader_epoch = {first_leader_epoch}. Use a LeaderEpoch from 0.")
        create.firstLeaderEpoch = first_leader_epoch
        return await self._whole(await self._command(cluster_pb2.ControlRequest(createStream=create)))

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
        create = self._create(name, subject, partitions, replicas, config, placement or PlacementOptions())
        create.dryRun = True
        return await self._plan(cluster_pb2.ControlRequest(createStream=create))

    def _create(
        self, name: str, subject: str, partitions: int, replicas: int, config: StreamConfig | None, placement: PlacementOptions
    ) -> cluster_pb2.CreateStream:
        check_new_stream(name)
        check_data_subject(subject, self._subjects.namespace)
        if config is not None and not placement.allow_offline:  # a restore begins with one replica
            by_hand = [len(nodes) for _, nodes in placement.assignment]
            check_min_isr(config, min(by_hand, default=replicas or DEFAULT_REPLICAS))
        create = cluster_pb2.CreateStream(
            name=name,
            subject=subject,
            partitions=_count(partitions, "partitions"),
            replicationFactor=_count(replicas, "replicas"),
            config=config_to_pb(config or StreamConfig()),
            placement=placement.policy,
            manual=placement.lists(),
            allowOffline=placement.allow_offline,
            laterPlacement=placement.later_policy,
        )
        _must_fit(create, f"create stream {name}")
        return create

    async def add_partitions(
        self, name: str, partitions: int = 0, *, uid: str = "", placement: PlacementOptions | None = None
    ) -> StreamImage:
        """Add partitions to a stream. Do not wait for their leaders.

        Existing partitions stay where they are.

        Args:
            name: Name of the stream.
            partitions: New total number of partitions. Default 0: as many as the assignment in ``placement`` makes.
            uid: Only if the stream has this uid. Default '': whatever stream has the name.
            placement: Placement policy, or an assignment by hand. Default None: the policy of the stream.

        Returns:
            The stream with its new partitions.

        Raises:
            NotFoundError: No such stream.
            ConfigError: Fewer partitions than before, or not enough nodes.
            UnavailableError: The metadata group did not answer in time.
        """
        more = self._more(name, partitions, uid, placement or PlacementOptions())
        return await self._whole(await self._with_live_nodes(cluster_pb2.ControlRequest(addPartitions=more)))

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
        more = self._more(name, partitions, uid, placement or PlacementOptions())
        more.dryRun = True
        return await self._plan(cluster_pb2.ControlRequest(addPartitions=more))

    def _more(self, name: str, partitions: int, uid: str, placement: PlacementOptions) -> cluster_pb2.AddPartitions:
        check_name(name, "stream")
        more = cluster_pb2.AddPartitions(
            name=name,
            uid=check_uid(uid),
            partitions=_count(partitions, "partitions"),
            placement=placement.policy,
            manual=placement.lists(),
            allowOffline=placement.allow_offline,
        )
        _must_fit(more, f"add partitions to stream {name}")
        return more

    async def _plan(self, request: cluster_pb2.ControlRequest) -> PlacementPlan:
        response = await self._command(request)
        if not response.HasField("plan"):  # nothing would be done, or a controller of an older version has done it
            raise ConfigError(
                response.detail
                or (
                    "The metadata group returned no plan. Its version may be older than this client. Upgrade the nodes, "
                    "then retry."
                )
            )
        try:
            return plan_from_pb(response.plan)
        except ValueError as error:
            raise ProtocolError(
                f"Cannot decode the plan from the metadata group: {error}. Check that nodes and client have "
                "compatible versions."
            ) from None

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
        """
        check_name(node_id, "node")
        request = cluster_pb2.SetNode(nodeId=node_id)
        if weight is not None:
            request.weight = weight
        if rack is not None:
            if not is_utf8(rack):
                raise ConfigError(f"Invalid rack {shown(rack)}. Use UTF-8 text.")
            request.rack = rack
        if leaving is not None:
            request.leaving = leaving
        return codec.node_from_pb((await self._command(cluster_pb2.ControlRequest(setNode=request))).node)

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
        check_name(node_id, "node")
        request = cluster_pb2.SetNode(nodeId=node_id, weightAsItSays=weight, rackAsItSays=rack)
        return codec.node_from_pb((await self._command(cluster_pb2.ControlRequest(setNode=request))).node)

    async def delete_stream(self, name: str, uid: str = "") -> None:
        """Delete a stream and all its records permanently.

        Args:
            name: Name of the stream.
            uid: Only if the stream has this uid. Default '': whatever stream has the name.

        Raises:
            NotFoundError: No such stream, or another uid.
            UnavailableError: The metadata group did not answer in time.
        """
        check_name(name, "stream")
        request = cluster_pb2.ControlRequest()
        request.deleteStream.CopyFrom(cluster_pb2.DeleteStream(name=name, uid=check_uid(uid)))
        await self._command(request)

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
        check_name(node_id, "node")
        await self._command(cluster_pb2.ControlRequest(removeNode=cluster_pb2.RemoveNode(nodeId=node_id)))

    async def change_controllers(self, *, add: str = "", remove: str = "") -> str:
        """Add, remove or replace a controller of the metadata group.

        A new controller first receives the log. It votes after it has caught up. The change continues in the
        background. ``describe`` shows its progress.

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
        """
        for node_id in filter(None, (add, remove)):
            check_name(node_id, "node")
        if not add and not remove:
            raise ConfigError("Nothing to change. Name a node to add, a node to remove, or both.")
        change = cluster_pb2.ChangeControllers(node=add or remove, replaced=remove if add else "")
        change.what = (change.REPLACE if remove else change.ADD) if add else change.REMOVE
        return (await self._command(cluster_pb2.ControlRequest(changeControllers=change))).detail

    async def feature_levels(self, level: int = 0) -> FeatureLevels:
        """Return the feature level of the cluster and the levels that each node supports.

        Args:
            level: Also check whether this level can be finalized. Default 0: no check.

        Returns:
            The levels. ``reasons`` says why ``level`` cannot be finalized now.

        Raises:
            UnavailableError: The metadata group did not answer in time.
        """
        request = cluster_pb2.SetFeatureLevel(level=_count(level, "the feature level"), dryRun=True)
        found = (await self._command(cluster_pb2.ControlRequest(setFeatureLevel=request))).levels
        spoken = {n.nodeId: said(n) if n.maxLevel else None for n in found.nodes}
        return FeatureLevels(found.level, spoken, {n.nodeId: n.version for n in found.nodes}, tuple(found.reasons))

    async def set_feature_level(self, level: int) -> str:
        """Finalize a feature level, or return to the previous one.

        Args:
            level: The level. All nodes must support it.

        Returns:
            A sentence that says what was decided.

        Raises:
            ConfigError: A node does not support the level. The text names it.
            StaleRequestError: A node registered at the same time. Retry.
            UnavailableError: The metadata group did not answer in time.
        """
        request = cluster_pb2.SetFeatureLevel(level=_count(level, "the feature level"))
        return (await self._command(cluster_pb2.ControlRequest(setFeatureLevel=request))).detail

    async def default_quota(self) -> DefaultQuota:
        """Return the quota of streams that have no quota of their own.

        Returns:
            The default quota of the cluster. All rates are 0 if there is none.

        Raises:
            UnavailableError: The metadata group did not answer in time.
        """
        asked = cluster_pb2.ControlRequest(describeCluster=cluster_pb2.DescribeCluster(maxBytes=1))
        return quota_from_pb((await self._read(asked)).cluster.image.defaultQuota)

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
            UnavailableError: The metadata group did not answer in time.
        """
        DefaultQuota(
            records_per_s=records_per_s or 0, bytes_per_s=bytes_per_s or 0, by_token=by_token or 0
        )  # within its bounds
        request = cluster_pb2.SetDefaultQuota()
        for name, value in (("recordsPerS", records_per_s), ("bytesPerS", bytes_per_s), ("byToken", by_token)):
            if value is not None:
                setattr(request, name, value)
        return quota_from_pb((await self._command(cluster_pb2.ControlRequest(setDefaultQuota=request))).defaultQuota)

    async def session_times(self) -> SessionTimes | None:
        """Return the session and lease times of the cluster.

        Returns:
                    The times. None in a new cluster, whose nodes use their own settings.

        Raises:
            UnavailableError: The metadata group did not answer in time.
        """
        asked = cluster_pb2.ControlRequest(describeCluster=cluster_pb2.DescribeCluster(maxBytes=1))
        image = (await self._read(asked)).cluster.image
        return times_from_pb(image.sessionTimes) if image.HasField("sessionTimes") else None

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
            ConfigError: The times are not allowed.
            StaleRequestError: Another change is not settled, or came first.
            UnavailableError: The metadata group did not answer in time.
        """
        held = await self.session_times() or ReplicationConfig().session_times
        request = cluster_pb2.SetSessionTimes(
            sessionMs=held.session_ms if session_s is None else _milliseconds(session_s),
            leaseMs=held.lease_ms if lease_s is None else _milliseconds(lease_s),
            change=held.change,
        )
        return times_from_pb((await self._command(cluster_pb2.ControlRequest(setSessionTimes=request))).sessionTimes)

    async def elect_leader(
        self, stream: StreamImage, partition: int, node_id: str = "", *, unclean: bool = False
    ) -> PartitionState:
        """Move the leadership of a partition, or elect a leader of an Offline one.

        WARNING: ``unclean=True`` may lose committed records. Use it only if no in-sync replica can come back.

        Args:
            stream: The stream, as ``stream`` returned it.
            partition: Number of the partition.
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
        """
        if node_id:
            check_name(node_id, "node")
        check_partition(partition)
        request = cluster_pb2.ControlRequest()
        request.electLeader.CopyFrom(
            cluster_pb2.ElectLeader(stream=stream.name, uid=stream.uid, partition=partition, node=node_id, unclean=unclean)
        )
        return codec.partition_from_pb((await self._command(request)).partition)

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
        """
        for node_id in replicas:
            check_name(node_id, "node")
        wish = cluster_pb2.Reassign(
            stream=stream.name, uid=stream.uid, partition=partition, replicas=replicas, cancel=not replicas
        )
        return codec.partition_from_pb((await self._command(cluster_pb2.ControlRequest(reassign=wish))).partition)

    async def truncate_before(self, stream: StreamImage, partition: int, offset: int) -> PartitionState:
        """Delete the records below an offset on every replica.

        This method does not check the offset. ``Client.truncate_before`` asks the leader first.

        Args:
            stream: The stream, as ``stream`` returned it.
            partition: Number of the partition.
            offset: First offset to keep. It must not be above the high watermark + 1.

        Returns:
            The partition after the change.

        Raises:
            NotFoundError: No such stream or partition.
            UnavailableError: The metadata group did not answer in time.
        """
        wish = cluster_pb2.TruncateBefore(stream=stream.name, uid=stream.uid, partition=partition, offset=offset)
        return codec.partition_from_pb((await self._command(cluster_pb2.ControlRequest(truncateBefore=wish))).partition)

    async def purge(self, stream: StreamImage, partition: int, wanted: Filter, end_offset: int) -> PartitionState:
        """Delete the records that match a filter below an offset, on every replica.

        This method does not check the offset. ``Client.purge`` asks the leader first.

        Args:
            stream: The stream, as ``stream`` returned it.
            partition: Number of the partition.
            wanted: Subjects and keys of the records to delete.
            end_offset: Delete below this offset. It must not be above the high watermark + 1.

        Returns:
            The partition after the change.

        Raises:
            NotFoundError: No such stream or partition.
            ConfigError: Too many purges in progress.
            UnavailableError: The metadata group did not answer in time.
        """
        wish = cluster_pb2.PurgeRecords(
            stream=stream.name,
            uid=stream.uid,
            partition=partition,
            subjects=wanted.subjects,
            keys=wanted.keys,
            endOffset=end_offset,
        )
        return codec.partition_from_pb((await self._command(cluster_pb2.ControlRequest(purgeRecords=wish))).partition)

    async def pause(
        self, name: str, partitions: Iterable[int] | None, pause: Pause, *, uid: str = "", config_version: int | None = None
    ) -> StreamImage:
        """Pause partitions, or resume them with ``Pause.NOT_PAUSED``.

        Args:
            name: Name of the stream.
            partitions: Partition numbers. None: all partitions.
            pause: When the partitions accept publishes again.
            uid: Only if the stream has this uid. Default '': whatever stream has the name.
            config_version: Only if the stream has this config version. Default None: any.

        Returns:
            The stream after the change.

        Raises:
            NotFoundError: No such stream or partition.
            ConfigError: ``partitions`` is empty or not valid.
            StaleRequestError: The stream has another config version.
            UnavailableError: The metadata group did not answer in time.
        """
        check_name(name, "stream")
        wish = cluster_pb2.PausePartitions(stream=name, uid=check_uid(uid), pause=codec.pause_to_pb(pause))
        if partitions is not None:
            wish.partitions.extend(_count(number, "as the number of a partition") for number in partitions)
            if not wish.partitions:
                raise ConfigError("The list of partitions is empty. Name at least one partition, or pass None for all.")
        if config_version is not None:
            wish.configVersion = config_version
        return await self._whole(await self._command(cluster_pb2.ControlRequest(pausePartitions=wish)))

    async def reassign_all(self, wishes: Iterable[ReplicaMove]) -> list[str]:
        """Move the replicas of many partitions to other nodes.

        The requests are sent in batches. If the call fails, the requests that were accepted so far stay in effect.

        Args:
            wishes: One ``ReplicaMove`` per partition.

        Returns:
            One text for each rejected request: partition and reason.

        Raises:
            UnavailableError: The metadata group did not answer in time.
        """
        refused: list[str] = []
        for asked in _batches(wishes):
            response = await self._command(_as_one([request for _, request in asked]))
            answers = {answer.number: answer for answer in response.batch.answers}
            if not response.HasField("batch"):
                raise ProtocolError(
                    "The metadata group answered a batch of requests with one answer. Its version may be older than this "
                    "client. Upgrade the nodes, then retry."
                )
            for number, (wish, _) in enumerate(asked):
                answer = answers.get(number)
                if answer is None or answer.error != _Error.OK:
                    refused.append(f"{wish.stream}/{wish.partition}: {answer.detail if answer is not None else 'no answer'}")
        return refused

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
    ) -> StreamImage:
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
            UnavailableError: The metadata group did not answer in time.
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
        wish = cluster_pb2.AlterStream(
            name=name, uid=check_uid(uid), replicationFactor=_count(replication_factor, "replicas"), dryRun=dry_run
        )
        if settings:
            wish.config.CopyFrom(config_to_pb(StreamConfig(**settings)))
            wish.changed.extend(map(wire_name, sorted(settings)))
        if config_version is not None:
            wish.configVersion = config_version
        return await self._whole(await self._with_live_nodes(cluster_pb2.ControlRequest(alterStream=wish)))

    async def _with_live_nodes(self, request: cluster_pb2.ControlRequest) -> cluster_pb2.ControlResponse:
        """Send a change that needs live nodes, as ``_command`` does.

        It is repeated while nodes are fenced, because they may return within a session.
        """
        until_s = asyncio.get_running_loop().time() + min(_LIVE_S, self._deadline_s)
        are_live = False
        while True:
            try:
                return await self._command(request)
            except TooFewNodesError:
                if are_live or asyncio.get_running_loop().time() >= until_s:
                    raise
                are_live = not any(node.fenced for node in await self._nodes())  # they may have come back since: a last time
            await asyncio.sleep(0 if are_live else _LIVE_AGAIN_S)

    async def describe(self, *, linearizable: bool = False) -> ClusterState:
        """Return the nodes, the streams and the controllers of the cluster.

        Args:
            linearizable: If True, the answer contains every change that was committed before this call. Default False:
                the state that the metadata leader last applied.

        Returns:
            The state of the cluster.

        Raises:
            UnavailableError: The metadata group did not answer in time.
        """
        request = cluster_pb2.ControlRequest(linearizable=linearizable)
        pages = ClusterPages()
        while pages.request is not None:
            request.describeCluster.CopyFrom(pages.request)
            pages.add((await self._read(request)).cluster)
        cluster = pages.cluster
        controllers = tuple(
            Controller(
                node_id=c.nodeId,
                leader=c.leader,
                term=c.term,
                commit_index=c.commitIndex,
                applied_index=c.appliedIndex,
                lag=c.lag,
                connected=c.connected,
                learner=c.learner,
                leaving=c.leaving,
                waits_for=c.waitsFor,
            )
            for c in cluster.controllers
        )
        return ClusterState(codec.image_from_pb(cluster.image), cluster.metadataLeader, controllers)

    async def open_groups(self) -> StreamImage:
        """Return the internal stream of groups and queues. Create it if needed.

        Returns:
            The stream ``_groups``.

        Raises:
            UnavailableError: The metadata group did not answer in time.
        """
        return await self._whole(await self._read(cluster_pb2.ControlRequest(openGroups=cluster_pb2.OpenGroups())))

    async def nodes_near(self, rack: str) -> tuple[set[str], set[str]]:
        """Return the nodes on this host, and the nodes of a rack.

        Args:
            rack: Name of the rack. '': no rack.

        Returns:
            The ids of the nodes on this host, and the ids of the nodes in the rack.

        Raises:
            UnavailableError: The metadata group did not answer in time.
        """
        nodes, host = await self._nodes(), this_host()
        here = {node.nodeId for node in nodes if host and node.host == host}
        return here, {node.nodeId for node in nodes if rack and node.rack == rack}

    async def node_ids(self) -> list[str]:
        """Return the ids of all registered nodes, sorted.

        Raises:
            UnavailableError: The metadata group did not answer in time.
        """
        return sorted(node.nodeId for node in await self._nodes())

    async def controller_ids(self) -> list[str]:
        """Return the ids of all controllers, the metadata leader first.

        Raises:
            UnavailableError: No controller answered in time.
        """
        asked = cluster_pb2.ControlRequest(describeCluster=cluster_pb2.DescribeCluster(maxBytes=1))
        cluster = (await self._read(asked)).cluster
        return sorted((one.nodeId for one in cluster.controllers), key=lambda node: (node != cluster.metadataLeader, node))

    async def _nodes(self) -> list[cluster_pb2.Node]:
        request, pages = cluster_pb2.ControlRequest(), ClusterPages()
        while pages.request is not None and not pages.cluster.image.streams:  # nodes come first
            request.describeCluster.CopyFrom(pages.request)
            request.describeCluster.maxBytes = _NODES_BYTES
            pages.add((await self._read(request)).cluster)
        return list(pages.cluster.image.nodes)

    async def stream(self, name: str, *, linearizable: bool = False) -> StreamImage:
        """Return one stream with its partitions, replicas, ISR and leaders.

        Args:
            name: Name of the stream.
            linearizable: If True, the answer contains every change that was committed before this call. Default False.

        Returns:
            The stream.

        Raises:
            NotFoundError: No such stream.
            UnavailableError: The metadata group did not answer in time.
        """
        request = cluster_pb2.ControlRequest(linearizable=linearizable, describeStream=cluster_pb2.DescribeStream(name=name))
        return await self._whole(await self._read(request))

    async def _whole(self, response: cluster_pb2.ControlResponse) -> StreamImage:
        """Return the complete stream of an answer, and request the partitions that did not fit into it."""
        pages = StreamPages()
        pages.add(response)
        while pages.request is not None:
            pages.add(await self._read(cluster_pb2.ControlRequest(describeStream=pages.request)))
        return codec.stream_from_pb(pages.stream)

    async def _read(self, request: cluster_pb2.ControlRequest) -> cluster_pb2.ControlResponse:
        """Send a read-only request. It may be repeated safely."""
        try:
            return await self._ask_on(self._subjects.info(), request)
        except OutcomeUnknownError as error:
            if request.HasField("openGroups"):
                raise
            raise UnavailableError(str(error)) from None

    async def _command(self, request: cluster_pb2.ControlRequest) -> cluster_pb2.ControlResponse:
        """Send a request that needs operator permissions."""
        request.internal = self.internal
        return await self._ask_on(self._subjects.control_admin(), request)

    async def _ask_on(self, subject: str, request: cluster_pb2.ControlRequest) -> cluster_pb2.ControlResponse:
        request.operationId = secrets.token_bytes(OPERATION_ID_SIZE_BYTES)
        payload = frames.sealed(request)
        give_up_at = asyncio.get_running_loop().time() + self._deadline_s
        nobody_since: float | None = None
        unanswered, least_s = None, min(_LEAST_S, self._deadline_s / 4)
        majority = _Majority()
        async for attempt in retrying(self._deadline_s):
            with attempt:
                left_s = give_up_at - asyncio.get_running_loop().time()
                if unanswered is not None and left_s < least_s:
                    raise unanswered
                try:
                    answer = await self._transport.request(subject, payload, min(ATTEMPT_S, max(left_s, least_s)))
                except NoRespondersError:
                    now = asyncio.get_running_loop().time()
                    nobody_since = now if nobody_since is None else nobody_since
                    self._check_cluster(now - nobody_since)
                    raise
                except OutcomeUnknownError:
                    waited_s = asyncio.get_running_loop().time() - give_up_at + self._deadline_s
                    unanswered = OutcomeUnknownError(
                        f"The metadata group did not answer within {waited_s:.1f} s. The request may or may not have been "
                        "applied. Check the result, then retry."
                    )
                    cluster = await self._controllers(left_s - ATTEMPT_S)
                    lone = cluster if cluster is not None and not cluster.metadataLeader else None
                    majority.said(lone, asyncio.get_running_loop().time())
                    raise unanswered from None
                self._has_answered = True
                response = self._decoded(answer, subject, request.operationId)
                if self._is_behind(response, request, subject):
                    request.linearizable = True  # the metadata leader knows what this client was told
                    payload = frames.sealed(request)
                    raise UnavailableError(
                        "The node that answered is behind: it does not know yet what this client has already read. Retry later."
                    )
                if response.error != _Error.OK:
                    if response.retryAfterMs:
                        await asyncio.sleep(min(response.retryAfterMs / 1000, left_s))
                    raise control_error(response)
                return response
        raise AssertionError("Internal error: all attempts ended without a result. Please report it.")

    async def watch_majority(self, *, is_patient: bool = True) -> None:
        """Return when the metadata group has a leader and a majority. Run it concurrently with a command.

        Args:
            is_patient: If False, return at once if no controller answers. Default True: ask until one answers.

        Raises:
            NoMajorityError: Too few controllers answer. Raised within two seconds, whatever the command waits for.
        """
        majority, time = _Majority(), asyncio.get_running_loop().time
        while True:
            cluster = await self._controllers(_WHO_S)
            majority.said(cluster, time())
            if cluster is None and not is_patient:
                return
            if cluster is not None and cluster.metadataLeader and not majority.is_missed:
                return
            await asyncio.sleep(MAJORITY_S / 5)

    async def _controllers(self, left_s: float) -> cluster_pb2.ClusterDescription | None:
        """Ask any controller for the members and the leader, None without an answer."""
        if left_s < _LEAST_S:
            return None
        request = cluster_pb2.ControlRequest(operationId=secrets.token_bytes(OPERATION_ID_SIZE_BYTES))
        request.describeCluster.maxBytes = 1
        subject = self._subjects.info()
        try:
            answer = await self._transport.request(subject, frames.sealed(request), min(_WHO_S, left_s))
            response = self._decoded(answer, subject, request.operationId)
        except (UnavailableError, OutcomeUnknownError):
            return None
        return response.cluster if response.error == _Error.OK else None

    def _is_behind(self, response: cluster_pb2.ControlResponse, request: cluster_pb2.ControlRequest, subject: str) -> bool:
        """Return whether an answer is older than a command of this client: it could name a stream that was deleted and created
        again."""
        if subject != self._subjects.info() or request.linearizable:
            if response.error == _Error.OK and response.index:
                self._done_index = response.index  # it may fall: a rescued metadata group may begin again below it
            return False
        if not 0 < response.index < self._done_index:
            return False
        self._transport.counters["answers of nodes that are behind"] += 1
        return True

    def _check_cluster(self, waited_s: float) -> None:
        """Raise NoClusterError if no node of the namespace has ever answered, and there were no responders for ``waited_s``."""
        if not self._has_answered and waited_s >= min(_NO_RESPONDERS_S, self._deadline_s / 2):
            raise NoClusterError(
                f"No liftpy node of namespace {self._subjects.namespace!r} answers at {self._transport.server}. Check "
                "--namespace and --nats (connect: namespace, nats). If they are correct, all nodes are down: start "
                "them, then start this client again."
            )

    def _decoded(self, answer: bytes, subject: str, operation_id: bytes) -> cluster_pb2.ControlResponse:
        """Return the decoded answer.

        An unreadable or foreign answer says nothing, so the request is repeated under the same operation id.
        """
        try:
            response = frames.decode(answer, cluster_pb2.ControlResponse)
        except ProtocolError as error:
            self._transport.counters["damaged answers"] += 1
            raise OutcomeUnknownError(
                f"Cannot decode the answer on {subject}: {error}. The request may have been applied. Check that nodes "
                "and client have compatible versions."
            ) from None
        if response.operationId != operation_id:
            self._transport.counters["answers to something else"] += 1
            raise OutcomeUnknownError(
                f"The answer on {subject} belongs to another request. The request may have been applied. Check the "
                "result, then retry."
            )
        return response


_Asked = tuple[ReplicaMove, cluster_pb2.ControlRequest]


def _batches(wishes: Iterable[ReplicaMove]) -> Iterator[list[_Asked]]:
    """Split requests into batches that are small enough for one metadata entry."""
    batch: list[_Asked] = []
    size_bytes = 0
    for wish in wishes:
        request = cluster_pb2.ControlRequest(
            reassign=cluster_pb2.Reassign(
                stream=wish.stream,
                uid=wish.uid,
                partition=wish.partition,
                replicas=wish.replicas,
                cancel=not wish.replicas,
                movedFor=codec.reason_to_pb(wish.reason),
            )
        )
        cost_bytes = request.ByteSize() + _ITEM_BYTES
        if batch and (len(batch) == SENT_TOGETHER or size_bytes + cost_bytes > MAX_BATCH_BYTES):
            yield batch
            batch, size_bytes = [], 0
        batch.append((wish, request))
        size_bytes += cost_bytes
    if batch:
        yield batch


def _as_one(requests: list[cluster_pb2.ControlRequest]) -> cluster_pb2.ControlRequest:
    items = [cluster_pb2.BatchedRequest(number=number, request=request) for number, request in enumerate(requests)]
    return cluster_pb2.ControlRequest(batch=cluster_pb2.Batch(requests=items))


def control_error(response: cluster_pb2.ControlResponse) -> LiftError:
    """Return the error for a negative answer of the metadata group."""
    name = _Error.Name(response.error) if response.error in _Error.values() else str(response.error)
    kind = _ERRORS.get(response.error, LiftError)
    return kind(response.detail or f"the metadata group answered {name}")


def _milliseconds(seconds: float) -> int:
    if math.isnan(seconds):
        raise ConfigError(f"Invalid time {seconds} s. Use a number of seconds.")
    return round(min(max(0, seconds * 1000), (1 << 32) - 1))


class FeatureLevelsMixin:
    """Methods of Client for cluster-wide settings: feature level, default quota, session times."""

    _admin: Admin

    async def feature_levels(self, level: int = 0) -> FeatureLevels:
        """Return the feature level of the cluster and the levels that each node supports.

        Args:
            level: Also check whether this level can be finalized. Default 0: no check.

        Returns:
            The levels. ``reasons`` says why ``level`` cannot be finalized now.

        Raises:
            UnavailableError: The metadata group did not answer in time.
        """
        return await self._admin.feature_levels(level)

    async def set_feature_level(self, level: int) -> str:
        """Finalize a feature level, or return to the previous one.

        Args:
            level: The level. All nodes must support it.

        Returns:
            A sentence that says what was decided.

        Raises:
            ConfigError: A node does not support the level. The text names it.
            StaleRequestError: A node registered at the same time. Retry.
            UnavailableError: The metadata group did not answer in time.
        """
        return await self._admin.set_feature_level(level)

    async def default_quota(self) -> DefaultQuota:
        """Return the quota of streams that have no quota of their own.

        Returns:
            The default quota of the cluster. All rates are 0 if there is none.

        Raises:
            UnavailableError: The metadata group did not answer in time.
        """
        return await self._admin.default_quota()

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
            UnavailableError: The metadata group did not answer in time.

        Example:
            await client.set_default_quota(records_per_s=10_000)
        """
        return await self._admin.set_default_quota(records_per_s=records_per_s, bytes_per_s=bytes_per_s, by_token=by_token)

    async def session_times(self) -> SessionTimes | None:
        """Return the session and lease times of the cluster.

        Returns:
            The times. None below feature level 5: then each node uses its own settings.

        Raises:
            UnavailableError: The metadata group did not answer in time.
        """
        return await self._admin.session_times()

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
            UnavailableError: The metadata group did not answer in time.

        Example:
            await client.set_session_times(session_s=5.0, lease_s=2.0)
        """
        return await self._admin.set_session_times(session_s=session_s, lease_s=lease_s)
