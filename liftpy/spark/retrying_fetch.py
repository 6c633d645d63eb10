"""Reads one planned range in an executor, in spans of about a megabyte, with a few requests in flight, and returns them in order.

Holds R5: exactly the planned records, or an error, and never fewer. ``liftpy.client.progress`` checks answers (order, gaps, HW, uid,
CRC). This module has the checks that need the plan: no planned record was replaced (a LeaderEpoch above the planned one), and only the
leader may say that records are gone.

A span is a range of offsets whose bytes should fit into one answer. Its size is estimated from the bytes per record so far. It ends at
a multiple of the batches' record count, because a batch that two spans share is sent twice.

A range of a compacted stream without a given end ends where compaction had looked, on the replicas that answered [R11].

This is the safe path: it requests each span until it is there, from any replica, over the shared connection. ``lined`` is the fast path
without retries. Spans that it does not get are fetched here.
"""

from __future__ import annotations

import concurrent.futures
import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from liftpy.client.batch_view import BatchSlice
from liftpy.client.consumer import PartitionReader, ReadOptions
from liftpy.client.metadata_requests import MetadataRequests
from liftpy.client.positions import Bounds
from liftpy.client.progress import ReadProgress
from liftpy.core.wire.batch import BatchHeader
from liftpy.errors import DataLossError, NotFoundError, OffsetOutOfRangeError, ProtocolError, UnavailableError
from liftpy.spark.planning import PlannedRange
from liftpy.spark.process_connection import Link, result_of

IN_FLIGHT = 4
SPAN_BYTES = 1024 * 1024 - 8192
_MOST_EXPANSION = 16
"""Maximum factor by which a span grows when it is decompressed."""
_SPREAD_RECORDS = 4096
_SMALLEST_ANSWER_BYTES = 64 * 1024
_MOST_REFUSALS = 8
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class SpanGuess:
    """Estimates how many records the next span has.

    ``bytes_per_record``: of the newest span, 0 before the first. ``batch_records``: of its largest batch.
    """

    bytes_per_record: float = 0.0
    batch_records: int = 1

    def learn(self, pieces: list[BatchSlice], looked_bytes: int = 0) -> None:
        """Learn from the newest span. ``looked_bytes``: its size in the log if columns were left out."""
        records = sum(piece.batch.record_count for piece in pieces)
        if records:
            travelled = sum(_size_bytes(piece.batch.header) for piece in pieces)
            self.bytes_per_record = max(looked_bytes, travelled) / records
            self.batch_records = max(piece.batch.record_count for piece in pieces)

    def span_records(self, size_bytes: float = SPAN_BYTES) -> int:
        """Return records of the next span, of about ``size_bytes``; at least one batch's worth."""
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


def _size_bytes(header: BatchHeader) -> int:
    """Return the size of a batch in a message, larger for a highly compressed one."""
    return max(header.size_bytes, header.body_size_bytes // _MOST_EXPANSION)


@dataclass(frozen=True, slots=True)
class FetchRules:
    """Rules of a read. ``patience_s``: maximum time without an answer. ``leader_first``: otherwise spread over the replicas."""

    patience_s: float = 30.0
    leader_first: bool = False
    fail_on_data_loss: bool = True
    files: bool = False
    """True if files of replicas on this host are read. ``expects_files``: log if there are none."""
    expects_files: bool = False
    left_out: int = 0
    """Columns that are not wanted (``liftpy.core.wire.filters``)."""


def fetch_range(link: Link, planned: PlannedRange, rules: FetchRules) -> Iterator[list[BatchSlice]]:
    """Yield the records of the range as lists of checked slices, in order. Raises DataLossError or UnavailableError.

    Closing the generator early (as a LIMIT does) stops the requests in flight.
    """
    guess, leader_epoch, node = SpanGuess(), planned.start_epoch, first_choice(planned, rules)
    flying: deque[tuple[PlannedRange, concurrent.futures.Future[_Fetched]]] = deque()
    first = _Span(planned, rules, planned.start_offset, planned.end_offset, node, SPAN_BYTES, one_answer=True)
    flying.append((planned, link.submit(_fetch_span(link, first))))  # this one tells how large the others should be
    next_offset = None
    compacted_end = planned.end_offset
    tombstones: tuple[str, int] | None = None
    try:
        while flying:
            of, future = flying.popleft()
            fetched = result_of(future, rules.patience_s * 4)
            tombstones = fetched.tombstones
            leader_epoch, node = check_pieces(of, fetched.pieces, leader_epoch), fetched.node
            guess.learn(fetched.pieces)
            next_offset = fetched.next_offset if next_offset is None else next_offset
            if planned.moves_end and fetched.compacted_end > compacted_end:
                compacted_end = fetched.compacted_end
                planned = _moved(link, planned, rules, compacted_end)
            while len(flying) < IN_FLIGHT and next_offset < planned.end_offset:
                end = min(next_offset + guess.span_records(), planned.end_offset)
                size_bytes = guess.answer_bytes(end - next_offset)
                span = _Span(planned, rules, next_offset, end, node, size_bytes, tombstones=tombstones)
                flying.append((planned, link.submit(_fetch_span(link, span))))
                next_offset = end
            if fetched.pieces:
                yield fetched.pieces
    finally:
        for _, future in flying:
            future.cancel()


def _moved(link: Link, planned: PlannedRange, rules: FetchRules, compacted_end: int) -> PlannedRange:
    """Return ``planned`` with its end at the compaction point at which its records were read."""

    async def bounds() -> Bounds:
        transport = await link.transport(rules.patience_s)
        options = ReadOptions(patience_s=rules.patience_s)
        reader = PartitionReader(transport, link.subjects, planned.stream, planned.partition, options)
        return (await reader.bounds(planned.uid))[0]

    now = link.call(bounds(), rules.patience_s * 4)
    end = max(planned.end_offset, min(compacted_end, now.end_offset))
    return replace(planned, end_offset=end, leader_epoch=max(planned.leader_epoch, now.leader_epoch))


@dataclass(frozen=True, slots=True)
class _Span:
    """Part of a range: ``start_offset`` inclusive, ``end_offset`` exclusive.

    ``node``: node that is asked first, then any in-sync replica. ``answer_bytes``: limit of one answer. ``one_answer``: read
    only what one answer contains. ``tombstones``: tombstones of the previous span (``ReadProgress.tombstones``), None: this
    is the first.
    """

    planned: PlannedRange
    rules: FetchRules
    start_offset: int
    end_offset: int
    node: str
    answer_bytes: int
    one_answer: bool = False
    tombstones: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class _Fetched:
    """Result of a span.

    ``next_offset``: next offset to request. ``node``: answered last. ``compacted_end``: exclusive end of the compacted range.
    """

    pieces: list[BatchSlice]
    next_offset: int
    node: str
    compacted_end: int
    tombstones: tuple[str, int] | None


def fetch_part(
    link: Link, planned: PlannedRange, rules: FetchRules, start: int, end: int, node: str
) -> tuple[list[BatchSlice], str]:
    """Fetch [``start``, ``end``) of a range, first from ``node``. Return checked slices and the answering node."""
    span = _Span(planned, rules, start, end, node, SPAN_BYTES)
    fetched = result_of(link.submit(_fetch_span(link, span)), rules.patience_s * 4)
    return fetched.pieces, fetched.node


async def _fetch_span(link: Link, span: _Span) -> _Fetched:
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
    refusals = 0
    while not progress.done and not (span.one_answer and pieces):
        try:
            pieces += await reader.fetch(progress)
        except OffsetOutOfRangeError:
            refusals += 1
            await _after_loss(reader, progress, span, refusals)
        except UnavailableError:
            await exists()
            raise
    return _Fetched(pieces, progress.next_offset, progress.node, progress.compacted_end, progress.tombstones)


async def _is_there(requests: MetadataRequests, planned: PlannedRange) -> None:
    """Raise NotFoundError if the stream was deleted after the range was planned, also if there is another one with its name."""
    try:
        now = await requests.stream(planned.stream)
    except NotFoundError:
        raise NotFoundError(
            f"Stream {planned.stream} was deleted after {planned} was planned. Check the stream name."
        ) from None
    if now.uid != planned.uid:
        raise NotFoundError(
            f"Stream {planned.stream} was deleted and created again after {planned} was planned. Use a new "
            "checkpoint and a new output."
        )


def first_choice(planned: PlannedRange, rules: FetchRules) -> str:
    """Return the first node to ask: the same for equal ranges."""
    if rules.leader_first or not planned.replicas:
        return planned.leader
    return planned.replicas[(planned.start_offset // _SPREAD_RECORDS + planned.partition) % len(planned.replicas)]


async def _after_loss(reader: PartitionReader, progress: ReadProgress, span: _Span, refusals: int) -> None:
    """Handle a replica whose log starts after ``progress``: confirm it with the leader, then fail or skip."""
    bounds, _ = await reader.bounds(span.planned.uid)
    if bounds.log_start_offset <= progress.next_offset:
        if refusals > _MOST_REFUSALS:
            raise ProtocolError(
                f"Offset {progress.next_offset} of {span.planned} was rejected, although {bounds.leader} reports that "
                "it has it. Retry the query."
            )
        reader.node = bounds.leader
        return
    lost_end = min(bounds.log_start_offset, span.end_offset)
    text = f"OFFSET_OUT_OF_RANGE {span.planned}: offsets [{progress.next_offset}, {lost_end}) were deleted after planning, "
    text += f"the log of {bounds.leader} starts at {bounds.log_start_offset}"
    if span.rules.fail_on_data_loss:
        raise DataLossError(f"{text}. Start from existing records, or set failOnDataLoss to false.")
    _logger.warning("%s; reading goes on from there", text)
    progress.next_offset = lost_end


def check_pieces(planned: PlannedRange, pieces: list[BatchSlice], leader_epoch: int) -> int:
    """Return the last record's LeaderEpoch.

    Raises DataLossError if an epoch is above the planned one, ProtocolError if epochs fall along the log. An earlier check
    ensures that batches follow each other. This one checks that none has a gap inside.
    """
    for piece in pieces:
        epoch, header = piece.batch.leader_epoch, piece.batch.header
        if header.record_count <= header.last_offset_delta and not planned.compacted:
            raise ProtocolError(
                f"{planned}: the batch at offset {header.base_offset} lacks records, although the stream is not "
                "compacted. Run `liftpy spark audit` for this stream."
            )
        if epoch > planned.leader_epoch:
            raise DataLossError(
                f"{planned}: records from offset {piece.batch.base_offset} have LeaderEpoch {epoch}, but others were "
                f"committed there in epoch {planned.leader_epoch} or before. An unclean election lost the first "
                "records. Start with a new checkpoint, or set failOnDataLoss to false."
            )
        if epoch < leader_epoch:
            raise ProtocolError(
                f"{planned}: LeaderEpoch {epoch} at offset {piece.batch.base_offset} follows the higher epoch "
                f"{leader_epoch}. Run `liftpy spark audit` for this stream."
            )
        leader_epoch = epoch
    return leader_epoch
