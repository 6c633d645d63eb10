"""Administration: streams through ``<ns>.control.admin``, the cluster's state through ``<ns>.info``.

A change carries an operation id: it is repeated with the same id until it is answered or the deadline passes, and the
metadata group applies an id once. So neither a lost answer nor a change of the metadata leader makes two streams of one.

What a Client has to do with what holds for the whole cluster: its feature level, its default quota, its session times.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from liftpy.client.closest_replica import this_host
from liftpy.client.placement_plans import PlacementPlan, PlacementWish, plan_from_pb
from liftpy.client.retrying import retrying
from liftpy.config import ALTERABLE, DefaultQuota, ReplicationConfig, SessionTimes, StreamConfig
from liftpy.core.base.ids import check_data_subject, check_name, check_new_stream, check_uid
from liftpy.core.base.partition import MoveReason, PartitionState, Pause
from liftpy.core.metadata import codec
from liftpy.core.metadata.batch_limits import MAX_BATCH_BYTES, SENT_TOGETHER
from liftpy.core.metadata.codec import camel_case, config_to_pb, quota_from_pb, times_from_pb
from liftpy.core.metadata.describe import ClusterPages, StreamPages
from liftpy.core.metadata.feature_range import FeatureLevels, said
from liftpy.core.metadata.image import ClusterImage, NodeImage, StreamImage
from liftpy.core.metadata.request_limits import MAX_REQUEST_BYTES
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
"""How long there may be no responders before the first answer: a controller that reconnects is back by then."""
DEFAULT_REPLICAS = 3
"""Replicas of a stream whose creator names no number, in a cluster of at least three nodes."""
_LIVE_S, _LIVE_AGAIN_S = 5.0, 0.25
"""A change that needs more live nodes waits so long for those that are fenced, and looks so often."""
_LEAST_S = 0.25
"""No attempt is made that would have less time."""
MAJORITY_S = 1.5
"""A lone controller is believed that too few of them are there when it says so again after this time: an election is over by then."""
_WHO_S = 1.0
"""A controller has so long to say who is connected."""
OPERATION_ID_SIZE_BYTES = 16
_REQUEST_BYTES = 1024
"""Largest size of a control request without its payload."""
_ITEM_BYTES = 16
_MAX_COUNT = 1 << 31
_NODES_BYTES = 64 * 1024
"""Of a page that is asked for its nodes."""

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
    """One member of the metadata group. ``lag``: entries behind the leader's log end; ``learner``: it counts for nothing before it has
    caught up; ``leaving``: it is to go; ``waits_for``: why the change that is under way does not go on, for people."""

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
    """The metadata as its leader answered it. ``metadata_leader``: node id, empty when there is none."""

    image: ClusterImage
    metadata_leader: str
    controllers: tuple[Controller, ...]

    def streams(self) -> list[StreamImage]:
        """All streams, by name."""
        return [self.image.streams[name] for name in sorted(self.image.streams)]

    def stream(self, name: str) -> StreamImage:
        """The stream of that name; raise NotFoundError."""
        found = self.image.streams.get(name)
        if found is None:
            known = ", ".join(sorted(self.image.streams)[:10]) or "none"
            raise NotFoundError(f"Stream {name!r} does not exist. Existing streams: {known}.")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveWish:
    """Where the replicas of one partition are to be."""

    stream: str
    uid: str
    partition: int
    replicas: tuple[str, ...] = ()
    """Preferred leader first; (): they stay where they are, a swap that is beyond its copy is finished."""
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
    """So many ``what``; raise ConfigError where a request has no room for the number."""
    if not 0 <= count < _MAX_COUNT:
        raise ConfigError(f"Invalid number of {what}: {count}. Use a number from 0 to {_MAX_COUNT - 1}.")
    return count


def check_min_isr(config: StreamConfig, replicas: int) -> None:
    """Raise ConfigError where ``config`` wants more replicas in sync than the ``replicas`` of a partition."""
    if config.min_isr > replicas:
        raise ConfigError(
            f"min_isr = {config.min_isr} (--min-isr) is more than the {replicas} replicas of a partition. "
            "Increase the replicas (--replicas, --replication-factor) or decrease min_isr."
        )


class _Majority:
    """Notices, over several answers, that too few controllers are there."""

    def __init__(self) -> None:
        self._missing_since_s: float | None = None

    @property
    def is_missed(self) -> bool:
        """Whether too few were there when somebody answered last."""
        return self._missing_since_s is not None

    def said(self, cluster: cluster_pb2.ClusterDescription | None, now_s: float) -> None:
        """A controller said ``cluster``; None: nobody did. Raises NoMajorityError once it is sure."""
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
    """Requests to the metadata group. ``deadline_s`` bounds every call, all its repetitions included."""

    def __init__(self, transport: Transport, subjects: Subjects, deadline_s: float = DEADLINE_S) -> None:
        self._transport = transport
        self._subjects = subjects
        self._deadline_s = deadline_s
        self._done_index = 0
        """Index of the metadata image that the last command, or linearizable question, was answered with."""
        self._has_answered = False
        """Whether the namespace has controllers here: then no responders mean an outage, which is waited out."""
        self.internal = False
        """Whether internal streams may be made, changed, cut and deleted: the cluster's own, whose names begin with ``_``."""

    async def create_stream(
        self,
        name: str,
        subject: str,
        *,
        partitions: int = 1,
        replicas: int = 0,
        config: StreamConfig | None = None,
        placement: PlacementWish | None = None,
        first_leader_epoch: int = 0,
    ) -> StreamImage:
        """Attach a new stream to ``subject``; ``replicas`` 0 means 3, or the number of live nodes if fewer.

        Where there are too few nodes it is made and waits for them (``waiting``). Raises InvalidNameError, AlreadyExistsError,
        ConfigError (also: no node has room), UnavailableError. ``first_leader_epoch``: the metadata group gives no LeaderEpoch
        below this one from now on.
        """
        create = self._create(name, subject, partitions, replicas, config, placement or PlacementWish())
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
        placement: PlacementWish | None = None,
    ) -> PlacementPlan:
        """Where ``create_stream`` would place it; nothing is done. Raises the same."""
        create = self._create(name, subject, partitions, replicas, config, placement or PlacementWish())
        create.dryRun = True
        return await self._plan(cluster_pb2.ControlRequest(createStream=create))

    def _create(
        self, name: str, subject: str, partitions: int, replicas: int, config: StreamConfig | None, placement: PlacementWish
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
        )
        _must_fit(create, f"create stream {name}")
        return create

    async def add_partitions(
        self, name: str, partitions: int = 0, *, uid: str = "", placement: PlacementWish | None = None
    ) -> StreamImage:
        """Give a stream so many partitions; those that it has stay where they are. 0: as many as an assignment makes.

        Raises NotFoundError, ConfigError (also: fewer than it has, not enough nodes), UnavailableError.
        """
        more = self._more(name, partitions, uid, placement or PlacementWish())
        return await self._whole(await self._command(cluster_pb2.ControlRequest(addPartitions=more)))

    async def plan_partitions(
        self, name: str, partitions: int = 0, *, uid: str = "", placement: PlacementWish | None = None
    ) -> PlacementPlan:
        """Where ``add_partitions`` would place them; nothing is done. Raises the same."""
        more = self._more(name, partitions, uid, placement or PlacementWish())
        more.dryRun = True
        return await self._plan(cluster_pb2.ControlRequest(addPartitions=more))

    def _more(self, name: str, partitions: int, uid: str, placement: PlacementWish) -> cluster_pb2.AddPartitions:
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
        """Say a node's weight or rack, whatever its settings say, for what is placed from now on; or that it is ``leaving``: it is
        given nothing, and what it holds moves away. Raises NotFoundError, ConfigError."""
        check_name(node_id, "node")
        request = cluster_pb2.SetNode(nodeId=node_id)
        if weight is not None:
            request.weight = weight
        if rack is not None:
            request.rack = rack
        if leaving is not None:
            request.leaving = leaving
        return codec.node_from_pb((await self._command(cluster_pb2.ControlRequest(setNode=request))).node)

    async def reset_node(self, node_id: str, *, weight: bool = False, rack: bool = False) -> NodeImage:
        """Take back what ``set_node`` said: the node's settings hold from its next start on. Raises NotFoundError."""
        check_name(node_id, "node")
        request = cluster_pb2.SetNode(nodeId=node_id, weightAsItSays=weight, rackAsItSays=rack)
        return codec.node_from_pb((await self._command(cluster_pb2.ControlRequest(setNode=request))).node)

    async def delete_stream(self, name: str, uid: str = "") -> None:
        """Delete a stream and its records for good; with ``uid`` only that incarnation of it. Raises NotFoundError."""
        check_name(name, "stream")
        request = cluster_pb2.ControlRequest()
        request.deleteStream.CopyFrom(cluster_pb2.DeleteStream(name=name, uid=check_uid(uid)))
        await self._command(request)

    async def remove_node(self, node_id: str) -> None:
        """Forget a node that has stopped and holds no replica. Raises NotFoundError, ConfigError (the text says what is in the way).

        One that is started again registers again. A controller stays a member of the metadata group: ``change_controllers``.
        """
        check_name(node_id, "node")
        await self._command(cluster_pb2.ControlRequest(removeNode=cluster_pb2.RemoveNode(nodeId=node_id)))

    async def change_controllers(self, *, add: str = "", remove: str = "") -> str:
        """Who forms the metadata group: one node more (``add``), one less (``remove``), or one in place of another (both).

        Returns what is decided, for people. What is added is sent the log first, and counts once it has caught up; the change goes
        on by itself, ``describe`` shows how far it is. Raises NotFoundError (no such node or controller), AlreadyExistsError (it is one
        already, or another change is under way), ConfigError (no majority would live, the last one, too many; the text has the
        numbers), UnavailableError.
        """
        for node_id in filter(None, (add, remove)):
            check_name(node_id, "node")
        if not add and not remove:
            raise ConfigError("Nothing to change. Name a node to add, a node to remove, or both.")
        change = cluster_pb2.ChangeControllers(node=add or remove, replaced=remove if add else "")
        change.what = (change.REPLACE if remove else change.ADD) if add else change.REMOVE
        return (await self._command(cluster_pb2.ControlRequest(changeControllers=change))).detail

    async def feature_levels(self, level: int = 0) -> FeatureLevels:
        """The cluster's feature level, what each node speaks, and why ``level`` can't be set now (0: nothing is asked of it). Changes
        nothing. Raises UnavailableError."""
        request = cluster_pb2.SetFeatureLevel(level=level, dryRun=True)
        found = (await self._command(cluster_pb2.ControlRequest(setFeatureLevel=request))).levels
        spoken = {n.nodeId: said(n) if n.maxLevel else None for n in found.nodes}
        return FeatureLevels(found.level, spoken, {n.nodeId: n.version for n in found.nodes}, tuple(found.reasons))

    async def set_feature_level(self, level: int) -> str:
        """Have decisions made by ``level``: finalize one that everybody speaks, or go back to the one before. Returns what was decided,
        for people. Raises ConfigError (the text names who does not speak it), StaleRequestError (a node has registered meanwhile: ask
        again), UnavailableError."""
        request = cluster_pb2.SetFeatureLevel(level=level)
        return (await self._command(cluster_pb2.ControlRequest(setFeatureLevel=request))).detail

    async def default_quota(self) -> DefaultQuota:
        """What the cluster's streams have that have no quota of their own. Raises UnavailableError."""
        asked = cluster_pb2.ControlRequest(describeCluster=cluster_pb2.DescribeCluster(maxBytes=1))
        return quota_from_pb((await self._read(asked)).cluster.image.defaultQuota)

    async def set_default_quota(
        self, *, records_per_s: int | None = None, bytes_per_s: int | None = None, by_token: int | None = None
    ) -> DefaultQuota:
        """Set it; None: as it is, both rates 0: there is none. Returns what holds then. Raises ConfigError (out of its bounds, or the
        cluster's feature level is below 4), UnavailableError."""
        DefaultQuota(
            records_per_s=records_per_s or 0, bytes_per_s=bytes_per_s or 0, by_token=by_token or 0
        )  # within its bounds
        request = cluster_pb2.SetDefaultQuota()
        for name, value in (("recordsPerS", records_per_s), ("bytesPerS", bytes_per_s), ("byToken", by_token)):
            if value is not None:
                setattr(request, name, value)
        return quota_from_pb((await self._command(cluster_pb2.ControlRequest(setDefaultQuota=request))).defaultQuota)

    async def session_times(self) -> SessionTimes | None:
        """By which nodes are fenced and may speak; None: as their own settings say, below level 5. Raises UnavailableError."""
        asked = cluster_pb2.ControlRequest(describeCluster=cluster_pb2.DescribeCluster(maxBytes=1))
        image = (await self._read(asked)).cluster.image
        return times_from_pb(image.sessionTimes) if image.HasField("sessionTimes") else None

    async def set_session_times(self, *, session_s: float | None = None, lease_s: float | None = None) -> SessionTimes:
        """Change them, while nodes run; None: as it is. Returns what holds then: a further change waits until it is settled. Raises
        ConfigError (they can't be, or the cluster's feature level is below 5), StaleEpochError (another change is not settled, or came
        first), UnavailableError."""
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
        """Move an Online partition to ``node_id`` ('': its preferred leader), or elect a leader of an Offline one.

        ``unclean``: allows a replica that may lack committed records. Warning: these records are LOST permanently, also if they were
        acknowledged. Only for an offline partition. Returns the
        partition as it was decided: the candidate is not the leader yet. Raises NotFoundError, ConfigError (not possible as
        things are; the text says why), StaleRequestError, UnavailableError.
        """
        if node_id:
            check_name(node_id, "node")
        request = cluster_pb2.ControlRequest()
        request.electLeader.CopyFrom(
            cluster_pb2.ElectLeader(stream=stream.name, uid=stream.uid, partition=partition, node=node_id, unclean=unclean)
        )
        return codec.partition_from_pb((await self._command(request)).partition)

    async def reassign(self, stream: StreamImage, partition: int, replicas: Sequence[str] = ()) -> PartitionState:
        """Say where the replicas of a partition are to be, preferred leader first; without ``replicas``: that they stay where they are,
        a swap that is beyond its copy being finished. They get there one swap at a time. Returns the partition as it was decided.
        Raises NotFoundError, ConfigError (an impossible wish), UnavailableError."""
        for node_id in replicas:
            check_name(node_id, "node")
        wish = cluster_pb2.Reassign(
            stream=stream.name, uid=stream.uid, partition=partition, replicas=replicas, cancel=not replicas
        )
        return codec.partition_from_pb((await self._command(cluster_pb2.ControlRequest(reassign=wish))).partition)

    async def truncate_before(self, stream: StreamImage, partition: int, offset: int) -> PartitionState:
        """Give up what lies below ``offset`` on every replica; see ``Client.truncate_before``, which knows how far that may be."""
        wish = cluster_pb2.TruncateBefore(stream=stream.name, uid=stream.uid, partition=partition, offset=offset)
        return codec.partition_from_pb((await self._command(cluster_pb2.ControlRequest(truncateBefore=wish))).partition)

    async def purge(self, stream: StreamImage, partition: int, wanted: Filter, end_offset: int) -> PartitionState:
        """Give up what is ``wanted`` below ``end_offset`` on every replica; see ``Client.purge``, which knows how far that may be."""
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
        """Pause partitions, or resume them with NOT_PAUSED; see ``Client.pause``. ``config_version``: only if the stream's is that one,
        else StaleRequestError."""
        check_name(name, "stream")
        wish = cluster_pb2.PausePartitions(stream=name, uid=check_uid(uid), pause=codec.pause_to_pb(pause))
        if partitions is not None:
            wish.partitions.extend(_count(number, "as the number of a partition") for number in partitions)
            if not wish.partitions:
                raise ConfigError("The list of partitions is empty. Name at least one partition, or pass None for all.")
        if config_version is not None:
            wish.configVersion = config_version
        return await self._whole(await self._command(cluster_pb2.ControlRequest(pausePartitions=wish)))

    async def reassign_all(self, wishes: Iterable[MoveWish]) -> list[str]:
        """Say the same of many partitions, some of them at a time, so that the metadata group is never kept busy for long; where it
        breaks off, what was said until then holds, and goes on by itself. Returns why single ones were refused.
        Raises UnavailableError."""
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
        """Give every partition of a stream so many replicas (0: leave that), and the stream other ``settings``, by the names of
        StreamConfig's fields (those of ``ALTERABLE``). Returns the stream as it is decided: with the targets of its partitions, which
        get there one swap at a time; settings hold within the time in which nodes hear of it. ``dry_run``: nothing is done.
        ``config_version``: only if the stream's is that one. Raises NotFoundError, ConfigError (not enough nodes, or a setting that
        is wrong or fixed), StaleRequestError (another config_version), UnavailableError."""
        check_name(name, "stream")
        fixed = sorted(set(settings) - set(ALTERABLE))
        if fixed:
            raise ConfigError(
                f"Cannot change {', '.join(fixed)} of an existing stream. You can change: {', '.join(ALTERABLE)}. For "
                "the others, create a new stream."
            )
        wish = cluster_pb2.AlterStream(
            name=name, uid=check_uid(uid), replicationFactor=_count(replication_factor, "replicas"), dryRun=dry_run
        )
        if settings:
            wish.config.CopyFrom(config_to_pb(StreamConfig(**settings)))
            wish.changed.extend(map(camel_case, sorted(settings)))
        if config_version is not None:
            wish.configVersion = config_version
        until_s = asyncio.get_running_loop().time() + min(_LIVE_S, self._deadline_s)
        while True:
            try:
                return await self._whole(await self._command(cluster_pb2.ControlRequest(alterStream=wish)))
            except TooFewNodesError:
                if asyncio.get_running_loop().time() >= until_s:
                    raise
                fenced = sorted(node.nodeId for node in await self._nodes() if node.fenced)
                if not fenced:
                    raise
            await asyncio.sleep(_LIVE_AGAIN_S)  # after an outage nodes come back within a session

    async def describe(self, *, linearizable: bool = False) -> ClusterState:
        """Nodes, streams, metadata leader. ``linearizable``: as of now, behind a barrier; else as the leader last applied."""
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
        """The internal stream of consumer groups, made where it is not there; see ``Grouping.groups_stream``."""
        return await self._whole(await self._read(cluster_pb2.ControlRequest(openGroups=cluster_pb2.OpenGroups())))

    async def nodes_near(self, rack: str) -> tuple[set[str], set[str]]:
        """The nodes of this host, and those of a rack ('': of none), without the rest of the cluster, about."""
        nodes, host = await self._nodes(), this_host()
        here = {node.nodeId for node in nodes if host and node.host == host}
        return here, {node.nodeId for node in nodes if rack and node.rack == rack}

    async def node_ids(self) -> list[str]:
        """All registered nodes, by name."""
        return sorted(node.nodeId for node in await self._nodes())

    async def controller_ids(self) -> list[str]:
        """Who forms the metadata group, its leader first."""
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
        """One stream, without the rest of the cluster; raises NotFoundError. ``linearizable``: as of ``describe``."""
        request = cluster_pb2.ControlRequest(linearizable=linearizable, describeStream=cluster_pb2.DescribeStream(name=name))
        return await self._whole(await self._read(request))

    async def _whole(self, response: cluster_pb2.ControlResponse) -> StreamImage:
        """The stream that an answer begins to describe; what did not go into it is asked for."""
        pages = StreamPages()
        pages.add(response)
        while pages.request is not None:
            pages.add(await self._read(cluster_pb2.ControlRequest(describeStream=pages.request)))
        return codec.stream_from_pb(pages.stream)

    async def _read(self, request: cluster_pb2.ControlRequest) -> cluster_pb2.ControlResponse:
        """A request that readers may ask for. Nobody needs to know the outcome of one that changes nothing: it is asked again."""
        try:
            return await self._ask_on(self._subjects.info(), request)
        except OutcomeUnknownError as error:
            if request.HasField("openGroups"):
                raise
            raise UnavailableError(str(error)) from None

    async def _command(self, request: cluster_pb2.ControlRequest) -> cluster_pb2.ControlResponse:
        """A request that only operators may ask for."""
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
        raise AssertionError("unreachable: the attempts end with a result or an error")

    async def watch_majority(self) -> None:
        """Return once a controller says that the metadata group has a leader and a majority, to be run beside a command.

        Raises NoMajorityError where too few controllers are there: within two seconds, whatever the command waits for.
        """
        majority, time = _Majority(), asyncio.get_running_loop().time
        while True:
            cluster = await self._controllers(_WHO_S)
            majority.said(cluster, time())
            if cluster is not None and cluster.metadataLeader and not majority.is_missed:
                return
            await asyncio.sleep(MAJORITY_S / 5)

    async def _controllers(self, left_s: float) -> cluster_pb2.ClusterDescription | None:
        """Ask any controller who is connected, and who leads; None: nobody answers."""
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
        """Whether an answer to a question is older than what a command has done for this client: it could name a stream that was
        deleted and created again."""
        if subject != self._subjects.info() or request.linearizable:
            if response.error == _Error.OK and response.index:
                self._done_index = response.index  # it may fall: a rescued metadata group may begin again below it
            return False
        if not 0 < response.index < self._done_index:
            return False
        self._transport.counters["answers of nodes that are behind"] += 1
        return True

    def _check_cluster(self, waited_s: float) -> None:
        """Raise NoClusterError where nobody of the namespace has ever answered, and there were no responders for ``waited_s``."""
        if not self._has_answered and waited_s >= min(_NO_RESPONDERS_S, self._deadline_s / 2):
            raise NoClusterError(
                f"No liftpy node of namespace {self._subjects.namespace!r} answers at {self._transport.server}. Check "
                "--namespace and --nats (connect: namespace, nats). If they are correct, all nodes are down: start "
                "them, then start this client again."
            )

    def _decoded(self, answer: bytes, subject: str, operation_id: bytes) -> cluster_pb2.ControlResponse:
        """What was answered. What can't be read, or answers something else, says nothing about the request: it is asked again, under
        the same operation id, so that it is applied once."""
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


_Asked = tuple[MoveWish, cluster_pb2.ControlRequest]


def _batches(wishes: Iterable[MoveWish]) -> Iterator[list[_Asked]]:
    """As they are sent together: few enough, and not too large."""
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
    """The error that a negative answer of the metadata group stands for."""
    name = _Error.Name(response.error) if response.error in _Error.values() else str(response.error)
    kind = _ERRORS.get(response.error, LiftError)
    return kind(response.detail or f"the metadata group answered {name}")


def _milliseconds(seconds: float) -> int:
    return min(max(0, round(seconds * 1000)), (1 << 32) - 1)


class FeatureLevelsMixin:
    """Mixed into Client."""

    _admin: Admin

    async def feature_levels(self, level: int = 0) -> FeatureLevels:
        """The cluster's feature level, and who speaks what; see ``Admin.feature_levels``."""
        return await self._admin.feature_levels(level)

    async def set_feature_level(self, level: int) -> str:
        """Finalize a feature level, or go back to the one before; see ``Admin.set_feature_level``."""
        return await self._admin.set_feature_level(level)

    async def default_quota(self) -> DefaultQuota:
        """Of streams without a quota of their own; see ``Admin.default_quota``."""
        return await self._admin.default_quota()

    async def set_default_quota(
        self, *, records_per_s: int | None = None, bytes_per_s: int | None = None, by_token: int | None = None
    ) -> DefaultQuota:
        """Change it, while leaders run; see ``Admin.set_default_quota``."""
        return await self._admin.set_default_quota(records_per_s=records_per_s, bytes_per_s=bytes_per_s, by_token=by_token)

    async def session_times(self) -> SessionTimes | None:
        """Of the whole cluster; see ``Admin.session_times``."""
        return await self._admin.session_times()

    async def set_session_times(self, *, session_s: float | None = None, lease_s: float | None = None) -> SessionTimes:
        """Change them, while nodes run; see ``Admin.set_session_times``."""
        return await self._admin.set_session_times(session_s=session_s, lease_s=lease_s)
