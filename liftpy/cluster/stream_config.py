"""StreamConfig <-> its protobuf. A field that is not set means the default; a wrong one is a ConfigError that names it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum
from typing import TypeVar

from liftpy.config import ALTERABLE, AckPolicy, Codec, CommitPolicy, DefaultQuota, FlushPolicy, StreamConfig
from liftpy.errors import ConfigError
from liftpy.wire._pb import cluster_pb2 as pb

E = TypeVar("E", bound=Enum)
_DEFAULT = StreamConfig()


def config_to_pb(config: StreamConfig) -> pb.StreamConfig:
    """The protobuf of ``config``, with every field set to what holds."""
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
        maxHeldS=config.max_held_s,
        maxPerSubject=config.max_per_subject,
        quotaRecordsPerS=config.quota_records_per_s,
        quotaBytesPerS=config.quota_bytes_per_s,
        quotaByToken=config.quota_by_token,
        quotaExempt=config.quota_exempt,
    )


def config_from_pb(message: pb.StreamConfig) -> StreamConfig:
    """The configuration that ``message`` asks for; raise ConfigError naming the field that is wrong."""
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
        max_held_s=message.maxHeldS,
        max_per_subject=message.maxPerSubject,
        quota_records_per_s=message.quotaRecordsPerS,
        quota_bytes_per_s=message.quotaBytesPerS,
        quota_by_token=message.quotaByToken,
        quota_exempt=message.quotaExempt,
    )


def quota_to_pb(quota: DefaultQuota) -> pb.DefaultQuota:
    """DefaultQuota -> its protobuf."""
    return pb.DefaultQuota(recordsPerS=quota.records_per_s, bytesPerS=quota.bytes_per_s, byToken=quota.by_token)


def quota_from_pb(message: pb.DefaultQuota) -> DefaultQuota:
    """DefaultQuota of a protobuf; raise ConfigError naming what is out of its bounds."""
    return DefaultQuota(records_per_s=message.recordsPerS, bytes_per_s=message.bytesPerS, by_token=message.byToken)


def camel_case(field: str) -> str:
    """The name in the protobuf of a field of StreamConfig."""
    first, *others = field.split("_")
    return first + "".join(word.capitalize() for word in others)


_ALTERABLE = {camel_case(field): field for field in ALTERABLE}


def altered(
    config: StreamConfig, wanted: pb.StreamConfig, changed: Iterable[str], alterable: Collection[str] = ALTERABLE
) -> StreamConfig:
    """``config`` with the fields of ``wanted`` that ``changed`` names, as the protobuf has them; raise ConfigError for one that is
    fixed (not ``alterable``, at the cluster's feature level), or out of its bounds."""
    whole = config_to_pb(config)
    for name in changed:
        if _ALTERABLE.get(name) not in alterable:
            raise ConfigError(f"{name!r} can't be changed any more: of a stream that is there, {', '.join(alterable)} can")
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
