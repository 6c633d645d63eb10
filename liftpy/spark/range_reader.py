"""``read()`` of both readers: one planned range, from local files or the nodes, turned into Arrow batches.

Record batches into Arrow batches of the declared columns, built by ``liftpy.core.log.arrow``: no Python per record.

Arrow batches have at most MAX_ROWS rows and about MAX_BYTES: larger ones are slower in the JVM, much smaller ones cost a fixed
price each. So record batches are joined, of however many answers, until there are ENOUGH_ROWS of ENOUGH_BYTES, or MANY_BYTES, and a
large one is cut.
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
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from liftpy.client.batch_view import BatchSlice, one_by_one
from liftpy.client.closest_replica import this_host
from liftpy.client.consumer import PartitionReader, ReadOptions
from liftpy.client.progress import ReadProgress
from liftpy.client.range_size import RangeFiles
from liftpy.core.base.ids import PartitionKey
from liftpy.core.log.arrow import ARRAYS, Rows, fixed, timestamps_ns
from liftpy.core.log.segment import log_name
from liftpy.core.wire import frames
from liftpy.core.wire.batch import HEADER_SIZE_BYTES, MAX_BATCH_BYTES, parse_header, split_batches
from liftpy.errors import CorruptionError, DataLossError, LiftError, LogTruncatedError, ProtocolError, UnavailableError
from liftpy.nats.blocking_connection import Answer, BlockingConnection
from liftpy.spark.failures import coded
from liftpy.spark.options import SourceOptions
from liftpy.spark.planning import PlannedRange
from liftpy.spark.process_connection import Link, link_to
from liftpy.spark.retrying_fetch import (
    IN_FLIGHT,
    SPAN_BYTES,
    FetchRules,
    SpanGuess,
    check_pieces,
    fetch_part,
    fetch_range,
    first_choice,
)
from liftpy.spark.schema import COLUMNS, arrow_schema, left_out

MAX_ROWS = 16_384
MAX_BYTES = 16 * 1024 * 1024
ENOUGH_ROWS = 4096
ENOUGH_BYTES = 1024 * 1024
MANY_BYTES = 8 * 1024 * 1024
_NS_PER_US = 1000


@dataclass(frozen=True, slots=True)
class RowBuilder:
    """Builds Arrow batches of ``columns`` from slices of one partition."""

    stream: str
    partition: int
    columns: tuple[str, ...]

    def batches(self, pieces: Iterable[BatchSlice]) -> Iterator[pa.RecordBatch]:
        """Yield Arrow batches of all records of ``pieces``, in order."""
        group: list[Rows] = []
        rows = size_bytes = 0
        for piece in _bounded(pieces):
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
    """Return the approximate uncompressed size of its records."""
    return piece.batch.header.body_size_bytes * piece.record_count // piece.batch.record_count


def _bounded(pieces: Iterable[BatchSlice]) -> Iterator[BatchSlice]:
    """Yield ``pieces``, split if one is too large for an Arrow batch."""
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
    return fixed(timestamps_ns(group) // _NS_PER_US, COLUMNS["timestamp"])


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
"""Columns that Spark has and the log does not have, or not in this form. The others are those of the log."""


OLD_PLAN_S = 300.0
"""Age of a batch query's plan above which each read logs it, in seconds."""
_logger = logging.getLogger(__name__)


def read_planned(planned: PlannedRange | None, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield Arrow batches of the range in order. Raise a SourceError whose text begins with its code.

    ``planned`` None: what Spark makes of an empty plan.
    """
    if planned is None:
        return
    age_s = (time.time_ns() - planned.planned_ns) / 1e9 if planned.planned_ns else 0.0
    if age_s > OLD_PLAN_S:
        _logger.warning(
            "%s was planned %.0f s ago, when its DataFrame first ran: Spark keeps that plan, so that later records are not seen; "
            "load() again for a newer one",
            planned,
            age_s,
        )
    rules = FetchRules(
        patience_s=options.patience_s,
        leader_first=options.read_from_leader,
        files=not options.read_from_leader,
        expects_files=options.expects_files,
        fail_on_data_loss=options.fail_on_data_loss,
        left_out=left_out(options.columns),
    )
    builder = RowBuilder(planned.stream, planned.partition, options.columns)
    link = link_to(options.access)
    with coded():
        fetched = read_nearest(link, planned, rules)
        try:
            yield from builder.batches(itertools.chain.from_iterable(map(one_by_one, fetched)))
        except UnavailableError:
            _must_be_there(link, planned, options)
            raise
        finally:
            fetched.close()


def _must_be_there(link: Link, planned: PlannedRange, options: SourceOptions) -> None:
    """Raise DataLossError if an unclean election has lost records of the range, by the leader's answer."""
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


# Reads a planned range from the segment files of a replica on the executor's own host.
#
# A node with ``local_file_reads`` says in which files, from where to where, a range lies that it has and knows to be committed;
# whose host it is, and that its log agrees with its leader's, it says in the same answer. The task opens all of them at once:
# what is open outlives its removal, so retention and compaction take nothing from it until it ends. That is the lease: the
# system keeps it, for the bytes of these files and the time of this task, and nobody has to be told. Where retention was faster
# the files are not there, and the nodes are asked as by everybody: they have the records, or say that they are gone (R5).
#
# Every batch is checked as one that came over NATS: CRC, no gap, LeaderEpochs as planned; the folder must be that of the
# planned stream's uid (R9). What does not fit (a log that was cut meanwhile, damage, a file that can't be opened) ends the
# reading of files, not the task: the rest comes over NATS. ``pread``, not a mapping: a file that is cut under a mapping ends
# the process.


BLOCK_BYTES = 4 * 1024 * 1024
"""Number of bytes to read at once. It is more if a batch is larger."""
ELSEWHERE_S = 60.0
"""Time for which a node on another host, or without local reads, is not asked again, in seconds."""
SILENT_S = 5.0
"""Time for which a node that did not answer, or lacks a part of the range, is not asked again, in seconds."""
_ASK_S = 0.5
FILES, NATS = "records from files", "records over NATS"
counts: Counter[str] = Counter()
"""Numbers of records of this process: from files, over NATS."""
_lock = threading.Lock()


def read_nearest(link: Link, planned: PlannedRange, rules: FetchRules) -> Generator[list[BatchSlice], None, None]:
    """Yield the records of the range as lists of checked slices, in order, from local files as far as possible. Raises as
    ``lined.read_range``.
    """
    position, from_files = planned.start_offset, 0
    if rules.files and not planned.compacted:
        files = offered(link, planned)
        if files is not None:
            course = FileRange(planned, files)
            for pieces in course.pieces():
                from_files += sum(piece.record_count for piece in pieces)
                yield pieces
            position = course.position
    with _lock:
        counts[FILES] += from_files
    rest = 0
    if position < planned.end_offset:
        for pieces in read_range(link, replace(planned, start_offset=position), rules):
            rest += sum(piece.record_count for piece in pieces)
            yield pieces
    with _lock:
        counts[NATS] += rest
        share = counts[FILES] / max(counts[FILES] + counts[NATS], 1)
    if rules.files:
        level = logging.WARNING if rules.expects_files and rest else logging.INFO
        text = "%s: %d records from files of this host, %d over NATS; of all that this process has read %.0f %% were from files"
        _logger.log(level, text, planned, from_files, rest, 100 * share)


def offered(link: Link, planned: PlannedRange) -> RangeFiles | None:
    """Return the files of a replica on this host that has the range. None: no replica offers them now."""
    now_s = time.monotonic()
    asked = [node for node in planned.replicas if link.elsewhere.get(node, 0.0) <= now_s]
    if not asked or not this_host():
        return None
    try:
        told = link.call(_ask(link, planned, asked), 2 * _ASK_S)
    except LiftError:
        return None
    found = None
    for node, files in zip(asked, told, strict=True):
        if files is None:
            link.elsewhere[node] = now_s + SILENT_S
        elif files.host != this_host():
            link.elsewhere[node] = now_s + ELSEWHERE_S
        elif files.spans:
            found = found or files
    return found


async def _ask(link: Link, planned: PlannedRange, nodes: list[str]) -> list[RangeFiles | None]:
    transport = await link.transport(_ASK_S)

    async def one(node: str) -> RangeFiles | None:
        options = ReadOptions(node=node, patience_s=_ASK_S, answer_timeout_s=_ASK_S)
        reader = PartitionReader(transport, link.subjects, planned.stream, planned.partition, options)
        with suppress(LiftError):
            return await reader.files(planned.start_offset, planned.end_offset, planned.uid)
        return None

    return list(await asyncio.gather(*(one(node) for node in nodes)))


class FileRange:
    """Progress through the files of a range. ``position``: first undelivered offset."""

    def __init__(self, planned: PlannedRange, files: RangeFiles) -> None:
        self.position = planned.start_offset
        self._planned = planned
        self._files = files
        self._epoch = planned.start_epoch

    def pieces(self) -> Iterator[list[BatchSlice]]:
        """Yield lists of checked slices, in order. It ends early if the files have unexpected content."""
        planned = self._planned
        try:
            with ExitStack() as stack:
                for descriptor, begin, end in self._opened(stack):
                    while begin < end and self.position < planned.end_offset:
                        block = _block(descriptor, begin, end)
                        begin += len(block)
                        yield self._accepted(block)
        except (LiftError, OSError) as error:
            _logger.warning("%s: its files in %s are read no further: %s", planned, self._files.folder, error)

    def _opened(self, stack: ExitStack) -> list[tuple[int, int, int]]:
        """Return (descriptor, begin, end) of each file. Raises OSError, ProtocolError."""
        folder = Path(self._files.folder)
        key = PartitionKey(self._planned.stream, self._planned.uid, self._planned.partition)
        if not folder.is_absolute() or folder.parts[-2:] != Path(key.folder).parts:
            raise ProtocolError("The directory belongs to another partition. Check the option for local files.")
        opened = []
        for base_offset, begin, end in self._files.spans:
            descriptor = os.open(folder / log_name(base_offset), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            stack.callback(os.close, descriptor)
            opened.append((descriptor, begin, end))
        return opened

    def _accepted(self, block: memoryview) -> list[BatchSlice]:
        """Return the slices of whole batches in ``block`` from ``position`` on. A LiftError leaves the position unchanged."""
        found, position, end = [], self.position, self._planned.end_offset
        for batch in split_batches(block):
            if batch.next_offset <= position or position >= end:
                continue
            if batch.base_offset > position:
                raise ProtocolError(
                    f"Gap in the local log: expected offset {position}, found {batch.base_offset}. The records are read "
                    "from a node instead."
                )
            piece = BatchSlice.between(batch, position, end)
            found += [piece] if piece is not None else []
            position = min(batch.next_offset, end)
        self._epoch = check_pieces(self._planned, found, self._epoch)
        self.position = position
        return found


def _block(descriptor: int, begin: int, end: int) -> memoryview:
    """Return whole batches from ``begin`` on. Raise CorruptionError if there is none, or OSError."""
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
    """Return the size of the complete batches in ``block``. For an incomplete first one, its claimed size."""
    view, position = memoryview(block), 0
    while position + HEADER_SIZE_BYTES <= len(view):
        size_bytes = parse_header(view, position).size_bytes
        if size_bytes < HEADER_SIZE_BYTES or position + size_bytes > len(view):
            break
        position += size_bytes
    return position


# Reads one planned range over the process's connection: a few requests in flight, each batch sent once.
#
# The reader requests the range in parts of about a megabyte. The nodes send a batch with the part in which it ends, so the
# borders of the parts do not matter. The reader checks the parts in order. If records of a part are missing (the answer was
# full, empty or late), it fetches them with ``retrying_fetch.fetch_part`` before it checks the next part. The records are
# therefore always those of ``retrying_fetch``, checked in the same way [R5]. Compacted streams use ``retrying_fetch`` only.


ANSWER_S = 3.0
"""Maximum time of an answer after the one before it, in seconds. Then the client with retries requests it."""
_FULL = 7 / 8
"""Part of an answer that is planned for: records differ in size."""
_PAYLOAD_RESERVE_BYTES = 4096
_ID_BITS = 63
_MAX_GUESSES = 256
_guesses: OrderedDict[tuple[str, int, int], SpanGuess] = OrderedDict()
"""(stream uid, partition, columns left out) -> what the last task of this process learned: a micro-batch begins with it."""


def read_range(link: Link, planned: PlannedRange, rules: FetchRules) -> Generator[list[BatchSlice], None, None]:
    """Read a range as ``fetching.fetch_range`` does, over the blocking connection if possible."""
    line = None if planned.compacted else link.line()
    if line is None:
        yield from fetch_range(link, planned, rules)
        return
    course = _LinedRange(link, line, planned, rules)
    try:
        yield from course.pieces()
    finally:
        course.leave()
    if course.position < planned.end_offset:  # batches larger than an answer
        _guesses.pop(_key_of(planned, rules), None)
        yield from fetch_range(link, replace(planned, start_offset=course.position), rules)


@dataclass(frozen=True, slots=True)
class _LinedPart:
    """Part of a range: batches that end in (``start``, ``end``], and at the end of the range the next one."""

    start: int
    end: int
    request_id: int
    answer: Answer


class _LinedRange:
    """Progress through one range. ``position``: first undelivered offset."""

    def __init__(self, link: Link, line: BlockingConnection, planned: PlannedRange, rules: FetchRules) -> None:
        self._link = link
        self._line = line
        self._planned = planned
        self._rules = rules
        self._guess = _guess_of(planned, rules)
        self._node = first_choice(planned, rules)
        self._epoch = planned.start_epoch
        self._asked_to = self.position = planned.start_offset
        self._flying: deque[_LinedPart] = deque()
        self._max_bytes = min(SPAN_BYTES, line.max_payload_bytes - _PAYLOAD_RESERVE_BYTES)
        self._timeout_s = min(ANSWER_S, rules.patience_s)

    def leave(self) -> None:
        """Cancel requests in flight."""
        self._line.forget([asked.answer for asked in self._flying])
        self._flying.clear()

    def pieces(self) -> Iterator[list[BatchSlice]]:
        """Yield lists of checked slices, in order. It ends before the range if batches are larger than an answer."""
        while self.position < self._planned.end_offset and not self._is_too_large:
            self._ask_ahead()
            asked = self._flying.popleft()
            if asked.end <= self.position:  # one batch reached past all of it
                self._line.forget([asked.answer])
                continue
            answer = self._answered(asked)
            base = None if answer is None else _first_base(answer)
            if base is not None and base > self.position:
                yield self._surely(base)  # the answer before this one was full
            before = self.position
            if answer is not None:
                yield self._accepted(asked, answer)
            if self.position == before:
                yield self._surely(min(asked.end, before + self._guess.span_records()))
                self.leave()  # it is likely that the others bring nothing, too
            if not self._flying:
                self._asked_to = self.position

    @property
    def _is_too_large(self) -> bool:
        return self._guess.bytes_per_record * self._guess.batch_records > self._max_bytes

    def _ask_ahead(self) -> None:
        """Request parts until enough are in flight, only one while their size is unknown."""
        end, known = self._planned.end_offset, bool(self._guess.bytes_per_record)
        while len(self._flying) < (IN_FLIGHT if known else 1) and self._asked_to < end:
            to = min(self._asked_to + self._guess.span_records(self._max_bytes * _FULL), end) if known else end
            self._flying.append(self._ask(self._asked_to, to))
            self._asked_to = to

    def _ask(self, start: int, end: int) -> _LinedPart:
        planned, request_id = self._planned, secrets.randbits(_ID_BITS)
        request = self._progress(start).request(self._max_bytes, 0, request_id)
        if end < planned.end_offset:  # else the batch that reaches past the end of the range is wanted as well
            request.endOffset = end
        subjects = self._link.subjects
        if self._node:
            subject = subjects.read_from(planned.stream, planned.partition, self._node)
        else:
            subject = subjects.read(planned.stream, planned.partition)
        return _LinedPart(start, end, request_id, self._line.ask(subject, frames.sealed(request)))

    def _progress(self, start: int) -> ReadProgress:
        planned = self._planned
        return ReadProgress(
            planned.stream,
            planned.partition,
            start,
            planned.end_offset,
            uid=planned.uid,
            floor_high_watermark=planned.end_offset - 1,
            left_out=self._rules.left_out,
        )

    def _answered(self, asked: _LinedPart) -> memoryview | None:
        """Return the answer, None without one."""
        try:
            return asked.answer.result(self._timeout_s)
        except (LiftError, concurrent.futures.TimeoutError):
            self._line.forget([asked.answer])
            return None

    def _accepted(self, asked: _LinedPart, answer: memoryview) -> list[BatchSlice]:
        """Return the slices of an answer from ``position`` on, [] if it is unusable."""
        progress = self._progress(self.position)
        progress.expect(asked.request_id)
        try:
            found = progress.accept(answer)
        except LiftError:  # whatever it is, the sure way says it if it lasts
            return []
        self._guess.learn(found, progress.looked_bytes)
        self._node = progress.node
        return self._checked(found, progress.next_offset)

    def _surely(self, end: int) -> list[BatchSlice]:
        """Return the slices from ``position`` to ``end``, or raise an error."""
        end = min(end, self._planned.end_offset)
        found, self._node = fetch_part(self._link, self._planned, self._rules, self.position, end, self._node)
        self._guess.learn(found)
        return self._checked(found, end)

    def _checked(self, found: list[BatchSlice], next_offset: int) -> list[BatchSlice]:
        self._epoch = check_pieces(self._planned, found, self._epoch)
        self.position = next_offset
        return found


def _first_base(answer: memoryview) -> int | None:
    """Return the base offset of an answer's first batch. None: it has none, or is no answer."""
    try:
        head, body = frames.decode_read_response(answer)
        return None if head.pieceTotal or len(body) < HEADER_SIZE_BYTES else parse_header(body).base_offset
    except LiftError:
        return None


def _key_of(planned: PlannedRange, rules: FetchRules) -> tuple[str, int, int]:
    return planned.uid, planned.partition, rules.left_out


def _guess_of(planned: PlannedRange, rules: FetchRules) -> SpanGuess:
    key = _key_of(planned, rules)
    with _lock:
        guess = _guesses.setdefault(key, SpanGuess())
        _guesses.move_to_end(key)
        while len(_guesses) > _MAX_GUESSES:
            _guesses.popitem(last=False)
    return guess
