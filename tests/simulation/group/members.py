"""Processes that read as members of a group: a member machine, a clock of their own, and what is done to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from liftpy.core.base.ids import PartitionKey
from liftpy.core.groups.commands import decode_answer, encode_command
from liftpy.core.groups.member import MemberMachine, MemberStage, PartitionAssigned, PartitionLost, PartitionRevoked
from liftpy.core.wire._pb import group_pb2 as pb
from tests.simulation.group.coordinator import MS, Events, S

GROUP = "g"


class Surroundings(Protocol):
    """What a process needs of the world."""

    events: Events

    def send(self, process: SimProcess, data: bytes, answered: Callable[[bytes], None]) -> None: ...
    def known_streams(self) -> list[pb.KnownStream]: ...
    def log_end(self, key: PartitionKey) -> int: ...
    def on_gained(self, process: SimProcess, gained: PartitionAssigned) -> int: ...
    def on_delivered(self, process: SimProcess, key: PartitionKey, start: int, end: int) -> None: ...
    def chance(self, share: float) -> bool: ...
    def between(self, low: int, high: int) -> int: ...


@dataclass
class Reading:
    """One partition that is read: where the next record is, what was committed of it."""

    position: int
    generation: int
    asked: bool = False
    begun: bool = False


@dataclass
class SimProcess:
    """One life of one process. ``offset_ns``: its clock against real time."""

    world: Surroundings
    name: str
    instance: str
    offset_ns: int
    machine: MemberMachine = field(init=False)
    reading: dict[PartitionKey, Reading] = field(default_factory=dict)
    alive: bool = True
    isolated: bool = False
    leaving: bool = False
    paused_until_ns: int = 0
    waiting: list[Callable[[], None]] = field(default_factory=list)
    lives: int = 0
    last_heard_ns: int = 0

    def __post_init__(self) -> None:
        streams = self.world.known_streams()
        self.machine = MemberMachine(GROUP, streams, self._new_id, instance=self.instance, session_ms=6000)
        self._wake()
        self._consume()

    def _new_id(self) -> str:
        self.lives += 1
        return f"{self.name}-{self.lives}"

    @property
    def now_ns(self) -> int:
        return self.world.events.now_ns + self.offset_ns

    @property
    def paused(self) -> bool:
        return self.world.events.now_ns < self.paused_until_ns

    def do(self, action: Callable[[], None]) -> None:
        """Now, or when it runs again; a dead one never does."""
        if self.paused:
            self.waiting.append(action)
        elif self.alive:
            action()

    def pause(self, for_ns: int) -> None:
        self.paused_until_ns = max(self.paused_until_ns, self.world.events.now_ns + for_ns)
        self.world.events.after(for_ns + 1, self._go_on)

    def _go_on(self) -> None:
        if self.paused:
            return
        waiting, self.waiting = self.waiting, []
        for action in waiting:
            self.do(action)

    # ---- the loop ----------------------------------------------------------------------------------------------------
    def _wake(self) -> None:
        def step() -> None:
            command = self.machine.command(self.now_ns)
            if command is not None:
                self.world.send(self, encode_command(command), self._answered)
            self._wake()

        if self.alive:
            wait = min(max(self.machine.wake_ns - self.now_ns, 5 * MS), S // 4)
            self.world.events.after(wait, lambda: self.do(step))

    def _answered(self, data: bytes) -> None:
        for event in self.machine.on_answer(decode_answer(data), self.now_ns):
            match event:
                case PartitionAssigned():
                    self.reading[event.key] = Reading(self.world.on_gained(self, event), event.generation)
                case PartitionLost():
                    self.reading.pop(event.key, None)
                case PartitionRevoked():
                    self.reading[event.key].asked = True
                    self.world.events.after(
                        self.world.between(0, 400) * MS, lambda key=event.key: self.do(lambda: self._release_partitions(key))
                    )

    def _release_partitions(self, key: PartitionKey) -> None:
        """Commit, and say so when that is answered, or when it takes too long."""
        reading = self.reading.get(key)
        if reading is None or not reading.asked:
            return
        generation = reading.generation

        def gone(*_: object) -> None:
            held = self.reading.get(key)
            if held is not None and held.generation == generation:
                del self.reading[key]
                self.machine.given_up(key)

        self.commit([key], gone)
        self.world.events.after(2 * S, lambda: self.do(gone))

    def commit(self, keys: list[PartitionKey], answered: Callable[[bytes], None]) -> None:
        positions = {key: (self.reading[key].position, 1) for key in keys if self.reading[key].position >= 0}
        command = self.machine.commit(positions)
        if command is not None:
            self.world.send(self, encode_command(command), answered)

    def _consume(self) -> None:
        def step() -> None:
            for key, reading in sorted(self.reading.items()):
                if not reading.asked and self.machine.may_deliver(key, self.now_ns):
                    end = min(reading.position + self.world.between(1, 60), self.world.log_end(key))
                    if end > reading.position:
                        self.world.on_delivered(self, key, reading.position, end)
                        reading.position, reading.begun = end, True
            if self.reading and self.world.chance(0.1):
                self.commit(sorted(self.reading), lambda data: None)
            self._consume()

        if self.alive:
            self.world.events.after(self.world.between(60, 140) * MS, lambda: self.do(step))

    def leave(self) -> None:
        """Stop in good order: what is said last may be lost as anything."""
        if self.reading:
            self.commit(sorted(self.reading), lambda data: None)
        self.reading.clear()
        command = self.machine.leave()
        if command is not None:
            self.world.send(self, encode_command(command), lambda data: None)
        self.leaving, self.alive = True, False

    def kill(self) -> None:
        self.alive = False
        self.reading.clear()

    @property
    def is_in(self) -> bool:
        return self.alive and self.machine.stage is MemberStage.MEMBER
