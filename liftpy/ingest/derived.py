"""DerivedState: what ingest keeps of a partition's log on each replica, and how it comes to know it [protocol: Promotion].

It is fed with every batch that is appended here, the leader's own and fetched ones, so that a promotion finds it ready. Whoever
has just opened a log knows nothing of it: ``replay`` reads what is needed, in slices, and a leader takes publishes when it has
reached the log's end. What is appended meanwhile is replayed too.

Where it begins: at the first batch that may lie within the window of the record at HW. Not of the log's end: what is above HW may be
cut, and then log time falls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from liftpy.errors import CorruptionError
from liftpy.ingest.recent_ids import RecentIds, ids_in
from liftpy.log.log import Log
from liftpy.log.reading import offset_before
from liftpy.wire.batch import RecordBatch, parse_header, split_batches

REPLAY_BYTES = 512 * 1024
"""Of the log, in one slice: about a millisecond of full batches, a few of small ones."""


class DerivedState:
    """Of one replica. The shell tells it of every change of ``log``, after it. ``now_ns``: the node's monotonic clock."""

    def __init__(self, log: Log, window_ns: int, max_bytes: int, now_ns: Callable[[], int]) -> None:
        self._log = log
        self.ids = RecentIds(window_ns, max_bytes, now_ns)
        self.replayed_bytes = 0
        """Read again of the log, ever."""
        if log.log_end_offset == log.log_start_offset:
            self.ids.begin(log.log_end_offset)
        self.ids.committed(log.high_watermark)

    @property
    def is_complete(self) -> bool:
        """Whether it covers the log to its end."""
        return self.ids.end_offset == self._log.log_end_offset

    def appended(self, base_offset: int, record_count: int, timestamp_ns: int, ids: Mapping[int, bytes]) -> None:
        """A batch of this leader's own is in the log. ``ids``: by offset."""
        self.ids.take(base_offset, base_offset + record_count - 1, timestamp_ns, ids)

    def fetched(self, batches: Iterable[RecordBatch]) -> None:
        """Fetched batches are in the log; while earlier ones are still to be replayed, those will be too."""
        for batch in batches:
            if batch.base_offset != self.ids.end_offset:
                return
            self._take(batch)

    def _take(self, batch: RecordBatch) -> None:
        header = batch.header
        self.ids.take(header.base_offset, header.last_offset, header.timestamp_ns, ids_in(batch), empty=not header.record_count)

    def committed(self, high_watermark: int) -> None:
        """HW has risen."""
        self.ids.committed(high_watermark)

    def cut(self) -> None:
        """The log was cut, or begun afresh."""
        log = self._log
        if log.log_end_offset == log.log_start_offset:
            self.ids.begin(log.log_end_offset)
        else:
            self.ids.cut(log.log_end_offset)
        self.ids.committed(log.high_watermark)

    def replay(self, max_bytes: int = REPLAY_BYTES) -> bool:
        """Read on in the log; whether it is covered to its end now. Raises what ``Log.read`` raises."""
        log, ids = self._log, self.ids
        if self.is_complete:
            return True
        at = self._first_needed() if ids.end_offset is None else ids.end_offset
        if at < log.log_start_offset or ids.end_offset is None:  # or retention was faster
            ids.begin(max(at, log.log_start_offset))
            ids.committed(log.high_watermark)
        assert ids.end_offset is not None
        result = log.read(ids.end_offset, max_bytes, end_offset=log.log_end_offset)
        self.replayed_bytes += result.size_bytes
        for chunk in result.chunks:
            for batch in split_batches(chunk, verify=False):
                self._take(batch)
        if not result.chunks:
            raise CorruptionError(f"nothing can be read at {ids.end_offset} of a log that ends at {log.log_end_offset}")
        return self.is_complete

    def _first_needed(self) -> int:
        """Base offset of a batch at or before the first one that lies within the window of the record at HW."""
        log = self._log
        if log.high_watermark < log.log_start_offset:
            return log.log_start_offset
        chunks = log.read(log.high_watermark, 1, end_offset=log.log_end_offset).chunks
        newest = parse_header(chunks[0])
        return min(
            max(offset_before(log.segments, newest.timestamp_ns - self.ids.window_ns), log.log_start_offset), newest.base_offset
        )
