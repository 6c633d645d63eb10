"""One task's rows on their way to streams: exactly once in a round, or at least once. Runs on a link's loop.

A round (``liftpy.client.write_epoch``) is a micro-batch's share of one task: all its rows are there before the first is sent,
in the order
of their content. Without one, rows are sent as they come, and who runs the task again sends them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from liftpy.client.admin import Admin
from liftpy.client.consumer import PartitionReader, ReadOptions
from liftpy.client.partition_sender import ManyReceipt, ProducerOptions
from liftpy.client.producer import Producer, open_producer
from liftpy.client.progress import BackwardProgress
from liftpy.client.write_epoch import Round
from liftpy.core.wire.batch import RecordBatch
from liftpy.core.wire.batch_columns import Columns
from liftpy.core.wire.producer_note import ProducerNote, SourcePosition
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import ConfigError
from liftpy.nats.transport import Transport
from liftpy.spark.sink_options import SinkOptions
from liftpy.spark.sink_rows import as_binary, by_stream, check_rows, in_order, places_of, shares_of

_LOOK_BYTES = 4 << 20
"""Of a partition, read for what an earlier run of a micro-batch has stored, where nothing says that there was one."""
_LOOK_AGAIN_BYTES = 256 << 20


class Range(NamedTuple):
    """What a task stored in a partition: offsets from ``start_offset`` (inclusive) to ``end_offset`` (exclusive); records of others may
    lie between its own, ``record_count`` of them."""

    stream: str
    partition: int
    start_offset: int
    end_offset: int
    record_count: int


@dataclass(frozen=True, slots=True)
class Sent:
    """``rows``: of the task. ``known``: of them, those that an earlier attempt had stored. ``ranges``: of the others."""

    rows: int = 0
    known: int = 0
    ranges: tuple[Range, ...] = ()


def gathered(batches: Iterable[pa.RecordBatch], options: SinkOptions) -> pa.Table | None:
    """All rows of a task, checked; None: there are none. Raises ConfigError beyond maxTaskBytes."""
    tables, size_bytes = [], 0
    for batch in batches:
        if not batch.num_rows:
            continue
        size_bytes += batch.nbytes
        if size_bytes > options.max_task_bytes:
            text = "Use more partitions, or smaller micro-batches (maxOffsetsPerTrigger)."
            raise ConfigError(f"A task has more than maxTaskBytes = {options.max_task_bytes} bytes of rows: {text}")
        rows = as_binary(batch)
        check_rows(rows, stream=options.stream, tombstones=options.tombstones)
        tables.append(rows)
    return pa.concat_tables(tables).combine_chunks() if tables else None


async def send_round(transport: Transport, admin: Admin, options: SinkOptions, rows: pa.Table | None, round: Round) -> Sent:
    """Store what of the round is not stored yet. A task without rows asks, too, if its stream is known: it may have had some."""
    names = [(options.stream, None)] if options.stream else []
    shares = names if rows is None else list(by_stream(rows, options.stream))
    sent = Sent()
    for stream, own in shares:
        name = f"spark/{round.run}/{round.part}"
        chosen = ProducerOptions(patience_s=options.patience_s)
        async with open_producer(transport, admin, stream, id=name, round=round, options=chosen) as producer:
            sender = _Sender(stream, producer)
            if own is not None:
                await sender.send(in_order(own) if options.by_content else own, producer.round_partitions)
            await producer.end_round()
            ranges = await sender.ranges()
        sent = Sent(sent.rows + sender.rows, sent.known + producer.left_out, (*sent.ranges, *ranges))
    return sent


@dataclass(slots=True)
class _Sender:
    stream: str
    producer: Producer
    rows: int = 0
    in_turn: int = 0
    receipts: list[tuple[int, ManyReceipt]] = field(default_factory=list)

    async def send(self, rows: pa.Table, partitions: int) -> None:
        for partition, records in shares_of(rows, places_of(rows, partitions, self.in_turn)):
            self.receipts.append((partition, await self.producer.send_columns(records, partition=partition)))
        self.rows += rows.num_rows
        self.in_turn = (self.in_turn + rows.num_rows) % partitions

    async def ranges(self) -> list[Range]:
        found: dict[int, Range] = {}
        for partition, receipt in self.receipts:
            for ack in await receipt:
                one = Range(self.stream, partition, ack.offset, ack.offset + ack.record_count, ack.record_count)
                had = found.get(partition, one._replace(record_count=0))
                found[partition] = Range(
                    self.stream,
                    partition,
                    min(had.start_offset, one.start_offset),
                    max(had.end_offset, one.end_offset),
                    had.record_count + one.record_count,
                )
        return [found[partition] for partition in sorted(found)]


class StrangeTask(NamedTuple):
    """``part``: of a task that the newest run of a round did not have, and that has stored records of the round in a partition."""

    stream: str
    partition: int
    part: int


async def strange_task(
    transport: Transport, admin: Admin, subjects: Subjects, options: SinkOptions, done: Round, tasks: int, sent: Sequence[Sent]
) -> StrangeTask | None:
    """A task of an earlier run of the round ``done`` that is none of the newest run's, of which ``tasks`` have ``sent``, or None.

    What it has stored is there twice, for the newest run's tasks have all rows.
    Looks at what lies below the first record that the newest run has stored in each partition, back to the round before. Raises
    UnavailableError, NotFoundError, NotAllowedError.
    """
    starts: dict[tuple[str, int], int] = {}
    for one in (found for task in sent for found in task.ranges):
        key = (one.stream, one.partition)
        starts[key] = min(one.start_offset, starts.get(key, one.start_offset))
    most_bytes = _LOOK_AGAIN_BYTES if any(task.known for task in sent) else _LOOK_BYTES
    for name in sorted({stream for stream, _ in starts} | ({options.stream} - {""})):
        known = await admin.stream(name)
        for place in known.partitions:
            reader = PartitionReader(transport, subjects, name, place.partition, ReadOptions(patience_s=options.patience_s))
            start = starts.get((name, place.partition))
            if start is None:
                start = (await reader.bounds(known.uid))[0].end_offset
            part = await _strange_part(reader, known.uid, start, done, tasks, most_bytes)
            if part is not None:
                return StrangeTask(name, place.partition, part)
    return None


async def _strange_part(reader: PartitionReader, uid: str, below: int, done: Round, tasks: int, most_bytes: int) -> int | None:
    progress = BackwardProgress(reader.stream, reader.partition, below, uid=uid)
    looked_bytes = 0
    while not progress.done and looked_bytes < most_bytes:
        for piece in await reader.fetch(progress):
            looked_bytes += piece.batch.header.size_bytes
            position = _position_of(piece.batch)
            if position is None or position.stream_uid != done.run:
                continue
            if position.generation < done.position.generation:
                return None
            if position.generation == done.position.generation and position.partition >= tasks:
                return position.partition
    return None


def _position_of(batch: RecordBatch) -> SourcePosition | None:
    if not batch.header.column_bits & Columns.NOTE.value:
        return None
    note = batch.columns.note
    return None if note is None else ProducerNote.decode(note).position


class Appending:
    """At least once: rows as they come. ``open`` is by use; ``close`` when it is over."""

    def __init__(self, transport: Transport, admin: Admin, options: SinkOptions) -> None:
        self._transport = transport
        self._admin = admin
        self._options = options
        self._senders: dict[str, _Sender] = {}

    async def send(self, batch: pa.RecordBatch) -> None:
        """Some rows."""
        if not batch.num_rows:
            return
        options, rows = self._options, as_binary(batch)
        check_rows(rows, stream=options.stream, tombstones=options.tombstones)
        for stream, own in by_stream(rows, options.stream):
            if stream not in self._senders:
                chosen = ProducerOptions(patience_s=options.patience_s)
                opened = await open_producer(self._transport, self._admin, stream, options=chosen)
                self._senders[stream] = _Sender(stream, opened)
            sender = self._senders[stream]
            await sender.send(own, sender.producer.partitions)

    async def end(self) -> Sent:
        """Everything is stored."""
        ranges: list[Range] = []
        for sender in self._senders.values():
            await sender.producer.flush()
            ranges += await sender.ranges()
        return Sent(sum(sender.rows for sender in self._senders.values()), 0, tuple(ranges))

    async def close(self) -> None:
        """Over; what is not answered may be stored."""
        for sender in self._senders.values():
            await sender.producer.close()
