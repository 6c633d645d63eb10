"""The format ``liftpy`` for writing, as Spark calls it: a batch writer and a streaming writer.

The driver creates the writers and pickles them. ``write`` runs in the Python workers of the executors, where
TaskContext names the task. ``commit`` and ``abort`` run on the driver without a TaskContext, so the commit messages
contain everything that they need. ``commit`` stores nothing. It checks that the number of tasks did not change.
``abort`` does nothing, because it may run after a commit. The next attempt of a failed task skips the rows that are
stored.

A task reads its input from the JVM over a socket. If something before the sink fails, the JVM ends the input at that
point, and pyarrow takes this for the end of the data. Spark writes END_OF_STREAM only after a complete input. Without
this mark, the task fails, and stores nothing in an exactly-once write (``whole_input``).
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import crc32c
import pyarrow as pa
import pyspark
from pyspark import TaskContext
from pyspark.errors import PySparkTypeError
from pyspark.messages import SparkMessageReceiver
from pyspark.serializers import SpecialLengths
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from liftpy.client.consumer import PartitionReader, ReadOptions
from liftpy.client.metadata_requests import MetadataRequests
from liftpy.client.partition_sender import ManyReceipt, ProducerOptions
from liftpy.client.producer import Producer
from liftpy.client.progress import BackwardProgress
from liftpy.client.stream_directory import StreamDirectory
from liftpy.client.write_epoch import PlanChangedError, Round
from liftpy.core.metadata.image import StreamImage
from liftpy.core.wire.batch import RecordBatch
from liftpy.core.wire.batch_columns import Columns
from liftpy.core.wire.producer_note import MAX_PLAN, ProducerNote, SourcePosition
from liftpy.errors import ConfigError, NotFoundError, PublishRejectedError
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.transport import Transport
from liftpy.spark.failures import SourceError, with_error_code
from liftpy.spark.options import SinkOptions
from liftpy.spark.process_connection import ProcessConnection, link_to
from liftpy.spark.sink_rows import as_binary, by_stream, check_rows, check_schema, in_order, places_of, shares_of

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""TaskContext's local properties in a streaming query's tasks."""
END_OF_INPUT = SpecialLengths.END_OF_STREAM.to_bytes(4, "big", signed=True)
"""Bytes that the JVM writes after the complete input of a task. After a failure it does not write them."""
_MARK_BYTES = len(END_OF_INPUT)
ADAPTIVE = "spark.sql.adaptive.enabled"
ADAPTIVE_STREAMING = "spark.sql.adaptive.streaming.stateless.enabled"
_COUNTS = {"spark.sql.shuffle.partitions": "200", "spark.default.parallelism": ""}
"""Settings that determine the number of tasks, with their defaults."""
_COUNTS_WHEN_ADAPTIVE = (
    "spark.executor.instances",
    "spark.executor.cores",
    "spark.cores.max",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes",
    "spark.sql.adaptive.coalescePartitions.enabled",
    "spark.sql.adaptive.coalescePartitions.minPartitionNum",
    "spark.sql.adaptive.coalescePartitions.minPartitionSize",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst",
    "spark.sql.adaptive.coalescePartitions.initialPartitionNum",
)
_SLOWEST_BYTES_S = 100_000
_CHECK_TIMEOUT_S = 600.0
_FIX_COUNT = (
    f"To keep the number of tasks constant, set {ADAPTIVE_STREAMING}=false (for batch writes {ADAPTIVE}=false) or use "
    'repartition(8, "key"). Do not change spark.sql.shuffle.partitions, minPartitions and maxRecordsPerPartition'
)
_logger = logging.getLogger(__name__)
_SCAN_BYTES, _SCAN_TOTAL_BYTES = 4 << 20, 256 << 20
"""Maximum number of bytes to read from a partition, and from all, in search of records of an earlier run."""
_RESCAN_BYTES, _RESCAN_TOTAL_BYTES = 256 << 20, 4 << 30
"""Both limits if an earlier run has stored records of the micro-batch."""
_MAX_RECEIPTS = 4096
"""Maximum number of sent shares of a task whose acks it does not wait for yet."""
_CHECKED_AT_ONCE = 16
"""Maximum number of partitions that the search reads at the same time."""


@dataclass(frozen=True, slots=True)
class SinkCommitMessage(WriterCommitMessage):
    """Result of a Spark task that writes to a stream.

    Attributes:
        run: Id of the query, or ``write:`` and the writeId. '': the write has no id.
        number: Number of the micro-batch, or the batchId of a batch write.
        part: Number of the task.
        attempt: Number of the attempt of the task.
        sent: Stored rows.
    """

    run: str
    number: int
    part: int
    attempt: int
    sent: WriteResult


def sink_options(given: dict[str, str], schema: StructType, overwrite: bool) -> SinkOptions:
    """Return the checked options of a write.

    ``given``: Spark's option map. ``schema``: schema of the rows. ``overwrite``: True if the user wants to replace the stream, which is
    not possible. Raises ConfigError.
    """
    options = SinkOptions.parse(given)
    if overwrite:
        raise ConfigError('A stream cannot be overwritten. Use mode("append") or outputMode("append").')
    check_schema(arrow_schema_of(schema), stream=options.stream)
    return options


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of rows with Spark's ``schema``. Raises ConfigError for a type that Arrow lacks."""
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except PySparkTypeError as error:
        raise ConfigError(f"A column has a type that Arrow lacks: {error} Cast or drop the column.") from None


def counting_settings(setting: Callable[[str], str | None], *, streaming: bool) -> dict[str, str]:
    """Return the Spark settings on which the number of tasks of a query depends, by name.

    Args:
        setting: Function that returns a setting as the task sees it (a local property).
        streaming: True for a streaming query.
    """
    names = (ADAPTIVE, ADAPTIVE_STREAMING) if streaming else (ADAPTIVE,)
    settings = {name: setting(name) or "true" for name in names}
    settings |= {name: setting(name) or default for name, default in _COUNTS.items()}
    if "false" not in (settings[name].lower() for name in names):
        settings |= {name: setting(name) or "" for name in _COUNTS_WHEN_ADAPTIVE}
        master = setting("spark.master") or ""
        settings["spark.master"] = master if master.startswith("local") else ""  # that of a cluster does not tell its size
    return settings


@contextlib.contextmanager
def _explain_errors(round: Round | None, settings: Mapping[str, str] | None = None) -> Iterator[None]:
    """Convert errors of a task into SourceErrors whose text begins with the error code.

    ``round``: round that the task writes, None: none. ``settings``: settings on which the number of tasks and the partitions of the
    rows depend, for the error text.
    """
    try:
        with with_error_code():
            yield
    except SourceError as error:
        behind = error.__cause__
        if not isinstance(behind, PublishRejectedError):
            raise
        text = str(behind)
        if isinstance(behind, PlanChangedError) and round is not None:
            setting_texts = ", ".join(f"{name}={value}" for name, value in sorted((settings or {}).items()) if value)
            raise SourceError(
                (
                    f"[TASKS_CHANGED] Batch {round.number} of {round.run} was started with other settings, which can "
                    "change the number of tasks or the partitions of the rows. A second run would store its records twice. This "
                    "task stored nothing. "
                    f"The settings are now: {setting_texts}. Run the batch again with the first settings and number of cores. "
                    f"{_FIX_COUNT}"
                ),
                "TASKS_CHANGED",
            ) from behind
        if behind.reason == "DIVERGED_PRODUCER" and round is not None:
            text = (
                f"{text.rstrip('.')}. Batch {round.number} of {round.run}, task {round.part}, was written before, at least in part, "
                "and this time the plan made other rows. It is not deterministic (rand, uuid, the current time, a limit without an "
                "order, the first of a group, another number of tasks), and cannot be written exactly once. Make it "
                "deterministic, or use a new checkpoint (or writeId)."
            )
        elif behind.reason == "PRODUCER_FENCED" and round is not None:
            text = (
                f"{text.rstrip('.')}. Batch {round.number} of {round.run}, task {round.part}: a newer attempt of this task runs, or a "
                "later batch was written before. A newer attempt of this task continues. If none runs, the checkpoint is older "
                "than the stream, for example because it was restored. Use a new checkpoint (or writeId)."
            )
        raise SourceError(f"[{behind.reason}] {text}", behind.reason) from behind


def whole_input(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a task up to the mark of their end. Raises SourceError if the input failed before it [A14]."""
    pipe = _worker_pipe()
    broken: Exception | None = None
    try:
        yield from batches
    except (pa.ArrowInvalid, OSError) as error:  # it ended within a message, or before the first
        broken = error
    if broken is not None or _peek(pipe, _MARK_BYTES) != END_OF_INPUT:
        raise SourceError(
            (
                "[INPUT_FAILED] The input of this task ended too early. Spark reports the cause: an error before the "
                "sink, or a killed task or executor. Spark runs the task again."
            ),
            "INPUT_FAILED",
        ) from broken


def _worker_pipe() -> io.BufferedReader:
    frame = sys._getframe().f_back
    while frame is not None:
        for value in frame.f_locals.values():
            if isinstance(value, SparkMessageReceiver) and isinstance(
                pipe := getattr(value, "_infile", None), io.BufferedReader
            ):
                return pipe
        frame = frame.f_back
    raise SourceError(
        (
            f"[CONFIG] Spark {pyspark.__version__} does not show where the input of a task ends, so records could "
            "be lost. Set spark.python.use.daemon to true, and use a supported Spark version: pip install "
            "'liftpy[spark]'."
        ),
        "CONFIG",
    )


def _peek(pipe: io.BufferedReader, count: int) -> bytes:
    """Return the next ``count`` bytes of the pipe without consuming them, because Spark's worker reads them later.

    The call waits for the bytes. There are fewer at the end of the input.
    """
    try:
        peeked_bytes = pipe.peek(count)[:count]
        if not peeked_bytes or len(peeked_bytes) == count:
            return peeked_bytes
        with socket.socket(fileno=os.dup(pipe.fileno())) as behind:  # the mark lies across the end of the buffer
            return peeked_bytes + behind.recv(count - len(peeked_bytes), socket.MSG_PEEK | socket.MSG_WAITALL)
    except OSError:
        return b""


def write_round(
    link: ProcessConnection,
    options: SinkOptions,
    batches: Iterable[pa.RecordBatch],
    round: Round,
    attempt: int,
    settings: Mapping[str, str],
) -> SinkCommitMessage:
    """Store the rows of a task in a micro-batch, each row once, also if the task runs several times.

    Args:
        link: Connections of this process.
        options: Options of the sink.
        batches: Input of the task.
        round: Query, micro-batch and task.
        attempt: Number of the attempt.
        settings: Settings that decide the number of tasks.

    Raises:
        SourceError: The rows could not be stored. The text begins with the code.
    """
    # rows without a key go to the partitions in turn, so their order decides their partitions
    planned = settings if options.by_content else {**settings, "order": "plan"}
    round = round._replace(plan=crc32c.crc32c(repr(sorted(planned.items())).encode()) % MAX_PLAN + 1)
    with _explain_errors(round, {**settings, "order": "content" if options.by_content else "plan"}):
        rows = gather_rows(whole_input(batches), options)

        async def send() -> WriteResult:
            transport = await link.transport(options.patience_s)
            return await send_round(
                transport, MetadataRequests(transport, link.subjects, options.patience_s), options, rows, round
            )

        size_bytes = 0 if rows is None else rows.nbytes
        sent = link.call(send(), 4 * options.patience_s + size_bytes / _SLOWEST_BYTES_S)
    return SinkCommitMessage(round.run, round.number, round.part, attempt, sent)


def append(
    link: ProcessConnection, options: SinkOptions, batches: Iterable[pa.RecordBatch], part: int, attempt: int
) -> SinkCommitMessage:
    """Store the rows of a task, each at least once. ``part``: number of the task. ``attempt``: number of its attempt."""

    async def begin() -> RowAppender:
        transport = await link.transport(options.patience_s)
        return RowAppender(transport, MetadataRequests(transport, link.subjects, options.patience_s), options)

    with _explain_errors(None):
        patience_s = 4 * options.patience_s
        appending = link.call(begin(), patience_s)
        try:
            for batch in whole_input(batches):
                link.call(appending.send(batch), patience_s + batch.nbytes / _SLOWEST_BYTES_S)
            sent = link.call(appending.end(), patience_s)
        finally:
            link.call(appending.close(), patience_s)
    return SinkCommitMessage("", 0, part, attempt, sent)


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise ConfigError(
            "Spark does not report the id of this task. Use a supported Spark version: pip install 'liftpy[spark]'."
        )
    return context


class LiftStreamWriter(DataSourceStreamArrowWriter):
    """Exactly-once writer of a streaming query."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Store the rows of one task of a micro-batch, each row exactly once, and return what was stored."""
        with with_error_code():
            task = _task()
            query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
            if not query or not batch:
                raise ConfigError(
                    f"Spark does not report the id of this micro-batch ({QUERY_ID}, {BATCH_ID}). Use a supported Spark "
                    "version: pip install 'liftpy[spark]'."
                )
            round = Round(query, task.partitionId(), int(batch))
            settings = counting_settings(task.getLocalProperty, streaming=True)
        return write_round(link_to(self.options.access), self.options, iterator, round, task.attemptNumber(), settings)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Check the results of all tasks of a micro-batch, whose records are already stored.

        Raise SourceError if an earlier run of the micro-batch had other tasks.
        """
        check_tasks(link_to(self.options.access), self.options, messages)
        _logger.info("micro-batch %d: %s", batchId, summary(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing after a failed micro-batch, because its next run skips the stored records."""


class LiftWriter(DataSourceArrowWriter):
    """Writer of one batch write. It writes at least once, or exactly once with a ``writeId``."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Store the rows of one task of a batch write, and return what was stored."""
        options, task = self.options, _task()
        link, attempt = link_to(options.access), task.attemptNumber()
        if not options.write_id:
            return append(link, options, iterator, task.partitionId(), attempt)
        round = Round(f"write:{options.write_id}", task.partitionId(), options.batch_id)
        return write_round(link, options, iterator, round, attempt, counting_settings(task.getLocalProperty, streaming=False))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log what the tasks have stored. Raise SourceError if a stream was created again since a task has opened it.

        With a ``writeId``, an earlier run with more tasks is an error, too.
        """
        check_tasks(link_to(self.options.access), self.options, messages)
        _logger.info("batch write: %s", summary(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing after a failed write, because stored records stay in the stream."""


def check_tasks(link: ProcessConnection, options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Raise SourceError if an earlier run of this micro-batch had more tasks that stored records [A17].

    These records are stored twice, because the tasks of ``messages`` have stored all rows. Only the driver knows the number of
    tasks, after the last one. A stream that was deleted and created again since a task has opened it is an error, too. It lacks
    the records of this task.
    """
    written = [message for message in messages if isinstance(message, SinkCommitMessage)]
    if not written:
        return
    if not written[0].run:
        with with_error_code():
            link.call(_check_targets(link, options, [one.sent for one in written]), 4 * options.patience_s)
        return
    done = Round(written[0].run, 0, written[0].number)
    search = _surplus_task(link, options, done, len(messages), [one.sent for one in written])
    with with_error_code():
        surplus = link.call(search, 4 * options.patience_s + _CHECK_TIMEOUT_S)
    if surplus is not None:
        raise SourceError(
            (
                f"[TASKS_CHANGED] Batch {done.number} of {done.run} was started with at least {surplus.part + 1} tasks "
                f"and repeated with {len(messages)}. Records of task {surplus.part} are stored twice in "
                f"{surplus.stream}/{surplus.partition}, and others may be too. {_FIX_COUNT}. Then use a new checkpoint "
                "(or writeId) and a new stream, or delete the duplicate records."
            ),
            "TASKS_CHANGED",
        )


def summary(messages: Iterable[WriterCommitMessage | None]) -> str:
    """Return a log text about the rows that the tasks stored, from their commit ``messages``."""
    written = [message for message in messages if isinstance(message, SinkCommitMessage)]
    rows, known = sum(one.sent.rows for one in written), sum(one.sent.known for one in written)
    ranges: list[Range] = sorted(sent_range for one in written for sent_range in one.sent.ranges)
    where = ", ".join(f"{r.stream}/{r.partition} [{r.start_offset}, {r.end_offset}): {r.record_count}" for r in ranges)
    runs = ", ".join(sorted({one.run for one in written if one.run})) or "no id"
    return f"{len(written)} tasks ({runs}), {rows} rows, {known} of them stored before; {where or 'nothing new'}"


# ---- rows of one task ------------------------------------------------------------------------------------------------


class Range(NamedTuple):
    """Records that a task stored in a partition.

    Records of other publishers may be between them.

    Attributes:
        start_offset: Offset of the first record, inclusive.
        end_offset: End offset, exclusive.
        record_count: Number of records of the task.
    """

    stream: str
    partition: int
    start_offset: int
    end_offset: int
    record_count: int


@dataclass(frozen=True, slots=True)
class WriteResult:
    """Result of writing the rows of a task.

    Attributes:
        rows: Number of rows of the task.
        known: Number of rows that an earlier attempt had stored.
        ranges: Offset ranges of the other rows.
        streams: Streams of all rows.
        uids: Uid of each of these streams when the task began to write.
    """

    rows: int = 0
    known: int = 0
    ranges: tuple[Range, ...] = ()
    streams: tuple[str, ...] = field(default=(), compare=False)
    uids: tuple[str, ...] = field(default=(), compare=False)


def gather_rows(batches: Iterable[pa.RecordBatch], options: SinkOptions) -> pa.Table | None:
    """Return all rows of a task as one table, after checking them. None: there are no rows.

    Raises ConfigError if a row cannot be written, or if the rows are larger than the option maxTaskBytes.
    """
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


async def send_round(
    transport: Transport, requests: MetadataRequests, options: SinkOptions, rows: pa.Table | None, round: Round
) -> WriteResult:
    """Store those rows of a task that earlier attempts have not stored. Return the numbers and offsets of the stored rows.

    ``round``: query, micro-batch and task (``liftpy.client.write_epoch``). The task collects all its rows, and sends them in
    the order of their content. A task without rows also asks the leaders, because an earlier attempt may have had rows. The
    code runs on the event loop of a link.
    """
    names = [(options.stream, None)] if options.stream else []
    shares = names if rows is None else list(by_stream(rows, options.stream))
    sent = WriteResult()
    for stream, own in shares:
        name = f"spark/{round.run}/{round.part}"
        chosen = ProducerOptions(patience_s=options.patience_s)
        directory = StreamDirectory(requests)
        async with directory.open_producer(stream, id=name, source=round, options=chosen) as producer:
            uid = directory.cached[stream].uid
            sender = _Sender(stream, producer)
            if own is not None:
                await sender.send(in_order(own) if options.by_content else own, producer.round_partitions)
            await producer.end_round()
            ranges = await sender.ranges()
        sent = WriteResult(
            sent.rows + sender.rows,
            sent.known + producer.left_out,
            (*sent.ranges, *ranges),
            (*sent.streams, stream),
            (*sent.uids, uid),
        )
    return sent


@dataclass(slots=True)
class _Sender:
    stream: str
    producer: Producer
    rows: int = 0
    in_turn: int = 0
    _receipts: deque[tuple[int, ManyReceipt]] = field(default_factory=deque)
    _ranges: dict[int, Range] = field(default_factory=dict)

    async def send(self, rows: pa.Table, partitions: int) -> None:
        for partition, records in shares_of(rows, places_of(rows, partitions, self.in_turn)):
            self._receipts.append((partition, await self.producer.send_columns(records, partition=partition)))
        self.rows += rows.num_rows
        self.in_turn = (self.in_turn + rows.num_rows) % partitions
        await self._collect_acks(_MAX_RECEIPTS)

    async def ranges(self) -> list[Range]:
        await self._collect_acks(0)
        return [self._ranges[partition] for partition in sorted(self._ranges)]

    async def _collect_acks(self, most_waiting: int) -> None:
        while len(self._receipts) > most_waiting:
            partition, receipt = self._receipts.popleft()
            for ack in await receipt:
                if ack.offset < 0:
                    continue  # an earlier ack was lost, and the leader does not know the offset anymore
                start, end, count = ack.offset, ack.offset + ack.record_count, ack.record_count
                if (had := self._ranges.get(partition)) is not None:
                    start, end, count = min(start, had.start_offset), max(end, had.end_offset), count + had.record_count
                self._ranges[partition] = Range(self.stream, partition, start, end, count)


class StaleTask(NamedTuple):
    """A task of an earlier run that stored records of the round, and that the newest run does not have.

    Attributes:
        part: Number of the task.
    """

    stream: str
    partition: int
    part: int


async def _check_targets(link: ProcessConnection, options: SinkOptions, sent: Sequence[WriteResult]) -> None:
    """Raise NotFoundError if a stream was deleted, or created again, since a task of an at-least-once write has opened it."""
    requests = MetadataRequests(await link.transport(options.patience_s), link.subjects, options.patience_s)
    directory = StreamDirectory(requests)
    names = sorted({stream for task in sent for stream in task.streams})
    streams = await asyncio.gather(*(directory.complete_stream(name, options.patience_s) for name in names))
    if (name := _recreated_stream(streams, sent)) is not None:
        raise NotFoundError(
            f"Stream {name} was deleted and created again during the write. The current stream lacks rows of this write. Write all "
            "rows again."
        )


def _recreated_stream(streams: Iterable[StreamImage], sent: Iterable[WriteResult]) -> str | None:
    """Return the first of ``streams`` that was created again since a task of ``sent`` has opened it. None: there is none."""
    now = {stream.name: stream.uid for stream in streams}
    opened = (named for task in sent for named in zip(task.streams, task.uids, strict=True))
    return next((name for name, uid in opened if now[name] != uid), None)


async def _surplus_task(
    link: ProcessConnection, options: SinkOptions, done: Round, tasks: int, sent: Sequence[WriteResult]
) -> StaleTask | None:
    """Return a task of an earlier run of the micro-batch ``done`` that its newest run does not have. None: there is no such task.

    The search covers the records before the first one that the newest run stored in each partition, back to the previous
    micro-batch. The number of bytes is limited. ``tasks``, ``sent``: number of tasks of the newest run, and their results.
    """
    transport = await link.transport(options.patience_s)
    requests = MetadataRequests(transport, link.subjects, options.patience_s)
    starts: dict[tuple[str, int], int] = {}
    for one in (sent_range for task in sent for sent_range in task.ranges):
        key = (one.stream, one.partition)
        starts[key] = min(one.start_offset, starts.get(key, one.start_offset))
    names = sorted({options.stream, *(stream for task in sent for stream in task.streams)} - {""})
    directory = StreamDirectory(requests)
    streams = await asyncio.gather(*(directory.complete_stream(name, options.patience_s) for name in names))
    if (name := _recreated_stream(streams, sent)) is not None:
        raise NotFoundError(
            f"Stream {name} was deleted and created again while batch {done.number} of {done.run} was written. The current stream "
            "lacks records of this batch. Run the query again: it writes the whole batch again."
        )
    places = [(stream, place.partition) for stream in streams for place in stream.partitions]
    is_repeated = any(task.known for task in sent)
    most_bytes, total_bytes = (_RESCAN_BYTES, _RESCAN_TOTAL_BYTES) if is_repeated else (_SCAN_BYTES, _SCAN_TOTAL_BYTES)
    most_bytes = min(most_bytes, total_bytes // max(len(places), 1))
    waiting = iter(places)

    async def check() -> StaleTask | None:
        for stream, partition in waiting:
            reading = ReadOptions(patience_s=options.patience_s)
            reader = PartitionReader(transport, link.subjects, stream.name, partition, reading)
            start = starts.get((stream.name, partition))
            if start is None:
                start = (await reader.bounds(stream.uid))[0].end_offset
            part = await _strange_part(reader, stream.uid, start, done, tasks, most_bytes)
            if part is not None:
                return StaleTask(stream.name, partition, part)
        return None

    checks = [asyncio.create_task(check()) for _ in places[:_CHECKED_AT_ONCE]]
    try:
        for finished in asyncio.as_completed(checks):
            if (stale_task := await finished) is not None:
                return stale_task
        return None
    finally:
        await end_tasks(checks)


async def _strange_part(reader: PartitionReader, uid: str, below: int, done: Round, tasks: int, most_bytes: int) -> int | None:
    progress = BackwardProgress(reader.stream, reader.partition, below, uid=uid)
    scanned_bytes = 0
    while not progress.done and scanned_bytes < most_bytes:
        for piece in await reader.fetch(progress):
            scanned_bytes += piece.batch.header.size_bytes
            position = _position_of(piece.batch)
            if position is None or position.stream_uid != done.run:
                continue
            if position.generation < done.position.generation:
                return None
            if position.generation == done.position.generation and position.partition >= tasks:
                return position.partition
    if not progress.done:
        _logger.warning(
            "The newest %d MiB of %s/%d have no batch of an earlier micro-batch. Whether an earlier run had more tasks is not "
            "checked further.",
            scanned_bytes >> 20,
            reader.stream,
            reader.partition,
        )
    return None


def _position_of(batch: RecordBatch) -> SourcePosition | None:
    if not batch.header.column_bits & Columns.NOTE.value:
        return None
    note = batch.columns.note
    return None if note is None else ProducerNote.decode(note).position


class RowAppender:
    """Writes rows to streams as they come, each row at least once. If Spark runs the task again, it sends them again.

    It opens a producer for each stream. Call ``close`` at the end.
    """

    def __init__(self, transport: Transport, requests: MetadataRequests, options: SinkOptions) -> None:
        self._transport = transport
        self._requests = requests
        self._options = options
        self._senders: dict[str, _Sender] = {}
        self._uids: dict[str, str] = {}

    async def send(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch. Raises ConfigError if a row cannot be written."""
        if not batch.num_rows:
            return
        options, rows = self._options, as_binary(batch)
        check_rows(rows, stream=options.stream, tombstones=options.tombstones)
        for stream, own in by_stream(rows, options.stream):
            if stream not in self._senders:
                chosen = ProducerOptions(patience_s=options.patience_s)
                directory = StreamDirectory(self._requests)
                opened = await directory.open_producer(stream, options=chosen)
                self._senders[stream] = _Sender(stream, opened)
                self._uids[stream] = directory.cached[stream].uid
            sender = self._senders[stream]
            await sender.send(own, sender.producer.partitions)

    async def end(self) -> WriteResult:
        """Wait until all rows are stored, and return their ranges."""
        ranges: list[Range] = []
        for sender in self._senders.values():
            await sender.producer.flush()
            ranges += await sender.ranges()
        rows = sum(sender.rows for sender in self._senders.values())
        return WriteResult(rows, 0, tuple(ranges), tuple(self._uids), tuple(self._uids.values()))

    async def close(self) -> None:
        """Close the producers. Rows without an ack may be stored or not."""
        for sender in self._senders.values():
            await sender.producer.close()
