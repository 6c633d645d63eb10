"""``ProducerDesk``: decides which process may continue a producer, during one leadership [A3]. Pure.

A process asks before it sends and receives an epoch above the one in the log. The epoch belongs to this process,
identified by a random number (``instance``). Until a batch of the epoch is in the log, only the newest assigned epoch
counts, and earlier processes are fenced. Afterwards the log decides. A process with another epoch must ask again
(UNKNOWN).

Example: the log holds producer p in epoch 4. A asks, gets 5, and the leader dies. B asks the next leader, also gets 5,
and sends: stored. Records that A sends in epoch 5 are then fenced.

With standby, a new leader repeats the questions that it received as a follower. So the newest process may get an epoch
twice.
"""

from __future__ import annotations

from typing import NamedTuple

from liftpy.core.publish.digest import RollingDigest
from liftpy.core.publish.jetstream_headers import Rejection
from liftpy.core.publish.producer_state import Claim, Finding, Producers, ProducerState, Ruling, at_odds, epoch_distance
from liftpy.core.replication.effects import RejectReason
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch_columns import ColumnSet
from liftpy.core.wire.producer_note import Partitioning, SourcePosition

_EPOCHS = 1 << 16
_GIVEN_BYTES = 900
"""About what who was given an epoch takes in memory: 420 without a name, of up to 255 bytes; an estimate."""
_REFUSALS = {
    Finding.FENCED: Rejection(
        RejectReason.PRODUCER_FENCED, "A newer process uses this producer id. Stop this process, or use another producer id."
    ),
    Finding.OUT_OF_ORDER: Rejection(
        RejectReason.OUT_OF_ORDER,
        "Earlier sequences of this producer are missing. Send the records from the first missing sequence.",
    ),
    Finding.DIVERGED: Rejection(
        RejectReason.DIVERGED_PRODUCER, "Other records are stored with the sequences of this batch. Use another producer id."
    ),
    Finding.CONFLICT: Rejection(
        RejectReason.PRODUCER_CONFLICT,
        "Another producer has this producer id, or its batches come from another source. Use another producer id.",
    ),
    Finding.PLAN_CHANGED: Rejection(
        RejectReason.DIVERGED_PRODUCER,
        "Records of this round are stored with another assignment of source partitions to producers. Start a new round.",
    ),
    Finding.UNKNOWN: Rejection(
        RejectReason.UNKNOWN_PRODUCER, "This leader does not know the producer. Request an epoch first."
    ),
}


RECORDS_LOST = Rejection(
    RejectReason.RECORDS_LOST,
    "the log does not hold the last record of this producer that was acknowledged: acknowledged records were lost, by an unclean "
    "election or with a data directory. Open the producer again to go on behind what is stored, and send the lost records again",
)
"""For a process whose acknowledged records are gone [A20]."""


class Given(NamedTuple):
    """Answer to a process that opens a producer, sent when ``last_offset`` is committed.

    ``last_offset`` -1: the log holds no record of the producer, and ``known`` is False. ``digest``: digest of all
    records before ``next_sequence``, None: not known.
    """

    epoch: int
    next_sequence: int
    digest: RollingDigest | None
    known: bool
    last_offset: int
    position: SourcePosition | None = None
    """That the log holds last."""
    partitioning: Partitioning | None = None

    @property
    def told(self) -> client_pb2.ProducerState:
        """Return the protobuf message for the answer."""
        digest = b"" if self.digest is None else self.digest.encode()
        told = client_pb2.ProducerState(epoch=self.epoch, nextSequence=self.next_sequence, digest=digest, known=self.known)
        if self.position is not None:
            told.position.CopyFrom(self.position.message())
        if self.partitioning is not None:
            told.partitioning.CopyFrom(self.partitioning.message())
        return told


class Question(NamedTuple):
    """Request of a process to continue as ``producer_id``, with ``sequence`` if the producer is unknown.

    ``position``: source and generation that it reads.
    """

    producer_id: int
    instance: int
    sequence: int = 0
    name: str = ""
    position: SourcePosition | None = None
    acked: tuple[int, int] | None = None
    """(offset, LeaderEpoch) of the last acknowledgment that the process has; None: it has none."""


class ProducerDesk:
    """Epochs of producers at the leader of one partition."""

    def __init__(self, producers: Producers) -> None:
        self._producers = producers
        self._share = producers.share.beside()
        self._given: dict[int, tuple[int, int]] = {}
        """Producer -> (epoch, instance) that was given last in this leadership; who asked last stands last."""
        self._names: dict[int, tuple[str, int]] = {}
        """Of them: (name, generation) as they said it."""
        self._first: dict[int, int] = {}
        """Of them: the sequence that is due, if the log holds nothing of the producer."""

    def begin(self) -> None:
        """Forget all granted epochs: a leadership begins or ends."""
        self._given.clear()
        self._names.clear()
        self._first.clear()
        self._share.hold(0)

    def __len__(self) -> int:
        return len(self._given)

    def ask(self, asked: Question) -> Given | Finding:
        """Return the epoch for the process, or why it may not continue."""
        producer_id, instance, sequence = asked[:3]
        state = self._producers.state_of(producer_id)
        refused = self._refusal(state, asked)
        if refused is Finding.FULL:
            for known in (self._given, self._first, self._names):
                known.pop(producer_id, None)
            self._share.hold(_GIVEN_BYTES * len(self._given))
        if refused is not None:
            return refused
        given = self._given.pop(producer_id, None)
        epoch = self._epoch_for(state, given, instance)
        while len(self._given) >= self._producers.max_count:
            gone = next(iter(self._given))  # he asks again
            del self._given[gone], self._first[gone], self._names[gone]
        self._given[producer_id], self._first[producer_id] = (epoch, instance), sequence
        self._share.hold(_GIVEN_BYTES * len(self._given))
        self._names[producer_id] = asked.name, _generation(asked)
        if state is None:
            return Given(epoch, sequence, None if sequence else RollingDigest(), False, -1)
        said = (state.position, state.partitioning)
        return Given(epoch, state.next_sequence, state.digest, True, last_offset_of(state), *said)

    def _refusal(self, state: ProducerState | None, asked: Question) -> Finding | None:
        if state is not None and (finding := at_odds(state, asked.name, asked.position)) is not None:
            return finding
        if self._producers.has_another_plan(asked.position):
            return Finding.PLAN_CHANGED
        name, generation = self._names.get(asked.producer_id, ("", 0))
        if name and asked.name and name != asked.name:
            return Finding.CONFLICT
        if generation > _generation(asked):
            return Finding.FENCED
        return Finding.FULL if state is None and self._producers.is_full else None

    @staticmethod
    def _epoch_for(state: ProducerState | None, given: tuple[int, int] | None, instance: int) -> int:
        if given is None:
            return 0 if state is None else (state.epoch + 1) % _EPOCHS
        epoch, holder = given
        is_stored = state is not None and epoch_distance(epoch, state.epoch) <= 0
        if holder == instance and not is_stored:
            return epoch  # his question came twice
        newest = state.epoch if state is not None and is_stored else epoch
        return (newest + 1) % _EPOCHS

    def judge(self, claim: Claim, columns: ColumnSet) -> Ruling:
        """Decide what to do with a producer's batch. ``columns``: those of the batch."""
        state, given = self._producers.state_of(claim.producer_id), self._given.get(claim.producer_id)
        due = 0 if state is None else state.next_sequence
        ahead = 1 if state is None else epoch_distance(claim.epoch, state.epoch)
        if ahead < 0:
            return Ruling(Finding.FENCED, next_sequence=due)
        if given is not None and given[1] != claim.instance:
            return Ruling(Finding.FENCED, next_sequence=due)
        if ahead > 0 and (given is None or given[0] != claim.epoch):
            return Ruling(Finding.UNKNOWN, next_sequence=due)
        if self._producers.has_another_plan(claim.position):
            return Ruling(Finding.PLAN_CHANGED, next_sequence=due)
        if state is None:
            return self._judge_the_first(claim)
        ruling = self._producers.judge(claim, columns)
        if ruling.finding is Finding.APPEND and not ruling.known and not self._producers.takes_batches:
            return Ruling(Finding.FULL, next_sequence=due)
        return ruling

    def why_not(self, finding: Finding) -> Rejection:
        """Return the rejection for a batch or a request (FULL)."""
        if finding is not Finding.FULL:
            return _REFUSALS[finding]
        self._producers.share.refused()
        return Rejection(RejectReason.OVERLOADED, self._producers.why_full)

    def _judge_the_first(self, claim: Claim) -> Ruling:
        """Judge the first batch of an unknown producer. It may follow a lost batch, or the producer may have been forgotten."""
        if claim.base_sequence != self._first[claim.producer_id]:
            return Ruling(Finding.UNKNOWN)
        return Ruling(Finding.FULL if self._producers.is_full else Finding.APPEND)


def _generation(asked: Question) -> int:
    return 0 if asked.position is None else asked.position.generation


def last_offset_of(state: ProducerState) -> int:
    """Return the offset of the producer's last record in the log, inclusive."""
    last = state.batches[-1]
    return last.offset + last.record_count - 1
