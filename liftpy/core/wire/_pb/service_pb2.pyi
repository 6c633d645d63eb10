from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ServiceRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SERVICE_FOLLOWER: _ClassVar[ServiceRole]
    SERVICE_LEADER: _ClassVar[ServiceRole]

class EffectNumbers(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EFFECT_NUMBERS_UNCHANGED: _ClassVar[EffectNumbers]
    EFFECT_NUMBERS_BY_COUNT: _ClassVar[EffectNumbers]
    EFFECT_NUMBERS_BY_RECORD: _ClassVar[EffectNumbers]
SERVICE_FOLLOWER: ServiceRole
SERVICE_LEADER: ServiceRole
EFFECT_NUMBERS_UNCHANGED: EffectNumbers
EFFECT_NUMBERS_BY_COUNT: EffectNumbers
EFFECT_NUMBERS_BY_RECORD: EffectNumbers

class SnapshotDigest(_message.Message):
    __slots__ = ("position", "digest")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    position: int
    digest: bytes
    def __init__(self, position: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class AgreedSnapshot(_message.Message):
    __slots__ = ("position", "digest", "nodes")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    position: int
    digest: bytes
    nodes: int
    def __init__(self, position: _Optional[int] = ..., digest: _Optional[bytes] = ..., nodes: _Optional[int] = ...) -> None: ...

class ReplayPoint(_message.Message):
    __slots__ = ("position", "outputCount", "effectCount", "version")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    OUTPUTCOUNT_FIELD_NUMBER: _ClassVar[int]
    EFFECTCOUNT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    position: int
    outputCount: int
    effectCount: int
    version: int
    def __init__(self, position: _Optional[int] = ..., outputCount: _Optional[int] = ..., effectCount: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class ServiceFigures(_message.Message):
    __slots__ = ("sinceOutputMs", "queriesWaiting", "queriesAnswered", "queriesRefused", "snapshotsStored", "sinceSnapshotMs", "snapshotBytes", "timersWaiting", "effectsWaiting")
    SINCEOUTPUTMS_FIELD_NUMBER: _ClassVar[int]
    QUERIESWAITING_FIELD_NUMBER: _ClassVar[int]
    QUERIESANSWERED_FIELD_NUMBER: _ClassVar[int]
    QUERIESREFUSED_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTSSTORED_FIELD_NUMBER: _ClassVar[int]
    SINCESNAPSHOTMS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTBYTES_FIELD_NUMBER: _ClassVar[int]
    TIMERSWAITING_FIELD_NUMBER: _ClassVar[int]
    EFFECTSWAITING_FIELD_NUMBER: _ClassVar[int]
    sinceOutputMs: int
    queriesWaiting: int
    queriesAnswered: int
    queriesRefused: int
    snapshotsStored: int
    sinceSnapshotMs: int
    snapshotBytes: int
    timersWaiting: int
    effectsWaiting: int
    def __init__(self, sinceOutputMs: _Optional[int] = ..., queriesWaiting: _Optional[int] = ..., queriesAnswered: _Optional[int] = ..., queriesRefused: _Optional[int] = ..., snapshotsStored: _Optional[int] = ..., sinceSnapshotMs: _Optional[int] = ..., snapshotBytes: _Optional[int] = ..., timersWaiting: _Optional[int] = ..., effectsWaiting: _Optional[int] = ...) -> None: ...

class ServiceHello(_message.Message):
    __slots__ = ("service", "stream", "partition", "streamUid", "instance", "first", "leaving", "position", "outputCount", "emittedEnd", "problem", "snapshots", "life", "snapshotPosition", "failing", "fetching", "fetchedBytes", "givenBytes", "figures", "version", "activeVersion", "ending", "replayPoints", "effectCount", "effectNumbers")
    class Ending(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STOPPED: _ClassVar[ServiceHello.Ending]
        FAILED: _ClassVar[ServiceHello.Ending]
        DIVERGED: _ClassVar[ServiceHello.Ending]
    STOPPED: ServiceHello.Ending
    FAILED: ServiceHello.Ending
    DIVERGED: ServiceHello.Ending
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    STREAMUID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    OUTPUTCOUNT_FIELD_NUMBER: _ClassVar[int]
    EMITTEDEND_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTPOSITION_FIELD_NUMBER: _ClassVar[int]
    FAILING_FIELD_NUMBER: _ClassVar[int]
    FETCHING_FIELD_NUMBER: _ClassVar[int]
    FETCHEDBYTES_FIELD_NUMBER: _ClassVar[int]
    GIVENBYTES_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ACTIVEVERSION_FIELD_NUMBER: _ClassVar[int]
    ENDING_FIELD_NUMBER: _ClassVar[int]
    REPLAYPOINTS_FIELD_NUMBER: _ClassVar[int]
    EFFECTCOUNT_FIELD_NUMBER: _ClassVar[int]
    EFFECTNUMBERS_FIELD_NUMBER: _ClassVar[int]
    service: str
    stream: str
    partition: int
    streamUid: str
    instance: int
    first: bool
    leaving: bool
    position: int
    outputCount: int
    emittedEnd: int
    problem: str
    snapshots: _containers.RepeatedCompositeFieldContainer[SnapshotDigest]
    life: int
    snapshotPosition: int
    failing: bool
    fetching: bool
    fetchedBytes: int
    givenBytes: int
    figures: ServiceFigures
    version: int
    activeVersion: int
    ending: ServiceHello.Ending
    replayPoints: _containers.RepeatedCompositeFieldContainer[ReplayPoint]
    effectCount: int
    effectNumbers: EffectNumbers
    def __init__(self, service: _Optional[str] = ..., stream: _Optional[str] = ..., partition: _Optional[int] = ..., streamUid: _Optional[str] = ..., instance: _Optional[int] = ..., first: _Optional[bool] = ..., leaving: _Optional[bool] = ..., position: _Optional[int] = ..., outputCount: _Optional[int] = ..., emittedEnd: _Optional[int] = ..., problem: _Optional[str] = ..., snapshots: _Optional[_Iterable[_Union[SnapshotDigest, _Mapping]]] = ..., life: _Optional[int] = ..., snapshotPosition: _Optional[int] = ..., failing: _Optional[bool] = ..., fetching: _Optional[bool] = ..., fetchedBytes: _Optional[int] = ..., givenBytes: _Optional[int] = ..., figures: _Optional[_Union[ServiceFigures, _Mapping]] = ..., version: _Optional[int] = ..., activeVersion: _Optional[int] = ..., ending: _Optional[_Union[ServiceHello.Ending, str]] = ..., replayPoints: _Optional[_Iterable[_Union[ReplayPoint, _Mapping]]] = ..., effectCount: _Optional[int] = ..., effectNumbers: _Optional[_Union[EffectNumbers, str]] = ...) -> None: ...

class JoinLog(_message.Message):
    __slots__ = ("service", "stream", "partition", "streamUid", "instance", "ackId", "role", "leaderEpoch", "startOffset", "stopPosition", "highWatermark", "logEndOffset", "leaseMs", "node", "snapshotRequest", "leads", "agreed", "lowestVersion", "effectNumbers", "turn")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    STREAMUID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    ACKID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    STARTOFFSET_FIELD_NUMBER: _ClassVar[int]
    STOPPOSITION_FIELD_NUMBER: _ClassVar[int]
    HIGHWATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOGENDOFFSET_FIELD_NUMBER: _ClassVar[int]
    LEASEMS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTREQUEST_FIELD_NUMBER: _ClassVar[int]
    LEADS_FIELD_NUMBER: _ClassVar[int]
    AGREED_FIELD_NUMBER: _ClassVar[int]
    LOWESTVERSION_FIELD_NUMBER: _ClassVar[int]
    EFFECTNUMBERS_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    service: str
    stream: str
    partition: int
    streamUid: str
    instance: int
    ackId: int
    role: ServiceRole
    leaderEpoch: int
    startOffset: int
    stopPosition: int
    highWatermark: int
    logEndOffset: int
    leaseMs: int
    node: str
    snapshotRequest: int
    leads: bool
    agreed: _containers.RepeatedCompositeFieldContainer[AgreedSnapshot]
    lowestVersion: int
    effectNumbers: EffectNumbers
    turn: int
    def __init__(self, service: _Optional[str] = ..., stream: _Optional[str] = ..., partition: _Optional[int] = ..., streamUid: _Optional[str] = ..., instance: _Optional[int] = ..., ackId: _Optional[int] = ..., role: _Optional[_Union[ServiceRole, str]] = ..., leaderEpoch: _Optional[int] = ..., startOffset: _Optional[int] = ..., stopPosition: _Optional[int] = ..., highWatermark: _Optional[int] = ..., logEndOffset: _Optional[int] = ..., leaseMs: _Optional[int] = ..., node: _Optional[str] = ..., snapshotRequest: _Optional[int] = ..., leads: _Optional[bool] = ..., agreed: _Optional[_Iterable[_Union[AgreedSnapshot, _Mapping]]] = ..., lowestVersion: _Optional[int] = ..., effectNumbers: _Optional[_Union[EffectNumbers, str]] = ..., turn: _Optional[int] = ...) -> None: ...

class ServiceAck(_message.Message):
    __slots__ = ("service", "stream", "partition", "streamUid", "instance", "ackId", "position")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    STREAMUID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    ACKID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    service: str
    stream: str
    partition: int
    streamUid: str
    instance: int
    ackId: int
    position: int
    def __init__(self, service: _Optional[str] = ..., stream: _Optional[str] = ..., partition: _Optional[int] = ..., streamUid: _Optional[str] = ..., instance: _Optional[int] = ..., ackId: _Optional[int] = ..., position: _Optional[int] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ("service", "stream", "partition")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    service: str
    stream: str
    partition: int
    def __init__(self, service: _Optional[str] = ..., stream: _Optional[str] = ..., partition: _Optional[int] = ...) -> None: ...

class PeerSnapshotRequest(_message.Message):
    __slots__ = ("service", "stream", "partition", "streamUid", "position", "digest", "start", "maxBytes")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    STREAMUID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    MAXBYTES_FIELD_NUMBER: _ClassVar[int]
    service: str
    stream: str
    partition: int
    streamUid: str
    position: int
    digest: bytes
    start: int
    maxBytes: int
    def __init__(self, service: _Optional[str] = ..., stream: _Optional[str] = ..., partition: _Optional[int] = ..., streamUid: _Optional[str] = ..., position: _Optional[int] = ..., digest: _Optional[bytes] = ..., start: _Optional[int] = ..., maxBytes: _Optional[int] = ...) -> None: ...

class PeerSnapshotAnswer(_message.Message):
    __slots__ = ("node", "offers", "data", "problem")
    class Offer(_message.Message):
        __slots__ = ("position", "digest", "sizeBytes", "outputCount")
        POSITION_FIELD_NUMBER: _ClassVar[int]
        DIGEST_FIELD_NUMBER: _ClassVar[int]
        SIZEBYTES_FIELD_NUMBER: _ClassVar[int]
        OUTPUTCOUNT_FIELD_NUMBER: _ClassVar[int]
        position: int
        digest: bytes
        sizeBytes: int
        outputCount: int
        def __init__(self, position: _Optional[int] = ..., digest: _Optional[bytes] = ..., sizeBytes: _Optional[int] = ..., outputCount: _Optional[int] = ...) -> None: ...
    NODE_FIELD_NUMBER: _ClassVar[int]
    OFFERS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    node: str
    offers: _containers.RepeatedCompositeFieldContainer[PeerSnapshotAnswer.Offer]
    data: bytes
    problem: str
    def __init__(self, node: _Optional[str] = ..., offers: _Optional[_Iterable[_Union[PeerSnapshotAnswer.Offer, _Mapping]]] = ..., data: _Optional[bytes] = ..., problem: _Optional[str] = ...) -> None: ...

class ServiceReport(_message.Message):
    __slots__ = ("node", "stream", "partition", "streamUid", "services")
    class State(_message.Message):
        __slots__ = ("service", "position", "failing", "snapshots", "version", "effectNumbers", "life")
        SERVICE_FIELD_NUMBER: _ClassVar[int]
        POSITION_FIELD_NUMBER: _ClassVar[int]
        FAILING_FIELD_NUMBER: _ClassVar[int]
        SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
        VERSION_FIELD_NUMBER: _ClassVar[int]
        EFFECTNUMBERS_FIELD_NUMBER: _ClassVar[int]
        LIFE_FIELD_NUMBER: _ClassVar[int]
        service: str
        position: int
        failing: bool
        snapshots: _containers.RepeatedCompositeFieldContainer[SnapshotDigest]
        version: int
        effectNumbers: EffectNumbers
        life: int
        def __init__(self, service: _Optional[str] = ..., position: _Optional[int] = ..., failing: _Optional[bool] = ..., snapshots: _Optional[_Iterable[_Union[SnapshotDigest, _Mapping]]] = ..., version: _Optional[int] = ..., effectNumbers: _Optional[_Union[EffectNumbers, str]] = ..., life: _Optional[int] = ...) -> None: ...
    NODE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    STREAMUID_FIELD_NUMBER: _ClassVar[int]
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    node: str
    stream: str
    partition: int
    streamUid: str
    services: _containers.RepeatedCompositeFieldContainer[ServiceReport.State]
    def __init__(self, node: _Optional[str] = ..., stream: _Optional[str] = ..., partition: _Optional[int] = ..., streamUid: _Optional[str] = ..., services: _Optional[_Iterable[_Union[ServiceReport.State, _Mapping]]] = ...) -> None: ...

class ServiceRefusal(_message.Message):
    __slots__ = ("reason", "detail", "node", "service", "stream", "partition", "instance", "position")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[ServiceRefusal.Reason]
        NO_SUCH_PARTITION: _ClassVar[ServiceRefusal.Reason]
        WRONG_STREAM: _ClassVar[ServiceRefusal.Reason]
        REPLACED: _ClassVar[ServiceRefusal.Reason]
        TOO_MANY: _ClassVar[ServiceRefusal.Reason]
        MALFORMED: _ClassVar[ServiceRefusal.Reason]
        COMPACTED: _ClassVar[ServiceRefusal.Reason]
        TAKEN: _ClassVar[ServiceRefusal.Reason]
        DIVERGED: _ClassVar[ServiceRefusal.Reason]
    UNKNOWN: ServiceRefusal.Reason
    NO_SUCH_PARTITION: ServiceRefusal.Reason
    WRONG_STREAM: ServiceRefusal.Reason
    REPLACED: ServiceRefusal.Reason
    TOO_MANY: ServiceRefusal.Reason
    MALFORMED: ServiceRefusal.Reason
    COMPACTED: ServiceRefusal.Reason
    TAKEN: ServiceRefusal.Reason
    DIVERGED: ServiceRefusal.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    reason: ServiceRefusal.Reason
    detail: str
    node: str
    service: str
    stream: str
    partition: int
    instance: int
    position: int
    def __init__(self, reason: _Optional[_Union[ServiceRefusal.Reason, str]] = ..., detail: _Optional[str] = ..., node: _Optional[str] = ..., service: _Optional[str] = ..., stream: _Optional[str] = ..., partition: _Optional[int] = ..., instance: _Optional[int] = ..., position: _Optional[int] = ...) -> None: ...
