"""Reads one planned range into Arrow batches: ``RangeReader``, its strategies, and ``read_planned`` for both Spark
readers.

Invariant R5: the reader returns exactly the planned records in order, or raises an error. ``RangeReader`` holds the
position and checks all records. A strategy gets the record batches:

- ``LocalFiles`` reads the segment files of a replica on the host of the task.
- ``PipelinedRequests`` has a few requests in flight on the blocking connection of the process.
- ``RetryingRequests`` requests each span from any replica, on the shared connection, until an answer arrives.

A strategy that cannot continue ends early. The next one continues at the position. ``RetryingRequests`` comes last, and
raises the errors. It reads compacted streams alone, because the other two need logs without gaps.

``liftpy.client.progress`` checks each answer over NATS (order, gaps, HW, uid, CRC). ``check_pieces`` checks the records
against the plan. A LeaderEpoch above the planned one means that a planned record was replaced. LeaderEpochs must never
fall.

Arrow batches have at most MAX_ROWS rows and about MAX_BYTES. Larger ones are slower in the JVM, and each one has a
fixed cost. So small record batches are joined until there are ENOUGH_ROWS rows of ENOUGH_BYTES, or MANY_BYTES. A large
one is divided.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import logging
import os
import secrets
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
import pyarrow as pa

from liftpy.client.batch_view import BatchSlice, one_by_one
from liftpy.client.closest_replica import this_host
from liftpy.client.consumer import PartitionReader, ReadOptions
from liftpy.client.metadata_requests import MetadataRequests
from liftpy.client.positions import Bounds
from liftpy.client.progress import RangeFiles, ReadProgress
from liftpy.core.base.ids import PartitionKey
from liftpy.core.log.arrow import ARRAYS, Rows, arrow_array_of, timestamps_ns
from liftpy.core.log.segment import log_name
from liftpy.core.wire import frames
from liftpy.core.wire.batch import HEADER_SIZE_BYTES, MAX_BATCH_BYTES, BatchHeader, parse_header, split_batches
from liftpy.core.wire.chunking import requested_bytes
from liftpy.errors import (
    CorruptionError,
    DataLossError,
    LiftError,
    LogTruncatedError,
    NotFoundError,
    OffsetOutOfRangeError,
    ProtocolError,
    UnavailableError,
)
from liftpy.nats.blocking_connection import Answer, BlockingConnection
from liftpy.spark.failures import with_error_code
from liftpy.spark.options import SourceOptions
from liftpy.spark.planning import PlannedRange
from liftpy.spark.process_connection import ProcessConnection, link_to, result_of
from liftpy.spark.schema import COLUMNS, arrow_schema, omitted_parts

MAX_ROWS = 16_384
MAX_BYTES = 16 * 1024 * 1024
ENOUGH_ROWS = 4096
ENOUGH_BYTES = 1024 * 1024
MANY_BYTES = 8 * 1024 * 1024
OLD_PLAN_S = 300.0
"""Age of a batch query's plan above which each read logs it, in seconds."""
IN_FLIGHT = 4
"""Maximum number of requests of a range in flight."""
SPAN_BYTES = 1024 * 1024 - 8192
MAX_SPAN_BYTES = 4 * SPAN_BYTES
"""Number of fetched bytes at which a span ends early, because its records are larger than expected."""
ANSWER_S = 3.0
"""Maximum time of a pipelined answer after the one before it, in seconds. Then the reader requests the span with retries."""
BLOCK_BYTES = 4 * 1024 * 1024
"""Number of bytes to read from a file at once. It is more if a batch is larger."""
ELSEWHERE_S = 60.0
"""Time for which a node is not asked for local files again, in seconds, if it is on another host or does not offer files."""
SILENT_S = 5.0
"""Time for which a node that did not answer, or lacks a part of the range, is not asked again, in seconds."""
FILES, NATS = "records from files", "records over NATS"
counts: Counter[str] = Counter()
"""Number of records that this process has read from files and over NATS."""
_NS_PER_US = 1000
_ASK_S = 0.5
_MOST_EXPANSION = 16
"""Maximum factor by which a span grows when it is decompressed."""
_SPREAD_RECORDS = 4096
_SMALLEST_ANSWER_BYTES = 64 * 1024
_MOST_REFUSALS = 8
_FULL = 7 / 8
"""Share of the maximum answer size that requests are planned for, because record sizes vary."""
_ID_BITS = 63
_MAX_GUESSES = 256
_lock = threading.Lock()
_logger = logging.getLogger(__name__)


def read_planned(
    planned: PlannedRange | None, options: SourceOptions, note_deletes: Callable[[int], None] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield Arrow batches of the range in order.

    Args:
        planned: Range of the task. None: Spark makes one such task of an empty plan.
        options: Options of the source.
        note_deletes: As in FetchRules. Default None.

    Raises:
        SourceError: The records could not be read. The text begins with the code of the error.
    """
    if planned is None:
        return
    age_s = (time.time_ns() - planned.planned_ns) / 1e9 if planned.planned_ns else 0.0
    if age_s > OLD_PLAN_S:
        _logger.warning(
            "%s was planned %.0f s ago, when its DataFrame first ran. Spark keeps that plan, so the query does not see later "
            "records. Call load() again for a newer plan.",
            planned,
            age_s,
        )
    rules = FetchRules(
        patience_s=options.patience_s,
        leader_first=options.read_from_leader,
        files=not options.read_from_leader,
        expects_files=options.expects_files,
        fail_on_data_loss=options.fail_on_data_loss,
        left_out=omitted_parts(options.columns),
        note_deletes=note_deletes,
    )
    builder = RowBuilder(planned.stream, planned.partition, options.columns)
    link = link_to(options.access)
    with with_error_code(), closing(RangeReader(link, planned, rules).read()) as fetched:
        try:
            yield from builder.batches(itertools.chain.from_iterable(map(one_by_one, fetched)))
        except UnavailableError:
            _must_be_there(link, planned, options)
            raise


def _must_be_there(link: ProcessConnection, planned: PlannedRange, options: SourceOptions) -> None:
    """Raise DataLossError if the leader says that an unclean election has lost records of the range. Otherwise return."""
    if not planned.last[1]:
        return

    async def ask() -> None:
        asking = ReadOptions(patience_s=options.patience_s)
        transport = await link.transport(options.patience_s)
        reader = PartitionReader(transport, link.subjects, planned.stream, planned.partition, asking)
        await reader.bounds(planned.uid, last=planned.last)

    with suppress(UnavailableError):
        try:
            link.call(ask(), 2 * options.patience_s)
        except LogTruncatedError as error:
            raise DataLossError(f"{planned}: records were deleted after the query was planned: {error}") from None


@dataclass(frozen=True, slots=True)
class FetchRules:
    """Rules of a read.

    Attributes:
        patience_s: Maximum time without an answer, in seconds.
        leader_first: True if the leader is asked first. Otherwise ranges are spread over the replicas.
        fail_on_data_loss: True if deleted records are an error. Otherwise the reader logs a warning and skips them.
        files: True if files of replicas on this host are read.
        expects_files: True if the reader logs a warning when records do not come from files.
        left_out: Columns that are not wanted (``liftpy.core.wire.filters``).
        note_loss: Function of a text about deleted records that the reader skips, and of their first offset and their end. It may be
            called twice for the same records. None: the reader only logs the warning.
        note_deletes: Function of the offset (exclusive) below which the log of a replica may lack tombstones. It is called for each
            answer about a compacted range. None: not called.
    """

    patience_s: float = 30.0
    leader_first: bool = False
    fail_on_data_loss: bool = True
    files: bool = False
    expects_files: bool = False
    left_out: int = 0
    note_loss: Callable[[str, int, int], None] | None = None
    note_deletes: Callable[[int], None] | None = None


class Strategy(Protocol):
    """Gets the record batches of a range, from the position of its reader on.

    Attributes:
        counted_as: FILES or NATS.
    """

    counted_as: ClassVar[str]

    def blocks(self) -> Generator[list[BatchSlice], None, None]:
        """Yield lists of slices that ``RangeReader.accept`` has checked. Ends early if the next strategy must continue."""


class RangeReader:
    """Reads the records of one planned range. If a strategy ends early, the next one continues at the position.

    Args:
        link: Connections of this process.
        planned: Range to read.
        rules: Rules of the read.
        strategies: Strategies in order. Default None: those that fit the range and the rules.

    Attributes:
        position: First offset that the reader has not returned.
        node: Node that is asked first.
        planned: The range. ``RetryingRequests`` moves its end if the stream is compacted and the query has no end.
    """

    def __init__(
        self,
        link: ProcessConnection,
        planned: PlannedRange,
        rules: FetchRules,
        strategies: Sequence[Callable[[RangeReader], Strategy]] | None = None,
    ) -> None:
        self.link = link
        self.planned = planned
        self.rules = rules
        self.position = planned.start_offset
        self.node = first_choice(planned, rules)
        self._epoch = planned.start_epoch
        self._strategies = strategies_for(planned, rules) if strategies is None else strategies

    def read(self) -> Generator[list[BatchSlice], None, None]:
        """Yield the records of the range as lists of checked slices, in order.

        If the caller closes the generator early, as a LIMIT does, the requests in flight are canceled.

        Raises:
            DataLossError: Planned records no longer exist, and the rules make that an error.
            UnavailableError: NATS or all replicas did not answer in time.
            NotFoundError: The stream was deleted after the range was planned.
            ProtocolError: A replica sent records that contradict the plan.
        """
        records = dict.fromkeys((FILES, NATS), 0)
        for strategy_type in self._strategies:
            if self.is_done:
                break
            strategy = strategy_type(self)
            with closing(strategy.blocks()) as blocks:
                for pieces in blocks:
                    records[strategy.counted_as] += sum(piece.record_count for piece in pieces)
                    yield pieces
        self._log(records[FILES], records[NATS])

    @property
    def is_done(self) -> bool:
        return self.position >= self.planned.end_offset

    def accept(self, pieces: list[BatchSlice], next_offset: int, planned: PlannedRange | None = None) -> list[BatchSlice]:
        """Check slices and move the position.

        Args:
            pieces: Slices that begin at the position.
            next_offset: New position.
            planned: Range as it was when the slices were requested. Default None: ``self.planned``.

        Returns:
            ``pieces``.

        Raises:
            DataLossError, ProtocolError: A check of ``check_pieces`` failed. The position does not change.
        """
        planned = planned or self.planned
        # a batch may lack records only if a purge or compaction has removed them since planning
        if not planned.compacted and (
            self.planned.compacted or (any(map(_lacks_records, pieces)) and self.leader_bounds().compacted)
        ):
            planned, self.planned = replace(planned, compacted=True), replace(self.planned, compacted=True)
        self._epoch = check_pieces(planned, pieces, self._epoch)
        self.position = next_offset
        return pieces

    def leader_bounds(self) -> Bounds:
        """Return the current bounds of the partition from its leader. Raises LiftError."""
        link, planned, patience_s = self.link, self.planned, self.rules.patience_s

        async def ask() -> Bounds:
            transport = await link.transport(patience_s)
            options = ReadOptions(patience_s=patience_s)
            reader = PartitionReader(transport, link.subjects, planned.stream, planned.partition, options)
            return (await reader.bounds(planned.uid))[0]

        return link.call(ask(), 4 * patience_s)

    def _log(self, from_files: int, over_nats: int) -> None:
        with _lock:
            counts[FILES] += from_files
            counts[NATS] += over_nats
            share = counts[FILES] / max(counts[FILES] + counts[NATS], 1)
        if self.rules.files:
            level = logging.WARNING if self.rules.expects_files and over_nats else logging.INFO
            text = (
                "%s: %d records from files of this host, %d over NATS; %.0f %% of all records of this process came from files"
            )
            _logger.log(level, text, self.planned, from_files, over_nats, 100 * share)


def strategies_for(planned: PlannedRange, rules: FetchRules) -> list[Callable[[RangeReader], Strategy]]:
    """Return the classes or functions that create the strategies for a range, in the order in which they are tried."""
    if planned.compacted:
        return [RetryingRequests]
    return [*([LocalFiles] if rules.files else []), PipelinedRequests, RetryingRequests]


def first_choice(planned: PlannedRange, rules: FetchRules) -> str:
    """Return the id of the node to ask first. Different ranges are spread over the replicas, and equal ranges have one node."""
    if rules.leader_first or not planned.replicas:
        return planned.leader
    return planned.replicas[(planned.start_offset // _SPREAD_RECORDS + planned.partition) % len(planned.replicas)]


def _lacks_records(piece: BatchSlice) -> bool:
    return piece.batch.header.record_count <= piece.batch.header.last_offset_delta


def check_pieces(planned: PlannedRange, pieces: list[BatchSlice], leader_epoch: int) -> int:
    """Check slices against the plan. An earlier check ensures that batches follow each other.

    Args:
        planned: Range of the slices.
        pieces: Slices in order.
        leader_epoch: LeaderEpoch of the record before them.

    Returns:
        The LeaderEpoch of the last record.

    Raises:
        DataLossError: A LeaderEpoch is above the planned one.
        ProtocolError: A LeaderEpoch is below that of the record before, or a batch has a gap inside.
    """
    for piece in pieces:
        epoch, header = piece.batch.leader_epoch, piece.batch.header
        if _lacks_records(piece) and not planned.compacted:
            raise ProtocolError(
                f"{planned}: the batch at offset {header.base_offset} lacks records, although the stream is not "
                "compacted. Run `liftpy spark audit` for this stream."
            )
        if epoch > planned.leader_epoch:
            raise DataLossError(
                f"{planned}: records from offset {piece.batch.base_offset} have LeaderEpoch {epoch}, but others were "
                f"committed there in epoch {planned.leader_epoch} or before. An unclean election lost the first "
                "records. Run the query again. If it fails again, use a new checkpoint, or set failOnDataLoss=false."
            )
        if epoch < leader_epoch:
            raise ProtocolError(
                f"{planned}: LeaderEpoch {epoch} at offset {piece.batch.base_offset} follows the higher epoch "
                f"{leader_epoch}. Run `liftpy spark audit` for this stream."
            )
        leader_epoch = epoch
    return leader_epoch


# ---- files of this host -----------------------------------------------------------------------------------------------------


class LocalFiles:
    """Reads the segment files of a replica on the host of the task.

    A node with ``local_file_reads`` answers which parts of which files contain a range, if it has the range and knows
    that it is committed. The task opens all of these files at once. An open file stays readable after its deletion, so
    retention and compaction do not disturb a running task. If a file is deleted before the task opens it, the next
    strategy reads from the nodes.

    Each batch is checked as if it came over NATS. The directory must belong to the planned stream uid [R9]. A truncated
    log, a damaged file or a file that cannot be opened ends this strategy, but not the task. The files are read with
    ``pread`` and not mapped, because truncation of a mapped file ends the process.

    Args:
        reader: Reader of the range.
        find: Function that returns the files of the range. Default None: ``find_offered_files``.
    """

    counted_as: ClassVar[str] = FILES

    def __init__(
        self, reader: RangeReader, find: Callable[[ProcessConnection, PlannedRange], RangeFiles | None] | None = None
    ) -> None:
        self._reader = reader
        self._find = find or find_offered_files

    def blocks(self) -> Generator[list[BatchSlice], None, None]:
        """Yield checked slices. Ends early if a file has unexpected content."""
        reader, planned = self._reader, self._reader.planned
        files = self._find(reader.link, planned)
        if files is None:
            return
        try:
            with ExitStack() as stack:
                for descriptor, begin, end in _open_files(stack, planned, files):
                    while begin < end and not reader.is_done:
                        block = _block(descriptor, begin, end)
                        begin += len(block)
                        yield self._accept_block(block)
        except (LiftError, OSError) as error:
            _logger.warning(
                "%s: cannot read on in the files in %s, reading the rest over NATS: %s", planned, files.folder, error
            )

    def _accept_block(self, block: memoryview) -> list[BatchSlice]:
        """Check the complete batches in ``block``, a part of a segment file, and return their slices from the position on.

        If a check raises a LiftError, the position does not change.
        """
        pieces, position, end = [], self._reader.position, self._reader.planned.end_offset
        for batch in split_batches(block):
            if batch.next_offset <= position or position >= end:
                continue
            if batch.base_offset > position:
                raise ProtocolError(
                    f"Gap in the local log: expected offset {position}, found {batch.base_offset}. The records are read "
                    "from a node instead."
                )
            piece = BatchSlice.between(batch, position, end)
            pieces += [piece] if piece is not None else []
            position = min(batch.next_offset, end)
        return self._reader.accept(pieces, position)


def find_offered_files(link: ProcessConnection, planned: PlannedRange) -> RangeFiles | None:
    """Return the segment files of a replica on this host that has the whole range. None: no replica offers its files now."""
    now_s = time.monotonic()
    nodes = [node for node in planned.replicas if link.elsewhere.get(node, 0.0) <= now_s]
    if not nodes or not this_host():
        return None
    try:
        answers = link.call(_ask(link, planned, nodes), 2 * _ASK_S)
    except LiftError:
        return None
    files_offered = None
    for node, files in zip(nodes, answers, strict=True):
        if files is None:
            link.elsewhere[node] = now_s + SILENT_S
        elif files.host != this_host():
            link.elsewhere[node] = now_s + ELSEWHERE_S
        elif files.spans:
            files_offered = files_offered or files
    return files_offered


async def _ask(link: ProcessConnection, planned: PlannedRange, nodes: list[str]) -> list[RangeFiles | None]:
    transport = await link.transport(_ASK_S)

    async def one(node: str) -> RangeFiles | None:
        options = ReadOptions(node=node, patience_s=_ASK_S, answer_timeout_s=_ASK_S)
        reader = PartitionReader(transport, link.subjects, planned.stream, planned.partition, options)
        with suppress(LiftError):
            return await reader.files(planned.start_offset, planned.end_offset, planned.uid)
        return None

    return list(await asyncio.gather(*(one(node) for node in nodes)))


def _open_files(stack: ExitStack, planned: PlannedRange, files: RangeFiles) -> list[tuple[int, int, int]]:
    """Open the segment files in ``files``, and return (file descriptor, first byte, end byte) of each. ``stack`` closes them.

    Raises OSError, and ProtocolError if the directory belongs to another partition.
    """
    folder = Path(files.folder)
    key = PartitionKey(planned.stream, planned.uid, planned.partition)
    if not folder.is_absolute() or folder.parts[-2:] != Path(key.folder).parts:
        raise ProtocolError(
            "The directory for local reads belongs to another partition. Check local_file_reads and the data "
            "directory of the node."
        )
    opened = []
    for base_offset, begin, end in files.spans:
        descriptor = os.open(folder / log_name(base_offset), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        stack.callback(os.close, descriptor)
        opened.append((descriptor, begin, end))
    return opened


def _block(descriptor: int, begin: int, end: int) -> memoryview:
    """Read complete batches from a segment file, from byte ``begin`` on and before byte ``end``.

    Raises CorruptionError if there is no complete batch, and OSError.
    """
    block = os.pread(descriptor, min(BLOCK_BYTES, end - begin), begin)
    whole = _whole_bytes(block)
    if not whole and len(block) >= HEADER_SIZE_BYTES:
        size_bytes = parse_header(memoryview(block)).size_bytes
        if size_bytes <= min(MAX_BATCH_BYTES, end - begin):
            block = os.pread(descriptor, size_bytes, begin)
            whole = _whole_bytes(block)
    if not whole:
        raise CorruptionError(
            f"The local log has no complete batch at position {begin}: the file was truncated. The records are "
            "read from a node instead."
        )
    return memoryview(block)[:whole]


def _whole_bytes(block: bytes) -> int:
    view, position = memoryview(block), 0
    while position + HEADER_SIZE_BYTES <= len(view):
        size_bytes = parse_header(view, position).size_bytes
        if size_bytes < HEADER_SIZE_BYTES or position + size_bytes > len(view):
            break
        position += size_bytes
    return position


# ---- over NATS --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class SpanGuess:
    """Estimates how many records the next span has.

    A span is a range of offsets whose bytes should fit into one answer. It ends at a multiple of the batches' record count,
    because the nodes send a batch that two spans share twice.

    Attributes:
        bytes_per_record: Bytes per record of the newest span. 0: there was none.
        batch_records: Number of records of its largest batch.
    """

    bytes_per_record: float = 0.0
    batch_records: int = 1

    def learn(self, pieces: list[BatchSlice], scanned_bytes: int = 0) -> None:
        """Update the estimate with the slices of the newest span.

        ``scanned_bytes``: size of the span in the log, in bytes. It is larger than the answer if columns were left out.
        """
        records = sum(piece.batch.record_count for piece in pieces)
        if records:
            travelled = sum(_message_bytes(piece.batch.header) for piece in pieces)
            self.bytes_per_record = max(scanned_bytes, travelled) / records
            self.batch_records = max(piece.batch.record_count for piece in pieces)

    def span_records(self, size_bytes: float = SPAN_BYTES) -> int:
        """Return the number of records of a span of about ``size_bytes``, which is at least one batch."""
        if not self.bytes_per_record:
            return _SPREAD_RECORDS
        wanted = int(size_bytes / self.bytes_per_record)
        return max(wanted - wanted % self.batch_records, self.batch_records)

    def answer_bytes(self, records: int) -> int:
        """Return the answer size for ``records``: the estimate plus one batch, at most SPAN_BYTES."""
        if not self.bytes_per_record:
            return SPAN_BYTES
        wanted = int((records + self.batch_records) * self.bytes_per_record)
        return min(max(wanted, _SMALLEST_ANSWER_BYTES), SPAN_BYTES)


def _message_bytes(header: BatchHeader) -> int:
    """Return the size of a batch for the estimate, in bytes. A highly compressed batch counts as larger than its message."""
    return max(header.size_bytes, header.body_size_bytes // _MOST_EXPANSION)


_guesses: OrderedDict[tuple[str, int, int], SpanGuess] = OrderedDict()
"""(stream uid, partition, unneeded columns) -> record size of the last task of this process. The next task begins with it."""


def _guess_of(key: tuple[str, int, int]) -> SpanGuess:
    with _lock:
        guess = _guesses.setdefault(key, SpanGuess())
        _guesses.move_to_end(key)
        while len(_guesses) > _MAX_GUESSES:
            _guesses.popitem(last=False)
    return guess


@dataclass(frozen=True, slots=True)
class _Request:
    """One request in flight, for the batches that end after ``start`` and at or before ``end``.

    The last request of a range also gets the batch that contains its end.
    """

    start: int
    end: int
    request_id: int
    answer: Answer


class PipelinedRequests:
    """Has a few requests in flight on the blocking connection of the process.

    A node sends a batch with the span in which it ends, so spans need not end at batch boundaries. The strategy checks
    the answers in order. If records of a span are missing (the answer was full, empty or late), ``RetryingRequests``
    fetches them before the strategy checks the next answer. It ends early if there is no blocking connection, or if
    batches are larger than an answer.
    """

    counted_as: ClassVar[str] = NATS

    def __init__(self, reader: RangeReader) -> None:
        self._reader = reader
        self._retrying = RetryingRequests(reader)
        self._key = (reader.planned.uid, reader.planned.partition, reader.rules.left_out)
        self._guess = _guess_of(self._key)
        self._request_end = reader.position
        self._flying: deque[_Request] = deque()
        self._timeout_s = min(ANSWER_S, reader.rules.patience_s)

    def blocks(self) -> Generator[list[BatchSlice], None, None]:
        """Yield checked slices. Ends early if there is no blocking connection, or if a batch does not fit into an answer."""
        line, reader = self._reader.link.line(), self._reader
        if line is None:
            return
        max_bytes = requested_bytes(SPAN_BYTES, line.max_payload_bytes)
        try:
            while not reader.is_done:
                if self._guess.bytes_per_record * self._guess.batch_records > max_bytes:
                    _guesses.pop(self._key, None)
                    return
                self._ask_ahead(line, max_bytes)
                yield from self._next(line)
        finally:
            self._cancel(line)

    def _next(self, line: BlockingConnection) -> Iterator[list[BatchSlice]]:
        """Wait for the answer to the oldest request in flight, and yield its slices. Missing records are fetched again."""
        request = self._flying.popleft()
        if request.end <= self._reader.position:  # one batch reached past all of it
            line.forget([request.answer])
            return
        answer = self._read_answer(line, request)
        base = None if answer is None else _first_base(answer)
        if base is not None and base > self._reader.position:
            yield self._retried(base)  # the answer before this one was full
            if base > self._reader.position:  # the records are much larger than expected: request them in smaller spans
                self._cancel(line)
                self._request_end = self._reader.position
                return
        before = self._reader.position
        if answer is not None:
            yield self._accept_answer(request, answer)
        if self._reader.position == before:
            yield self._retried(min(request.end, before + self._guess.span_records()))
            self._cancel(line)  # it is likely that the others bring nothing, too
        if not self._flying:
            self._request_end = self._reader.position

    def _cancel(self, line: BlockingConnection) -> None:
        line.forget([request.answer for request in self._flying])
        self._flying.clear()

    def _ask_ahead(self, line: BlockingConnection, max_bytes: int) -> None:
        """Send requests for the next spans until enough are in flight. Send only one while the size of records is unknown.

        ``max_bytes``: maximum size of an answer, in bytes.
        """
        end, known = self._reader.planned.end_offset, bool(self._guess.bytes_per_record)
        while len(self._flying) < (IN_FLIGHT if known else 1) and self._request_end < end:
            to = min(self._request_end + self._guess.span_records(max_bytes * _FULL), end) if known else end
            self._flying.append(self._ask(line, self._request_end, to, max_bytes))
            self._request_end = to

    def _ask(self, line: BlockingConnection, start: int, end: int, max_bytes: int) -> _Request:
        planned, subjects, request_id = self._reader.planned, self._reader.link.subjects, secrets.randbits(_ID_BITS)
        request = self._progress(start).request(max_bytes, 0, request_id)
        if end < planned.end_offset:  # else the batch that reaches past the end of the range is wanted as well
            request.endOffset = end
        if self._reader.node:
            subject = subjects.read_from(planned.stream, planned.partition, self._reader.node)
        else:
            subject = subjects.read(planned.stream, planned.partition)
        return _Request(start, end, request_id, line.ask(subject, frames.seal(request)))

    def _progress(self, start: int) -> ReadProgress:
        planned = self._reader.planned
        return ReadProgress(
            planned.stream,
            planned.partition,
            start,
            planned.end_offset,
            uid=planned.uid,
            floor_high_watermark=planned.end_offset - 1,
            left_out=self._reader.rules.left_out,
        )

    def _read_answer(self, line: BlockingConnection, request: _Request) -> memoryview | None:
        try:
            return request.answer.result(self._timeout_s)
        except (LiftError, concurrent.futures.TimeoutError):
            line.forget([request.answer])
            return None

    def _accept_answer(self, request: _Request, answer: memoryview) -> list[BatchSlice]:
        progress = self._progress(self._reader.position)
        progress.expect(request.request_id)
        try:
            pieces = progress.accept(answer)
        except LiftError:  # RetryingRequests raises the error if it lasts
            return []
        self._guess.learn(pieces, progress.scanned_bytes)
        self._reader.node = progress.node
        return self._reader.accept(pieces, progress.next_offset)

    def _retried(self, end: int) -> list[BatchSlice]:
        """Return slices from the position on, before ``end`` (exclusive), fetched by ``RetryingRequests``."""
        pieces = self._retrying.fetch(min(end, self._reader.planned.end_offset))
        self._guess.learn(pieces)
        return pieces


def _first_base(answer: memoryview) -> int | None:
    try:
        head, body = frames.decode_read_response(answer)
        return None if head.pieceTotal or len(body) < HEADER_SIZE_BYTES else parse_header(body).base_offset
    except LiftError:
        return None


@dataclass(frozen=True, slots=True)
class _Span:
    """Part of a planned range that is fetched by itself.

    Attributes:
        start_offset: First offset, inclusive.
        end_offset: End, exclusive.
        node: Node that is asked first. After that, any in-sync replica is asked.
        answer_bytes: Maximum size of one answer, in bytes.
        max_bytes: Number of fetched bytes at which the span ends early.
        tombstones: State of tombstones after the previous span (``ReadProgress.tombstones``). None: this is the first span.
    """

    planned: PlannedRange
    rules: FetchRules
    start_offset: int
    end_offset: int
    node: str
    answer_bytes: int
    max_bytes: int = MAX_SPAN_BYTES
    tombstones: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class _SpanResult:
    """Result of a span.

    Attributes:
        next_offset: First offset that was not fetched. It is below the end of the span if the span ended early.
        node: Node that answered last.
        compacted_end: End (exclusive) of the compacted part of the log.
    """

    pieces: list[BatchSlice]
    next_offset: int
    node: str
    compacted_end: int
    tombstones: tuple[str, int] | None


class RetryingRequests:
    """Requests each span from any replica until an answer arrives, on the shared connection of the process.

    Only the leader may report that records are deleted. A range of a compacted stream without a given end ends at the
    offset up to which the answering replicas had compacted [R11].
    """

    counted_as: ClassVar[str] = NATS

    def __init__(self, reader: RangeReader) -> None:
        self._reader = reader
        self._result_s = reader.rules.patience_s * 4

    def fetch(self, end: int) -> list[BatchSlice]:
        """Return checked slices from the position of the reader on, with one request at a time.

        They end at ``end`` (exclusive), or earlier after MAX_SPAN_BYTES.
        """
        reader = self._reader
        span = _Span(reader.planned, reader.rules, reader.position, end, reader.node, SPAN_BYTES)
        fetched = result_of(reader.link.submit(_fetch_span(reader.link, span)), self._result_s)
        reader.node = fetched.node
        return reader.accept(fetched.pieces, fetched.next_offset)

    def blocks(self) -> Generator[list[BatchSlice], None, None]:
        """Yield checked slices, with a few spans in flight. The first answer shows how large spans can be."""
        reader, guess, link, rules = self._reader, SpanGuess(), self._reader.link, self._reader.rules
        flying: deque[tuple[_Span, concurrent.futures.Future[_SpanResult]]] = deque()

        def request(span: _Span) -> None:
            flying.append((span, link.submit(_fetch_span(link, span))))

        def cancel() -> None:
            while flying:
                flying.pop()[1].cancel()

        planned = reader.planned
        next_offset = compacted_end = planned.end_offset
        request(_Span(planned, rules, reader.position, next_offset, reader.node, SPAN_BYTES, max_bytes=1))
        try:
            while flying:
                span, future = flying.popleft()
                fetched = result_of(future, self._result_s)
                pieces, reader.node = reader.accept(fetched.pieces, fetched.next_offset, span.planned), fetched.node
                guess.learn(pieces)
                if fetched.next_offset < span.end_offset:
                    cancel()
                    next_offset = fetched.next_offset
                if planned.moves_end and fetched.compacted_end > compacted_end:
                    compacted_end = fetched.compacted_end
                    planned = reader.planned = self._moved(compacted_end)
                while len(flying) < IN_FLIGHT and next_offset < planned.end_offset:
                    end = min(next_offset + guess.span_records(), planned.end_offset)
                    size_bytes = guess.answer_bytes(end - next_offset)
                    request(_Span(planned, rules, next_offset, end, reader.node, size_bytes, tombstones=fetched.tombstones))
                    next_offset = end
                if pieces:
                    yield pieces
        finally:
            cancel()

    def _moved(self, compacted_end: int) -> PlannedRange:
        """Return the planned range with a later end: the offset up to which the log was compacted when its records were read.

        ``compacted_end``: this offset, exclusive. The end does not go past the committed records.
        """
        planned, now = self._reader.planned, self._reader.leader_bounds()
        end = max(planned.end_offset, min(compacted_end, now.end_offset))
        return replace(planned, end_offset=end, leader_epoch=max(planned.leader_epoch, now.leader_epoch))


async def _fetch_span(link: ProcessConnection, span: _Span) -> _SpanResult:
    planned = span.planned
    options = ReadOptions(max_bytes=span.answer_bytes, wait_s=0.0, patience_s=span.rules.patience_s)
    transport = await link.transport(span.rules.patience_s)

    async def exists() -> None:
        await _is_there(MetadataRequests(transport, link.subjects, span.rules.patience_s), planned)

    reader = PartitionReader(transport, link.subjects, planned.stream, planned.partition, options, exists)
    reader.node = span.node
    progress = ReadProgress(
        planned.stream,
        planned.partition,
        span.start_offset,
        span.end_offset,
        uid=planned.uid,
        floor_high_watermark=planned.end_offset - 1,
        compacted=planned.compacted,
        left_out=span.rules.left_out,
        refuses_missed_tombstones=planned.moves_end,
        tombstones=span.tombstones,
    )
    pieces: list[BatchSlice] = []
    refusals = size_bytes = 0
    while not progress.done and size_bytes < span.max_bytes:
        try:
            pieces += (more := await reader.fetch(progress))
            size_bytes += sum(_message_bytes(piece.batch.header) for piece in more)
            if span.rules.note_deletes is not None and progress.tombstones is not None:
                span.rules.note_deletes(progress.tombstones[1])
        except OffsetOutOfRangeError:
            refusals += 1
            await _after_loss(reader, progress, span, refusals)
        except UnavailableError:
            await exists()
            raise
    return _SpanResult(pieces, progress.next_offset, progress.node, progress.compacted_end, progress.tombstones)


async def _is_there(requests: MetadataRequests, planned: PlannedRange) -> None:
    try:
        now = await requests.stream(planned.stream)
    except NotFoundError:
        raise NotFoundError(
            f"Stream {planned.stream} was deleted after {planned} was planned. Start the query again, with a new checkpoint if the "
            "stream was created again."
        ) from None
    if now.uid != planned.uid:
        raise NotFoundError(
            f"Stream {planned.stream} was deleted and created again after {planned} was planned. Use a new "
            "checkpoint and a new output."
        )


async def _after_loss(reader: PartitionReader, progress: ReadProgress, span: _Span, refusals: int) -> None:
    """Continue after a replica has said that its log starts after the position of ``progress``.

    If the leader confirms it, raise DataLossError or skip the lost records, as the rules say. Otherwise ask the leader for the records.
    ``refusals``: number of such answers so far.
    """
    bounds, _ = await reader.bounds(span.planned.uid)
    if bounds.log_start_offset <= progress.next_offset:
        if refusals > _MOST_REFUSALS:
            raise ProtocolError(
                f"A replica rejected offset {progress.next_offset} of {span.planned}, but the log of its leader "
                f"{bounds.leader} contains this offset. Retry the query."
            )
        reader.node = bounds.leader
        return
    lost_end = min(bounds.log_start_offset, span.end_offset)
    text = f"OFFSET_OUT_OF_RANGE {span.planned}: offsets [{progress.next_offset}, {lost_end}) were deleted after planning, "
    text += f"the log of {bounds.leader} starts at {bounds.log_start_offset}"
    if span.rules.fail_on_data_loss:
        raise DataLossError(f"{text}. Start from existing records, or set failOnDataLoss=false.")
    _logger.warning("%s; skipping them, because failOnDataLoss is false", text)
    if span.rules.note_loss is not None:
        span.rules.note_loss(text, progress.next_offset, lost_end)
    progress.next_offset = lost_end


# ---- rows -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowBuilder:
    """Converts slices of one partition into Arrow batches with the given ``columns``."""

    stream: str
    partition: int
    columns: tuple[str, ...]

    def batches(self, pieces: Iterable[BatchSlice]) -> Iterator[pa.RecordBatch]:
        group: list[Rows] = []
        rows = size_bytes = 0
        for piece in _split_large_pieces(pieces):
            more_rows, more_bytes = piece.record_count, _size_bytes(piece)
            if group and (rows + more_rows > MAX_ROWS or size_bytes + more_bytes > MAX_BYTES):
                yield self._batch(group)
                group, rows, size_bytes = [], 0, 0
            group.append(Rows(piece.batch, piece.first_index, piece.end_index))
            rows += more_rows
            size_bytes += more_bytes
            if size_bytes >= MANY_BYTES or (rows >= ENOUGH_ROWS and size_bytes >= ENOUGH_BYTES):
                yield self._batch(group)
                group, rows, size_bytes = [], 0, 0
        if group:
            yield self._batch(group)

    def _batch(self, group: list[Rows]) -> pa.RecordBatch:
        arrays = [_OWN[name](group, self) if name in _OWN else ARRAYS[name](group) for name in self.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(self.columns))


def _size_bytes(piece: BatchSlice) -> int:
    return piece.batch.header.body_size_bytes * piece.record_count // piece.batch.record_count


def _split_large_pieces(pieces: Iterable[BatchSlice]) -> Iterator[BatchSlice]:
    for piece in pieces:
        parts = min(max(-(-piece.record_count // MAX_ROWS), -(-_size_bytes(piece) // MAX_BYTES)), piece.record_count)
        if parts <= 1:
            yield piece
            continue
        cuts = [piece.first_index + piece.record_count * i // parts for i in range(parts + 1)]
        for first, end in itertools.pairwise(cuts):
            yield replace(piece, first_index=first, end_index=end)


def _headers(group: Sequence[Rows], _: RowBuilder) -> pa.Array:
    return ARRAYS["headers"](group).cast(COLUMNS["headers"])  # only the name of the list's field differs


def _timestamps(group: Sequence[Rows], _: RowBuilder) -> pa.Array:
    return arrow_array_of(timestamps_ns(group) // _NS_PER_US, COLUMNS["timestamp"])


def _streams(group: Sequence[Rows], builder: RowBuilder) -> pa.Array:
    return pa.repeat(pa.scalar(builder.stream), sum(rows.record_count for rows in group))


def _partitions(group: Sequence[Rows], builder: RowBuilder) -> pa.Array:
    return pa.array(np.full(sum(rows.record_count for rows in group), builder.partition, dtype=np.int32))


_OWN: dict[str, Callable[[Sequence[Rows], RowBuilder], pa.Array]] = {
    "headers": _headers,
    "stream": _streams,
    "topic": _streams,
    "partition": _partitions,
    "timestamp": _timestamps,
}
"""Columns that only the Spark source has, with the function that builds each. All other columns come from the log."""
