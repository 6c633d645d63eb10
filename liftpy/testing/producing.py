"""SimProducer: an application that numbers its records by the client's own lane, is killed, and comes back under its id [A3, A4]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from liftpy.client.lane import Landed, Lane, Parcel, Refusal
from liftpy.config import AckPolicy
from liftpy.ingest.digest import RollingDigest
from liftpy.testing.clients import PUBLISH_TIMEOUT_NS, SimPublisher
from liftpy.testing.clock import MS, S
from liftpy.testing.messages import AckFrame, Publish
from liftpy.wire import frames
from liftpy.wire._pb import client_pb2
from liftpy.wire.batch import parse_batch
from liftpy.wire.producer_note import SourcePosition

if TYPE_CHECKING:
    from liftpy.ids import PartitionKey
    from liftpy.testing.world import World

_Ack = client_pb2.Ack
_PRODUCER = 77
_DIES = 0.03
"""So often at a turn."""
_ASKS_AGAIN_MS = (20, 100, 400)
_REFUSALS = {_Ack.OUT_OF_ORDER: Refusal.OUT_OF_ORDER, _Ack.UNKNOWN_PRODUCER: Refusal.UNKNOWN}
_FINAL = (_Ack.PRODUCER_FENCED, _Ack.DIVERGED_PRODUCER, _Ack.MALFORMED, _Ack.PRODUCER_CONFLICT)


class SimProducer(SimPublisher):
    """One process after the other; some are not dead yet when the next one asks, and what they have sent still arrives."""

    def __init__(self, cluster: World, name: str, interval_ns: int, key: PartitionKey) -> None:
        self._process = 0
        self._lane = self._new_lane()
        self._last_id = 0
        """Of this process: what its next record follows on; 0: nothing."""
        self._acked: tuple[int, int] | None = None
        """(offset, LeaderEpoch) of its last acknowledgment."""
        super().__init__(cluster, name, interval_ns, key)

    @staticmethod
    def _new_lane() -> Lane:
        return Lane(_PRODUCER, window=3, batch_bytes=1 << 16, batch_records=4, attempt_s=0.5)

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
        """The one before is dead, or believed to be."""
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
    def _ask(self, process: int, lane: Lane) -> None:
        if self.stopped or process != self._process or not lane.asks:
            return
        head = self._head(process)
        head.askedProducer, head.producerSequence, head.producerName = _PRODUCER, lane.unanswered[0], self.name
        self._say_position(head, 0)
        if self._acked is not None:
            head.producerAckedOffset, head.producerAckedEpoch = self._acked
        self._publish(frames.batch_publish(head, b""), (-1,), lambda ack: self._told(process, lane, ack))
        self.cluster.clock.after(self._rng.choice(_ASKS_AGAIN_MS) * MS, lambda: self._ask(process, lane))

    def _told(self, process: int, lane: Lane, ack: _Ack | None) -> None:
        if process != self._process or not lane.asks or ack is None:
            return
        if ack.ackError == _Ack.RECORDS_LOST:
            self.cluster.counters["producer: told of lost records"] += 1
            self._begin()
        if ack.ackError:
            return
        state = ack.producer
        self.cluster.counters["producer: told its epoch"] += 1
        if not lane.epoch and lane.is_empty and not self._last_id:
            digest = RollingDigest.decode(state.digest) if state.digest else None
            position = state.position.offset if state.HasField("position") else -1
            lane.begin(state.epoch, state.nextSequence, digest, position=position)
            self._began(lane)
        elif state.known and state.nextSequence != lane.unanswered[0]:
            self._begin()  # another has gone on
        else:
            lane.begin_again(state.epoch)
            self.cluster.counters["producer: told another epoch"] += 1
        self._send()

    def _began(self, lane: Lane) -> None:
        """It knows where to go on."""

    def _say_position(self, head: client_pb2.BatchPublish, offset: int) -> None:
        """It has none."""

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

    def _put(self, lane: Lane, parcel: Parcel) -> None:
        head, attempt, sequence, process = self._head(self._process), parcel.attempt, parcel.sequence, self._process
        head.producerDigest = b"" if parcel.digest is None else parcel.digest.encode()
        if parcel.names:
            head.producerName = self.name
        self._say_position(head, parcel.position)
        first = int(parse_batch(parcel.batch, verify=False).values()[0] or b"")
        self._publish(
            frames.batch_publish(head, parcel.batch), (first,), lambda ack: self._heard(process, lane, sequence, attempt, ack)
        )

    def _heard(self, process: int, lane: Lane, sequence: int, attempt: int, ack: _Ack | None) -> None:
        if process != self._process:
            return
        if ack is None or ack.ackError:
            error = _Ack.NOT_LEADER if ack is None else ack.ackError
            refusal = Refusal.FINAL if error in _FINAL else _REFUSALS.get(error, Refusal.AGAIN)
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
        for _ in lane.placed(sequence, Landed(ack.offset, ack.leaderEpoch, known)):
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
    """A producer whose records are made from those of another stream: each of its processes begins behind the last position that the
    log has, and makes the same of what it reads again."""

    def __init__(self, cluster: World, name: str, interval_ns: int, key: PartitionKey) -> None:
        self._made: list[int] = []
        """By position in the source: what is made from the record there."""
        self._position = 0
        """Of what this process reads next."""
        super().__init__(cluster, name, interval_ns, key)

    def _began(self, lane: Lane) -> None:
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

    def _say_position(self, head: client_pb2.BatchPublish, offset: int) -> None:
        head.producerPosition.CopyFrom(SourcePosition("source", 0, offset, self._process).message())
