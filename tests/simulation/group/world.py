"""A coordinator, members, streams, and chance: groups under faults, with every promise checked as it happens.

``run(seed)`` is one history: twice some time of faults, then calm, after which everything has to be settled.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial

from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.invariants import check
from liftpy.core.groups.member import MemberStage, PartitionAssigned
from liftpy.core.wire._pb import group_pb2 as pb
from tests.simulation.group.coordinator import HOUR, MS, Events, S, SimCoordinator
from tests.simulation.group.members import GROUP, SimProcess

CHAOS_NS = 60 * S
CALM_NS = 25 * S
"""In which a rebalance has to end: a session, the fence, and some heartbeats [G6]."""
SESSION_NS = 6 * S


class GroupWorld:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.events = Events()
        self.coordinator = SimCoordinator(self.events, random.Random(seed + 1), self.seen)
        self.coordinator.before, self.coordinator.after = self._before, self._after
        self.streams = {"s": ("000001-1", self.rng.randrange(1, 7)), "t": ("000002-1", self.rng.randrange(1, 4))}
        self.made = 2
        self.processes: list[SimProcess] = []
        self.calm = True
        self.born = 0
        self.delivered: dict[PartitionKey, int] = {}
        """Up to where, without a gap, members have had a partition's records."""
        self.grants: dict[PartitionKey, tuple[int, str]] = {}
        """The newest (generation, member) of each partition, as the coordinator's state had it."""
        self.owner_of: dict[tuple[PartitionKey, int], str] = {}
        self.granted_at: dict[tuple[PartitionKey, int], int] = {}
        """Committed position when it was granted, -1: none."""
        self.heard: dict[str, tuple[int, int]] = {}
        """Member -> (when its last command was applied, how long nobody had led by then)."""
        self.fenced: set[str] = set()
        """Members whose static identity another process has now: whoever starts that says that they are gone."""
        self.numbers: Counter[str] = Counter()
        self._positions: dict[PartitionKey, int] = {}

    # ---- what processes need -----------------------------------------------------------------------------------------
    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def between(self, low: int, high: int) -> int:
        return self.rng.randrange(low, high + 1)

    def known_streams(self) -> list[pb.KnownStream]:
        return [pb.KnownStream(name=name, uid=uid, partitions=count) for name, (uid, count) in sorted(self.streams.items())]

    def log_end(self, key: PartitionKey) -> int:
        return self.events.now_ns // (50 * MS)

    def send(self, process: SimProcess, data: bytes, answered: Callable[[bytes], None]) -> None:
        """Over a network that loses, doubles and delays, as long as it is not calm."""
        late = 0.15 if pb.GroupCommand.FromString(data).HasField("commit") else 0.05
        for _ in range(self._copies()):
            self.events.after(self._delay(late), partial(self._arrives, process, data, answered))

    def _arrives(self, process: SimProcess, data: bytes, answered: Callable[[bytes], None]) -> None:
        if process.isolated:
            return

        def back(answer: bytes) -> None:
            for _ in range(self._copies()):
                self.events.after(self._delay(), lambda: None if process.isolated else process.do(lambda: answered(answer)))

        self.coordinator.append(data, back)

    def _copies(self) -> int:
        return 1 if self.calm else self.rng.choices((0, 1, 2), (5, 90, 5))[0]

    def _delay(self, share: float = 0.05) -> int:
        late = not self.calm and self.chance(share)
        if late:
            self.seen["messages that were late"] += 1
        return self.between(100, self.rng.choice((1000, 5000, 15_000))) * MS if late else self.between(1, 20) * MS

    # ---- checks ------------------------------------------------------------------------------------------------------
    def on_gained(self, process: SimProcess, gained: PartitionAssigned) -> int:
        key = gained.key
        committed = self.granted_at.get((key, gained.generation))
        check(committed is not None, "G1", process.name, "was told of a grant that is none", key, gained.generation)
        group = self.coordinator.machine.groups.get(GROUP)
        known = group.readers.streams.get(key.stream) if group is not None else None
        newest = known is not None and known.uid == key.uid and self.grants[key] == (gained.generation, process.machine.member)
        if newest:
            expected = self._positions.get(key, -1)
            check(max(gained.position, -1) == expected, "G5", key, "is begun at", gained.position, "and committed is", expected)
        self.seen["partitions gained"] += 1
        return max(0, gained.position)

    def on_delivered(self, process: SimProcess, key: PartitionKey, start: int, end: int) -> None:
        generation = process.machine.owned[key]
        member = self.owner_of.setdefault((key, generation), process.machine.member)
        check(member == process.machine.member, "G1", key, generation, "is read by", member, "and by", process.machine.member)
        for other in self.processes:
            if other is not process and other.alive and other.machine.may_deliver(key, other.now_ns):
                check(
                    bool({process.machine.member, other.machine.member} & self.fenced),
                    "G1",
                    key,
                    "is read by",
                    process.name,
                    generation,
                    "and by",
                    other.name,
                    other.machine.owned[key],
                )
                check(other.machine.owned[key] != generation, "G1", key, "is read by two of one generation", generation)
        high = self.delivered.get(key, 0)
        check(start <= high, "G5", key, "goes on at", start, "and nobody had", high, "to there")
        self.delivered[key] = max(high, end)
        self.seen["records delivered"] += end - start
        self.seen["records delivered again"] += max(0, min(end, high) - start)

    def _before(self, data: bytes) -> None:
        self._note_positions()

    def _note_positions(self) -> None:
        readers = self.coordinator.machine.groups[GROUP].readers if GROUP in self.coordinator.machine.groups else None
        self._positions = (
            {PartitionKey(s, readers.streams[s].uid, p): at for (s, p), (at, _) in readers.positions.items()} if readers else {}
        )
        self._members = set(readers.members) if readers else set()

    def _after(self, data: bytes, answer: bytes) -> None:
        """One command was applied: what it may not have done."""
        before, members, grants = self._positions, self._members, dict(self.grants)
        self._note_positions()
        command = pb.GroupCommand.FromString(data)
        told = pb.GroupAnswer.FromString(answer)
        self.seen[f"answers {pb.GroupCode.Name(told.code)}"] += 1
        for key, position in self._positions.items():
            if position != before.get(key):
                self._check_commit(command, key, position, before.get(key, -1), grants.get(key))
        gone = {key for key in before if key not in self._positions}
        check(all(self.streams[key.stream][0] != key.uid for key in gone), "G4", "positions are forgotten:", gone)
        self._note_grants()
        speaker = command.beat.member or command.join.member
        for name in members - self._members - {command.leave.member}:
            self._check_ended(name, command)
        if speaker in self._members and command.number > self.numbers[speaker]:
            self.numbers[speaker] = command.number
            self.heard[speaker] = (self.events.now_ns, self.coordinator.down_for_ns())

    def _check_commit(
        self, command: pb.GroupCommand, key: PartitionKey, position: int, before: int, grant: tuple[int, str] | None
    ) -> None:
        said = [at for at in command.commit.positions if PartitionKey(at.stream, at.uid, at.partition) == key]
        check(len(said) == 1 and said[0].position == position, "G3", key, "has moved, and nobody said so")
        by = (said[0].generation, command.commit.member)
        check(grant == by, "G2", key, "was committed by", by, "and is granted to", grant)
        check(position >= before, "G3", key, "falls from", before, "to", position)
        check(position <= self.delivered.get(key, 0), "G5", key, "is committed to", position, "and nobody has had that")
        self.seen["commits"] += 1

    def _note_grants(self) -> None:
        group = self.coordinator.machine.groups.get(GROUP)
        if group is None:
            return
        for place, name in group.readers.owners.items():
            key = PartitionKey(place[0], group.readers.streams[place[0]].uid, place[1])
            grant = (group.readers.members[name].held[place], name)
            former = self.grants.get(key)
            if former != grant:
                check(former is None or grant[0] > former[0], "G1", key, "is granted by", grant, "after", former)
                self.grants[key] = grant
                self.granted_at[key, grant[0]] = self._positions.get(key, -1)
                self.seen["grants"] += 1

    def _check_ended(self, name: str, command: pb.GroupCommand) -> None:
        """A member's session was ended: only after so long without a word from it while somebody led."""
        process = next(process for process in self.processes if process.name == name.rsplit("-", 1)[0])
        if command.HasField("join") and process.instance and command.join.instance == process.instance:
            self.seen["static members that came back"] += 1
            self.fenced.add(name)
            return
        at, down = self.heard[name]
        silent = self.events.now_ns - at - (self.coordinator.down_for_ns() - down)
        slack = 2 * S  # the clock was set forward
        check(silent >= SESSION_NS - slack, "G4", name, "was put out after", silent // MS, "ms of silence")
        self.seen["sessions that ended"] += 1

    # ---- faults ------------------------------------------------------------------------------------------------------
    def spawn(self, instance: str = "") -> None:
        self.born += 1
        offset = self.rng.randrange(-10 * HOUR, 10 * HOUR)
        self.processes.append(SimProcess(self, f"p{self.born}", instance, offset))

    def _alive(self) -> list[SimProcess]:
        return [process for process in self.processes if process.alive]

    def _strike(self) -> None:
        if self.calm:
            return
        self.events.after(self.between(200, 4000) * MS, self._strike)
        kinds = ("fail over", "pause", "kill", "leave", "isolate", "join", "more", "again", "clock", "twin")
        kind = self.rng.choices(kinds, (18, 18, 10, 8, 12, 16, 6, 5, 3, 3))[0]
        alive = self._alive()
        one = self.rng.choice(alive) if alive else None
        self.seen[f"fault: {kind}"] += 1
        if kind == "fail over":
            self.coordinator.fail_over(self.rng.choice((200, 1000, 3000, self.between(5, 20) * 1000)) * MS)
        elif kind == "clock":
            self.coordinator.set_clock(self.rng.choice((-HOUR, HOUR)))
        elif kind == "more":
            name = self.rng.choice(sorted(self.streams))
            uid, count = self.streams[name]
            self.streams[name] = (uid, min(count + self.between(1, 3), 12))
            self._tell_streams()
        elif kind == "again":
            self.made += 1
            self.streams["t"] = (f"{self.made:06x}-1", self.between(1, 4))
            self._tell_streams()
        elif kind == "join" or one is None:
            if len(alive) < 6:
                self.spawn(f"i{self.between(1, 4)}" if self.chance(0.3) and not self._static() else "")
        elif kind == "pause":
            one.pause(self.rng.choice((300, 2000, 8000, 20_000)) * MS)
        elif kind == "kill":
            one.kill()
            if one.instance or self.chance(0.3):
                self.events.after(self.between(100, 5000) * MS, partial(self.spawn, one.instance))
        elif kind == "leave":
            one.do(one.leave)
        elif kind == "twin":
            if one.instance:
                self.spawn(one.instance)
        elif kind == "isolate":
            one.isolated = True
            self.events.after(self.between(500, 15_000) * MS, partial(setattr, one, "isolated", False))

    def _static(self) -> bool:
        return any(process.instance for process in self.processes if process.alive)

    def _tell_streams(self) -> None:
        for process in self._alive():
            told = self.known_streams()
            self.events.after(self.between(10, 3000) * MS, lambda p=process, t=told: p.do(lambda: p.machine.reads(t)))

    # ---- the history -------------------------------------------------------------------------------------------------
    def run(self) -> Counter[str]:
        """Raises InvariantError."""
        for _ in range(self.rng.randrange(1, 4)):
            self.spawn()
        for _ in range(2):
            self.calm = False
            self._strike()
            self.events.run_until(self.events.now_ns + self.rng.randrange(CHAOS_NS // 3, CHAOS_NS))
            self.calm = True
            while (
                not self.coordinator.up
                or self.coordinator.stalled
                or any(process.paused or process.isolated for process in self._alive())
            ):
                self.events.run_until(self.events.now_ns + S)
            self.events.run_until(self.events.now_ns + 16 * S)  # what is late has come
            if not any(process.machine.stage is not MemberStage.FENCED for process in self._alive()):
                self.spawn()
            self._tell_streams()
            self.events.run_until(self.events.now_ns + CALM_NS)
            self._check_settled()
        return self.seen

    def _check_settled(self) -> None:
        """Everybody who lives has a fair share, all partitions are read, and everything that there is was had [G6]."""
        check(GROUP in self.coordinator.machine.groups, "G4", "the group is gone, and somebody lives")
        readers = self.coordinator.machine.groups[GROUP].readers
        living = [process for process in self._alive() if process.machine.stage is not MemberStage.FENCED]
        check(all(process.is_in for process in living), "G4", "some are no members:", [p.name for p in living if not p.is_in])
        check(readers.settled, "G6", "nothing happens for", CALM_NS // S, "s, and the group is not settled")
        for name, (uid, count) in self.streams.items():
            keys = {PartitionKey(name, uid, number) for number in range(count)}
            shares = [sum(key in process.machine.owned for key in keys) for process in living]
            check(sum(shares) == count, "G6", name, "has", count, "partitions, of which are read", shares)
            check(max(shares) - min(shares) <= 1, "G6", name, "is spread as", shares)
            for key in keys:
                behind = self.log_end(key) - self.delivered.get(key, 0)
                check(behind <= 200, "G6", key, "is not read:", behind)
                check(any(process.machine.may_deliver(key, process.now_ns) for process in living), "G6", key, "has no reader")
        check(set(readers.members) <= {process.machine.member for process in living}, "G6", "ghosts:", sorted(readers.members))


def run(seed: int) -> Counter[str]:
    """One history; what happened how often. Raises InvariantError."""
    return GroupWorld(seed).run()
