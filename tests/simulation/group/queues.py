"""Workers of a queue under faults: killed, paused, late, unheard; what they were promised is checked as it happens.

The coordinator is the one of ``coordinator``; a model of its own keeps, record by record, what the state keeps by ranges. Of an ordered
queue the workers tell the keys, each as far as it knows where new records begin.

In a history with leader changes, the leader of the partition changes cleanly. Workers of the earlier version do not send a LeaderEpoch,
and the view of a worker may be from before a change.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from liftpy.core.base.invariants import check
from liftpy.core.groups.commands import encode_command
from liftpy.core.groups.queue import PieceKind
from liftpy.core.wire._pb import group_pb2 as pb
from tests.simulation.group.coordinator import HOUR, MS, Events, S, SimCoordinator

STREAM, UID, GROUP = "jobs", "000001-1", "work"
WAIT_MS, MAX_DELIVERIES, MAX_OUT, MAX_MEMBER = 3000, 3, 60, 20
RECORDS = 600
KEYS = [0 if offset % 3 == 0 else 1 if offset % 5 == 0 else 2 + offset % 23 for offset in range(RECORDS)]
"""Digest of each record's key: a third has none, one key is frequent."""
EARLIER = [[other for other in range(offset) if KEYS[other] == KEYS[offset] != 0] for offset in range(RECORDS)]


@dataclass
class Worker:
    """``until_ns`` of each range that it has: then it stops with it by its own clock."""

    name: str
    alive: bool = True
    paused_until_ns: int = 0
    work: list[tuple[int, int, int, int]] = field(default_factory=list)
    new_from: int = 0
    """Of an ordered queue, where new records begin, as it was told last."""
    view_ns: int = 0
    """Time of its view of the log."""
    compared: tuple[int, int, int] = (0, 0, 0)
    """LeaderEpoch of the view that it has compared, and the LeaderEpoch and the offset of the queue at that time."""

    @property
    def is_earlier_version(self) -> bool:
        return int(self.name[1:]) % 3 == 0


class QueueWorld:
    """One history of one queue."""

    def __init__(self, seed: int, *, ordered: bool = False, leader_changes: bool = False) -> None:
        self.rng = random.Random(seed)
        self.ordered = ordered
        self.view_rng = random.Random(seed + 2)
        self.changes_ns = sorted(self.view_rng.randrange(40 * S) for _ in range(20)) if leader_changes else []
        """Times at which the leader of the partition changes."""
        self.seen: Counter[str] = Counter()
        self.events = Events()
        self.coordinator = SimCoordinator(self.events, random.Random(seed + 1), self.seen, stores_epochs=leader_changes)
        self.coordinator.before, self.coordinator.after = self._before, self._after
        self.calm = False
        self.confirmed: set[int] = set()
        """Offsets whose acknowledgement was answered."""
        self.leases: dict[int, tuple[int, str, int]] = {}
        """Offset -> (lease, member, deadline by the coordinator's clock) of what is out."""
        self.deliveries: Counter[int] = Counter()
        self.waiting_since: dict[int, int] = {}
        """Offset -> time of the coordinator's clock from which on it may be given again."""
        self.dead: set[int] = set()
        self.workers = [Worker(f"w{number}") for number in range(4)]
        self.born = len(self.workers)
        for worker in self.workers:
            self._loop(worker)

    @property
    def clock_ns(self) -> int:
        return self.coordinator.machine.clock.now_ns

    # ---- the network -------------------------------------------------------------------------------------------------
    def _send(self, worker: Worker, command: pb.GroupCommand, answered: Callable[[pb.GroupAnswer], None]) -> None:
        def back(data: bytes) -> None:
            answer = pb.GroupAnswer.FromString(data)
            for _ in range(self._copies()):
                self.events.after(self._delay(), lambda: answered(answer) if self._runs(worker) else None)

        for _ in range(self._copies()):
            self.events.after(self._delay(), partial(self.coordinator.append, encode_command(command), back))

    def _runs(self, worker: Worker) -> bool:
        return worker.alive and self.events.now_ns >= worker.paused_until_ns

    def _copies(self) -> int:
        return 1 if self.calm else self.rng.choices((0, 1, 2), (6, 88, 6))[0]

    def _delay(self) -> int:
        late = not self.calm and self.rng.random() < 0.08
        return self.rng.randrange(100, 6000) * MS if late else self.rng.randrange(1, 20) * MS

    # ---- workers -----------------------------------------------------------------------------------------------------
    def _loop(self, worker: Worker) -> None:
        if not worker.alive:
            return
        self.events.after(self.rng.randrange(50, 300) * MS, partial(self._loop, worker))
        if not self._runs(worker):
            return
        if worker.work:
            self._settle(worker)
        else:
            self._take(worker)

    def _take(self, worker: Worker) -> None:
        take = self._asked(worker)
        self._send(worker, pb.GroupCommand(group=GROUP, take=take), partial(self._got, worker, self.events.now_ns))

    def _asked(self, worker: Worker) -> pb.TakeRecords:
        end = min(RECORDS, self.events.now_ns // (60 * MS))
        take = pb.TakeRecords(
            member=worker.name, stream=STREAM, uid=UID, maxRecords=self.rng.randrange(1, 30), logEnd=end, ackWaitMs=WAIT_MS,
            maxDeliveries=MAX_DELIVERIES, maxAckPending=MAX_OUT, maxMemberPending=MAX_MEMBER,
        )  # fmt: skip
        if self.ordered:
            take.ordered, take.keysFrom = True, worker.new_from
            take.keys.extend(KEYS[worker.new_from : min(end, worker.new_from + self.rng.choice((5, 50)))])
        if self.changes_ns:
            self._add_view(worker, take)
        return take

    def _leader_epoch(self, at_ns: int) -> int:
        return 1 + bisect_right(self.changes_ns, at_ns)

    def _record_epoch(self, offset: int) -> int:
        return self._leader_epoch((offset + 1) * 60 * MS)

    def _add_view(self, worker: Worker, take: pb.TakeRecords) -> None:
        """Let the take be by the worker's view of the log. In some takes this is an earlier view."""
        if self.calm or self.view_rng.random() < 0.4:
            worker.view_ns = self.events.now_ns
        take.logEnd = min(RECORDS, worker.view_ns // (60 * MS))
        if worker.is_earlier_version:
            self.seen["takes of the earlier version"] += 1
            return
        take.logEpoch = self._leader_epoch(worker.view_ns)
        self.seen["takes by an earlier leader's view"] += take.logEpoch < self._leader_epoch(self.events.now_ns)
        if worker.compared[0] == take.logEpoch:
            _, take.comparedEpoch, take.comparedBelow = worker.compared

    def _compare(self, worker: Worker, answer: pb.GroupAnswer) -> None:
        self.seen["comparisons"] += 1
        worker.view_ns = self.events.now_ns
        worker.compared = (self._leader_epoch(worker.view_ns), answer.takenEpoch, answer.takenBelow)
        epoch = self._record_epoch(answer.takenBelow - 1)
        check(epoch <= answer.takenEpoch, "Q8", "no record is lost, and the comparison finds a loss:", epoch, answer.takenEpoch)

    def _got(self, worker: Worker, sent_ns: int, answer: pb.GroupAnswer) -> None:
        if answer.code == pb.GROUP_COMPARE_LOG:
            self._compare(worker, answer)
            return
        worker.new_from = answer.takenBelow
        for part in answer.granted:
            self.seen["ranges granted"] += 1
            self.seen["dead letters granted"] += part.dead
            worker.work.append((part.start, part.end, part.lease, sent_ns + WAIT_MS * MS))

    def _settle(self, worker: Worker) -> None:
        """Some of what it has, in some way; what is past its wait it lets go, but for one that settles late."""
        start, end, lease, until = worker.work.pop(self.rng.randrange(len(worker.work)))
        if self.events.now_ns >= until and self.rng.random() < 0.7:
            self.seen["ranges let go"] += 1
            return
        cut = self.rng.randrange(start + 1, end + 1)
        if cut < end:
            worker.work.append((cut, end, lease, until))
        kinds = (pb.SETTLE_ACK, pb.SETTLE_NACK, pb.SETTLE_EXTEND, pb.SETTLE_REJECT, pb.SETTLE_RELEASE)
        kind = pb.SETTLE_ACK if self.calm else self.rng.choices(kinds, (70, 10, 8, 4, 4))[0]
        if kind == pb.SETTLE_EXTEND:
            worker.work.append((start, cut, lease, self.events.now_ns + WAIT_MS * MS))
        part = pb.Settlement(
            kind=kind, stream=STREAM, uid=UID, ranges=[pb.RecordRange(start=start, end=cut, lease=lease)],
            delayMs=self.rng.choice((0, 500)) if kind == pb.SETTLE_NACK else 0, reason="no" if kind == pb.SETTLE_REJECT else "",
        )  # fmt: skip

        command = pb.GroupCommand(group=GROUP, settle=pb.SettleRecords(member=worker.name, settlements=[part]))
        both, sent_ns = kind == pb.SETTLE_ACK and self.rng.random() < 0.3, self.events.now_ns
        if both:  # more is to come with the answer
            command.take.CopyFrom(self._asked(worker))

        def done(answer: pb.GroupAnswer) -> None:
            if both:
                self.seen["takes with acknowledgements"] += 1
                self._got(worker, sent_ns, answer)
            if kind == pb.SETTLE_ACK:
                lost = {offset for gone in answer.lost for offset in range(gone.start, gone.end)}
                self.confirmed |= set(range(start, cut)) - lost

        self._send(worker, command, done)

    # ---- checks ------------------------------------------------------------------------------------------------------
    def _before(self, data: bytes) -> None:
        self._states()
        self._before_frontier = self.frontier

    def _states(self) -> dict[int, tuple[PieceKind, str]]:
        group = self.coordinator.machine.groups.get(GROUP)
        queue = group.queues[STREAM, 0] if group is not None else None
        self.prefix, self.frontier = (queue.prefix, queue.frontier) if queue is not None else (0, 0)
        pieces = queue.pieces if queue is not None else ()
        at = self.prefix
        for piece in pieces:
            check(piece.start == at and piece.end > at, "Q6", "pieces have a gap at", at, "before", piece)
            at = piece.end
        if queue is not None and queue.taken_epoch and self.frontier:
            newest = self._record_epoch(self.frontier - 1)
            check(
                queue.taken_epoch >= newest, "Q8", "a delivered record has the LeaderEpoch", newest, "above", queue.taken_epoch
            )
            self.seen["known LeaderEpochs"] += 1
        return {offset: (piece.kind, piece.member) for piece in pieces for offset in range(piece.start, piece.end)}

    def _after(self, data: bytes, answer: bytes) -> None:
        command, told = pb.GroupCommand.FromString(data), pb.GroupAnswer.FromString(answer)
        for offset in [offset for offset, (_, _, deadline) in self.leases.items() if deadline <= self.clock_ns]:
            self._given_back(offset, self.leases[offset][2])
            self.seen["leases that ran out"] += 1
        if command.HasField("settle"):
            self._check_settle(command.settle, told)
        if command.HasField("take"):
            self._check_take(command.take, told)
        states = self._states()
        out = {offset for offset, (kind, _) in states.items() if kind is PieceKind.OUT}
        check(
            out == set(self.leases),
            "Q3",
            "out are",
            len(out),
            "records, and by the answers",
            sorted(out ^ set(self.leases))[:5],
        )
        open_again = [offset for offset in self.confirmed if offset >= self.prefix and states[offset][0] is not PieceKind.DONE]
        check(not open_again, "Q4", open_again[:5], "was acknowledged, and is not done")
        undone = set(range(self.prefix)) - self.done
        check(not undone, "Q6", "below the prefix, and nobody acknowledged:", sorted(undone)[:5])

    def _waits(self, offset: int) -> bool:
        """Whether order per key keeps it back: an earlier record of its key is not done."""
        return self.ordered and not self.done.issuperset(EARLIER[offset])

    def _check_take(self, take: pb.TakeRecords, told: pb.GroupAnswer) -> None:
        if told.code == pb.GROUP_COMPARE_LOG:
            check(not told.granted, "Q8", "a take that requires a comparison got records:", told.granted)
            return
        first_new = self._before_frontier
        for part in told.granted:
            for offset in range(part.start, part.end):
                check(not self._waits(offset), "Q7", offset, "is given while an earlier record of its key is not done")
                check(offset not in self.done, "Q1", offset, "was acknowledged, and is given again")
                check(
                    offset not in self.leases, "Q3", offset, "is out to", self.leases.get(offset), "and given to", take.member
                )
                check(offset < max(take.logEnd, self.frontier), "Q6", offset, "is not in the log yet")
                due = self.waiting_since.pop(offset, 0)
                check(due <= self.clock_ns, "Q2", offset, "was to wait until", due)
                if not part.dead:
                    self.deliveries[offset] += 1
                    check(offset not in self.dead, "Q6", offset, "was given up, and is given as if it was not")
                    check(self.deliveries[offset] <= MAX_DELIVERIES, "Q6", offset, "is given", self.deliveries[offset], "times")
                    check(part.deliveries == self.deliveries[offset], "Q6", offset, "counts", part.deliveries, "deliveries")
                else:
                    check(offset in self.dead and bool(part.reason), "Q6", offset, "is no dead letter")
                self.leases[offset] = (part.lease, take.member, self.clock_ns + WAIT_MS * MS)
        mine = sum(member == take.member for _, member, _ in self.leases.values())
        check(len(self.leases) <= MAX_OUT and mine <= MAX_MEMBER, "Q5", "out are", len(self.leases), "of which one has", mine)
        room = len(self.leases) < MAX_OUT and mine < MAX_MEMBER and sum(p.end - p.start for p in told.granted) < take.maxRecords
        if room:
            late = [offset for offset, due in self.waiting_since.items() if due <= self.clock_ns]
            check(not late, "Q2", "there was room, and these were not given:", late[:5])
            if not self.ordered:
                check(self._top() >= take.logEnd, "Q5", "there was room, and new records were not given")
                return
            end = min(take.logEnd, take.keysFrom + len(take.keys)) if take.keysFrom <= first_new else 0
            end = max(end, first_new)
            gone = self.done | set(self.leases) | set(self.waiting_since)
            idle = [offset for offset in range(end) if offset not in gone and not self._waits(offset)]
            self.seen["records held"] += end - len(gone)
            check(not idle, "Q7", "there was room, and these wait for nothing and were not given:", idle[:5])

    def _top(self) -> int:
        return max([*self.leases, *self.waiting_since, *self.done, -1]) + 1

    def _check_settle(self, settle: pb.SettleRecords, told: pb.GroupAnswer) -> None:
        lost = {offset for part in told.lost for offset in range(part.start, part.end)}
        for part in settle.settlements:
            for piece in part.ranges:
                for offset in range(piece.start, piece.end):
                    lease = self.leases.get(offset)
                    mine = lease is not None and lease[:2] == (piece.lease, settle.member)
                    fine = mine or (part.kind == pb.SETTLE_ACK and offset in self.done)
                    check(
                        (offset not in lost) == fine,
                        "Q3",
                        offset,
                        "is settled by",
                        settle.member,
                        piece.lease,
                        "is out:",
                        lease,
                    )
                    if mine:
                        self._settled(part, offset)
        self.seen["ranges settled late"] += bool(lost)

    def _settled(self, part: pb.Settlement, offset: int) -> None:
        lease, member, _ = self.leases[offset]
        self.seen[f"records: {pb.SettleKind.Name(part.kind)}"] += 1
        if part.kind == pb.SETTLE_ACK:
            del self.leases[offset]
            self.done.add(offset)
        elif part.kind == pb.SETTLE_EXTEND:
            self.leases[offset] = (lease, member, self.clock_ns + WAIT_MS * MS)
        elif part.kind == pb.SETTLE_RELEASE:
            self.deliveries[offset] -= offset not in self.dead
            del self.leases[offset]
            self.waiting_since[offset] = self.clock_ns
        else:
            if part.kind == pb.SETTLE_REJECT:
                self.dead.add(offset)
            self._given_back(offset, self.clock_ns + part.delayMs * MS)

    def _given_back(self, offset: int, due_ns: int) -> None:
        del self.leases[offset]
        self.waiting_since[offset] = due_ns
        if self.deliveries[offset] >= MAX_DELIVERIES:
            self.dead.add(offset)

    # ---- the history -------------------------------------------------------------------------------------------------
    done: set[int]

    def _strike(self) -> None:
        if self.calm:
            return
        self.events.after(self.rng.randrange(300, 3000) * MS, self._strike)
        kind = self.rng.choices(("fail over", "kill", "pause", "clock"), (30, 30, 35, 5))[0]
        self.seen[f"fault: {kind}"] += 1
        one = self.rng.choice(self.workers)
        if kind == "fail over":
            self.coordinator.fail_over(self.rng.choice((200, 1000, 8000)) * MS)
        elif kind == "clock":
            self.coordinator.set_clock(self.rng.choice((-HOUR, HOUR)))
        elif kind == "pause":
            one.paused_until_ns = self.events.now_ns + self.rng.choice((500, 4000, 9000)) * MS
        elif one.alive:
            one.alive = False
            self.workers.remove(one)
            self.born += 1
            self.workers.append(Worker(f"w{self.born}"))
            self._loop(self.workers[-1])

    def run(self) -> Counter[str]:
        """Raises InvariantError."""
        self.done = set()
        self._strike()
        self.events.run_until(45 * S)
        self.calm = True
        self.events.run_until((200 if self.ordered else 100) * S)
        check(self.prefix == RECORDS, "Q6", "in the end all are done below", self.prefix, "of", RECORDS)
        check(set(range(RECORDS)) == self.done, "Q6", "some were skipped:", sorted(set(range(RECORDS)) - self.done)[:5])
        return self.seen


def run(seed: int) -> Counter[str]:
    """One history; what happened how often. Raises InvariantError."""
    return QueueWorld(seed).run()


def run_with_leader_changes(seed: int) -> Counter[str]:
    """One history of a queue whose partition changes its leader cleanly."""
    return QueueWorld(seed, leader_changes=True).run()


def run_ordered(seed: int) -> Counter[str]:
    """One history of a queue with order per key."""
    return QueueWorld(seed, ordered=True).run()
