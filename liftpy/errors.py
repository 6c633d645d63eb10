"""The one tree of errors. Each says who is to blame, what to do, and whether to retry.

Foreign exceptions (OSError, nats.errors.*, protobuf's DecodeError) stop at the edge and become one of these.
Expected conditions of the protocol are events, not exceptions.
"""

from __future__ import annotations


class LiftError(Exception):
    """Base of every error of this project. ``retryable``: the same call may succeed later; ``code``: stable, for machines."""

    retryable = False
    code = "LIFT_ERROR"


class ConfigError(LiftError):
    """A setting is wrong; the text names it and what is allowed. Blame: the operator."""

    code = "CONFIG"


class InvalidNameError(ConfigError):
    """A stream, node or subject name is not allowed. Blame: the caller."""

    code = "INVALID_NAME"


class WrongDataDirectoryError(ConfigError):
    """A data folder is that of another node. Blame: the operator. Do: give each node its own."""

    code = "FOREIGN_FOLDER"


class IncompatibleVersionError(LiftError):
    """The cluster, or its data, is of a version that this one does not speak; it stops rather than guess. Blame: who started it. Do:
    start the version that the text asks for."""

    code = "UNSPOKEN"


class ProtocolError(LiftError):
    """Bytes from the network do not parse. Blame: the sender; counted and dropped, never raised past a handler."""

    code = "PROTOCOL"
    reason = "contents"
    """In a word or two, for counters: one of few, whatever the bytes are."""


class StorageError(LiftError):
    """The disk or the log refused. Blame: the machine."""

    code = "STORAGE"


class CorruptionError(StorageError):
    """Stored bytes are not what was written; the text names file and position."""

    code = "CORRUPTION"


class DamagedBatchError(CorruptionError):
    """Batches that somebody sent are not what was written. Blame: the sender's disk or memory, or the way here. Do: ask again, or
    another replica, and tell the sender. ``offset``: of the first that is wrong, -1: the first of all."""

    def __init__(self, text: str, offset: int) -> None:
        super().__init__(text)
        self.offset = offset


class MetadataDivergedError(StorageError):
    """This controller's image is not that of the majority. It puts its folder aside and fetches a snapshot. Blame: a bug, or memory."""

    code = "OTHER_IMAGE"


class UnknownFormatError(StorageError):
    """Data of another format version: refused, never rewritten [S11]. Do: start the version that wrote it."""

    code = "UNKNOWN_FORMAT"


class NoSpaceError(StorageError):
    """The disk is full. Publishers get a negative ack; the node steps down for the partition [S8]."""

    code = "NO_SPACE"
    retryable = True


class LogClosedError(StorageError):
    """The log was closed, by request or by a final flush error [S4]."""

    code = "LOG_CLOSED"


class FolderLockedError(StorageError):
    """Another process holds the data folder [S10]. Do: stop it, or choose another folder."""

    code = "FOLDER_LOCKED"


class OffsetOutOfRangeError(LiftError):
    """The offset is below the log start (retention) or above the end. Do: choose one inside the bounds that the text gives."""

    code = "OFFSET_OUT_OF_RANGE"


class DataLossError(LiftError):
    """Records that were promised are gone; never raised for a short read, never hidden by one [R5]."""

    code = "DATA_LOSS"


class LogTruncatedError(DataLossError):
    """Records that were read as committed are not on the log any more: an unclean election lost them [R6].

    ``end_offset`` (exclusive): at most up to here the log still is the one that was read. Do: undo what came from the records past
    it if you can, and read on from there.
    """

    code = "LOG_TRUNCATED"

    def __init__(self, text: str, end_offset: int) -> None:
        super().__init__(text)
        self.end_offset = end_offset


class TombstonesMissedError(LiftError):
    """Compaction dropped tombstones that this read had not reached, after it had read older records [R12].

    Keys that were deleted would look alive. Do: read again from the start. If it happens again, read faster, or raise
    ``delete_retention_s`` of the stream.
    """

    code = "TOMBSTONES_MISSED"


class FencedError(LiftError):
    """An older incarnation or epoch spoke. Blame: the speaker; it must learn the new state first."""

    code = "FENCED"


class UnavailableError(LiftError):
    """Nobody could answer in time; nothing was done. Retry."""

    code = "UNAVAILABLE"
    retryable = True


class TooFewNodesError(ConfigError):
    """A change needs more live nodes than there are, or none has room. Do: start nodes, or ask for fewer replicas."""

    code = "TOO_FEW_NODES"


class NoClusterError(UnavailableError):
    """No node of the namespace answers at this NATS, and none ever has. Do: check namespace and NATS URL, or start the nodes."""

    code = "NO_CLUSTER"
    retryable = False


class NoMajorityError(UnavailableError):
    """So many controllers do not answer that nobody can lead the metadata group. Do: start them; the text names them."""

    code = "NO_MAJORITY"
    retryable = False


class OutcomeUnknownError(LiftError):
    """It may or may not have been done (a record may be stored and only its ack lost): look before you ask again.

    Only who asks again under the same operation id may do so blindly, as this client does on its own until its time is up.
    ``message_id``: of a publish that had one, '' else; sent again under it within the stream's window it is stored once.
    """

    code = "OUTCOME_UNKNOWN"

    def __init__(self, text: str = "", message_id: str = "") -> None:
        super().__init__(f"{text} (message id {message_id})" if message_id else text)
        self.message_id = message_id


class ClientClosedError(LiftError):
    """The client, publisher or connection was closed by this application: a call after its end, or one that its end cut short."""

    code = "CLIENT_CLOSED"


class NotAllowedError(LiftError):
    """NATS does not let this user publish or subscribe there: nothing was done. Do: ask for the right, or use other credentials."""

    code = "NOT_ALLOWED"


class StaleRequestError(LiftError):
    """A compare-and-set failed: the state moved on. Look at it and decide anew."""

    code = "STALE"


class NotFoundError(LiftError):
    """No such stream, partition or node."""

    code = "NOT_FOUND"


class AlreadyExistsError(LiftError):
    """The name is taken."""

    code = "EXISTS"


class PublishRejectedError(LiftError):
    """A negative ack: the message is not, and will never be, visible [A2]. ``reason`` is the name of the ack's error."""

    code = "PUBLISH_REJECTED"

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason


class InvariantError(LiftError):
    """A named invariant does not hold: a bug in this project. The process stops rather than go on."""

    code = "INVARIANT"
