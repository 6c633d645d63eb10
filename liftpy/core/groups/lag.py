"""Lag of groups in records and seconds. Pure. ``now_ns`` is the monotonic clock of one process.

Goal: a scrape of the groups' metrics sends no requests. Constraint: a coordinator knows the committed positions of its
groups, but not the ends of their partitions. Only the log has the age of a record.

Algorithm: the caller reports from time to time where partitions end (``LogEnds.set_bounds``). For each partition, some pairs
(end, time when first seen) are kept. The age of the first unread record is the age of the first end above the committed
position. If there are too many pairs, two old ones are merged into one with the earlier time and the later end. A computed
age may be too high by that width, never too low. The lag of a group that does not move keeps growing.

Records below the first reported end are older than the first report. For a position there, the caller reads one record and
reports its age (``PartitionEnds.set_age``). Until then, its age is the time since the first report.

Worked example: the end 10 was seen at 0 s, and 25 at 60 s. A group that has committed 12 is 13 records and 30 s behind at 90 s.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from math import isnan, nan
from operator import itemgetter
from typing import Any

from liftpy.config import NS_PER_S
from liftpy.core.base.ids import PartitionKey
from liftpy.core.groups.machine import GroupRecord

OTHERS = "(other)"
"""Label of all groups beyond ``MOST_GROUPS``. No group can have this name."""
MOST_GROUPS = 50
"""Maximum number of groups with metrics of their own."""
MOST_PARTITIONS = 4_000
"""Maximum number of partitions whose ends are kept."""
MOST_ENDS = 32
"""Maximum number of ends kept per partition."""
STEP_S, MOST_STEPS = 30, 480
"""Time between two values in the history of a lag, in seconds, and maximum number of values: 4 hours."""
MOST_AGES = 16
"""Maximum number of record ages kept per partition."""


def read_positions(group: GroupRecord) -> Iterator[tuple[PartitionKey, int]]:
    """Yield (partition, offset of the next record) for each committed position and work queue.

    A cursor yields nothing. Its reader may read at any time, so it has no lag.
    """
    if group.cursor:
        return
    readers = group.readers
    for (stream, partition), (position, _) in list(readers.positions.items()):
        known = readers.streams.get(stream)
        if known is not None and not group.is_position_of_queue((stream, partition)):
            yield PartitionKey(stream, known.uid, partition), position
    for (stream, partition), queue in list(group.queues.items()):
        yield PartitionKey(stream, queue.uid, partition), queue.prefix


class PartitionEnds:
    """Log ends of one partition (HW + 1) with the times when they were first seen, and its log start."""

    __slots__ = ("_ends", "_first_end", "_read", "_since_ns", "_start")

    def __init__(self) -> None:
        self._start = 0
        self._ends: list[int] = []
        self._since_ns: list[int] = []
        self._first_end = 0
        """First reported end. Records below it are older than the first report."""
        self._read: list[tuple[int, int]] = []
        """(offset, time when its record was stored) of records below ``_first_end``, by ascending offset."""

    def set_bounds(self, end: int, now_ns: int, start: int = 0) -> None:
        """Add the current log end, seen at ``now_ns``, and set the log start.

        A lower end (after an unclean election) removes the earlier ends.
        """
        self._start = start
        if self._ends and end < self._ends[-1]:
            self._ends.clear()
            self._since_ns.clear()
            self._read.clear()
        if not self._ends:
            self._first_end = end
        if not self._ends or end > self._ends[-1]:
            self._ends.append(end)
            self._since_ns.append(now_ns)
        if len(self._ends) > MOST_ENDS:
            half = MOST_ENDS // 2
            self._ends[:half] = self._ends[1:half:2]
            self._since_ns[:half] = self._since_ns[:half:2]

    @property
    def end(self) -> int:
        """Newest known end, -1 if none is known."""
        return self._ends[-1] if self._ends else -1

    def behind(self, position: int, now_ns: int) -> tuple[int, int]:
        """Return the lag of a reader whose next offset is ``position``: (unread records, age of the first of them in ns).

        Records that the log has deleted do not count.
        """
        position = max(position, self._start)
        at = bisect_right(self._ends, position)
        if at == len(self._ends):
            return 0, 0
        since_ns = self._since_ns[at]
        if position < self._first_end and (older := bisect_right(self._read, position, key=itemgetter(0))):
            since_ns = min(since_ns, self._read[older - 1][1])
        return self._ends[-1] - position, now_ns - since_ns

    def offset_without_age(self, position: int) -> int | None:
        """Return the offset of the record whose age the lag of a reader at ``position`` needs. None: no further age is needed."""
        position = max(position, self._start)
        is_needed = position < self._first_end and all(offset != position for offset, _ in self._read)
        return position if is_needed else None

    def set_age(self, offset: int, since_ns: int) -> None:
        """Report that the record at ``offset`` was stored at ``since_ns``, on the clock of ``now_ns``. It may be negative."""
        self._read = [known for known in self._read if known[0] != offset and known[0] >= self._start]
        insort(self._read, (offset, since_ns))
        del self._read[:-MOST_AGES]


class LogEnds:
    """Log ends (HW + 1) of the partitions that groups read, as far as they are known."""

    def __init__(self) -> None:
        self._ends: dict[PartitionKey, PartitionEnds] = {}
        self._asked: dict[PartitionKey, int] = {}
        self._questions = 0

    def __len__(self) -> int:
        return len(self._ends)

    def get(self, key: PartitionKey) -> PartitionEnds | None:
        return self._ends.get(key)

    def set_bounds(self, key: PartitionKey, end: int, now_ns: int, start: int = 0) -> None:
        """Store the log end (HW + 1) of a partition, seen at ``now_ns``, and its log start.

        Partitions beyond ``MOST_PARTITIONS`` are ignored.
        """
        known = self._ends.get(key)
        if known is None:
            if len(self._ends) >= MOST_PARTITIONS:
                return
            known = self._ends[key] = PartitionEnds()
        known.set_bounds(end, now_ns, start)

    def forget(self, key: PartitionKey) -> None:
        self._ends.pop(key, None)

    def keep(self, read: Collection[PartitionKey]) -> None:
        """Forget all partitions that no group reads. ``read``: the partitions that groups still read."""
        for key in [key for key in self._ends if key not in read]:
            del self._ends[key]
        for key in [key for key in self._asked if key not in read]:
            del self._asked[key]

    def to_ask(self, keys: Iterable[PartitionKey], count: int) -> list[PartitionKey]:
        """Return at most ``count`` of ``keys``. The caller asks other nodes for the ends of these partitions.

        Partitions whose end was requested longest ago come first, so repeated calls go through all ``keys`` in turn.
        """
        chosen = sorted(keys, key=lambda key: (self._asked.get(key, 0), key))[:count]
        self._questions += 1
        self._asked.update(dict.fromkeys(chosen, self._questions))
        return chosen


@dataclass(slots=True)
class GroupLag:
    """Lag of a consumer group.

    ``records``: sum over its partitions. ``seconds``: lag of its slowest partition. ``unknown``: number of partitions whose
    end is unknown.
    """

    records: int = 0
    seconds: float = 0.0
    unknown: int = 0

    def add(self, ends: PartitionEnds | None, position: int, now_ns: int) -> None:
        """Add the lag of one partition to the lag of the group.

        ``ends``: known ends of the partition, None: its end is unknown. ``position``: its committed position.
        """
        if ends is None:
            self.unknown += 1
            return
        records, age_ns = ends.behind(position, now_ns)
        self.records += records
        self.seconds = max(self.seconds, age_ns / NS_PER_S)


class LagHistory:
    """Lag of one group over time: one value per ``STEP_S``, at most ``MOST_STEPS``. Times are wall clock in s."""

    __slots__ = ("_first", "_records", "_seconds")

    def __init__(self) -> None:
        self._first = 0
        """Time of the first value, a multiple of ``STEP_S``."""
        self._records: array[float] = array("d")
        self._seconds: array[float] = array("f")

    def add(self, now_s: float, lag: GroupLag) -> None:
        """Add the lag measured at ``now_s``. It replaces an earlier value of the same step. If the clock goes back, start again."""
        at = int(now_s) // STEP_S * STEP_S
        place = (at - self._first) // STEP_S
        if not 0 <= place < 2 * MOST_STEPS or place < len(self._records) - 1:
            self._first, place = at, 0
            del self._records[:], self._seconds[:]
        gap = place + 1 - len(self._records)
        self._records.extend([nan] * gap)
        self._seconds.extend([nan] * gap)
        self._records[place], self._seconds[place] = lag.records, lag.seconds
        if (beyond := place + 1 - MOST_STEPS) > 0:
            del self._records[:beyond], self._seconds[:beyond]
            self._first += beyond * STEP_S

    def rows(self) -> list[dict[str, Any]]:
        """Return the known values, oldest first. Each has the time ``at``, and ``lag_records`` and ``lag_s``."""
        return [
            {"at": self._first + number * STEP_S, "lag_records": int(records), "lag_s": round(seconds, 3)}
            for number, (records, seconds) in enumerate(zip(self._records, self._seconds, strict=True))
            if not isnan(seconds)
        ]


class GroupLabels:
    """Chooses the groups that have metrics of their own: at most ``most``, by default the first ones that were seen.

    The other groups share one label. When a group is deleted, another one takes its place.
    """

    def __init__(self, most: int = MOST_GROUPS) -> None:
        self._most = most
        self._given: set[str] = set()

    def lags_by_label(self, lags: dict[str, GroupLag]) -> dict[str, GroupLag]:
        """Return the lags by metric label: the group's name, or ``OTHERS`` for the sum of all groups without a label of their own.

        ``lags``: lag of each group by name.
        """
        self._given &= lags.keys()
        for name in sorted(lags.keys() - self._given)[: self._most - len(self._given)]:
            self._given.add(name)
        label_lags = {name: lags[name] for name in sorted(self._given)}
        rest = [lag for name, lag in lags.items() if name not in self._given]
        if rest:
            label_lags[OTHERS] = GroupLag(
                sum(lag.records for lag in rest), max(lag.seconds for lag in rest), sum(lag.unknown for lag in rest)
            )
        return label_lags
