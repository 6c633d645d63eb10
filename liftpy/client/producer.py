"""``Producer``: stores each record once and in order per partition, also across failures and restarts.

Records travel in batches with sequence numbers, one message per batch. The leader stores a batch as it is, and
recognizes the producer by its id. So a batch that is sent twice is stored once. A process that returns with the same id
asks the leaders where to continue (``ProducerOptions.begin``).
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Literal

import numpy as np

from liftpy.client.arguments import MAX_INT64, check_function, check_list, check_partition, check_text
from liftpy.client.encode_publish import Address
from liftpy.client.in_flight import Window
from liftpy.client.partition_queue import PartitionQueue
from liftpy.client.partition_sender import (
    BATCH_BYTES,
    RECORD_BYTES,
    BatchFuture,
    ManyReceipt,
    PartitionSender,
    ProducerOptions,
    Receipt,
    SenderContext,
)
from liftpy.client.write_epoch import Round
from liftpy.core.base.ids import is_utf8, quote
from liftpy.core.publish.jetstream_headers import first_refused
from liftpy.core.wire.batch import RecordColumns
from liftpy.core.wire.headers import HeadersLike, pairs_of
from liftpy.core.wire.partitioner import partition_of, partitions_of
from liftpy.core.wire.producer_note import BY_KEY, MAX_NAME_BYTES, Partitioning, PartitioningMethod, SourcePosition
from liftpy.errors import (
    ClientClosedError,
    ConfigError,
    LiftError,
    NotAllowedError,
    OutcomeUnknownError,
    PublishRejectedError,
)
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.transport import Transport, unsubscribe

Partitioner = Literal["key", "sticky", "round-robin"] | Callable[[bytes | None, int], int]
"""How a producer chooses the partition of a record.

- ``key``: by Kafka's hash of the key. A record without key is treated as with ``sticky``.
- ``sticky``: one partition until its batch is full or sent, then the next.
- ``round-robin``: the next partition for each record.
- A function of (key or None, number of partitions).
"""
_CHUNK_RECORDS = 65_536
_NO_POSITIONS = "A producer with a source needs the source position of each record. Use send_many(..., positions=)."
_METHODS = {
    ("key", False): PartitioningMethod.KEY,
    ("key", True): PartitioningMethod.KEY_OR_NUMBER,
} | {
    (how, numbered): PartitioningMethod.NUMBER if numbered else PartitioningMethod.RANDOM
    for how in ("sticky", "round-robin")
    for numbered in (False, True)
}
"""(Partitioner, whether keyless records are partitioned by their number) -> method that is stored in the log."""


class Producer:
    """Stores each record of one stream once and in order per partition.

    Create it with ``client.producer``. Leaving the ``async with`` block waits for all acks (``flush``).

    If several processes open the same ``id``, the newest one continues. The others fail with PublishRejectedError
    (``PRODUCER_FENCED``). ``ProducerOptions.begin`` says where a process continues that returns:

    - ``resume``: after the last stored record. ``next_sequence`` says how many are stored.
    - ``repeat``: at the first record of the producer. The process sends all records again, and the leader skips the
      stored ones. If they differ, it rejects them (``DIVERGED_PRODUCER``).
    - ``anew``: the producer starts at sequence 0, as a new id does.

    With ``repeat`` or ``anew``, the partition of a record without key follows from its number, so a repeated record
    goes to the same partition. If that is not possible, ``send`` raises PublishRejectedError (``DIVERGED_PRODUCER``).

    The first error ends the producer: every later call raises it. Open the producer again to continue. The error
    ``RECORDS_LOST`` means that the log lost stored records, after an unclean election or the loss of a data directory.

    Example:
        async with client.producer("orders", id="till-7") as producer:
            receipt = await producer.send(b"one", key=b"k")
            print((await receipt).offset)
    """

    def __init__(
        self,
        transport: Transport,
        stream: str,
        name: str,
        addresses: Sequence[Address],
        options: ProducerOptions,
        partitioner: Partitioner,
        find: Callable[[int, bool], Awaitable[Address]],
        source: SourcePosition | Round | None = None,
    ) -> None:
        self._round = source if isinstance(source, Round) else None
        source = source.position if isinstance(source, Round) else source
        if source is not None and options.begin != "resume":
            raise ConfigError('A producer with a source must continue after the stored records. Set begin="resume".')
        self._source = source
        self._last_position = -1
        """Source offset of the last record that was sent. -1: none."""
        self._transport = transport
        self._stream = stream
        self.name = name
        self._options = options
        if not callable(partitioner) and partitioner not in ("key", "sticky", "round-robin"):
            raise ConfigError(f"Invalid partitioner {partitioner!r}. Use key, sticky, round-robin or a function.")
        if callable(partitioner):
            check_function("partitioner", partitioner)
        self._partitioner = partitioner
        self._most_bytes = transport.max_payload_bytes - min(BATCH_BYTES, transport.max_payload_bytes // 4)
        """Maximum size of the records in one message, in bytes. The rest of the message is for the overhead of a batch."""
        self._largest = min(options.batch_bytes, self._most_bytes)
        self._buffer = Window(options.buffer_records, options.buffer_bytes)
        self._inbox = transport.connection.new_inbox()
        self._context = SenderContext(
            transport=transport,
            stream=stream,
            instance=secrets.randbits(63) + 1,
            name=name,
            source=source,
            round=self._round,
            inbox=self._inbox,
            options=options,
            failed=self._fail,
            buffer=self._buffer,
        )
        producer_id = _number_of(name)
        self._senders = [
            PartitionSender(
                self._context, partition, address, self._new_queue(partition, producer_id), partial(find, partition)
            )
            for partition, address in enumerate(addresses)
        ]
        self._next = secrets.randbelow(len(self._senders))
        """Partition for the next record without a key, if the partitioner does not use the record's number."""
        self._next_number = producer_id % (1 << 32)
        """Number of the next record, if the partitioner uses the record's number."""
        self._is_numbered = options.begin != "resume" and not callable(partitioner)
        self._used = len(self._senders)
        self._why_not_repeatable = self._why_not_keyless = ""
        """Why partitions of repeated records cannot be chosen again: of all records, and of keyless records. '': they can."""
        self._tasks: list[asyncio.Task[None]] = []
        self._subscription: Any = None
        self._has_started = False
        """True if a batch that contains the last single record is open."""
        self._yielding = 0
        """Number of ``send`` calls that yield to other tasks. A later ``send`` waits for them."""
        self._failure: LiftError | None = None
        self._is_failure_reported = False
        """True if the application has seen the error."""
        self._loop = asyncio.get_running_loop()
        self._unwatch = [transport.on_denial(self._on_denial), transport.on_close(self._on_close)]

    def _new_queue(self, partition: int, producer_id: int) -> PartitionQueue:
        options = self._options
        return PartitionQueue(
            producer_id,
            window=options.window,
            batch_bytes=self._largest,
            batch_records=options.batch_records,
            attempt_s=options.attempt_s,
            linger_s=options.linger_s,
            new_ticket=lambda: BatchFuture(self._stream, partition),
        )

    @property
    def failure(self) -> LiftError | None:
        """Error that ended the producer. None: the producer works."""
        return self._failure

    @property
    def source_uid(self) -> str:
        """Uid of the source stream when the producer was opened. '': no source."""
        return "" if self._source is None else self._source.stream_uid

    @property
    def partitions(self) -> int:
        """Number of partitions of the stream when the producer was opened."""
        return len(self._senders)

    @property
    def used_partitions(self) -> int:
        """Number of partitions that the partitioner chooses among.

        With ``begin="repeat"`` it is the number that the stream had when the first record of the producer was sent.
        """
        return self._used

    @property
    def unanswered(self) -> tuple[int, int]:
        """Records that are not acked yet, and their approximate size in bytes.

        ``buffer_records`` and ``buffer_bytes`` limit them.
        """
        return self._buffer.count, self._buffer.size_bytes

    @property
    def resends(self) -> int:
        """Number of batches that were sent again."""
        return sum(sender.queue.sent_again for sender in self._senders)

    def next_sequence(self, partition: int = 0) -> int:
        """Return the sequence number of the next record to a partition.

        After ``resume``, before anything is sent, it is the number of stored records of this producer, modulo 2**32.

        Args:
            partition: Number of the partition. Default 0.

        Raises:
            ConfigError: No such partition.
        """
        return self._sender(partition).queue.next_sequence

    @property
    def begin_after(self) -> int:
        """With a source: source offset (inclusive) whose results all partitions had when the producer was opened.

        -1: none. Continue to read the source at the next offset. The producer skips results that some partitions have
        already.
        """
        return min(sender.queue.position for sender in self._senders)

    def _sender(self, partition: int) -> PartitionSender:
        check_partition(partition)
        if partition >= len(self._senders):
            raise ConfigError(
                f"Stream {self._stream} has no partition {partition}. Its partitions are 0 to {len(self._senders) - 1}."
            )
        return self._senders[partition]

    @property
    def round_partitions(self) -> int:
        """Number of partitions that the records of a round are distributed over.

        It is the number of partitions when the round began. Raises PublishRejectedError (``DIVERGED_PRODUCER``) if
        parts of the round used different numbers.
        """
        counts = {sender.repeat.partitions for sender in self._senders} - {0}
        if len(counts) > 1:
            text = (
                f"Partitions were added to {self._stream} during this round: its records were sent to {sorted(counts)} partitions. "
                "Name the partition of each record (partition=), or use another producer id."
            )
            raise PublishRejectedError(text, "DIVERGED_PRODUCER")
        return min(counts.pop(), self.partitions) if counts else self.partitions

    @property
    def left_out(self) -> int:
        """Number of records of the round that were not sent, because they were stored before."""
        return sum(sender.repeat.passed for sender in self._senders)

    async def end_round(self) -> None:
        """Wait until all records of the round are stored.

        Raises:
            LiftError: The first error of the producer.
            PublishRejectedError: ``DIVERGED_PRODUCER``: more records were stored before than were sent now.
        """
        for sender in self._senders:
            sender.repeat.check_whole()
        await self.flush()

    # ---- opening and closing ---------------------------------------------------------------------------------------------
    async def open(self) -> None:
        """Ask the leader of every partition where to continue. ``client.producer`` calls it."""
        try:
            self._subscription = await self._transport.listen(f"{self._inbox}.*", self._on_answer, self._options.attempt_s)
            async with asyncio.TaskGroup() as group:
                for sender in self._senders:
                    group.create_task(sender.begin())
            if (used := self._partitions_used_before()) > self.partitions:
                raise PublishRejectedError(
                    f"An earlier process of this producer used {used} partitions of {self._stream}, but the stream has "
                    f"{self.partitions}. Add the missing partitions, or use another producer id.",
                    "DIVERGED_PRODUCER",
                )
        except BaseExceptionGroup as group_of:
            await self.close()
            raise group_of.exceptions[0] from None
        except BaseException:
            await self.close()
            raise
        self._choose_partitioning()
        self._tasks = [
            asyncio.create_task(sender.run(), name=f"producer of {self._stream}/{sender.partition}") for sender in self._senders
        ]

    def _partitions_used_before(self) -> int:
        """Return the number of partitions that an earlier process used, if this process sends its records again. Otherwise 0."""
        counts = [sender.repeat.partitions for sender in self._senders]
        if self._options.begin == "repeat":
            counts += [sender.known.partitioning.partitions for sender in self._senders if sender.known is not None]
        return max(counts)

    async def flush(self) -> None:
        """Wait until every record is stored.

        Raises:
            LiftError: The error that ended the producer.

        Example:
            await producer.send_many(values)
            await producer.flush()
        """
        self._transport.check_event_loop()
        waiting = []
        for sender in self._senders:
            sender.queue.hurry()
            sender.awake.set()
            waiting += [ticket.future for ticket, _ in sender.queue.tickets]
        if waiting and self._failure is None:
            await asyncio.wait(waiting)
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            self._is_failure_reported = True
            raise self._failure

    async def close(self) -> None:
        """Stop without waiting for acks. Call ``flush`` first to wait for them.

        Records that were sent without an ack fail with OutcomeUnknownError and may be stored. Records that were not
        sent fail with ClientClosedError.
        """
        self._transport.check_event_loop()
        if self._failure is None:  # the end of a block must not raise an error for a close that the application has called
            self._is_failure_reported = True
        self._fail(ClientClosedError(f"Producer {self.name} is closed. Open a new producer."))
        for unwatch in self._unwatch:
            unwatch()
        subscription, self._subscription = self._subscription, None
        try:
            await end_tasks([*self._tasks, *(sender.addressing.task for sender in self._senders)])
        finally:
            await unsubscribe(subscription)

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and not self._is_failure_reported:  # do not raise an error that the application has handled
                await self.flush()
        finally:
            await self.close()

    # ---- sending -----------------------------------------------------------------------------------------------------------
    async def send(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        partition: int | None = None,
    ) -> Receipt:
        """Add one record to the next batch.

        The call waits only for room in the buffer. If it is cancelled, it has taken nothing.

        Args:
            value: Payload. None is a tombstone: compaction deletes ``key``.
            key: Key of the record. Default None: no key.
            headers: A mapping, or pairs of name and value. Default None.
            partition: Number of the partition. Default None: the partitioner chooses.

        Returns:
            A receipt. Await it to get the PublishAck. This is optional.

        Raises:
            LiftError: The error that ended the producer.
            ConfigError: The record is not valid, or the producer has a source.
            PublishRejectedError: ``TOO_LARGE``: the record does not fit into a message.

        Example:
            receipt = await producer.send(b"one", key=b"k")
            ack = await receipt
        """
        self._check_usable()
        if self._has_started or self._yielding:
            await self._yield_to_other_tasks()
            self._check_usable()
        if self._source is not None:
            self._must_have_no_round()
            raise ConfigError(_NO_POSITIONS)
        pairs = pairs_of(headers) if headers else ()
        size_bytes = _size_of(value) + _size_of(key) + RECORD_BYTES
        if pairs:
            _check_header_names(name for name, _ in pairs)
            size_bytes += sum(len(name.encode()) + len(content) + RECORD_BYTES for name, content in pairs)
        self._check_size(size_bytes)
        if partition is None:
            self._check_same_partitions(keyless=key is None)
        sender: PartitionSender | None = None
        if partition is not None:
            sender = self._sender(partition)
        elif not self._is_numbered:
            sender = self._choose(key)
        if not self._buffer.try_enter(size_bytes):
            await self._buffer.enter(size_bytes)
            self._check_usable()
        sender = sender or self._choose(key)  # a number is used only if the record has entered the buffer
        ticket, index = sender.queue.add(value, key, pairs, size_bytes, self._loop.time())
        sender.awake.set()
        if ticket is not sender.newest:
            sender.newest, self._has_started = ticket, True
        return Receipt(ticket, index)

    async def _yield_to_other_tasks(self) -> None:
        """Let other tasks run once per batch, before a record is added. So a canceled ``send`` has added no record."""
        self._yielding += 1
        try:
            await asyncio.sleep(0)
        finally:
            self._yielding -= 1
        self._has_started = False

    async def send_many(
        self,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        partition: int | None = None,
        positions: int | Sequence[int] | None = None,
    ) -> ManyReceipt:
        """Add many records, in order. Much faster than ``send`` in a loop.

        The call waits for room in the buffer. If it is cancelled or fails, some records are sent. Records of one
        partition stay in order.

        Args:
            values: Payloads. None is a tombstone.
            keys: One key or None for each value. Default None: no keys.
            partition: Number of the partition. Default None: the partitioner chooses.
            positions: With a source: source offset of each record, or one offset for all. Offsets ascend, also between
                calls. Send all results of one source record in one call. Records that are stored already are skipped.
                Default None.

        Returns:
            A receipt. Await it to get a ManyAck for each part that lies in one batch.

        Raises:
            LiftError: The error that ended the producer.
            ConfigError: The arguments do not fit together.
            PublishRejectedError: ``TOO_LARGE``: a record does not fit into a message.

        Example:
            receipt = await producer.send_many([b"one", b"two"], keys=[b"a", b"b"])
            for ack in await receipt:
                print(ack.partition, ack.offset, ack.record_count)
        """
        self._must_have_no_round()
        check_list("values", values, of="bytes or None")
        if keys is not None:
            check_list("keys", keys, of="bytes or None")
        source_positions = self._positions(positions, len(values))
        if keys is not None and len(keys) != len(values):
            raise ConfigError(
                f"The numbers of keys and values differ: {len(keys)} keys for {len(values)} values. Pass one key per value."
            )
        sizes = _sizes_of(values, keys)
        if sizes:
            self._check_size(max(sizes))
        if partition is not None:
            self._sender(partition)
        shares: list[tuple[BatchFuture, int, int]] = []
        start, ends = 0, list(accumulate(sizes))
        step_bytes = max(min(self._largest, self._options.buffer_bytes // 2), 1)
        step_records = min(_CHUNK_RECORDS, max(self._options.buffer_records // 2, 1), self._options.batch_records)
        while start < len(values):
            self._check_usable()
            end = _chunk_end(ends, start, step_bytes, step_records)
            if source_positions is not None:
                end = bisect_right(source_positions, source_positions[end - 1], end - 1)
            size_bytes = ends[end - 1] - (ends[start - 1] if start else 0)
            some_keys = None if keys is None else keys[start:end]
            if partition is None:
                self._check_same_partitions(keyless=some_keys is None or None in some_keys)
            by_number = partition is None and self._is_numbered
            # before the buffer is entered: an error of the partitioner takes no room in it
            places = [] if by_number else self._divide(end - start, some_keys, partition)
            if not self._buffer.try_enter(size_bytes, end - start):
                await self._buffer.enter(size_bytes, end - start)
                self._check_usable()
            if by_number:  # numbers are used only for records that have entered the buffer
                places = self._divide(end - start, some_keys, partition)
            if source_positions is not None:
                self._last_position = source_positions[end - 1]
            some_positions = None if source_positions is None else source_positions[start:end]
            shares += self._add_many(places, values[start:end], some_keys, sizes[start:end], some_positions)
            start = end
            await asyncio.sleep(0)
        return ManyReceipt(shares)

    async def send_columns(self, columns: RecordColumns, *, partition: int) -> ManyReceipt:
        """Add records in columns, in order. Faster than ``send_many``.

        In a round, pass all its records from the first one. Records that are stored already are skipped, also in the
        receipt. The call waits for room in the buffer. If it is cancelled or fails, some records are sent.

        Args:
            columns: The records as columns.
            partition: Number of the partition.

        Returns:
            A receipt. Await it to get a ManyAck for each part that lies in one batch.

        Raises:
            LiftError: The error that ended the producer.
            ConfigError: The records are not valid, or the producer has a source.
            PublishRejectedError: ``TOO_LARGE``: a record does not fit into a message. ``DIVERGED_PRODUCER``: other
                records of the round are stored.
        """
        self._check_usable()
        if self._source is not None and self._round is None:
            raise ConfigError(_NO_POSITIONS)
        sender, count = self._sender(partition), len(columns)
        if columns.headers is not None:
            names = columns.headers.names
            found = set(names.column(0, len(names)).to_list())
            _check_header_names((name or b"").decode("utf-8", "surrogateescape") for name in found)
        sizes = columns.sizes(RECORD_BYTES)
        self._check_size(int(sizes.max(initial=0)))
        ends, shares, start = np.cumsum(sizes), list[tuple[BatchFuture, int, int]](), 0
        step_bytes = max(min(self._largest, self._options.buffer_bytes // 2), 1)
        step_records = min(self._options.batch_records, max(self._options.buffer_records // 2, 1))
        partitions = self.round_partitions
        while start < count:
            self._check_usable()
            before = int(ends[start - 1]) if start else 0
            end = max(int(np.searchsorted(ends, before + step_bytes, "right")), start + 1)
            end = min(end, count, start + step_records)
            if sender.repeat.remaining_skips:
                end = min(end, start + sender.repeat.remaining_skips)
                sender.repeat.leave_out(columns, start, end)
            else:
                size_bytes = int(ends[end - 1]) - before
                if not self._buffer.try_enter(size_bytes, end - start):
                    await self._buffer.enter(size_bytes, end - start)
                    self._check_usable()
                shares.append((sender.add_columns(columns, start, end, size_bytes, partitions), 0, end - start))
                await asyncio.sleep(0)
            start = end
        return ManyReceipt(shares)

    def _must_have_no_round(self) -> None:
        if self._round is not None:
            raise ConfigError(
                "This producer writes a round and accepts only send_columns(). Use it for all records of the round."
            )

    def _positions(self, positions: int | Sequence[int] | None, count: int) -> Sequence[int] | None:
        if (positions is None) != (self._source is None):
            raise ConfigError("Source and positions belong together. Set both, or neither.")
        if positions is None:
            return None
        offsets = np.asarray([positions] * count if isinstance(positions, int) else positions)
        if len(offsets) != count:
            raise ConfigError(
                f"The numbers of positions and values differ: {len(offsets)} positions for {count} values. Pass one position "
                "per value."
            )
        if not count:
            return []
        if offsets.dtype.kind not in "iu" or offsets[-1] > MAX_INT64:
            raise ConfigError("Invalid positions. Use offsets of records in the source, as ints.")
        if offsets[0] <= self._last_position or (offsets[1:] < offsets[:-1]).any():
            raise ConfigError(
                f"The positions must ascend and be higher than {self._last_position}, the last position of the call before. Send "
                "all results of one source record in one call."
            )
        result: list[int] = offsets.tolist()
        return result

    def _add_many(
        self,
        places: list[tuple[PartitionSender, list[int] | None]],
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        sizes: Sequence[int],
        positions: Sequence[int] | None,
    ) -> list[tuple[BatchFuture, int, int]]:
        now, shares = self._loop.time(), []
        for sender, at in places:
            if positions is not None and positions[0] <= sender.queue.position:
                at = self._not_stored(sender.queue.position, positions, sizes, range(len(values)) if at is None else at)
            if at is None:
                new_shares = sender.queue.add_many(values, keys, sizes, now, positions)
            else:
                own_keys = None if keys is None else [keys[i] for i in at]
                own_positions = None if positions is None else [positions[i] for i in at]
                new_shares = sender.queue.add_many(
                    [values[i] for i in at], own_keys, [sizes[i] for i in at], now, own_positions
                )
            sender.awake.set()
            shares += new_shares
        return shares

    def _not_stored(self, known: int, positions: Sequence[int], sizes: Sequence[int], at: Sequence[int]) -> list[int]:
        """Return the indexes in ``at`` of the records that are not stored yet: their source offset is above ``known``.

        The buffer space of stored records is freed.
        """
        first = bisect_right(at, known, key=positions.__getitem__)
        if first:
            self._buffer.leave(sum(sizes[i] for i in at[:first]), first)
        return list(at[first:])

    def _divide(
        self, count: int, keys: Sequence[bytes | None] | None, partition: int | None
    ) -> list[tuple[PartitionSender, list[int] | None]]:
        """Divide ``count`` records between the partitions, and return each partition's sender with the indexes of its records.

        None instead of indexes means all records.
        """
        if partition is not None:
            return [(self._sender(partition), None)]
        if len(self._senders) == 1:
            return [(self._senders[0], None)]
        if self._is_numbered and (self._partitioner != "key" or keys is None):
            return self._divide_by_number(count)
        if self._partitioner == "sticky" or (self._partitioner == "key" and keys is None):
            self._next = (self._next + 1) % len(self._senders)
            return [(self._senders[self._next], None)]
        places: dict[int, list[int]] = {}
        if self._partitioner == "key" and keys is not None and None not in keys:
            for index, place in enumerate(partitions_of(keys, self._used).tolist()):  # type: ignore[arg-type]
                places.setdefault(place, []).append(index)
        else:
            for index in range(count):
                sender = self._choose(None if keys is None else keys[index])
                places.setdefault(sender.partition, []).append(index)
        return [(self._senders[place], at) for place, at in places.items()]

    def _divide_by_number(self, count: int) -> list[tuple[PartitionSender, list[int] | None]]:
        first, used = self._next_number, self._used
        self._next_number += count
        return [(self._senders[(first + at) % used], list(range(at, count, used))) for at in range(min(used, count))]

    def _choose(self, key: bytes | None) -> PartitionSender:
        senders, how = self._senders, self._partitioner
        if len(senders) == 1:
            return senders[0]
        if callable(how):
            return self._sender(how(key, self._used))
        if how == "key" and key is not None:
            return senders[partition_of(key, self._used)]
        if self._is_numbered:
            self._next_number += 1
            return senders[(self._next_number - 1) % self._used]
        if how == "round-robin" or senders[self._next].queue.next_record_begins_batch:
            self._next = (self._next + 1) % len(senders)
        return senders[self._next]

    # ---- the same partitions again ---------------------------------------------------------------------------------------------
    def _choose_partitioning(self) -> None:
        """Choose the method by which records get their partitions.

        A process that repeats the records of an earlier process must use the method of that process [A18].
        """
        if self._source is not None:
            return
        own = PartitioningMethod.FUNCTION if callable(self._partitioner) else _METHODS[self._partitioner, self._is_numbered]
        self._context.partitioning = Partitioning(len(self._senders), own)
        states = [sender.known for sender in self._senders if sender.known is not None]
        if self._options.begin != "repeat" or not states or len(self._senders) == 1:
            return
        counts = {state.partitioning.partitions for state in states}
        methods = {int(state.partitioning.method) for state in states}
        if 0 in counts:
            self._why_not_repeatable = "the log does not say how, or they were chosen in several ways"
        elif len(counts) > 1:
            self._why_not_repeatable = f"they were chosen among {' and among '.join(map(str, sorted(counts)))} partitions"
        elif counts == {1} or methods == {own}:
            self._used = counts.pop()
        elif own is PartitioningMethod.KEY_OR_NUMBER and methods <= BY_KEY:
            self._used, own = counts.pop(), PartitioningMethod.KEY
            self._why_not_keyless = 'a process with begin="resume" has chosen them at random for records without key'
        else:
            before = " and ".join(_method_name(method) for method in sorted(methods))
            self._why_not_repeatable = f"they were chosen by {before} before, and now by {_method_name(own)}"
        self._context.partitioning = None if self._why_not_repeatable else Partitioning(self._used, own)

    def _check_same_partitions(self, *, keyless: bool) -> None:
        why = self._why_not_repeatable or (self._why_not_keyless if keyless else "")
        if why:
            text = (
                f"Cannot choose the same partitions of {self._stream} again for the records of producer {self.name}: {why}. "
                "Name the partition of each record (partition=), or use another producer id."
            )
            raise PublishRejectedError(text, "DIVERGED_PRODUCER")

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self._most_bytes:
            text = (
                f"The record has about {size_bytes} bytes, but a message to this NATS server has room for {self._most_bytes} "
                f"bytes (max_payload is {self._transport.max_payload_bytes}). Send smaller records, or increase max_payload of "
                "the server."
            )
            raise PublishRejectedError(text, "TOO_LARGE")

    def _check_usable(self) -> None:
        if self._failure is not None:
            self._raise_failure()
        self._transport.must_be_usable()

    # ---- what happens --------------------------------------------------------------------------------------------------------
    async def _on_answer(self, message: Any) -> None:
        parts = message.subject.rpartition(".")[2].split("-")
        if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 12 for part in parts):
            return
        partition, sequence, attempt = map(int, parts)
        if partition < len(self._senders):
            self._senders[partition].process_answer(sequence, attempt, message)

    def _fail(self, error: LiftError) -> None:
        """End the producer with ``error``. Its batches without an ack fail, with OutcomeUnknownError if they may be stored."""
        if self._failure is not None:
            return
        self._failure = error
        for sender in self._senders:
            for ticket, attempts in sender.queue.tickets:
                unknown = attempts > 1 or (attempts and not isinstance(error, PublishRejectedError))
                ticket.fail(
                    OutcomeUnknownError(
                        f"The records were sent, but not acknowledged, so they may be stored. Read the "
                        f"stream to find out. Cause: {error}"
                    )
                    if unknown
                    else error
                )
            sender.awake.set()
        self._buffer.end()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    def _on_denial(self, is_publish: bool, subject: str) -> None:
        ours = {sender.addressing.address.subject for sender in self._senders} if is_publish else set()
        if subject in ours or (not is_publish and subject == f"{self._inbox}.*"):
            what = "publish on" if is_publish else "hear answers on"
            self._fail(
                NotAllowedError(
                    f"The NATS permissions of this user do not allow it to {what} {subject}. Change the permissions: "
                    "`liftpy permissions --role publisher` prints them."
                )
            )

    def _on_close(self) -> None:
        self._fail(ClientClosedError("The client is closed. Open a new client."))


def _number_of(name: str) -> int:
    """Return the 64-bit number of a producer in batches: a hash of the id ``name``."""
    check_text("id of a producer", name)
    if not name or not is_utf8(name) or len(name.encode()) > MAX_NAME_BYTES:
        raise ConfigError(f"Invalid id of a producer: {quote(name)}. Use 1 to {MAX_NAME_BYTES} bytes of UTF-8 text.")
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8, person=b"liftpy-producer").digest(), "big") or 1


def _method_name(method: int) -> str:
    return PartitioningMethod(method).name.lower() if method in list(PartitioningMethod) else f"method {method}"


def _check_header_names(names: Iterable[str]) -> None:
    if refused := first_refused(names):
        raise ConfigError(f"A producer does not support the header {refused!r}. Use client.publish() for this record.")


def _size_of(content: bytes | None) -> int:
    if content is None:
        return 0
    if not isinstance(content, bytes):
        raise ConfigError(f"Invalid value or key of type {type(content).__name__}. Values and keys must be bytes or None.")
    return len(content)


def _sizes_of(values: Sequence[bytes | None], keys: Sequence[bytes | None] | None) -> list[int]:
    sizes = [len(value) + RECORD_BYTES if type(value) is bytes else _size_of(value) + RECORD_BYTES for value in values]
    if keys is not None:
        sizes = [size + _size_of(key) for size, key in zip(sizes, keys, strict=True)]
    return sizes


def _chunk_end(ends: list[int], start: int, most_bytes: int, most_records: int) -> int:
    """Return the index after the last record of the batch that begins with the record ``start``."""
    before = ends[start - 1] if start else 0
    end = bisect_right(ends, before + most_bytes, start, min(len(ends), start + most_records))
    return max(end, start + 1)
