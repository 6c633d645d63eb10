"""One partition as a work queue: which records are done, which are out with whom, which come again. Pure; by ranges, never by
record.

Goal: several members work on one partition, record by record in any order; nothing is given twice once it is acknowledged [Q1],
nothing is forgotten [Q2, Q6], and no record is out twice at a time [Q3]. Constraint: members are slow or die, and the state has
a bound.

Algorithm: everything below ``prefix`` is done. From there up to ``frontier`` the offsets are cut into pieces, sorted, without
gaps: DONE, OUT (to a member, by a lease, until a deadline) or BACK (to be given again, from a time on). At and above the
frontier nothing was given yet. A take gives what is BACK and due, then new records; a settlement names ranges and their leases:
what is not OUT by that lease any more is refused. A lease that runs out, or is given back, makes its pieces BACK; after
``max_deliveries``, or once it is rejected, a piece is *dead*: it is given once more, marked so, to a member that copies it to
the dead letters and acknowledges it then.

An *ordered* queue gives the records of a key one after the other [Q7]: whoever takes tells the keys of new records, and a record with a
key is a piece of its own until it is done. Those that wait for an earlier one of their key (``liftpy.group.key_order``) are BACK
without being due: the frontier passes over them, so that they hold up nobody else.

Worked example: frontier 0, log end 100. a takes 10: OUT 0..10 by lease 1. a acknowledges 4..6: OUT 0..4, DONE 4..6, OUT 6..10.
a dies, its lease runs out: BACK 0..4, DONE 4..6, BACK 6..10. b takes 5: OUT 0..4 by lease 2, DONE 4..6, OUT 6..7 by lease 2,
BACK 7..10. b acknowledges 0..4: prefix 6.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace
from enum import IntEnum

from liftpy.dataclass import dataclass
from liftpy.group import limits
from liftpy.group.key_order import NO_KEY, KeyOrder
from liftpy.group.limits import NS_PER_MS
from liftpy.wire._pb import group_pb2 as pb

PIECE_BYTES = 60
"""What one piece takes in the state, about."""
KEY_BYTES = 20
"""What the key of one takes, about."""
_MANY_PIECES = 1000
_SHORT_REASON = 32
"""Beyond so many pieces reasons are cut to this, so that they do not fill the state."""


class PieceKind(IntEnum):
    """What became of the records of a piece."""

    DONE = 1
    OUT = 2
    BACK = 3


@dataclass(frozen=True, slots=True)
class QueuePiece:
    """Offsets from ``start`` to ``end`` (exclusive), all alike. ``due_ns``: OUT: when the lease ends; BACK: when it may be
    given again.
    ``deliveries``: so far. ``lease``, ``member``: of OUT. ``dead``, ``reason``: to the dead letters, and why. ``key``: digest of the
    key of the one record that it is, in an ordered queue; no piece that is DONE has one."""

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
        """Whether this one and the ``other`` behind it are one."""
        if self.end != other.start or self.kind is not other.kind or self.lease != other.lease or self.due_ns != other.due_ns:
            return False
        if self.key or other.key:
            return False
        alike = self.deliveries == other.deliveries and self.member == other.member
        return alike and self.dead == other.dead and self.reason == other.reason

    def between(self, start: int, end: int) -> QueuePiece:
        """A part of it; what ``replace`` makes, in a fifth of the time."""
        return QueuePiece(
            start, end, self.kind, self.deliveries, self.lease, self.due_ns, self.member, self.reason, self.dead, self.key
        )


class WorkQueue:
    """The state of one queue. Every method gets the coordinator's time, and is told all that it needs of the log."""

    def __init__(self, uid: str, prefix: int, *, ordered: bool = False) -> None:
        self.uid = uid
        self.prefix = prefix
        self.ordered = ordered
        """Records of one key are given one after the other."""
        self.leases = 0
        """Given so far."""
        self.max_deliveries = limits.MAX_DELIVERIES
        self.wait_ns = limits.ACK_WAIT_MS * NS_PER_MS
        """As the newest take says."""
        self._pieces: list[QueuePiece] = []
        self._starts: list[int] = []
        self._ends: list[tuple[int, int]] = []
        """(deadline, start) of what is OUT; entries whose piece is another one by now mean nothing."""
        self._ready: list[tuple[int, int]] = []
        """(time, start) of what is BACK, the same."""
        self._out: dict[str, int] = {}
        """Records that each member has; nobody with none."""
        self._order = KeyOrder()

    @property
    def frontier(self) -> int:
        """Nothing at or above it was ever given."""
        return self._pieces[-1].end if self._pieces else self.prefix

    @property
    def out_count(self) -> int:
        """Records with a lease."""
        return sum(self._out.values())

    @property
    def size_bytes(self) -> int:
        """What it takes in the state, about."""
        return PIECE_BYTES * (2 + len(self._pieces)) + KEY_BYTES * self._order.count

    @property
    def pieces(self) -> tuple[QueuePiece, ...]:
        """In order, from the prefix to the frontier."""
        return tuple(self._pieces)

    # ---- time ------------------------------------------------------------------------------------------------------------
    def expire(self, now_ns: int) -> None:
        """End the leases whose wait is over: what they hold comes again [Q2]."""
        while self._ends and self._ends[0][0] <= now_ns:
            piece = self._at(heapq.heappop(self._ends), PieceKind.OUT)
            if piece is not None:
                self._put(self._returned(piece, piece.due_ns, piece.deliveries))

    def forget_below(self, log_start: int) -> None:
        """The log does not have what is below ``log_start`` any more."""
        if log_start <= self.prefix:
            return
        if log_start < self.frontier:
            self._cut(log_start)
        count = bisect_right(self._starts, log_start - 1)
        gone = self._pieces[:count]
        del self._pieces[:count], self._starts[:count]
        self.prefix = log_start
        for piece in gone:
            self._count(piece, -1)
            self._free_next(piece)
        self._advance()

    def next_ready_ns(self) -> int | None:
        """When something is BACK that is not now, at the earliest; None: never. Call ``expire`` first."""
        for heap, kind in ((self._ready, PieceKind.BACK), (self._ends, PieceKind.OUT)):
            while heap and self._at(heap[0], kind) is None:
                heapq.heappop(heap)
        return min((heap[0][0] for heap in (self._ready, self._ends) if heap), default=None)

    # ---- commands --------------------------------------------------------------------------------------------------------
    def order(self, ordered: bool) -> bool:
        """Keep order per key from here on, or not any more; False: not now, while records are neither given nor done."""
        if ordered != self.ordered and not self._pieces:
            self.ordered = ordered
        return self.ordered == ordered

    @property
    def is_full(self) -> bool:
        """Whether nothing new is given because of what the state holds."""
        return len(self._pieces) >= limits.MAX_QUEUE_RANGES

    def take(self, take: pb.TakeRecords, now_ns: int, *, may_grow: bool = True) -> list[pb.GrantedRange]:
        """Give a member up to ``maxRecords``: what comes again first, then new records below ``logEnd``. In order of offsets. Of an
        ordered queue only new records are given whose keys the member tells.

        Both bounds on what is out are kept [Q5]. ``may_grow``: whether new records may be given; returned ones always may.
        """
        self.max_deliveries = take.maxDeliveries or limits.MAX_DELIVERIES
        self.wait_ns = (take.ackWaitMs or limits.ACK_WAIT_MS) * NS_PER_MS
        room = min(
            take.maxRecords,
            (take.maxAckPending or limits.MAX_ACK_PENDING) - self.out_count,
            (take.maxMemberPending or limits.MAX_MEMBER_PENDING) - self._out.get(take.member, 0),
        )
        if room <= 0:
            return []
        self.leases += 1
        given: list[QueuePiece] = []
        while room > 0 and len(given) < limits.MAX_GRANTED_RANGES and self._ready and self._ready[0][0] <= now_ns:
            piece = self._at(heapq.heappop(self._ready), PieceKind.BACK)
            if piece is not None:
                if piece.end - piece.start > room:
                    self._cut(piece.start + room)
                    piece = piece.between(piece.start, piece.start + room)
                given.append(self._leased(piece, take.member, now_ns))
                room -= piece.end - piece.start
        if may_grow and self.ordered:
            given += self._taken_in_order(take, room, limits.MAX_GRANTED_RANGES - len(given), now_ns)
        elif may_grow and not self.is_full:
            start = self.frontier
            end = min(start + room, take.logEnd)
            if start < end:
                given.append(self._leased(QueuePiece(start, end, PieceKind.BACK), take.member, now_ns))
        if not given:
            self.leases -= 1
        return [
            pb.GrantedRange(start=p.start, end=p.end, lease=p.lease, deliveries=p.deliveries, dead=p.dead, reason=p.reason)
            for p in sorted(given, key=lambda piece: piece.start)
        ]

    def _taken_in_order(self, take: pb.TakeRecords, room: int, ranges: int, now_ns: int) -> list[QueuePiece]:
        """New records, as far as their keys are told: those that are free are leased, the others held."""
        given: list[QueuePiece] = []
        at, end = self.frontier, min(take.logEnd, take.keysFrom + len(take.keys))
        while take.keysFrom <= at < end and room > 0 and len(given) < ranges and not self._holds_enough():
            key, behind = take.keys[at - take.keysFrom], at + 1
            while key == NO_KEY and behind < min(end, at + room) and take.keys[behind - take.keysFrom] == NO_KEY:
                behind += 1
            piece = QueuePiece(at, behind, PieceKind.BACK, key=key)
            if key == NO_KEY or self._order.add(key, at):
                given.append(self._leased(piece, take.member, now_ns))
                room -= behind - at
            else:
                self._put(piece)
            at = behind
        return given

    def _holds_enough(self) -> bool:
        return self.is_full or self._order.held_count >= limits.MAX_HELD

    def settle(self, settlement: pb.Settlement, member: str, now_ns: int) -> list[tuple[int, int]]:
        """Do what a member says of its records. Returns the parts of its ranges that are not its own any more, which stay as
        they are;
        an acknowledgement of what is done already is none of them."""
        lost: list[tuple[int, int]] = []
        for part in settlement.ranges:
            start, end = max(part.start, self.prefix), min(part.end, self.frontier)
            if start > part.start and settlement.kind != pb.SETTLE_ACK:
                lost.append((part.start, min(part.end, start)))
            if start < end:
                lost += self._settle(settlement, member, now_ns, pb.RecordRange(start=start, end=end, lease=part.lease))
            if part.end > max(end, part.start) and part.end > self.frontier:
                lost.append((max(part.start, self.frontier), part.end))
        self._advance()
        return lost

    def _settle(self, settlement: pb.Settlement, member: str, now_ns: int, part: pb.RecordRange) -> list[tuple[int, int]]:
        lost = []
        for piece in self._within(part.start, part.end):
            start, end = max(piece.start, part.start), min(piece.end, part.end)
            if piece.kind is PieceKind.OUT and piece.lease == part.lease and piece.member == member:
                self._cut(start)  # the one before may have become one with it
                if end < self.frontier:
                    self._cut(end)
                self._put(self._settled(settlement, piece.between(start, end), now_ns))
            elif piece.kind is not PieceKind.DONE or settlement.kind != pb.SETTLE_ACK:
                lost.append((start, end))
        return lost

    def _settled(self, settlement: pb.Settlement, piece: QueuePiece, now_ns: int) -> QueuePiece:
        match settlement.kind:
            case pb.SETTLE_ACK:
                return QueuePiece(piece.start, piece.end, PieceKind.DONE)
            case pb.SETTLE_EXTEND:
                return replace(piece, due_ns=now_ns + self.wait_ns)
            case pb.SETTLE_REJECT:
                reason = settlement.reason or "rejected"
                return self._returned(replace(piece, dead=True, reason=self._short(reason)), now_ns, piece.deliveries)
            case pb.SETTLE_RELEASE:
                return replace(self._returned(piece, now_ns, 0), deliveries=piece.deliveries - (not piece.dead))
            case _:
                return self._returned(piece, now_ns + settlement.delayMs * NS_PER_MS, piece.deliveries)

    def _short(self, reason: str) -> str:
        return reason if len(self._pieces) < _MANY_PIECES else reason[:_SHORT_REASON]

    def _returned(self, piece: QueuePiece, due_ns: int, deliveries: int) -> QueuePiece:
        """``piece`` BACK, and dead where it was given often enough."""
        dead, reason = piece.dead, piece.reason
        if not dead and deliveries >= self.max_deliveries:
            dead, reason = True, self._short(f"delivered {deliveries} times")
        return QueuePiece(piece.start, piece.end, PieceKind.BACK, piece.deliveries, 0, due_ns, "", reason, dead, piece.key)

    def _leased(self, piece: QueuePiece, member: str, now_ns: int) -> QueuePiece:
        deliveries = piece.deliveries + (not piece.dead)
        given = replace(
            piece, kind=PieceKind.OUT, deliveries=deliveries, lease=self.leases, due_ns=now_ns + self.wait_ns, member=member
        )
        self._put(given)
        return given

    # ---- pieces ----------------------------------------------------------------------------------------------------------
    def _index(self, offset: int) -> int:
        return bisect_right(self._starts, offset) - 1

    def _at(self, entry: tuple[int, int], kind: PieceKind) -> QueuePiece | None:
        """The piece that an entry of a heap is of; None: it has changed since."""
        due_ns, start = entry
        index = self._index(start)
        piece = self._pieces[index] if index >= 0 else None
        return piece if piece is not None and (piece.start, piece.kind, piece.due_ns) == (start, kind, due_ns) else None

    def _within(self, start: int, end: int) -> list[QueuePiece]:
        """The pieces that have offsets from ``start`` to ``end`` (exclusive)."""
        first = max(0, self._index(start))
        return self._pieces[first : self._index(end - 1) + 1]

    def _cut(self, offset: int) -> None:
        """Have a piece begin at ``offset``, which is in the midst of one."""
        index = self._index(offset)
        piece = self._pieces[index]
        if piece.start == offset:
            return
        self._pieces[index : index + 1] = [piece.between(piece.start, offset), piece.between(offset, piece.end)]
        self._starts.insert(index + 1, offset)
        self._remember(self._pieces[index + 1])

    def _put(self, piece: QueuePiece) -> None:
        """Put ``piece`` where one of the same bounds is, or behind all; join it with its neighbours where they are alike."""
        index = self._index(piece.start)
        if index >= 0 and self._starts[index] == piece.start:
            former = self._pieces[index]
            self._count(former, -1)
            self._pieces[index] = piece
            if piece.kind is PieceKind.DONE:
                self._free_next(former)
        else:
            index = len(self._pieces)
            self._pieces.append(piece)
            self._starts.append(piece.start)
        self._count(piece, 1)
        self._remember(piece)
        for right in (index + 1, index):
            if 0 < right < len(self._pieces) and self._pieces[right - 1].continues(self._pieces[right]):
                self._pieces[right - 1 : right + 1] = [
                    self._pieces[right - 1].between(self._starts[right - 1], self._pieces[right].end)
                ]
                del self._starts[right]

    def _free_next(self, done: QueuePiece) -> None:
        """The next record of the key of ``done`` may be given."""
        free = self._order.remove(done.key, done.start) if done.key else None
        if free is not None and free >= self.prefix:
            self._remember(self._pieces[self._index(free)])

    def _remember(self, piece: QueuePiece) -> None:
        if piece.kind is PieceKind.DONE or self._order.holds(piece.key, piece.start):
            return
        heap, kind = (self._ends, PieceKind.OUT) if piece.kind is PieceKind.OUT else (self._ready, PieceKind.BACK)
        heapq.heappush(heap, (piece.due_ns, piece.start))
        if len(heap) > 64 + 4 * len(self._pieces):
            heap[:] = sorted(
                (p.due_ns, p.start) for p in self._pieces if p.kind is kind and not self._order.holds(p.key, p.start)
            )

    def _count(self, piece: QueuePiece, sign: int) -> None:
        if piece.kind is PieceKind.OUT:
            count = self._out.get(piece.member, 0) + sign * (piece.end - piece.start)
            if count:
                self._out[piece.member] = count
            else:
                del self._out[piece.member]

    def _advance(self) -> None:
        """What is done at the beginning belongs to the prefix."""
        if self._pieces and self._pieces[0].kind is PieceKind.DONE:
            self.prefix = self._pieces[0].end
            del self._pieces[0], self._starts[0]

    # ---- snapshots and questions -----------------------------------------------------------------------------------------
    def state(self, stream: str, partition: int) -> pb.QueueState:
        """All of it, for a snapshot."""
        return pb.QueueState(
            stream=stream,
            uid=self.uid,
            partition=partition,
            prefix=self.prefix,
            leases=self.leases,
            maxDeliveries=self.max_deliveries,
            waitNs=self.wait_ns,
            ordered=self.ordered,
            pieces=(
                pb.QueueState.Piece(
                    start=p.start, end=p.end, kind=p.kind, deliveries=p.deliveries, lease=p.lease, dueNs=p.due_ns,
                    member=p.member, reason=p.reason, dead=p.dead, key=p.key,
                )
                for p in self._pieces
            ),
        )  # fmt: skip

    @classmethod
    def from_state(cls, state: pb.QueueState) -> WorkQueue:
        """What ``state`` gave."""
        queue = cls(state.uid, state.prefix, ordered=state.ordered)
        queue.leases, queue.max_deliveries, queue.wait_ns = state.leases, state.maxDeliveries, state.waitNs
        queue._restore(
            QueuePiece(p.start, p.end, PieceKind(p.kind), p.deliveries, p.lease, p.dueNs, p.member, p.reason, p.dead, p.key)
            for p in state.pieces
        )
        return queue

    def _restore(self, pieces: Iterable[QueuePiece]) -> None:
        self._pieces = list(pieces)
        self._starts = [piece.start for piece in self._pieces]
        for piece in self._pieces:
            self._count(piece, 1)
            if piece.key:
                self._order.add(piece.key, piece.start)
            self._remember(piece)

    def view(self, stream: str, partition: int) -> pb.QueueView:
        """In figures, for operators."""
        held = self._order.held_count
        counts = {"out": self.out_count, "returned": -held, "dead": 0, "acknowledged": 0}
        holders: dict[str, pb.QueueHolder] = {}
        for piece in self._pieces:
            if piece.kind is PieceKind.OUT:
                holder = holders.setdefault(piece.member, pb.QueueHolder(member=piece.member, first=piece.start))
                holder.records += piece.end - piece.start
                holder.deliveries = max(holder.deliveries, piece.deliveries)
            else:
                name = "acknowledged" if piece.kind is PieceKind.DONE else "dead" if piece.dead else "returned"
                counts[name] += piece.end - piece.start
        return pb.QueueView(
            stream=stream,
            uid=self.uid,
            partition=partition,
            acknowledgedBelow=self.prefix,
            takenBelow=self.frontier,
            ranges=len(self._pieces),
            held=held,
            holders=sorted(holders.values(), key=lambda holder: (-holder.records, holder.member))[: limits.MAX_HOLDERS],
            **counts,
        )
