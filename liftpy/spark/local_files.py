"""Reads a planned range from the segment files of a replica on the executor's own host.

A node with ``local_file_reads`` names the files and positions of a committed range, its host, and the state of its log.
The task opens all
files at once. An open file stays readable after its removal, so retention and compaction take nothing from the task
until it ends. No
lease is needed. If retention was faster, the files are missing, and the task asks the nodes like any reader: they have
the records, or
report them as deleted (R5).

Every batch is checked like one from NATS: CRC, no gap, planned LeaderEpochs. The directory must belong to the planned
stream's uid (R9). A
mismatch (a truncated log, damage, a file that cannot be opened) ends the reading of files, not the task: the rest comes
over NATS. The
task uses ``pread``, because a file that is truncated under a mapping ends the process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from liftpy.client.batch_view import BatchSlice
from liftpy.client.closest_replica import this_host
from liftpy.client.consumer import PartitionReader, ReadOptions
from liftpy.client.range_size import RangeFiles
from liftpy.core.base.ids import PartitionKey
from liftpy.core.log.segment import log_name
from liftpy.core.wire.batch import HEADER_SIZE_BYTES, MAX_BATCH_BYTES, parse_header, split_batches
from liftpy.errors import CorruptionError, LiftError, ProtocolError
from liftpy.spark.fast_fetch import read_range
from liftpy.spark.planning import PlannedRange
from liftpy.spark.process_connection import Link
from liftpy.spark.retrying_fetch import FetchRules, check_pieces

BLOCK_BYTES = 4 * 1024 * 1024
"""Read at a time; more where one batch is larger."""
ELSEWHERE_S = 60.0
"""Time for which a node on another host, or without local reads, is not asked again, in seconds."""
SILENT_S = 5.0
"""Time for which a node that did not answer, or lacks a part of the range, is not asked again, in seconds."""
_ASK_S = 0.5
FILES, NATS = "records from files", "records over NATS"
counts: Counter[str] = Counter()
"""Numbers of records of this process: from files, over NATS."""
_lock = threading.Lock()
_logger = logging.getLogger(__name__)


def read_nearest(link: Link, planned: PlannedRange, rules: FetchRules) -> Generator[list[BatchSlice], None, None]:
    """The range's records as lists of checked slices, in order, from files as far as they go; errors as of ``lined.read_range``."""
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
    """The files of a replica on this host that has the range; None: none says so now."""
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
        """Lists of checked slices, in order; ends early where the files are not as they should be."""
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
        """(descriptor, begin, end) of each file. Raises OSError, ProtocolError."""
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
