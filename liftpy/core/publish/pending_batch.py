"""Counters of ingest, and the publishes that the core has not appended yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from liftpy.config import Codec
from liftpy.core.base.instruments import PublishTimes
from liftpy.core.publish.acks import Publishers
from liftpy.core.publish.log_state_part import Numbering
from liftpy.core.publish.message_decoder import MessageColumns, RawMessage
from liftpy.core.replication.effects import RejectReason
from liftpy.core.wire.batch import Body, encode_body

RECORD_OVERHEAD_BYTES = 24
"""What a record adds to its columns at most, besides its bytes."""


@dataclass(slots=True, kw_only=True)
class IngestCounters:
    """Counters of ingest since the process started, for status and metrics."""

    records: int = 0
    size_bytes: int = 0
    batches: int = 0
    overloaded: int = 0
    """Refused or dropped for want of room here."""
    rejected: int = 0
    """Answered with a negative ack for another reason."""
    duplicates: int = 0
    """Left out, because a record with their message id is stored or in hand."""
    refused: Counter[str] = field(default_factory=Counter)
    """Reason -> publishes that somebody waits for, and that are not stored: he is told, if that is certain."""
    throttled: Counter[str] = field(default_factory=Counter)
    """Scope of a quota (``stream``, ``token``) -> publishes that it did not let in; they are among those refused and dropped."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Reason -> publishes that nobody waits for, and that are not stored."""
    on_drop: Callable[[str, int], None] = lambda reason, count: None
    times: PublishTimes = field(default_factory=PublishTimes)

    def drop(self, reason: str, count: int) -> None:
        """Count publishes without reply subject that were dropped."""
        if count:
            self.dropped[reason] += count
            self.on_drop(reason, count)

    def refuse(self, reason: str, count: int) -> None:
        """Count publishes with reply subject that were rejected."""
        if count:
            self.refused[reason] += count

    def not_stored(self, publishers: Publishers, reason: RejectReason) -> None:
        """Count publishes that were not stored: rejected, or dropped if nobody waits."""
        plain = publishers.plain_count
        self.drop(reason.name.lower(), plain)
        self.refuse(reason.name.lower(), publishers.record_count - plain)
        if reason is RejectReason.OVERLOADED:
            self.overloaded += publishers.record_count
        else:
            self.rejected += publishers.record_count - plain


@dataclass(slots=True)
class PendingBatch:
    """Publishes that were passed to the core and are not appended yet."""

    body: Body
    publishers: Publishers
    ids: dict[int, bytes]
    """Record index -> message id."""
    asks: bool
    """One of them expects something of its subject."""
    again: list[tuple[int, Publishers]] = field(default_factory=list)
    """(record index, publisher) who have sent one of them again meanwhile."""
    numbering: Numbering | None = None
    """By a producer."""
    arrived_ns: int = 0
    """Monotonic."""


def message_size_bytes(message: RawMessage) -> int:
    """Return the approximate size of the message in a batch."""
    subject, _, payload, headers = message
    return len(subject) + len(payload) + len(headers) + RECORD_OVERHEAD_BYTES


def batch_end(raw: list[RawMessage], start: int, most_records: int, most_bytes: int) -> int:
    """Return the exclusive end of the batch that begins at ``start``, limited by count and bytes.

    It has at least one message.
    """
    total = 0
    for index in range(start, min(len(raw), start + most_records)):
        total += message_size_bytes(raw[index])
        if total > most_bytes:
            return max(index, start + 1)
    return min(len(raw), start + most_records)


def body_of(columns: MessageColumns, codec: Codec) -> Body:
    """Return the encoded body of the batch. Raise BatchTooLargeError if it is too large for a log."""
    if columns.batch is not None:
        return columns.batch.body
    return encode_body(
        columns.values,
        keys=columns.keys,
        headers=columns.headers,
        subjects=columns.subjects,
        replies=columns.replies,
        codec=codec,
    )
