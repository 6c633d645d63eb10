"""The coordinator over a replicated log in the abstract: leaders that die, clocks that differ, what was not committed kept or lost."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from liftpy.core.base.invariants import check
from liftpy.core.groups.machine import GroupMachine

MS = 1_000_000
S = 1000 * MS
HOUR = 3600 * S


@dataclass
class Entry:
    """One record. ``answer_to``: called with the answer once it is committed and applied beside a leader."""

    data: bytes
    stamp_ns: int
    epoch: int
    answer_to: Callable[[bytes], None] | None


@dataclass
class Events:
    """What happens when, in real time."""

    now_ns: int = 0
    queue: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    count: int = 0

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.queue, (self.now_ns + delay_ns, self.count, action))

    def run_until(self, end_ns: int) -> None:
        while self.queue and self.queue[0][0] <= end_ns:
            self.now_ns, _, action = heapq.heappop(self.queue)
            action()
        self.now_ns = end_ns


class SimCoordinator:
    """``before``, ``after``: called around every command that is applied for the first time."""

    def __init__(self, events: Events, rng: random.Random, seen: Counter[str], *, stores_epochs: bool = False) -> None:
        self.events, self.rng, self.seen = events, rng, seen
        self._stores_epochs = stores_epochs
        self.log: list[Entry] = []
        self.tail: list[Entry] = []
        """Appended, not committed."""
        self.epoch, self.skew_ns = 1, 0
        self.up = True
        self.stalled = False
        """The leader appends, and nothing is committed any more."""
        self.down_ns = 0
        """Time without a leader so far."""
        self._down_at_ns = 0
        self.machine = self._new_machine()
        self.snapshots: list[tuple[int, bytes]] = [(0, b"")]
        self.before: Callable[[bytes], None] = lambda data: None
        self.after: Callable[[bytes, bytes], None] = lambda data, answer: None
        self._last_append_ns = 0
        self._tick()

    def _new_machine(self) -> GroupMachine:
        machine = GroupMachine()
        machine.stores_epochs = self._stores_epochs
        return machine

    def down_for_ns(self) -> int:
        """Of the time so far, how long nobody led."""
        return self.down_ns + (0 if self.up else self.events.now_ns - self._down_at_ns)

    def append(self, data: bytes, answer_to: Callable[[bytes], None] | None = None) -> None:
        if not self.up:
            self.seen["commands while nobody led"] += 1
            return
        stamp = self.events.now_ns + self.skew_ns
        self.tail.append(Entry(data, stamp, self.epoch, answer_to))
        self._last_append_ns = self.events.now_ns
        epoch = self.epoch
        self.events.after(self.rng.randrange(1, 30) * MS, lambda: self._commit(epoch))

    def _commit(self, epoch: int) -> None:
        if self.up and not self.stalled and epoch == self.epoch and self.tail:
            self._apply(self.tail.pop(0))

    def _apply(self, entry: Entry) -> None:
        self.log.append(entry)
        answer = self._feed(self.machine, entry, first=True)
        if entry.answer_to is not None:
            entry.answer_to(answer)
        if self.rng.random() < 0.02:
            self.snapshots.append((len(self.log), self.machine.snapshot()))

    def _feed(self, machine: GroupMachine, entry: Entry, *, first: bool) -> bytes:
        if not entry.data:
            machine.pass_time(entry.stamp_ns, entry.epoch)
            return b""
        if first:
            self.before(entry.data)
        answer = machine.apply(entry.data, entry.stamp_ns, entry.epoch)
        if first:
            self.after(entry.data, answer)
        return answer

    def _tick(self) -> None:
        """What the service offers when nobody says anything."""
        if self.up and self.machine.waits and self.events.now_ns - self._last_append_ns >= S:
            self.append(b"")
        self.events.after(S // 4, self._tick)

    def fail_over(self, outage_ns: int) -> None:
        """The leader dies; after ``outage_ns`` another leads, whose clock is another, with a part of what was not committed."""
        if not self.up or self.stalled:
            return
        self.seen["fail-overs"] += 1
        self.stalled = True
        self.events.after(self.rng.choice((0, 50, 1500)) * MS, lambda: self._die(outage_ns))

    def _die(self, outage_ns: int) -> None:
        self.up = False
        self._down_at_ns = self.events.now_ns
        kept = self.rng.randrange(len(self.tail) + 1)
        self.seen["commands lost with a leader"] += len(self.tail) - kept
        del self.tail[kept:]
        self.events.after(outage_ns, self._lead)

    def _lead(self) -> None:
        self.down_ns += self.events.now_ns - self._down_at_ns
        self.up, self.stalled = True, False
        self.epoch += 1
        self.skew_ns = self.rng.choice((0, 0, HOUR, -HOUR, self.rng.randrange(-5 * S, 5 * S)))
        position, snapshot = self.rng.choice(self.snapshots[-4:])
        machine = self._new_machine()
        if snapshot:
            machine.restore(snapshot)
        for entry in self.log[position:]:
            self._feed(machine, entry, first=False)
        same = machine.snapshot() == self.machine.snapshot()
        check(same, "G4", "a replay from", position, "gives another state than the records did when they were applied first")
        self.machine = machine
        for entry in self.tail:  # what the new leader holds of it is committed by its first record
            lost_answer = self.rng.random() < 0.5
            entry.answer_to = None if lost_answer else entry.answer_to
            self._apply(entry)
        self.tail.clear()
        self.append(b"")

    def set_clock(self, by_ns: int) -> None:
        """Somebody sets the leader's clock."""
        self.skew_ns += by_ns
