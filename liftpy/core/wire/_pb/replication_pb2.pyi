from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReplicationRequest(_message.Message):
    __slots__ = ("replicaID", "offset", "leaderEpoch", "offsetEpoch", "incarnation", "requestId", "maxBytes", "streamUid", "awaitsMore", "badOffset", "position", "batchCrc", "flushMicros", "copyEpoch", "deletesEnd", "partition")
    REPLICAID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSETEPOCH_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REQUESTID_FIELD_NUMBER: _ClassVar[int]
    MAXBYTES_FIELD_NUMBER: _ClassVar[int]
    STREAMUID_FIELD_NUMBER: _ClassVar[int]
    AWAITSMORE_FIELD_NUMBER: _ClassVar[int]
    BADOFFSET_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BATCHCRC_FIELD_NUMBER: _ClassVar[int]
    FLUSHMICROS_FIELD_NUMBER: _ClassVar[int]
    COPYEPOCH_FIELD_NUMBER: _ClassVar[int]
    DELETESEND_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    replicaID: str
    offset: int
    leaderEpoch: int
    offsetEpoch: int
    incarnation: int
    requestId: int
    maxBytes: int
    streamUid: str
    awaitsMore: bool
    badOffset: int
    position: int
    batchCrc: int
    flushMicros: int
    copyEpoch: int
    deletesEnd: int
    partition: int
    def __init__(self, replicaID: _Optional[str] = ..., offset: _Optional[int] = ..., leaderEpoch: _Optional[int] = ..., offsetEpoch: _Optional[int] = ..., incarnation: _Optional[int] = ..., requestId: _Optional[int] = ..., maxBytes: _Optional[int] = ..., streamUid: _Optional[str] = ..., awaitsMore: _Optional[bool] = ..., badOffset: _Optional[int] = ..., position: _Optional[int] = ..., batchCrc: _Optional[int] = ..., flushMicros: _Optional[int] = ..., copyEpoch: _Optional[int] = ..., deletesEnd: _Optional[int] = ..., partition: _Optional[int] = ...) -> None: ...

class ReplicationRefusal(_message.Message):
    __slots__ = ("reason", "leaderEpoch", "logStartOffset", "streamUid", "partition", "requestId", "deletesEnd")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[ReplicationRefusal.Reason]
        NOT_LEADER: _ClassVar[ReplicationRefusal.Reason]
        STALE_EPOCH: _ClassVar[ReplicationRefusal.Reason]
        STALE_INCARNATION: _ClassVar[ReplicationRefusal.Reason]
        DIVERGED: _ClassVar[ReplicationRefusal.Reason]
        BEFORE_LOG_START: _ClassVar[ReplicationRefusal.Reason]
        NOT_A_REPLICA: _ClassVar[ReplicationRefusal.Reason]
        WRONG_STREAM: _ClassVar[ReplicationRefusal.Reason]
        DELETES_GONE: _ClassVar[ReplicationRefusal.Reason]
    UNKNOWN: ReplicationRefusal.Reason
    NOT_LEADER: ReplicationRefusal.Reason
    STALE_EPOCH: ReplicationRefusal.Reason
    STALE_INCARNATION: ReplicationRefusal.Reason
    DIVERGED: ReplicationRefusal.Reason
    BEFORE_LOG_START: ReplicationRefusal.Reason
    NOT_A_REPLICA: ReplicationRefusal.Reason
    WRONG_STREAM: ReplicationRefusal.Reason
    DELETES_GONE: ReplicationRefusal.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    LOGSTARTOFFSET_FIELD_NUMBER: _ClassVar[int]
    STREAMUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REQUESTID_FIELD_NUMBER: _ClassVar[int]
    DELETESEND_FIELD_NUMBER: _ClassVar[int]
    reason: ReplicationRefusal.Reason
    leaderEpoch: int
    logStartOffset: int
    streamUid: str
    partition: int
    requestId: int
    deletesEnd: int
    def __init__(self, reason: _Optional[_Union[ReplicationRefusal.Reason, str]] = ..., leaderEpoch: _Optional[int] = ..., logStartOffset: _Optional[int] = ..., streamUid: _Optional[str] = ..., partition: _Optional[int] = ..., requestId: _Optional[int] = ..., deletesEnd: _Optional[int] = ...) -> None: ...

class LeaderEpochOffsetRequest(_message.Message):
    __slots__ = ("leaderEpoch", "currentEpoch", "replicaID", "streamUid", "partition", "requestId")
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    CURRENTEPOCH_FIELD_NUMBER: _ClassVar[int]
    REPLICAID_FIELD_NUMBER: _ClassVar[int]
    STREAMUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REQUESTID_FIELD_NUMBER: _ClassVar[int]
    leaderEpoch: int
    currentEpoch: int
    replicaID: str
    streamUid: str
    partition: int
    requestId: int
    def __init__(self, leaderEpoch: _Optional[int] = ..., currentEpoch: _Optional[int] = ..., replicaID: _Optional[str] = ..., streamUid: _Optional[str] = ..., partition: _Optional[int] = ..., requestId: _Optional[int] = ...) -> None: ...

class LeaderEpochOffsetResponse(_message.Message):
    __slots__ = ("endOffset", "leaderEpoch", "currentEpoch", "logStartOffset", "streamUid", "partition", "requestId")
    ENDOFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    CURRENTEPOCH_FIELD_NUMBER: _ClassVar[int]
    LOGSTARTOFFSET_FIELD_NUMBER: _ClassVar[int]
    STREAMUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REQUESTID_FIELD_NUMBER: _ClassVar[int]
    endOffset: int
    leaderEpoch: int
    currentEpoch: int
    logStartOffset: int
    streamUid: str
    partition: int
    requestId: int
    def __init__(self, endOffset: _Optional[int] = ..., leaderEpoch: _Optional[int] = ..., currentEpoch: _Optional[int] = ..., logStartOffset: _Optional[int] = ..., streamUid: _Optional[str] = ..., partition: _Optional[int] = ..., requestId: _Optional[int] = ...) -> None: ...

class StateRequest(_message.Message):
    __slots__ = ("replicaID", "streamUid", "partition", "requestId", "endOffset", "position", "maxBytes")
    REPLICAID_FIELD_NUMBER: _ClassVar[int]
    STREAMUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REQUESTID_FIELD_NUMBER: _ClassVar[int]
    ENDOFFSET_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    MAXBYTES_FIELD_NUMBER: _ClassVar[int]
    replicaID: str
    streamUid: str
    partition: int
    requestId: int
    endOffset: int
    position: int
    maxBytes: int
    def __init__(self, replicaID: _Optional[str] = ..., streamUid: _Optional[str] = ..., partition: _Optional[int] = ..., requestId: _Optional[int] = ..., endOffset: _Optional[int] = ..., position: _Optional[int] = ..., maxBytes: _Optional[int] = ...) -> None: ...

class StateResponse(_message.Message):
    __slots__ = ("streamUid", "partition", "requestId", "later", "endOffset", "totalBytes", "position", "data")
    STREAMUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REQUESTID_FIELD_NUMBER: _ClassVar[int]
    LATER_FIELD_NUMBER: _ClassVar[int]
    ENDOFFSET_FIELD_NUMBER: _ClassVar[int]
    TOTALBYTES_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    streamUid: str
    partition: int
    requestId: int
    later: bool
    endOffset: int
    totalBytes: int
    position: int
    data: bytes
    def __init__(self, streamUid: _Optional[str] = ..., partition: _Optional[int] = ..., requestId: _Optional[int] = ..., later: _Optional[bool] = ..., endOffset: _Optional[int] = ..., totalBytes: _Optional[int] = ..., position: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class PartitionNotification(_message.Message):
    __slots__ = ("stream", "partition", "streamUid")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    STREAMUID_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    streamUid: str
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., streamUid: _Optional[str] = ...) -> None: ...

class QuietFetches(_message.Message):
    __slots__ = ("replicaID", "incarnation", "fetches", "question")
    REPLICAID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FETCHES_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    replicaID: str
    incarnation: int
    fetches: _containers.RepeatedCompositeFieldContainer[QuietFetch]
    question: int
    def __init__(self, replicaID: _Optional[str] = ..., incarnation: _Optional[int] = ..., fetches: _Optional[_Iterable[_Union[QuietFetch, _Mapping]]] = ..., question: _Optional[int] = ...) -> None: ...

class QuietFetch(_message.Message):
    __slots__ = ("stream", "streamUid", "partition", "leaderEpoch", "requestId")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    STREAMUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    REQUESTID_FIELD_NUMBER: _ClassVar[int]
    stream: str
    streamUid: str
    partition: int
    leaderEpoch: int
    requestId: int
    def __init__(self, stream: _Optional[str] = ..., streamUid: _Optional[str] = ..., partition: _Optional[int] = ..., leaderEpoch: _Optional[int] = ..., requestId: _Optional[int] = ...) -> None: ...

class QuietFetchesAnswer(_message.Message):
    __slots__ = ("over", "count", "question")
    OVER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    over: _containers.RepeatedScalarFieldContainer[int]
    count: int
    question: int
    def __init__(self, over: _Optional[_Iterable[int]] = ..., count: _Optional[int] = ..., question: _Optional[int] = ...) -> None: ...

class LeaderNotice(_message.Message):
    __slots__ = ("stream", "partition", "leader", "leaderEpoch", "epoch", "epochStartOffset", "highWatermark", "logStartOffset", "streamUid")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCHSTARTOFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGHWATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOGSTARTOFFSET_FIELD_NUMBER: _ClassVar[int]
    STREAMUID_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    leader: str
    leaderEpoch: int
    epoch: int
    epochStartOffset: int
    highWatermark: int
    logStartOffset: int
    streamUid: str
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., leader: _Optional[str] = ..., leaderEpoch: _Optional[int] = ..., epoch: _Optional[int] = ..., epochStartOffset: _Optional[int] = ..., highWatermark: _Optional[int] = ..., logStartOffset: _Optional[int] = ..., streamUid: _Optional[str] = ...) -> None: ...

class StepAside(_message.Message):
    __slots__ = ("stream", "streamUid", "partition", "leaderEpoch")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    STREAMUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    stream: str
    streamUid: str
    partition: int
    leaderEpoch: int
    def __init__(self, stream: _Optional[str] = ..., streamUid: _Optional[str] = ..., partition: _Optional[int] = ..., leaderEpoch: _Optional[int] = ...) -> None: ...

class LeaderQuestion(_message.Message):
    __slots__ = ("stream", "streamUid", "partition", "leaderEpoch")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    STREAMUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    stream: str
    streamUid: str
    partition: int
    leaderEpoch: int
    def __init__(self, stream: _Optional[str] = ..., streamUid: _Optional[str] = ..., partition: _Optional[int] = ..., leaderEpoch: _Optional[int] = ...) -> None: ...

class LeaderTestimony(_message.Message):
    __slots__ = ("serves", "question")
    SERVES_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    serves: bool
    question: LeaderQuestion
    def __init__(self, serves: _Optional[bool] = ..., question: _Optional[_Union[LeaderQuestion, _Mapping]] = ...) -> None: ...
