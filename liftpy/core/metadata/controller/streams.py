"""Requests about streams: CreateStream, AddPartitions, PlaceStream, DeleteStream, AlterStream, OpenGroups
and SetDefaultQuota.

AlterStream stores new settings or a new replication factor. A new factor sets a target for every partition, and the
replicas move one by one. OpenGroups creates the internal stream of consumer groups at its first use.
``UnplacedStreams`` proposes PlaceStream for streams that wait for nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from liftpy.config import NS_PER_S, REFUSED_BY, AckPolicy, ReplicationConfig, StreamConfig
from liftpy.core.base.cooperative_apply import PER_STEP, Steps
from liftpy.core.base.ids import MAX_SUBJECT_LENGTH, check_data_subject, check_name
from liftpy.core.base.partition import MoveReason, PartitionState, PartitionStatus, Pause
from liftpy.core.metadata.codec import CONFIG, QUOTA, STREAM, apply_changed_fields, stored_text
from liftpy.core.metadata.controller.partitions import MAX_REPLICAS, finish_reached_target
from liftpy.core.metadata.controller.reassignment import yield_replica_changes
from liftpy.core.metadata.controller.record_builder import Decision, RecordBuilder, RejectedError, refuse
from liftpy.core.metadata.image import INSUFFICIENT_NODES, ClusterImage, StreamImage, SubjectIndex
from liftpy.core.metadata.placement import MANUAL, POLICY_NAMES, candidates_for, place_in_steps, takes_long
from liftpy.core.metadata.placement.facts import (
    AssignmentEntry,
    NoRoomError,
    NotEnoughNodesError,
    PlacementError,
    PlacementRequest,
    PlacementResult,
    Replicas,
    facts_of,
)
from liftpy.core.metadata.placement.rebalance import DestinationNodes, with_replication_factor
from liftpy.core.metadata.records import DefaultQuotaSet, PartitionsAdded, StreamAltered, StreamCreated, StreamDeleted
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import GROUPS_STREAM, RESERVED_NAMES, Subjects, data_subject
from liftpy.errors import ConfigError

MAX_STREAMS = 100_000
MAX_PARTITIONS_PER_STREAM = 10_000
MAX_REPLICATION_FACTOR = 32
DEFAULT_REPLICATION_FACTOR = 3
MAX_FIRST_LEADER_EPOCH = 1 << 48
"""Highest LeaderEpoch that a request may set as the next one. More LeaderEpochs remain above this value than a cluster can use."""
AS_MANY = "it has as many already"
OVERLAP = "subjects overlap with an existing stream"
OVERLAP_ERR_CODE = 10065
"""Value of JetStream's field err_code for overlapping subjects."""
SEGMENT_BYTES = 8 * 1024 * 1024
RETENTION_BYTES = 64 * 1024 * 1024
"""Retention of the commands of a coordinator per partition, in bytes. A coordinator writes snapshots much more often."""
AT_ONCE = 8
CHECK_EVERY_NS = NS_PER_S // 4
AGAIN_AFTER_NS = 10 * NS_PER_S
"""Time after which the placement of a waiting stream is proposed again, in nanoseconds. The earlier proposal may be lost."""
NO_ROOM = "the nodes there are have no room for it: add nodes, delete streams, or raise their limits of open files"


def create_stream(builder: RecordBuilder, request: pb.CreateStream) -> Steps[Decision]:
    """Create a stream. All its partitions are Online.

    The first replica of a partition leads. All replicas are in the ISR, because all logs are empty. If there are not
    enough nodes, the stream waits and has no partitions yet.
    """
    try:
        current = builder.image.streams.get(request.name)
        config = _check_config(builder, request, current)
        if current is not None:
            existing = refuse(pb.ControlResponse.EXISTS, f"stream {request.name!r} exists, attached to {current.subject!r}")
            existing.response.stream.CopyFrom(STREAM.to_pb(current))
            return existing
        wanted = _partitions_to_place(builder, request)
        placed = yield from _placed_or_waits(builder, wanted)
    except NoRoomError as error:
        return refuse(pb.ControlResponse.NOT_ENOUGH_NODES, str(error))
    except ConfigError as error:
        return refuse(pb.ControlResponse.INVALID, stored_text(error))
    if request.dryRun:
        return Decision((), pb.ControlResponse(plan=plan_of(builder.image, wanted, placed)))
    waits = isinstance(placed, NotEnoughNodesError)
    builder.skip_leader_epochs(request.firstLeaderEpoch)
    stream = StreamImage(
        name=request.name,
        uid=builder.next_stream_uid(),
        subject=request.subject,
        config=config,
        partitions=() if isinstance(placed, NotEnoughNodesError) else _accept_placement(builder, placed),
        created_time_ns=builder.now_ns,
        placement=request.laterPlacement or wanted.policy,
        replication_factor=wanted.replication_factor or len(wanted.assignment[0].replicas),
        waiting=wanted.partitions if waits else 0,
    )
    builder.add(StreamCreated(stream))
    return builder.done(
        pb.ControlResponse(stream=STREAM.to_pb(stream), detail=_existing_stream_text(request, wanted.policy, stream, placed))
    )


def place_stream(builder: RecordBuilder, request: pb.PlaceStream) -> Steps[Decision]:
    """Create the partitions of a stream that waits for nodes.

    Nothing changes if there are still too few nodes, or if the stream does not wait anymore.
    """
    unplaced = builder.image.streams.get(request.name)
    if unplaced is None or unplaced.uid != request.uid:
        return refuse(pb.ControlResponse.NOT_FOUND, f"there is no stream {request.name!r} of the id {request.uid!r}")
    if not unplaced.waiting:
        return builder.done()
    try:
        placed = yield from place_on_image(builder, waiting_for(unplaced, builder.placement_index))
    except ConfigError as error:
        return refuse(pb.ControlResponse.NOT_ENOUGH_NODES, str(error))
    builder.add(PartitionsAdded(unplaced.name, unplaced.uid, _accept_placement(builder, placed)))
    return builder.done()


def add_partitions(builder: RecordBuilder, request: pb.AddPartitions) -> Steps[Decision]:
    """Add partitions to a stream. Replicas of existing partitions do not move."""
    stream = _find_stream(builder, request.name, request.uid)
    if stream.waiting:
        detail = f"stream {request.name!r} waits for nodes: partitions are added when it has some"
        return refuse(pb.ControlResponse.NOT_ENOUGH_NODES, detail)
    try:
        wanted = _wanted_more(builder, request, stream)
        if wanted is None:
            return builder.done(pb.ControlResponse(stream=STREAM.to_pb(stream), detail=AS_MANY))
        placed = yield from place_on_image(builder, wanted)
    except (NoRoomError, NotEnoughNodesError) as error:
        return refuse(pb.ControlResponse.NOT_ENOUGH_NODES, str(error))
    except ConfigError as error:
        return refuse(pb.ControlResponse.INVALID, str(error))
    if request.dryRun:
        return Decision((), pb.ControlResponse(plan=plan_of(builder.image, wanted, placed)))
    added = _accept_placement(builder, placed, wanted.first)
    builder.add(PartitionsAdded(stream.name, stream.uid, added))
    more = replace(stream, partitions=(*stream.partitions, *added))
    return builder.done(pb.ControlResponse(stream=STREAM.to_pb(more), detail="; ".join(placed.notes)))


def delete_stream(builder: RecordBuilder, request: pb.DeleteStream) -> Decision:
    """Delete the stream with the name and uid in the request. Without a uid, delete the stream that has the name now [M11]."""
    stream = _find_stream(builder, request.name, request.uid)
    builder.add(StreamDeleted(stream.name, stream.uid))
    return builder.done(pb.ControlResponse(detail=stream.uid))


def _find_stream(builder: RecordBuilder, name: str, uid: str) -> StreamImage:
    """Return the stream, as ``builder.find_stream`` does. The text for another uid differs, and controllers store it."""
    stream = builder.find_stream(name, "")
    if uid not in ("", stream.uid):
        raise RejectedError(pb.ControlResponse.NOT_FOUND, f"stream {name!r} is {stream.uid} now; {uid} is gone")
    return stream


def _check_config(builder: RecordBuilder, request: pb.CreateStream, current: StreamImage | None) -> StreamConfig:
    """Check the request for a new stream and return its settings. Raise ConfigError for errors that do not depend on the nodes.

    ``current``: existing stream of this name, None if there is none.
    """
    image = builder.image
    check_name(request.name, "stream name")
    if request.name in RESERVED_NAMES:
        raise ConfigError(f"stream name {request.name!r} is a word of the protocol's own subjects: choose another")
    check_data_subject(request.subject, builder.rules.namespace)
    _check_count(request.subject, _count(request))
    if request.firstLeaderEpoch > MAX_FIRST_LEADER_EPOCH:
        raise ConfigError(f"first LeaderEpoch = {request.firstLeaderEpoch} is above {MAX_FIRST_LEADER_EPOCH}")
    config = CONFIG.from_pb(request.config)
    if current is None:
        if len(image.streams) >= MAX_STREAMS:
            raise ConfigError(f"there are {MAX_STREAMS} streams already: delete some first")
        _check_overlap(image, image.answering, request.subject, _count(request), config)
    return config


def _count(request: pb.CreateStream) -> int:
    return len(request.manual) or request.partitions or 1


def _check_count(subject: str, count: int) -> None:
    if count > MAX_PARTITIONS_PER_STREAM:
        raise ConfigError(f"partitions = {count} is outside 1..{MAX_PARTITIONS_PER_STREAM}")
    if count > 1 and subject.endswith(">"):
        raise ConfigError("a subject that ends in '>' can have one partition only: partition N listens on <subject>.N")
    if len(data_subject(subject, count - 1)) > MAX_SUBJECT_LENGTH:
        raise ConfigError(f"subject with the partition number is longer than {MAX_SUBJECT_LENGTH} characters")


def _check_overlap(image: ClusterImage, answering: SubjectIndex, subject: str, count: int, config: StreamConfig) -> None:
    """Raise ConfigError if the new stream and another one would send acks for the same subject [A8].

    A stream without acks may use any subject. ``subject``, ``count``, ``config``: subject, number of partitions and settings of
    the new stream. ``answering``: subjects of the streams that send acks.
    """
    if config.ack_policy is AckPolicy.NONE:
        return
    name = answering.overlapping(subject, count)
    if name:
        other = image.streams[name]
        overlap = (
            f"{other.subject!r} ({other.partition_count} partitions)" if other.partition_count > 1 else f"{other.subject!r}"
        )
        raise ConfigError(
            f"{OVERLAP} (err_code {OVERLAP_ERR_CODE}): {subject!r} with {overlap} of {name!r}; "
            "choose another subject, or the ack policy none, with which a stream answers nobody"
        )


def _partitions_to_place(builder: RecordBuilder, request: pb.CreateStream) -> PlacementRequest:
    assignment = assignment_from_pb(request.manual)
    if assignment and request.placement not in ("", MANUAL):
        raise ConfigError(f"an assignment needs placement {MANUAL!r}, not {request.placement!r}. Leave the placement out")
    if request.laterPlacement not in ("", *POLICY_NAMES):
        raise ConfigError(f"placement {request.laterPlacement!r} is not known: use one of {', '.join(POLICY_NAMES)}")
    if request.laterPlacement and not assignment:
        raise ConfigError("a placement for later partitions needs an assignment of the first ones")
    factor = request.replicationFactor
    if not assignment and request.placement != MANUAL:
        factor = factor or max(1, min(DEFAULT_REPLICATION_FACTOR, sum(node.takes for node in facts_of(builder.image))))
    _check_factor(factor or max((len(entry.replicas) for entry in assignment), default=1))
    return PlacementRequest(
        policy=MANUAL if assignment else request.placement,
        stream=request.name,
        partitions=_count(request),
        replication_factor=factor,
        start=builder.placement_index,
        assignment=assignment,
        allow_offline=request.allowOffline,
    )


def waiting_for(stream: StreamImage, start: int) -> PlacementRequest:
    """Return the partitions of ``stream`` to place. The stream waits for nodes. ``start``: start index of the placement."""
    return PlacementRequest(
        policy=stream.placement,
        stream=stream.name,
        partitions=stream.waiting,
        replication_factor=stream.replica_count,
        start=start,
    )


def _wanted_more(builder: RecordBuilder, request: pb.AddPartitions, stream: StreamImage) -> PlacementRequest | None:
    """Return the partitions to place for a request to add partitions. None: the request adds none.

    ``stream``: the stream. Raise ConfigError if the request is invalid.
    """
    first, assignment = len(stream.partitions), assignment_from_pb(request.manual)
    total = request.partitions or first + len(assignment)
    policy = MANUAL if assignment else request.placement or stream.placement
    if total == first:
        return None
    if total < first:
        raise ConfigError(f"stream {stream.name!r} has {first} partitions: they can become more, not fewer")
    if policy == MANUAL and total != first + len(assignment):
        raise ConfigError(
            f"stream {stream.name!r} was placed by hand: assign its partitions {first} to {total - 1}, or name a placement"
        )
    _check_count(stream.subject, total)
    others = builder.image.answering.without_stream(stream.name, stream.subject) if stream.answers else builder.image.answering
    _check_overlap(builder.image, others, stream.subject, total, stream.config)
    return PlacementRequest(
        policy=policy,
        stream=stream.name,
        partitions=total - first,
        replication_factor=stream.replica_count,
        start=builder.placement_index,
        first=first,
        assignment=assignment,
        allow_offline=request.allowOffline,
    )


def _check_factor(factor: int) -> None:
    if factor > MAX_REPLICATION_FACTOR:
        raise ConfigError(f"replication factor = {factor} is outside 1..{MAX_REPLICATION_FACTOR}")


def _placed_or_waits(builder: RecordBuilder, wanted: PlacementRequest) -> Steps[PlacementResult | NotEnoughNodesError]:
    try:
        return (yield from place_on_image(builder, wanted))
    except NotEnoughNodesError as error:
        return error


def _accept_placement(builder: RecordBuilder, placed: PlacementResult, first: int = 0) -> tuple[PartitionState, ...]:
    """Return the new partitions with the replicas in ``placed``, and advance the start index for later placements.

    ``first``: number of the first new partition.
    """
    builder.placement_index = placed.next_start
    return new_partitions(builder, placed.replicas, first)


def _existing_stream_text(
    request: pb.CreateStream, policy: str, stream: StreamImage, placed: PlacementResult | NotEnoughNodesError
) -> str:
    if isinstance(placed, NotEnoughNodesError):
        return f"{INSUFFICIENT_NODES}: {placed}; it is placed when they come"
    notes = list(placed.notes)
    if not request.replicationFactor and policy != MANUAL:
        fewer = stream.replication_factor < DEFAULT_REPLICATION_FACTOR
        notes.append(f"replication factor {stream.replication_factor}" + (": there are no more live nodes" if fewer else ""))
    return "; ".join(notes)


def alter_stream(builder: RecordBuilder, request: pb.AlterStream) -> Steps[Decision]:
    """Change the replication factor and the named settings of a stream.

    If the request names a config version, it must be current.

    New replicas go to the least loaded nodes on other racks. The least useful replicas are removed.
    """
    current = builder.find_stream(request.name, request.uid)
    factor = request.replicationFactor
    if not (1 <= factor <= MAX_REPLICAS or (not factor and request.changed)):
        return refuse(pb.ControlResponse.INVALID, f"replication factor = {factor} is outside 1..{MAX_REPLICAS}")
    try:
        stream = _with_settings(current, request)
    except ConfigError as error:
        return refuse(pb.ControlResponse.INVALID, stored_text(error))
    if request.HasField("configVersion") and request.configVersion != current.config_version:
        detail = (
            f"the settings of {current.name!r} are at version {current.config_version}, not {request.configVersion}: look again"
        )
        return refuse(pb.ControlResponse.STALE, detail)
    partitions = (yield from _change_replication_factor(builder, current, factor)) if factor else list(current.partitions)
    stream = replace(stream, replication_factor=factor or current.replication_factor, partitions=tuple(partitions))
    if request.dryRun:
        return Decision((), pb.ControlResponse(stream=STREAM.to_pb(stream)))
    if _rejection_rules_differ(current.config, stream.config):
        partitions = [_with_reset_standby_buffers(partition) for partition in partitions]
    if stream.config != current.config:
        builder.add(StreamAltered(current.name, current.uid, stream.replication_factor, stream.config, stream.config_version))
    elif stream.replication_factor != current.replication_factor:
        builder.add(StreamAltered(current.name, current.uid, stream.replication_factor))
    for number, changed in enumerate(partitions):
        if changed != current.partitions[number]:
            partitions[number] = builder.change(current, changed)
        if number % PER_STEP == PER_STEP - 1:
            yield
    return builder.done(pb.ControlResponse(stream=STREAM.to_pb(replace(stream, partitions=tuple(partitions)))))


def _with_settings(current: StreamImage, request: pb.AlterStream) -> StreamImage:
    config = apply_changed_fields(current.config, request.config, request.changed)
    return replace(current, config=config, config_version=current.config_version + (config != current.config))


def _rejection_rules_differ(old: StreamConfig, new: StreamConfig) -> bool:
    """Return whether a leader with the settings ``new`` rejects other publishes than with ``old`` [A2].

    Then followers with a standby buffer must clear it. False for a stream without standby buffers.
    """
    return new.failover_standby and any(getattr(old, name) != getattr(new, name) for name in REFUSED_BY)


def _with_reset_standby_buffers(partition: PartitionState) -> PartitionState:
    """Return the partition with a mark that makes followers clear their standby buffers of publishes.

    Followers buffer publishes again when the leader knows the new settings, as after a pause.
    """
    pause = partition.pause if partition.pause.takes_nothing else Pause.ENDING
    return replace(partition, pause=pause, pauses=partition.pauses + 1)


def _change_replication_factor(builder: RecordBuilder, stream: StreamImage, factor: int) -> Steps[list[PartitionState]]:
    facts = facts_of(builder.image)
    on = Counter({node.node_id: node.replicas for node in facts})
    for partition in stream.partitions:
        for node_id, step in yield_replica_changes(partition):
            on[node_id] += step
    takers = DestinationNodes(facts, on)
    partitions: list[PartitionState] = []
    for partition in stream.partitions:
        wanted = partition.target or partition.replicas
        target = with_replication_factor(wanted, factor, takers, partition.leader or wanted[0], partition.isr, stream.placement)
        if target is None:
            raise RejectedError(pb.ControlResponse.NOT_ENOUGH_NODES, _why_no_node(stream, partition, factor, takers))
        changed = replace(partition, target=target, moved_for=MoveReason.FACTOR)
        partitions.append(partition if target == wanted else finish_reached_target(stream, changed))
        if len(partitions) % PER_STEP == 0:
            yield
    return partitions


def _why_no_node(stream: StreamImage, partition: PartitionState, factor: int, takers: DestinationNodes) -> str:
    where = f"{stream.name}/{partition.partition}"
    if takers.count < factor:
        who = "that are live, weigh something and are not drained"
        return f"not enough nodes: {factor} replicas need as many {who}; there are {takers.count}"
    return f"{where} finds no node for replica {factor}: those that are left are full, or in racks that it has already"


def open_groups(builder: RecordBuilder, request: pb.OpenGroups) -> Steps[Decision]:
    """Return the internal stream of consumer groups, and create it if needed. All readers may request it."""
    stream = builder.image.streams.get(GROUPS_STREAM)
    if stream is not None:
        return builder.done(pb.ControlResponse(stream=STREAM.to_pb(stream)))
    config = StreamConfig(segment_bytes=SEGMENT_BYTES, retention_bytes=RETENTION_BYTES)
    wanted = pb.CreateStream(
        name=GROUPS_STREAM,
        subject=Subjects(builder.rules.namespace).groups(),
        partitions=request.partitions,
        replicationFactor=request.replicationFactor,
        config=CONFIG.to_pb(config),
    )
    return (yield from create_stream(builder, wanted))


def with_partition_count(request: pb.ControlRequest, config: ReplicationConfig) -> None:
    """Set the number of partitions and replicas in a request for the groups stream, from the settings of the metadata leader."""
    if request.HasField("openGroups"):
        wanted = pb.OpenGroups(partitions=config.groups_partitions, replicationFactor=config.groups_replicas)
        request.openGroups.CopyFrom(wanted)


def set_default_quota(builder: RecordBuilder, request: pb.SetDefaultQuota) -> Decision:
    """Set the values of the cluster's default quota that the request names. Other values do not change."""
    image = builder.image
    whole = QUOTA.to_pb(image.default_quota)
    for name in ("recordsPerS", "bytesPerS", "byToken"):
        if request.HasField(name):
            setattr(whole, name, getattr(request, name))
    try:
        quota = QUOTA.from_pb(whole)
    except ConfigError as error:
        return refuse(pb.ControlResponse.INVALID, f"default quota: {error}")
    if quota != image.default_quota:
        builder.add(DefaultQuotaSet(quota))
    return builder.done(pb.ControlResponse(defaultQuota=whole))


# ---- placement --------------------------------------------------------------------------------------------------------


def assignment_from_pb(lists: Iterable[pb.ReplicaList]) -> tuple[AssignmentEntry, ...]:
    """Convert a manual assignment of replicas to partitions from protobuf."""
    return tuple(AssignmentEntry(partition=entry.partition, replicas=tuple(entry.replicas)) for entry in lists)


def place_on_image(builder: RecordBuilder, wanted: PlacementRequest) -> Steps[PlacementResult]:
    """Choose nodes of the image for the partitions ``wanted``. Raises the errors of ``place``.

    The start index for the next placement does not change.
    """
    nodes = facts_of(builder.image)
    if takes_long(nodes, wanted):
        candidates_for(nodes, wanted)
        builder.takes_long()
    return (yield from place_in_steps(nodes, wanted))


def new_partitions(builder: RecordBuilder, placed: Sequence[Replicas], first: int = 0) -> tuple[PartitionState, ...]:
    """Return new empty partitions with numbers from ``first`` on. ``placed``: replicas of each.

    The first live replica leads, all live replicas are in the ISR. If all are down, the partition waits.
    """
    leader_epoch, epoch = builder.next_leader_epochs(len(placed)), builder.next_epochs(len(placed))
    live = {node for node in set().union(*placed) if builder.is_live(node)}
    return tuple(
        _new_partition(first + number, replicas, live, leader_epoch + number, epoch + number)
        for number, replicas in enumerate(placed)
    )


def _new_partition(number: int, replicas: Replicas, live: set[str], leader_epoch: int, epoch: int) -> PartitionState:
    up = replicas if live.issuperset(replicas) else tuple(node for node in replicas if node in live)
    leader = up[0] if up else ""
    return PartitionState(
        partition=number,
        replicas=replicas,
        isr=up or replicas,
        leader=leader,
        leader_epoch=leader_epoch,
        epoch=epoch,
        status=PartitionStatus.ONLINE if leader else PartitionStatus.OFFLINE,
        last_leader=leader,
        leaderships=1 if leader else 0,
    )


def plan_of(image: ClusterImage, wanted: PlacementRequest, placed: PlacementResult | NotEnoughNodesError) -> pb.PlacementPlan:
    """Return the answer to a dry run of a placement: the assignment, or the reason why the stream would wait.

    ``wanted``: requested partitions. ``placed``: result of ``place``, or its error.
    """
    nodes = facts_of(image)
    plan = pb.PlacementPlan(
        firstPartition=wanted.first,
        replicationFactor=wanted.replication_factor,
        nodes=[
            pb.PlannedNode(
                nodeId=node.node_id,
                rack=node.rack,
                weight=node.weight,
                replicas=node.replicas,
                leaders=node.leaders,
                fenced=not node.live,
            )
            for node in nodes
        ],
    )
    if isinstance(placed, NotEnoughNodesError):
        plan.waits = str(placed)
        return plan
    at = {node.node_id: number for number, node in enumerate(nodes)}
    plan.replicationFactor = len(placed.replicas[0])
    plan.replicas.extend(at[node] for replicas in placed.replicas for node in replicas)
    plan.notes.extend(placed.notes)
    return plan


# ---- streams that wait for nodes -------------------------------------------------------------------------------------


def why_it_waits(image: ClusterImage, stream: StreamImage) -> str:
    """Return the reason why ``stream`` waits for placement, as text."""
    try:
        candidates_for(facts_of(image), waiting_for(stream, 0))
    except PlacementError as error:
        return str(error)
    return NO_ROOM


class UnplacedStreams:
    """Streams that wait for nodes (``insufficient-nodes``). Times are monotonic.

    A stream with too few nodes is created without partitions. When nodes change, the metadata leader checks the waiting
    streams, the oldest first, and proposes PlaceStream.
    """

    def __init__(self) -> None:
        self._image: ClusterImage | None = None
        self._next_check_ns: int | None = None
        """Monotonic time of the next check. None: no check is needed until the image changes."""
        self._earliest_ns = 0
        self._proposed_ns: dict[str, int] = {}
        """Stream uid -> monotonic time of the last proposal to place the stream."""

    def lead(self, image: ClusterImage, now_ns: int) -> None:
        self._image = ClusterImage()
        self._proposed_ns.clear()
        self._earliest_ns = now_ns
        self.image_changed(image, now_ns)

    def resign(self) -> None:
        self._image = self._next_check_ns = None

    def image_changed(self, image: ClusterImage, now_ns: int) -> None:
        """Update the list of waiting streams after an entry was applied.

        If nodes or waiting streams changed, the next check comes soon.
        """
        if self._image is None:
            return
        before, self._image = self._image, image
        if not image.waiting:
            self._next_check_ns = None
        elif any(getattr(before, field) is not getattr(image, field) for field in ("nodes", "waiting", "replica_counts")):
            self._next_check_ns = self._earliest_ns

    def take_due(self, now_ns: int) -> list[pb.PlaceStream]:
        image = self._image
        if image is None or self._next_check_ns is None or now_ns < self._next_check_ns:
            return []
        self._earliest_ns, self._next_check_ns = now_ns + CHECK_EVERY_NS, now_ns + AGAIN_AFTER_NS
        streams = sorted((image.streams[name] for name in image.waiting), key=lambda stream: stream.uid)
        uids = {stream.uid for stream in streams}
        self._proposed_ns = {
            uid: at_ns for uid, at_ns in self._proposed_ns.items() if uid in uids and now_ns - at_ns < AGAIN_AFTER_NS
        }
        nodes, requests = facts_of(image), list[pb.PlaceStream]()
        enough: dict[tuple[str, int], bool] = {}
        for stream in streams:
            if stream.uid in self._proposed_ns:
                continue
            kind = (stream.placement, stream.replica_count)
            if kind not in enough:
                try:
                    enough[kind] = bool(candidates_for(nodes, waiting_for(stream, 0)))
                except PlacementError:
                    enough[kind] = False
            if not enough[kind]:
                continue
            if len(requests) == AT_ONCE:
                self._next_check_ns = self._earliest_ns
                break
            self._proposed_ns[stream.uid] = now_ns
            requests.append(pb.PlaceStream(name=stream.name, uid=stream.uid))
        return requests

    def next_deadline_ns(self) -> int | None:
        return self._next_check_ns if self._image is not None else None
