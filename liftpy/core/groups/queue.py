"""One partition as a work queue: which records are done, leased, or to be delivered again. Pure.

The state consists of ranges of offsets, never of single records.

Goal: several members work on one partition, record by record in any order. No acked record is delivered again [Q1], none is
forgotten [Q2, Q6], and none is leased twice at a time [Q3]. Constraint: members are slow or fail, and the size of the state
is limited.

Algorithm: everything below ``prefix`` is done. From there to ``frontier`` the offsets are divided into sorted pieces
without gaps: DONE, OUT (leased to a member until a deadline) or BACK (to be delivered again from a time on). Records at and
above the frontier were never delivered.

- A take returns the BACK pieces that are due, then new records.
- A settlement names ranges and their leases. A range is rejected if it is no longer OUT by its lease.
- If a lease ends or is returned, its pieces become BACK.
- After ``max_deliveries``, or after a rejection by the worker, a piece is *dead*. It is delivered once more with a mark,
  to a member that copies it to the dead letters and then acks it.

An *ordered* queue delivers the records of a key one after the other [Q7]. A take contains the keys of new records, and a
record with a key is a piece of its own until it is done. A record that waits for an earlier one of its key is BACK without
a due time. The frontier moves past it, so it does not block other keys.

An unclean election may lose records below the frontier. New records then get their offsets, and the queue would skip them.
So the queue stores ``taken_epoch``: no delivered record has a higher LeaderEpoch. A member that sees the log of another
LeaderEpoch must compare it first [Q8]. Records that replaced lost ones have a higher LeaderEpoch.

Worked example: frontier 0, log end 100. a takes 10: OUT 0..10 by lease 1. a acks 4..6: OUT 0..4, DONE 4..6, OUT 6..10. a
fails and its lease ends: BACK 0..4, DONE 4..6, BACK 6..10. b takes 5: OUT 0..4 by lease 2, DONE 4..6, OUT 6..7 by lease 2,
BACK 7..10. b acks 0..4: prefix 6.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from hashlib import blake2b

from liftpy.core.groups import commands
from liftpy.core.groups.commands import NS_PER_MS
from liftpy.core.wire._pb import group_pb2 as pb
from liftpy.core.wire.message_codec import MessageCodec

NO_KEY = 0
PIECE_BYTES = 60
"""Approximate size of a piece in the state, in bytes."""
KEY_BYTES = 20
"""Approximate size of a piece's key in the state, in bytes."""
_MANY_PIECES = 1000
_SHORT_REASON = 32
"""Number of pieces beyond which reasons are shortened, so that they do not fill the state."""
_FEW_EXPIRED = 32
"""Number of leases up to which ``expire`` ends each separately. If more have expired, it checks all pieces once."""
_SPARSE = 16
"""Number of pieces per change above which the changes are made one by one, instead of all in one pass."""


def key_digest(key: bytes | None) -> int:
    """Return the digest that stands for ``key`` in commands and state. ``NO_KEY``: the key is None or empty."""
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little") or 1 if key else NO_KEY


class KeyOrder:
    """For each key of an ordered queue, the offsets of its records that are not done [Q7].

    At most one record of a key is leased, and its records are done in order of offsets. Offsets are added in ascending order.
    Only the first record of each key can be delivered, the others are *held*. When it is done, the next one is free. A record
    without a key does not wait.

    The coordinator sees no records. The member that takes records sends the keys, as digests of 8 bytes. Two keys with one
    digest wait for each other, which does no harm.
    """

    def __init__(self) -> None:
        self._lines: dict[int, deque[int]] = {}
        self.count = 0
        """Number of offsets in all lines."""

    @property
    def held_count(self) -> int:
        return self.count - len(self._lines)

    def add(self, key: int, offset: int) -> bool:
        """Add the record at ``offset`` with ``key``. Return whether it can be delivered now."""
        line = self._lines.setdefault(key, deque())
        line.append(offset)
        self.count += 1
        return len(line) == 1

    def holds(self, key: int, offset: int) -> bool:
        """Return whether the record at ``offset`` must wait for an earlier record with its key."""
        return key != NO_KEY and self._lines[key][0] != offset

    def remove(self, key: int, offset: int) -> int | None:
        """Note that the record at ``offset`` is done, or was deleted from the log.

        Return the offset of the next record with ``key`` if it can be delivered now. None: there is none.
        """
        line = self._lines[key]
        was_first = line[0] == offset
        line.remove(offset)
        self.count -= 1
        if not line:
            del self._lines[key]
            return None
        return line[0] if was_first else None


class PieceKind(IntEnum):
    """State of the records of a piece: done, leased (OUT), or to be delivered again (BACK)."""

    DONE = 1
    OUT = 2
    BACK = 3


@dataclass(slots=True)
class QueuePiece:
    """Offsets from ``start`` to ``end`` (exclusive) in one state.

    Queues and their copies share pieces, so no code changes a piece. The class is not frozen, because the construction would then
    take five times as long, and one command may replace thousands of pieces.

    Attributes:
        due_ns: OUT: end of the lease. BACK: time from which the records may be delivered again.
        deliveries: Number of deliveries so far.
        lease, member: Lease of an OUT piece, and the member that holds it.
        dead, reason: True and the reason if the records go to the dead letters.
        key: Digest of the key of the only record, in an ordered queue. A DONE piece has none.
    """

    start: int
    end: int
    kind: PieceKind
    deliveries: int = 0
    lease: int = 0
    due_ns: int = 0
    member: str = ""
    reason: str = ""
    dead: bool = False
    key: int = NO_KEY

    def continues(self, other: QueuePiece) -> bool:
        """Return whether ``other``, the next piece, has the same state."""
        if self.end != other.start or self.kind is not other.kind or self.lease != other.lease or self.due_ns != other.due_ns:
            return False
        if self.key or other.key:
            return False
        alike = self.deliveries == other.deliveries and self.member == other.member
        return alike and self.dead == other.dead and self.reason == other.reason

    def extended(self, due_ns: int) -> QueuePiece:
        """Return a copy with another deadline."""
        return QueuePiece(
            self.start, self.end, self.kind, self.deliveries, self.lease, due_ns, self.member, self.reason, self.dead, self.key
        )

    def between(self, start: int, end: int) -> QueuePiece:
        return QueuePiece(
            start, end, self.kind, self.deliveries, self.lease, self.due_ns, self.member, self.reason, self.dead, self.key
        )


PIECE = MessageCodec(QueuePiece, pb.QueueState.Piece)


class WorkQueue:
    """State of one partition as a work queue.

    The caller passes the coordinator's time and the positions of the log that a method needs.
    """

    def __init__(self, uid: str, prefix: int, *, ordered: bool = False) -> None:
        self.uid = uid
        self.prefix = prefix
        self.ordered = ordered
        """True if the records of one key are delivered one after the other."""
        self.first_partitions: int | None = None
        """Number of partitions of the stream when the group first read it. 0: the stream was created again. None: not known."""
        self.leases = 0
        """Number of leases so far."""
        self.taken_epoch = 0
        """LeaderEpoch that no delivered record exceeds. 0: not known."""
        self.max_deliveries = commands.MAX_DELIVERIES
        self.wait_ns = commands.ACK_WAIT_MS * NS_PER_MS
        """Ack wait of the newest take, in nanoseconds."""
        self._pieces: list[QueuePiece] = []
        self._starts: list[int] = []
        self._ends: list[tuple[int, int]] = []
        """(deadline, start) of OUT pieces. An entry whose piece has changed has no meaning."""
        self._ready: list[tuple[int, int]] = []
        """(time, start) of BACK pieces. An entry whose piece has changed has no meaning."""
        self._latest: list[tuple[int, int]] = []
        """(-time, start) of BACK pieces, the latest time first. An entry whose piece has changed has no meaning."""
        self._out: dict[str, int] = {}
        """Member -> number of its leased records. Members without records are not in it."""
        self._leased: dict[int, int] = {}
        """Lease -> number of its records. Leases without records are not in it."""
        self._records = dict.fromkeys(PieceKind, 0)
        """Kind of piece -> number of records in its pieces."""
        self._dead_back = 0
        """Number of records that are BACK and dead."""
        self._order = KeyOrder()

    @property
    def frontier(self) -> int:
        """First offset that was never delivered."""
        return self._pieces[-1].end if self._pieces else self.prefix

    @property
    def out_count(self) -> int:
        return self._records[PieceKind.OUT]

    @property
    def dead_count(self) -> int:
        """Number of records that wait until a member copies them to the dead letters."""
        return self._dead_back

    @property
    def returned_count(self) -> int:
        """Number of records that wait for another delivery, or until their key is free."""
        return self._records[PieceKind.BACK] - self._dead_back

    @property
    def size_bytes(self) -> int:
        return PIECE_BYTES * (2 + len(self._pieces)) + KEY_BYTES * self._order.count

    @property
    def pieces(self) -> tuple[QueuePiece, ...]:
        """Pieces of the queue in order, from the first offset that is not done to the first that was never delivered."""
        return tuple(self._pieces)

    def restarted(self, position: int, leader_epoch: int) -> WorkQueue:
        """Return this queue without its records: it begins at ``position`` again. Later leases have other numbers.

        ``leader_epoch``: LeaderEpoch of the record before ``position``. 0: not known.
        """
        queue = WorkQueue(self.uid, position, ordered=self.ordered)
        queue.taken_epoch = leader_epoch
        queue.leases, queue.max_deliveries, queue.wait_ns = self.leases, self.max_deliveries, self.wait_ns
        queue.first_partitions = self.first_partitions
        return queue

    # ---- time ------------------------------------------------------------------------------------------------------------
    def expire(self, now_ns: int) -> None:
        """End expired leases: their records are redelivered [Q2]. It takes one pass over the pieces."""
        for _ in range(_FEW_EXPIRED):
            if not self._ends or self._ends[0][0] > now_ns:
                return
            piece = self._at(heapq.heappop(self._ends), PieceKind.OUT)
            if piece is not None:
                self._insert(self._return_or_kill(piece, piece.due_ns, piece.deliveries))
        over = [
            (index, self._return_or_kill(piece, piece.due_ns, piece.deliveries))
            for index, piece in enumerate(self._pieces)
            if piece.kind is PieceKind.OUT and piece.due_ns <= now_ns
        ]
        self._ends = [entry for entry in self._ends if entry[0] > now_ns]
        heapq.heapify(self._ends)
        self._change(over)

    def forget_below(self, log_start: int) -> None:
        """Drop the pieces below ``log_start``, because the log has deleted their records."""
        if log_start <= self.prefix:
            return
        if log_start > self.frontier:
            self.taken_epoch = 0  # the records before the new frontier were never delivered
        elif log_start < self.frontier:
            self._cut(log_start)
        count = bisect_right(self._starts, log_start - 1)
        removed_pieces = self._pieces[:count]
        del self._pieces[:count], self._starts[:count]
        self.prefix = log_start
        for piece in removed_pieces:
            self._count(piece, piece.start - piece.end)
            self._free_next(piece)
        self._advance()

    def next_ready_ns(self) -> int | None:
        """Return the earliest time in ns at which a record can be delivered again, None for never. Call ``expire`` first."""
        for heap, kind in ((self._ready, PieceKind.BACK), (self._ends, PieceKind.OUT)):
            while heap and self._at(heap[0], kind) is None:
                heapq.heappop(heap)
        return min((heap[0][0] for heap in (self._ready, self._ends) if heap), default=None)

    def has_delays(self, now_ns: int) -> bool:
        """Return whether some records are to be delivered again later than ``now_ns``. Call ``expire`` first."""
        heap = self._latest
        while heap and self._at((-heap[0][0], heap[0][1]), PieceKind.BACK) is None:
            heapq.heappop(heap)
        return bool(heap) and -heap[0][0] > now_ns

    # ---- commands --------------------------------------------------------------------------------------------------------
    def order(self, ordered: bool) -> bool:
        """Switch the delivery in order by key on (``ordered`` True) or off. Return True if the queue is in the requested mode.

        Return False if delivered records are not done. The mode then cannot change.
        """
        if ordered != self.ordered and not self._pieces:
            self.ordered = ordered
        return self.ordered == ordered

    @property
    def range_count(self) -> int:
        return len(self._pieces)

    @property
    def is_full(self) -> bool:
        return len(self._pieces) >= commands.MAX_QUEUE_RANGES

    def must_compare(self, take: pb.TakeRecords) -> bool:
        """Return whether the member must compare its log with ``frontier`` and ``taken_epoch`` before it gets records [Q8].

        It must if its view of the log is from another LeaderEpoch, and it has not compared that view with these values yet.
        """
        if 0 in (self.taken_epoch, take.logEpoch) or take.logEpoch == self.taken_epoch:
            return False
        return (take.comparedEpoch, take.comparedBelow) != (self.taken_epoch, self.frontier)

    def note_epoch(self, take: pb.TakeRecords, frontier_before: int) -> None:
        """Store the LeaderEpoch of a take that was carried out. ``frontier_before``: the frontier before the take.

        ``logEpoch`` 0: an older member sent the take. If it got new records, their LeaderEpoch is not known. A member whose view
        ends below the frontier does not know the LeaderEpochs of all delivered records.
        """
        if take.logEpoch:
            if self.taken_epoch or take.logEnd >= self.frontier:
                self.taken_epoch = max(self.taken_epoch, take.logEpoch)
        elif self.frontier != frontier_before:
            self.taken_epoch = 0

    def lease_records(self, take: pb.TakeRecords, now_ns: int, *, may_grow: bool = True) -> list[pb.GrantedRange]:
        """Lease up to ``maxRecords`` records to the member in ``lease_records``, and return their ranges in order of offsets.

        Records to be delivered again come before new ones. New records are below ``logEnd``. The request limits the leased
        records of the queue and those of this member [Q5]. ``may_grow`` False: lease no new records.
        """
        self.max_deliveries = take.maxDeliveries or commands.MAX_DELIVERIES
        self.wait_ns = (take.ackWaitMs or commands.ACK_WAIT_MS) * NS_PER_MS
        room = min(
            take.maxRecords,
            (take.maxAckPending or commands.MAX_ACK_PENDING) - self.out_count,
            (take.maxMemberPending or commands.MAX_MEMBER_PENDING) - self._out.get(take.member, 0),
        )
        if room <= 0:
            return []
        self.leases += 1
        leases: list[QueuePiece] = []
        while room > 0 and len(leases) < commands.MAX_GRANTED_RANGES and self._ready and self._ready[0][0] <= now_ns:
            piece = self._at(heapq.heappop(self._ready), PieceKind.BACK)
            if piece is not None:
                if piece.end - piece.start > room:
                    self._cut(piece.start + room)
                    piece = piece.between(piece.start, piece.start + room)
                leases.append(self._lease(piece, take.member, now_ns))
                room -= piece.end - piece.start
        if may_grow and self.ordered:
            leases += self._lease_in_order(take, room, commands.MAX_GRANTED_RANGES - len(leases), now_ns)
        elif may_grow and not self.is_full:
            start = self.frontier
            end = min(start + room, take.logEnd)
            if start < end:
                leases.append(self._lease(QueuePiece(start, end, PieceKind.BACK), take.member, now_ns))
        if not leases:
            self.leases -= 1
        return [
            pb.GrantedRange(start=p.start, end=p.end, lease=p.lease, deliveries=p.deliveries, dead=p.dead, reason=p.reason)
            for p in sorted(leases, key=lambda piece: piece.start)
        ]

    def _lease_in_order(self, take: pb.TakeRecords, room: int, ranges: int, now_ns: int) -> list[QueuePiece]:
        """Take new records of an ordered queue, as far as the request has their keys. Return the leased pieces.

        A record that must wait for an earlier one of its key is stored without a lease. ``room``: maximum number of leased
        records. ``ranges``: maximum number of leased pieces.
        """
        leases: list[QueuePiece] = []
        at, end = self.frontier, min(take.logEnd, take.keysFrom + len(take.keys))
        while take.keysFrom <= at < end and room > 0 and len(leases) < ranges:
            if self.is_full or self._order.held_count >= commands.MAX_BLOCKED_RECORDS:
                break
            key, behind = take.keys[at - take.keysFrom], at + 1
            while key == NO_KEY and behind < min(end, at + room) and take.keys[behind - take.keysFrom] == NO_KEY:
                behind += 1
            piece = QueuePiece(at, behind, PieceKind.BACK, key=key)
            if key == NO_KEY or self._order.add(key, at):
                leases.append(self._lease(piece, take.member, now_ns))
                room -= behind - at
            else:
                self._insert(piece)
            at = behind
        return leases

    def settled_range_count(self, settlement: pb.Settlement) -> int:
        """Return the number of ranges of the state that ``settle`` would look at: those with a known lease."""
        count = 0
        for part in settlement.ranges:
            start, end = max(part.start, self.prefix), min(part.end, self.frontier)
            if start < end and part.lease in self._leased:
                count += self._index(end - 1) + 1 - max(0, self._index(start))
        return count

    def settle(
        self, settlement: pb.Settlement, member: str, now_ns: int, most_lost: int = commands.MAX_LOST_RANGES
    ) -> list[tuple[int, int]]:
        """Apply the settlement of a member, in one pass over pieces and ranges.

        Return the parts of its ranges that the member no longer owns, about ``most_lost`` at most. They stay unchanged. A
        part of an ack that is already done is not returned.
        """
        lost: list[tuple[int, int]] = []
        changes: list[tuple[int, QueuePiece]] = []
        one_by_one = settlement.kind == pb.SETTLE_REJECT and len(settlement.reason) > _SHORT_REASON
        for part in settlement.ranges:
            start, end = max(part.start, self.prefix), min(part.end, self.frontier)
            if start > part.start and settlement.kind != pb.SETTLE_ACK:
                lost.append((part.start, min(part.end, start)))
            if start < end:
                first, behind = max(0, self._index(start)), self._index(end - 1) + 1
                own = self._own(first, behind, part.lease, member)
                if len(own) < behind - first and len(lost) < most_lost:
                    lost += self._foreign_ranges(first, behind, own, settlement.kind, start, end, most_lost - len(lost))
                if one_by_one:  # the maximum length of a reason depends on the current number of pieces
                    for piece in [self._pieces[index] for index in own]:
                        self._settle_one(settlement, piece, max(piece.start, start), min(piece.end, end), now_ns)
                else:
                    changes += self._settled_parts(settlement, own, start, end, now_ns)
            if part.end > max(end, part.start) and part.end > self.frontier:
                lost.append((max(part.start, self.frontier), part.end))
        self._change(changes)
        self._advance()
        return lost

    def _settled_parts(
        self, settlement: pb.Settlement, own: list[int], start: int, end: int, now_ns: int
    ) -> Iterator[tuple[int, QueuePiece]]:
        """Yield (index, new piece) for each piece that the settlement changes.

        ``own``: indexes of the pieces that the member holds. Only their parts from ``start`` to ``end`` (exclusive) change.
        """
        due_ns = now_ns + self.wait_ns if settlement.kind == pb.SETTLE_EXTEND else None
        for index in own:
            piece = self._pieces[index]
            if piece.due_ns == due_ns:
                continue
            if piece.start < start or piece.end > end:
                piece = piece.between(max(piece.start, start), min(piece.end, end))
            yield index, self._settle(settlement, piece, now_ns)

    def _own(self, first: int, behind: int, lease: int, member: str) -> list[int]:
        """Return the indexes of the pieces that ``member`` holds by ``lease``, from index ``first`` to ``behind`` (exclusive)."""
        if lease not in self._leased:
            return []
        pieces = self._pieces
        indexes = [index for index in range(first, behind) if pieces[index].lease == lease]
        return indexes if indexes and pieces[indexes[0]].member == member else []  # a lease has one member

    def _foreign_ranges(
        self, first: int, behind: int, own: list[int], kind: int, start: int, end: int, most: int
    ) -> list[tuple[int, int]]:
        """Return the ranges (start, end) of a settlement that the member does not own, at most ``most``.

        ``first``, ``behind``: the pieces to search, by index. ``own``: indexes of the pieces that the member owns. ``start``,
        ``end``: offsets of the settlement. ``kind``: its kind. For an ack, ranges that are done are left out.
        """
        mine, foreign_ranges = set(own), list[tuple[int, int]]()
        for index in range(first, behind):
            if len(foreign_ranges) >= most:
                break
            piece = self._pieces[index]
            if index not in mine and (piece.kind is not PieceKind.DONE or kind != pb.SETTLE_ACK):
                foreign_ranges.append((max(piece.start, start), min(piece.end, end)))
        return foreign_ranges

    def _settle_one(self, settlement: pb.Settlement, piece: QueuePiece, start: int, end: int, now_ns: int) -> None:
        self._cut(start)  # it may have been merged with the previous piece
        if end < self.frontier:
            self._cut(end)
        self._insert(self._settle(settlement, piece.between(start, end), now_ns))

    def _settle(self, settlement: pb.Settlement, piece: QueuePiece, now_ns: int) -> QueuePiece:
        match settlement.kind:
            case pb.SETTLE_ACK:
                return QueuePiece(piece.start, piece.end, PieceKind.DONE)
            case pb.SETTLE_EXTEND:
                return piece.extended(now_ns + self.wait_ns)
            case pb.SETTLE_REJECT:
                reason = self._short(settlement.reason or "rejected")
                return QueuePiece(
                    piece.start, piece.end, PieceKind.BACK, piece.deliveries, 0, now_ns, "", reason, True, piece.key
                )
            case pb.SETTLE_RELEASE:
                released = self._return_or_kill(piece, now_ns, 0)
                released.deliveries -= not piece.dead
                return released
            case _:
                return self._return_or_kill(piece, now_ns + settlement.delayMs * NS_PER_MS, piece.deliveries)

    def _short(self, reason: str) -> str:
        return reason if len(self._pieces) < _MANY_PIECES else reason[:_SHORT_REASON]

    def _return_or_kill(self, piece: QueuePiece, due_ns: int, deliveries: int) -> QueuePiece:
        """Return a copy of ``piece`` without a lease, to be delivered again from ``due_ns`` on.

        If ``deliveries`` has reached the maximum, the copy is dead: its records go to the dead letters.
        """
        dead, reason = piece.dead, piece.reason
        if not dead and deliveries >= self.max_deliveries:
            dead, reason = True, self._short(f"delivered {deliveries} times")
        return QueuePiece(piece.start, piece.end, PieceKind.BACK, piece.deliveries, 0, due_ns, "", reason, dead, piece.key)

    def _lease(self, piece: QueuePiece, member: str, now_ns: int) -> QueuePiece:
        deliveries = piece.deliveries + (not piece.dead)
        leased_piece = replace(
            piece, kind=PieceKind.OUT, deliveries=deliveries, lease=self.leases, due_ns=now_ns + self.wait_ns, member=member
        )
        self._insert(leased_piece)
        return leased_piece

    # ---- pieces ----------------------------------------------------------------------------------------------------------
    def _index(self, offset: int) -> int:
        return bisect_right(self._starts, offset) - 1

    def _at(self, entry: tuple[int, int], kind: PieceKind) -> QueuePiece | None:
        due_ns, start = entry
        index = self._index(start)
        piece = self._pieces[index] if index >= 0 else None
        return piece if piece is not None and (piece.start, piece.kind, piece.due_ns) == (start, kind, due_ns) else None

    def _cut(self, offset: int) -> None:
        index = self._index(offset)
        piece = self._pieces[index]
        if piece.start == offset:
            return
        self._pieces[index : index + 1] = [piece.between(piece.start, offset), piece.between(offset, piece.end)]
        self._starts.insert(index + 1, offset)
        self._remember(self._pieces[index + 1])

    def _insert(self, piece: QueuePiece) -> None:
        """Insert ``piece`` in place of one with the same bounds, or at the end. Merge it with neighbors in the same state."""
        index = self._index(piece.start)
        if index >= 0 and self._starts[index] == piece.start:
            former = self._pieces[index]
            self._count(former, former.start - former.end)
            self._pieces[index] = piece
            if piece.kind is PieceKind.DONE:
                self._free_next(former)
        else:
            index = len(self._pieces)
            self._pieces.append(piece)
            self._starts.append(piece.start)
        self._count(piece, piece.end - piece.start)
        self._remember(piece)
        for right in (index + 1, index):
            if 0 < right < len(self._pieces) and self._pieces[right - 1].continues(self._pieces[right]):
                self._pieces[right - 1 : right + 1] = [
                    self._pieces[right - 1].between(self._starts[right - 1], self._pieces[right].end)
                ]
                del self._starts[right]

    def _change(self, changes: list[tuple[int, QueuePiece]]) -> None:
        """Replace parts of pieces in one pass. ``changes``: (index of the piece, new part), in ascending order."""
        if not changes:
            return
        first, behind = changes[0][0], changes[-1][0] + 1
        if behind - first > _SPARSE * len(changes):
            for piece in [piece for _, piece in changes]:
                self._cut(piece.start)
                if piece.end < self.frontier:
                    self._cut(piece.end)
                self._insert(piece)
            return
        pieces_after, fresh, done = self._pieces[max(first - 1, 0) : first], list[QueuePiece](), list[QueuePiece]()
        at, start = first, self._pieces[first].start
        """All pieces before index ``at``, and the part of that piece below ``start``, are in ``pieces_after``."""
        for index, piece in changes:
            former = self._pieces[index]
            if index > at:
                if start < self._pieces[at].end:
                    pieces_after.append(self._rest(at, start, fresh))
                pieces_after += self._pieces[at + 1 : index]
                at, start = index, former.start
            if piece.start > start:
                pieces_after.append(former.between(start, piece.start))
                fresh.append(pieces_after[-1])
            pieces_after.append(piece)
            fresh.append(piece)
            start = piece.end
            self._count(former, piece.start - piece.end)
            self._count(piece, piece.end - piece.start)
            if former.key and piece.kind is PieceKind.DONE:
                done.append(former)
        if start < self._pieces[at].end:
            pieces_after.append(self._rest(at, start, fresh))
        pieces_after += self._pieces[behind : behind + 1]
        joined: list[QueuePiece] = []
        first_of = pieces_after[0]
        last = first_of
        for piece in pieces_after[1:]:
            if not last.continues(piece):
                joined.append(first_of if first_of is last else first_of.between(first_of.start, last.end))
                first_of = piece
            last = piece
        joined.append(first_of if first_of is last else first_of.between(first_of.start, last.end))
        window = slice(max(first - 1, 0), behind + 1)
        self._pieces[window] = joined
        self._starts[window] = [piece.start for piece in joined]
        for piece in fresh:
            self._remember(piece)
        for former in done:
            self._free_next(former)

    def _rest(self, index: int, start: int, fresh: list[QueuePiece]) -> QueuePiece:
        """Return the part of the piece at ``index`` from the offset ``start`` on.

        If this is a new piece, add it to ``fresh``, the list of pieces that are not in the heaps yet.
        """
        piece = self._pieces[index]
        if piece.start == start:
            return piece
        fresh.append(piece.between(start, piece.end))
        return fresh[-1]

    def _free_next(self, done: QueuePiece) -> None:
        free = self._order.remove(done.key, done.start) if done.key else None
        if free is not None and free >= self.prefix:
            self._remember(self._pieces[self._index(free)])

    def _remember(self, piece: QueuePiece) -> None:
        if piece.kind is PieceKind.DONE or self._order.holds(piece.key, piece.start):
            return
        heap, kind = (self._ends, PieceKind.OUT) if piece.kind is PieceKind.OUT else (self._ready, PieceKind.BACK)
        heapq.heappush(heap, (piece.due_ns, piece.start))
        if len(heap) > 64 + 4 * len(self._pieces):
            heap[:] = self._entries(kind)
        if kind is PieceKind.BACK:
            heapq.heappush(self._latest, (-piece.due_ns, piece.start))
            if len(self._latest) > 64 + 4 * len(self._pieces):
                self._latest = self._latest_entries()

    def _count(self, piece: QueuePiece, records: int) -> None:
        self._records[piece.kind] += records
        if piece.kind is PieceKind.OUT:
            count = self._out.get(piece.member, 0) + records
            if count:
                self._out[piece.member] = count
            else:
                del self._out[piece.member]
            count = self._leased.get(piece.lease, 0) + records
            if count:
                self._leased[piece.lease] = count
            else:
                del self._leased[piece.lease]
        elif piece.dead:
            self._dead_back += records

    def _advance(self) -> None:
        if self._pieces and self._pieces[0].kind is PieceKind.DONE:
            first = self._pieces[0]
            self._count(first, first.start - first.end)
            self.prefix = first.end
            del self._pieces[0], self._starts[0]

    # ---- snapshots and queries -------------------------------------------------------------------------------------------
    def state(self, stream: str, partition: int) -> pb.QueueState:
        return pb.QueueState(
            stream=stream,
            uid=self.uid,
            partition=partition,
            prefix=self.prefix,
            leases=self.leases,
            maxDeliveries=self.max_deliveries,
            waitNs=self.wait_ns,
            ordered=self.ordered,
            firstPartitions=self.first_partitions,
            takenEpoch=self.taken_epoch,
            pieces=map(PIECE.compiled[0], self._pieces),
        )

    @classmethod
    def from_state(cls, state: pb.QueueState) -> WorkQueue:
        queue = cls(state.uid, state.prefix, ordered=state.ordered)
        queue.leases, queue.max_deliveries, queue.wait_ns = state.leases, state.maxDeliveries, state.waitNs
        queue.taken_epoch = state.takenEpoch
        if state.HasField("firstPartitions"):
            queue.first_partitions = state.firstPartitions
        queue._restore(map(PIECE.compiled[1], state.pieces))
        return queue

    def _restore(self, pieces: Iterable[QueuePiece]) -> None:
        self._pieces = list(pieces)
        self._starts = [piece.start for piece in self._pieces]
        for piece in self._pieces:
            self._count(piece, piece.end - piece.start)
            if piece.key:
                self._order.add(piece.key, piece.start)
        self._ends = self._entries(PieceKind.OUT)
        self._ready = self._entries(PieceKind.BACK)
        self._latest = self._latest_entries()

    def _entries(self, kind: PieceKind) -> list[tuple[int, int]]:
        """Return the heap entries (due time in ns, start offset) of all pieces of ``kind``, sorted.

        Records that wait for an earlier one of their key are left out.
        """
        return sorted((p.due_ns, p.start) for p in self._pieces if p.kind is kind and not self._order.holds(p.key, p.start))

    def _latest_entries(self) -> list[tuple[int, int]]:
        return sorted((-due_ns, start) for due_ns, start in self._entries(PieceKind.BACK))

    def frozen(self) -> WorkQueue:
        """Return a copy of the queue for a snapshot. Later commands do not change the copy."""
        copied = WorkQueue(self.uid, self.prefix, ordered=self.ordered)
        copied.leases, copied.max_deliveries, copied.wait_ns = self.leases, self.max_deliveries, self.wait_ns
        copied.first_partitions, copied.taken_epoch = self.first_partitions, self.taken_epoch
        copied._pieces = self._pieces.copy()
        return copied

    def view(self, stream: str, partition: int, *, max_holders: int = commands.MAX_HOLDERS) -> pb.QueueView:
        """Return the figures of the queue for operators, such as its numbers of records.

        ``max_holders``: maximum number of members with leased records to include. Above 0, this reads all pieces.
        """
        held_count = self._order.held_count
        holders: dict[str, pb.QueueHolder] = {}
        if max_holders:
            most = heapq.nsmallest(max_holders, self._out.items(), key=lambda out: (-out[1], out[0]))
            holders = {name: pb.QueueHolder(member=name, records=records, first=-1) for name, records in most}
            for piece in self._pieces:
                if (holder := holders.get(piece.member)) is not None:
                    if holder.first < 0:
                        holder.first = piece.start
                    holder.deliveries = max(holder.deliveries, piece.deliveries)
        back = self._records[PieceKind.BACK]
        return pb.QueueView(
            stream=stream,
            uid=self.uid,
            partition=partition,
            acknowledgedBelow=self.prefix,
            takenBelow=self.frontier,
            out=self.out_count,
            returned=back - self._dead_back - held_count,
            dead=self._dead_back,
            acknowledged=self._records[PieceKind.DONE],
            ranges=self.range_count,
            held=held_count,
            holders=holders.values(),
        )
