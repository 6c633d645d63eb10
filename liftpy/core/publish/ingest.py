"""``Ingest``: combines the messages of one partition that arrive together into a batch, and lets the replica append it.

Messages wait in a list until all messages of one socket read have arrived. Batches that the replica does not append at
once wait under a token (limits: ``liftpy/core/replication/inflight_limits.py``). Two more limits apply: the messages of
one socket read, and the publishers that wait for an ack. Above a limit, a publish with a reply subject is rejected with
OVERLOADED, and one without is dropped and counted.

A rejection must be much cheaper than storing a message. So publishes with a reply subject are rejected without decoding.
A rejected message must never be stored [A2], so messages with a known message id and envelopes are decoded first. The
rejection contains the time to wait. A leader does not reject a message as too late if another node may store it.

A message with a known message id is not stored. Its publisher gets the ack of the stored record, with ``duplicate``,
and not before the record's own publisher gets its ack.

Messages of one read are checked together. Messages that cannot be stored are removed in one pass, and the others become
one batch. So the cost of a read grows with the number of its messages, and never with its square.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter

from liftpy.config import AckPolicy, ReplicationConfig, StreamConfig
from liftpy.core.base.instruments import PublishTimes
from liftpy.core.publish.acks import Publishers, envelope_of
from liftpy.core.publish.conditions import UNINDEXED, index_key, unmet_conditions
from liftpy.core.publish.dedup_window import StoredId
from liftpy.core.publish.log_state_part import NewBatch, ProducerSequences
from liftpy.core.publish.memory_budget import WAITING_PUBLISHER_BYTES, AckDelay, MemoryBudget
from liftpy.core.publish.message_decoder import (
    MessageColumns,
    MessageDecoder,
    RawMessage,
    body_after,
    largest_record_bytes,
    runs_of,
    split_at,
    split_late,
)
from liftpy.core.publish.ports import IngestShell, PublishPartition, StandbySubscription, Subscription
from liftpy.core.publish.producer_state import (
    RECORDS_LOST,
    Claim,
    Finding,
    ProducerRegistry,
    ProducerRequest,
    after,
    last_offset_of,
)
from liftpy.core.publish.quota import Quota, quota_for
from liftpy.core.publish.standby import FailoverBacklog
from liftpy.core.replication.effects import AppendBatch
from liftpy.core.replication.events import DuplicateReceived, PublishesReceived
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import MAX_BATCH_BYTES, BatchTooLargeError, Body, add_header, encode_body
from liftpy.core.wire.envelope import MAGIC
from liftpy.core.wire.rejections import Rejection, RejectReason

IDS_LOST = "message_ids_lost"
"""Reason for dropping publishes whose message id may be stored already, because this node dropped ids for lack of memory."""
_OVERLOADED = Rejection(RejectReason.OVERLOADED, "")
_UNDECIDED = Rejection(RejectReason.NOT_LEADER, "The leader changed before it stored the publish. Send it again.")
INGEST_OVERFLOW = "ingest_overflow"
"""Reason in the counter of publishes that the connection dropped before they reached a partition."""
_BATCH_OVERHEAD_BYTES = 4096
"""Maximum size of the headers of a batch, of its response and of NATS, in bytes."""
_NO_PRODUCER = ProducerSequences(0, 0, 0, None)
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
    has_conditions: bool
    """True if a publish has a condition on its subject."""
    repeats: list[tuple[int, Publishers]] = field(default_factory=list)
    """(record index, publisher) of messages that repeat a record of this batch."""
    sequences: ProducerSequences | None = None
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


def call_with_halves(messages: list[RawMessage], process: Callable[[list[RawMessage]], None]) -> None:
    """Call ``process`` with each half of ``messages``."""
    half = len(messages) // 2
    process(messages[:half])
    process(messages[half:])


class Ingest:
    """Combines the publishes of one partition into batches, and passes them to the replica.

    The replica answers each PublishesReceived with an effect that calls ``encode_batch``, ``reject`` or ``drop``. ``reader``:
    decodes the messages on the data subject. ``wall_ns``: returns the time for records. ``memory``: memory limit and time limit
    of the node.
    """

    __slots__ = (
        "_acks", "_backlog", "_config", "_drain_scheduled", "_feed", "_left", "_listener", "_log", "_log_state", "_memory",
        "_next_token", "_now_ns", "_on_leave", "_pending_ids", "_raw", "_raw_bytes", "_registry", "_repeat_count", "_replica",
        "_shell", "_tokens", "_unanswered", "counters", "is_subscribed", "reader", "wall_ns",
    )  # fmt: skip

    def __init__(
        self,
        partition: PublishPartition,
        shell: IngestShell,
        reader: MessageDecoder,
        config: ReplicationConfig,
        wall_ns: Callable[[], int],
        memory: MemoryBudget | None = None,
    ) -> None:
        self._shell = shell
        self._config = config
        self._acks = partition.acks
        self._replica = partition.replica
        self._feed = partition.feed
        self._log = partition.log
        self._log_state = partition.log_state
        self._now_ns = partition.now_ns
        self._on_leave = partition.ingest_left
        self.wall_ns = wall_ns
        """Function that returns the wall time for records and acks."""
        self._memory = memory or MemoryBudget()
        self._registry = ProducerRegistry(self._log_state.producers)
        self.reader = reader
        self.counters = IngestCounters(on_drop=partition.publishes_dropped, times=self._acks.times)
        self._pending_ids: dict[bytes, tuple[PendingBatch, int]] = {}
        """Message id -> its pending batch, and the index of its record there."""
        self._unanswered = AckDelay()
        self._listener: Subscription | None = None
        self._backlog: FailoverBacklog | None = None
        """Messages that this node buffered as a standby, while it takes publishes over the same subscription.

        ``undecided`` messages get a negative ack later.
        """
        self.is_subscribed = False
        """True if the NATS server has confirmed the subscription."""
        self._left = False
        """True if the node has unsubscribed. Messages in flight are still stored."""
        self._raw: list[RawMessage] = []
        self._raw_bytes = 0
        self._drain_scheduled = False
        self._tokens: dict[int, PendingBatch] = {}
        self._repeat_count = 0
        """Number of repeated messages in ``PendingBatch.repeats`` of all pending batches."""
        self._next_token = 1

    def settings_changed(self, stream: StreamConfig, partitions: int = 1) -> None:
        self.reader.quota = quota_for(stream, partitions, self.reader.quota)
        self.reader.max_message_bytes = stream.max_message_bytes
        self.reader.wants_offsets = stream.optimistic_concurrency

    @property
    def _batch_bytes(self) -> int:
        """Maximum size of a batch of several messages, so that it usually fits one fetch answer.

        A single message may be larger. It is then sent to followers in pieces.
        """
        room = min(self._config.replication_max_bytes, self._shell.max_payload) - _BATCH_OVERHEAD_BYTES
        return max(4096, min(self._config.batch_max_bytes, room))

    def start(self, backlog: FailoverBacklog | None = None) -> None:
        """Accept publishes: subscribe to the data subject, because this replica leads.

        ``backlog``: messages of the standby buffer, which are stored first. The subscription of the standby buffer continues, so
        that no message is missed. None: this node had no standby buffer.
        """
        if self._listener is not None:
            return
        if backlog is None:
            self._listen()
            return
        subscription = backlog.subscription
        assert subscription is not None
        self._backlog, self._listener, self.is_subscribed = backlog, subscription, True
        subscription.feed_to(self._message_arrived, self._record_dropped, self._on_standby_lost)
        for stored, publishers in backlog.known:
            self._acks.add_again(stored, publishers, duplicate=False)
        if backlog.known:
            self._feed(DuplicateReceived(last_offset=min(stored.last_offset for stored, _ in backlog.known)))
        if backlog.fresh:
            self._raw, backlog.fresh_left = backlog.fresh, len(backlog.fresh)
            self._raw_bytes = sum(map(message_size_bytes, backlog.fresh))
            self._drain_soon()

    def _may_reject(self) -> bool:
        """Return whether the leader may send negative acks."""
        return self._replica.may_reject_publishes(self._now_ns())

    def _may_reject_locally(self) -> bool:
        """Return whether publishes may be rejected that the next leader could store. Then no standby follower has buffered them."""
        return self._replica.may_reject_locally(self._now_ns())

    def _reject_or_delay(self, publishers: Publishers, rejection: Rejection, waits_ms: Sequence[int] | int = 0) -> None:
        self._acks.reject_or_delay(
            publishers, rejection, waits_ms, now=self._may_reject_locally(), later=not self._may_reject()
        )

    def settle(self) -> None:
        """Send the delayed rejections if the leader may send negative acks now."""
        if self._acks.has_delayed_rejections and self._may_reject():
            self._acks.send_delayed_rejections(may=self._may_reject_locally())
        if self._backlog is not None and self._backlog.undecided and self._may_reject():
            messages, self._backlog.undecided = self._backlog.undecided, []
            for message in messages:
                self._reject_publishers(self.reader.read([message], self.wall_ns()).publishers, _UNDECIDED)

    def process_link_loss(self) -> None:
        """Process the loss of the connection for publishes: unsubscribe if standby followers receive the publishes instead.

        If the standby connection delivers the publishes to this leader, do nothing.
        """
        if self._subscription is None:
            self._unsubscribe_for_standby()

    @property
    def _subscription(self) -> StandbySubscription | None:
        """Subscription of the standby buffer, if it delivers the publishes to this leader. None: the leader has its own one, or
        none.
        """
        return None if self._backlog is None else self._backlog.subscription

    def _on_standby_lost(self) -> None:
        """Process the loss of the standby connection, or NATS permissions that deny its subscription.

        Unsubscribe if standby followers on other nodes receive the publishes. Otherwise subscribe on the main connection.
        """
        subscription = self._subscription
        if subscription is None or self._left or (not subscription.is_denied and self._unsubscribe_for_standby()):
            return
        subscription.close()
        self._listen()

    def _unsubscribe_for_standby(self) -> bool:
        """Unsubscribe if standby followers receive the publishes. Return whether this node has unsubscribed.

        The standby followers then have messages that this node lacks, so this node must not store later ones. Either the caller
        calls ``resubscribe`` later, or another node becomes leader.
        """
        if self._listener is None or self._left or not self._replica.standby_successor():
            return False
        self.leave()
        self._on_leave()
        return True

    def _listen(self) -> None:
        if self._backlog is not None:
            self._backlog.subscription = None
        self._listener = listener = self._shell.listen(
            self.reader.subject, self._message_arrived, on_dropped=self._record_dropped, rejector=self
        )
        self.is_subscribed = False
        self._shell.when_subscribed(lambda: self._on_subscribed(listener))

    def _on_subscribed(self, listener: Subscription) -> None:
        self.is_subscribed = self.is_subscribed or listener is self._listener

    def leave(self) -> None:
        """Unsubscribe from the data subject. Messages that still arrive are stored. Call ``stop`` or ``resubscribe`` later."""
        if self._listener is not None:
            self._listener.leave()
            self._left = True
            self._log_state.index_wait.release(self._log_state.subjects, everything=True)

    def resubscribe(self) -> None:
        """Subscribe to the data subject again after ``leave``, if this replica still leads."""
        if self._left:
            assert self._listener is not None
            self._listener.close()
            self._left = False
            self._listen()

    @property
    def open_producers_bytes(self) -> int:
        """Approximate memory of the producers that this leader has opened, in bytes."""
        return self._registry.size_bytes

    @property
    def is_idle(self) -> bool:
        """True if all received messages are stored or rejected, and all waiting publishers have their answers."""
        undecided = self._backlog is not None and self._backlog.undecided
        return not (self._has_unread() or self._tokens or undecided or self._acks.count)

    def _has_unread(self) -> bool:
        return bool(self._raw or self._log_state.index_wait)

    def stop(self) -> None:
        """Unsubscribe and drop the messages that are not stored, because this replica no longer leads.

        They get no ack. They do not count as dropped, because the next leader may have buffered them.
        """
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._left = False
        self._backlog = None
        self.counters.times.forget()
        self._raw = []
        self._raw_bytes = 0
        self._log_state.index_wait.forget()
        self._tokens.clear()
        self._pending_ids.clear()
        self._log_state.ids.pending.hold(0)
        self._registry.begin()
        self._repeat_count = 0

    def _is_full(self) -> bool:
        if len(self._raw) >= self._config.ingest_queue_records or self._raw_bytes >= self._config.ingest_queue_bytes:
            return True
        return self._memory.is_limited and not self._memory.takes(self._in_progress_bytes, self._config.ingest_queue_bytes)

    @property
    def _in_progress_bytes(self) -> int:
        """Memory of the publishes that are unread, delayed, uncommitted or not acknowledged, in bytes."""
        replica, waiting_bytes = self._replica, self._acks.count * WAITING_PUBLISHER_BYTES
        return self._raw_bytes + replica.held_bytes + replica.uncommitted_bytes + waiting_bytes

    # ---- overload ------------------------------------------------------------------------------------------------------
    @property
    def _is_late(self) -> bool:
        late = self._memory.is_late or self._waits_for_commit()
        return late and self.reader.answers and self._may_reject_locally()

    def _waits_for_commit(self) -> bool:
        memory, now_ns = self._memory, self.counters.times.now_ns()
        late = self._unanswered.check(self._acks.since_ns(), now_ns, memory.late_ns, is_pressed=memory.is_pressed)
        if late:
            memory.note_slow_commits(now_ns)
        return late

    def rejects_now(self) -> bool:
        """Return whether publishes may be rejected without decoding now, because the node is late or there is no room."""
        return self._is_late or (self._is_full() and self.reader.answers and self._may_reject_locally())

    def is_new(self, message_id: bytes) -> bool:
        """Return whether no record with this message id is stored, in progress or waiting to be decoded."""
        if message_id in self._pending_ids or self._has_unread():
            return False
        return not self._log_state.ids.may_hold(message_id, self.wall_ns())

    def reject_unread(self, replies: Sequence[bytes]) -> None:
        self.counters.overloaded += len(replies)
        self._reject_overloaded(self.reader.publishers_of(replies), len(replies))

    def _in_time(self, messages: list[RawMessage]) -> list[RawMessage]:
        """Return the messages to accept. If the node is late, reject the messages with a reply subject and return the others."""
        if not self._is_late:
            return messages
        waited_for, others = split_late(messages)
        for refused in waited_for:
            self._reject_for_overload(refused)
        return others

    def _reject_for_overload(self, messages: list[RawMessage]) -> None:
        """Reject messages with a reply subject, and drop the others, because the node is late or there is no room."""
        self.counters.overloaded += len(messages)
        plain = len(messages)
        if any(message[1] or message[2].startswith(MAGIC) for message in messages):
            now_wall_ns = self.wall_ns()
            columns = self.reader.read(messages, now_wall_ns)
            publishers, plain = columns.publishers, columns.publishers.plain_count
            repeats = self._find_repeats(columns)
            if repeats is None:
                return
            ids, pending = columns.ids, self._pending_ids
            known = {index for index, stored in repeats.items() if stored is not None or ids[index] in pending}
            if ids and self._log_state.ids.is_blind(now_wall_ns):  # each of them may be stored
                self.counters.drop(IDS_LOST, len(ids) - len(known))
                known = set(ids)
            if known:  # a rejected message must never be stored [A2]
                kept = [b"" if index in known else reply for index, reply in enumerate(publishers.replies)]
                publishers = replace(publishers, replies=kept)
            self._reject_overloaded(publishers, len(messages) - plain)
        self.counters.drop("overloaded", plain)

    def _reject_overloaded(self, publishers: Publishers, count: int) -> None:
        self.counters.refuse("overloaded", count)
        self._reject_or_delay(publishers, _OVERLOADED, self._memory.retry_after_ms)

    # ---- messages ------------------------------------------------------------------------------------------------------
    def _message_arrived(self, subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
        if self._is_full():
            self._reject_for_overload([(subject, reply, payload, headers)])
            return
        self._raw.append((subject, reply, payload, headers))
        self._raw_bytes += len(payload) + len(headers) + len(subject) + RECORD_OVERHEAD_BYTES
        if not self._drain_scheduled:
            self._drain_soon()

    def _drain(self) -> None:
        self._drain_scheduled = False
        raw, size_bytes, batch_bytes = self._raw, self._raw_bytes, self._batch_bytes
        self._raw, self._raw_bytes = [], 0
        if size_bytes <= batch_bytes and len(raw) <= self._config.batch_max_records:
            if raw:
                self._check_messages(raw)
            self._count_processed(len(raw))
            return
        start = 0
        most = len(raw) if self._backlog is None else self._config.batch_max_records  # a standby buffer has many messages
        while start < min(len(raw), most):
            end = batch_end(raw, start, self._config.batch_max_records, batch_bytes)
            self._check_messages(raw[start:end])
            start = end
        self._count_processed(start)
        if start < len(raw) and self._listener is not None:
            self._raw, self._raw_bytes = raw[start:], size_bytes - sum(map(message_size_bytes, raw[:start]))
            self._drain_soon()

    def _count_processed(self, count: int) -> None:
        if self._backlog is not None:
            self._backlog.fresh_left = max(0, self._backlog.fresh_left - count)

    def _drain_soon(self) -> None:
        self._drain_scheduled = True
        (self._subscription or self._shell).call_after_read(self._drain)

    def _check_messages(self, messages: list[RawMessage]) -> None:
        """Check messages and pass them to the replica. If the node is late, first reject those that have waited too long.

        If an unexpected error occurs for one message, only this message is rejected [A6].
        """
        try:
            messages = self._in_time(messages)
        except Exception as error:
            self._drop_or_split(messages, error, self._check_messages)
            return
        if messages:
            self._submit_piece(messages)

    def _submit_piece(self, messages: list[RawMessage]) -> None:
        """Check some of the messages of one read and pass them to the replica. An error in them does not affect the others."""
        try:
            self._submit(messages)
        except Exception as error:
            self._drop_or_split(messages, error, self._submit_piece)

    def _drop_or_split(self, messages: list[RawMessage], error: Exception, retry: Callable[[list[RawMessage]], None]) -> None:
        """Handle an unexpected ``error`` while ``messages`` were processed.

        Drop a single message. Call ``retry`` with each half of several messages, until the failing one is alone.
        """
        if len(messages) == 1:
            self._shell.sink_failed(messages[0][0], error)
        else:
            call_with_halves(messages, retry)

    def _submit_at(self, messages: list[RawMessage], alone: Collection[int]) -> None:
        for piece in split_at(messages, alone):
            self._submit_piece(piece)

    def _submit(self, messages: list[RawMessage]) -> None:
        now_wall_ns = self.wall_ns()
        columns = self.reader.read(messages, now_wall_ns)
        if columns.whole_batches:
            self._submit_at(messages, columns.whole_batches)
            return
        if columns.rejections:
            self._reject_some(columns, columns.rejections)
            if rest := [message for index, message in enumerate(messages) if index not in columns.rejections]:
                self._submit_piece(rest)
            return
        if columns.producer_request is not None:
            self._answer_producer(columns.producer_request, columns.publishers)
            return
        if columns.ids and (repeats := self._repeats(columns, now_wall_ns)):
            self._submit_without_repeats(repeats, columns, messages)
            return
        if columns.rejections_after_sequence and not self._forbids_only_stored(columns):
            self._reject_by_settings(columns, messages)
            return
        if columns.ids and self._has_no_room(columns, messages, now_wall_ns):
            return
        sequences = None
        if columns.claim is not None and (sequences := self._check_producer_batch(columns.claim, columns)) is None:
            return
        replies = columns.publishers.replies
        plain_count = replies.count(b"")
        acks_are_full = plain_count < len(messages) and self._waiting_count + len(messages) > self._config.ingest_queue_records
        if 0 < plain_count < len(messages) and (acks_are_full or not self._replica.takes_publishes()):
            for run in runs_of(messages, replies):
                self._submit_piece(run)
            return
        if acks_are_full:
            self._reject_for_overload(messages)
            return
        conditional = bool(columns.expected or columns.of_others)
        if conditional and not self._meets_conditions(columns, messages):
            return
        if (
            conditional and len(messages) > 1 and not self._replica.takes_publishes()
        ):  # messages with a condition are submitted alone
            self._submit_at(messages, sorted(columns.expected.keys() | columns.of_others.keys()))
            return
        if self.reader.quota is not None and self._over_quota(self.reader.quota, columns, messages, sequences, now_wall_ns):
            return
        body = self._encode_body(columns, messages)
        if body is None:
            return
        token = self._next_token
        self._next_token += 1
        has_sequence = any(other.sequence is not None for other in columns.of_others.values())
        pending = PendingBatch(
            body, columns.publishers, columns.ids, has_sequence, sequences=sequences, arrived_ns=self.counters.times.now_ns()
        )
        self._tokens[token] = pending
        if columns.ids:
            self._log_state.ids.reserve_ids(columns.ids.values())
            for index, message_id in columns.ids.items():
                self._pending_ids[message_id] = pending, index
        self._feed(
            PublishesReceived(
                token=token,
                record_count=body.record_count,
                size_bytes=body.size_bytes,
                received_wall_ns=now_wall_ns,
                plain_count=columns.publishers.plain_count,
                conditional=conditional or sequences is not None,
            )
        )

    # ---- producers -----------------------------------------------------------------------------------------------------
    def _answer_producer(self, request: ProducerRequest, publishers: Publishers) -> None:
        """Answer the request of a process to continue a producer with the producer's epoch and next sequence.

        The answer is sent when the state of the producer is committed.
        """
        if request.acked is not None and self._log_state.has_lost(*request.acked):
            self._reject_publishers(publishers, RECORDS_LOST)
            return
        grant = self._registry.ask(request)
        if isinstance(grant, Finding):
            self._reject_publishers(publishers, self._registry.why_not(grant))
            return
        envelope_of(publishers).producer = grant.as_pb
        self._await_stored_ack(StoredId(-1, grant.last_offset), publishers)

    def _check_producer_batch(self, claim: Claim, columns: MessageColumns) -> ProducerSequences | None:
        """Check a producer's batch. Return the sequence numbers of the records to append, and leave only these in ``columns``.

        None: nothing is appended. The publisher gets its answer: an ack for a duplicate, or a rejection. ``claim``: fields of
        the producer.
        """
        published, publishers = columns.batch, columns.publishers
        assert published is not None
        result = self._registry.check_batch(claim, published.columns)
        envelope = envelope_of(publishers)
        if result.finding is Finding.DUPLICATE:
            self.counters.duplicates += claim.record_count
            envelope.known_records = claim.record_count
            state = self._log_state.producers.state_of(claim.producer_id)
            assert state is not None
            self._await_stored_ack(StoredId(result.offset, last_offset_of(state)), publishers)
            return None
        if result.finding is not Finding.APPEND:
            envelope.producer = client_pb2.ProducerState(nextSequence=result.next_sequence)
            self._reject_publishers(publishers, self._registry.why_not(result.finding))
            return None
        known = envelope.known_records = result.known
        if known:
            self.counters.duplicates += known
            body = body_after(published, known, self.reader.subject, self.reader.codec)
            columns.batch, publishers.batch_records = published._replace(body=body), body.record_count
            columns.ids = {index - known: message_id for index, message_id in columns.ids.items() if index >= known}
        sequence = after(claim.base_sequence, known)
        origin = (claim.name, claim.position, claim.partitioning)
        return ProducerSequences(claim.producer_id, claim.epoch, sequence, published.columns, known, *origin)

    def _forbids_only_stored(self, columns: MessageColumns) -> bool:
        """Return whether the stream's settings forbid only those records of a producer's batch that are stored already.

        If a part of the batch is stored and the settings forbid the rest, the rejection contains the expected sequence.
        """
        if columns.claim is None or columns.batch is None:
            return False
        result = self._registry.check_batch(columns.claim, columns.batch.columns)
        if result.finding is Finding.DUPLICATE:
            return True
        if result.finding is not Finding.APPEND or not result.known:
            return False
        most = self.reader.max_message_bytes
        is_bound = not self.reader.wants_offsets or bool(columns.expected)
        if is_bound and (not most or largest_record_bytes(columns.batch.columns, result.known) <= most):
            return True
        envelope_of(columns.publishers).producer = client_pb2.ProducerState(nextSequence=result.next_sequence)
        return False

    def _is_known(self, claim: Claim, columns: MessageColumns) -> bool:
        assert columns.batch is not None
        return self._registry.check_batch(claim, columns.batch.columns).known > 0

    def _await_stored_ack(self, stored: StoredId, publishers: Publishers) -> None:
        """Send the ack of the record ``stored`` also to this publisher, which repeated the record."""
        if self._may_wait(publishers):
            self._acks.add_again(stored, publishers)
            self._feed(DuplicateReceived(last_offset=stored.last_offset))

    def _may_wait(self, publishers: Publishers) -> bool:
        """Return whether the publisher of a repeated record gets an answer, and there is room for it.

        Above the limit of waiting publishers there is no answer. The publisher gets its ack when it sends the message again.
        """
        return publishers.wanted is not AckPolicy.NONE and self._waiting_count < self._config.ingest_queue_records

    @property
    def _waiting_count(self) -> int:
        """Number of publishers that wait for an ack."""
        return self._acks.count + self._repeat_count

    def _has_no_room(self, columns: MessageColumns, messages: list[RawMessage], now_wall_ns: int) -> bool:
        """Return whether there is no memory for the new message ids of a batch. If so, handle the messages.

        Messages without an id are submitted separately. A message with a new id is rejected, or dropped if it may be stored
        already.
        """
        ids = self._log_state.ids
        if not (why := ids.lacks(columns.ids.values(), now_wall_ns)):
            return False
        if columns.claim is not None and self._is_known(columns.claim, columns):
            return False  # a rejected message must never be stored [A2]
        if columns.batch is None and len(columns.ids) < len(messages):
            self._submit_piece([message for index, message in enumerate(messages) if index not in columns.ids])
            self._submit_piece([messages[index] for index in columns.ids])
            return True
        ids.share.count_rejections(columns.publishers.record_count)
        if not ids.is_blind(now_wall_ns):
            self._reject_publishers(columns.publishers, Rejection(RejectReason.OVERLOADED, why, (503, 10023)))
        else:  # the message may be stored, so it must not be rejected [A2]
            self.counters.drop(IDS_LOST, columns.publishers.record_count)
        return True

    def _repeats(self, columns: MessageColumns, now_wall_ns: int) -> dict[int, StoredId | None]:
        """Return record index -> stored record, for the messages whose message id is already known.

        None as value: the other message is in progress, or is earlier in this batch.
        """
        repeats: dict[int, StoredId | None] = {}
        seen: set[bytes] = set()
        if not self._log_state.ids.window_ns or columns.batch is not None:
            return repeats  # a whole batch is stored unchanged. Its expected offset makes sure that it is stored once
        for index, message_id in columns.ids.items():
            if self.reader.is_command(columns, index):
                continue
            stored = None if message_id in self._pending_ids else self._log_state.ids.find(message_id, now_wall_ns)
            if stored is not None or message_id in seen or message_id in self._pending_ids:
                repeats[index] = stored
            seen.add(message_id)
        return repeats

    def _submit_without_repeats(
        self, repeats: dict[int, StoredId | None], columns: MessageColumns, messages: list[RawMessage]
    ) -> None:
        """Submit the messages that repeat no other one. Publishers of the others get the acks of the records that they repeat.

        ``repeats``: result of ``_repeats``. A message that repeats another one of these messages is checked after it, because
        that one may be rejected.
        """
        pending_ids, find = self._pending_ids, self._log_state.ids.find
        repeated_here = [i for i, stored in repeats.items() if stored is None and columns.ids[i] not in pending_ids]
        here = set(repeated_here)
        self._answer_repeats({index: stored for index, stored in repeats.items() if index not in here}, columns)
        if fresh := [message for index, message in enumerate(messages) if index not in repeats]:
            self._submit_piece(fresh)
        now_wall_ns = self.wall_ns()
        known: dict[int, StoredId | None] = {}
        for index in repeated_here:
            message_id = columns.ids[index]
            stored = None if message_id in pending_ids else find(message_id, now_wall_ns)
            if stored is not None or message_id in pending_ids:
                known[index] = stored
            else:
                self._submit_piece([messages[index]])
        self._answer_repeats(known, columns)

    def _answer_repeats(self, repeats: Mapping[int, StoredId | None], columns: MessageColumns) -> None:
        """Let each publisher of a repeated message wait for the ack of the record that it repeats.

        ``repeats``: result of ``_repeats``. All these records are stored or in progress.
        """
        lowest = None
        for index, stored in repeats.items():
            self.counters.duplicates += 1
            publishers = columns.publishers.only(index)
            if not self._may_wait(publishers):
                continue
            if stored is None:
                pending, first = self._pending_ids[columns.ids[index]]
                pending.repeats.append((first, publishers))
                self._repeat_count += 1
            else:
                self._acks.add_again(stored, publishers)
                lowest = stored.last_offset if lowest is None else min(lowest, stored.last_offset)
        if lowest is not None:
            self._feed(DuplicateReceived(last_offset=lowest))

    def _encode_body(self, columns: MessageColumns, messages: list[RawMessage]) -> Body | None:
        """Return the encoded body of the batch [A10]. None: it is too large for a log.

        Then several messages are submitted in halves, and a single one is rejected.
        """
        if columns.batch is not None:
            return columns.batch.body
        try:
            return encode_body(
                columns.values,
                keys=columns.keys,
                headers=columns.headers,
                subjects=columns.subjects,
                replies=columns.replies,
                codec=self.reader.codec,
            )
        except BatchTooLargeError as error:
            if len(messages) > 1:
                call_with_halves(messages, self._submit_piece)
            else:
                detail = (
                    f"The stored record has {error.size_bytes} bytes, the maximum is {MAX_BATCH_BYTES}. Send a smaller message."
                )
                self._reject_publishers(columns.publishers, Rejection(RejectReason.TOO_LARGE, detail))
            return None

    def _meets_conditions(self, columns: MessageColumns, messages: list[RawMessage]) -> bool:
        """Return whether the conditions of all messages hold. If not, reject the messages or submit them in parts.

        The result of a condition depends on the messages before it, which may be rejected for other reasons. So a message whose
        condition does not hold is checked after all messages before it. Consecutive ones are checked together, because nothing
        is stored between them.
        """
        end_offset = self._log.log_end_offset
        unmet = unmet_conditions(columns, self._log_state, end_offset)
        if not unmet:
            return True
        if len(unmet) == len(messages):
            self._reject_or_wait(columns, messages, unmet)
            return False
        for _, run in groupby(range(len(messages)), key=unmet.__contains__):
            self._submit_piece([messages[index] for index in run])
        return False

    def _reject_or_wait(self, columns: MessageColumns, messages: list[RawMessage], unmet: Mapping[int, Rejection]) -> None:
        """Reject messages whose condition does not hold. Let those wait whose subject is not in the index yet.

        ``unmet``: record index -> rejection.
        """
        waits = set[int]()
        if not self._left and self._log_state.lacks:
            for index, rejection in unmet.items():
                if rejection is UNINDEXED:
                    key = index_key(columns.of_others[index], columns.subjects[index])
                    if self._log_state.index_wait.add(messages[index], key, lambda message: self._check_messages([message])):
                        waits.add(index)
        self._reject_some(columns, {index: rejection for index, rejection in unmet.items() if index not in waits})

    def _reject_by_settings(self, columns: MessageColumns, messages: list[RawMessage]) -> None:
        """Reject messages that the settings of the stream forbid, and submit the others. The conditions of messages are checked
        first.
        """
        conditional = columns.expected.keys() | columns.of_others.keys()
        rejections = columns.rejections_after_sequence
        if len(messages) == 1:
            unmet = unmet_conditions(columns, self._log_state, self._log.log_end_offset, of_ids=False)
            self._reject_or_wait(columns, messages, unmet or rejections)
            return
        plain = {index: why for index, why in rejections.items() if index not in conditional}
        self._reject_some(columns, plain)
        left = [index for index in range(len(messages)) if index not in plain]
        alone = [place for place, index in enumerate(left) if index in rejections]
        self._submit_at([messages[index] for index in left], alone)

    def _over_quota(
        self,
        quota: Quota,
        columns: MessageColumns,
        messages: list[RawMessage],
        sequences: ProducerSequences | None,
        now_ns: int,
    ) -> bool:
        """Return whether some messages exceed the quota of the stream. If so, reject these and submit the others [A2].

        ``sequences``: sequence numbers of a producer's batch. ``now_ns``: monotonic time.
        """
        publishers = columns.publishers
        has_backlog = self._backlog is not None and self._backlog.fresh_left > 0
        forced = has_backlog or (sequences is not None and sequences.first > 0)
        waits_ms = quota.charge(messages, publishers.batch_records, now_ns, forced=forced)
        if waits_ms is None:
            return False
        over = [index for index, wait_ms in enumerate(waits_ms) if wait_ms]
        refused, rejection = publishers.only(*over), Rejection(RejectReason.QUOTA, "")
        self.counters.throttled[quota.scope] += refused.record_count
        self.counters.not_stored(refused, rejection.reason)
        self._reject_or_delay(refused, rejection, [waits_ms[index] for index in over])
        if within := [message for message, wait_ms in zip(messages, waits_ms, strict=True) if not wait_ms]:
            self._submit_piece(within)
        return True

    def _find_repeats(self, columns: MessageColumns) -> dict[int, StoredId | None] | None:
        """Return the messages with a known message id, as ``_repeats`` does. None: a part of this producer's batch is already
        stored.
        """
        if columns.claim is not None and self._is_known(columns.claim, columns):
            return None
        return self._repeats(columns, self.wall_ns()) if columns.ids else {}

    def _record_dropped(self, count: int) -> None:
        self.counters.drop(INGEST_OVERFLOW, count)

    def _reject_some(self, columns: MessageColumns, rejections: Mapping[int, Rejection]) -> None:
        for why, run in groupby(rejections.items(), key=itemgetter(1)):
            indices = [index for index, _ in run]
            whole = len(indices) == len(columns.values)
            self._reject_publishers(columns.publishers if whole else columns.publishers.only(*indices), why)

    def _reject_publishers(self, publishers: Publishers, rejection: Rejection) -> None:
        self.counters.not_stored(publishers, rejection.reason)
        # Another node may lead now and have stored the message [A2]. No node stores a message for another stream or partition.
        if rejection.reason is RejectReason.WRONG_STREAM or self._may_reject():
            self._acks.reject(publishers, rejection)

    def encode_batch(self, effect: AppendBatch) -> bytes:
        """Return the record batch of the publishes under ``effect.token``. The caller appends it, then calls ``appended`` or
        ``reject``.
        """
        pending = self._tokens[effect.token]
        by = pending.sequences or _NO_PRODUCER
        return add_header(
            pending.body,
            base_offset=effect.base_offset,
            leader_epoch=effect.leader_epoch,
            timestamp_ns=effect.timestamp_ns,
            producer_id=by.producer_id,
            producer_epoch=by.epoch,
            base_sequence=by.base_sequence,
        )

    def appended(self, effect: AppendBatch, batch: bytes) -> None:
        pending = self._remove_pending(effect.token)
        assert pending is not None
        base_offset, record_count = effect.base_offset, pending.body.record_count
        last_offset = base_offset + record_count - 1
        self._acks.add(base_offset, pending.publishers, pending.arrived_ns)
        ids = {base_offset + index: message_id for index, message_id in pending.ids.items()}
        new = NewBatch(
            base_offset, last_offset, effect.timestamp_ns, record_count, ids, pending.sequences, batch, pending.has_conditions
        )
        self._log_state.appended(new, len(batch))
        for index, publishers in pending.repeats:
            self._acks.add_again(StoredId(base_offset + index, last_offset), publishers)
        self.counters.records += record_count
        self.counters.size_bytes += len(batch)
        self.counters.batches += 1
        self.counters.times.appended(last_offset, record_count, pending.arrived_ns)

    def committed(self, high_watermark: int) -> None:
        self.counters.times.committed(high_watermark)

    def drop(self, token: int, reason: RejectReason | None = None) -> None:
        """Drop the publishes under ``token``. Their publishers get no answer.

        ``reason``: name of the counter for publishes without a reply subject. None: nothing is counted.
        """
        pending = self._remove_pending(token)
        if pending is not None and reason is not None:
            self.counters.drop(reason.name.lower(), pending.publishers.plain_count)
            self.counters.overloaded += pending.body.record_count if reason is RejectReason.OVERLOADED else 0

    def reject(self, token: int, reason: RejectReason, leader: str, leader_epoch: int, epoch: int = 0) -> None:
        """Reject the publishes under ``token`` with a negative ack.

        It contains the leader, its LeaderEpoch and the Epoch of the partition, so that the publisher knows where to retry.
        """
        pending = self._remove_pending(token)
        if pending is not None:
            self.counters.not_stored(pending.publishers, reason)
            for publishers in (pending.publishers, *(publishers for _, publishers in pending.repeats)):
                self._acks.reject(publishers, Rejection(reason, ""), leader, leader_epoch, epoch)

    def _remove_pending(self, token: int) -> PendingBatch | None:
        pending = self._tokens.pop(token, None)
        if pending is not None and pending.ids:
            self._repeat_count -= len(pending.repeats)
            self._log_state.ids.release_ids(pending.ids.values())
            for message_id in pending.ids.values():
                if self._pending_ids.get(message_id, (None, 0))[0] is pending:
                    del self._pending_ids[message_id]
        return pending
