"""Options and receipts of producers, and the sender of one partition.

``partition_queue`` decides which batch to send. ``PartitionSender`` sends it, reads the answers and reports failures.
It accepts an answer only from the partition that it addressed.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from liftpy.client.arguments import check_bounds, check_count, check_partition
from liftpy.client.encode_publish import Address, Addressing
from liftpy.client.in_flight import NOT_STORED_NOW, PublishAck, Window, rejection
from liftpy.client.partition_queue import BatchRejection, BatchResult, PartitionQueue, ProducerBatch
from liftpy.client.retrying import retry_attempts
from liftpy.client.write_epoch import PlanChangedError, Repeat, Round, offset_in, partitions_in
from liftpy.core.metadata.image import StreamImage
from liftpy.core.publish.digest import RollingDigest
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import RecordColumns
from liftpy.core.wire.producer_note import Partitioning, SourcePosition
from liftpy.errors import (
    ConfigError,
    LiftError,
    NotFoundError,
    OutcomeUnknownError,
    ProtocolError,
    PublishRejectedError,
    UnavailableError,
)
from liftpy.nats.cancellation import suspended_s
from liftpy.nats.transport import Transport, is_no_responders

_Ack = client_pb2.Ack
_REFUSALS = {
    **dict.fromkeys((*NOT_STORED_NOW, _Ack.NO_SPACE), BatchRejection.AGAIN),
    _Ack.OUT_OF_ORDER: BatchRejection.OUT_OF_ORDER,
    _Ack.UNKNOWN_PRODUCER: BatchRejection.UNKNOWN,
}
RECORD_BYTES = 16
"""Overhead of a record, and of each header, in a batch: at most this many bytes."""
BATCH_BYTES = 4096
"""Overhead of a batch in a message: at most this many bytes. If ``max_payload`` is small, a fourth of it is reserved."""
MOST_ON_THEIR_WAY = 5
"""Maximum number of batches in flight per partition. The leader remembers this many batches of a producer."""

Begin = Literal["resume", "repeat", "anew"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """Options of a Producer.

    Args:
        linger_s: Time that a batch waits for more records, in seconds (0 to 60). Default 0: send at once. Under load,
            batches grow by themselves.
        batch_bytes: Maximum size of a batch (1 to 64 MiB, and at most one NATS message). Default 1,000,000.
        batch_records: Maximum number of records in a batch (1 to 65,536). Default 16,384.
        window: Batches in flight per partition (1 to 5). Default 5.
        buffer_bytes: Size of records without an ack, over all partitions (1 to 4 GiB). ``send`` waits beyond it.
            Default 32 MiB.
        buffer_records: Number of records without an ack, over all partitions (1 to 67,108,864). Default 262,144.
        attempt_s: Time to wait for the ack of a batch before it is sent again, in seconds (0.01 to 600). Default 2.
        patience_s: Total time for all attempts of a batch, in seconds (0.01 to 86,400). Default 120.
        begin: Where a process with the same id continues: ``resume`` (default), ``repeat`` or ``anew``. ``Producer``
            explains them.

    Raises:
        ConfigError: A value is out of range.

    Example:
        options = liftpy.ProducerOptions(linger_s=0.01, begin="repeat")
        producer = await client.producer("orders", id="import-7", options=options)
    """

    linger_s: float = 0.0
    batch_bytes: int = 1_000_000
    batch_records: int = 16_384
    window: int = MOST_ON_THEIR_WAY
    buffer_bytes: int = 32 * 1024 * 1024
    buffer_records: int = 262_144
    attempt_s: float = 2.0
    patience_s: float = 120.0
    begin: Begin = "resume"

    def __post_init__(self) -> None:
        bounds = {
            "linger_s": (0, 60),
            "batch_bytes": (1, 64 << 20),
            "batch_records": (1, 65_536),
            "window": (1, MOST_ON_THEIR_WAY),
            "buffer_bytes": (1, 4 << 30),
            "buffer_records": (1, 1 << 26),
            "attempt_s": (0.01, 600),
            "patience_s": (0.01, 86_400),
        }
        check_bounds(self, bounds)
        if self.begin not in ("resume", "repeat", "anew"):
            raise ConfigError(f"Invalid begin = {self.begin!r}. Use resume, repeat or anew.")


class Source(NamedTuple):
    """The partition of another stream that a producer makes its records from.

    Args:
        stream: Name of the source stream.
        partition: Number of the source partition. Default 0.
        generation: Generation of the group member that reads it. The leader rejects records of a lower generation.
            Default 0: no group, and the process that opened the producer last continues.

    Example:
        source = Source("orders", 0)
        async with client.producer("totals", id="totals-0", source=source) as producer:
            print(producer.begin_after)
    """

    stream: str
    partition: int = 0
    generation: int = 0

    def position_in(self, stream: StreamImage) -> SourcePosition:
        """Return the source position at offset 0. Raise NotFoundError if the source stream has no such partition.

        Args:
            stream: Description of the source stream.
        """
        check_partition(self.partition)
        check_count("generation", self.generation)
        if self.partition >= len(stream.partitions):
            raise NotFoundError(
                f"Stream {stream.name} has no partition {self.partition}. Check `liftpy stream show {stream.name}`."
            )
        return SourcePosition(stream.uid, self.partition, 0, self.generation)


def check_answers(stream: StreamImage) -> None:
    """Raise ConfigError if the stream sends no acks: a producer needs them."""
    if not stream.answers:
        raise ConfigError(
            f"Stream {stream.name} has the ack policy none, but a producer needs acks. Use a stream with the ack "
            "policy leader or all."
        )


ANONYMOUS = "anonymous-"
"""Prefix of the names of producers without an id."""


def name_for(name: str, source: Source | None) -> str:
    """Return the id of a producer: ``name``, or a random id if ``name`` is ''. Raises ConfigError if a source needs an id."""
    if source is not None and not name:
        raise ConfigError("A producer with a source needs an id, so that the next process can resume. Set the id.")
    return name or f"{ANONYMOUS}{secrets.token_hex(12)}"


class ManyAck(NamedTuple):
    """The place of a part of the records of ``send_many``. All of it lies in one batch.

    Attributes:
        partition: Number of the partition.
        offset: Offset of the first record. -1: not known, because the records were stored before.
        record_count: Number of records in this part.
        leader_epoch: LeaderEpoch in which the batch was appended.
        duplicate: True if the records were stored before.
    """

    partition: int
    offset: int
    record_count: int
    leader_epoch: int
    duplicate: bool


class BatchFuture:
    """Result of one batch. The receipts of its records share it."""

    __slots__ = ("future", "partition", "record_count", "stream")

    def __init__(self, stream: str, partition: int) -> None:
        self.stream = stream
        self.partition = partition
        self.future: asyncio.Future[BatchResult] = asyncio.get_running_loop().create_future()
        self.record_count = 0
        """Number of records in the batch. 0 until the batch is stored."""

    def fail(self, error: LiftError) -> None:
        """Fail the batch with ``error``. asyncio does not complain if the application never reads the error."""
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()


class Receipt:
    """Future ack of one record. Await it to get the PublishAck, or the error. ``Producer.send`` returns it.

    Example:
        receipt = await producer.send(b"one")
        ack = await receipt
    """

    __slots__ = ("_index", "_ticket")

    def __init__(self, ticket: BatchFuture, index: int) -> None:
        self._ticket = ticket
        self._index = index

    def __await__(self) -> Generator[Any, None, PublishAck]:
        placed = yield from _result_of(self._ticket).__await__()
        known = self._index < placed.known_records
        offset, epoch = _offset_of(placed, self._index), placed.leader_epoch
        return PublishAck(self._ticket.stream, self._ticket.partition, offset, epoch, known)

    @property
    def done(self) -> bool:
        """True if the record is acked or has failed."""
        return self._ticket.future.done()


class ManyReceipt:
    """Future acks of records that were sent together. Await it to get a list of ManyAck.

    ``Producer.send_many`` returns it.

    Example:
        receipt = await producer.send_many([b"one", b"two"])
        print(sum(ack.record_count for ack in await receipt))
    """

    __slots__ = ("_shares",)

    def __init__(self, shares: list[tuple[BatchFuture, int, int]]) -> None:
        self._shares = shares

    def __await__(self) -> Generator[Any, None, list[ManyAck]]:
        return self._all().__await__()

    @property
    def done(self) -> bool:
        """True if all records are acked or have failed."""
        return all(ticket.future.done() for ticket, _, _ in self._shares)

    async def _all(self) -> list[ManyAck]:
        acks = []
        for ticket, first, count in self._shares:
            placed = await _result_of(ticket)
            known = min(max(placed.known_records - first, 0), count)
            for start, end, duplicate in ((first, first + known, True), (first + known, first + count, False)):
                if start < end:
                    offset = _offset_of(placed, start)
                    acks.append(ManyAck(ticket.partition, offset, end - start, placed.leader_epoch, duplicate))
        return acks


async def _result_of(ticket: BatchFuture) -> BatchResult:
    return await asyncio.shield(ticket.future)


def _offset_of(placed: BatchResult, index: int) -> int:
    """Return the offset of record ``index`` of a batch with the result ``placed``.

    -1: the offset is not known, because the record was stored before.
    """
    if placed.offset < 0:
        return -1
    return placed.offset + index - placed.known_records if index >= placed.known_records else -1


@dataclass(slots=True, kw_only=True)
class SenderContext:
    """Values that all partition senders of a producer share.

    ``instance``: random number of this process. ``name``: id of the producer.
    """

    transport: Transport
    stream: str
    instance: int
    name: str
    source: SourcePosition | None
    """Source partition of the producer. Its offset is not used. None: no source."""
    round: Round | None
    """Round that the producer writes. ``source`` is then the position of the round. None: no round."""
    partitioning: Partitioning | None = None
    """How the producer chooses partitions, known when all are open. None: it cannot be described."""
    inbox: str
    options: ProducerOptions
    failed: Callable[[LiftError], None]
    """Callback with the error that ends the producer."""
    buffer: Window
    """Records without an answer. The senders remove those that were answered."""


class PartitionSender:
    """Sends the batches of a producer to one partition.

    ``context``: values that all senders share. ``queue``: send queue of the partition. ``find``: requests the current address.
    """

    def __init__(
        self,
        context: SenderContext,
        partition: int,
        address: Address,
        queue: PartitionQueue,
        find: Callable[[bool], Awaitable[Address]],
    ) -> None:
        self._transport = context.transport
        self._stream = context.stream
        self._context = context
        self._options = context.options
        self._failed = context.failed
        self.partition = partition
        self.queue = queue
        self.addressing = Addressing(address, find, self._leader_moved, context.failed)
        self.awake = asyncio.Event()
        self.newest: Any = None
        """BatchFuture of the batch that contains the last added record."""
        self._refusal: LiftError | None = None
        self.repeat = Repeat()
        """Records of the producer's round that this partition has stored already."""
        self.known: client_pb2.ProducerState | None = None
        """State of the producer in the log when the sender was opened. None: no state."""
        self._acked: tuple[int, int] | None = None
        """Offset and LeaderEpoch of the newest ack that contained an offset. None: no such ack yet."""

    # ---- its epoch -----------------------------------------------------------------------------------------------------
    async def begin(self) -> None:
        """Ask the leader for the stored state of this producer, and start the queue with it."""
        state, how = await self._ask(), self._options.begin
        self.known = state if state.known else None
        digest = RollingDigest.decode(state.digest) if state.digest else None
        if self._context.round is not None and not self._is_of_the_round(state):
            self.queue.begin(state.epoch, 0, RollingDigest(), reset=True)
        elif self._context.round is not None:
            self.repeat = Repeat(state.nextSequence, digest, partitions_in(state.position.offset))
            self.queue.begin(state.epoch, state.nextSequence, digest)
        elif how == "resume":
            position = state.position.offset if state.HasField("position") else -1
            self.queue.begin(state.epoch, state.nextSequence, digest, position=position)
        else:
            self.queue.begin(state.epoch, 0, RollingDigest(), reset=how == "anew")

    async def _begin_again(self) -> None:
        """Request a new producer epoch and continue with it. The leader that assigned the last epoch has failed without a record of it.

        Raises PublishRejectedError if another process has used the producer since then.
        """
        state = await self._ask()
        sequence, digest = self.queue.unanswered
        same = state.nextSequence == sequence and (digest is None or state.digest in (b"", digest.encode()))
        if self._context.round is not None:  # no record of the round may be stored before its first batch
            same = same and self._is_of_the_round(state) if sequence else not self._is_of_the_round(state)
        if state.known and self._options.begin == "resume" and not same:
            text = (
                f"Another process has published to {self._stream}/{self.partition} with this producer id. Stop this process, or use "
                "another producer id."
            )
            raise PublishRejectedError(text, "PRODUCER_FENCED")
        own, known = self._context.partitioning, state.partitioning
        if self._options.begin == "repeat" and own is not None and known.partitions not in (0, own.partitions):
            text = (
                f"Another process with this producer id sent the records of this round to {self._stream} with another number of "
                "partitions. Use the same number in both, or another producer id."
            )
            raise PublishRejectedError(text, "DIVERGED_PRODUCER")
        self.queue.begin_new_epoch(state.epoch)

    def _is_of_the_round(self, state: client_pb2.ProducerState) -> bool:
        source = self._context.source
        return state.HasField("position") and source is not None and state.position.generation == source.generation

    def add_columns(self, columns: RecordColumns, start: int, end: int, size_bytes: int, partitions: int) -> BatchFuture:
        """Add a part of ``columns`` to the send queue as one batch, and return the future of its result."""
        last = self.queue.next_sequence + end - start - 1
        round = self._context.round
        position = -1 if round is None else offset_in(partitions, last, round.plan)
        ticket: BatchFuture = self.queue.add_columns(columns.cut(start, end), size_bytes, position)
        self.awake.set()
        return ticket

    async def _ask(self) -> client_pb2.ProducerState:
        return await retry_attempts(self._options.patience_s)(self._ask_once)

    async def _ask_once(self) -> client_pb2.ProducerState:
        head = self._head()
        head.askedProducer, head.producerSequence = self.queue.producer_id, self.queue.unanswered[0]
        head.producerName = self._context.name
        self._add_position(head, 0 if self._context.round is None else self._context.round.position.offset)
        if self._acked is not None:
            head.producerAckedOffset, head.producerAckedEpoch = self._acked
        message = await self._transport.exchange(
            self.addressing.address.subject, frames.batch_publish(head, b""), self._options.attempt_s
        )
        ack = self._ack_in(message)
        if ack is None:
            raise UnavailableError(
                f"Received an ack for {self.addressing.address.subject} from another stream. Another stream or "
                "cluster stores this subject. Check `liftpy stream list`: only one stream per subject may send acks."
            )
        if ack.ackError == _Ack.OK:
            return ack.producer
        self.addressing.doubt(is_wrong=ack.ackError == _Ack.WRONG_STREAM)
        if _REFUSALS.get(ack.ackError) is BatchRejection.AGAIN:
            raise UnavailableError(
                f"{self._stream}/{self.partition} rejected the request for now: {ack.detail or ack.ackError}. Retry it later."
            )
        error = rejection(ack, "records")
        if self._context.round is not None and error.reason == "DIVERGED_PRODUCER":
            raise PlanChangedError(str(error))
        raise error

    def _add_position(self, head: client_pb2.BatchPublish, offset: int) -> None:
        source = self._context.source
        if source is not None:
            head.producerPosition.CopyFrom(source._replace(offset=offset).message())

    def _head(self) -> client_pb2.BatchPublish:
        return client_pb2.BatchPublish(
            stream=self._stream,
            streamUid=self.addressing.address.uid,
            partition=self.partition,
            ackPolicy=client_pb2.ALL,
            producerInstance=self._context.instance,
        )

    # ---- sending -------------------------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Send the queued batches until the task is canceled, or until an error ends the producer."""
        loop, transport = asyncio.get_running_loop(), self._transport
        renewed = transport.reconnected
        while True:
            self.awake.clear()
            if renewed.done():  # it is unknown which messages of the old connection have arrived
                renewed = transport.reconnected
                self.queue.connection_renewed(loop.time())
            try:
                if self.queue.asks:
                    await self._begin_again()
                if self.queue.late(loop.time()):
                    self.addressing.doubt()
                    transport.check_server()
                self._check_patience(loop.time())
                while (batch := self.queue.next_to_send(loop.time())) is not None:
                    await self._send_to_nats(batch)
            except LiftError as error:
                self._failed(error)
                return
            except Exception as error:  # the application must see a bug, too
                self._failed(LiftError(f"Cannot send to {self._stream}/{self.partition}: {error!r}. Open the producer again."))
                raise
            await self._until(self._wake_at(), renewed)

    def _wake_at(self) -> float | None:
        """Return the time at which the queue must be asked again, or at which the patience for its first batch ends."""
        at, first = self.queue.wake_at(), self.queue.first_unanswered
        if at is None or first is None or not first.attempt:
            return at
        return min(at, first.first_at + self._options.patience_s)  # a quota may require a longer pause

    async def _until(self, at: float | None, renewed: asyncio.Future[None]) -> None:
        """Wait until the time ``at`` (None: no time), until the queue has work, or until the connection was renewed."""
        loop, awake = asyncio.get_running_loop(), self.awake
        due_at = math.inf if at is None else max(at, loop.time())
        timer = None if at is None else loop.call_at(at, awake.set)
        wake = lambda _: awake.set()  # noqa: E731
        renewed.add_done_callback(wake)
        try:
            await awake.wait()
        finally:
            renewed.remove_done_callback(wake)
            if timer is not None:
                timer.cancel()
        if late_s := suspended_s(due_at):
            self.queue.extend(late_s)

    def _check_patience(self, now: float) -> None:
        first = self.queue.first_unanswered
        if first is not None and first.attempt and now >= first.first_at + self._options.patience_s:
            why = self._refusal or UnavailableError("no ack arrived in time")
            raise OutcomeUnknownError(
                f"No ack from {self._stream}/{self.partition} within {self._options.patience_s:g} s: {why}. The "
                f"records may be stored. Check the leader with `liftpy status --stream {self._stream}`."
            )

    async def _send_to_nats(self, batch: ProducerBatch) -> None:
        head = self._head()
        head.producerReset, head.producerDigest = batch.reset, b"" if batch.digest is None else batch.digest.encode()
        if batch.names:
            head.producerName = self._context.name
            if self._context.partitioning is not None:
                head.producerPartitioning.CopyFrom(self._context.partitioning.message())
        self._add_position(head, batch.position)
        reply = f"{self._context.inbox}.{self.partition}-{batch.sequence}-{batch.attempt}"
        payload = frames.batch_publish(head, batch.encoded)
        now = asyncio.get_running_loop().time()
        try:
            await self._transport.publish(self.addressing.address.subject, payload, reply, give_up_at=batch.answer_by)
        except ProtocolError as error:
            raise PublishRejectedError(str(error), "TOO_LARGE") from None
        except UnavailableError as error:
            self._batch_rejected(batch.sequence, batch.attempt, BatchRejection.AGAIN, error, now)

    # ---- answers -------------------------------------------------------------------------------------------------------
    def process_answer(self, sequence: int, attempt: int, message: Any) -> None:
        """Process the answer to an attempt to store the batch that begins at ``sequence``."""
        now = asyncio.get_running_loop().time()
        if is_no_responders(message):
            error = UnavailableError(
                f"No responders on {self.addressing.address.subject}. {self._stream} may have no leader: check "
                f"`liftpy status --stream {self._stream}`."
            )
            self.addressing.doubt()
            self._batch_rejected(sequence, attempt, BatchRejection.AGAIN, error, now)
            return
        ack = self._ack_in(message)
        if ack is None:
            return
        if ack.ackError == _Ack.OK:
            self.addressing.sure()
            self._batch_acked(sequence, ack)
            return
        if ack.ackError == _Ack.WRONG_STREAM or not ack.streamUid:
            self.addressing.doubt(is_wrong=ack.ackError == _Ack.WRONG_STREAM)
        refusal = _REFUSALS.get(ack.ackError, BatchRejection.FINAL)
        after_s = ack.retryAfterMs / 1000 if ack.ackError == _Ack.QUOTA else 0.0
        self._batch_rejected(sequence, attempt, refusal, rejection(ack, "records"), now, ack.producer.nextSequence, after_s)

    def _batch_acked(self, sequence: int, ack: _Ack) -> None:
        offset = ack.offset
        if offset >= 0:  # the offset of any stored record of the batch
            self._acked = max(offset, self._acked[0] if self._acked else 0), ack.leaderEpoch
        known = ack.recordCount if ack.duplicate else ack.knownRecords
        if ack.duplicate and self._options.begin != "repeat" and offset >= 0:
            known, offset = 0, offset  # this process has sent the batch twice, and the leader stored it once, at this offset
        elif ack.duplicate:
            offset = -1  # an earlier process may have stored the records in other batches, at unknown offsets
        for batch, placed in self.queue.acked(sequence, BatchResult(offset, ack.leaderEpoch, known)):
            ticket: BatchFuture = batch.ticket
            ticket.record_count = batch.record_count
            if not ticket.future.done():
                ticket.future.set_result(placed)
            self._context.buffer.leave(batch.size_bytes, batch.record_count)
        self.awake.set()

    def _batch_rejected(
        self,
        sequence: int,
        attempt: int,
        refusal: BatchRejection,
        error: LiftError,
        now: float,
        due: int = 0,
        after_s: float = 0.0,
    ) -> None:
        self._refusal = error
        if not self.queue.refused(sequence, attempt, refusal, now, due, after_s):
            self._failed(error)
        self.awake.set()

    def _ack_in(self, message: Any) -> _Ack | None:
        """Return the ack in a received message. None: it is no ack of the addressed partition, which is counted."""
        payload = message if isinstance(message, bytes) else bytes(message.data)
        try:
            ack = frames.decode(payload, _Ack)
        except ProtocolError:
            ack = None
        uid = self.addressing.address.uid
        ours = ack is not None and (ack.stream, ack.partition) == (self._stream, self.partition)
        ours = ours and ack is not None and (ack.ackError == _Ack.WRONG_STREAM or ack.streamUid in ("", uid) or not uid)
        if not ours:
            self._transport.counters["acks by somebody else"] += 1
            self.addressing.doubt()
            return None
        return ack

    def _leader_moved(self) -> None:
        self._failed(NotFoundError(f"Stream {self._stream} was deleted and created again. Open the producer again."))
