"""Acks: tracks which publisher waits for which offset, and sends the answers [A1, A2, A5].

A plain NATS message with a reply inbox gets a JetStream answer (JSON). An enveloped ``Message`` gets an Ack envelope. A
node answers only on inbox subjects, so that a publisher cannot make it publish on any other subject. Waiting publishers
are stored per batch in offset order. Consecutive messages of one inbox may get one Ack for all of them, a *run*
(``liftpy/core/wire/envelope.py``). Each rejection is answered separately.

The module also sends recent acks again after a reconnect, because they may have been lost with the NATS connection. It
stores the newest acks for the time of a lease, limited in bytes.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count, groupby
from typing import Protocol

from liftpy.config import AckPolicy
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.instruments import PublishTimes
from liftpy.core.publish.dedup_window import StoredId
from liftpy.core.publish.jetstream_headers import stream_of
from liftpy.core.publish.memory_budget import LEAST_WAIT_MS
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.envelope import POLICIES, run_end
from liftpy.core.wire.rejections import Rejection, RejectReason

JETSTREAM_ERRORS: dict[RejectReason, tuple[int, int, str]] = {
    RejectReason.UNKNOWN: (500, 10077, "the message could not be stored"),
    RejectReason.INCORRECT_OFFSET: (400, 10071, "wrong last sequence"),
    RejectReason.TOO_LARGE: (400, 10054, "message size exceeds maximum allowed"),
    RejectReason.READ_ONLY: (400, 10077, "the stream is read-only"),
    RejectReason.PAUSED: (503, 10008, "the stream is paused: publish again when it is resumed"),
    RejectReason.BELOW_MIN_ISR: (503, 10008, "too few in-sync replicas"),
    RejectReason.NO_SPACE: (503, 10047, "insufficient storage resources available"),
    RejectReason.NOT_LEADER: (503, 10008, "this node does not lead the partition"),
    RejectReason.MALFORMED: (400, 10003, "bad request"),
    RejectReason.OVERLOADED: (429, 10167, "too many requests"),
    RejectReason.WRONG_STREAM: (400, 10060, "expected stream does not match"),
    RejectReason.UNSUPPORTED: (400, 10003, "bad request"),
    RejectReason.PRODUCER_FENCED: (400, 10071, "a newer process uses this producer id"),
    RejectReason.OUT_OF_ORDER: (400, 10071, "earlier sequences of this producer are missing"),
    RejectReason.DIVERGED_PRODUCER: (400, 10071, "other records are stored with the sequences of this batch"),
    RejectReason.UNKNOWN_PRODUCER: (400, 10071, "this leader does not know the producer"),
    RejectReason.PRODUCER_CONFLICT: (400, 10071, "another producer has this producer id"),
    RejectReason.RECORDS_LOST: (400, 10071, "acknowledged records of the producer are lost"),
    RejectReason.QUOTA: (429, 10167, "the stream's quota is used up: too many requests"),
}
"""Reason -> (code, err_code, description) for a JetStream client. The err_codes are those of nats-server."""

MAX_DELAYED_REJECTIONS = 1000
"""Maximum number of batches with delayed rejections. That is a few seconds of batches."""


class AckShell(Protocol):
    """Interface of the connection that sends the answers of ``PendingAcks``."""

    def send_lines(self, lines: Sequence[bytes]) -> None:
        """Send complete ``PUB`` lines of the NATS protocol, each with its payload."""


@dataclass(slots=True)
class Envelope:
    """Fields of an enveloped publish that are needed for its Ack."""

    correlation_id: str
    ack_inbox: str
    subject: str
    """Subject of the message, without bytes that are not UTF-8."""
    policy: AckPolicy
    received_wall_ns: int
    record_count: int = 0
    """Number of records of a BatchPublish. 0: the message has one record."""
    producer: client_pb2.ProducerState | None = None
    """Part of the ack for the producer of the batch. None: no producer."""
    known_records: int = 0
    """Number of records at the start of a producer's batch that were stored before."""
    takes_runs: bool = False
    """True if several messages with numbered replies share this envelope, so that one Ack may answer many of them."""


@dataclass(slots=True)
class Publishers:
    """The publishers of the messages in one batch, in record order.

    ``replies``: reply subject of each, b"" for none. ``envelopes``: one per enveloped message. None: all messages are plain
    NATS messages.
    """

    policy: AckPolicy
    replies: Sequence[bytes]
    envelopes: Sequence[Envelope | None] | None = None
    policies: Sequence[AckPolicy] | None = None
    """Ack policy of each record. None: all records have ``policy``."""
    batch_records: int = 0
    """Number of records if all came in one message, which gets one answer. 0: each record came in its own message."""

    @property
    def record_count(self) -> int:
        return self.batch_records or len(self.replies)

    @property
    def plain_count(self) -> int:
        """Number of records without a reply subject, whose publishers get no answer."""
        plain = self.replies.count(b"")
        return plain * self.batch_records if self.batch_records else plain

    def only(self, *indices: int) -> Publishers:
        envelopes = None if self.envelopes is None else [self.envelopes[index] for index in indices]
        policies = None if self.policies is None else [self.policies[index] for index in indices]
        return Publishers(self.policy, [self.replies[index] for index in indices], envelopes, policies, self.batch_records)

    @property
    def wanted(self) -> AckPolicy:
        """Ack policy of the publisher, if there is only one. NONE: it expects no answer."""
        own = self.policy if self.policies is None else self.policies[0]
        return own if self.replies[0] else AckPolicy.NONE


def envelope_of(publishers: Publishers) -> Envelope:
    """Return the envelope of the publisher of a batch. ``publishers`` has only this one."""
    envelope = publishers.envelopes and publishers.envelopes[0]
    assert envelope
    return envelope


@dataclass(slots=True)
class _UnackedBatch:
    """A stored batch whose publishers wait for acks."""

    base_offset: int
    last_offset: int
    """Last offset of the batch, inclusive."""
    publishers: Publishers
    arrived_ns: int = 0


_RepeatedPublish = tuple[int, int, int, Publishers, bool]
"""A publisher that repeated a stored message and waits for its ack.

(Last offset of the batch, sequence number, offset of the record, publisher, True if the ack says ``duplicate``).
"""


class PendingAcks:
    """Publishers of one partition that wait for acks. It sends their acks and rejections.

    ``count``: number of pending acks. The caller limits it.
    """

    __slots__ = (
        "_again", "_data_subject", "_delayed_rejections", "_json_prefix", "_number", "_shell", "_shown_stream",
        "_waiting", "count", "key", "times",
    )  # fmt: skip

    def __init__(self, shell: AckShell, key: PartitionKey, data_subject: str, times: PublishTimes | None = None) -> None:
        self._shell = shell
        self.times = times or PublishTimes()
        self.key = key
        self._data_subject = data_subject
        self._waiting: defaultdict[AckPolicy, list[_UnackedBatch]] = defaultdict(list)
        self._again: defaultdict[AckPolicy, list[_RepeatedPublish]] = defaultdict(list)
        """Heaps of publishers that repeated a stored message, one per ack policy."""
        self._delayed_rejections: list[tuple[Publishers, Rejection, Sequence[int] | int]] = []
        """Delayed rejections. A leader without a lease must not send them yet."""
        self._number = count()
        self._shown_stream = stream_of(key.stream, key.partition)
        self._json_prefix = b'{"stream":"%b","seq":' % self._shown_stream.encode()
        self.count = 0

    def add(self, base_offset: int, publishers: Publishers, arrived_ns: int = 0) -> None:
        """Add the publishers of a batch that was appended at ``base_offset``. They wait for their acks.

        ``arrived_ns``: approximate monotonic time at which the publishes arrived.
        """
        last_offset = base_offset + publishers.record_count - 1
        if publishers.policies is None:
            wanted = {publishers.policy} - {AckPolicy.NONE} if any(publishers.replies) else set()
        elif all(publishers.replies):
            wanted = {*publishers.policies} - {AckPolicy.NONE}
        else:
            wanted = {p for p, r in zip(publishers.policies, publishers.replies, strict=True) if r and p is not AckPolicy.NONE}
        for policy in wanted:
            self._waiting[policy].append(_UnackedBatch(base_offset, last_offset, publishers, arrived_ns))
            self.count += len(publishers.replies)

    def since_ns(self) -> int:
        """Return the arrival time of the oldest publish that waits for its ack, in monotonic ns. 0: none waits, or it is unknown."""
        oldest_ns = 0
        for waiting in self._waiting.values():
            if waiting and (not oldest_ns or waiting[0].arrived_ns < oldest_ns):
                oldest_ns = waiting[0].arrived_ns
        return oldest_ns

    def add_again(self, stored: StoredId, publishers: Publishers, *, duplicate: bool = True) -> None:
        """Add a publisher whose message was not stored, because the record ``stored`` has the same message id.

        It gets its ack together with the record's own publisher. ``duplicate``: the value of the field in the ack. It is False
        if the previous leader stored the record and may not have answered.
        """
        if publishers.wanted is not AckPolicy.NONE:
            again = (stored.last_offset, next(self._number), stored.offset, publishers, duplicate)
            heappush(self._again[publishers.wanted], again)
            self.count += 1

    def release(self, policy: AckPolicy, through_offset: int, leader_epoch: int, now_wall_ns: int) -> None:
        """Send the acks to all publishers with the ack policy ``policy`` and offsets up to ``through_offset`` (inclusive).

        ``leader_epoch``: LeaderEpoch of this leader. ``now_wall_ns``: wall clock, in nanoseconds since 1970. Acks contain both.
        """
        lines: list[bytes] = []
        waiting = self._waiting[policy]
        answered_count = 0
        for entry in waiting:
            if entry.last_offset > through_offset:
                break  # a batch is committed as a whole [D23]
            answered_count += 1
            self.count -= len(entry.publishers.replies)
            before = len(lines)
            self._answer(entry, policy, leader_epoch, now_wall_ns, lines)
            if len(lines) > before:
                self.times.answered(policy, entry.arrived_ns, len(lines) - before)
        del waiting[:answered_count]
        again = self._again[policy]
        while again and again[0][0] <= through_offset:
            _, _, offset, publishers, duplicate = heappop(again)
            self.count -= 1
            self._answer_repeated(offset, publishers, leader_epoch, now_wall_ns, lines, duplicate=duplicate)
        if lines:
            self._shell.send_lines(lines)

    def _answer(self, entry: _UnackedBatch, policy: AckPolicy, leader_epoch: int, now_wall_ns: int, lines: list[bytes]) -> None:
        publishers = entry.publishers
        prefix = self._json_prefix
        seq = entry.base_offset + 1  # JetStream counts from 1
        if publishers.envelopes is None and publishers.policies is None:
            for reply in publishers.replies:
                if reply:
                    body = b"%b%d}" % (prefix, seq)
                    lines.append(b"PUB %b  %d\r\n%b\r\n" % (reply, len(body), body))
                seq += 1
            return
        how_many = len(publishers.replies)
        envelopes = publishers.envelopes or [None] * how_many
        policies = publishers.policies or [publishers.policy] * how_many
        end = 0
        for (_, own), alike in groupby(zip(map(id, envelopes), policies, strict=True)):
            start, end = end, end + sum(1 for _ in alike)
            if own is policy:
                self._answer_alike(entry, start, end, envelopes[start], leader_epoch, now_wall_ns, lines)

    def _answer_alike(
        self, entry: _UnackedBatch, start: int, end: int, envelope: Envelope | None, leader_epoch: int, now_wall_ns: int,
        lines: list[bytes],
    ) -> None:  # fmt: skip
        """Append to ``lines`` the acks for the messages with indexes ``start`` to ``end`` (exclusive) of one batch.

        All of them have ``envelope``. None: they are plain NATS messages. ``entry``: the batch.
        """
        replies, index = entry.publishers.replies, start
        while index < end:
            reply, offset, length = replies[index], entry.base_offset + index, 1
            if reply:
                if envelope is None:
                    body = b"%b%d}" % (self._json_prefix, offset + 1)
                else:
                    length = run_end(replies, index, end) - index if envelope.takes_runs else 1
                    body = self._ack(envelope, offset, leader_epoch, now_wall_ns, run=length)
                lines.append(b"PUB %b  %d\r\n%b\r\n" % (reply, len(body), body))
            index += length

    def _answer_repeated(
        self, offset: int, publishers: Publishers, leader_epoch: int, now_wall_ns: int, lines: list[bytes], *, duplicate: bool
    ) -> None:
        reply, envelope = publishers.replies[0], publishers.envelopes and publishers.envelopes[0]
        if envelope:
            body = self._ack(envelope, offset, leader_epoch, now_wall_ns, duplicate=duplicate)
        else:
            body = b"%b%d%b}" % (self._json_prefix, offset + 1, b',"duplicate":true' if duplicate else b"")
        lines.append(b"PUB %b  %d\r\n%b\r\n" % (reply, len(body), body))

    def reject(
        self, publishers: Publishers, rejection: Rejection, leader: str = "", leader_epoch: int = 0, epoch: int = 0,
        waits_ms: Sequence[int] | int = 0,
    ) -> None:  # fmt: skip
        """Send a negative ack to all publishers of a batch that was not appended [A2].

        Args:
            publishers: Publishers of the batch.
            rejection: Reason and text of the rejection.
            leader: Node id of the leader. '': it is not known.
            leader_epoch: LeaderEpoch of the leader.
            epoch: Epoch of the partition.
            waits_ms: Time after which to retry, in milliseconds. It is one value for all or one per publisher. 0: at once.
        """
        lines: list[bytes] = []
        how_many = len(publishers.replies)
        plain = self._json_error(rejection)
        if isinstance(waits_ms, int):
            waits_ms = waits_ms or (LEAST_WAIT_MS if rejection.reason is RejectReason.OVERLOADED else 0)
            if publishers.envelopes is None:
                self._reject_alike(
                    publishers.replies, b'%b,"retry_after_ms":%d}' % (plain[:-1], waits_ms) if waits_ms else plain
                )
                return
            waits_ms = [waits_ms] * how_many
        envelopes, alike = publishers.envelopes or [None] * how_many, None
        for reply, envelope, wait_ms in zip(publishers.replies, envelopes, waits_ms, strict=True):
            if reply:
                if (envelope and id(envelope), wait_ms) != alike:
                    alike = envelope and id(envelope), wait_ms
                    if envelope is not None:
                        body = self._negative_ack(envelope, rejection, leader, leader_epoch, epoch, wait_ms)
                    else:
                        body = b'%b,"retry_after_ms":%d}' % (plain[:-1], wait_ms) if wait_ms else plain
                    rest = b"  %d\r\n%b\r\n" % (len(body), body)
                lines.append(b"PUB %b%b" % (reply, rest))
        if lines:
            self._shell.send_lines(lines)

    def _reject_alike(self, replies: Sequence[bytes], body: bytes) -> None:
        rest = b"  %d\r\n%b\r\n" % (len(body), body)
        if lines := [b"PUB %b%b" % (reply, rest) for reply in replies if reply]:
            self._shell.send_lines(lines)

    def reject_or_delay(
        self, publishers: Publishers, rejection: Rejection, waits_ms: Sequence[int] | int = 0, *, now: bool, later: bool
    ) -> None:
        """Reject publishers now if ``now`` is True.

        If ``now`` is False and ``later`` is True, delay the rejection until ``send_delayed_rejections``. In all other cases,
        and above ``MAX_DELAYED_REJECTIONS``, send nothing. ``waits_ms``: as in ``reject``.
        """
        if now:
            self.send_delayed_rejections()
            self.reject(publishers, rejection, waits_ms=waits_ms)
        elif later and len(self._delayed_rejections) < MAX_DELAYED_REJECTIONS:
            self._delayed_rejections.append((publishers, rejection, waits_ms))

    @property
    def has_delayed_rejections(self) -> bool:
        return bool(self._delayed_rejections)

    def send_delayed_rejections(self, *, may: bool = True) -> None:
        """Send the delayed rejections if ``may`` is True, because the leader may send negative acks now. Otherwise drop them."""
        untold, self._delayed_rejections = self._delayed_rejections, []
        for publishers, rejection, waits_ms in untold if may else ():
            self.reject(publishers, rejection, waits_ms=waits_ms)

    def drop(self) -> None:
        """Drop all waiting publishers without an answer. Their records may be stored or not."""
        self._delayed_rejections.clear()
        for waiting in self._waiting.values():
            waiting.clear()
        for again in self._again.values():
            again.clear()
        self.count = 0

    def _ack(
        self, envelope: Envelope, offset: int, leader_epoch: int, now_wall_ns: int, *, duplicate: bool = False, run: int = 1
    ) -> bytes:
        ack = client_pb2.Ack(
            stream=self.key.stream,
            streamUid=self.key.uid,
            partition=self.key.partition,
            partitionSubject=self._data_subject,
            msgSubject=envelope.subject,
            offset=offset,
            ackInbox=envelope.ack_inbox,
            correlationId=envelope.correlation_id,
            ackPolicy=POLICIES[envelope.policy],
            receptionTimestamp=envelope.received_wall_ns,
            commitTimestamp=now_wall_ns,
            leaderEpoch=leader_epoch,
            recordCount=run if run > 1 else envelope.record_count,
            duplicate=duplicate,
            producer=envelope.producer,
            knownRecords=envelope.known_records,
        )
        return frames.encode(ack)

    def _negative_ack(
        self, envelope: Envelope, rejection: Rejection, leader: str, leader_epoch: int, epoch: int, wait_ms: int
    ) -> bytes:
        ack = client_pb2.Ack(
            stream=self.key.stream,
            streamUid=self.key.uid,
            partition=self.key.partition,
            partitionSubject=self._data_subject,
            msgSubject=envelope.subject,
            offset=-1,
            ackInbox=envelope.ack_inbox,
            correlationId=envelope.correlation_id,
            ackPolicy=POLICIES[envelope.policy],
            receptionTimestamp=envelope.received_wall_ns,
            ackError=rejection.reason.value,  # type: ignore[arg-type]
            leaderEpoch=leader_epoch,
            leader=leader,
            epoch=epoch,
            detail=rejection.detail,
            producer=envelope.producer,
            retryAfterMs=wait_ms,
        )
        return frames.encode(ack)

    def _json_error(self, rejection: Rejection) -> bytes:
        code, err_code, description = JETSTREAM_ERRORS[rejection.reason]
        if rejection.jetstream is not None:
            code, err_code = rejection.jetstream
        error = {"code": code, "err_code": err_code, "description": rejection.detail or description}
        return json.dumps({"stream": self._shown_stream, "seq": 0, "error": error}).encode()


UNSURE_NS = 1_500_000_000
UNSURE_BYTES = 2 * 1024 * 1024


class AckResendBuffer:
    """Recent acks of one connection, which are sent again after a reconnect because they may have been lost."""

    def __init__(self, bound_bytes: int = UNSURE_BYTES, age_ns: int = UNSURE_NS) -> None:
        self._bound_bytes = bound_bytes
        self._age_ns = age_ns
        self._written: deque[tuple[int, bytes]] = deque()
        self.size_bytes = 0

    def note(self, lines: bytes, now_ns: int) -> None:
        """Store the protocol lines of acks that were written to the connection at ``now_ns`` (monotonic)."""
        self._written.append((now_ns, lines))
        self.size_bytes += len(lines)
        self._forget(now_ns)

    def again(self, lost_ns: int) -> bytes:
        """Remove and return the acks that were written to the connection shortly before it was lost at ``lost_ns`` (monotonic)."""
        self._forget(lost_ns)
        joined = b"".join(lines for _, lines in self._written)
        self._written.clear()
        self.size_bytes = 0
        return joined

    def _forget(self, now_ns: int) -> None:
        written = self._written
        while written and (self.size_bytes > self._bound_bytes or written[0][0] < now_ns - self._age_ns):
            self.size_bytes -= len(written.popleft()[1])
