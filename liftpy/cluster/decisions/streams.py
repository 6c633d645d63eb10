"""CreateStream and DeleteStream."""

from __future__ import annotations

from liftpy.cluster.codec import stream_to_pb
from liftpy.cluster.draft import Decision, Draft, refuse
from liftpy.cluster.image import ClusterImage, NodeImage, StreamImage
from liftpy.cluster.placement import place
from liftpy.cluster.placement.facts import NodeFacts, Wanted
from liftpy.cluster.placement.placement_error import NoRoomError, NotEnoughNodesError
from liftpy.cluster.records import StreamCreated, StreamDeleted
from liftpy.cluster.stream_config import config_from_pb
from liftpy.config import AckPolicy, StreamConfig
from liftpy.errors import ConfigError
from liftpy.ids import MAX_SUBJECT_LENGTH, check_data_subject, check_name
from liftpy.partition import PartitionState
from liftpy.wire._pb import cluster_pb2 as pb
from liftpy.wire.subjects import RESERVED_NAMES, data_subject

MAX_STREAMS = 100_000
MAX_PARTITIONS_PER_STREAM = 10_000
MAX_REPLICATION_FACTOR = 32
DEFAULT_REPLICATION_FACTOR = 3
OVERLAP = "subjects overlap with an existing stream"
OVERLAP_ERR_CODE = 10065
"""What JetStream says, and its err_code."""


def create_stream(draft: Draft, request: pb.CreateStream) -> Decision:
    """A new stream, Online, led by each partition's first replica with all replicas in the ISR: all logs are empty."""
    image = draft.image
    try:
        _check_names(request, draft.rules.namespace)
        config = config_from_pb(request.config)
        held = image.streams.get(request.name)
        if held is not None:
            existing = refuse(pb.ControlResponse.EXISTS, f"stream {request.name!r} exists, attached to {held.subject!r}")
            existing.response.stream.CopyFrom(stream_to_pb(held))
            return existing
        if len(image.streams) >= MAX_STREAMS:
            raise ConfigError(f"there are {MAX_STREAMS} streams already: delete some first")
        _check_overlap(image, request, config)
        replicas = _place(draft, request)
    except (NoRoomError, NotEnoughNodesError) as error:
        return refuse(pb.ControlResponse.NOT_ENOUGH_NODES, str(error))
    except ConfigError as error:
        return refuse(pb.ControlResponse.INVALID, str(error))
    stream = StreamImage(
        name=request.name,
        uid=draft.next_stream_uid(),
        subject=request.subject,
        config=config,
        partitions=_partitions(draft, replicas),
        created_time_ns=draft.now_ns,
    )
    draft.add(StreamCreated(stream))
    return draft.done(pb.ControlResponse(stream=stream_to_pb(stream), detail=_said(request, len(replicas[0]))))


def delete_stream(draft: Draft, request: pb.DeleteStream) -> Decision:
    """Delete by name and unique id; without an id, the stream that has the name at apply [M11]."""
    held = draft.image.streams.get(request.name)
    if held is None:
        return refuse(pb.ControlResponse.NOT_FOUND, f"there is no stream {request.name!r}")
    if request.uid and request.uid != held.uid:
        detail = f"stream {request.name!r} is {held.uid} now; {request.uid} is gone"
        return refuse(pb.ControlResponse.NOT_FOUND, detail)
    draft.add(StreamDeleted(held.name, held.uid))
    return draft.done(pb.ControlResponse(detail=held.uid))


def _check_names(request: pb.CreateStream, namespace: str) -> None:
    check_name(request.name, "stream name")
    if request.name in RESERVED_NAMES:
        raise ConfigError(f"stream name {request.name!r} is a word of the protocol's own subjects: choose another")
    check_data_subject(request.subject, namespace)
    count = request.partitions or 1
    if count > MAX_PARTITIONS_PER_STREAM:
        raise ConfigError(f"partitions = {count} is outside 1..{MAX_PARTITIONS_PER_STREAM}")
    if count > 1 and request.subject.endswith(">"):
        raise ConfigError("a subject that ends in '>' can have one partition only: partition N listens on <subject>.N")
    if len(data_subject(request.subject, count - 1)) > MAX_SUBJECT_LENGTH:
        raise ConfigError(f"subject with the partition number is longer than {MAX_SUBJECT_LENGTH} characters")


def _check_overlap(image: ClusterImage, request: pb.CreateStream, config: StreamConfig) -> None:
    """At most one stream answers on a subject [A8]; one that never answers may listen anywhere."""
    if config.ack_policy is AckPolicy.NONE:
        return
    name = image.answering.overlapping(request.subject, request.partitions or 1)
    if name:
        held = image.streams[name]
        of = f"{held.subject!r} ({len(held.partitions)} partitions)" if len(held.partitions) > 1 else f"{held.subject!r}"
        raise ConfigError(
            f"{OVERLAP} (err_code {OVERLAP_ERR_CODE}): {request.subject!r} with {of} of {name!r}; "
            "choose another subject, or the ack policy none, with which a stream answers nobody"
        )


def _place(draft: Draft, request: pb.CreateStream) -> list[tuple[str, ...]]:
    image = draft.image
    factor = request.replicationFactor or max(1, min(DEFAULT_REPLICATION_FACTOR, len(image.live_nodes())))
    if factor > MAX_REPLICATION_FACTOR:
        raise ConfigError(f"replication factor = {factor} is outside 1..{MAX_REPLICATION_FACTOR}")
    wanted = Wanted(
        policy=request.placement,
        stream=request.name,
        partitions=request.partitions or 1,
        replication_factor=factor,
        start=draft.placement_index,
    )
    placed = place([_facts(image, node) for node in image.nodes.values()], wanted)
    draft.placement_index = placed.next_start
    return placed.replicas


def _facts(image: ClusterImage, node: NodeImage) -> NodeFacts:
    return NodeFacts(
        node_id=node.node_id,
        rack=node.rack,
        weight=node.weight,
        live=not node.fenced,
        replicas=image.replica_counts.get(node.node_id, 0),
        leaders=image.leader_counts.get(node.node_id, 0),
        budget=node.partition_budget,
    )


def _partitions(draft: Draft, placed: list[tuple[str, ...]]) -> tuple[PartitionState, ...]:
    leader_epoch, epoch = draft.next_leader_epochs(len(placed)), draft.next_epochs(len(placed))
    return tuple(
        PartitionState(
            partition=number,
            replicas=replicas,
            isr=replicas,
            leader=replicas[0],
            leader_epoch=leader_epoch + number,
            epoch=epoch + number,
            last_leader=replicas[0],
            leaderships=1,
        )
        for number, replicas in enumerate(placed)
    )


def _said(request: pb.CreateStream, factor: int) -> str:
    if request.replicationFactor:
        return ""
    fewer = factor < DEFAULT_REPLICATION_FACTOR
    return f"replication factor {factor}" + (": there are no more live nodes" if fewer else "")
