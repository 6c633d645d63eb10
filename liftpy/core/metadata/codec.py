"""Converts images and their values to protobuf and back, and images to snapshots. Equal images give equal bytes [M5].

A codec is derived from the fields of its dataclass and the message in ``cluster.proto``
(``liftpy/core/wire/message_codec.py``). If a field of a StreamConfig is missing, the default applies. A field with a
wrong value raises a ConfigError that names it.

A snapshot is a header and the compressed image, for controllers that restore and nodes that join. Layout, big endian:
magic ``LFTI`` (4) | version, 2 (2) | codec, 1: zstd (2) | index of the image (8) | size of the serialized image (8) |
CRC-32C of header bytes 0-24 and the body (4) | body. Nothing is unpickled [M13].
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import replace
from enum import Enum
from itertools import chain
from typing import Any, cast

import crc32c
import zstandard
from google.protobuf.message import DecodeError
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
from liftpy.errors import ConfigError, CorruptionError, IncompatibleVersionError, InvariantError, LiftError, UnknownFormatError

_MAGIC = b"LFTI"
SNAPSHOT_VERSION = 2
MAX_IMAGE_SIZE_BYTES = 1 << 30
_CODEC_ZSTD = 1
_LEVEL = 1
_HEAD = struct.Struct(">4sHHQQ")
_CRC = struct.Struct(">I")
_HEADER_BYTES = _HEAD.size + _CRC.size


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
REPORT = MessageCodec(LeaderReport, pb.LeaderReported, wire_only=("uid", "partition"))
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


# ---- snapshots ---------------------------------------------------------------------------------------------------------


def encode_snapshot(image: ClusterImage, *, operations: bool = True) -> bytes:
    """Return the snapshot of ``image`` as bytes. It may run in a thread while entries are applied, because the image is frozen.

    ``operations`` False: without the answers to finished operations, which only controllers need.
    """
    data = image_to_bytes(image, operations=operations)
    body = zstandard.ZstdCompressor(level=_LEVEL).compress(data)
    head = _HEAD.pack(_MAGIC, SNAPSHOT_VERSION, _CODEC_ZSTD, image.index, len(data))
    return head + _CRC.pack(crc32c.crc32c(body, crc32c.crc32c(head))) + body


def damaged_snapshot(what: str) -> CorruptionError:
    """Return the error for a metadata snapshot that is damaged. ``what``: the damage."""
    return CorruptionError(f"The metadata snapshot is damaged: {what}. Follow docs/runbooks/controllers-lost.md.")


def decode_snapshot(data: bytes) -> ClusterImage:
    """Decode the snapshot ``data`` and return its image.

    Raise CorruptionError for damage, UnknownFormatError for another version [S11], and IncompatibleVersionError for unknown
    fields.
    """
    if len(data) < _HEADER_BYTES or data[:4] != _MAGIC:
        raise damaged_snapshot("it is too short, or its magic bytes are wrong")
    _, version, codec, index, size_bytes = _HEAD.unpack_from(data)
    if version != SNAPSHOT_VERSION or codec != _CODEC_ZSTD:
        raise UnknownFormatError(
            f"The metadata snapshot has version {version}, codec {codec}, but this version reads {SNAPSHOT_VERSION}. Upgrade liftpy."
        )
    (crc,) = _CRC.unpack_from(data, _HEAD.size)
    body = data[_HEADER_BYTES:]
    if crc32c.crc32c(body, crc32c.crc32c(data[: _HEAD.size])) != crc:
        raise damaged_snapshot("its checksum does not match")
    if size_bytes > MAX_IMAGE_SIZE_BYTES:
        raise damaged_snapshot(f"it claims {size_bytes} bytes, the maximum is {MAX_IMAGE_SIZE_BYTES}")
    try:
        # what is compressed says for itself how large it is, and that is what zstandard allocates
        if zstandard.frame_content_size(body) not in (size_bytes, -1):
            raise ValueError("its size differs from its header")
        image = image_from_bytes(zstandard.ZstdDecompressor().decompress(body, max_output_size=size_bytes))
    except IncompatibleVersionError:
        raise
    except (zstandard.ZstdError, DecodeError, ValueError, KeyError, LiftError) as error:
        raise damaged_snapshot(f"it cannot be decoded: {error}") from error
    if image.index != index:
        raise InvariantError(
            f"The metadata snapshot is damaged: its header has index {index}, but its image has {image.index}. Follow "
            "docs/runbooks/controllers-lost.md."
        )
    return image
