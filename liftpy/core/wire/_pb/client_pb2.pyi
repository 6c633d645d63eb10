from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AckPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEADER: _ClassVar[AckPolicy]
    ALL: _ClassVar[AckPolicy]
    NONE: _ClassVar[AckPolicy]
LEADER: AckPolicy
ALL: AckPolicy
NONE: AckPolicy

class Header(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: bytes
    def __init__(self, name: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("offset", "key", "value", "timestamp", "stream", "partition", "subject", "replySubject", "headers", "ackInbox", "correlationId", "ackPolicy", "tombstone", "keyed", "streamUid", "runs")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    REPLYSUBJECT_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    ACKINBOX_FIELD_NUMBER: _ClassVar[int]
    CORRELATIONID_FIELD_NUMBER: _ClassVar[int]
    ACKPOLICY_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_FIELD_NUMBER: _ClassVar[int]
    KEYED_FIELD_NUMBER: _ClassVar[int]
    STREAMUID_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    offset: int
    key: bytes
    value: bytes
    timestamp: int
    stream: str
    partition: int
    subject: str
    replySubject: str
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    ackInbox: str
    correlationId: str
    ackPolicy: AckPolicy
    tombstone: bool
    keyed: bool
    streamUid: str
    runs: bool
    def __init__(self, offset: _Optional[int] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., timestamp: _Optional[int] = ..., stream: _Optional[str] = ..., partition: _Optional[int] = ..., subject: _Optional[str] = ..., replySubject: _Optional[str] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ..., ackInbox: _Optional[str] = ..., correlationId: _Optional[str] = ..., ackPolicy: _Optional[_Union[AckPolicy, str]] = ..., tombstone: _Optional[bool] = ..., keyed: _Optional[bool] = ..., streamUid: _Optional[str] = ..., runs: _Optional[bool] = ...) -> None: ...

class BatchPublish(_message.Message):
    __slots__ = ("stream", "streamUid", "partition", "expectedOffset", "ackInbox", "correlationId", "ackPolicy", "askedProducer", "producerInstance", "producerReset", "producerDigest", "producerSequence", "producerName", "producerPosition", "producerAckedOffset", "producerAckedEpoch", "producerPartitioning")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    STREAMUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EXPECTEDOFFSET_FIELD_NUMBER: _ClassVar[int]
    ACKINBOX_FIELD_NUMBER: _ClassVar[int]
    CORRELATIONID_FIELD_NUMBER: _ClassVar[int]
    ACKPOLICY_FIELD_NUMBER: _ClassVar[int]
    ASKEDPRODUCER_FIELD_NUMBER: _ClassVar[int]
    PRODUCERINSTANCE_FIELD_NUMBER: _ClassVar[int]
    PRODUCERRESET_FIELD_NUMBER: _ClassVar[int]
    PRODUCERDIGEST_FIELD_NUMBER: _ClassVar[int]
    PRODUCERSEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PRODUCERNAME_FIELD_NUMBER: _ClassVar[int]
    PRODUCERPOSITION_FIELD_NUMBER: _ClassVar[int]
    PRODUCERACKEDOFFSET_FIELD_NUMBER: _ClassVar[int]
    PRODUCERACKEDEPOCH_FIELD_NUMBER: _ClassVar[int]
    PRODUCERPARTITIONING_FIELD_NUMBER: _ClassVar[int]
    stream: str
    streamUid: str
    partition: int
    expectedOffset: int
    ackInbox: str
    correlationId: str
    ackPolicy: AckPolicy
    askedProducer: int
    producerInstance: int
    producerReset: bool
    producerDigest: bytes
    producerSequence: int
    producerName: str
    producerPosition: SourcePosition
    producerAckedOffset: int
    producerAckedEpoch: int
    producerPartitioning: Partitioning
    def __init__(self, stream: _Optional[str] = ..., streamUid: _Optional[str] = ..., partition: _Optional[int] = ..., expectedOffset: _Optional[int] = ..., ackInbox: _Optional[str] = ..., correlationId: _Optional[str] = ..., ackPolicy: _Optional[_Union[AckPolicy, str]] = ..., askedProducer: _Optional[int] = ..., producerInstance: _Optional[int] = ..., producerReset: _Optional[bool] = ..., producerDigest: _Optional[bytes] = ..., producerSequence: _Optional[int] = ..., producerName: _Optional[str] = ..., producerPosition: _Optional[_Union[SourcePosition, _Mapping]] = ..., producerAckedOffset: _Optional[int] = ..., producerAckedEpoch: _Optional[int] = ..., producerPartitioning: _Optional[_Union[Partitioning, _Mapping]] = ...) -> None: ...

class Partitioning(_message.Message):
    __slots__ = ("partitions", "method")
    class Method(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Partitioning.Method]
        RANDOM: _ClassVar[Partitioning.Method]
        KEY: _ClassVar[Partitioning.Method]
        NUMBER: _ClassVar[Partitioning.Method]
        KEY_OR_NUMBER: _ClassVar[Partitioning.Method]
        FUNCTION: _ClassVar[Partitioning.Method]
    UNKNOWN: Partitioning.Method
    RANDOM: Partitioning.Method
    KEY: Partitioning.Method
    NUMBER: Partitioning.Method
    KEY_OR_NUMBER: Partitioning.Method
    FUNCTION: Partitioning.Method
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    partitions: int
    method: Partitioning.Method
    def __init__(self, partitions: _Optional[int] = ..., method: _Optional[_Union[Partitioning.Method, str]] = ...) -> None: ...

class SourcePosition(_message.Message):
    __slots__ = ("streamUid", "partition", "offset", "generation")
    STREAMUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    streamUid: str
    partition: int
    offset: int
    generation: int
    def __init__(self, streamUid: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class ProducerState(_message.Message):
    __slots__ = ("epoch", "nextSequence", "digest", "known", "position", "partitioning")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXTSEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONING_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    nextSequence: int
    digest: bytes
    known: bool
    position: SourcePosition
    partitioning: Partitioning
    def __init__(self, epoch: _Optional[int] = ..., nextSequence: _Optional[int] = ..., digest: _Optional[bytes] = ..., known: _Optional[bool] = ..., position: _Optional[_Union[SourcePosition, _Mapping]] = ..., partitioning: _Optional[_Union[Partitioning, _Mapping]] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("stream", "partitionSubject", "msgSubject", "offset", "ackInbox", "correlationId", "ackPolicy", "receptionTimestamp", "commitTimestamp", "ackError", "leaderEpoch", "partition", "leader", "epoch", "detail", "streamUid", "recordCount", "duplicate", "producer", "knownRecords", "retryAfterMs")
    class Error(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OK: _ClassVar[Ack.Error]
        UNKNOWN: _ClassVar[Ack.Error]
        INCORRECT_OFFSET: _ClassVar[Ack.Error]
        TOO_LARGE: _ClassVar[Ack.Error]
        ENCRYPTION: _ClassVar[Ack.Error]
        READ_ONLY: _ClassVar[Ack.Error]
        BELOW_MIN_ISR: _ClassVar[Ack.Error]
        NO_SPACE: _ClassVar[Ack.Error]
        NOT_LEADER: _ClassVar[Ack.Error]
        MALFORMED: _ClassVar[Ack.Error]
        OVERLOADED: _ClassVar[Ack.Error]
        WRONG_STREAM: _ClassVar[Ack.Error]
        UNSUPPORTED: _ClassVar[Ack.Error]
        PRODUCER_FENCED: _ClassVar[Ack.Error]
        OUT_OF_ORDER: _ClassVar[Ack.Error]
        DIVERGED_PRODUCER: _ClassVar[Ack.Error]
        UNKNOWN_PRODUCER: _ClassVar[Ack.Error]
        PRODUCER_CONFLICT: _ClassVar[Ack.Error]
        PAUSED: _ClassVar[Ack.Error]
        RECORDS_LOST: _ClassVar[Ack.Error]
        QUOTA: _ClassVar[Ack.Error]
    OK: Ack.Error
    UNKNOWN: Ack.Error
    INCORRECT_OFFSET: Ack.Error
    TOO_LARGE: Ack.Error
    ENCRYPTION: Ack.Error
    READ_ONLY: Ack.Error
    BELOW_MIN_ISR: Ack.Error
    NO_SPACE: Ack.Error
    NOT_LEADER: Ack.Error
    MALFORMED: Ack.Error
    OVERLOADED: Ack.Error
    WRONG_STREAM: Ack.Error
    UNSUPPORTED: Ack.Error
    PRODUCER_FENCED: Ack.Error
    OUT_OF_ORDER: Ack.Error
    DIVERGED_PRODUCER: Ack.Error
    UNKNOWN_PRODUCER: Ack.Error
    PRODUCER_CONFLICT: Ack.Error
    PAUSED: Ack.Error
    RECORDS_LOST: Ack.Error
    QUOTA: Ack.Error
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITIONSUBJECT_FIELD_NUMBER: _ClassVar[int]
    MSGSUBJECT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ACKINBOX_FIELD_NUMBER: _ClassVar[int]
    CORRELATIONID_FIELD_NUMBER: _ClassVar[int]
    ACKPOLICY_FIELD_NUMBER: _ClassVar[int]
    RECEPTIONTIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    COMMITTIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    ACKERROR_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    STREAMUID_FIELD_NUMBER: _ClassVar[int]
    RECORDCOUNT_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    KNOWNRECORDS_FIELD_NUMBER: _ClassVar[int]
    RETRYAFTERMS_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partitionSubject: str
    msgSubject: str
    offset: int
    ackInbox: str
    correlationId: str
    ackPolicy: AckPolicy
    receptionTimestamp: int
    commitTimestamp: int
    ackError: Ack.Error
    leaderEpoch: int
    partition: int
    leader: str
    epoch: int
    detail: str
    streamUid: str
    recordCount: int
    duplicate: bool
    producer: ProducerState
    knownRecords: int
    retryAfterMs: int
    def __init__(self, stream: _Optional[str] = ..., partitionSubject: _Optional[str] = ..., msgSubject: _Optional[str] = ..., offset: _Optional[int] = ..., ackInbox: _Optional[str] = ..., correlationId: _Optional[str] = ..., ackPolicy: _Optional[_Union[AckPolicy, str]] = ..., receptionTimestamp: _Optional[int] = ..., commitTimestamp: _Optional[int] = ..., ackError: _Optional[_Union[Ack.Error, str]] = ..., leaderEpoch: _Optional[int] = ..., partition: _Optional[int] = ..., leader: _Optional[str] = ..., epoch: _Optional[int] = ..., detail: _Optional[str] = ..., streamUid: _Optional[str] = ..., recordCount: _Optional[int] = ..., duplicate: _Optional[bool] = ..., producer: _Optional[_Union[ProducerState, _Mapping]] = ..., knownRecords: _Optional[int] = ..., retryAfterMs: _Optional[int] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("offset", "maxBytes", "isolation", "waitMs", "streamUid", "timestamp", "byTimestamp", "minHighWatermark", "boundsOnly", "lastOffset", "lastEpoch", "badOffset", "position", "batchCrc", "stream", "partition", "requestId", "filterSubjects", "filterKeys", "backwards", "endOffset", "leftOut", "rangeEnd", "borderBytes", "asksFiles", "borderRecords", "asksState", "stateEnd", "statePosition")
    class Isolation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        COMMITTED: _ClassVar[ReadRequest.Isolation]
        UNCOMMITTED: _ClassVar[ReadRequest.Isolation]
    COMMITTED: ReadRequest.Isolation
    UNCOMMITTED: ReadRequest.Isolation
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAXBYTES_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    WAITMS_FIELD_NUMBER: _ClassVar[int]
    STREAMUID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    BYTIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    MINHIGHWATERMARK_FIELD_NUMBER: _ClassVar[int]
    BOUNDSONLY_FIELD_NUMBER: _ClassVar[int]
    LASTOFFSET_FIELD_NUMBER: _ClassVar[int]
    LASTEPOCH_FIELD_NUMBER: _ClassVar[int]
    BADOFFSET_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BATCHCRC_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REQUESTID_FIELD_NUMBER: _ClassVar[int]
    FILTERSUBJECTS_FIELD_NUMBER: _ClassVar[int]
    FILTERKEYS_FIELD_NUMBER: _ClassVar[int]
    BACKWARDS_FIELD_NUMBER: _ClassVar[int]
    ENDOFFSET_FIELD_NUMBER: _ClassVar[int]
    LEFTOUT_FIELD_NUMBER: _ClassVar[int]
    RANGEEND_FIELD_NUMBER: _ClassVar[int]
    BORDERBYTES_FIELD_NUMBER: _ClassVar[int]
    ASKSFILES_FIELD_NUMBER: _ClassVar[int]
    BORDERRECORDS_FIELD_NUMBER: _ClassVar[int]
    ASKSSTATE_FIELD_NUMBER: _ClassVar[int]
    STATEEND_FIELD_NUMBER: _ClassVar[int]
    STATEPOSITION_FIELD_NUMBER: _ClassVar[int]
    offset: int
    maxBytes: int
    isolation: ReadRequest.Isolation
    waitMs: int
    streamUid: str
    timestamp: int
    byTimestamp: bool
    minHighWatermark: int
    boundsOnly: bool
    lastOffset: int
    lastEpoch: int
    badOffset: int
    position: int
    batchCrc: int
    stream: str
    partition: int
    requestId: int
    filterSubjects: _containers.RepeatedScalarFieldContainer[str]
    filterKeys: _containers.RepeatedScalarFieldContainer[bytes]
    backwards: bool
    endOffset: int
    leftOut: int
    rangeEnd: int
    borderBytes: int
    asksFiles: bool
    borderRecords: int
    asksState: bool
    stateEnd: int
    statePosition: int
    def __init__(self, offset: _Optional[int] = ..., maxBytes: _Optional[int] = ..., isolation: _Optional[_Union[ReadRequest.Isolation, str]] = ..., waitMs: _Optional[int] = ..., streamUid: _Optional[str] = ..., timestamp: _Optional[int] = ..., byTimestamp: _Optional[bool] = ..., minHighWatermark: _Optional[int] = ..., boundsOnly: _Optional[bool] = ..., lastOffset: _Optional[int] = ..., lastEpoch: _Optional[int] = ..., badOffset: _Optional[int] = ..., position: _Optional[int] = ..., batchCrc: _Optional[int] = ..., stream: _Optional[str] = ..., partition: _Optional[int] = ..., requestId: _Optional[int] = ..., filterSubjects: _Optional[_Iterable[str]] = ..., filterKeys: _Optional[_Iterable[bytes]] = ..., backwards: _Optional[bool] = ..., endOffset: _Optional[int] = ..., leftOut: _Optional[int] = ..., rangeEnd: _Optional[int] = ..., borderBytes: _Optional[int] = ..., asksFiles: _Optional[bool] = ..., borderRecords: _Optional[int] = ..., asksState: _Optional[bool] = ..., stateEnd: _Optional[int] = ..., statePosition: _Optional[int] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("error", "detail", "streamUid", "node", "leaderEpoch", "highWatermark", "logStartOffset", "nextOffset", "firstTimestamp", "compacted", "leader", "cutEndOffset", "pieceTotal", "piecePosition", "pieceCrc", "stream", "partition", "requestId", "selected", "lookedEpoch", "lookedBytes", "rangeBytes", "borders", "borderPositions", "beforeEpoch", "host", "folder", "fileBases", "fileBegins", "fileEnds", "compactedEnd", "deletesEnd", "stateBytes", "stateLater", "stateEnd", "statePosition", "stateData", "endEpoch")
    class Error(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OK: _ClassVar[ReadResponse.Error]
        UNKNOWN: _ClassVar[ReadResponse.Error]
        NO_SUCH_PARTITION: _ClassVar[ReadResponse.Error]
        WRONG_STREAM: _ClassVar[ReadResponse.Error]
        OFFSET_OUT_OF_RANGE: _ClassVar[ReadResponse.Error]
        NOT_READY: _ClassVar[ReadResponse.Error]
        BAD_REQUEST: _ClassVar[ReadResponse.Error]
        NOT_LEADER: _ClassVar[ReadResponse.Error]
        CUT: _ClassVar[ReadResponse.Error]
    OK: ReadResponse.Error
    UNKNOWN: ReadResponse.Error
    NO_SUCH_PARTITION: ReadResponse.Error
    WRONG_STREAM: ReadResponse.Error
    OFFSET_OUT_OF_RANGE: ReadResponse.Error
    NOT_READY: ReadResponse.Error
    BAD_REQUEST: ReadResponse.Error
    NOT_LEADER: ReadResponse.Error
    CUT: ReadResponse.Error
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    STREAMUID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    HIGHWATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOGSTARTOFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXTOFFSET_FIELD_NUMBER: _ClassVar[int]
    FIRSTTIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    COMPACTED_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    CUTENDOFFSET_FIELD_NUMBER: _ClassVar[int]
    PIECETOTAL_FIELD_NUMBER: _ClassVar[int]
    PIECEPOSITION_FIELD_NUMBER: _ClassVar[int]
    PIECECRC_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REQUESTID_FIELD_NUMBER: _ClassVar[int]
    SELECTED_FIELD_NUMBER: _ClassVar[int]
    LOOKEDEPOCH_FIELD_NUMBER: _ClassVar[int]
    LOOKEDBYTES_FIELD_NUMBER: _ClassVar[int]
    RANGEBYTES_FIELD_NUMBER: _ClassVar[int]
    BORDERS_FIELD_NUMBER: _ClassVar[int]
    BORDERPOSITIONS_FIELD_NUMBER: _ClassVar[int]
    BEFOREEPOCH_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    FILEBASES_FIELD_NUMBER: _ClassVar[int]
    FILEBEGINS_FIELD_NUMBER: _ClassVar[int]
    FILEENDS_FIELD_NUMBER: _ClassVar[int]
    COMPACTEDEND_FIELD_NUMBER: _ClassVar[int]
    DELETESEND_FIELD_NUMBER: _ClassVar[int]
    STATEBYTES_FIELD_NUMBER: _ClassVar[int]
    STATELATER_FIELD_NUMBER: _ClassVar[int]
    STATEEND_FIELD_NUMBER: _ClassVar[int]
    STATEPOSITION_FIELD_NUMBER: _ClassVar[int]
    STATEDATA_FIELD_NUMBER: _ClassVar[int]
    ENDEPOCH_FIELD_NUMBER: _ClassVar[int]
    error: ReadResponse.Error
    detail: str
    streamUid: str
    node: str
    leaderEpoch: int
    highWatermark: int
    logStartOffset: int
    nextOffset: int
    firstTimestamp: int
    compacted: bool
    leader: str
    cutEndOffset: int
    pieceTotal: int
    piecePosition: int
    pieceCrc: int
    stream: str
    partition: int
    requestId: int
    selected: bool
    lookedEpoch: int
    lookedBytes: int
    rangeBytes: int
    borders: _containers.RepeatedScalarFieldContainer[int]
    borderPositions: _containers.RepeatedScalarFieldContainer[int]
    beforeEpoch: int
    host: str
    folder: str
    fileBases: _containers.RepeatedScalarFieldContainer[int]
    fileBegins: _containers.RepeatedScalarFieldContainer[int]
    fileEnds: _containers.RepeatedScalarFieldContainer[int]
    compactedEnd: int
    deletesEnd: int
    stateBytes: int
    stateLater: bool
    stateEnd: int
    statePosition: int
    stateData: bytes
    endEpoch: int
    def __init__(self, error: _Optional[_Union[ReadResponse.Error, str]] = ..., detail: _Optional[str] = ..., streamUid: _Optional[str] = ..., node: _Optional[str] = ..., leaderEpoch: _Optional[int] = ..., highWatermark: _Optional[int] = ..., logStartOffset: _Optional[int] = ..., nextOffset: _Optional[int] = ..., firstTimestamp: _Optional[int] = ..., compacted: _Optional[bool] = ..., leader: _Optional[str] = ..., cutEndOffset: _Optional[int] = ..., pieceTotal: _Optional[int] = ..., piecePosition: _Optional[int] = ..., pieceCrc: _Optional[int] = ..., stream: _Optional[str] = ..., partition: _Optional[int] = ..., requestId: _Optional[int] = ..., selected: _Optional[bool] = ..., lookedEpoch: _Optional[int] = ..., lookedBytes: _Optional[int] = ..., rangeBytes: _Optional[int] = ..., borders: _Optional[_Iterable[int]] = ..., borderPositions: _Optional[_Iterable[int]] = ..., beforeEpoch: _Optional[int] = ..., host: _Optional[str] = ..., folder: _Optional[str] = ..., fileBases: _Optional[_Iterable[int]] = ..., fileBegins: _Optional[_Iterable[int]] = ..., fileEnds: _Optional[_Iterable[int]] = ..., compactedEnd: _Optional[int] = ..., deletesEnd: _Optional[int] = ..., stateBytes: _Optional[int] = ..., stateLater: _Optional[bool] = ..., stateEnd: _Optional[int] = ..., statePosition: _Optional[int] = ..., stateData: _Optional[bytes] = ..., endEpoch: _Optional[int] = ...) -> None: ...
