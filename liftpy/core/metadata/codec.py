"""Encodes image values as protobuf and back. The same image gives the same bytes on every node [M5].

A missing field of a StreamConfig means the default. A wrong one raises a ConfigError that names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import Enum
from itertools import chain
from typing import TypeVar

from immutables import Map

from liftpy.config import (
    ALTERABLE,
    NO_QUOTA,
    AckPolicy,
    Codec,
    CommitPolicy,
    DefaultQuota,
    FlushPolicy,
    SessionTimes,
    StreamConfig,
)
from liftpy.core.base.partition import MoveReason, PartitionState, PartitionStatus, Pause, Purge, PurgedBy
from liftpy.core.metadata.controller_list import list_from_pb, list_to_pb
from liftpy.core.metadata.feature_range import NO_LEVEL
from liftpy.core.metadata.idempotency_cache import IdempotencyCache, Operation
from liftpy.core.metadata.image import ClusterImage, ClusterRules, Counters, LeaderReport, NodeImage, StreamImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.decode_errors import has_unknown_fields
from liftpy.errors import ConfigError, IncompatibleVersionError

E = TypeVar("E", bound=Enum)
_DEFAULT = StreamConfig()


def config_to_pb(config: StreamConfig) -> pb.StreamConfig:
    """Return the protobuf of ``config`` with every field set."""
    return pb.StreamConfig(
        ackPolicy=config.ack_policy.value,
        minIsr=config.min_isr,
        flush=str(config.flush),
        commitPolicy=config.commit_policy.value,
        segmentBytes=config.segment_bytes,
        segmentAgeS=config.segment_age_s,
        retentionAgeS=config.retention_age_s,
        retentionBytes=config.retention_bytes,
        retentionRecords=config.retention_records,
        compaction=config.compaction,
        deleteRetentionS=config.delete_retention_s,
        codec=config.codec.name.lower(),
        failoverStandby=config.failover_standby,
        dedupWindowS=config.dedup_window_s,
        readOnly=config.read_only,
        maxMessageBytes=config.max_message_bytes,
        optimisticConcurrency=config.optimistic_concurrency,
        maxHeldS=config.min_isr_hold_timeout_s,
        maxPerSubject=config.max_per_subject,
        quotaRecordsPerS=config.quota_records_per_s,
        quotaBytesPerS=config.quota_bytes_per_s,
        quotaByToken=config.quota_by_token,
        quotaExempt=config.quota_exempt,
    )


def config_from_pb(message: pb.StreamConfig) -> StreamConfig:
    """Return the configuration of a protobuf. Raise ConfigError that names the wrong field."""
    return StreamConfig(
        ack_policy=_choice(AckPolicy, "ack policy", message.ackPolicy or _DEFAULT.ack_policy.value),
        min_isr=message.minIsr,
        flush=FlushPolicy.parse(message.flush) if message.flush else _DEFAULT.flush,
        commit_policy=_choice(CommitPolicy, "commit policy", message.commitPolicy or _DEFAULT.commit_policy.value),
        segment_bytes=message.segmentBytes or _DEFAULT.segment_bytes,
        segment_age_s=message.segmentAgeS,
        retention_age_s=message.retentionAgeS,
        retention_bytes=message.retentionBytes,
        retention_records=message.retentionRecords,
        compaction=message.compaction,
        delete_retention_s=message.deleteRetentionS if message.HasField("deleteRetentionS") else _DEFAULT.delete_retention_s,
        codec=_codec(message.codec),
        failover_standby=message.failoverStandby if message.HasField("failoverStandby") else _DEFAULT.failover_standby,
        dedup_window_s=message.dedupWindowS if message.HasField("dedupWindowS") else _DEFAULT.dedup_window_s,
        read_only=message.readOnly,
        max_message_bytes=message.maxMessageBytes,
        optimistic_concurrency=message.optimisticConcurrency,
        min_isr_hold_timeout_s=message.maxHeldS,
        max_per_subject=message.maxPerSubject,
        quota_records_per_s=message.quotaRecordsPerS,
        quota_bytes_per_s=message.quotaBytesPerS,
        quota_by_token=message.quotaByToken,
        quota_exempt=message.quotaExempt,
    )


def quota_to_pb(quota: DefaultQuota) -> pb.DefaultQuota:
    """Convert a DefaultQuota to protobuf."""
    return pb.DefaultQuota(recordsPerS=quota.records_per_s, bytesPerS=quota.bytes_per_s, byToken=quota.by_token)


def quota_from_pb(message: pb.DefaultQuota) -> DefaultQuota:
    """Return the DefaultQuota of a protobuf. Raise ConfigError if a value is out of range."""
    return DefaultQuota(records_per_s=message.recordsPerS, bytes_per_s=message.bytesPerS, by_token=message.byToken)


_WIRE_NAMES = {"min_isr_hold_timeout_s": "maxHeldS"}
"""Field of StreamConfig -> its name in the protobuf, for fields whose two names differ."""


_STORED_NAMES = {"min_isr_hold_timeout_s": "max_held_s"}
"""Field of StreamConfig -> its name in texts that were stored at feature level 5."""


def stored_text(error: ConfigError) -> str:
    """Return the text of a rejection in the form that all controllers store. A renamed setting has its name of feature level 5.

    The text is part of the image. Two versions that store other texts hold other images.
    """
    text = str(error)
    for now, at_level_5 in _STORED_NAMES.items():
        text = text.replace(now, at_level_5)
    return text


def wire_name(field: str) -> str:
    """Return the protobuf name of a field of StreamConfig."""
    first, *others = field.split("_")
    return _WIRE_NAMES.get(field, first + "".join(word.capitalize() for word in others))


_ALTERABLE = frozenset(wire_name(field) for field in ALTERABLE)


def altered(config: StreamConfig, wanted: pb.StreamConfig, changed: Iterable[str]) -> StreamConfig:
    """Return ``config`` after the changed fields are taken from ``wanted``. ``changed`` has the protobuf names of these fields.

    Raise ConfigError if a field is fixed or out of its range.
    """
    whole = config_to_pb(config)
    for name in changed:
        if name not in _ALTERABLE:
            raise ConfigError(f"{name!r} can't be changed any more: of a stream that is there, {', '.join(ALTERABLE)} can")
        setattr(whole, name, getattr(wanted, name))
    found = config_from_pb(whole)
    if found.is_cleaned != config.is_cleaned:
        raise ConfigError(
            "max_per_subject neither begins nor ends with a stream that is there: readers and services would take the gaps that it "
            "makes for damage, or the other way round. Make another stream"
        )
    return found


def _choice(kind: type[E], what: str, value: str) -> E:
    try:
        return kind(value)
    except ValueError:
        allowed = ", ".join(repr(member.value) for member in kind)
        raise ConfigError(f"{what} {value!r} is not known: use one of {allowed}") from None


def _codec(name: str) -> Codec:
    if not name:
        return _DEFAULT.codec
    for codec in Codec:
        if codec.name.lower() == name:
            return codec
    raise ConfigError(f"codec {name!r} is not known: use one of {', '.join(repr(c.name.lower()) for c in Codec)}")


_STATUS = {
    PartitionStatus.OFFLINE: pb.OFFLINE,
    PartitionStatus.ONLINE: pb.ONLINE,
    PartitionStatus.ELECTION: pb.ELECTION,
    PartitionStatus.CANDIDATE_FOUND: pb.CANDIDATE_FOUND,
}
_REASON = {
    MoveReason.BY_HAND: pb.BY_HAND,
    MoveReason.REBALANCED: pb.REBALANCED,
    MoveReason.REPLACED: pb.REPLACED,
    MoveReason.DRAINED: pb.DRAINED,
    MoveReason.FACTOR: pb.FACTOR,
    MoveReason.LEADERSHIPS: pb.LEADERSHIPS,
}
_PAUSE = {
    Pause.NOT_PAUSED: pb.NOT_PAUSED,
    Pause.UNTIL_RESUMED: pb.UNTIL_RESUMED,
    Pause.UNTIL_PUBLISH: pb.UNTIL_PUBLISH,
    Pause.ENDING: pb.ENDING,
    Pause.UNTIL_PUBLISH_TO_ANY: pb.UNTIL_PUBLISH_TO_ANY,
}
_STATUS_OF = {int(number): status for status, number in _STATUS.items()}


class Names:
    """Keeps one object for equal strings and equal tuples of strings. A large image names the same few nodes many times."""

    def __init__(self) -> None:
        self._strings: dict[str, str] = {}
        self._tuples: dict[tuple[str, ...], tuple[str, ...]] = {}

    def string(self, value: str) -> str:
        """Return the first object that was equal to ``value``."""
        return self._strings.setdefault(value, value)

    def strings(self, values: Sequence[str]) -> tuple[str, ...]:
        """Return a tuple of ``values`` with shared strings."""
        if not values:
            return ()
        made = tuple(values)
        held = self._tuples.get(made)
        if held is None:
            held = self._tuples[made] = tuple(self.string(value) for value in made)
        return held


def node_to_pb(node: NodeImage) -> pb.Node:
    """Encode a NodeImage."""
    return pb.Node(
        nodeId=node.node_id,
        incarnation=node.incarnation,
        rack=node.rack,
        weight=node.weight,
        version=node.version,
        statusAddress=node.status_address,
        fenced=node.fenced,
        sessionTimeNs=node.session_time_ns,
        previousIncarnation=node.previous_incarnation,
        folderId=node.folder_id,
        start=node.start,
        nonce=node.nonce,
        earlierNonces=node.earlier_nonces,
        partitionBudget=node.partition_budget,
        weightByHand=node.weight_by_hand,
        rackByHand=node.rack_by_hand,
        leaving=node.leaving,
        host=node.host,
    )


def node_from_pb(message: pb.Node) -> NodeImage:
    """Decode a NodeImage."""
    return NodeImage(
        node_id=message.nodeId,
        incarnation=message.incarnation,
        rack=message.rack,
        weight=message.weight,
        version=message.version,
        status_address=message.statusAddress,
        fenced=message.fenced,
        session_time_ns=message.sessionTimeNs,
        previous_incarnation=message.previousIncarnation,
        folder_id=message.folderId,
        start=message.start,
        nonce=message.nonce,
        earlier_nonces=tuple(message.earlierNonces),
        partition_budget=message.partitionBudget,
        weight_by_hand=message.weightByHand,
        rack_by_hand=message.rackByHand,
        leaving=message.leaving,
        host=message.host,
    )


def reason_to_pb(reason: MoveReason) -> pb.MoveReason:
    """Convert a MoveReason to protobuf."""
    return _REASON[reason]


def pause_to_pb(pause: Pause) -> pb.Pause:
    """Convert a Pause to protobuf."""
    return _PAUSE[pause]


def partition_to_pb(partition: PartitionState) -> pb.Partition:
    """Encode a PartitionState."""
    return pb.Partition(
        partition=partition.partition,
        replicas=partition.replicas,
        isr=partition.isr,
        leader=partition.leader,
        leaderEpoch=partition.leader_epoch,
        epoch=partition.epoch,
        status=_STATUS[partition.status],
        uncleanElected=partition.unclean_elected,
        candidate=partition.candidate,
        passedOver=partition.passed_over,
        incomplete=partition.incomplete,
        deposed=partition.deposed,
        lastLeader=partition.last_leader,
        leaderships=partition.leaderships,
        complete=partition.complete,
        target=partition.target,
        joining=partition.joining,
        movedFor=_REASON[partition.moved_for],
        copyEpoch=partition.copy_epoch,
        askedStart=partition.asked_start,
        purges=[pb.Purge(number=p.number, subjects=p.subjects, keys=p.keys, endOffset=p.end_offset) for p in partition.purges],
        purged=[pb.PurgedBy(node=said.node, number=said.number) for said in partition.purged],
        pause=pause_to_pb(partition.pause),
        pauses=partition.pauses,
    )


def partition_from_pb(message: pb.Partition, names: Names | None = None) -> PartitionState:
    """Convert a protobuf partition to a PartitionState. ``names`` shares the strings of many partitions."""
    names = names or Names()
    return PartitionState(
        partition=message.partition,
        replicas=names.strings(message.replicas),
        isr=names.strings(message.isr),
        leader=names.string(message.leader),
        leader_epoch=message.leaderEpoch,
        epoch=message.epoch,
        status=_STATUS_OF[message.status],
        unclean_elected=message.uncleanElected,
        candidate=names.string(message.candidate),
        passed_over=names.strings(message.passedOver),
        incomplete=names.strings(message.incomplete),
        deposed=names.string(message.deposed),
        last_leader=names.string(message.lastLeader),
        leaderships=message.leaderships,
        complete=names.strings(message.complete),
        target=names.strings(message.target),
        joining=names.string(message.joining),
        moved_for=MoveReason.of(message.movedFor),
        copy_epoch=message.copyEpoch,
        asked_start=message.askedStart,
        purges=tuple(
            Purge(number=p.number, subjects=tuple(p.subjects), keys=tuple(p.keys), end_offset=p.endOffset)
            for p in message.purges
        ),
        purged=tuple(PurgedBy(names.string(said.node), said.number) for said in message.purged),
        pause=Pause.of(message.pause),
        pauses=message.pauses,
    )


def stream_to_pb(stream: StreamImage) -> pb.Stream:
    """Encode a StreamImage."""
    return pb.Stream(
        name=stream.name,
        uid=stream.uid,
        subject=stream.subject,
        config=config_to_pb(stream.config),
        partitions=[partition_to_pb(partition) for partition in stream.partitions],
        createdTimeNs=stream.created_time_ns,
        placement=stream.placement,
        replicationFactor=stream.replication_factor,
        waiting=stream.waiting,
        configVersion=stream.config_version,
    )


def stream_from_pb(message: pb.Stream, names: Names | None = None) -> StreamImage:
    """Decode a StreamImage."""
    names = names or Names()
    return StreamImage(
        name=message.name,
        uid=message.uid,
        subject=message.subject,
        config=config_from_pb(message.config),
        partitions=tuple(partition_from_pb(partition, names) for partition in message.partitions),
        created_time_ns=message.createdTimeNs,
        placement=message.placement,
        replication_factor=message.replicationFactor,
        waiting=message.waiting,
        config_version=message.configVersion,
    )


def counters_to_pb(counters: Counters) -> pb.CountersMoved:
    """Encode Counters."""
    return pb.CountersMoved(
        nextIncarnation=counters.next_incarnation,
        nextStreamUid=counters.next_stream_uid,
        nextLeaderEpoch=counters.next_leader_epoch,
        nextEpoch=counters.next_epoch,
        placementIndex=counters.placement_index,
    )


def counters_from_pb(message: pb.CountersMoved) -> Counters:
    """Decode Counters."""
    return Counters(
        next_incarnation=message.nextIncarnation,
        next_stream_uid=message.nextStreamUid,
        next_leader_epoch=message.nextLeaderEpoch,
        next_epoch=message.nextEpoch,
        placement_index=message.placementIndex,
    )


def report_to_pb(uid: str, partition: int, report: LeaderReport) -> pb.LeaderReported:
    """Convert a LeaderReport of partition ``partition`` of the stream ``uid`` to a LeaderReported."""
    return pb.LeaderReported(
        uid=uid,
        partition=partition,
        witness=report.witness,
        witnessIncarnation=report.witness_incarnation,
        leader=report.leader,
        leaderEpoch=report.leader_epoch,
        lastEpoch=report.last_epoch,
        newestOffset=report.newest_offset,
        highWatermark=report.high_watermark,
        timeNs=report.time_ns,
        stampNs=report.stamp_ns,
        stampTerm=report.stamp_term,
    )


def report_from_pb(message: pb.LeaderReported) -> LeaderReport:
    """Decode a LeaderReport."""
    return LeaderReport(
        witness=message.witness,
        witness_incarnation=message.witnessIncarnation,
        leader=message.leader,
        leader_epoch=message.leaderEpoch,
        last_epoch=message.lastEpoch,
        newest_offset=message.newestOffset,
        high_watermark=message.highWatermark,
        time_ns=message.timeNs,
        stamp_ns=message.stampNs,
        stamp_term=message.stampTerm,
    )


def operation_to_pb(operation: Operation) -> pb.OperationDone:
    """Encode an Operation."""
    return pb.OperationDone(
        operationId=operation.operation_id, timeNs=operation.time_ns, response=operation.response, ageNs=operation.age_ns
    )


def operation_from_pb(message: pb.OperationDone) -> Operation:
    """Decode an Operation."""
    return Operation(message.operationId, message.timeNs, message.response, message.ageNs)


def rules_to_pb(rules: ClusterRules) -> pb.ClusterRules:
    """Convert ClusterRules to protobuf."""
    return pb.ClusterRules(namespace=rules.namespace, elections=rules.elections)


def rules_from_pb(message: pb.ClusterRules) -> ClusterRules:
    """Convert protobuf rules to ClusterRules."""
    return ClusterRules(message.namespace, message.elections)


def times_to_pb(times: SessionTimes) -> pb.SessionTimes:
    """Convert SessionTimes to protobuf."""
    return pb.SessionTimes(
        sessionMs=times.session_ms, leaseMs=times.lease_ms, sessionBeforeMs=times.session_before_ms,
        leaseBeforeMs=times.lease_before_ms, change=times.change,
    )  # fmt: skip


def times_from_pb(message: pb.SessionTimes) -> SessionTimes:
    """Decode SessionTimes. Raise ConfigError if they are invalid."""
    before = message.sessionBeforeMs, message.leaseBeforeMs
    return SessionTimes(message.sessionMs, message.leaseMs, *before, message.change)


def image_to_bytes(image: ClusterImage, *, operations: bool = True) -> bytes:
    """Return the image as canonical bytes.

    If ``operations`` is False, the bytes have no deduplication window. Nodes that decide nothing do not need the window.

    Streams are encoded one by one and joined, because a serialized message is the concatenation of its fields. So there is no
    second copy of a large image.
    """
    streams = (pb.Image(streams=[stream_to_pb(image.streams[name])]) for name in sorted(image.streams))
    parts = (part.SerializeToString(deterministic=True) for part in chain((_head_to_pb(image, operations),), streams))
    return b"".join(parts)


def _head_to_pb(image: ClusterImage, operations: bool) -> pb.Image:
    head = pb.Image(index=image.index, timeNs=image.time_ns, counters=counters_to_pb(image.counters))
    head.nodes.extend(node_to_pb(image.nodes[name]) for name in sorted(image.nodes))
    for uid, partition in sorted(image.reports):
        head.reports.extend(report_to_pb(uid, partition, report) for report in image.reports[uid, partition])
    head.featureLevel = image.feature_level
    if image.rules is not None:
        head.rules.CopyFrom(rules_to_pb(image.rules))
    if image.default_quota != NO_QUOTA:
        head.defaultQuota.CopyFrom(quota_to_pb(image.default_quota))
    if image.session_times is not None:
        head.sessionTimes.CopyFrom(times_to_pb(image.session_times))
    if image.controllers.index:
        head.controllers.CopyFrom(list_to_pb(image.controllers))
    if operations:
        head.operations.extend(operation_to_pb(operation) for operation in image.operations)
        head.digest = image.digest
    return head


def image_from_bytes(data: bytes) -> ClusterImage:
    """Decode the result of ``image_to_bytes``.

    Raise IncompatibleVersionError if it has fields that this version does not know, or no feature level [M14]. Raise
    DecodeError or ValueError if it is invalid.
    """
    message = pb.Image.FromString(data)
    if has_unknown_fields(message):
        raise IncompatibleVersionError(
            "The metadata image has fields of a newer version. Start the newer version of liftpy on this node."
        )
    image = image_from_pb(message)
    if image.feature_level == NO_LEVEL and image.is_used:
        raise IncompatibleVersionError(
            "UNSUPPORTED: The metadata image has no feature level. Start the version of liftpy that wrote it, and run "
            "`liftpy upgrade finalize` there."
        )
    return image


def image_from_pb(message: pb.Image) -> ClusterImage:
    """Decode an image and build its derived maps."""
    names = Names()
    image = ClusterImage().with_streams(stream_from_pb(stream, names) for stream in message.streams)
    reports: dict[tuple[str, int], tuple[LeaderReport, ...]] = {}
    for report in message.reports:
        key = (report.uid, report.partition)
        reports[key] = (*reports.get(key, ()), report_from_pb(report))
    return replace(
        image,
        index=message.index,
        time_ns=message.timeNs,
        nodes=Map((node.nodeId, node_from_pb(node)) for node in message.nodes),
        counters=counters_from_pb(message.counters),
        operations=IdempotencyCache.of([operation_from_pb(operation) for operation in message.operations]),
        reports=Map(reports),
        controllers=list_from_pb(message.controllers),
        feature_level=message.featureLevel,
        rules=rules_from_pb(message.rules) if message.HasField("rules") else None,
        default_quota=quota_from_pb(message.defaultQuota),
        session_times=times_from_pb(message.sessionTimes) if message.HasField("sessionTimes") else None,
        digest=message.digest,
    )
