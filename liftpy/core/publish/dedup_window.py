"""``RecentIds``: the message ids in a partition's log within the deduplication window, with their offsets [A3]. Pure.

A message that is sent again with the same ``Nats-Msg-Id`` is not stored again, whichever node leads. The ids are
computed from the log. Truncated records are forgotten, and only committed records advance the time. The window is
measured in log time, the largest batch timestamp so far. Each id is also stored for the whole window by the node's
monotonic clock, because wall clocks may jump.

A leader accepts a new id only if there is memory for it (``lacks``). A follower must accept the ids that its leader
accepted. If its memory is full, it drops the oldest ids. If it then becomes leader, it rejects unknown ids until the
dropped ones would have left the window (``is_blind``).

Example with a window of 120 s: "a" is stored at offset 7 at t = 1000 s. At t = 1100 s it is a duplicate of offset 7. At
t = 1121 s it is a new message.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from liftpy.config import NS_PER_S
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
from liftpy.core.wire.batch import FEW
from liftpy.core.wire.batch_columns import BytesColumn, HeadersColumn
from liftpy.errors import CorruptionError

MESSAGE_ID = "Nats-Msg-Id"
MAX_ID_BYTES = 1024
"""Maximum length of a message id, in bytes. A publish with a longer one and a reply subject is rejected."""
ID_NAME = MESSAGE_ID.encode()
_ID_BYTES = 144
"""Memory of a message id besides its bytes, in bytes. The value was measured."""
_HEAD = struct.Struct("<qqI")
_COUNTS = struct.Struct("<QQ")
_BATCH_BYTES = 296
"""Memory of a batch with message ids besides the ids, in bytes."""


class StoredId(NamedTuple):
    """Place of a stored message id.

    ``last_offset``: last offset of the batch of its record. A batch is committed as a whole [D23].
    """

    offset: int
    last_offset: int


@dataclass(slots=True, eq=False)
class _BatchIds:
    """Message ids of one batch in the log.

    ``time_ns``: log time of the batch. ``known_ns``: monotonic time at which this node got the batch.
    """

    last_offset: int
    time_ns: int
    known_ns: int
    last_id: bytes
    ids: Sequence[bytes] = ()
    offsets: Sequence[int] = ()
    size_bytes: int = 0
    before: dict[bytes, _BatchIds] | None = None
    """Earlier places of the same ids, until this batch is committed. None: there are none."""
    hashes: NDArray[np.int64] | None = None
    """Hash of each id, if a publisher has repeated one of many ids. None: it was not needed yet."""

    def last_index(self, message_id: bytes) -> int:
        """Return the index of the last record with ``message_id``, which is one of ``ids``.

        After a failover, publishers repeat thousands of ids at once. So the lookup compares arrays and not each id.
        """
        ids = self.ids
        if len(ids) <= FEW:
            return len(ids) - 1 - ids[::-1].index(message_id)
        if self.hashes is None:
            self.hashes = np.fromiter(map(hash, ids), np.int64, len(ids))
        places = np.flatnonzero(self.hashes == hash(message_id)).tolist()
        return next(place for place in reversed(places) if ids[place] == message_id)


class RecentIds:
    """Message ids in the log of one partition on one replica, with their offsets. A ``Part`` of the derived state.

    Offsets are inclusive, except ``end_offset``. *Log time*: largest batch timestamp so far, in nanoseconds since 1970.

    Args:
        window_ns: Deduplication window. 0: no ids are stored.
        max_bytes: Maximum memory use.
        now_ns: Returns the node's monotonic clock.
        node: Memory limit for the derived state of the node. None: no limit.
    """

    __slots__ = (
        "_by_id", "_committed", "_high_watermark", "_last_id", "_lost_known_ns", "_lost_ns", "_now_ns", "_tail", "_time_ns",
        "evicted_count", "pending", "share", "takes_shorter_window", "window_ns",
    )  # fmt: skip

    name = "ids"
    version = 1

    def __init__(self, window_ns: int, max_bytes: int, now_ns: Callable[[], int], node: NodeStateMemory | None = None) -> None:
        self.window_ns = window_ns
        self._now_ns = now_ns
        self.share = Share(node, self.name, max_bytes, "partition_message_id_bytes")
        self.pending = self.share.beside()
        """Memory of message ids that the leader has accepted and that are not in the log yet, in bytes."""
        self.evicted_count = 0
        """Number of message ids that were dropped early for lack of memory, since the start."""
        self.takes_shorter_window = False
        """True if ``restore`` accepts a file that was written with a shorter window, because no other source knows more ids."""
        self.begin(None)

    def begin(self, offset: int | None) -> None:
        self._high_watermark = -1
        self._time_ns = 0  # log time of the last committed batch
        self._last_id = b""  # message id of the last committed record
        self._tail: list[_BatchIds] = []
        self._committed: deque[_BatchIds] | None = None  # committed batches with ids, oldest first. None: no id was committed
        self._by_id: dict[bytes, _BatchIds] = {}
        self._lost_ns = self._lost_known_ns = -1
        """(log time, time of arrival here) of the last id that was dropped early. -1: no id was dropped."""
        self.share.hold(0)

    @property
    def size_bytes(self) -> int:
        return self.share.size_bytes

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def last_id(self) -> bytes:
        """Message id of the last record in the log. b"": the record has none."""
        return self._tail[-1].last_id if self._tail else self._last_id

    @property
    def reach_ns(self) -> int:
        return self.window_ns

    # ---- the log -----------------------------------------------------------------------------------------------------
    def add_batch(self, batch: NewBatch) -> None:
        ids, last_offset = batch.ids, batch.last_offset
        last_id = self.last_id if not batch.record_count else ids.get(last_offset, b"") if ids else b""
        time_ns = max(self._tail[-1].time_ns if self._tail else self._time_ns, batch.timestamp_ns)
        entry = _BatchIds(last_offset, time_ns, self._now_ns() if ids else 0, last_id)
        if ids and self.window_ns:
            entry.ids, entry.offsets = tuple(ids.values()), tuple(ids)
            self._note(entry)
        self._tail.append(entry)
        if last_offset <= self._high_watermark:
            self._merge_committed()
        if entry.ids and (excess_bytes := self.share.excess_bytes(entry.size_bytes)):
            self._make_room(excess_bytes)

    def _note(self, entry: _BatchIds) -> None:
        by_id = self._by_id
        known = by_id.keys() & entry.ids
        if known:
            entry.before = {message_id: by_id[message_id] for message_id in known}
        by_id.update(dict.fromkeys(entry.ids, entry))
        entry.size_bytes = _BATCH_BYTES + size_of(entry.ids)
        self.share.hold(self.share.size_bytes + entry.size_bytes)

    def committed(self, high_watermark: int) -> None:
        if high_watermark > self._high_watermark:
            self._high_watermark = high_watermark
            self._merge_committed()

    def _merge_committed(self) -> None:
        tail, high_watermark = self._tail, self._high_watermark
        committed_count = 0
        for entry in tail:
            if entry.last_offset > high_watermark:
                break
            committed_count += 1
            self._time_ns, self._last_id = entry.time_ns, entry.last_id
            if entry.ids:
                self._keep(entry)
        del tail[:committed_count]
        self._expire(self._time_ns)

    def _keep(self, taken: _BatchIds) -> None:
        taken.before = None
        if self._committed is None:
            self._committed = deque()
        self._committed.append(taken)

    def _expire(self, time_ns: int) -> None:
        entries, until_ns = self._committed, time_ns - self.window_ns
        while entries and entries[0].time_ns <= until_ns and not self._is_fresh(entries[0].known_ns):
            self._forget(entries.popleft())

    def _is_fresh(self, known_ns: int) -> bool:
        return known_ns > self._now_ns() - self.window_ns

    def _make_room(self, excess_bytes: int) -> None:
        until_bytes = self.size_bytes - excess_bytes
        kept = self._committed
        while self.size_bytes > until_bytes and kept:
            self._lose(kept.popleft())
        for entry in self._tail:
            if self.size_bytes <= until_bytes:
                break
            self._lose(entry)

    def _lose(self, entry: _BatchIds) -> None:
        if entry.ids and entry.time_ns > self._time_ns - self.window_ns:
            self._lost_ns, self._lost_known_ns = entry.time_ns, entry.known_ns
        self.evicted_count += len(entry.ids)
        self._forget(entry)

    def _forget(self, entry: _BatchIds) -> None:
        for message_id in entry.ids:
            if self._by_id.get(message_id) is entry:
                del self._by_id[message_id]
        self.share.hold(self.share.size_bytes - entry.size_bytes)
        entry.ids, entry.offsets, entry.size_bytes, entry.before, entry.hashes = (), (), 0, None, None

    def truncate(self, end_offset: int) -> None:
        while self._tail and self._tail[-1].last_offset >= end_offset:
            entry = self._tail.pop()
            before = entry.before or {}
            self._forget(entry)
            self._by_id.update({message_id: older for message_id, older in before.items() if older.ids})

    # ---- checkpoints -------------------------------------------------------------------------------------------------
    def snapshot(self) -> Callable[[], Sequence[bytes]]:
        """Return a function that encodes the ids of the committed records for a state file.

        Format: the window, the log time, the last id, then one column per field of the batches and of the ids.
        """
        head = _HEAD.pack(self.window_ns, self._time_ns, len(self._last_id)) + self._last_id
        entries = tuple(self._committed or ())
        return lambda: [head, *_encode(entries)]

    def restore(self, data: bytes | None, end_offset: int) -> None:
        """Load the ids from ``data``, the content of a state file for the log below ``end_offset``.

        Raises CorruptionError if the data is invalid, or was written with a shorter window than now.
        """
        try:
            window_ns, self._time_ns, size_bytes = _HEAD.unpack_from(data or b"")
        except struct.error:
            raise CorruptionError("the saved message ids are empty. The node reads the log instead.") from None
        if window_ns < self.window_ns and not self.takes_shorter_window:
            raise CorruptionError("the saved message ids cover a shorter window. The node reads the log instead.")
        data = data or b""
        self._last_id = data[_HEAD.size : _HEAD.size + size_bytes]
        self._high_watermark = end_offset - 1
        now_ns = self._now_ns()
        for last_offset, time_ns, ids, offsets in _decode(data[_HEAD.size + size_bytes :], end_offset):
            entry = _BatchIds(last_offset, time_ns, now_ns, b"", ids, offsets)
            if self.window_ns:
                self._note(entry)
                self._keep(entry)
        if excess_bytes := self.share.excess_bytes(0):
            self._make_room(excess_bytes)

    # ---- lookups -----------------------------------------------------------------------------------------------------
    def find(self, message_id: bytes, now_wall_ns: int) -> StoredId | None:
        """Return the stored record with ``message_id``, if a publish at ``now_wall_ns`` would repeat it. None: there is none.

        A record that is older than the deduplication window is not returned.
        """
        entry = self._by_id.get(message_id)
        if entry is None or (
            entry.time_ns <= max(self._time_ns, now_wall_ns) - self.window_ns and not self._is_fresh(entry.known_ns)
        ):
            return None
        return StoredId(entry.offsets[self._last_index(entry, message_id)], entry.last_offset)

    def _last_index(self, entry: _BatchIds, message_id: bytes) -> int:
        had_hashes = entry.hashes is not None
        index = entry.last_index(message_id)
        if entry.hashes is not None and not had_hashes:
            entry.size_bytes += entry.hashes.nbytes
            self.share.hold(self.share.size_bytes + entry.hashes.nbytes)
        return index

    def may_hold(self, message_id: bytes, now_wall_ns: int) -> bool:
        """Return whether a record with ``message_id`` may exist, so that a publish at ``now_wall_ns`` must not be treated as new.

        The age of the id is not checked.
        """
        return message_id in self._by_id or self.is_blind(now_wall_ns)

    def is_blind(self, now_wall_ns: int) -> bool:
        """Return whether a record with an unknown id may be in the deduplication window of a publish at ``now_wall_ns``.

        That is so if ids in this window were dropped for lack of memory.
        """
        if self._lost_ns < 0:
            return False
        return self._lost_ns > max(self._time_ns, now_wall_ns) - self.window_ns or self._is_fresh(self._lost_known_ns)

    @property
    def losses(self) -> tuple[int, int]:
        """(Log time of the last id that was dropped for lack of memory, time since its arrival here), in nanoseconds.

        -1 and 0: no id in the deduplication window was dropped.
        """
        return (-1, 0) if self.is_whole else (self._lost_ns, self._now_ns() - self._lost_known_ns)

    def add_losses(self, lost_ns: int, age_ns: int) -> None:
        """Note that a restored state lacks ids up to the log time ``lost_ns``, which arrived ``age_ns`` ago. -1: it lacks none."""
        if lost_ns >= 0:
            known_ns = self._now_ns() - age_ns
            self._lost_known_ns = known_ns if self._lost_ns < 0 else max(self._lost_known_ns, known_ns)
            self._lost_ns = max(self._lost_ns, lost_ns)

    @property
    def is_whole(self) -> bool:
        """True if all ids in the deduplication window before the last committed record are known."""
        return not self.is_blind(0)

    def reserve_ids(self, ids: Iterable[bytes]) -> None:
        """Count the memory of ``ids`` whose messages the leader has accepted. They are not in the log yet."""
        self.pending.hold(self.pending.size_bytes + size_of(ids))

    def release_ids(self, ids: Iterable[bytes]) -> None:
        """Stop counting the memory of ``ids``, because their messages are stored or rejected now."""
        self.pending.hold(self.pending.size_bytes - size_of(ids))

    def lacks(self, ids: Iterable[bytes], now_wall_ns: int) -> str:
        """Return the reason why a leader must reject a batch with these new ``ids``. '': there is none.

        It is missing memory, or unknown ids in the deduplication window of a publish at ``now_wall_ns``.
        """
        if not self.window_ns:
            return ""
        if self.is_blind(now_wall_ns):
            return f"some message ids of the last {self.window_ns / NS_PER_S:g} s went for want of room here"
        size_bytes, pending_bytes = _BATCH_BYTES + size_of(ids), self.pending.size_bytes
        if not self.share.has_room(size_bytes, pending_bytes):
            self._expire(max(self._time_ns, now_wall_ns))  # the log time does not advance without batches
        setting = self.share.lacks(size_bytes, pending_bytes)
        return setting and f"the message ids of the last {self.window_ns / NS_PER_S:g} s fill what {setting} allows"


def size_of(ids: Iterable[bytes]) -> int:
    """Return the memory use of the ids of a batch, in bytes."""
    sizes = [*map(len, ids)]
    return sum(sizes) + _ID_BYTES * len(sizes)


def _encode(entries: Sequence[_BatchIds]) -> list[bytes]:
    """Return the encoded ids of these batches. Other code may remove the oldest ids from ``entries`` in the meantime."""
    columns: tuple[list[bytes], ...] = ([], [], [], [], [], [])
    row_count = id_count = 0
    for some in slices_of(entries):
        rows = [(entry.last_offset, entry.time_ns, entry.ids, entry.offsets) for entry in some]
        rows = [row for row in rows if row[2] and len(row[2]) == len(row[3])]
        ids = [message_id for row in rows for message_id in row[2]]
        row_count, id_count = row_count + len(rows), id_count + len(ids)
        for column, pieces in zip(
            columns,
            (
                pack_numbers([row[0] for row in rows], np.int64),
                pack_numbers([row[1] for row in rows], np.int64),
                pack_numbers([len(row[2]) for row in rows], np.uint32),
                pack_numbers([offset for row in rows for offset in row[3]], np.int64),
                pack_numbers([len(message_id) for message_id in ids], np.uint32),
                join_texts(ids),
            ),
            strict=True,
        ):
            column += pieces
    return [_COUNTS.pack(row_count, id_count), *chain.from_iterable(columns)]


def _decode(data: bytes, end_offset: int) -> Iterable[tuple[int, int, tuple[bytes, ...], tuple[int, ...]]]:
    """Yield (last offset, log time in ns, ids, their offsets) of each batch, from the data of a state file.

    ``end_offset``: exclusive. Raises CorruptionError if the data is invalid.
    """
    try:
        row_count, id_count = _COUNTS.unpack_from(data)
        at = _COUNTS.size
        columns: list[NDArray[np.integer]] = []
        for kind, count in (
            (np.int64, row_count),
            (np.int64, row_count),
            (np.uint32, row_count),
            (np.int64, id_count),
            (np.uint32, id_count),
        ):
            columns.append(np.frombuffer(data, kind, count, at))
            at += columns[-1].nbytes
    except (struct.error, ValueError, OverflowError) as error:
        raise CorruptionError(f"the saved message ids cannot be decoded: {error}. The node reads the log instead.") from None
    last_offsets, times_ns, counts, offsets, sizes = columns
    ends = np.cumsum(sizes, dtype=np.int64)
    rising = bool((np.diff(last_offsets) > 0).all() and (np.diff(offsets) > 0).all())
    within = not row_count or (int(last_offsets[-1]) < end_offset and int(counts.min()) > 0)
    if (
        int(counts.sum(dtype=np.int64)) != id_count
        or (int(ends[-1]) if id_count else 0) != len(data) - at
        or not (rising and within)
    ):
        raise CorruptionError("the saved message ids are inconsistent. The node reads the log instead.")
    ids, known = cut_up(data, at, sizes), numbers(offsets)
    for last_offset, time_ns, count in zip(numbers(last_offsets), numbers(times_ns), numbers(counts), strict=True):
        yield last_offset, time_ns, tuple(islice(ids, count)), tuple(islice(known, count))


def ids_of(headers: HeadersColumn | None, names: bytes | None = None) -> dict[int, bytes]:
    """Return record index -> message id, ascending, for the records of a batch that have one.

    If a record has several ids, the first counts. ``headers``: headers column of the batch, None without headers. ``names``:
    all header names as one string of bytes. None: take them from ``headers``.
    """
    if headers is None or ID_NAME not in (bytes(headers.names.data) if names is None else names):
        return {}
    ids: dict[int, bytes] = {}
    pairs = list(_id_header_indexes(headers.names))
    records = np.searchsorted(headers.ends, pairs, side="right").tolist()
    ends, data = headers.values.ends, headers.values.data
    for pair, record in zip(pairs, records, strict=True):
        value = bytes(data[int(ends[pair - 1]) if pair else 0 : int(ends[pair])])
        if is_id(value):
            ids.setdefault(record, value)
    return ids


def _id_header_indexes(names: BytesColumn) -> Iterable[int]:
    ends = names.ends.astype(np.int64)
    sizes = np.diff(ends, prepend=0)
    for pair in np.flatnonzero(sizes == len(ID_NAME)).tolist():
        end = int(ends[pair])
        if names.data[end - len(ID_NAME) : end] == ID_NAME:
            yield pair


def is_id(value: bytes) -> bool:
    """Return whether ``value``, the value of the header, is a message id. An empty value is not."""
    return 0 < len(value) <= MAX_ID_BYTES
