"""``LastPerSubject``: index of the last offset of each subject, for ``Nats-Expected-Last-Subject-Sequence``. Pure.

The first publish with this header creates the index. From then on each new batch is added, and the log before it is
read backwards in slices (``LogState.index_backwards``). A publish for a subject that is in the index can be answered at once.
For any other subject it waits until the whole log is read. A stream with one literal subject needs no index. A
truncation removes the entries of the truncated batches.

Memory is limited. If the removal of deleted subjects does not free enough, the index is dropped, and publishes with the
header are rejected. They are accepted again when retention has deleted half of the subjects, or the node has memory
again.

Example: log a@0 b@1 a@2, high watermark 1, and a first publish with a condition on "b". The index begins at 3, reads
back, and finds a: 2, b: 1.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from sys import getsizeof
from typing import NamedTuple

import numpy as np

from liftpy.config import NS_PER_S
from liftpy.core.log.log import Log
from liftpy.core.publish.log_state_part import (
    NewBatch,
    NodeStateMemory,
    Share,
    cut_up,
    join_texts,
    numbers,
    pack_numbers,
    slices_of,
)
from liftpy.core.publish.message_decoder import RawMessage
from liftpy.core.wire.batch import RecordBatch, parse_batch
from liftpy.core.wire.subjects import literal_prefix, matcher
from liftpy.errors import CorruptionError

_ENTRY_BYTES = 96
"""Memory of a subject besides its text, in bytes. The value was measured."""
_BATCH_BYTES = 320
"""Memory of an uncommitted batch besides its subjects, in bytes."""
_OFF, _ASKED, _READY = b"\0", b"\1", b"\2"
_COUNT = struct.Struct("<Q")
MANY = 10_000
"""Number of subjects above which a filter is not looked up, because the lookup would block the node for milliseconds."""
_AFTER_DOT = chr(ord(".") + 1)
_CHECK_BYTES = 64
"""Length of a filter that counts as one more comparison, in bytes."""

WAIT_NS = 4 * NS_PER_S
"""Maximum wait of a publish for the index, in nanoseconds. A JetStream client gives up after 5 s."""
WAIT_BYTES = 1 << 20
"""Maximum memory of publishes that wait for the index of one partition, in bytes."""
WAIT_PUBLISHES = 1000
"""Maximum number of publishes that wait for the index of one partition."""
_WAIT_OVERHEAD_BYTES = 400
"""Memory of a waiting publish besides its parts, in bytes."""


class _WaitingPublish(NamedTuple):
    """A publish that waits until the subject index can answer its condition."""

    until_ns: int
    subject: str
    """Subject whose last offset is not known yet. '': the publish needs the complete index."""
    message: RawMessage
    retry: Callable[[RawMessage], None]


class IndexWait:
    """Publishes that wait for the index of the last offset per subject, in the order of their arrival.

    Args:
        now_ns: The node's monotonic clock.
        node: Memory limit of the node for derived state. Waiting publishes count there.
    """

    __slots__ = ("_is_closed", "_now_ns", "_waiting", "share")

    def __init__(self, now_ns: Callable[[], int], node: NodeStateMemory | None = None) -> None:
        self._now_ns = now_ns
        self.share = Share(node, "subject_waits", WAIT_BYTES, "the bound of waiting publishes")
        self._waiting: list[_WaitingPublish] = []
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, message: RawMessage, subject: str, retry: Callable[[RawMessage], None]) -> bool:
        """Let ``message`` wait until the index has ``subject``. Then ``retry`` is called with the message.

        Return False if the message cannot wait: there is no room, or ``retry`` is running.
        """
        size_bytes = _wait_bytes(message)
        if self._is_closed:
            return False
        if len(self._waiting) >= WAIT_PUBLISHES or not self.share.has_room(size_bytes):
            self.share.count_rejections()
            return False
        self._waiting.append(_WaitingPublish(self._now_ns() + WAIT_NS, subject, message, retry))
        self.share.hold(self.share.size_bytes + size_bytes)
        return True

    def release(self, index: LastPerSubject, *, everything: bool = False) -> None:
        """Call ``retry`` for the publishes whose subject is in the index now, and for those that have waited too long.

        ``everything``: True to do this for all waiting publishes.
        """
        if self._waiting:
            now_ns = self._now_ns()
            self._retry_due(
                lambda one: everything or one.until_ns <= now_ns or (one.subject and index.find(one.subject) is not None)
            )

    def _retry_due(self, is_due: Callable[[_WaitingPublish], object]) -> None:
        due, left = list[_WaitingPublish](), list[_WaitingPublish]()
        for one in self._waiting:
            (due if is_due(one) else left).append(one)
        if not due:
            return
        self._waiting = left
        self.share.hold(sum(_wait_bytes(one.message) for one in left))
        self._is_closed = True
        try:
            for one in due:
                one.retry(one.message)
        finally:
            self._is_closed = False

    def forget(self) -> None:
        """Drop all waiting publishes, because another node leads. Their publishers get no answer."""
        self._waiting = []
        self.share.hold(0)


def _wait_bytes(message: RawMessage) -> int:
    return _WAIT_OVERHEAD_BYTES + sum(map(len, message))


class LastPerSubject:
    """Index of the last offset of each subject in the log, a ``Part`` of the derived state.

    Args:
        literal: True if the stream has one subject without wildcards, so that nothing is stored.
        max_bytes: Maximum memory use.
        log: Log of the partition. Its start is read.
        read_on: Called when older records of the log must be read.
        node: Memory limit for the derived state of the node. None: no limit.
    """

    __slots__ = (
        "_began_at", "_committed", "_full_until", "_high_watermark", "_literal", "_log", "_names", "_over", "_read_on",
        "_tail", "_wants_bytes", "low", "share", "wanted",
    )  # fmt: skip

    name = "subjects"
    version = 1
    reach_ns = 0

    def __init__(
        self,
        literal: bool,
        max_bytes: int,
        log: Log,
        read_on: Callable[[], None] = lambda: None,
        node: NodeStateMemory | None = None,
    ) -> None:
        self._literal = literal
        self.share = Share(node, self.name, max_bytes, "partition_subject_index_bytes")
        self._log = log
        self._read_on = read_on
        self.wanted = False
        """True if a publish has needed the last offset of a subject. The log shows this after a restart."""
        self._full_until: int | None = None
        """Log start above which the index is tried again after it exceeded its memory limit."""
        self._wants_bytes = 0
        """Free memory that the node needs before the index is tried again, in bytes. 0: the node's memory was not the reason.
        """
        self._clear(None)

    def begin(self, offset: int | None) -> None:
        self._clear(offset)
        if self.lacks:
            self._read_on()

    def _clear(self, offset: int | None) -> None:
        self._committed: dict[str, int] = {}  # offsets of committed records, and of those that were read backwards
        self._over: dict[str, int] = {}  # offsets of uncommitted records
        self._names: list[str] | None = None
        """Known subjects in sorted order, at most ``MANY``. None: they must be sorted again."""
        # uncommitted batches: (last offset, subject -> offset, bytes)
        self._tail: list[tuple[int, Mapping[str, int], int]] = []
        self._high_watermark = -1
        self._began_at = offset
        self.low = offset
        """Offset from which on all records are in the index (inclusive). None: no record is in it."""
        self.share.hold(0)

    @property
    def size_bytes(self) -> int:
        return self.share.size_bytes

    def _grow(self, size_bytes: int) -> None:
        self.share.hold(self.share.size_bytes + size_bytes)

    def __len__(self) -> int:
        """Return an upper bound for the number of subjects in the index. A subject with uncommitted records counts twice."""
        return len(self._committed) + len(self._over)

    @property
    def is_full(self) -> bool:
        """True if the index was dropped, because the subjects of the log do not fit into the memory limit."""
        if self._full_until is not None and (
            self._log.log_start_offset > self._full_until or (self._wants_bytes and self.share.has_room(self._wants_bytes))
        ):
            self._full_until = None
            self.wanted = False
        return self._full_until is not None

    @property
    def lacks(self) -> bool:
        """True if older records of the log must still be read for the index."""
        return self.wanted and self._full_until is None and self.low is not None and self.low > self._log.log_start_offset

    @property
    def state(self) -> str:
        """State of the index for the status page: off, reading, ready or full."""
        if self.is_full:
            return "full"
        return ("reading" if self.low is None or self.lacks else "ready") if self.wanted else "off"

    # ---- the log -----------------------------------------------------------------------------------------------------
    def want(self, end_offset: int | None) -> None:
        """Start the index, because a publish has a condition on a subject.

        ``end_offset``: exclusive end of the records that the derived state covers. None: it covers none.
        """
        if self.wanted or self._literal or self.is_full:
            return
        self.wanted = True
        self._restart(end_offset)

    def _restart(self, offset: int | None) -> None:
        high_watermark = self._high_watermark
        self.begin(offset)
        self._high_watermark = high_watermark

    def add_batch(self, batch: NewBatch) -> None:
        if not self.wanted:
            if not batch.has_conditions:
                return
            self.want(batch.base_offset)
        if self._full_until is not None or not self.wanted:
            return
        if self.low is None:
            self._restart(batch.base_offset)
        newest = last_of_each(batch.stored) if batch.record_count else {}
        size_bytes = _BATCH_BYTES + _size_bytes(newest)
        self._add_names(newest)
        self._tail.append((batch.last_offset, newest, size_bytes))
        self._over.update(newest)
        self._grow(size_bytes)
        if batch.last_offset <= self._high_watermark:
            self._merge_committed()
        self._make_room(size_bytes)

    def committed(self, high_watermark: int) -> None:
        if high_watermark > self._high_watermark:
            self._high_watermark = high_watermark
            if self._tail:
                self._merge_committed()
                self._make_room(0)

    def _merge_committed(self) -> None:
        tail, over = self._tail, self._over
        committed_count = 0
        for last_offset, newest, size_bytes in tail:
            if last_offset > self._high_watermark:
                break
            committed_count += 1
            self._keep(newest)
            self._grow(-size_bytes)
            for subject in [subject for subject, offset in newest.items() if over[subject] == offset]:
                del over[subject]
        del tail[:committed_count]

    def _keep(self, newest: Mapping[str, int]) -> None:
        self._grow(_size_bytes(newest.keys() - self._committed.keys()))
        self._committed.update(newest)

    def truncate(self, end_offset: int) -> None:
        if self._began_at is not None and end_offset < self._began_at:
            self._restart(end_offset if self.wanted else None)
            return
        self._names = None
        while self._tail and self._tail[-1][0] >= end_offset:
            self._grow(-self._tail.pop()[2])
        self._over = {}
        for _, newest, _ in self._tail:
            self._over.update(newest)

    def read_below(self, low: int, newest: Mapping[str, int]) -> None:
        """Add the subjects of older records, which were read from offset ``low`` up to the part that the index already covers.

        ``newest``: subject -> its last offset in these records.
        """
        self.low, self._names = low, None
        before_bytes = self.size_bytes
        self._keep({subject: offset for subject, offset in newest.items() if subject not in self._committed})
        self._make_room(self.size_bytes - before_bytes)

    def _make_room(self, grown_bytes: int) -> None:
        if not self.share.excess_bytes(grown_bytes):
            return
        self._names = None
        start = self._log.log_start_offset
        remaining = {subject: offset for subject, offset in self._committed.items() if offset >= start}
        self._grow(-_size_bytes(self._committed.keys() - remaining.keys()))
        self._committed = remaining
        room_bytes = self.share.bound_bytes * 7 // 8
        if self.size_bytes > room_bytes or self.share.excess_bytes(grown_bytes):
            offsets = [*remaining.values(), *self._over.values()]
            self._wants_bytes = min(2 * self.size_bytes, room_bytes) if self.size_bytes <= room_bytes else 0
            self._clear(None)
            self._full_until = int(np.median(offsets)) if offsets else start

    # ---- checkpoints -------------------------------------------------------------------------------------------------
    def snapshot(self) -> Callable[[], Sequence[bytes]]:
        """Return a function that encodes the index for a state file.

        Format: whether the index is in use. If it is complete, offsets and sizes as columns follow, then the subjects.
        """
        if not self.wanted or not self._has_all_subjects:
            state = _ASKED if self.wanted else _OFF
            return lambda: [state]
        committed = dict(self._committed)
        return lambda: [_READY, *_encode(committed)]

    def restore(self, data: bytes | None, end_offset: int) -> None:
        """Load the index from ``data``, the content of a state file for the log below ``end_offset``.

        If the file does not have all subjects, the log is read backwards.
        """
        self.wanted = data is not None and data[:1] != _OFF and not self._literal
        self._clear(end_offset)
        self._high_watermark = end_offset - 1
        if self.wanted and data is not None and data[:1] == _READY:
            self._committed = _decode(data[1:], end_offset)
            self.low = 0
            self._grow(_size_bytes(self._committed))
            self._make_room(0)
        elif self.lacks:
            self._read_on()

    # ---- lookups -----------------------------------------------------------------------------------------------------
    def find(self, subject: str) -> int | None:
        """Return the offset of the last record of ``subject``. -1: it has no record. None: the answer is not known yet."""
        offset = self._over.get(subject)
        if offset is None:
            offset = self._committed.get(subject)
        if offset is None:
            return -1 if self._has_all_subjects else None
        return offset if offset >= self._log.log_start_offset else -1

    @property
    def _has_all_subjects(self) -> bool:
        return self.wanted and self.low is not None and not self.lacks

    def find_matching(self, subject_filter: str) -> int | None:
        """Return the offset of the newest record whose subject matches ``subject_filter``.

        -1: there is no such record. None: the answer is not known yet.
        """
        if not self._has_all_subjects:
            return None
        matches, over, committed = matcher(subject_filter), self._over, self._committed
        first, end = self._range(subject_filter)
        names = self._names or []
        names_in_slice = (name for name in islice(names, first, end) if matches(name))
        offset = max((over[name] if name in over else committed[name] for name in names_in_slice), default=-1)
        return offset if offset >= self._log.log_start_offset else -1

    def count_checks(self, subject_filter: str) -> int:
        """Return how many subjects ``find_matching`` compares with the filter: those that begin as the filter does before its
        wildcards.
        """
        if not self._has_all_subjects:
            return 0
        first, end = self._range(subject_filter)
        return 1 + end - first + len(subject_filter) // _CHECK_BYTES

    def _range(self, subject_filter: str) -> tuple[int, int]:
        """Return the first index and the end (exclusive) of those ``_names`` that can match the filter.

        They begin with the tokens before the filter's first wildcard.
        """
        if self._names is None:
            self._names = sorted(self._committed.keys() | self._over.keys())
        begin = literal_prefix(subject_filter.split("."))
        if not begin:
            return 0, len(self._names)
        return bisect_left(self._names, begin), bisect_left(self._names, begin[:-1] + _AFTER_DOT)

    def _add_names(self, subjects: Iterable[str]) -> None:
        if self._names is None:
            return
        for subject in subjects:
            if subject not in self._committed and subject not in self._over:
                insort(self._names, subject)
        if len(self._names) > MANY:
            self._names = None


def _encode(offsets_by_subject: Mapping[str, int]) -> list[bytes]:
    offsets, sizes, texts = pack_numbers(offsets_by_subject.values(), np.int64), list[bytes](), list[bytes]()
    for some in slices_of(offsets_by_subject):
        subjects = [subject.encode("utf-8", "surrogateescape") for subject in some]
        sizes += pack_numbers(map(len, subjects), np.uint32)
        texts += join_texts(subjects)
    return [_COUNT.pack(len(offsets_by_subject)), *offsets, *sizes, *texts]


def _decode(data: bytes, end_offset: int) -> dict[str, int]:
    try:
        (count,) = _COUNT.unpack_from(data)
        offsets = np.frombuffer(data, np.int64, count, _COUNT.size)
        sizes = np.frombuffer(data, np.uint32, count, _COUNT.size + offsets.nbytes)
    except (struct.error, ValueError, OverflowError) as error:
        raise CorruptionError(f"the saved subjects cannot be decoded: {error}. The node reads the log instead.") from None
    at = _COUNT.size + offsets.nbytes + sizes.nbytes
    within = not count or (int(offsets.min()) >= 0 and int(offsets.max()) < end_offset)
    if at + int(sizes.sum(dtype=np.int64)) != len(data) or not within:
        raise CorruptionError("the saved subjects are inconsistent. The node reads the log instead.")
    subjects = (text.decode("utf-8", "surrogateescape") for text in cut_up(data, at, sizes))
    offsets_by_subject = dict(zip(subjects, numbers(offsets), strict=True))
    if len(offsets_by_subject) != count:
        raise CorruptionError("the saved subjects are inconsistent. The node reads the log instead.")
    return offsets_by_subject


def _size_bytes(subjects: Collection[str]) -> int:
    return _ENTRY_BYTES * len(subjects) + sum(map(getsizeof, subjects))


def last_of_each(batch: RecordBatch | bytes) -> dict[str, int]:
    """Return subject -> its last offset in the batch."""
    if not isinstance(batch, RecordBatch):
        batch = parse_batch(batch, verify=False)
    column = batch.columns.subjects
    if column is None or not batch.record_count:
        return {}
    offsets = batch.offsets()
    names = [(entry or b"").decode("utf-8", "surrogateescape") for entry in column.entries.to_list()]
    if len(names) == 1:
        return {names[0]: int(offsets[-1])}
    last = np.full(len(names), -1, dtype=np.int64)
    np.maximum.at(last, column.index, offsets)
    return {name: offset for name, offset in zip(names, last.tolist(), strict=True) if offset >= 0}
