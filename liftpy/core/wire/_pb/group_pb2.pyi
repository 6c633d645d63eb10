from liftpy.core.wire._pb import bounds_pb2 as _bounds_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SettleKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SETTLE_UNKNOWN: _ClassVar[SettleKind]
    SETTLE_ACK: _ClassVar[SettleKind]
    SETTLE_NACK: _ClassVar[SettleKind]
    SETTLE_EXTEND: _ClassVar[SettleKind]
    SETTLE_REJECT: _ClassVar[SettleKind]
    SETTLE_RELEASE: _ClassVar[SettleKind]

class GroupCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GROUP_OK: _ClassVar[GroupCode]
    GROUP_MALFORMED: _ClassVar[GroupCode]
    GROUP_UNKNOWN_MEMBER: _ClassVar[GroupCode]
    GROUP_FENCED_INSTANCE: _ClassVar[GroupCode]
    GROUP_STALE: _ClassVar[GroupCode]
    GROUP_NOT_EMPTY: _ClassVar[GroupCode]
    GROUP_NOT_FOUND: _ClassVar[GroupCode]
    GROUP_FULL: _ClassVar[GroupCode]
    GROUP_COMPARE_LOG: _ClassVar[GroupCode]
SETTLE_UNKNOWN: SettleKind
SETTLE_ACK: SettleKind
SETTLE_NACK: SettleKind
SETTLE_EXTEND: SettleKind
SETTLE_REJECT: SettleKind
SETTLE_RELEASE: SettleKind
GROUP_OK: GroupCode
GROUP_MALFORMED: GroupCode
GROUP_UNKNOWN_MEMBER: GroupCode
GROUP_FENCED_INSTANCE: GroupCode
GROUP_STALE: GroupCode
GROUP_NOT_EMPTY: GroupCode
GROUP_NOT_FOUND: GroupCode
GROUP_FULL: GroupCode
GROUP_COMPARE_LOG: GroupCode

class KnownStream(_message.Message):
    __slots__ = ("name", "uid", "partitions", "firstPartitions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    FIRSTPARTITIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    uid: str
    partitions: int
    firstPartitions: int
    def __init__(self, name: _Optional[str] = ..., uid: _Optional[str] = ..., partitions: _Optional[int] = ..., firstPartitions: _Optional[int] = ...) -> None: ...

class GrantedPartitions(_message.Message):
    __slots__ = ("stream", "uid", "partitions", "generations", "positions", "leaderEpochs")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCHS_FIELD_NUMBER: _ClassVar[int]
    stream: str
    uid: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    generations: _containers.RepeatedScalarFieldContainer[int]
    positions: _containers.RepeatedScalarFieldContainer[int]
    leaderEpochs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, stream: _Optional[str] = ..., uid: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., generations: _Optional[_Iterable[int]] = ..., positions: _Optional[_Iterable[int]] = ..., leaderEpochs: _Optional[_Iterable[int]] = ...) -> None: ...

class GroupPosition(_message.Message):
    __slots__ = ("stream", "uid", "partition", "position", "leaderEpoch", "generation")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    stream: str
    uid: str
    partition: int
    position: int
    leaderEpoch: int
    generation: int
    def __init__(self, stream: _Optional[str] = ..., uid: _Optional[str] = ..., partition: _Optional[int] = ..., position: _Optional[int] = ..., leaderEpoch: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class JoinGroup(_message.Message):
    __slots__ = ("member", "instance", "client", "sessionMs", "streams")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SESSIONMS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    member: str
    instance: str
    client: str
    sessionMs: int
    streams: _containers.RepeatedCompositeFieldContainer[KnownStream]
    def __init__(self, member: _Optional[str] = ..., instance: _Optional[str] = ..., client: _Optional[str] = ..., sessionMs: _Optional[int] = ..., streams: _Optional[_Iterable[_Union[KnownStream, _Mapping]]] = ...) -> None: ...

class BeatGroup(_message.Message):
    __slots__ = ("member", "instance", "generation", "owned", "tellsStreams", "streams", "session")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    TELLSSTREAMS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    member: str
    instance: str
    generation: int
    owned: _containers.RepeatedCompositeFieldContainer[GrantedPartitions]
    tellsStreams: bool
    streams: _containers.RepeatedCompositeFieldContainer[KnownStream]
    session: int
    def __init__(self, member: _Optional[str] = ..., instance: _Optional[str] = ..., generation: _Optional[int] = ..., owned: _Optional[_Iterable[_Union[GrantedPartitions, _Mapping]]] = ..., tellsStreams: _Optional[bool] = ..., streams: _Optional[_Iterable[_Union[KnownStream, _Mapping]]] = ..., session: _Optional[int] = ...) -> None: ...

class LeaveGroup(_message.Message):
    __slots__ = ("member",)
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    member: str
    def __init__(self, member: _Optional[str] = ...) -> None: ...

class CommitPositions(_message.Message):
    __slots__ = ("member", "positions")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    member: str
    positions: _containers.RepeatedCompositeFieldContainer[GroupPosition]
    def __init__(self, member: _Optional[str] = ..., positions: _Optional[_Iterable[_Union[GroupPosition, _Mapping]]] = ...) -> None: ...

class ResetPositions(_message.Message):
    __slots__ = ("positions",)
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    positions: _containers.RepeatedCompositeFieldContainer[GroupPosition]
    def __init__(self, positions: _Optional[_Iterable[_Union[GroupPosition, _Mapping]]] = ...) -> None: ...

class DeleteGroup(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenCursor(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TakeRecords(_message.Message):
    __slots__ = ("member", "stream", "uid", "partition", "maxRecords", "logStart", "logEnd", "begin", "ackWaitMs", "maxDeliveries", "maxAckPending", "maxMemberPending", "ordered", "keysFrom", "keys", "partitions", "logEpoch", "comparedEpoch", "comparedBelow")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    MAXRECORDS_FIELD_NUMBER: _ClassVar[int]
    LOGSTART_FIELD_NUMBER: _ClassVar[int]
    LOGEND_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    ACKWAITMS_FIELD_NUMBER: _ClassVar[int]
    MAXDELIVERIES_FIELD_NUMBER: _ClassVar[int]
    MAXACKPENDING_FIELD_NUMBER: _ClassVar[int]
    MAXMEMBERPENDING_FIELD_NUMBER: _ClassVar[int]
    ORDERED_FIELD_NUMBER: _ClassVar[int]
    KEYSFROM_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    LOGEPOCH_FIELD_NUMBER: _ClassVar[int]
    COMPAREDEPOCH_FIELD_NUMBER: _ClassVar[int]
    COMPAREDBELOW_FIELD_NUMBER: _ClassVar[int]
    member: str
    stream: str
    uid: str
    partition: int
    maxRecords: int
    logStart: int
    logEnd: int
    begin: int
    ackWaitMs: int
    maxDeliveries: int
    maxAckPending: int
    maxMemberPending: int
    ordered: bool
    keysFrom: int
    keys: _containers.RepeatedScalarFieldContainer[int]
    partitions: int
    logEpoch: int
    comparedEpoch: int
    comparedBelow: int
    def __init__(self, member: _Optional[str] = ..., stream: _Optional[str] = ..., uid: _Optional[str] = ..., partition: _Optional[int] = ..., maxRecords: _Optional[int] = ..., logStart: _Optional[int] = ..., logEnd: _Optional[int] = ..., begin: _Optional[int] = ..., ackWaitMs: _Optional[int] = ..., maxDeliveries: _Optional[int] = ..., maxAckPending: _Optional[int] = ..., maxMemberPending: _Optional[int] = ..., ordered: _Optional[bool] = ..., keysFrom: _Optional[int] = ..., keys: _Optional[_Iterable[int]] = ..., partitions: _Optional[int] = ..., logEpoch: _Optional[int] = ..., comparedEpoch: _Optional[int] = ..., comparedBelow: _Optional[int] = ...) -> None: ...

class RecordRange(_message.Message):
    __slots__ = ("start", "end", "lease")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    lease: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., lease: _Optional[int] = ...) -> None: ...

class Settlement(_message.Message):
    __slots__ = ("kind", "stream", "uid", "partition", "ranges", "delayMs", "reason")
    KIND_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    DELAYMS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    kind: SettleKind
    stream: str
    uid: str
    partition: int
    ranges: _containers.RepeatedCompositeFieldContainer[RecordRange]
    delayMs: int
    reason: str
    def __init__(self, kind: _Optional[_Union[SettleKind, str]] = ..., stream: _Optional[str] = ..., uid: _Optional[str] = ..., partition: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[RecordRange, _Mapping]]] = ..., delayMs: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class SettleRecords(_message.Message):
    __slots__ = ("member", "settlements")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    SETTLEMENTS_FIELD_NUMBER: _ClassVar[int]
    member: str
    settlements: _containers.RepeatedCompositeFieldContainer[Settlement]
    def __init__(self, member: _Optional[str] = ..., settlements: _Optional[_Iterable[_Union[Settlement, _Mapping]]] = ...) -> None: ...

class GroupCommand(_message.Message):
    __slots__ = ("group", "number", "commit", "join", "beat", "leave", "reset", "delete", "settle", "take", "open")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    SETTLE_FIELD_NUMBER: _ClassVar[int]
    TAKE_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    group: str
    number: int
    commit: CommitPositions
    join: JoinGroup
    beat: BeatGroup
    leave: LeaveGroup
    reset: ResetPositions
    delete: DeleteGroup
    settle: SettleRecords
    take: TakeRecords
    open: OpenCursor
    def __init__(self, group: _Optional[str] = ..., number: _Optional[int] = ..., commit: _Optional[_Union[CommitPositions, _Mapping]] = ..., join: _Optional[_Union[JoinGroup, _Mapping]] = ..., beat: _Optional[_Union[BeatGroup, _Mapping]] = ..., leave: _Optional[_Union[LeaveGroup, _Mapping]] = ..., reset: _Optional[_Union[ResetPositions, _Mapping]] = ..., delete: _Optional[_Union[DeleteGroup, _Mapping]] = ..., settle: _Optional[_Union[SettleRecords, _Mapping]] = ..., take: _Optional[_Union[TakeRecords, _Mapping]] = ..., open: _Optional[_Union[OpenCursor, _Mapping]] = ...) -> None: ...

class GrantedRange(_message.Message):
    __slots__ = ("start", "end", "lease", "deliveries", "dead", "reason")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    lease: int
    deliveries: int
    dead: bool
    reason: str
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., lease: _Optional[int] = ..., deliveries: _Optional[int] = ..., dead: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class LostRange(_message.Message):
    __slots__ = ("stream", "partition", "start", "end")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    start: int
    end: int
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class GroupAnswer(_message.Message):
    __slots__ = ("code", "detail", "number", "generation", "assigned", "positions", "refused", "heartbeatMs", "sessionMs", "settled", "granted", "waitMs", "nextReadyMs", "session", "lost", "takenBelow", "takenEpoch")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEATMS_FIELD_NUMBER: _ClassVar[int]
    SESSIONMS_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    WAITMS_FIELD_NUMBER: _ClassVar[int]
    NEXTREADYMS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    TAKENBELOW_FIELD_NUMBER: _ClassVar[int]
    TAKENEPOCH_FIELD_NUMBER: _ClassVar[int]
    code: GroupCode
    detail: str
    number: int
    generation: int
    assigned: _containers.RepeatedCompositeFieldContainer[GrantedPartitions]
    positions: _containers.RepeatedCompositeFieldContainer[GroupPosition]
    refused: _containers.RepeatedCompositeFieldContainer[GroupPosition]
    heartbeatMs: int
    sessionMs: int
    settled: bool
    granted: _containers.RepeatedCompositeFieldContainer[GrantedRange]
    waitMs: int
    nextReadyMs: int
    session: int
    lost: _containers.RepeatedCompositeFieldContainer[LostRange]
    takenBelow: int
    takenEpoch: int
    def __init__(self, code: _Optional[_Union[GroupCode, str]] = ..., detail: _Optional[str] = ..., number: _Optional[int] = ..., generation: _Optional[int] = ..., assigned: _Optional[_Iterable[_Union[GrantedPartitions, _Mapping]]] = ..., positions: _Optional[_Iterable[_Union[GroupPosition, _Mapping]]] = ..., refused: _Optional[_Iterable[_Union[GroupPosition, _Mapping]]] = ..., heartbeatMs: _Optional[int] = ..., sessionMs: _Optional[int] = ..., settled: _Optional[bool] = ..., granted: _Optional[_Iterable[_Union[GrantedRange, _Mapping]]] = ..., waitMs: _Optional[int] = ..., nextReadyMs: _Optional[int] = ..., session: _Optional[int] = ..., lost: _Optional[_Iterable[_Union[LostRange, _Mapping]]] = ..., takenBelow: _Optional[int] = ..., takenEpoch: _Optional[int] = ...) -> None: ...

class GroupQuery(_message.Message):
    __slots__ = ("group", "after", "limit")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    group: str
    after: str
    limit: int
    def __init__(self, group: _Optional[str] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class GroupSummary(_message.Message):
    __slots__ = ("group", "members", "generation", "settled", "positions", "queues", "cursor")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    group: str
    members: int
    generation: int
    settled: bool
    positions: int
    queues: int
    cursor: bool
    def __init__(self, group: _Optional[str] = ..., members: _Optional[int] = ..., generation: _Optional[int] = ..., settled: _Optional[bool] = ..., positions: _Optional[int] = ..., queues: _Optional[int] = ..., cursor: _Optional[bool] = ...) -> None: ...

class MemberView(_message.Message):
    __slots__ = ("member", "instance", "client", "streams", "owned", "sessionMs", "silentMs")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    SESSIONMS_FIELD_NUMBER: _ClassVar[int]
    SILENTMS_FIELD_NUMBER: _ClassVar[int]
    member: str
    instance: str
    client: str
    streams: _containers.RepeatedScalarFieldContainer[str]
    owned: _containers.RepeatedCompositeFieldContainer[GrantedPartitions]
    sessionMs: int
    silentMs: int
    def __init__(self, member: _Optional[str] = ..., instance: _Optional[str] = ..., client: _Optional[str] = ..., streams: _Optional[_Iterable[str]] = ..., owned: _Optional[_Iterable[_Union[GrantedPartitions, _Mapping]]] = ..., sessionMs: _Optional[int] = ..., silentMs: _Optional[int] = ...) -> None: ...

class QueueHolder(_message.Message):
    __slots__ = ("member", "records", "first", "deliveries")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    member: str
    records: int
    first: int
    deliveries: int
    def __init__(self, member: _Optional[str] = ..., records: _Optional[int] = ..., first: _Optional[int] = ..., deliveries: _Optional[int] = ...) -> None: ...

class QueueView(_message.Message):
    __slots__ = ("stream", "uid", "partition", "acknowledgedBelow", "takenBelow", "out", "returned", "dead", "acknowledged", "ranges", "held", "holders")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGEDBELOW_FIELD_NUMBER: _ClassVar[int]
    TAKENBELOW_FIELD_NUMBER: _ClassVar[int]
    OUT_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    stream: str
    uid: str
    partition: int
    acknowledgedBelow: int
    takenBelow: int
    out: int
    returned: int
    dead: int
    acknowledged: int
    ranges: int
    held: int
    holders: _containers.RepeatedCompositeFieldContainer[QueueHolder]
    def __init__(self, stream: _Optional[str] = ..., uid: _Optional[str] = ..., partition: _Optional[int] = ..., acknowledgedBelow: _Optional[int] = ..., takenBelow: _Optional[int] = ..., out: _Optional[int] = ..., returned: _Optional[int] = ..., dead: _Optional[int] = ..., acknowledged: _Optional[int] = ..., ranges: _Optional[int] = ..., held: _Optional[int] = ..., holders: _Optional[_Iterable[_Union[QueueHolder, _Mapping]]] = ...) -> None: ...

class GroupQueryAnswer(_message.Message):
    __slots__ = ("code", "detail", "groups", "more", "summary", "members", "positions", "queues", "streams")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    code: GroupCode
    detail: str
    groups: _containers.RepeatedCompositeFieldContainer[GroupSummary]
    more: bool
    summary: GroupSummary
    members: _containers.RepeatedCompositeFieldContainer[MemberView]
    positions: _containers.RepeatedCompositeFieldContainer[GroupPosition]
    queues: _containers.RepeatedCompositeFieldContainer[QueueView]
    streams: _containers.RepeatedCompositeFieldContainer[KnownStream]
    def __init__(self, code: _Optional[_Union[GroupCode, str]] = ..., detail: _Optional[str] = ..., groups: _Optional[_Iterable[_Union[GroupSummary, _Mapping]]] = ..., more: _Optional[bool] = ..., summary: _Optional[_Union[GroupSummary, _Mapping]] = ..., members: _Optional[_Iterable[_Union[MemberView, _Mapping]]] = ..., positions: _Optional[_Iterable[_Union[GroupPosition, _Mapping]]] = ..., queues: _Optional[_Iterable[_Union[QueueView, _Mapping]]] = ..., streams: _Optional[_Iterable[_Union[KnownStream, _Mapping]]] = ...) -> None: ...

class CoordinatorState(_message.Message):
    __slots__ = ("version", "clockNs", "stampNs", "leaderEpoch", "sweptNs", "groups", "generations")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLOCKNS_FIELD_NUMBER: _ClassVar[int]
    STAMPNS_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    SWEPTNS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    version: int
    clockNs: int
    stampNs: int
    leaderEpoch: int
    sweptNs: int
    groups: _containers.RepeatedCompositeFieldContainer[GroupState]
    generations: int
    def __init__(self, version: _Optional[int] = ..., clockNs: _Optional[int] = ..., stampNs: _Optional[int] = ..., leaderEpoch: _Optional[int] = ..., sweptNs: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[GroupState, _Mapping]]] = ..., generations: _Optional[int] = ...) -> None: ...

class GroupState(_message.Message):
    __slots__ = ("group", "generation", "joins", "streams", "members", "partitions", "queues", "cursor")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    JOINS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    group: str
    generation: int
    joins: int
    streams: _containers.RepeatedCompositeFieldContainer[KnownStream]
    members: _containers.RepeatedCompositeFieldContainer[MemberState]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionState]
    queues: _containers.RepeatedCompositeFieldContainer[QueueState]
    cursor: int
    def __init__(self, group: _Optional[str] = ..., generation: _Optional[int] = ..., joins: _Optional[int] = ..., streams: _Optional[_Iterable[_Union[KnownStream, _Mapping]]] = ..., members: _Optional[_Iterable[_Union[MemberState, _Mapping]]] = ..., partitions: _Optional[_Iterable[_Union[PartitionState, _Mapping]]] = ..., queues: _Optional[_Iterable[_Union[QueueState, _Mapping]]] = ..., cursor: _Optional[int] = ...) -> None: ...

class MemberState(_message.Message):
    __slots__ = ("member", "instance", "client", "sessionNs", "heardNs", "joined", "streams", "number", "session")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SESSIONNS_FIELD_NUMBER: _ClassVar[int]
    HEARDNS_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    member: str
    instance: str
    client: str
    sessionNs: int
    heardNs: int
    joined: int
    streams: _containers.RepeatedScalarFieldContainer[str]
    number: int
    session: int
    def __init__(self, member: _Optional[str] = ..., instance: _Optional[str] = ..., client: _Optional[str] = ..., sessionNs: _Optional[int] = ..., heardNs: _Optional[int] = ..., joined: _Optional[int] = ..., streams: _Optional[_Iterable[str]] = ..., number: _Optional[int] = ..., session: _Optional[int] = ...) -> None: ...

class PartitionState(_message.Message):
    __slots__ = ("stream", "partition", "target", "owner", "generation", "hasPosition", "position", "leaderEpoch")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    HASPOSITION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    target: int
    owner: int
    generation: int
    hasPosition: bool
    position: int
    leaderEpoch: int
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., target: _Optional[int] = ..., owner: _Optional[int] = ..., generation: _Optional[int] = ..., hasPosition: _Optional[bool] = ..., position: _Optional[int] = ..., leaderEpoch: _Optional[int] = ...) -> None: ...

class QueueState(_message.Message):
    __slots__ = ("stream", "uid", "partition", "prefix", "leases", "maxDeliveries", "pieces", "waitNs", "ordered", "firstPartitions", "takenEpoch")
    class Piece(_message.Message):
        __slots__ = ("start", "end", "kind", "deliveries", "lease", "dueNs", "member", "reason", "dead", "key")
        START_FIELD_NUMBER: _ClassVar[int]
        END_FIELD_NUMBER: _ClassVar[int]
        KIND_FIELD_NUMBER: _ClassVar[int]
        DELIVERIES_FIELD_NUMBER: _ClassVar[int]
        LEASE_FIELD_NUMBER: _ClassVar[int]
        DUENS_FIELD_NUMBER: _ClassVar[int]
        MEMBER_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        DEAD_FIELD_NUMBER: _ClassVar[int]
        KEY_FIELD_NUMBER: _ClassVar[int]
        start: int
        end: int
        kind: int
        deliveries: int
        lease: int
        dueNs: int
        member: str
        reason: str
        dead: bool
        key: int
        def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., kind: _Optional[int] = ..., deliveries: _Optional[int] = ..., lease: _Optional[int] = ..., dueNs: _Optional[int] = ..., member: _Optional[str] = ..., reason: _Optional[str] = ..., dead: _Optional[bool] = ..., key: _Optional[int] = ...) -> None: ...
    STREAM_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    MAXDELIVERIES_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    WAITNS_FIELD_NUMBER: _ClassVar[int]
    ORDERED_FIELD_NUMBER: _ClassVar[int]
    FIRSTPARTITIONS_FIELD_NUMBER: _ClassVar[int]
    TAKENEPOCH_FIELD_NUMBER: _ClassVar[int]
    stream: str
    uid: str
    partition: int
    prefix: int
    leases: int
    maxDeliveries: int
    pieces: _containers.RepeatedCompositeFieldContainer[QueueState.Piece]
    waitNs: int
    ordered: bool
    firstPartitions: int
    takenEpoch: int
    def __init__(self, stream: _Optional[str] = ..., uid: _Optional[str] = ..., partition: _Optional[int] = ..., prefix: _Optional[int] = ..., leases: _Optional[int] = ..., maxDeliveries: _Optional[int] = ..., pieces: _Optional[_Iterable[_Union[QueueState.Piece, _Mapping]]] = ..., waitNs: _Optional[int] = ..., ordered: _Optional[bool] = ..., firstPartitions: _Optional[int] = ..., takenEpoch: _Optional[int] = ...) -> None: ...
