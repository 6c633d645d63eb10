"""AlterStream: another replication factor, other settings. What is wanted is stored, and a target for every partition; the moves follow
one by one. Settings hold as soon as a replica's node knows them; those by which publishes are refused, with a standby, as a pause that
ends. TruncateBefore: the same for where a partition's log begins."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from liftpy.cluster.codec import partition_to_pb, stream_to_pb
from liftpy.cluster.decisions.moving import MAX_REPLICAS, settled
from liftpy.cluster.decisions.placing import facts_of
from liftpy.cluster.draft import Decision, Draft, refuse
from liftpy.cluster.features import alterable_at
from liftpy.cluster.image import StreamImage
from liftpy.cluster.movements import replicas_to_come
from liftpy.cluster.placement.takers import Takers, resized
from liftpy.cluster.records import StreamAltered
from liftpy.cluster.steps import PER_STEP, Steps
from liftpy.cluster.stream_config import altered
from liftpy.config import REFUSED_BY, StreamConfig
from liftpy.errors import ConfigError
from liftpy.partition import MoveReason, PartitionState, Pause
from liftpy.wire._pb import cluster_pb2 as pb

MAX_OFFSET = 1 << 62


def alter_stream(draft: Draft, request: pb.AlterStream) -> Steps[Decision]:
    """So many replicas of every partition: more go where least is, on other racks if there are; of fewer, those that serve least go.
    And the settings that the request names, by compare-and-set where it names their version."""
    held = draft.image.streams.get(request.name)
    if held is None or request.uid not in ("", held.uid):
        detail = f"there is no stream {request.name!r}" + (f" of the id {request.uid!r}" if held is not None else "")
        return refuse(pb.ControlResponse.NOT_FOUND, detail)
    factor = request.replicationFactor
    if not (1 <= factor <= MAX_REPLICAS or (not factor and request.changed)):
        return refuse(pb.ControlResponse.INVALID, f"replication factor = {factor} is outside 1..{MAX_REPLICAS}")
    try:
        stream = _with_settings(held, request, alterable_at(draft.image.feature_level))
    except ConfigError as error:
        return refuse(pb.ControlResponse.INVALID, str(error))
    if request.HasField("configVersion") and request.configVersion != held.config_version:
        detail = f"the settings of {held.name!r} are at version {held.config_version}, not {request.configVersion}: look again"
        return refuse(pb.ControlResponse.STALE, detail)
    partitions = (yield from _resized(draft, held, factor)) if factor else list(held.partitions)
    if isinstance(partitions, Decision):
        return partitions
    stream = replace(stream, replication_factor=factor or held.replication_factor, partitions=tuple(partitions))
    if request.dryRun:
        return Decision((), pb.ControlResponse(stream=stream_to_pb(stream)))
    if _refuses_otherwise(held.config, stream.config):
        partitions = [_heard_anew(partition) for partition in partitions]
    if stream.config != held.config:
        draft.add(StreamAltered(held.name, held.uid, stream.replication_factor, stream.config, stream.config_version))
    elif stream.replication_factor != held.replication_factor:
        draft.add(StreamAltered(held.name, held.uid, stream.replication_factor))
    for number, changed in enumerate(partitions):
        if changed != held.partitions[number]:
            partitions[number] = draft.change(held, changed)
        if number % PER_STEP == PER_STEP - 1:
            yield
    return draft.done(pb.ControlResponse(stream=stream_to_pb(replace(stream, partitions=tuple(partitions)))))


def truncate_before(draft: Draft, request: pb.TruncateBefore) -> Decision:
    """Every replica gives up what lies below the offset, also one that is away now. It never goes back."""
    found = draft.image.find(request.stream, request.uid, request.partition) if request.uid else None
    if found is None:
        detail = f"there is no partition {request.stream}/{request.partition} of the id {request.uid!r}"
        return refuse(pb.ControlResponse.NOT_FOUND, detail)
    stream, partition = found
    if not 0 <= request.offset <= MAX_OFFSET:
        return refuse(pb.ControlResponse.INVALID, f"offset = {request.offset} is outside 0..{MAX_OFFSET}", partition)
    if request.offset > partition.asked_start:
        partition = draft.change(stream, replace(partition, asked_start=request.offset))
    return draft.done(pb.ControlResponse(partition=partition_to_pb(partition)))


def _with_settings(held: StreamImage, request: pb.AlterStream, alterable: tuple[str, ...]) -> StreamImage:
    config = altered(held.config, request.config, request.changed, alterable)
    return replace(held, config=config, config_version=held.config_version + (config != held.config))


def _refuses_otherwise(old: StreamConfig, new: StreamConfig) -> bool:
    """Whether a leader that has not heard of ``new`` may refuse what followers that have keep for the next one [A2]."""
    return new.failover_standby and any(getattr(old, name) != getattr(new, name) for name in REFUSED_BY)


def _heard_anew(partition: PartitionState) -> PartitionState:
    """As with a pause that ends: followers forget what they heard, and listen again when the leader has said that it knows."""
    pause = partition.pause if partition.pause.takes_nothing else Pause.ENDING
    return replace(partition, pause=pause, pauses=partition.pauses + 1)


def _resized(draft: Draft, held: StreamImage, factor: int) -> Steps[list[PartitionState] | Decision]:
    facts = facts_of(draft.image)
    on = Counter({node.node_id: node.replicas for node in facts})
    for partition in held.partitions:
        for node_id, step in replicas_to_come(partition):
            on[node_id] += step
    takers = Takers(facts, on)
    partitions: list[PartitionState] = []
    for partition in held.partitions:
        wanted = partition.target or partition.replicas
        target = resized(wanted, factor, takers, partition.leader or wanted[0], partition.isr, held.placement)
        if target is None:
            return refuse(pb.ControlResponse.NOT_ENOUGH_NODES, _nobody(held, partition, factor, takers))
        changed = replace(partition, target=target, moved_for=MoveReason.FACTOR)
        partitions.append(partition if target == wanted else settled(held, changed))
        if len(partitions) % PER_STEP == 0:
            yield
    return partitions


def _nobody(stream: StreamImage, partition: PartitionState, factor: int, takers: Takers) -> str:
    where = f"{stream.name}/{partition.partition}"
    if takers.count < factor:
        who = "that are live, weigh something and are not drained"
        return f"not enough nodes: {factor} replicas need as many {who}; there are {takers.count}"
    return f"{where} finds no node for replica {factor}: those that are left are full, or in racks that it has already"
