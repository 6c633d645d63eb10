from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PartitionStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OFFLINE: _ClassVar[PartitionStatus]
    ONLINE: _ClassVar[PartitionStatus]
    ELECTION: _ClassVar[PartitionStatus]
    CANDIDATE_FOUND: _ClassVar[PartitionStatus]

class MoveReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BY_HAND: _ClassVar[MoveReason]
    REBALANCED: _ClassVar[MoveReason]
    REPLACED: _ClassVar[MoveReason]
    DRAINED: _ClassVar[MoveReason]
    FACTOR: _ClassVar[MoveReason]
    LEADERSHIPS: _ClassVar[MoveReason]

class Pause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NOT_PAUSED: _ClassVar[Pause]
    UNTIL_RESUMED: _ClassVar[Pause]
    UNTIL_PUBLISH: _ClassVar[Pause]
    ENDING: _ClassVar[Pause]
    UNTIL_PUBLISH_TO_ANY: _ClassVar[Pause]
OFFLINE: PartitionStatus
ONLINE: PartitionStatus
ELECTION: PartitionStatus
CANDIDATE_FOUND: PartitionStatus
BY_HAND: MoveReason
REBALANCED: MoveReason
REPLACED: MoveReason
DRAINED: MoveReason
FACTOR: MoveReason
LEADERSHIPS: MoveReason
NOT_PAUSED: Pause
UNTIL_RESUMED: Pause
UNTIL_PUBLISH: Pause
ENDING: Pause
UNTIL_PUBLISH_TO_ANY: Pause

class StreamConfig(_message.Message):
    __slots__ = ("ackPolicy", "minIsr", "flush", "commitPolicy", "segmentBytes", "segmentAgeS", "retentionAgeS", "retentionBytes", "retentionRecords", "compaction", "deleteRetentionS", "codec", "failoverStandby", "dedupWindowS", "readOnly", "maxMessageBytes", "optimisticConcurrency", "maxHeldS", "maxPerSubject", "quotaRecordsPerS", "quotaBytesPerS", "quotaByToken", "quotaExempt")
    ACKPOLICY_FIELD_NUMBER: _ClassVar[int]
    MINISR_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    COMMITPOLICY_FIELD_NUMBER: _ClassVar[int]
    SEGMENTBYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENTAGES_FIELD_NUMBER: _ClassVar[int]
    RETENTIONAGES_FIELD_NUMBER: _ClassVar[int]
    RETENTIONBYTES_FIELD_NUMBER: _ClassVar[int]
    RETENTIONRECORDS_FIELD_NUMBER: _ClassVar[int]
    COMPACTION_FIELD_NUMBER: _ClassVar[int]
    DELETERETENTIONS_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    FAILOVERSTANDBY_FIELD_NUMBER: _ClassVar[int]
    DEDUPWINDOWS_FIELD_NUMBER: _ClassVar[int]
    READONLY_FIELD_NUMBER: _ClassVar[int]
    MAXMESSAGEBYTES_FIELD_NUMBER: _ClassVar[int]
    OPTIMISTICCONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    MAXHELDS_FIELD_NUMBER: _ClassVar[int]
    MAXPERSUBJECT_FIELD_NUMBER: _ClassVar[int]
    QUOTARECORDSPERS_FIELD_NUMBER: _ClassVar[int]
    QUOTABYTESPERS_FIELD_NUMBER: _ClassVar[int]
    QUOTABYTOKEN_FIELD_NUMBER: _ClassVar[int]
    QUOTAEXEMPT_FIELD_NUMBER: _ClassVar[int]
    ackPolicy: str
    minIsr: int
    flush: str
    commitPolicy: str
    segmentBytes: int
    segmentAgeS: float
    retentionAgeS: float
    retentionBytes: int
    retentionRecords: int
    compaction: bool
    deleteRetentionS: float
    codec: str
    failoverStandby: bool
    dedupWindowS: float
    readOnly: bool
    maxMessageBytes: int
    optimisticConcurrency: bool
    maxHeldS: float
    maxPerSubject: int
    quotaRecordsPerS: int
    quotaBytesPerS: int
    quotaByToken: int
    quotaExempt: bool
    def __init__(self, ackPolicy: _Optional[str] = ..., minIsr: _Optional[int] = ..., flush: _Optional[str] = ..., commitPolicy: _Optional[str] = ..., segmentBytes: _Optional[int] = ..., segmentAgeS: _Optional[float] = ..., retentionAgeS: _Optional[float] = ..., retentionBytes: _Optional[int] = ..., retentionRecords: _Optional[int] = ..., compaction: _Optional[bool] = ..., deleteRetentionS: _Optional[float] = ..., codec: _Optional[str] = ..., failoverStandby: _Optional[bool] = ..., dedupWindowS: _Optional[float] = ..., readOnly: _Optional[bool] = ..., maxMessageBytes: _Optional[int] = ..., optimisticConcurrency: _Optional[bool] = ..., maxHeldS: _Optional[float] = ..., maxPerSubject: _Optional[int] = ..., quotaRecordsPerS: _Optional[int] = ..., quotaBytesPerS: _Optional[int] = ..., quotaByToken: _Optional[int] = ..., quotaExempt: _Optional[bool] = ...) -> None: ...

class DefaultQuota(_message.Message):
    __slots__ = ("recordsPerS", "bytesPerS", "byToken")
    RECORDSPERS_FIELD_NUMBER: _ClassVar[int]
    BYTESPERS_FIELD_NUMBER: _ClassVar[int]
    BYTOKEN_FIELD_NUMBER: _ClassVar[int]
    recordsPerS: int
    bytesPerS: int
    byToken: int
    def __init__(self, recordsPerS: _Optional[int] = ..., bytesPerS: _Optional[int] = ..., byToken: _Optional[int] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("nodeId", "incarnation", "rack", "weight", "version", "statusAddress", "fenced", "sessionTimeNs", "previousIncarnation", "folderId", "start", "nonce", "earlierNonces", "partitionBudget", "weightByHand", "rackByHand", "leaving", "host")
    NODEID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATUSADDRESS_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    SESSIONTIMENS_FIELD_NUMBER: _ClassVar[int]
    PREVIOUSINCARNATION_FIELD_NUMBER: _ClassVar[int]
    FOLDERID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    EARLIERNONCES_FIELD_NUMBER: _ClassVar[int]
    PARTITIONBUDGET_FIELD_NUMBER: _ClassVar[int]
    WEIGHTBYHAND_FIELD_NUMBER: _ClassVar[int]
    RACKBYHAND_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    nodeId: str
    incarnation: int
    rack: str
    weight: float
    version: str
    statusAddress: str
    fenced: bool
    sessionTimeNs: int
    previousIncarnation: int
    folderId: str
    start: int
    nonce: int
    earlierNonces: _containers.RepeatedScalarFieldContainer[int]
    partitionBudget: int
    weightByHand: bool
    rackByHand: bool
    leaving: bool
    host: str
    def __init__(self, nodeId: _Optional[str] = ..., incarnation: _Optional[int] = ..., rack: _Optional[str] = ..., weight: _Optional[float] = ..., version: _Optional[str] = ..., statusAddress: _Optional[str] = ..., fenced: _Optional[bool] = ..., sessionTimeNs: _Optional[int] = ..., previousIncarnation: _Optional[int] = ..., folderId: _Optional[str] = ..., start: _Optional[int] = ..., nonce: _Optional[int] = ..., earlierNonces: _Optional[_Iterable[int]] = ..., partitionBudget: _Optional[int] = ..., weightByHand: _Optional[bool] = ..., rackByHand: _Optional[bool] = ..., leaving: _Optional[bool] = ..., host: _Optional[str] = ...) -> None: ...

class Partition(_message.Message):
    __slots__ = ("partition", "replicas", "isr", "leader", "leaderEpoch", "epoch", "status", "uncleanElected", "candidate", "passedOver", "incomplete", "deposed", "lastLeader", "leaderships", "complete", "target", "joining", "movedFor", "copyEpoch", "askedStart", "purges", "purged", "pause", "pauses")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ISR_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    UNCLEANELECTED_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    PASSEDOVER_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    DEPOSED_FIELD_NUMBER: _ClassVar[int]
    LASTLEADER_FIELD_NUMBER: _ClassVar[int]
    LEADERSHIPS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    JOINING_FIELD_NUMBER: _ClassVar[int]
    MOVEDFOR_FIELD_NUMBER: _ClassVar[int]
    COPYEPOCH_FIELD_NUMBER: _ClassVar[int]
    ASKEDSTART_FIELD_NUMBER: _ClassVar[int]
    PURGES_FIELD_NUMBER: _ClassVar[int]
    PURGED_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    PAUSES_FIELD_NUMBER: _ClassVar[int]
    partition: int
    replicas: _containers.RepeatedScalarFieldContainer[str]
    isr: _containers.RepeatedScalarFieldContainer[str]
    leader: str
    leaderEpoch: int
    epoch: int
    status: PartitionStatus
    uncleanElected: bool
    candidate: str
    passedOver: _containers.RepeatedScalarFieldContainer[str]
    incomplete: _containers.RepeatedScalarFieldContainer[str]
    deposed: str
    lastLeader: str
    leaderships: int
    complete: _containers.RepeatedScalarFieldContainer[str]
    target: _containers.RepeatedScalarFieldContainer[str]
    joining: str
    movedFor: MoveReason
    copyEpoch: int
    askedStart: int
    purges: _containers.RepeatedCompositeFieldContainer[Purge]
    purged: _containers.RepeatedCompositeFieldContainer[PurgedBy]
    pause: Pause
    pauses: int
    def __init__(self, partition: _Optional[int] = ..., replicas: _Optional[_Iterable[str]] = ..., isr: _Optional[_Iterable[str]] = ..., leader: _Optional[str] = ..., leaderEpoch: _Optional[int] = ..., epoch: _Optional[int] = ..., status: _Optional[_Union[PartitionStatus, str]] = ..., uncleanElected: _Optional[bool] = ..., candidate: _Optional[str] = ..., passedOver: _Optional[_Iterable[str]] = ..., incomplete: _Optional[_Iterable[str]] = ..., deposed: _Optional[str] = ..., lastLeader: _Optional[str] = ..., leaderships: _Optional[int] = ..., complete: _Optional[_Iterable[str]] = ..., target: _Optional[_Iterable[str]] = ..., joining: _Optional[str] = ..., movedFor: _Optional[_Union[MoveReason, str]] = ..., copyEpoch: _Optional[int] = ..., askedStart: _Optional[int] = ..., purges: _Optional[_Iterable[_Union[Purge, _Mapping]]] = ..., purged: _Optional[_Iterable[_Union[PurgedBy, _Mapping]]] = ..., pause: _Optional[_Union[Pause, str]] = ..., pauses: _Optional[int] = ...) -> None: ...

class Purge(_message.Message):
    __slots__ = ("number", "subjects", "keys", "endOffset")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SUBJECTS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    ENDOFFSET_FIELD_NUMBER: _ClassVar[int]
    number: int
    subjects: _containers.RepeatedScalarFieldContainer[str]
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    endOffset: int
    def __init__(self, number: _Optional[int] = ..., subjects: _Optional[_Iterable[str]] = ..., keys: _Optional[_Iterable[bytes]] = ..., endOffset: _Optional[int] = ...) -> None: ...

class PurgedBy(_message.Message):
    __slots__ = ("node", "number")
    NODE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    node: str
    number: int
    def __init__(self, node: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class Stream(_message.Message):
    __slots__ = ("name", "uid", "subject", "config", "partitions", "createdTimeNs", "placement", "replicationFactor", "waiting", "configVersion")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CREATEDTIMENS_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    REPLICATIONFACTOR_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    CONFIGVERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    uid: str
    subject: str
    config: StreamConfig
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    createdTimeNs: int
    placement: str
    replicationFactor: int
    waiting: int
    configVersion: int
    def __init__(self, name: _Optional[str] = ..., uid: _Optional[str] = ..., subject: _Optional[str] = ..., config: _Optional[_Union[StreamConfig, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ..., createdTimeNs: _Optional[int] = ..., placement: _Optional[str] = ..., replicationFactor: _Optional[int] = ..., waiting: _Optional[int] = ..., configVersion: _Optional[int] = ...) -> None: ...

class CreateStream(_message.Message):
    __slots__ = ("name", "subject", "partitions", "replicationFactor", "config", "placement", "manual", "allowOffline", "dryRun", "firstLeaderEpoch", "laterPlacement")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICATIONFACTOR_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    MANUAL_FIELD_NUMBER: _ClassVar[int]
    ALLOWOFFLINE_FIELD_NUMBER: _ClassVar[int]
    DRYRUN_FIELD_NUMBER: _ClassVar[int]
    FIRSTLEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    LATERPLACEMENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    subject: str
    partitions: int
    replicationFactor: int
    config: StreamConfig
    placement: str
    manual: _containers.RepeatedCompositeFieldContainer[ReplicaList]
    allowOffline: bool
    dryRun: bool
    firstLeaderEpoch: int
    laterPlacement: str
    def __init__(self, name: _Optional[str] = ..., subject: _Optional[str] = ..., partitions: _Optional[int] = ..., replicationFactor: _Optional[int] = ..., config: _Optional[_Union[StreamConfig, _Mapping]] = ..., placement: _Optional[str] = ..., manual: _Optional[_Iterable[_Union[ReplicaList, _Mapping]]] = ..., allowOffline: _Optional[bool] = ..., dryRun: _Optional[bool] = ..., firstLeaderEpoch: _Optional[int] = ..., laterPlacement: _Optional[str] = ...) -> None: ...

class ReplicaList(_message.Message):
    __slots__ = ("replicas", "partition")
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedScalarFieldContainer[str]
    partition: int
    def __init__(self, replicas: _Optional[_Iterable[str]] = ..., partition: _Optional[int] = ...) -> None: ...

class AddPartitions(_message.Message):
    __slots__ = ("name", "uid", "partitions", "placement", "manual", "allowOffline", "dryRun")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    MANUAL_FIELD_NUMBER: _ClassVar[int]
    ALLOWOFFLINE_FIELD_NUMBER: _ClassVar[int]
    DRYRUN_FIELD_NUMBER: _ClassVar[int]
    name: str
    uid: str
    partitions: int
    placement: str
    manual: _containers.RepeatedCompositeFieldContainer[ReplicaList]
    allowOffline: bool
    dryRun: bool
    def __init__(self, name: _Optional[str] = ..., uid: _Optional[str] = ..., partitions: _Optional[int] = ..., placement: _Optional[str] = ..., manual: _Optional[_Iterable[_Union[ReplicaList, _Mapping]]] = ..., allowOffline: _Optional[bool] = ..., dryRun: _Optional[bool] = ...) -> None: ...

class PlaceStream(_message.Message):
    __slots__ = ("name", "uid")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    name: str
    uid: str
    def __init__(self, name: _Optional[str] = ..., uid: _Optional[str] = ...) -> None: ...

class SetNode(_message.Message):
    __slots__ = ("nodeId", "weight", "rack", "leaving", "weightAsItSays", "rackAsItSays")
    NODEID_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    WEIGHTASITSAYS_FIELD_NUMBER: _ClassVar[int]
    RACKASITSAYS_FIELD_NUMBER: _ClassVar[int]
    nodeId: str
    weight: float
    rack: str
    leaving: bool
    weightAsItSays: bool
    rackAsItSays: bool
    def __init__(self, nodeId: _Optional[str] = ..., weight: _Optional[float] = ..., rack: _Optional[str] = ..., leaving: _Optional[bool] = ..., weightAsItSays: _Optional[bool] = ..., rackAsItSays: _Optional[bool] = ...) -> None: ...

class Reassign(_message.Message):
    __slots__ = ("stream", "uid", "partition", "replicas", "cancel", "movedFor", "epoch")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    MOVEDFOR_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    stream: str
    uid: str
    partition: int
    replicas: _containers.RepeatedScalarFieldContainer[str]
    cancel: bool
    movedFor: MoveReason
    epoch: int
    def __init__(self, stream: _Optional[str] = ..., uid: _Optional[str] = ..., partition: _Optional[int] = ..., replicas: _Optional[_Iterable[str]] = ..., cancel: _Optional[bool] = ..., movedFor: _Optional[_Union[MoveReason, str]] = ..., epoch: _Optional[int] = ...) -> None: ...

class AlterStream(_message.Message):
    __slots__ = ("name", "uid", "replicationFactor", "dryRun", "config", "changed", "configVersion")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    REPLICATIONFACTOR_FIELD_NUMBER: _ClassVar[int]
    DRYRUN_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    CONFIGVERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    uid: str
    replicationFactor: int
    dryRun: bool
    config: StreamConfig
    changed: _containers.RepeatedScalarFieldContainer[str]
    configVersion: int
    def __init__(self, name: _Optional[str] = ..., uid: _Optional[str] = ..., replicationFactor: _Optional[int] = ..., dryRun: _Optional[bool] = ..., config: _Optional[_Union[StreamConfig, _Mapping]] = ..., changed: _Optional[_Iterable[str]] = ..., configVersion: _Optional[int] = ...) -> None: ...

class TruncateBefore(_message.Message):
    __slots__ = ("stream", "uid", "partition", "offset")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    stream: str
    uid: str
    partition: int
    offset: int
    def __init__(self, stream: _Optional[str] = ..., uid: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class PurgeRecords(_message.Message):
    __slots__ = ("stream", "uid", "partition", "subjects", "keys", "endOffset")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SUBJECTS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    ENDOFFSET_FIELD_NUMBER: _ClassVar[int]
    stream: str
    uid: str
    partition: int
    subjects: _containers.RepeatedScalarFieldContainer[str]
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    endOffset: int
    def __init__(self, stream: _Optional[str] = ..., uid: _Optional[str] = ..., partition: _Optional[int] = ..., subjects: _Optional[_Iterable[str]] = ..., keys: _Optional[_Iterable[bytes]] = ..., endOffset: _Optional[int] = ...) -> None: ...

class ReportPurged(_message.Message):
    __slots__ = ("stream", "uid", "partition", "node", "incarnation", "number")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    stream: str
    uid: str
    partition: int
    node: str
    incarnation: int
    number: int
    def __init__(self, stream: _Optional[str] = ..., uid: _Optional[str] = ..., partition: _Optional[int] = ..., node: _Optional[str] = ..., incarnation: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class ReportService(_message.Message):
    __slots__ = ("stream", "uid", "partition", "node", "incarnation", "service", "ending", "reason")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    ENDING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    stream: str
    uid: str
    partition: int
    node: str
    incarnation: int
    service: str
    ending: str
    reason: str
    def __init__(self, stream: _Optional[str] = ..., uid: _Optional[str] = ..., partition: _Optional[int] = ..., node: _Optional[str] = ..., incarnation: _Optional[int] = ..., service: _Optional[str] = ..., ending: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class PausePartitions(_message.Message):
    __slots__ = ("stream", "uid", "partitions", "pause", "configVersion")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    CONFIGVERSION_FIELD_NUMBER: _ClassVar[int]
    stream: str
    uid: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    pause: Pause
    configVersion: int
    def __init__(self, stream: _Optional[str] = ..., uid: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., pause: _Optional[_Union[Pause, str]] = ..., configVersion: _Optional[int] = ...) -> None: ...

class WakePartition(_message.Message):
    __slots__ = ("stream", "uid", "partition", "leader", "leaderEpoch", "pause", "pauses")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    PAUSES_FIELD_NUMBER: _ClassVar[int]
    stream: str
    uid: str
    partition: int
    leader: str
    leaderEpoch: int
    pause: Pause
    pauses: int
    def __init__(self, stream: _Optional[str] = ..., uid: _Optional[str] = ..., partition: _Optional[int] = ..., leader: _Optional[str] = ..., leaderEpoch: _Optional[int] = ..., pause: _Optional[_Union[Pause, str]] = ..., pauses: _Optional[int] = ...) -> None: ...

class BeginCopy(_message.Message):
    __slots__ = ("stream", "uid", "partition", "epoch", "node")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    stream: str
    uid: str
    partition: int
    epoch: int
    node: str
    def __init__(self, stream: _Optional[str] = ..., uid: _Optional[str] = ..., partition: _Optional[int] = ..., epoch: _Optional[int] = ..., node: _Optional[str] = ...) -> None: ...

class OpenGroups(_message.Message):
    __slots__ = ("partitions", "replicationFactor")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICATIONFACTOR_FIELD_NUMBER: _ClassVar[int]
    partitions: int
    replicationFactor: int
    def __init__(self, partitions: _Optional[int] = ..., replicationFactor: _Optional[int] = ...) -> None: ...

class DeleteStream(_message.Message):
    __slots__ = ("name", "uid")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    name: str
    uid: str
    def __init__(self, name: _Optional[str] = ..., uid: _Optional[str] = ...) -> None: ...

class RegisterNode(_message.Message):
    __slots__ = ("nodeId", "previousIncarnation", "cleanStop", "flushedAlways", "rack", "weight", "version", "statusAddress", "folderId", "start", "nonce", "earlierNonces", "partitionBudget", "host", "minLevel", "maxLevel", "damagedLogs")
    NODEID_FIELD_NUMBER: _ClassVar[int]
    PREVIOUSINCARNATION_FIELD_NUMBER: _ClassVar[int]
    CLEANSTOP_FIELD_NUMBER: _ClassVar[int]
    FLUSHEDALWAYS_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATUSADDRESS_FIELD_NUMBER: _ClassVar[int]
    FOLDERID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    EARLIERNONCES_FIELD_NUMBER: _ClassVar[int]
    PARTITIONBUDGET_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    MINLEVEL_FIELD_NUMBER: _ClassVar[int]
    MAXLEVEL_FIELD_NUMBER: _ClassVar[int]
    DAMAGEDLOGS_FIELD_NUMBER: _ClassVar[int]
    nodeId: str
    previousIncarnation: int
    cleanStop: bool
    flushedAlways: bool
    rack: str
    weight: float
    version: str
    statusAddress: str
    folderId: str
    start: int
    nonce: int
    earlierNonces: _containers.RepeatedScalarFieldContainer[int]
    partitionBudget: int
    host: str
    minLevel: int
    maxLevel: int
    damagedLogs: _containers.RepeatedCompositeFieldContainer[DamagedLog]
    def __init__(self, nodeId: _Optional[str] = ..., previousIncarnation: _Optional[int] = ..., cleanStop: _Optional[bool] = ..., flushedAlways: _Optional[bool] = ..., rack: _Optional[str] = ..., weight: _Optional[float] = ..., version: _Optional[str] = ..., statusAddress: _Optional[str] = ..., folderId: _Optional[str] = ..., start: _Optional[int] = ..., nonce: _Optional[int] = ..., earlierNonces: _Optional[_Iterable[int]] = ..., partitionBudget: _Optional[int] = ..., host: _Optional[str] = ..., minLevel: _Optional[int] = ..., maxLevel: _Optional[int] = ..., damagedLogs: _Optional[_Iterable[_Union[DamagedLog, _Mapping]]] = ...) -> None: ...

class DamagedLog(_message.Message):
    __slots__ = ("streamUid", "partition")
    STREAMUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    streamUid: str
    partition: int
    def __init__(self, streamUid: _Optional[str] = ..., partition: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("nodeId", "incarnation", "minLevel", "maxLevel")
    NODEID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    MINLEVEL_FIELD_NUMBER: _ClassVar[int]
    MAXLEVEL_FIELD_NUMBER: _ClassVar[int]
    nodeId: str
    incarnation: int
    minLevel: int
    maxLevel: int
    def __init__(self, nodeId: _Optional[str] = ..., incarnation: _Optional[int] = ..., minLevel: _Optional[int] = ..., maxLevel: _Optional[int] = ...) -> None: ...

class SetFeatureLevel(_message.Message):
    __slots__ = ("level", "dryRun", "checked", "rules", "sessionTimes")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    DRYRUN_FIELD_NUMBER: _ClassVar[int]
    CHECKED_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    SESSIONTIMES_FIELD_NUMBER: _ClassVar[int]
    level: int
    dryRun: bool
    checked: _containers.RepeatedCompositeFieldContainer[CheckedNode]
    rules: ClusterRules
    sessionTimes: SessionTimes
    def __init__(self, level: _Optional[int] = ..., dryRun: _Optional[bool] = ..., checked: _Optional[_Iterable[_Union[CheckedNode, _Mapping]]] = ..., rules: _Optional[_Union[ClusterRules, _Mapping]] = ..., sessionTimes: _Optional[_Union[SessionTimes, _Mapping]] = ...) -> None: ...

class SessionTimes(_message.Message):
    __slots__ = ("sessionMs", "leaseMs", "sessionBeforeMs", "leaseBeforeMs", "change")
    SESSIONMS_FIELD_NUMBER: _ClassVar[int]
    LEASEMS_FIELD_NUMBER: _ClassVar[int]
    SESSIONBEFOREMS_FIELD_NUMBER: _ClassVar[int]
    LEASEBEFOREMS_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    sessionMs: int
    leaseMs: int
    sessionBeforeMs: int
    leaseBeforeMs: int
    change: int
    def __init__(self, sessionMs: _Optional[int] = ..., leaseMs: _Optional[int] = ..., sessionBeforeMs: _Optional[int] = ..., leaseBeforeMs: _Optional[int] = ..., change: _Optional[int] = ...) -> None: ...

class SetSessionTimes(_message.Message):
    __slots__ = ("sessionMs", "leaseMs", "change")
    SESSIONMS_FIELD_NUMBER: _ClassVar[int]
    LEASEMS_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    sessionMs: int
    leaseMs: int
    change: int
    def __init__(self, sessionMs: _Optional[int] = ..., leaseMs: _Optional[int] = ..., change: _Optional[int] = ...) -> None: ...

class SettleSessionTimes(_message.Message):
    __slots__ = ("change",)
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    change: int
    def __init__(self, change: _Optional[int] = ...) -> None: ...

class SetDefaultQuota(_message.Message):
    __slots__ = ("recordsPerS", "bytesPerS", "byToken")
    RECORDSPERS_FIELD_NUMBER: _ClassVar[int]
    BYTESPERS_FIELD_NUMBER: _ClassVar[int]
    BYTOKEN_FIELD_NUMBER: _ClassVar[int]
    recordsPerS: int
    bytesPerS: int
    byToken: int
    def __init__(self, recordsPerS: _Optional[int] = ..., bytesPerS: _Optional[int] = ..., byToken: _Optional[int] = ...) -> None: ...

class CheckedNode(_message.Message):
    __slots__ = ("nodeId", "incarnation")
    NODEID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    nodeId: str
    incarnation: int
    def __init__(self, nodeId: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class ClusterRules(_message.Message):
    __slots__ = ("namespace", "elections")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    ELECTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    elections: bool
    def __init__(self, namespace: _Optional[str] = ..., elections: _Optional[bool] = ...) -> None: ...

class FenceNode(_message.Message):
    __slots__ = ("nodeId", "incarnation")
    NODEID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    nodeId: str
    incarnation: int
    def __init__(self, nodeId: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class UnfenceNode(_message.Message):
    __slots__ = ("nodeId", "incarnation")
    NODEID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    nodeId: str
    incarnation: int
    def __init__(self, nodeId: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class RemoveNode(_message.Message):
    __slots__ = ("nodeId",)
    NODEID_FIELD_NUMBER: _ClassVar[int]
    nodeId: str
    def __init__(self, nodeId: _Optional[str] = ...) -> None: ...

class ChangeIsr(_message.Message):
    __slots__ = ("stream", "uid", "partition", "leader", "leaderEpoch", "epoch", "isr", "incarnations", "evicted", "lost")
    class IncarnationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    STREAM_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ISR_FIELD_NUMBER: _ClassVar[int]
    INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    stream: str
    uid: str
    partition: int
    leader: str
    leaderEpoch: int
    epoch: int
    isr: _containers.RepeatedScalarFieldContainer[str]
    incarnations: _containers.ScalarMap[str, int]
    evicted: str
    lost: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, stream: _Optional[str] = ..., uid: _Optional[str] = ..., partition: _Optional[int] = ..., leader: _Optional[str] = ..., leaderEpoch: _Optional[int] = ..., epoch: _Optional[int] = ..., isr: _Optional[_Iterable[str]] = ..., incarnations: _Optional[_Mapping[str, int]] = ..., evicted: _Optional[str] = ..., lost: _Optional[_Iterable[str]] = ...) -> None: ...

class ReportLeader(_message.Message):
    __slots__ = ("stream", "uid", "partition", "witness", "witnessIncarnation", "leader", "leaderEpoch", "lastEpoch", "newestOffset", "highWatermark", "stampNs", "stampTerm", "accusedAsked", "leaderLacks")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    WITNESS_FIELD_NUMBER: _ClassVar[int]
    WITNESSINCARNATION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    LASTEPOCH_FIELD_NUMBER: _ClassVar[int]
    NEWESTOFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGHWATERMARK_FIELD_NUMBER: _ClassVar[int]
    STAMPNS_FIELD_NUMBER: _ClassVar[int]
    STAMPTERM_FIELD_NUMBER: _ClassVar[int]
    ACCUSEDASKED_FIELD_NUMBER: _ClassVar[int]
    LEADERLACKS_FIELD_NUMBER: _ClassVar[int]
    stream: str
    uid: str
    partition: int
    witness: str
    witnessIncarnation: int
    leader: str
    leaderEpoch: int
    lastEpoch: int
    newestOffset: int
    highWatermark: int
    stampNs: int
    stampTerm: int
    accusedAsked: bool
    leaderLacks: bool
    def __init__(self, stream: _Optional[str] = ..., uid: _Optional[str] = ..., partition: _Optional[int] = ..., witness: _Optional[str] = ..., witnessIncarnation: _Optional[int] = ..., leader: _Optional[str] = ..., leaderEpoch: _Optional[int] = ..., lastEpoch: _Optional[int] = ..., newestOffset: _Optional[int] = ..., highWatermark: _Optional[int] = ..., stampNs: _Optional[int] = ..., stampTerm: _Optional[int] = ..., accusedAsked: _Optional[bool] = ..., leaderLacks: _Optional[bool] = ...) -> None: ...

class ReportPromotion(_message.Message):
    __slots__ = ("stream", "uid", "partition", "candidate", "candidateIncarnation", "leaderEpoch", "epoch", "replayedEndOffset", "newestOffset", "finished")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    CANDIDATEINCARNATION_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPLAYEDENDOFFSET_FIELD_NUMBER: _ClassVar[int]
    NEWESTOFFSET_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    stream: str
    uid: str
    partition: int
    candidate: str
    candidateIncarnation: int
    leaderEpoch: int
    epoch: int
    replayedEndOffset: int
    newestOffset: int
    finished: bool
    def __init__(self, stream: _Optional[str] = ..., uid: _Optional[str] = ..., partition: _Optional[int] = ..., candidate: _Optional[str] = ..., candidateIncarnation: _Optional[int] = ..., leaderEpoch: _Optional[int] = ..., epoch: _Optional[int] = ..., replayedEndOffset: _Optional[int] = ..., newestOffset: _Optional[int] = ..., finished: _Optional[bool] = ...) -> None: ...

class PassOver(_message.Message):
    __slots__ = ("stream", "uid", "partition", "candidate", "leaderEpoch", "epoch")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    stream: str
    uid: str
    partition: int
    candidate: str
    leaderEpoch: int
    epoch: int
    def __init__(self, stream: _Optional[str] = ..., uid: _Optional[str] = ..., partition: _Optional[int] = ..., candidate: _Optional[str] = ..., leaderEpoch: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class ConcludeElection(_message.Message):
    __slots__ = ("stream", "uid", "partition", "epoch")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    stream: str
    uid: str
    partition: int
    epoch: int
    def __init__(self, stream: _Optional[str] = ..., uid: _Optional[str] = ..., partition: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class ElectLeader(_message.Message):
    __slots__ = ("stream", "uid", "partition", "node", "unclean")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    UNCLEAN_FIELD_NUMBER: _ClassVar[int]
    stream: str
    uid: str
    partition: int
    node: str
    unclean: bool
    def __init__(self, stream: _Optional[str] = ..., uid: _Optional[str] = ..., partition: _Optional[int] = ..., node: _Optional[str] = ..., unclean: _Optional[bool] = ...) -> None: ...

class LeaveIsr(_message.Message):
    __slots__ = ("stream", "uid", "partition", "node", "incarnation", "reason")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    stream: str
    uid: str
    partition: int
    node: str
    incarnation: int
    reason: str
    def __init__(self, stream: _Optional[str] = ..., uid: _Optional[str] = ..., partition: _Optional[int] = ..., node: _Optional[str] = ..., incarnation: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class GiveUpLeadership(_message.Message):
    __slots__ = ("stream", "uid", "partition", "leader", "incarnation", "leaderEpoch", "reason", "toward")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TOWARD_FIELD_NUMBER: _ClassVar[int]
    stream: str
    uid: str
    partition: int
    leader: str
    incarnation: int
    leaderEpoch: int
    reason: str
    toward: str
    def __init__(self, stream: _Optional[str] = ..., uid: _Optional[str] = ..., partition: _Optional[int] = ..., leader: _Optional[str] = ..., incarnation: _Optional[int] = ..., leaderEpoch: _Optional[int] = ..., reason: _Optional[str] = ..., toward: _Optional[str] = ...) -> None: ...

class DrainNode(_message.Message):
    __slots__ = ("nodeId", "incarnation")
    NODEID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    nodeId: str
    incarnation: int
    def __init__(self, nodeId: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class Barrier(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeCluster(_message.Message):
    __slots__ = ("paged", "afterStream", "maxBytes", "uid", "fromPartition", "afterNode")
    PAGED_FIELD_NUMBER: _ClassVar[int]
    AFTERSTREAM_FIELD_NUMBER: _ClassVar[int]
    MAXBYTES_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    FROMPARTITION_FIELD_NUMBER: _ClassVar[int]
    AFTERNODE_FIELD_NUMBER: _ClassVar[int]
    paged: bool
    afterStream: str
    maxBytes: int
    uid: str
    fromPartition: int
    afterNode: str
    def __init__(self, paged: _Optional[bool] = ..., afterStream: _Optional[str] = ..., maxBytes: _Optional[int] = ..., uid: _Optional[str] = ..., fromPartition: _Optional[int] = ..., afterNode: _Optional[str] = ...) -> None: ...

class DescribeStream(_message.Message):
    __slots__ = ("name", "uid", "fromPartition", "maxBytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    FROMPARTITION_FIELD_NUMBER: _ClassVar[int]
    MAXBYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    uid: str
    fromPartition: int
    maxBytes: int
    def __init__(self, name: _Optional[str] = ..., uid: _Optional[str] = ..., fromPartition: _Optional[int] = ..., maxBytes: _Optional[int] = ...) -> None: ...

class BatchedRequest(_message.Message):
    __slots__ = ("number", "request")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    number: int
    request: ControlRequest
    def __init__(self, number: _Optional[int] = ..., request: _Optional[_Union[ControlRequest, _Mapping]] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[BatchedRequest]
    def __init__(self, requests: _Optional[_Iterable[_Union[BatchedRequest, _Mapping]]] = ...) -> None: ...

class BatchedAnswer(_message.Message):
    __slots__ = ("number", "error", "detail")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    number: int
    error: ControlResponse.Error
    detail: str
    def __init__(self, number: _Optional[int] = ..., error: _Optional[_Union[ControlResponse.Error, str]] = ..., detail: _Optional[str] = ...) -> None: ...

class BatchAnswers(_message.Message):
    __slots__ = ("answers",)
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[BatchedAnswer]
    def __init__(self, answers: _Optional[_Iterable[_Union[BatchedAnswer, _Mapping]]] = ...) -> None: ...

class ControlRequest(_message.Message):
    __slots__ = ("operationId", "timeNs", "sender", "linearizable", "internal", "createStream", "deleteStream", "registerNode", "heartbeat", "fenceNode", "unfenceNode", "removeNode", "changeIsr", "reportLeader", "barrier", "describeCluster", "reportPromotion", "passOver", "concludeElection", "electLeader", "drainNode", "giveUpLeadership", "leaveIsr", "batch", "describeStream", "placeStream", "addPartitions", "setNode", "reassign", "beginCopy", "alterStream", "truncateBefore", "purgeRecords", "reportPurged", "reportService", "pausePartitions", "wakePartition", "openGroups", "setFeatureLevel", "setDefaultQuota", "setSessionTimes", "settleSessionTimes", "changeControllers")
    OPERATIONID_FIELD_NUMBER: _ClassVar[int]
    TIMENS_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    LINEARIZABLE_FIELD_NUMBER: _ClassVar[int]
    INTERNAL_FIELD_NUMBER: _ClassVar[int]
    CREATESTREAM_FIELD_NUMBER: _ClassVar[int]
    DELETESTREAM_FIELD_NUMBER: _ClassVar[int]
    REGISTERNODE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    FENCENODE_FIELD_NUMBER: _ClassVar[int]
    UNFENCENODE_FIELD_NUMBER: _ClassVar[int]
    REMOVENODE_FIELD_NUMBER: _ClassVar[int]
    CHANGEISR_FIELD_NUMBER: _ClassVar[int]
    REPORTLEADER_FIELD_NUMBER: _ClassVar[int]
    BARRIER_FIELD_NUMBER: _ClassVar[int]
    DESCRIBECLUSTER_FIELD_NUMBER: _ClassVar[int]
    REPORTPROMOTION_FIELD_NUMBER: _ClassVar[int]
    PASSOVER_FIELD_NUMBER: _ClassVar[int]
    CONCLUDEELECTION_FIELD_NUMBER: _ClassVar[int]
    ELECTLEADER_FIELD_NUMBER: _ClassVar[int]
    DRAINNODE_FIELD_NUMBER: _ClassVar[int]
    GIVEUPLEADERSHIP_FIELD_NUMBER: _ClassVar[int]
    LEAVEISR_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    DESCRIBESTREAM_FIELD_NUMBER: _ClassVar[int]
    PLACESTREAM_FIELD_NUMBER: _ClassVar[int]
    ADDPARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SETNODE_FIELD_NUMBER: _ClassVar[int]
    REASSIGN_FIELD_NUMBER: _ClassVar[int]
    BEGINCOPY_FIELD_NUMBER: _ClassVar[int]
    ALTERSTREAM_FIELD_NUMBER: _ClassVar[int]
    TRUNCATEBEFORE_FIELD_NUMBER: _ClassVar[int]
    PURGERECORDS_FIELD_NUMBER: _ClassVar[int]
    REPORTPURGED_FIELD_NUMBER: _ClassVar[int]
    REPORTSERVICE_FIELD_NUMBER: _ClassVar[int]
    PAUSEPARTITIONS_FIELD_NUMBER: _ClassVar[int]
    WAKEPARTITION_FIELD_NUMBER: _ClassVar[int]
    OPENGROUPS_FIELD_NUMBER: _ClassVar[int]
    SETFEATURELEVEL_FIELD_NUMBER: _ClassVar[int]
    SETDEFAULTQUOTA_FIELD_NUMBER: _ClassVar[int]
    SETSESSIONTIMES_FIELD_NUMBER: _ClassVar[int]
    SETTLESESSIONTIMES_FIELD_NUMBER: _ClassVar[int]
    CHANGECONTROLLERS_FIELD_NUMBER: _ClassVar[int]
    operationId: bytes
    timeNs: int
    sender: str
    linearizable: bool
    internal: bool
    createStream: CreateStream
    deleteStream: DeleteStream
    registerNode: RegisterNode
    heartbeat: Heartbeat
    fenceNode: FenceNode
    unfenceNode: UnfenceNode
    removeNode: RemoveNode
    changeIsr: ChangeIsr
    reportLeader: ReportLeader
    barrier: Barrier
    describeCluster: DescribeCluster
    reportPromotion: ReportPromotion
    passOver: PassOver
    concludeElection: ConcludeElection
    electLeader: ElectLeader
    drainNode: DrainNode
    giveUpLeadership: GiveUpLeadership
    leaveIsr: LeaveIsr
    batch: Batch
    describeStream: DescribeStream
    placeStream: PlaceStream
    addPartitions: AddPartitions
    setNode: SetNode
    reassign: Reassign
    beginCopy: BeginCopy
    alterStream: AlterStream
    truncateBefore: TruncateBefore
    purgeRecords: PurgeRecords
    reportPurged: ReportPurged
    reportService: ReportService
    pausePartitions: PausePartitions
    wakePartition: WakePartition
    openGroups: OpenGroups
    setFeatureLevel: SetFeatureLevel
    setDefaultQuota: SetDefaultQuota
    setSessionTimes: SetSessionTimes
    settleSessionTimes: SettleSessionTimes
    changeControllers: ChangeControllers
    def __init__(self, operationId: _Optional[bytes] = ..., timeNs: _Optional[int] = ..., sender: _Optional[str] = ..., linearizable: _Optional[bool] = ..., internal: _Optional[bool] = ..., createStream: _Optional[_Union[CreateStream, _Mapping]] = ..., deleteStream: _Optional[_Union[DeleteStream, _Mapping]] = ..., registerNode: _Optional[_Union[RegisterNode, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., fenceNode: _Optional[_Union[FenceNode, _Mapping]] = ..., unfenceNode: _Optional[_Union[UnfenceNode, _Mapping]] = ..., removeNode: _Optional[_Union[RemoveNode, _Mapping]] = ..., changeIsr: _Optional[_Union[ChangeIsr, _Mapping]] = ..., reportLeader: _Optional[_Union[ReportLeader, _Mapping]] = ..., barrier: _Optional[_Union[Barrier, _Mapping]] = ..., describeCluster: _Optional[_Union[DescribeCluster, _Mapping]] = ..., reportPromotion: _Optional[_Union[ReportPromotion, _Mapping]] = ..., passOver: _Optional[_Union[PassOver, _Mapping]] = ..., concludeElection: _Optional[_Union[ConcludeElection, _Mapping]] = ..., electLeader: _Optional[_Union[ElectLeader, _Mapping]] = ..., drainNode: _Optional[_Union[DrainNode, _Mapping]] = ..., giveUpLeadership: _Optional[_Union[GiveUpLeadership, _Mapping]] = ..., leaveIsr: _Optional[_Union[LeaveIsr, _Mapping]] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ..., describeStream: _Optional[_Union[DescribeStream, _Mapping]] = ..., placeStream: _Optional[_Union[PlaceStream, _Mapping]] = ..., addPartitions: _Optional[_Union[AddPartitions, _Mapping]] = ..., setNode: _Optional[_Union[SetNode, _Mapping]] = ..., reassign: _Optional[_Union[Reassign, _Mapping]] = ..., beginCopy: _Optional[_Union[BeginCopy, _Mapping]] = ..., alterStream: _Optional[_Union[AlterStream, _Mapping]] = ..., truncateBefore: _Optional[_Union[TruncateBefore, _Mapping]] = ..., purgeRecords: _Optional[_Union[PurgeRecords, _Mapping]] = ..., reportPurged: _Optional[_Union[ReportPurged, _Mapping]] = ..., reportService: _Optional[_Union[ReportService, _Mapping]] = ..., pausePartitions: _Optional[_Union[PausePartitions, _Mapping]] = ..., wakePartition: _Optional[_Union[WakePartition, _Mapping]] = ..., openGroups: _Optional[_Union[OpenGroups, _Mapping]] = ..., setFeatureLevel: _Optional[_Union[SetFeatureLevel, _Mapping]] = ..., setDefaultQuota: _Optional[_Union[SetDefaultQuota, _Mapping]] = ..., setSessionTimes: _Optional[_Union[SetSessionTimes, _Mapping]] = ..., settleSessionTimes: _Optional[_Union[SettleSessionTimes, _Mapping]] = ..., changeControllers: _Optional[_Union[ChangeControllers, _Mapping]] = ...) -> None: ...

class ChangeControllers(_message.Message):
    __slots__ = ("what", "node", "replaced", "list", "after")
    class What(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        GO_ON: _ClassVar[ChangeControllers.What]
        ADD: _ClassVar[ChangeControllers.What]
        REMOVE: _ClassVar[ChangeControllers.What]
        REPLACE: _ClassVar[ChangeControllers.What]
    GO_ON: ChangeControllers.What
    ADD: ChangeControllers.What
    REMOVE: ChangeControllers.What
    REPLACE: ChangeControllers.What
    WHAT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    what: ChangeControllers.What
    node: str
    replaced: str
    list: ControllerList
    after: int
    def __init__(self, what: _Optional[_Union[ChangeControllers.What, str]] = ..., node: _Optional[str] = ..., replaced: _Optional[str] = ..., list: _Optional[_Union[ControllerList, _Mapping]] = ..., after: _Optional[int] = ...) -> None: ...

class ControllerList(_message.Message):
    __slots__ = ("voters", "learner", "leaving", "index")
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    LEARNER_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    voters: _containers.RepeatedScalarFieldContainer[str]
    learner: str
    leaving: str
    index: int
    def __init__(self, voters: _Optional[_Iterable[str]] = ..., learner: _Optional[str] = ..., leaving: _Optional[str] = ..., index: _Optional[int] = ...) -> None: ...

class ControlResponse(_message.Message):
    __slots__ = ("operationId", "error", "detail", "index", "metadataLeader", "nextPartition", "retryAfterMs", "leaseMs", "stream", "node", "partition", "cluster", "batch", "plan", "levels", "defaultQuota", "sessionTimes")
    class Error(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OK: _ClassVar[ControlResponse.Error]
        UNKNOWN: _ClassVar[ControlResponse.Error]
        INVALID: _ClassVar[ControlResponse.Error]
        EXISTS: _ClassVar[ControlResponse.Error]
        NOT_FOUND: _ClassVar[ControlResponse.Error]
        STALE: _ClassVar[ControlResponse.Error]
        FENCED: _ClassVar[ControlResponse.Error]
        UNAVAILABLE: _ClassVar[ControlResponse.Error]
        OUTCOME_UNKNOWN: _ClassVar[ControlResponse.Error]
        NOT_ENOUGH_NODES: _ClassVar[ControlResponse.Error]
        NOT_METADATA_LEADER: _ClassVar[ControlResponse.Error]
    OK: ControlResponse.Error
    UNKNOWN: ControlResponse.Error
    INVALID: ControlResponse.Error
    EXISTS: ControlResponse.Error
    NOT_FOUND: ControlResponse.Error
    STALE: ControlResponse.Error
    FENCED: ControlResponse.Error
    UNAVAILABLE: ControlResponse.Error
    OUTCOME_UNKNOWN: ControlResponse.Error
    NOT_ENOUGH_NODES: ControlResponse.Error
    NOT_METADATA_LEADER: ControlResponse.Error
    OPERATIONID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    METADATALEADER_FIELD_NUMBER: _ClassVar[int]
    NEXTPARTITION_FIELD_NUMBER: _ClassVar[int]
    RETRYAFTERMS_FIELD_NUMBER: _ClassVar[int]
    LEASEMS_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    DEFAULTQUOTA_FIELD_NUMBER: _ClassVar[int]
    SESSIONTIMES_FIELD_NUMBER: _ClassVar[int]
    operationId: bytes
    error: ControlResponse.Error
    detail: str
    index: int
    metadataLeader: str
    nextPartition: int
    retryAfterMs: int
    leaseMs: int
    stream: Stream
    node: Node
    partition: Partition
    cluster: ClusterDescription
    batch: BatchAnswers
    plan: PlacementPlan
    levels: FeatureLevels
    defaultQuota: DefaultQuota
    sessionTimes: SessionTimes
    def __init__(self, operationId: _Optional[bytes] = ..., error: _Optional[_Union[ControlResponse.Error, str]] = ..., detail: _Optional[str] = ..., index: _Optional[int] = ..., metadataLeader: _Optional[str] = ..., nextPartition: _Optional[int] = ..., retryAfterMs: _Optional[int] = ..., leaseMs: _Optional[int] = ..., stream: _Optional[_Union[Stream, _Mapping]] = ..., node: _Optional[_Union[Node, _Mapping]] = ..., partition: _Optional[_Union[Partition, _Mapping]] = ..., cluster: _Optional[_Union[ClusterDescription, _Mapping]] = ..., batch: _Optional[_Union[BatchAnswers, _Mapping]] = ..., plan: _Optional[_Union[PlacementPlan, _Mapping]] = ..., levels: _Optional[_Union[FeatureLevels, _Mapping]] = ..., defaultQuota: _Optional[_Union[DefaultQuota, _Mapping]] = ..., sessionTimes: _Optional[_Union[SessionTimes, _Mapping]] = ...) -> None: ...

class FeatureLevels(_message.Message):
    __slots__ = ("level", "nodes", "reasons")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    level: int
    nodes: _containers.RepeatedCompositeFieldContainer[SpokenLevels]
    reasons: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, level: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[SpokenLevels, _Mapping]]] = ..., reasons: _Optional[_Iterable[str]] = ...) -> None: ...

class SpokenLevels(_message.Message):
    __slots__ = ("nodeId", "minLevel", "maxLevel", "version")
    NODEID_FIELD_NUMBER: _ClassVar[int]
    MINLEVEL_FIELD_NUMBER: _ClassVar[int]
    MAXLEVEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    nodeId: str
    minLevel: int
    maxLevel: int
    version: str
    def __init__(self, nodeId: _Optional[str] = ..., minLevel: _Optional[int] = ..., maxLevel: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class PlacementPlan(_message.Message):
    __slots__ = ("nodes", "firstPartition", "replicationFactor", "replicas", "notes", "waits")
    NODES_FIELD_NUMBER: _ClassVar[int]
    FIRSTPARTITION_FIELD_NUMBER: _ClassVar[int]
    REPLICATIONFACTOR_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[PlannedNode]
    firstPartition: int
    replicationFactor: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    notes: _containers.RepeatedScalarFieldContainer[str]
    waits: str
    def __init__(self, nodes: _Optional[_Iterable[_Union[PlannedNode, _Mapping]]] = ..., firstPartition: _Optional[int] = ..., replicationFactor: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ..., notes: _Optional[_Iterable[str]] = ..., waits: _Optional[str] = ...) -> None: ...

class PlannedNode(_message.Message):
    __slots__ = ("nodeId", "rack", "weight", "replicas", "leaders", "fenced")
    NODEID_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    LEADERS_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    nodeId: str
    rack: str
    weight: float
    replicas: int
    leaders: int
    fenced: bool
    def __init__(self, nodeId: _Optional[str] = ..., rack: _Optional[str] = ..., weight: _Optional[float] = ..., replicas: _Optional[int] = ..., leaders: _Optional[int] = ..., fenced: _Optional[bool] = ...) -> None: ...

class ClusterDescription(_message.Message):
    __slots__ = ("image", "metadataLeader", "controllers", "more", "nextPartition")
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    METADATALEADER_FIELD_NUMBER: _ClassVar[int]
    CONTROLLERS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    NEXTPARTITION_FIELD_NUMBER: _ClassVar[int]
    image: Image
    metadataLeader: str
    controllers: _containers.RepeatedCompositeFieldContainer[ControllerStatus]
    more: bool
    nextPartition: int
    def __init__(self, image: _Optional[_Union[Image, _Mapping]] = ..., metadataLeader: _Optional[str] = ..., controllers: _Optional[_Iterable[_Union[ControllerStatus, _Mapping]]] = ..., more: _Optional[bool] = ..., nextPartition: _Optional[int] = ...) -> None: ...

class ControllerStatus(_message.Message):
    __slots__ = ("nodeId", "leader", "term", "commitIndex", "appliedIndex", "lag", "connected", "learner", "leaving", "waitsFor")
    NODEID_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    COMMITINDEX_FIELD_NUMBER: _ClassVar[int]
    APPLIEDINDEX_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    LEARNER_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    WAITSFOR_FIELD_NUMBER: _ClassVar[int]
    nodeId: str
    leader: bool
    term: int
    commitIndex: int
    appliedIndex: int
    lag: int
    connected: bool
    learner: bool
    leaving: bool
    waitsFor: str
    def __init__(self, nodeId: _Optional[str] = ..., leader: _Optional[bool] = ..., term: _Optional[int] = ..., commitIndex: _Optional[int] = ..., appliedIndex: _Optional[int] = ..., lag: _Optional[int] = ..., connected: _Optional[bool] = ..., learner: _Optional[bool] = ..., leaving: _Optional[bool] = ..., waitsFor: _Optional[str] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("streamCreated", "streamDeleted", "nodeRegistered", "nodeRemoved", "partitionChanged", "operationDone", "countersMoved", "leaderReported", "partitionsAdded", "streamAltered", "controllersChanged", "featureLevelSet", "defaultQuotaSet", "sessionTimesSet")
    STREAMCREATED_FIELD_NUMBER: _ClassVar[int]
    STREAMDELETED_FIELD_NUMBER: _ClassVar[int]
    NODEREGISTERED_FIELD_NUMBER: _ClassVar[int]
    NODEREMOVED_FIELD_NUMBER: _ClassVar[int]
    PARTITIONCHANGED_FIELD_NUMBER: _ClassVar[int]
    OPERATIONDONE_FIELD_NUMBER: _ClassVar[int]
    COUNTERSMOVED_FIELD_NUMBER: _ClassVar[int]
    LEADERREPORTED_FIELD_NUMBER: _ClassVar[int]
    PARTITIONSADDED_FIELD_NUMBER: _ClassVar[int]
    STREAMALTERED_FIELD_NUMBER: _ClassVar[int]
    CONTROLLERSCHANGED_FIELD_NUMBER: _ClassVar[int]
    FEATURELEVELSET_FIELD_NUMBER: _ClassVar[int]
    DEFAULTQUOTASET_FIELD_NUMBER: _ClassVar[int]
    SESSIONTIMESSET_FIELD_NUMBER: _ClassVar[int]
    streamCreated: Stream
    streamDeleted: StreamDeleted
    nodeRegistered: Node
    nodeRemoved: NodeRemoved
    partitionChanged: PartitionStateChanged
    operationDone: OperationDone
    countersMoved: CountersMoved
    leaderReported: LeaderReported
    partitionsAdded: PartitionsAdded
    streamAltered: StreamAltered
    controllersChanged: ControllerList
    featureLevelSet: FeatureLevelSet
    defaultQuotaSet: DefaultQuota
    sessionTimesSet: SessionTimes
    def __init__(self, streamCreated: _Optional[_Union[Stream, _Mapping]] = ..., streamDeleted: _Optional[_Union[StreamDeleted, _Mapping]] = ..., nodeRegistered: _Optional[_Union[Node, _Mapping]] = ..., nodeRemoved: _Optional[_Union[NodeRemoved, _Mapping]] = ..., partitionChanged: _Optional[_Union[PartitionStateChanged, _Mapping]] = ..., operationDone: _Optional[_Union[OperationDone, _Mapping]] = ..., countersMoved: _Optional[_Union[CountersMoved, _Mapping]] = ..., leaderReported: _Optional[_Union[LeaderReported, _Mapping]] = ..., partitionsAdded: _Optional[_Union[PartitionsAdded, _Mapping]] = ..., streamAltered: _Optional[_Union[StreamAltered, _Mapping]] = ..., controllersChanged: _Optional[_Union[ControllerList, _Mapping]] = ..., featureLevelSet: _Optional[_Union[FeatureLevelSet, _Mapping]] = ..., defaultQuotaSet: _Optional[_Union[DefaultQuota, _Mapping]] = ..., sessionTimesSet: _Optional[_Union[SessionTimes, _Mapping]] = ...) -> None: ...

class FeatureLevelSet(_message.Message):
    __slots__ = ("level", "rules", "sessionTimes")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    SESSIONTIMES_FIELD_NUMBER: _ClassVar[int]
    level: int
    rules: ClusterRules
    sessionTimes: SessionTimes
    def __init__(self, level: _Optional[int] = ..., rules: _Optional[_Union[ClusterRules, _Mapping]] = ..., sessionTimes: _Optional[_Union[SessionTimes, _Mapping]] = ...) -> None: ...

class PartitionsAdded(_message.Message):
    __slots__ = ("stream", "uid", "partitions")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    stream: str
    uid: str
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    def __init__(self, stream: _Optional[str] = ..., uid: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ...) -> None: ...

class StreamAltered(_message.Message):
    __slots__ = ("stream", "uid", "replicationFactor", "config", "configVersion")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    REPLICATIONFACTOR_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    CONFIGVERSION_FIELD_NUMBER: _ClassVar[int]
    stream: str
    uid: str
    replicationFactor: int
    config: StreamConfig
    configVersion: int
    def __init__(self, stream: _Optional[str] = ..., uid: _Optional[str] = ..., replicationFactor: _Optional[int] = ..., config: _Optional[_Union[StreamConfig, _Mapping]] = ..., configVersion: _Optional[int] = ...) -> None: ...

class StreamDeleted(_message.Message):
    __slots__ = ("name", "uid")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    name: str
    uid: str
    def __init__(self, name: _Optional[str] = ..., uid: _Optional[str] = ...) -> None: ...

class NodeRemoved(_message.Message):
    __slots__ = ("nodeId",)
    NODEID_FIELD_NUMBER: _ClassVar[int]
    nodeId: str
    def __init__(self, nodeId: _Optional[str] = ...) -> None: ...

class PartitionStateChanged(_message.Message):
    __slots__ = ("stream", "uid", "partition")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    stream: str
    uid: str
    partition: Partition
    def __init__(self, stream: _Optional[str] = ..., uid: _Optional[str] = ..., partition: _Optional[_Union[Partition, _Mapping]] = ...) -> None: ...

class OperationDone(_message.Message):
    __slots__ = ("operationId", "timeNs", "response", "ageNs")
    OPERATIONID_FIELD_NUMBER: _ClassVar[int]
    TIMENS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    AGENS_FIELD_NUMBER: _ClassVar[int]
    operationId: bytes
    timeNs: int
    response: bytes
    ageNs: int
    def __init__(self, operationId: _Optional[bytes] = ..., timeNs: _Optional[int] = ..., response: _Optional[bytes] = ..., ageNs: _Optional[int] = ...) -> None: ...

class CountersMoved(_message.Message):
    __slots__ = ("nextIncarnation", "nextStreamUid", "nextLeaderEpoch", "nextEpoch", "placementIndex")
    NEXTINCARNATION_FIELD_NUMBER: _ClassVar[int]
    NEXTSTREAMUID_FIELD_NUMBER: _ClassVar[int]
    NEXTLEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXTEPOCH_FIELD_NUMBER: _ClassVar[int]
    PLACEMENTINDEX_FIELD_NUMBER: _ClassVar[int]
    nextIncarnation: int
    nextStreamUid: int
    nextLeaderEpoch: int
    nextEpoch: int
    placementIndex: int
    def __init__(self, nextIncarnation: _Optional[int] = ..., nextStreamUid: _Optional[int] = ..., nextLeaderEpoch: _Optional[int] = ..., nextEpoch: _Optional[int] = ..., placementIndex: _Optional[int] = ...) -> None: ...

class LeaderReported(_message.Message):
    __slots__ = ("uid", "partition", "witness", "witnessIncarnation", "leader", "leaderEpoch", "lastEpoch", "newestOffset", "highWatermark", "timeNs", "stampNs", "stampTerm")
    UID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    WITNESS_FIELD_NUMBER: _ClassVar[int]
    WITNESSINCARNATION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    LASTEPOCH_FIELD_NUMBER: _ClassVar[int]
    NEWESTOFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGHWATERMARK_FIELD_NUMBER: _ClassVar[int]
    TIMENS_FIELD_NUMBER: _ClassVar[int]
    STAMPNS_FIELD_NUMBER: _ClassVar[int]
    STAMPTERM_FIELD_NUMBER: _ClassVar[int]
    uid: str
    partition: int
    witness: str
    witnessIncarnation: int
    leader: str
    leaderEpoch: int
    lastEpoch: int
    newestOffset: int
    highWatermark: int
    timeNs: int
    stampNs: int
    stampTerm: int
    def __init__(self, uid: _Optional[str] = ..., partition: _Optional[int] = ..., witness: _Optional[str] = ..., witnessIncarnation: _Optional[int] = ..., leader: _Optional[str] = ..., leaderEpoch: _Optional[int] = ..., lastEpoch: _Optional[int] = ..., newestOffset: _Optional[int] = ..., highWatermark: _Optional[int] = ..., timeNs: _Optional[int] = ..., stampNs: _Optional[int] = ..., stampTerm: _Optional[int] = ...) -> None: ...

class Image(_message.Message):
    __slots__ = ("index", "nodes", "streams", "counters", "operations", "timeNs", "reports", "featureLevel", "rules", "digest", "defaultQuota", "sessionTimes", "controllers")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    TIMENS_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    FEATURELEVEL_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DEFAULTQUOTA_FIELD_NUMBER: _ClassVar[int]
    SESSIONTIMES_FIELD_NUMBER: _ClassVar[int]
    CONTROLLERS_FIELD_NUMBER: _ClassVar[int]
    index: int
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    streams: _containers.RepeatedCompositeFieldContainer[Stream]
    counters: CountersMoved
    operations: _containers.RepeatedCompositeFieldContainer[OperationDone]
    timeNs: int
    reports: _containers.RepeatedCompositeFieldContainer[LeaderReported]
    featureLevel: int
    rules: ClusterRules
    digest: bytes
    defaultQuota: DefaultQuota
    sessionTimes: SessionTimes
    controllers: ControllerList
    def __init__(self, index: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., streams: _Optional[_Iterable[_Union[Stream, _Mapping]]] = ..., counters: _Optional[_Union[CountersMoved, _Mapping]] = ..., operations: _Optional[_Iterable[_Union[OperationDone, _Mapping]]] = ..., timeNs: _Optional[int] = ..., reports: _Optional[_Iterable[_Union[LeaderReported, _Mapping]]] = ..., featureLevel: _Optional[int] = ..., rules: _Optional[_Union[ClusterRules, _Mapping]] = ..., digest: _Optional[bytes] = ..., defaultQuota: _Optional[_Union[DefaultQuota, _Mapping]] = ..., sessionTimes: _Optional[_Union[SessionTimes, _Mapping]] = ..., controllers: _Optional[_Union[ControllerList, _Mapping]] = ...) -> None: ...

class FeedEntry(_message.Message):
    __slots__ = ("index", "previousIndex", "records")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PREVIOUSINDEX_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    index: int
    previousIndex: int
    records: _containers.RepeatedCompositeFieldContainer[Record]
    def __init__(self, index: _Optional[int] = ..., previousIndex: _Optional[int] = ..., records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ...) -> None: ...

class FeedSnapshotRequest(_message.Message):
    __slots__ = ("nodeId", "offsetBytes", "snapshotIndex", "afterIndex")
    NODEID_FIELD_NUMBER: _ClassVar[int]
    OFFSETBYTES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTINDEX_FIELD_NUMBER: _ClassVar[int]
    AFTERINDEX_FIELD_NUMBER: _ClassVar[int]
    nodeId: str
    offsetBytes: int
    snapshotIndex: int
    afterIndex: int
    def __init__(self, nodeId: _Optional[str] = ..., offsetBytes: _Optional[int] = ..., snapshotIndex: _Optional[int] = ..., afterIndex: _Optional[int] = ...) -> None: ...

class FeedSnapshotResponse(_message.Message):
    __slots__ = ("index", "sizeBytes", "offsetBytes", "chunk", "crc", "entries", "nodeId")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SIZEBYTES_FIELD_NUMBER: _ClassVar[int]
    OFFSETBYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    NODEID_FIELD_NUMBER: _ClassVar[int]
    index: int
    sizeBytes: int
    offsetBytes: int
    chunk: bytes
    crc: int
    entries: _containers.RepeatedCompositeFieldContainer[FeedEntry]
    nodeId: str
    def __init__(self, index: _Optional[int] = ..., sizeBytes: _Optional[int] = ..., offsetBytes: _Optional[int] = ..., chunk: _Optional[bytes] = ..., crc: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[FeedEntry, _Mapping]]] = ..., nodeId: _Optional[str] = ...) -> None: ...
