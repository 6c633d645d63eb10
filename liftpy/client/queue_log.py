"""Log of one partition for a queue worker: fetches and caches the records that the worker was granted.

The worker caches records of an answer that it does not need yet, up to a limit. If one worker uses the partition alone,
it reads each record once. With several workers, each one reads about the records that it was granted. At the end of the
log, a long poll waits for new records.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

import numpy as np

from liftpy.client.batch_view import BatchSlice
from liftpy.client.consumer import IDLE_S, PartitionReader, ReadOptions
from liftpy.client.positions import Bounds
from liftpy.client.progress import ReadProgress
from liftpy.core.base.ids import PartitionKey
from liftpy.core.wire.batch import Record
from liftpy.errors import LiftError, LogTruncatedError, OffsetOutOfRangeError

READ_BUFFER_BYTES = 8 * 1024 * 1024
"""Maximum size of cached records of one partition, in bytes. The newest answer does not count."""
_RECORD_COST_BYTES = 100
"""Approximate memory of a record in Python, in bytes."""
_UNKNOWN_RECORD_BYTES = 256
_LEAST_BYTES = 4096
_FAILED_S = 0.25


class ReadSpan:
    """Result of reading the offsets ``start`` to ``end`` (exclusive), in the cache.

    ``piece``: the records. None: there are no records. If the records are read in order, each is decoded once.
    """

    __slots__ = ("_at", "_rows", "end", "piece", "start")

    def __init__(self, start: int, end: int, piece: BatchSlice | None) -> None:
        self.start, self.end, self.piece = start, end, piece
        self._rows: Iterator[Record] = iter(())
        self._at = -1
        """Index in ``piece`` of the next record of ``_rows``. -1: no record was decoded yet."""

    @property
    def cost_bytes(self) -> int:
        if self.piece is None:
            return _RECORD_COST_BYTES
        header = self.piece.batch.header
        return header.size_bytes + 2 * header.body_size_bytes + _RECORD_COST_BYTES * self.piece.batch.record_count

    def records(self, start: int, end: int) -> list[Record]:
        """Return the records from ``start`` to ``end`` (exclusive)."""
        if self.piece is None:
            return []
        first, behind = (int(place) for place in np.searchsorted(self.piece.offsets(), (start, end)))
        if self._at < 0 or first < self._at:
            self._rows, self._at = self.piece.records(), 0
        records = list(islice(self._rows, first - self._at, behind - self._at))
        self._at = max(first, behind)
        return records

    def keys(self, start: int, end: int) -> Iterator[tuple[int, bytes | None]]:
        """Yield offset and key of the records from ``start`` to ``end`` (exclusive)."""
        piece = BatchSlice.between(self.piece.batch, max(start, self.start), end) if self.piece is not None else None
        return iter(()) if piece is None else zip(piece.offsets().tolist(), piece.keys(), strict=True)


class QueueLog:
    """Cached log of one partition for a worker.

    Its methods raise the errors of reads, such as NotFoundError if the stream was created again.
    """

    def __init__(self, reader: PartitionReader, key: PartitionKey, options: ReadOptions) -> None:
        self.key = key
        self._options = options
        self._reader = reader
        self.bounds: Bounds | None = None
        """Bounds of the partition in the last answer. None: never asked."""
        self.end_offset = -1
        """Exclusive end of the committed records, as far as this client knows. -1: unknown."""
        self.epoch = 0
        """LeaderEpoch of the answers with ``end_offset``. No record below that offset has a higher one. 0: unknown."""
        self._compared = (0, 0, 0)
        """``epoch`` at the last comparison, and the LeaderEpoch and the offset that it was compared with. Zeros: none."""
        self._last = (-1, 0)
        """Offset and LeaderEpoch of the last record that was read. Epoch 0: none."""
        self.granted_below = 0
        """Highest offset that this worker was granted, exclusive."""
        self._read_below = -1
        """Highest offset that the worker has requested, exclusive. -1: none."""
        self._spans: deque[ReadSpan] = deque()
        self._held_bytes = 0
        self._record_bytes = float(_UNKNOWN_RECORD_BYTES)
        self._compacted = False
        self._watch: asyncio.Task[None] | None = None

    @property
    def has_more(self) -> bool:
        """True if this worker knows of committed records above all records that it was granted."""
        return self.end_offset > self.granted_below

    async def refresh_bounds(self) -> Bounds:
        """Ask the leader for the bounds of the partition, and store and return them.

        Raises NotFoundError if the stream was created again, and LogTruncatedError if records that were read are lost.
        """
        bounds = self.bounds = (await self._reader.bounds(self.key.uid, last=self._last))[0]
        self.end_offset, self.epoch = bounds.end_offset, bounds.leader_epoch
        return bounds

    async def check_reaches(self, end: int) -> None:
        """Raise LogTruncatedError if the log ends below the offset ``end`` (exclusive), up to which it was committed before."""
        if end > self.end_offset and end > (end_offset := (await self.refresh_bounds()).end_offset):
            raise self._lost_error(end_offset, end)

    @property
    def compared(self) -> tuple[int, int]:
        """LeaderEpoch and offset with which this view of the log was compared. Zeros: it was not compared."""
        epoch, taken_epoch, taken_below = self._compared
        return (taken_epoch, taken_below) if epoch == self.epoch else (0, 0)

    async def compare(self, taken_below: int, taken_epoch: int) -> None:
        """Check that the log still has the records that the queue has delivered, and note it in ``compared`` [Q8].

        ``taken_below``: exclusive end of these records. ``taken_epoch``: LeaderEpoch that none of them exceeds. A record with a
        higher one has replaced a lost record. Raises LogTruncatedError if records are lost, and the errors of reads.
        """
        bounds = await self.refresh_bounds()
        if taken_below > bounds.end_offset:
            raise self._lost_error(bounds.end_offset, taken_below)
        if taken_below > bounds.log_start_offset:
            last = taken_below - 1
            try:
                facts = await self._reader.measure(last, taken_below, self.key.uid)
            except OffsetOutOfRangeError:  # retention was faster
                await self.compare(taken_below, taken_epoch)
                return
            if facts.end_epoch > taken_epoch:
                try:
                    await self._reader.bounds(self.key.uid, last=(last, taken_epoch))
                except LogTruncatedError as error:
                    raise self._lost_error(error.end_offset, taken_below) from None
        self._compared = (bounds.leader_epoch, taken_epoch, taken_below)

    def _lost_error(self, end_offset: int, taken_below: int) -> LogTruncatedError:
        """Return the error for lost records. ``end_offset``: exclusive end of the delivered records that the log still has."""
        return LogTruncatedError(
            f"The log of {self.key.stream}/{self.key.partition} has lost records from offset {end_offset} on, but the queue has "
            f"delivered records up to offset {taken_below}. An unclean election lost them. The queue would skip new records below "
            f"offset {taken_below}. Stop the workers, delete the queue, and set its position to {end_offset} (`liftpy group "
            "delete`, `liftpy group reset`).",
            end_offset,
        )

    # ---- records -----------------------------------------------------------------------------------------------------
    async def records(self, start: int, end: int) -> list[Record]:
        """Return the records from ``start`` to ``end`` (exclusive). Deleted records are missing."""
        records: list[Record] = []
        for one in await self.spans_between(start, end):
            records += one.records(start, end)
        return records

    async def spans_between(self, start: int, end: int) -> list[ReadSpan]:
        """Return the records from ``start`` to ``end`` (exclusive) as cached or newly read spans, in order."""
        spans: list[ReadSpan] = []
        alone = start == self._read_below
        self._read_below = max(self._read_below, end)
        while start < end:
            known = next((one for one in self._spans if one.start <= start < one.end), None)
            try:
                fresh = [known] if known is not None else await self._fetch(start, end, alone=alone)
            except OffsetOutOfRangeError:  # retention was faster
                start = max(start + 1, (await self.refresh_bounds()).log_start_offset)
                continue
            for one in fresh:
                if start < end:
                    spans.append(one)
                    start = one.end
        return spans

    async def _fetch(self, start: int, end: int, *, alone: bool) -> list[ReadSpan]:
        """Read one answer from offset ``start`` on, and return its spans.

        ``alone``: True to read beyond ``end``, because no other worker seems to use the partition.
        """
        key = self.key
        progress = ReadProgress(
            key.stream, key.partition, start, uid=key.uid, floor_high_watermark=end - 1, compacted=self._compacted
        )
        max_bytes = None if alone else max(_LEAST_BYTES, round((end - start) * self._record_bytes * 1.25))
        slices: list[BatchSlice] = []
        while progress.next_offset == start:  # the first pieces of a large batch give nothing yet
            slices = await self._reader.fetch(progress, max_bytes)
        return self._keep(start, slices, progress)

    def _keep(self, start: int, slices: list[BatchSlice], progress: ReadProgress) -> list[ReadSpan]:
        spans: list[ReadSpan] = []
        for piece in slices:
            self._last = max(self._last, (piece.last_offset, piece.leader_epoch))
            spans.append(ReadSpan(start, piece.last_offset + 1, piece))
            start = piece.last_offset + 1
        if start < progress.next_offset:
            spans.append(ReadSpan(start, progress.next_offset, None))
        if slices:
            header = slices[-1].batch.header
            self._record_bytes = header.size_bytes / max(1, slices[-1].batch.record_count)
        self._compacted = progress.compacted
        self.end_offset = max(self.end_offset, progress.high_watermark + 1)
        self.epoch = max(self.epoch, progress.node_epoch)
        self._spans.extend(spans)
        self._held_bytes += sum(one.cost_bytes for one in spans)
        while self._held_bytes > READ_BUFFER_BYTES and len(self._spans) > len(spans):
            self._held_bytes -= self._spans.popleft().cost_bytes
        return spans

    # ---- the end -----------------------------------------------------------------------------------------------------
    def watch(self) -> asyncio.Task[None]:
        """Return a task that ends when more records are committed, or after a while without new records."""
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._wait(self.end_offset), name=f"the end of {self.key.stream}")
        return self._watch

    async def _wait(self, end: int) -> None:
        key = self.key
        progress = ReadProgress(key.stream, key.partition, end, uid=key.uid, compacted=self._compacted)
        until_s, slices = time.monotonic() + max(self._options.wait_s / 2, IDLE_S), list[BatchSlice]()
        with suppress(LiftError):  # the next take repeats the request and raises the error
            slices = await self._reader.fetch(progress)
        if progress.next_offset > end:
            self._keep(end, slices, progress)
        elif time.monotonic() < until_s:  # it failed, or there was no long poll
            await asyncio.sleep(_FAILED_S)

    def close(self) -> asyncio.Task[None] | None:
        """Stop waiting for new records. Return the canceled task, which ends soon. None: no task was waiting."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
        return watch
