"""Applications of a simulated cluster: publishers that count their answers, readers that check everything.

- SimContender expects the last sequence of a subject with each message, next to others that do the same [A7].
- SimProducer numbers its records with the client's own code, is killed, and returns with the same id [A3, A4].
- SimRepeater repeats each message with its ``Nats-Msg-Id`` until it is acked [A3].
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from liftpy.client.encode_publish import envelope_of
from liftpy.client.partition_queue import BatchRejection, BatchResult, PartitionQueue, ProducerBatch
from liftpy.client.progress import NotServedError, ReadProgress
from liftpy.config import AckPolicy
from liftpy.core.base.invariants import check
from liftpy.core.publish.digest import RollingDigest
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import parse_batch
from liftpy.core.wire.envelope import split_numbered_reply
from liftpy.core.wire.producer_note import SourcePosition
from liftpy.errors import DamagedBatchError, LiftError, LogTruncatedError, OffsetOutOfRangeError, ProtocolError
from tests.ack_runs import answered_by
from tests.simulation.replica.clock import MS, S
from tests.simulation.replica.compaction_checks import read_all_keys
from tests.simulation.replica.messages import (
    DELETED_TO,
    Ack,
    AckFrame,
    Message,
    Publish,
    ReadAnswer,
    ReadFrame,
    ids_in,
    is_delete,
    key_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy.client.batch_view import BatchSlice
    from liftpy.core.base.ids import PartitionKey
    from tests.simulation.replica.cluster import Cluster

PUBLISH_TIMEOUT_NS = 3 * S
_PB_POLICY = {AckPolicy.LEADER: client_pb2.LEADER, AckPolicy.ALL: client_pb2.ALL}
_COUNTED = 5
"""Share of messages that do not count themselves, among those that do. A run does not cross them."""
_POLICIES = (AckPolicy.ALL, AckPolicy.ALL, AckPolicy.LEADER, AckPolicy.NONE)


class SimPublisher:
    """Publishes to one partition's subject at random intervals, as a client library or as plain NATS, and waits for each ack until it
    times out."""

    plain_every = 3
    """Each nth publish is a plain NATS message with headers, the others have an envelope. 0: none."""
    counts_every = 2
    """Each nth publish with an envelope counts itself, so that one Ack answers a run. 0: none."""

    def __init__(self, cluster: Cluster, name: str, interval_ns: int, key: PartitionKey) -> None:
        self.cluster = cluster
        self.name = name
        self.key = key
        self.subject = f"{key.stream}.{key.partition}"
        self.interval_ns = interval_ns
        self.stopped = False
        self.waiting: dict[int, set[int]] = {}
        """Number -> indexes of its messages that are not answered, of the publishes that are neither answered nor timed out [L4]."""
        self.acked_all = 0
        """Publishes that were acknowledged with policy ALL."""
        self.asked_all = 0
        """Number of publishes with ack policy ALL."""
        self.request_ns: int | None = None
        """Time of the first publish with ack policy ALL since the last such ack. None: no such publish."""
        self._number = 0
        self._rng = random.Random(f"{cluster.seed}/{name}")
        cluster.clock.after(interval_ns, self._turn)

    def _turn(self) -> None:
        if self.stopped:
            return
        self.publish(self._rng.choice(_POLICIES), 1 + int(self._rng.random() ** 3 * 6))
        self.cluster.clock.after(1 + int(self._rng.random() * 2 * self.interval_ns), self._turn)

    def publish(self, policy: AckPolicy = AckPolicy.ALL, count: int = 1) -> int:
        """Publish ``count`` messages in one go; return the publish's number."""
        number, self._number = self._number, self._number + 1
        ids = tuple(self.cluster.new_id(self.name, number) for _ in range(count))
        plain = policy is AckPolicy.NONE or (self.plain_every and number % self.plain_every == 0)
        message = Publish(self.name, number, ids, policy, ())
        message = replace(
            message,
            messages=tuple(
                (self._plain if plain and not self._deletes(message, i) else self._enveloped)(message, i) for i in range(count)
            ),
        )
        if policy is AckPolicy.NONE:
            self.cluster.network.publish(self.name, self.subject, message)
            return number
        if policy is AckPolicy.ALL:
            self.asked_all, self.request_ns = self.asked_all + 1, self.request_ns or self.cluster.clock.now_ns
        self.waiting[number] = set(range(count))
        self.cluster.network.request(self.name, self.subject, message, lambda answer: self._answered(number, policy, answer))
        self.cluster.clock.after(PUBLISH_TIMEOUT_NS, lambda: self._timed_out(number))
        return number

    def _key(self, message_id: int) -> bytes | None:
        if not self.cluster.stream_configs[self.key.stream].is_cleaned:
            return None
        return b"%d" % key_of(message_id, deletes=self.cluster.plan.has_deletes(self.key.stream))

    def _deletes(self, publish: Publish, index: int) -> bool:
        """Return whether it is a tombstone. Without an answer it could not be identified."""
        has_deletes = self.cluster.plan.has_deletes(self.key.stream)
        return has_deletes and publish.policy is not AckPolicy.NONE and is_delete(publish.ids[index])

    def _plain(self, publish: Publish, index: int) -> Message:
        key, wants_answer = self._key(publish.ids[index]), publish.policy is not AckPolicy.NONE
        block = b"NATS/1.0\r\nLift-Ack: %b\r\n" % publish.policy.value.encode()
        if key is not None:
            block += b"Lift-Key: %b\r\n" % key
        elif publish.policy is AckPolicy.ALL:
            return publish.inbox(index), b"%d" % publish.ids[index], b""  # as the stream has it anyway
        return publish.inbox(index) if wants_answer else b"", b"%d" % publish.ids[index], block + b"\r\n"

    def _enveloped(self, publish: Publish, index: int) -> Message:
        key, of, deletes = self._key(publish.ids[index]), self.key, self._deletes(publish, index)
        if not deletes and self.counts_every and publish.number % self.counts_every == 0 and publish.ids[index] % _COUNTED:
            ack, inbox = AckPolicy(publish.policy), publish.inbox(index)
            payload = envelope_of(of.stream, of.partition, of.uid, b"%d" % publish.ids[index], key, None, ack, runs=True)
            return inbox, payload, b""
        message = client_pb2.Message(
            value=b"" if deletes else b"%d" % publish.ids[index], tombstone=deletes,
            key=key or b"", keyed=key is not None, ackInbox=publish.inbox(index).decode(),
            correlationId=f"{publish.number}.{index}", ackPolicy=_PB_POLICY[publish.policy],
            stream=of.stream, streamUid=of.uid, partition=of.partition,
        )  # fmt: skip
        return b"", frames.encode(message), DELETED_TO + b"%d" % publish.ids[index] if deletes else b""

    def _answered(self, number: int, policy: AckPolicy, answer: Any) -> None:
        left = self.waiting.get(number)
        if left is None:
            return
        ack = answer.decoded() if isinstance(answer, AckFrame) else Ack(str(answer))
        if not ack.reason:
            left -= self._answered_by(number, answer.index, ack.record_count)
            if left:
                return
            if policy is AckPolicy.ALL:
                self.acked_all, self.request_ns = self.acked_all + 1, None
        self.cluster.counters["publish refused" if ack.reason else "publish acknowledged"] += 1
        self._done(number, ack)

    def _answered_by(self, number: int, index: int, record_count: int) -> set[int]:
        """Return the messages that an answer to one of them covers."""
        inbox = Publish(self.name, number, (), AckPolicy.ALL, ()).inbox(index)
        return {split_numbered_reply(request)[1] for request in answered_by(inbox, record_count)}

    def _done(self, number: int, ack: Ack | None) -> None:
        """``ack``: the last one, or the first that is negative; None: it timed out."""
        del self.waiting[number]

    def _timed_out(self, number: int) -> None:
        if number in self.waiting:
            self.cluster.counters["publish timed out"] += 1
            self._done(number, None)


class SimReader:
    """Reader with the client's ``ReadProgress``, from any node. Its records are compared with the true log [R1-R4, R6]."""

    def __init__(self, cluster: Cluster, name: str, key: PartitionKey, interval_ns: int) -> None:
        self.cluster = cluster
        self.name = name
        self.key = key
        self.subject = f"{key.stream}.{key.partition}"
        self.interval_ns = interval_ns
        self.progress = ReadProgress(key.stream, key.partition, 0)
        self.cut_at: int | None = None
        """Offset from which the records that it read are gone. It reads no more [R6]."""
        self._rng = random.Random(f"{cluster.seed}/{name}")
        cluster.clock.after(interval_ns, self._turn)

    @property
    def next_offset(self) -> int:
        """Exclusive: everything below has been read, or retention had deleted it."""
        return self.progress.next_offset

    def _turn(self) -> None:
        if self.cut_at is not None:
            return
        self._ask(self._rng.choice(sorted(self.cluster.nodes)))
        self.cluster.clock.after(MS + int(self._rng.random() * 2 * self.interval_ns), self._turn)

    def _ask(self, node: str) -> None:
        asked = self.progress.next_offset
        request = self.progress.request(self._rng.choice((1, 500, 1 << 20)), self._rng.choice((0, 0, 20, 2000)))
        self._send(node, request, lambda answer: self._answered(asked, answer))

    def _send(self, node: str, request: client_pb2.ReadRequest, on_reply: Callable[[Any], None]) -> None:
        self.cluster.network.request(self.name, f"{self.subject}.read.{node}", ReadFrame(frames.encode(request)), on_reply)

    def _answered(self, asked: int, answer: Any) -> None:
        progress, counters = self.progress, self.cluster.counters
        if asked != progress.next_offset or self.cut_at is not None or not isinstance(answer, ReadAnswer):
            return  # of several answers to a question the first one counts, however late it comes
        was_held = progress.assembly.held.position > 0
        try:
            handed_on = progress.accept(answer.frame)
        except LogTruncatedError as error:
            counters["read: cut"] += 1
            self.cut_at = error.end_offset
            lost = self.cluster.checkers.lost_by_command(self.key)
            check(lost, "R6", self.name, "has read", (progress.last_offset, progress.leader_epoch), "told", error)
        except OffsetOutOfRangeError:
            counters["read: out of range"] += 1
            progress.next_offset = answer.decoded()[0].logStartOffset
            check(asked < progress.next_offset, "R2", self.name, "at", asked, "is sent back to", progress.next_offset)
        except NotServedError:
            counters["read: not served"] += 1
        except (DamagedBatchError, ProtocolError) as error:
            self._refused(error, was_held)
        else:
            counters["read: batch put together"] += was_held and bool(handed_on)
            counters["read answered"] += bool(handed_on)
            self._compare(asked, answer, handed_on)
            if not handed_on and progress.assembly.held.position and self._rng.random() < 0.9:
                self._ask(progress.node)

    def _refused(self, error: LiftError, in_pieces: bool) -> None:
        """Check wrong bytes: only a node with a damaged disk sends them, and it is informed.

        ``in_pieces``: other nodes sent parts.
        """
        self.cluster.counters["read: damaged"] += 1
        node = self.progress.suspect[0] if self.progress.suspect is not None else ""
        complaint = self.progress.complaint()
        check(complaint is not None, "R2", self.name, "can't take", error)
        liars = [machine.node_id for machine in self.cluster.machines if machine.lost_data]
        check(node in liars or (in_pieces and bool(liars)), "R3", self.name, "is sent by", node, "whose disk is fine", error)
        assert complaint is not None
        self._send(node, complaint, lambda answer: None)

    def _compare(self, asked: int, answer: ReadAnswer, handed_on: list[BatchSlice]) -> None:
        """Committed records, in order, without a gap but those of compaction, the bytes of the one true log."""
        ghost = self.cluster.checkers.ghost(self.key)
        has_gaps = self.cluster.stream_configs[self.key.stream].is_cleaned or bool(ghost.purges)
        head, _ = answer.decoded()
        position = asked
        for piece in handed_on:
            batch = piece.batch
            key = (batch.leader_epoch, batch.last_offset)
            follows = piece.first_offset > position if has_gaps else False
            check(follows or piece.first_offset == position, "R2", self.name, "expects", position, "gets", piece.first_offset)
            check(batch.last_offset <= ghost.high_watermark, "R1", self.name, "reads", key, "HW", ghost.high_watermark)
            check(ghost.committed.get(batch.last_offset) == key, "R3", self.name, "reads", key, "at", head.node)
            same = batch.header.is_compacted or ghost.chains[key][1] == batch.header.crc
            check(same, "R3", self.name, "other bytes", key)
            position = piece.last_offset + 1
        check(
            position == self.progress.next_offset or (has_gaps and position < self.progress.next_offset),
            "R2",
            self.name,
            "handed on up to",
            position,
            "is at",
            self.progress.next_offset,
        )
        check(position <= head.highWatermark + 1 or not handed_on, "R1", self.name, position, head)


_OTHER_NODE = 0.1
"""Share of requests that go to another replica than the last one."""


class SimTable:
    """Reads a compacted stream from its start to the end, repeatedly, from any replica, and checks the newest record of each
    key."""

    def __init__(self, cluster: Cluster, name: str, key: PartitionKey, interval_ns: int) -> None:
        self.cluster = cluster
        self.name = name
        self.key = key
        self.interval_ns = interval_ns
        self._rng = random.Random(f"{cluster.seed}/{name}")
        self._progress: ReadProgress | None = None
        self._found: dict[int, tuple[int, int]] = {}
        cluster.clock.after(interval_ns, self._turn)

    def _turn(self) -> None:
        self.cluster.clock.after(MS + int(self._rng.random() * 2 * self.interval_ns), self._turn)
        ghost = self.cluster.checkers.ghost(self.key)
        if self.cluster.checkers.lost_by_command(self.key) or ghost.high_watermark < 0:
            self._progress = None
            return
        if self._progress is None:
            start, end = ghost.log_start_offset, ghost.high_watermark + 1
            self._progress = ReadProgress(self.key.stream, self.key.partition, start, end, floor_high_watermark=end - 1)
            self._progress.moves_end, self._found = True, {}
        progress = self._progress
        node = (
            progress.node
            if progress.node and self._rng.random() > _OTHER_NODE
            else self._rng.choice(sorted(self.cluster.nodes))
        )
        request, subject = progress.request(self._rng.choice((500, 2000)), 0), f"{self.key.stream}.{self.key.partition}"
        asked = progress.next_offset
        self.cluster.network.request(
            self.name, f"{subject}.read.{node}", ReadFrame(frames.encode(request)), lambda a: self._answered(progress, asked, a)
        )

    def _answered(self, progress: ReadProgress, asked: int, answer: Any) -> None:
        if progress is not self._progress or asked != progress.next_offset or not isinstance(answer, ReadAnswer):
            return
        try:
            slices = progress.accept(answer.frame)
        except (NotServedError, DamagedBatchError, ProtocolError):
            return
        except LiftError:
            self._progress = None
            return
        deletes = self.cluster.checkers.ghost(self.key).deletes
        for piece in slices:
            ids = ids_in(piece.batch)[piece.first_index : piece.end_index]
            for offset, message_id in zip(piece.offsets().tolist(), ids, strict=True):
                self._found[key_of(message_id, deletes=deletes)] = offset, message_id
        if progress.missed_tombstones:
            self.cluster.counters["table: deletes went while it was read"] += 1
            self._progress = None
        elif progress.done:
            config, ghost = self.cluster.stream_configs[self.key.stream], self.cluster.checkers.ghost(self.key)
            read_all_keys(self.name, self._found, ghost, progress.next_offset, config.max_per_subject)
            self.cluster.counters["table: read"] += 1
            self._progress = None


_SUBJECTS = 9
_FRESH = 0.2
"""Share of messages with a new subject."""
_WRONG_SEQUENCE = "10071"


class SimContender(SimPublisher):
    """Publisher with expected sequences. It knows them from its acks and rejections."""

    def __init__(self, cluster: Cluster, name: str, interval_ns: int, key: PartitionKey) -> None:
        self._known: dict[int, int] = {}
        self._asked: dict[int, int] = {}
        """Number of a publish -> its subject."""
        super().__init__(cluster, name, interval_ns, key)

    def _turn(self) -> None:
        if self.stopped:
            return
        fresh = self._rng.random() < _FRESH
        self._contend(_SUBJECTS + self._rng.getrandbits(40) if fresh else int(self._rng.random() ** 3 * _SUBJECTS))
        self.cluster.clock.after(1 + int(self._rng.random() * 2 * self.interval_ns), self._turn)

    def _contend(self, subject: int) -> None:
        number, self._number = self._number, self._number + 1
        message_id, expected = self.cluster.new_id(self.name, number), self._known.get(subject, 0)
        self.cluster.checkers.expected[message_id] = subject, expected
        block = b"NATS/1.0\r\nSim-To: %d\r\nNats-Expected-Last-Subject-Sequence: %d\r\n\r\n" % (subject, expected)
        publish = Publish(self.name, number, (message_id,), AckPolicy.ALL, ())
        message = (publish.inbox(0), b"%d" % message_id, block)
        publish = Publish(self.name, number, (message_id,), AckPolicy.ALL, (message,))
        self.waiting[number], self._asked[number] = {0}, subject
        self.cluster.network.request(
            self.name, self.subject, publish, lambda answer: self._answered(number, AckPolicy.ALL, answer)
        )
        self.cluster.clock.after(PUBLISH_TIMEOUT_NS, lambda: self._timed_out(number))

    def _done(self, number: int, ack: Ack | None) -> None:
        super()._done(number, ack)
        subject = self._asked.pop(number)
        if ack is None:
            return
        if not ack.reason:
            self._known[subject] = ack.offset + 1
            self.cluster.counters["stored as expected"] += 1
        elif ack.reason == _WRONG_SEQUENCE:
            self._known[subject] = int(ack.detail.rsplit(" ", 1)[1])
            self.cluster.counters["last sequence of a subject told"] += 1
        elif "being read" in ack.detail:
            self.cluster.counters["told that subjects are being read"] += 1


_Ack = client_pb2.Ack
_PRODUCER = 77
_DIES = 0.03
"""Share of turns at which it fails."""
_ASKS_AGAIN_MS = (20, 100, 400)
_REFUSALS = {_Ack.OUT_OF_ORDER: BatchRejection.OUT_OF_ORDER, _Ack.UNKNOWN_PRODUCER: BatchRejection.UNKNOWN}
_FINAL = (_Ack.PRODUCER_FENCED, _Ack.DIVERGED_PRODUCER, _Ack.MALFORMED, _Ack.PRODUCER_CONFLICT)


class SimProducer(SimPublisher):
    """Producer processes, one after the other. Old ones may still run when the next one starts."""

    def __init__(self, cluster: Cluster, name: str, interval_ns: int, key: PartitionKey) -> None:
        self._process = 0
        self._lane = self._new_lane()
        self._last_id = 0
        """Id of the last record of this process. 0: none."""
        self._acked: tuple[int, int] | None = None
        """(offset, LeaderEpoch) of its last acknowledgment."""
        super().__init__(cluster, name, interval_ns, key)

    @staticmethod
    def _new_lane() -> PartitionQueue:
        return PartitionQueue(_PRODUCER, window=3, batch_bytes=1 << 16, batch_records=4, attempt_s=0.5)

    @property
    def _now_s(self) -> float:
        return self.cluster.clock.now_ns / S

    # ---- its processes -------------------------------------------------------------------------------------------------
    def _turn(self) -> None:
        if self.stopped:
            return
        if self._rng.random() < _DIES or not self._process:
            self._begin()
        elif not self._lane.asks and len(self._lane.tickets) < 8:
            for _ in range(1 + int(self._rng.random() * 3)):
                self._add()
        self._send()
        self.cluster.clock.after(1 + int(self._rng.random() * 2 * self.interval_ns), self._turn)

    def _begin(self) -> None:
        """Start the next process."""
        self._process += 1
        self._lane, self._last_id = self._new_lane(), 0
        self._acked = None
        self._ask(self._process, self._lane)

    def _add(self) -> None:
        checkers, message_id = self.cluster.checkers, self.cluster.new_id(self.name, self._number)
        checkers.repeated.add(message_id)
        if self._last_id:
            checkers.follows[message_id] = self._last_id
        self._last_id = message_id
        value = b"%d" % message_id
        self._lane.add(value, self._key(message_id), (), len(value), self._now_s)

    # ---- its epoch -------------------------------------------------------------------------------------------------------
    def _ask(self, process: int, lane: PartitionQueue) -> None:
        if self.stopped or process != self._process or not lane.asks:
            return
        head = self._head(process)
        head.askedProducer, head.producerSequence, head.producerName = _PRODUCER, lane.unanswered[0], self.name
        self._add_position(head, 0)
        if self._acked is not None:
            head.producerAckedOffset, head.producerAckedEpoch = self._acked
        self._publish(frames.batch_publish(head, b""), (-1,), lambda ack: self._told(process, lane, ack))
        self.cluster.clock.after(self._rng.choice(_ASKS_AGAIN_MS) * MS, lambda: self._ask(process, lane))

    def _told(self, process: int, lane: PartitionQueue, ack: _Ack | None) -> None:
        if process != self._process or not lane.asks or ack is None:
            return
        if ack.ackError == _Ack.RECORDS_LOST:
            self.cluster.counters["producer: told of lost records"] += 1
            self._begin()
        if ack.ackError:
            return
        state = ack.producer
        self.cluster.counters["producer: told its epoch"] += 1
        if not lane.epoch and not lane.tickets and not self._last_id:
            digest = RollingDigest.decode(state.digest) if state.digest else None
            position = state.position.offset if state.HasField("position") else -1
            lane.begin(state.epoch, state.nextSequence, digest, position=position)
            self._began(lane)
        elif state.known and state.nextSequence != lane.unanswered[0]:
            self._begin()  # another has gone on
        else:
            lane.begin_new_epoch(state.epoch)
            self.cluster.counters["producer: told another epoch"] += 1
        self._send()

    def _began(self, lane: PartitionQueue) -> None:
        """Continue after the answer of the leader."""

    def _add_position(self, head: client_pb2.BatchPublish, offset: int) -> None:
        """Add no position."""

    def _head(self, process: int) -> client_pb2.BatchPublish:
        key = self.key
        return client_pb2.BatchPublish(
            stream=key.stream,
            streamUid=key.uid,
            partition=key.partition,
            ackPolicy=client_pb2.ALL,
            producerInstance=process,
        )

    # ---- its batches -----------------------------------------------------------------------------------------------------
    def _send(self) -> None:
        lane = self._lane
        lane.late(self._now_s)
        while (parcel := lane.next_to_send(self._now_s)) is not None:
            self._put(lane, parcel)

    def _put(self, lane: PartitionQueue, parcel: ProducerBatch) -> None:
        head, attempt, sequence, process = self._head(self._process), parcel.attempt, parcel.sequence, self._process
        head.producerDigest = b"" if parcel.digest is None else parcel.digest.encode()
        if parcel.names:
            head.producerName = self.name
        self._add_position(head, parcel.position)
        first = int(parse_batch(parcel.encoded, verify=False).values()[0] or b"")
        self._publish(
            frames.batch_publish(head, parcel.encoded), (first,), lambda ack: self._heard(process, lane, sequence, attempt, ack)
        )

    def _heard(self, process: int, lane: PartitionQueue, sequence: int, attempt: int, ack: _Ack | None) -> None:
        if process != self._process:
            return
        if ack is None or ack.ackError:
            error = _Ack.NOT_LEADER if ack is None else ack.ackError
            refusal = BatchRejection.FINAL if error in _FINAL else _REFUSALS.get(error, BatchRejection.AGAIN)
            due = 0 if ack is None else ack.producer.nextSequence
            if not lane.refused(sequence, attempt, refusal, self._now_s, due):
                self.cluster.counters["producer: over"] += 1
                self._begin()
            elif lane.asks:
                self._ask(process, lane)
            return
        if ack.offset >= 0:
            self._acked = ack.offset, ack.leaderEpoch
        known = ack.recordCount if ack.duplicate else ack.knownRecords
        self.cluster.counters["producer: stored before"] += ack.duplicate
        for _ in lane.acked(sequence, BatchResult(ack.offset, ack.leaderEpoch, known)):
            self.cluster.counters["producer: stored"] += 1
        self._send()

    def _publish(self, payload: bytes, ids: tuple[int, ...], heard: Any) -> None:
        number, self._number = self._number, self._number + 1
        publish = Publish(self.name, number, ids, AckPolicy.ALL, ())
        publish = Publish(self.name, number, ids, AckPolicy.ALL, ((publish.inbox(0), payload, b""),))
        self.waiting[number] = {0}

        def answered(answer: Any) -> None:
            if self.waiting.pop(number, None) is not None:
                heard(frames.decode(answer.body, _Ack) if isinstance(answer, AckFrame) else None)

        self.cluster.network.request(self.name, self.subject, publish, answered)
        self.cluster.clock.after(PUBLISH_TIMEOUT_NS, lambda: self._forget(number))

    def _forget(self, number: int) -> None:
        self.waiting.pop(number, None)


class SimDerivation(SimProducer):
    """Producer that derives records from another stream. Each process continues after the last position in the log."""

    def __init__(self, cluster: Cluster, name: str, interval_ns: int, key: PartitionKey) -> None:
        self._made: list[int] = []
        """Position in the source -> record made from it."""
        self._position = 0
        """Position of the next source record."""
        super().__init__(cluster, name, interval_ns, key)

    def _began(self, lane: PartitionQueue) -> None:
        self._position = lane.position + 1
        self.cluster.counters["derivation: read again"] += max(len(self._made) - self._position, 0)

    def _add(self) -> None:
        if self._position == len(self._made):
            message_id = self.cluster.new_id(self.name, self._number)
            self.cluster.checkers.repeated.add(message_id)
            if self._made:
                self.cluster.checkers.follows[message_id] = self._made[-1]
            self._made.append(message_id)
        self._last_id = self._made[self._position]
        value = b"%d" % self._last_id
        key = self._key(self._last_id)
        self._lane.add_many([value], None if key is None else [key], [len(value)], self._now_s, [self._position])
        self._position += 1

    def _add_position(self, head: client_pb2.BatchPublish, offset: int) -> None:
        head.producerPosition.CopyFrom(SourcePosition("source", 0, offset, self._process).message())


_PATIENCE_MS = (1, 5, 20, 100, 400, PUBLISH_TIMEOUT_NS // MS)
"""Possible times without an answer before a message is sent again, in ms. Short ones create many duplicates in flight."""
_MOST_ATTEMPTS = 40


class SimRepeater(SimPublisher):
    """Publisher of one message at a time: it repeats after rejections and timeouts, never after an ack, and gives up after some
    attempts."""

    def __init__(self, cluster: Cluster, name: str, interval_ns: int, key: PartitionKey) -> None:
        self._message_id = 0
        self._attempts = 0
        super().__init__(cluster, name, interval_ns, key)

    def _turn(self) -> None:
        if self.stopped:
            return
        if not self._message_id:
            self._message_id, self._attempts = self.cluster.new_id(self.name, self._number), 0
            self.cluster.checkers.repeated.add(self._message_id)
            self._attempt(self._message_id)
        self.cluster.clock.after(1 + int(self._rng.random() * 2 * self.interval_ns), self._turn)

    def _attempt(self, message_id: int) -> None:
        if self.stopped or message_id != self._message_id:
            return
        self._attempts += 1
        number, self._number = self._number, self._number + 1
        block = b"NATS/1.0\r\nNats-Msg-Id: m%d\r\n\r\n" % message_id
        publish = Publish(self.name, number, (message_id,), AckPolicy.ALL, ())
        message = (publish.inbox(0), b"%d" % message_id, block)
        publish = Publish(self.name, number, (message_id,), AckPolicy.ALL, (message,))
        self.asked_all, self.request_ns = self.asked_all + 1, self.request_ns or self.cluster.clock.now_ns
        self.waiting[number] = {0}
        self.cluster.network.request(
            self.name, self.subject, publish, lambda answer: self._answered(number, AckPolicy.ALL, answer)
        )
        self.cluster.clock.after(self._rng.choice(_PATIENCE_MS) * MS, lambda: self._again(message_id))
        self.cluster.clock.after(PUBLISH_TIMEOUT_NS, lambda: self._timed_out(number))

    def _again(self, message_id: int) -> None:
        if self._attempts >= _MOST_ATTEMPTS and message_id == self._message_id:
            self._message_id = 0
        self._attempt(message_id)

    def _done(self, number: int, ack: Ack | None) -> None:
        super()._done(number, ack)
        if ack is not None and not ack.reason:
            self.cluster.counters["answered as a duplicate"] += ack.duplicate
            self._message_id = 0
