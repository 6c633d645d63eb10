"""Sends the settlements of a queue worker: acks, returns, extensions and rejections of records.

One command contains all pending settlements. At most one command is in flight.
"""

from __future__ import annotations

import asyncio
import itertools
from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from liftpy.core.base.ids import PartitionKey
from liftpy.core.groups import commands
from liftpy.core.wire._pb import group_pb2 as pb
from liftpy.errors import LiftError

MAX_RANGES = 2000
"""Maximum number of ranges in one command. A command of this size is well below its limit in bytes."""


class LostRange(NamedTuple):
    """Offsets of a partition, ``start`` to ``end`` (exclusive), that a worker no longer owns."""

    key: PartitionKey
    start: int
    end: int


@dataclass(slots=True, eq=False)
class _SettlementBatch:
    """Settlements that wait to be sent. Each settlement covers one partition."""

    settlements: list[pb.Settlement]
    done: asyncio.Future[list[LostRange]]
    """Future with the offset ranges of the command that this worker no longer owns."""


class _CoveredOffsets:
    """Offsets of the settlements that are sent together. An answer names lost offsets without the settlement that lost them."""

    def __init__(self) -> None:
        self._ranges: dict[tuple[str, str, int], list[tuple[int, int]]] = {}
        """(Stream, uid, partition) -> (start, end) of each covered range, ascending and disjoint."""

    def add(self, batch: _SettlementBatch) -> bool:
        """Add the offsets of ``batch``. Return False, and add nothing, if one of them is covered already."""
        parts = [((one.stream, one.uid, one.partition), part) for one in batch.settlements for part in one.ranges]
        if any(self._overlaps(self._ranges.get(place, []), part) for place, part in parts):
            return False
        for place, part in parts:
            ranges = self._ranges.setdefault(place, [])
            ranges.insert(bisect_left(ranges, (part.start, part.end)), (part.start, part.end))
        return True

    @staticmethod
    def _overlaps(ranges: Sequence[tuple[int, int]], part: pb.RecordRange) -> bool:
        behind = bisect_left(ranges, (part.end,))
        return behind > 0 and ranges[behind - 1][1] > part.start


class Settlements:
    """Queue of the settlements (acks, returns, extensions, rejections) of one worker.

    ``say``: function that sends settlements in one command, and returns the offset ranges that the worker no longer owns.
    """

    def __init__(self, name: str, say: Callable[[list[pb.Settlement]], Awaitable[list[pb.LostRange]]]) -> None:
        self._name = name
        self._say = say
        self._batches: deque[_SettlementBatch] = deque()
        self._send_task: asyncio.Task[None] | None = None

    def settle(self, settlements: list[pb.Settlement]) -> asyncio.Future[list[LostRange]]:
        """Queue the settlements ``settlements`` to be sent.

        Returns:
            A future of offset ranges that this worker no longer owns, perhaps also of other settlements. The caller may ignore it.
        """
        batch = _SettlementBatch(settlements, asyncio.get_running_loop().create_future())
        batch.done.add_done_callback(lambda done: done.cancelled() or done.exception())
        if not settlements:
            batch.done.set_result([])
            return batch.done
        self._batches.append(batch)
        if self._send_task is None or self._send_task.done():
            self._send_task = asyncio.get_running_loop().create_task(self._send_all(), name=f"settlements of {self._name}")
        return batch.done

    async def wait_until_sent(self) -> None:
        if self._send_task is not None:
            await asyncio.shield(self._send_task)  # a canceled caller does not stop it

    async def _send_all(self) -> None:
        while self._batches:
            some = self._next()
            try:
                lost = await self._send_some([one for batch in some for one in batch.settlements])
            except BaseException as error:
                if not isinstance(error, LiftError):  # the task ends, so the other settlements fail, too
                    some += self._batches
                    self._batches.clear()
                for batch in some:
                    if not batch.done.done():
                        batch.done.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
                if not isinstance(error, LiftError):
                    raise
                continue
            for batch in some:
                if not batch.done.done():
                    batch.done.set_result(lost)

    def _next(self) -> list[_SettlementBatch]:
        """Return the first batches that can share an answer: each record occurs in one of them only."""
        some = [self._batches.popleft()]
        ranges, count = _size(some[0])
        covered = _CoveredOffsets()
        if self._batches:
            covered.add(some[0])
        while self._batches:
            more = _size(self._batches[0])
            ranges, count = ranges + more[0], count + more[1]
            if ranges > MAX_RANGES or count > commands.MAX_SETTLEMENTS or not covered.add(self._batches[0]):
                break
            some.append(self._batches.popleft())
        return some

    async def _send_some(self, settlements: list[pb.Settlement]) -> list[LostRange]:
        lost: list[LostRange] = []
        for some in _commands(combine_settlements(settlements)):
            keys = {(one.stream, one.partition): PartitionKey(one.stream, one.uid, one.partition) for one in some}
            for part in await self._say(some):
                if key := keys.get((part.stream, part.partition)):
                    lost.append(LostRange(key, part.start, part.end))
        return lost


def _commands(settlements: list[pb.Settlement]) -> Iterator[list[pb.Settlement]]:
    """Divide settlements into those of each command, in order. A command has at most ``MAX_RANGES`` ranges.

    Several settlements of a command cover at most ``MAX_SETTLED_RANGES`` records, because each record may be a range of the queue.
    The answer names lost records without the uid of their stream, so a command covers one uid of each partition.
    """
    some: list[pb.Settlement] = []
    uids: dict[tuple[str, int], str] = {}
    ranges = records = 0
    for one in itertools.chain.from_iterable(map(_parts, settlements)):
        place = (one.stream, one.partition)
        own_records = sum(part.end - part.start for part in one.ranges)
        ranges, records = ranges + len(one.ranges), records + own_records
        is_full = ranges > MAX_RANGES or records > commands.MAX_SETTLED_RANGES or len(some) == commands.MAX_SETTLEMENTS
        if some and (is_full or uids.get(place, one.uid) != one.uid):
            yield some
            some, uids, ranges, records = [], {}, len(one.ranges), own_records
        some.append(one)
        uids[place] = one.uid
    if some:
        yield some


def _parts(whole: pb.Settlement) -> Iterator[pb.Settlement]:
    """Yield the settlement in parts with at most ``MAX_RANGES`` ranges."""
    if len(whole.ranges) <= MAX_RANGES:
        yield whole
        return
    for at in range(0, len(whole.ranges), MAX_RANGES):
        part = pb.Settlement(
            kind=whole.kind, stream=whole.stream, uid=whole.uid, partition=whole.partition,
            ranges=whole.ranges[at : at + MAX_RANGES], delayMs=whole.delayMs, reason=whole.reason,
        )  # fmt: skip
        yield part


def _size(batch: _SettlementBatch) -> tuple[int, int]:
    return sum(len(one.ranges) for one in batch.settlements), len(batch.settlements)


def combine_settlements(settlements: list[pb.Settlement]) -> list[pb.Settlement]:
    """Merge the acks of one partition into one settlement.

    Return the settlements unchanged if there are others than acks, or if a record occurs twice.
    """
    parts: dict[tuple[str, str, int], list[tuple[int, int, int]]] = {}
    for one in settlements:
        if one.kind != pb.SETTLE_ACK:
            return settlements
        place = (one.stream, one.uid, one.partition)
        parts.setdefault(place, []).extend((part.start, part.end, part.lease) for part in one.ranges)
    result = []
    for (stream, uid, partition), some in parts.items():
        some.sort()
        if any(before[1] > after[0] for before, after in itertools.pairwise(some)):
            return settlements
        result.append(
            pb.Settlement(kind=pb.SETTLE_ACK, stream=stream, uid=uid, partition=partition, ranges=_neighbours_together(some))
        )
    return result


def settlement(
    kind: Any, key: PartitionKey, ranges: Sequence[pb.RecordRange], delay_s: float = 0.0, reason: str = ""
) -> pb.Settlement:
    """Return a settlement of offset ranges of one partition."""
    return pb.Settlement(
        kind=kind, stream=key.stream, uid=key.uid, partition=key.partition, ranges=ranges,
        delayMs=round(delay_s * 1000), reason=reason,
    )  # fmt: skip


def ranges_of(leases: Iterable[tuple[int, int]]) -> list[pb.RecordRange]:
    """Return the offset ranges of records. Adjacent records with an equal lease are one range.

    ``leases``: (offset, lease) of each record. If a record occurs twice, the range has its newest lease.
    """
    newest: dict[int, int] = {}
    for offset, lease in leases:
        newest[offset] = max(lease, newest.get(offset, 0))
    return _neighbours_together(sorted((offset, offset + 1, lease) for offset, lease in newest.items()))


def _neighbours_together(parts: Iterable[tuple[int, int, int]]) -> list[pb.RecordRange]:
    """Merge adjacent ranges. ``parts`` are (start, end, lease) in ascending order."""
    ranges: list[pb.RecordRange] = []
    for start, end, lease in parts:
        last = ranges[-1] if ranges else None
        if last is not None and last.end == start and last.lease == lease:
            last.end = end
        else:
            ranges.append(pb.RecordRange(start=start, end=end, lease=lease))
    return ranges


def gaps(part: pb.GrantedRange, offsets: Sequence[int]) -> list[pb.RecordRange]:
    """Return the parts of the granted range ``part`` whose offsets are not in ``offsets``, which is sorted."""
    missing_ranges, at = [], part.start
    for offset in (*offsets, part.end):
        if offset > at:
            missing_ranges.append(pb.RecordRange(start=at, end=offset, lease=part.lease))
        at = offset + 1
    return missing_ranges


def is_in(key: PartitionKey, offset: int, lost: Iterable[LostRange]) -> bool:
    """Return whether a record is in one of the ranges ``lost``, which this worker no longer owns."""
    return any(one.key == key and one.start <= offset < one.end for one in lost)
