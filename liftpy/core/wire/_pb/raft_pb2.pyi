from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RaftEntry(_message.Message):
    __slots__ = ("command", "index", "term")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    command: bytes
    index: int
    term: int
    def __init__(self, command: _Optional[bytes] = ..., index: _Optional[int] = ..., term: _Optional[int] = ...) -> None: ...

class RaftRequestVote(_message.Message):
    __slots__ = ("term", "lastLogIndex", "lastLogTerm", "transfer")
    TERM_FIELD_NUMBER: _ClassVar[int]
    LASTLOGINDEX_FIELD_NUMBER: _ClassVar[int]
    LASTLOGTERM_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    term: int
    lastLogIndex: int
    lastLogTerm: int
    transfer: bool
    def __init__(self, term: _Optional[int] = ..., lastLogIndex: _Optional[int] = ..., lastLogTerm: _Optional[int] = ..., transfer: _Optional[bool] = ...) -> None: ...

class RaftResponseVote(_message.Message):
    __slots__ = ("term",)
    TERM_FIELD_NUMBER: _ClassVar[int]
    term: int
    def __init__(self, term: _Optional[int] = ...) -> None: ...

class RaftPreVote(_message.Message):
    __slots__ = ("term", "lastLogIndex", "lastLogTerm")
    TERM_FIELD_NUMBER: _ClassVar[int]
    LASTLOGINDEX_FIELD_NUMBER: _ClassVar[int]
    LASTLOGTERM_FIELD_NUMBER: _ClassVar[int]
    term: int
    lastLogIndex: int
    lastLogTerm: int
    def __init__(self, term: _Optional[int] = ..., lastLogIndex: _Optional[int] = ..., lastLogTerm: _Optional[int] = ...) -> None: ...

class RaftPreVoteGranted(_message.Message):
    __slots__ = ("term",)
    TERM_FIELD_NUMBER: _ClassVar[int]
    term: int
    def __init__(self, term: _Optional[int] = ...) -> None: ...

class RaftNextIndex(_message.Message):
    __slots__ = ("nextIndex", "reset", "success", "appliedIndex", "echoNs", "minLevel", "maxLevel", "digestIndex", "digest")
    NEXTINDEX_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    APPLIEDINDEX_FIELD_NUMBER: _ClassVar[int]
    ECHONS_FIELD_NUMBER: _ClassVar[int]
    MINLEVEL_FIELD_NUMBER: _ClassVar[int]
    MAXLEVEL_FIELD_NUMBER: _ClassVar[int]
    DIGESTINDEX_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    nextIndex: int
    reset: bool
    success: bool
    appliedIndex: int
    echoNs: int
    minLevel: int
    maxLevel: int
    digestIndex: int
    digest: bytes
    def __init__(self, nextIndex: _Optional[int] = ..., reset: _Optional[bool] = ..., success: _Optional[bool] = ..., appliedIndex: _Optional[int] = ..., echoNs: _Optional[int] = ..., minLevel: _Optional[int] = ..., maxLevel: _Optional[int] = ..., digestIndex: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class RaftTimeoutNow(_message.Message):
    __slots__ = ("term",)
    TERM_FIELD_NUMBER: _ClassVar[int]
    term: int
    def __init__(self, term: _Optional[int] = ...) -> None: ...

class RaftAppendEntries(_message.Message):
    __slots__ = ("term", "commitIndex", "previousIndex", "previousTerm", "entries", "sentNs", "digestIndex", "digest")
    TERM_FIELD_NUMBER: _ClassVar[int]
    COMMITINDEX_FIELD_NUMBER: _ClassVar[int]
    PREVIOUSINDEX_FIELD_NUMBER: _ClassVar[int]
    PREVIOUSTERM_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    SENTNS_FIELD_NUMBER: _ClassVar[int]
    DIGESTINDEX_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    term: int
    commitIndex: int
    previousIndex: int
    previousTerm: int
    entries: _containers.RepeatedCompositeFieldContainer[RaftEntry]
    sentNs: int
    digestIndex: int
    digest: bytes
    def __init__(self, term: _Optional[int] = ..., commitIndex: _Optional[int] = ..., previousIndex: _Optional[int] = ..., previousTerm: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[RaftEntry, _Mapping]]] = ..., sentNs: _Optional[int] = ..., digestIndex: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class RaftSnapshotChunk(_message.Message):
    __slots__ = ("term", "commitIndex", "present", "data", "first", "last", "sentNs")
    TERM_FIELD_NUMBER: _ClassVar[int]
    COMMITINDEX_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    SENTNS_FIELD_NUMBER: _ClassVar[int]
    term: int
    commitIndex: int
    present: bool
    data: bytes
    first: bool
    last: bool
    sentNs: int
    def __init__(self, term: _Optional[int] = ..., commitIndex: _Optional[int] = ..., present: _Optional[bool] = ..., data: _Optional[bytes] = ..., first: _Optional[bool] = ..., last: _Optional[bool] = ..., sentNs: _Optional[int] = ...) -> None: ...

class RaftMessage(_message.Message):
    __slots__ = ("requestVote", "responseVote", "appendEntries", "snapshotChunk", "nextIndex", "timeoutNow", "preVote", "preVoteGranted")
    REQUESTVOTE_FIELD_NUMBER: _ClassVar[int]
    RESPONSEVOTE_FIELD_NUMBER: _ClassVar[int]
    APPENDENTRIES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTCHUNK_FIELD_NUMBER: _ClassVar[int]
    NEXTINDEX_FIELD_NUMBER: _ClassVar[int]
    TIMEOUTNOW_FIELD_NUMBER: _ClassVar[int]
    PREVOTE_FIELD_NUMBER: _ClassVar[int]
    PREVOTEGRANTED_FIELD_NUMBER: _ClassVar[int]
    requestVote: RaftRequestVote
    responseVote: RaftResponseVote
    appendEntries: RaftAppendEntries
    snapshotChunk: RaftSnapshotChunk
    nextIndex: RaftNextIndex
    timeoutNow: RaftTimeoutNow
    preVote: RaftPreVote
    preVoteGranted: RaftPreVoteGranted
    def __init__(self, requestVote: _Optional[_Union[RaftRequestVote, _Mapping]] = ..., responseVote: _Optional[_Union[RaftResponseVote, _Mapping]] = ..., appendEntries: _Optional[_Union[RaftAppendEntries, _Mapping]] = ..., snapshotChunk: _Optional[_Union[RaftSnapshotChunk, _Mapping]] = ..., nextIndex: _Optional[_Union[RaftNextIndex, _Mapping]] = ..., timeoutNow: _Optional[_Union[RaftTimeoutNow, _Mapping]] = ..., preVote: _Optional[_Union[RaftPreVote, _Mapping]] = ..., preVoteGranted: _Optional[_Union[RaftPreVoteGranted, _Mapping]] = ...) -> None: ...

class RaftSnapshot(_message.Message):
    __slots__ = ("last", "previous", "nodes", "image", "learner", "leaving", "controllersIndex")
    LAST_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    LEARNER_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    CONTROLLERSINDEX_FIELD_NUMBER: _ClassVar[int]
    last: RaftEntry
    previous: RaftEntry
    nodes: _containers.RepeatedScalarFieldContainer[str]
    image: bytes
    learner: str
    leaving: str
    controllersIndex: int
    def __init__(self, last: _Optional[_Union[RaftEntry, _Mapping]] = ..., previous: _Optional[_Union[RaftEntry, _Mapping]] = ..., nodes: _Optional[_Iterable[str]] = ..., image: _Optional[bytes] = ..., learner: _Optional[str] = ..., leaving: _Optional[str] = ..., controllersIndex: _Optional[int] = ...) -> None: ...
