"""Converts image values to protobuf and back. Equal images give equal bytes on every node [M5].

A codec is derived from the fields of its dataclass and the message in ``cluster.proto``
(``liftpy/core/wire/message_codec.py``). If a field of a StreamConfig is missing, the default applies. A field with a
wrong value raises a ConfigError that names it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum
from itertools import chain
from typing import Any, cast

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
from liftpy.core.base.partition import MoveReason, PartitionState, Pause, Purge, PurgeReport
from liftpy.core.metadata.controller_list import CONTROLLERS
from liftpy.core.metadata.features import NO_LEVEL
from liftpy.core.metadata.idempotency import IdempotencyCache, Operation
from liftpy.core.metadata.image import ClusterImage, ClusterRules, Counters, LeaderReport, NodeImage, StreamImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.decode_errors import has_unknown_fields
from liftpy.core.wire.message_codec import Converter, MessageCodec, Names
from liftpy.errors import ConfigError, IncompatibleVersionError


def _choice(kind: type[Enum], what: str) -> Converter:
    """Return two functions for a setting whose values are an enum: from the enum to text, and back.

    The text is the value of the enum, or the lower-case name if the value is a number. ``what``: name of the setting for
    error texts.
    """
    members = {member.value if isinstance(member.value, str) else member.name.lower(): member for member in kind}
    texts = {member: text for text, member in members.items()}

    def read(text: str) -> Any:
        if text not in members:
            raise ConfigError(f"{what} {text!r} is not known: use one of {', '.join(map(repr, members))}")
        return members[text]

    return texts.__getitem__, read


QUOTA = MessageCodec(DefaultQuota, pb.DefaultQuota)
CONFIG = MessageCodec(
    StreamConfig,
    pb.StreamConfig,
    renamed={"min_isr_hold_timeout_s": "maxHeldS"},
    converters={
        AckPolicy: _choice(AckPolicy, "ack policy"),
        CommitPolicy: _choice(CommitPolicy, "commit policy"),
        Codec: _choice(Codec, "codec"),
        FlushPolicy: (str, FlushPolicy.decode),
    },
    zero_is_default=True,
)
NODE = MessageCodec(NodeImage, pb.Node)
MessageCodec(Purge, pb.Purge)  # PARTITION finds these two by their classes
MessageCodec(PurgeReport, pb.PurgedBy, shared=True)
PARTITION = MessageCodec(PartitionState, pb.Partition, shared=True)
STREAM = MessageCodec(StreamImage, pb.Stream)
COUNTERS = MessageCodec(Counters, pb.CountersMoved)
REPORT = MessageCodec(LeaderReport, pb.LeaderReported, apart=("uid", "partition"))
OPERATION = MessageCodec(Operation, pb.OperationDone)
RULES = MessageCodec(ClusterRules, pb.ClusterRules)
TIMES = MessageCodec(SessionTimes, pb.SessionTimes)


def pause_to_pb(pause: Pause) -> pb.Pause:
    """Convert a Pause to its protobuf enum. Both have the same numbers."""
    return cast(pb.Pause, int(pause))


def reason_to_pb(reason: MoveReason) -> pb.MoveReason:
    """Convert a MoveReason to its protobuf enum. Both have the same numbers."""
    return cast(pb.MoveReason, int(reason))


_STORED_NAMES = {"min_isr_hold_timeout_s": "max_held_s"}
"""Field of StreamConfig -> its name in texts that were stored at feature level 5."""


def stored_text(error: ConfigError) -> str:
    """Return the text of ``error`` with the names of settings that controllers of all versions use.

    The text is stored in the image, so all versions must store the same text. A renamed setting has its name of feature
    level 5.
    """
    text = str(error)
    for now, at_level_5 in _STORED_NAMES.items():
        text = text.replace(now, at_level_5)
    return text


_ALTERABLE = frozenset(CONFIG.wire_names[field] for field in ALTERABLE)
_NAMED = (
    "read_only, max_message_bytes, optimistic_concurrency, min_isr_hold_timeout_s, retention_age_s, retention_bytes, "
    "retention_records, max_per_subject, segment_bytes, segment_age_s, quota_records_per_s, quota_bytes_per_s, quota_by_token, "
    "quota_exempt"
)
"""Settings that an error names: those of feature level 5. Controllers store the error, so a new setting must not change it."""


def apply_changed_fields(config: StreamConfig, wanted: pb.StreamConfig, changed: Iterable[str]) -> StreamConfig:
    """Return ``config`` with some fields replaced by those of ``wanted``. ``changed``: their names in protobuf.

    Raise ConfigError if a field cannot be changed or is out of its range.
    """
    whole = CONFIG.to_pb(config)
    for name in changed:
        if name not in _ALTERABLE:
            raise ConfigError(f"{name!r} can't be changed any more: of a stream that is there, {_NAMED} can")
        setattr(whole, name, getattr(wanted, name))
    result = CONFIG.from_pb(whole)
    if result.is_cleaned != config.is_cleaned:
        raise ConfigError(
            "max_per_subject neither begins nor ends with a stream that is there: readers and services would take the gaps that it "
            "makes for damage, or the other way round. Make another stream"
        )
    return result


def report_to_pb(uid: str, partition: int, report: LeaderReport) -> pb.LeaderReported:
    """Convert a LeaderReport about a partition to the protobuf message LeaderReported."""
    message = REPORT.to_pb(report)
    message.uid, message.partition = uid, partition
    return message


def image_to_bytes(image: ClusterImage, *, operations: bool = True) -> bytes:
    """Return the image as bytes. Equal images give equal bytes.

    If ``operations`` is False, the bytes lack the answers to finished operations. Only controllers need them.

    Streams are encoded one by one and joined, because a serialized message is the concatenation of its fields. So there
    is no second copy of a large image.
    """
    streams = (pb.Image(streams=[STREAM.to_pb(image.streams[name])]) for name in sorted(image.streams))
    parts = (part.SerializeToString(deterministic=True) for part in chain((_head_to_pb(image, operations),), streams))
    return b"".join(parts)


def _head_to_pb(image: ClusterImage, operations: bool) -> pb.Image:
    head = pb.Image(index=image.index, timeNs=image.time_ns, counters=COUNTERS.to_pb(image.counters))
    head.nodes.extend(NODE.to_pb(image.nodes[name]) for name in sorted(image.nodes))
    for uid, partition in sorted(image.reports):
        head.reports.extend(report_to_pb(uid, partition, report) for report in image.reports[uid, partition])
    head.featureLevel = image.feature_level
    if image.rules is not None:
        head.rules.CopyFrom(RULES.to_pb(image.rules))
    if image.default_quota != NO_QUOTA:
        head.defaultQuota.CopyFrom(QUOTA.to_pb(image.default_quota))
    if image.session_times is not None:
        head.sessionTimes.CopyFrom(TIMES.to_pb(image.session_times))
    if image.controllers.index:
        head.controllers.CopyFrom(CONTROLLERS.to_pb(image.controllers))
    if operations:
        head.operations.extend(OPERATION.to_pb(operation) for operation in image.operations)
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
    if image.feature_level == NO_LEVEL and image.is_not_empty:
        raise IncompatibleVersionError(
            "UNSUPPORTED: The metadata image has no feature level. Start the version of liftpy that wrote it, and run "
            "`liftpy upgrade finalize` there."
        )
    return image


def image_from_pb(message: pb.Image) -> ClusterImage:
    """Decode an image and build its derived maps."""
    names = Names()
    image = ClusterImage().with_streams(STREAM.from_pb(stream, names) for stream in message.streams)
    reports: dict[tuple[str, int], tuple[LeaderReport, ...]] = {}
    for report in message.reports:
        key = (report.uid, report.partition)
        reports[key] = (*reports.get(key, ()), REPORT.from_pb(report))
    return replace(
        image,
        index=message.index,
        time_ns=message.timeNs,
        nodes=Map((node.nodeId, NODE.from_pb(node)) for node in message.nodes),
        counters=COUNTERS.from_pb(message.counters),
        operations=IdempotencyCache.of([OPERATION.from_pb(operation) for operation in message.operations]),
        reports=Map(reports),
        controllers=CONTROLLERS.from_pb(message.controllers),
        feature_level=message.featureLevel,
        rules=RULES.from_pb(message.rules) if message.HasField("rules") else None,
        default_quota=QUOTA.from_pb(message.defaultQuota),
        session_times=TIMES.from_pb(message.sessionTimes) if message.HasField("sessionTimes") else None,
        digest=message.digest,
    )
