"""``Overload``: rejects publishes to one partition when there is no room or no time for them. Pure.

A rejection must be much cheaper than storing a message. So publishes with a reply subject are rejected without decoding
(``Refuser``). A rejected message must never be stored [A2], so messages with a known message id and envelopes are
decoded first. The rejection contains the time to wait. Publishes without reply subject are dropped and counted. A
leader does not reject a message as too late if another node may store it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from liftpy.config import Codec
from liftpy.core.base.instruments import PublishTimes
from liftpy.core.publish.acks import Publishers
from liftpy.core.publish.dedup_window import RecentIds, StoredId
from liftpy.core.publish.jetstream_headers import Rejection
from liftpy.core.publish.log_state_part import ProducerSequences
from liftpy.core.publish.memory_budget import AckDelay, MemoryBudget
from liftpy.core.publish.message_decoder import MessageColumns, MessageDecoder, RawMessage, split_late
from liftpy.core.publish.ports import ReplyPolicy
from liftpy.core.replication.effects import RejectReason
from liftpy.core.wire.batch import Body, encode_body
from liftpy.core.wire.envelope import MAGIC

IDS_LOST = "message_ids_lost"
"""Reason for dropping publishes whose message id may be stored already, because this node dropped ids for lack of memory."""
_NO_ROOM = Rejection(RejectReason.OVERLOADED, "")


class KnownIds(NamedTuple):
    """Message ids of one partition: stored ones, and those of messages in progress."""

    stored: RecentIds
    in_hand: Container[bytes]
    """Ids of messages that are in progress."""
    waits: Callable[[], bool]
    """Returns True if messages have arrived that were not decoded yet. They may have any id."""


class Overload:
    """Rejects publishes to one partition when there is no room or no time for them (implements ``Refuser``).

    Args:
        may: Decides whether the leader may send a negative ack.
        reader: Decodes messages.
        counters: Counters of rejected and dropped publishes.
        is_full: Returns True if there is no room for more publishes.
        known: Returns the indexes of messages that are stored or in progress.
        ids: Known message ids.
        reject_or_delay: Sends rejections, or delays them.
        wall_ns: Returns the wall clock.
    """

    __slots__ = (
        "_counters", "_ids", "_is_full", "_known", "_may", "_reader", "_reject_or_delay", "_unanswered", "_wall_ns",
        "unanswered_since_ns",
    )  # fmt: skip

    def __init__(
        self,
        *,
        may: ReplyPolicy,
        reader: MessageDecoder,
        counters: IngestCounters,
        is_full: Callable[[], bool],
        known: Callable[[MessageColumns], Mapping[int, StoredId | None] | None],
        ids: KnownIds,
        reject_or_delay: Callable[[Publishers, Rejection, int], None],
        wall_ns: Callable[[], int],
    ) -> None:
        self.unanswered_since_ns: Callable[[], int] = lambda: 0
        """Returns the arrival time of the oldest publish without an answer. 0: there is none."""
        self._unanswered = AckDelay()
        self._may = may
        self._reader = reader
        self._counters = counters
        self._is_full = is_full
        self._known = known
        self._ids = ids
        self._reject_or_delay = reject_or_delay
        self._wall_ns = wall_ns

    @property
    def _is_late(self) -> bool:
        node = self._may.room.node
        late = node.is_late or self._waits_for_commit(node)
        return late and self._reader.answers and self._may.refuse_for_now()

    def _waits_for_commit(self, node: MemoryBudget) -> bool:
        now_ns = self._counters.times.now_ns()
        late = self._unanswered.check(self.unanswered_since_ns(), now_ns, node.late_ns, is_pressed=node.is_pressed)
        if late:
            node.note_slow_commits(now_ns)
        return late

    def refuses(self) -> bool:
        """Return whether publishes may be rejected without decoding now, because the node is late or there is no room."""
        return self._is_late or (self._is_full() and self._reader.answers and self._may.refuse_for_now())

    def is_new(self, message_id: bytes) -> bool:
        """Return whether no record with this message id is stored, in progress or waiting to be decoded."""
        ids = self._ids
        if message_id in ids.in_hand or ids.waits():
            return False
        return not ids.stored.may_hold(message_id, self._wall_ns())

    def refuse(self, replies: Sequence[bytes]) -> None:
        self._counters.overloaded += len(replies)
        self._reject_overloaded(self._reader.publishers_of(replies), len(replies))

    def in_time(self, messages: list[RawMessage]) -> list[RawMessage]:
        """Return the messages to accept. If the node is late, reject the messages with a reply subject and return the others."""
        if not self._is_late:
            return messages
        waited_for, others = split_late(messages)
        for refused in waited_for:
            self.reject_for_overload(refused)
        return others

    def reject_for_overload(self, messages: list[RawMessage]) -> None:
        """Reject messages with a reply subject, and drop the others, because the node is late or there is no room."""
        self._counters.overloaded += len(messages)
        plain = len(messages)
        if any(message[1] or message[2].startswith(MAGIC) for message in messages):
            now_wall_ns = self._wall_ns()
            columns = self._reader.read(messages, now_wall_ns)
            publishers, plain = columns.publishers, columns.publishers.plain_count
            repeats = self._known(columns)
            if repeats is None:
                return
            ids, in_hand = columns.ids, self._ids.in_hand
            known = {index for index, stored in repeats.items() if stored is not None or ids[index] in in_hand}
            if ids and self._ids.stored.is_blind(now_wall_ns):  # each of them may be stored
                self._counters.drop(IDS_LOST, len(ids) - len(known))
                known = set(ids)
            if known:  # a rejected message must never be stored [A2]
                kept = [b"" if index in known else reply for index, reply in enumerate(publishers.replies)]
                publishers = replace(publishers, replies=kept)
            self._reject_overloaded(publishers, len(messages) - plain)
        self._counters.drop("overloaded", plain)

    def _reject_overloaded(self, publishers: Publishers, count: int) -> None:
        self._counters.refuse("overloaded", count)
        self._reject_or_delay(publishers, _NO_ROOM, self._may.room.node.retry_after_ms)


# Counters of ingest, and the publishes that the replica has not appended yet.


RECORD_OVERHEAD_BYTES = 24
"""Maximum size of a record in its columns in addition to its own bytes."""


@dataclass(slots=True, kw_only=True)
class IngestCounters:
    """Counters of the publishes to one partition since the process started, for status and metrics."""

    records: int = 0
    size_bytes: int = 0
    batches: int = 0
    overloaded: int = 0
    """Number of publishes that were rejected or dropped for lack of memory."""
    rejected: int = 0
    """Number of publishes that got a negative ack for another reason."""
    duplicates: int = 0
    """Number of publishes that were not stored, because a record with their message id is stored or in progress."""
    refused: Counter[str] = field(default_factory=Counter)
    """Reason -> number of rejected publishes with a reply subject. The publisher gets a negative ack if the result is
    certain.
    """
    throttled: Counter[str] = field(default_factory=Counter)
    """Scope of a quota (``stream``, ``token``) -> number of publishes that it rejected. They also count as rejected or dropped."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Reason -> number of dropped publishes without a reply subject."""
    on_drop: Callable[[str, int], None] = lambda reason, count: None
    times: PublishTimes = field(default_factory=PublishTimes)

    def drop(self, reason: str, count: int) -> None:
        if count:
            self.dropped[reason] += count
            self.on_drop(reason, count)

    def refuse(self, reason: str, count: int) -> None:
        if count:
            self.refused[reason] += count

    def not_stored(self, publishers: Publishers, reason: RejectReason) -> None:
        """Record that the messages of these publishers were rejected (with a reply subject) or dropped (without one)."""
        plain = publishers.plain_count
        self.drop(reason.name.lower(), plain)
        self.refuse(reason.name.lower(), publishers.record_count - plain)
        if reason is RejectReason.OVERLOADED:
            self.overloaded += publishers.record_count
        else:
            self.rejected += publishers.record_count - plain


@dataclass(slots=True)
class PendingBatch:
    """A batch of publishes that was passed to the replica and is not appended yet."""

    body: Body
    publishers: Publishers
    ids: dict[int, bytes]
    """Record index -> message id."""
    asks: bool
    """True if a publish has a condition on its subject."""
    again: list[tuple[int, Publishers]] = field(default_factory=list)
    """(record index, publisher) of messages that repeat a record of this batch."""
    numbering: ProducerSequences | None = None
    """Sequence numbers that a producer has set."""
    arrived_ns: int = 0
    """Monotonic time of the arrival, in nanoseconds."""


def message_size_bytes(message: RawMessage) -> int:
    """Return the approximate size of ``message`` in a batch, in bytes."""
    subject, _, payload, headers = message
    return len(subject) + len(payload) + len(headers) + RECORD_OVERHEAD_BYTES


def batch_end(raw: list[RawMessage], start: int, most_records: int, most_bytes: int) -> int:
    """Return the index after the last message of a batch that begins at index ``start`` of ``raw``.

    It has at most ``most_records`` messages and about ``most_bytes``, but at least one message.
    """
    total = 0
    for index in range(start, min(len(raw), start + most_records)):
        total += message_size_bytes(raw[index])
        if total > most_bytes:
            return max(index, start + 1)
    return min(len(raw), start + most_records)


def body_of(columns: MessageColumns, codec: Codec) -> Body:
    """Return the encoded body of the batch. Raises BatchTooLargeError if it is too large for a log."""
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
