"""DerivedState: what ingest keeps of a partition's log on each replica, and how it comes to know it [protocol: Promotion].

It is a fixed set of parts, each a pure function of the same log (``Part``): ``ids`` is what message ids are known, ``producers``
who has numbered what. One ``end_offset``
stands for all of them: every part has taken every batch below it that it needs.

It is fed with every batch that is appended here, the leader's own and fetched ones, so that a promotion finds it ready. Whoever
has just opened a log knows nothing of it: ``replay`` reads what is needed, in slices, and a leader takes publishes when it has
reached the log's end. What is appended meanwhile is replayed too.

Where it begins: at the first batch that may lie within the longest reach of a part, seen from the record at HW. Not from the log's end:
what is above HW may be cut, and then log time falls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from liftpy.config import NS_PER_S, ReplicationConfig, StreamConfig
from liftpy.errors import CorruptionError
from liftpy.ingest.derived_part import NewBatch, Numbering, Part
from liftpy.ingest.producers import Producers, count_for
from liftpy.ingest.recent_ids import RecentIds, ids_in
from liftpy.invariants import check
from liftpy.log.log import Log
from liftpy.log.reading import offset_before
from liftpy.wire.batch import RecordBatch, parse_header, split_batches

REPLAY_BYTES = 512 * 1024
"""Of the log, in one slice: about a millisecond of full batches, a few of small ones."""

_PRODUCERS_REACH_NS = 600 * NS_PER_S


class DerivedState:
    """Of one replica. The shell tells it of every change of ``log``, after it. ``now_ns``: the node's monotonic clock."""

    def __init__(
        self, log: Log, window_ns: int, max_bytes: int, now_ns: Callable[[], int], producers: Producers | None = None
    ) -> None:
        self._log = log
        self.ids = RecentIds(window_ns, max_bytes, now_ns)
        self.producers = Producers(0, count_for(max_bytes)) if producers is None else producers
        self.parts: tuple[Part, ...] = (self.ids, self.producers)
        self.replayed_bytes = 0
        """Read again of the log, ever."""
        self._begin(log.log_end_offset if log.log_end_offset == log.log_start_offset else None)

    def _begin(self, offset: int | None) -> None:
        self.end_offset = offset
        """Exclusive: everything below it that a part needs has been taken; None: nothing is known of the log."""
        self._high_watermark = -1
        for part in self.parts:
            part.begin(offset)
        self.committed(self._log.high_watermark)

    @property
    def is_complete(self) -> bool:
        """Whether it covers the log to its end."""
        return self.end_offset == self._log.log_end_offset

    def appended(
        self,
        base_offset: int,
        record_count: int,
        timestamp_ns: int,
        ids: Mapping[int, bytes],
        numbering: Numbering | None = None,
    ) -> None:
        """A batch of this leader's own is in the log. ``ids``: by offset."""
        self._take(NewBatch(base_offset, base_offset + record_count - 1, timestamp_ns, record_count, ids, numbering))

    def fetched(self, batches: Iterable[RecordBatch]) -> None:
        """Fetched batches are in the log; while earlier ones are still to be replayed, those will be too."""
        for batch in batches:
            if batch.base_offset != self.end_offset:
                return
            self._take(_told(batch))

    def _take(self, batch: NewBatch) -> None:
        check(self.end_offset == batch.base_offset, "A3", "derived: a batch at", batch.base_offset, "after", self.end_offset)
        self.end_offset = batch.last_offset + 1
        for part in self.parts:
            part.take(batch)

    def committed(self, high_watermark: int) -> None:
        """HW has risen."""
        if high_watermark > self._high_watermark:
            self._high_watermark = high_watermark
            for part in self.parts:
                part.committed(high_watermark)

    def cut(self) -> None:
        """The log was cut, or begun afresh. Below what was committed here nothing is known any more."""
        log = self._log
        end_offset = log.log_end_offset
        if end_offset == log.log_start_offset:
            self._begin(end_offset)
        elif self.end_offset is None or end_offset >= self.end_offset:
            self.committed(log.high_watermark)
        elif end_offset <= self._high_watermark:
            self._begin(None)
        else:
            self.end_offset = end_offset
            for part in self.parts:
                part.cut(end_offset)

    def replay(self, max_bytes: int = REPLAY_BYTES) -> bool:
        """Read on in the log; whether it is covered to its end now. Raises what ``Log.read`` raises."""
        log = self._log
        if self.is_complete:
            return True
        at = self._first_needed() if self.end_offset is None else self.end_offset
        if at < log.log_start_offset or self.end_offset is None:  # or retention was faster
            self._begin(max(at, log.log_start_offset))
        assert self.end_offset is not None
        result = log.read(self.end_offset, max_bytes, end_offset=log.log_end_offset)
        self.replayed_bytes += result.size_bytes
        for chunk in result.chunks:
            for batch in split_batches(chunk, verify=False):
                self._take(_told(batch))
        if not result.chunks:
            raise CorruptionError(f"nothing can be read at {self.end_offset} of a log that ends at {log.log_end_offset}")
        return self.is_complete

    def _first_needed(self) -> int:
        """Base offset of a batch at or before the first one that lies within the longest reach of the record at HW."""
        log = self._log
        if log.high_watermark < log.log_start_offset:
            return log.log_start_offset
        chunks = log.read(log.high_watermark, 1, end_offset=log.log_end_offset).chunks
        newest, reach_ns = parse_header(chunks[0]), max(part.reach_ns for part in self.parts)
        return min(max(offset_before(log.segments, newest.timestamp_ns - reach_ns), log.log_start_offset), newest.base_offset)


def _told(batch: RecordBatch) -> NewBatch:
    header = batch.header
    numbering = None
    if header.producer_id:
        columns = None if header.is_compacted else batch.columns
        numbering = Numbering(header.producer_id, header.producer_epoch, header.base_sequence, columns)
    return NewBatch(header.base_offset, header.last_offset, header.timestamp_ns, header.record_count, ids_in(batch), numbering)


def derived_state(log: Log, stream: StreamConfig, node: ReplicationConfig, now_ns: Callable[[], int]) -> DerivedState:
    """As the settings say. ``now_ns``: the node's monotonic clock."""
    window_ns = round(stream.dedup_window_s * NS_PER_S)
    expiry_ns = round(node.producer_expiry_s * NS_PER_S)
    producers = Producers(expiry_ns, count_for(node.producer_bytes), min(expiry_ns, _PRODUCERS_REACH_NS))
    return DerivedState(log, window_ns, node.dedup_bytes, now_ns, producers)
