"""All errors of liftpy. Each docstring says what happened and what to do.

Errors of other libraries (OSError, nats.errors, protobuf) are converted into these classes. Expected conditions of the
protocol are events, not exceptions.
"""

from __future__ import annotations


class LiftError(Exception):
    """Base class of all liftpy errors.

    Attributes:
        retryable: True if the same call may succeed later.
        code: Stable name of the error, for programs.
    """

    retryable = False
    code = "LIFT_ERROR"


class ConfigError(LiftError):
    """A setting or an argument is wrong. The text names it and the allowed values."""

    code = "CONFIG"


class InvalidNameError(ConfigError):
    """The name of a stream, node or subject is not allowed. The text names the rule."""

    code = "INVALID_NAME"


class WrongDataDirectoryError(ConfigError):
    """The data directory belongs to another node. Give each node its own data directory."""

    code = "WRONG_DATA_DIRECTORY"


class IncompatibleVersionError(LiftError):
    """The cluster or its data needs another version of liftpy. Start the version that the text names."""

    code = "INCOMPATIBLE_VERSION"


class ProtocolError(LiftError):
    """Bytes from the network cannot be parsed. The receiver counts and drops them.

    Attributes:
        reason: Short reason for counters.
    """

    code = "PROTOCOL"
    reason = "contents"
    """Short reason for counters. One of a few fixed texts."""


class StorageError(LiftError):
    """The disk or the log failed. Check the disk of the machine."""

    code = "STORAGE"


class CorruptionError(StorageError):
    """Stored bytes differ from the bytes that were written. The text names the file and the position."""

    code = "CORRUPTION"


class DamagedBatchError(CorruptionError):
    """A received batch is damaged. Ask again, or ask another replica.

    Attributes:
        offset: Offset of the first damaged batch. -1: the first batch.

    Args:
        text: The error text.
        offset: Offset of the first damaged batch. -1: the first batch.
    """

    def __init__(self, text: str, offset: int) -> None:
        super().__init__(text)
        self.offset = offset


class MetadataDivergedError(StorageError):
    """The metadata of this controller differs from the majority. The controller quarantines its data and fetches a
    snapshot.
    """

    code = "METADATA_DIVERGED"


class UnknownFormatError(StorageError):
    """Data on disk has a format that this version does not know. Start the version that wrote it."""

    code = "UNKNOWN_FORMAT"


class NoSpaceError(StorageError):
    """The disk is full. Publishers get a negative ack, and the node gives up the leadership of the partition."""

    code = "NO_SPACE"
    retryable = True


class LogClosedError(StorageError):
    """The log is closed, on request or after a failed flush."""

    code = "LOG_CLOSED"


class DataDirectoryLockedError(StorageError):
    """Another process uses the data directory. Stop it, or choose another directory."""

    code = "DATA_DIRECTORY_LOCKED"


class UnusableDataDirectoryError(StorageError):
    """The data directory belongs to another user, or its lock is not a file.

    The text says what to do before the next start.
    """

    code = "UNUSABLE_DATA_DIRECTORY"


class OffsetOutOfRangeError(LiftError):
    """The offset is below the log start or past the end. Choose an offset in the range that the text names."""

    code = "OFFSET_OUT_OF_RANGE"


class DataLossError(LiftError):
    """Records that must exist are gone. The text names them."""

    code = "DATA_LOSS"


class LogTruncatedError(DataLossError):
    """Records that you read as committed are gone, because an unclean election lost them.

    Undo their effects if you can, and continue to read at ``end_offset``.

    Attributes:
        end_offset: Exclusive. Below it, the log may still be the one that you read.

    Args:
        text: The error text.
        end_offset: Exclusive. Below it, the log may still be the one that you read.
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
    """The request came from an older incarnation or epoch of a node. The node must learn the new state first."""

    code = "FENCED"


class NodeRemovedError(FencedError):
    """An operator removed the node from the cluster while its process was paused.

    The process ends. Start it to join again.
    """

    code = "NODE_REMOVED"


class UnavailableError(LiftError):
    """No node could answer in time. Nothing was done. Retry."""

    code = "UNAVAILABLE"
    retryable = True


class NatsUnreachableError(UnavailableError):
    """The NATS server cannot be reached. Check that it runs, and check the URL."""


class TooFewNodesError(ConfigError):
    """The change needs more live nodes, or no node has room. Start nodes, or ask for fewer replicas."""

    code = "TOO_FEW_NODES"


class NoClusterError(UnavailableError):
    """No node of the namespace answers. Check the namespace and the NATS URL, or start the nodes."""

    code = "NO_CLUSTER"
    retryable = False


class NoMajorityError(UnavailableError):
    """Too few controllers answer, so the metadata group has no leader. Start the controllers that the text names."""

    code = "NO_MAJORITY"
    retryable = False


class OutcomeUnknownError(LiftError):
    """The request may or may not have been carried out. Check before you send it again.

    A publish with a message id is safe to send again: within the stream's deduplication window it is stored once. The
    client already retried the request until its timeout.

    Attributes:
        message_id: Message id of the publish. '': it had none.

    Args:
        text: The error text.
        message_id: Message id of the publish. Default '': it had none.
    """

    code = "OUTCOME_UNKNOWN"

    def __init__(self, text: str = "", message_id: str = "") -> None:
        super().__init__(f"{text} (message id {message_id})" if message_id else text)
        self.message_id = message_id


class ClientClosedError(LiftError):
    """The application closed the client, publisher or connection before or during this call."""

    code = "CLIENT_CLOSED"


class NotAllowedError(LiftError):
    """NATS denies this user to publish or subscribe. Grant the permission, or use other credentials.

    Nothing was done.
    """

    code = "NOT_ALLOWED"


class StaleRequestError(LiftError):
    """The state has changed since the request was prepared. Read it again and decide again."""

    code = "STALE"


class NotFoundError(LiftError):
    """The stream, partition, node, group or cursor does not exist."""

    code = "NOT_FOUND"


class AlreadyExistsError(LiftError):
    """The name is already in use."""

    code = "EXISTS"


class PublishRejectedError(LiftError):
    """The leader rejected the message. It is not stored, and readers will never see it.

    Attributes:
        reason: Name of the ack's error, such as ``TOO_LARGE``.

    Args:
        text: The error text.
        reason: Name of the ack's error.
    """

    code = "PUBLISH_REJECTED"

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason


class InvariantError(LiftError):
    """An invariant of the protocol is violated. This is a bug in liftpy. The process stops."""

    code = "INVARIANT"
