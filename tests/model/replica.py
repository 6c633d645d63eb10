"""The replica model: three replicas, the shipped ``Replica`` on each, and the metadata group's shipped decisions between them.

Everything may come at any time: flushes, timers, messages, images, power cuts, the end of a session whose node is alive. A
message that is lost is one that is never delivered; of more than ``in_flight`` messages any are lost. What is counted
(``Budget``) is what makes histories long: publishes, LeaderEpochs, power cuts, changes of the ISR.

A state is seven numbers: one for each node's cell (``cells.py``), for (how many images each node is behind, what is left of the
budget), for the images that somebody has not learned, for what is committed, and for the messages in flight.

**What is left out, and why nothing is lost by it.** States that differ in the names of nodes, or in request ids that are in the
same order, are one (``_canonical``): no rule looks at more. A message that can do nothing any more is dropped at once
(``_is_dead``): its delivery would lead to the state without it. The back-off after a failed request and its end are one step: a
replica in a back-off takes no answer and asks for nothing, so that whatever comes in between may as well come after it. An idle
follower looks again only where there is something to be found out: else it would come back to the state that it was in. These
are the partial-order reduction here: a step that is left out commutes with all others up to the state that it leads to, and can
be seen by no invariant. ``keep_stale`` takes the second one back, for bugs in the rule that it rests on [D16].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from itertools import combinations
from typing import Any

from liftpy.core.base.partition import PartitionStatus
from tests.model.cells import ANSWERS, REQUESTS, STRUCTURE, Cell, Cells, Message, Record, Stepped
from tests.model.images import NODES, PERMUTATIONS, Images, first_image, rename_message
from tests.model.search import Broken
from tests.model.structure import Interned

World = tuple[int, int, int, int, int, int, int]
Action = tuple[Any, ...]
_MIN_ISR = 2


@dataclass(frozen=True, slots=True)
class Budget:
    """What may still happen, in all."""

    publishes: int = 2
    leader_epochs: int = 3
    """The first one included."""
    crashes: int = 1
    """Power cuts."""
    lags: int = 1
    """Followers found lagging."""
    expands: int = 1
    """Changes that add a member to the ISR."""
    fences: int = 1
    """Sessions that end while the node is alive."""
    moves: int = 0
    """Planned transfers."""
    lates: int = 0
    """Time-outs of requests that are, or whose answers are, still on their way."""
    unanswered: int = 1
    """ISR changes whose answer does not come."""


class Counted(dict[str, int]):
    """How often something happened on the edges of a search: what a model never does it can't find a bug in."""

    def count(self, what: str) -> None:
        self[what] = self.get(what, 0) + 1


class ReplicaModel:
    """``in_flight``: messages at a time."""

    def __init__(self, budget: Budget = Budget(), in_flight: int = 3, *, settled: int = 0, keep_stale: bool = False) -> None:
        self._budget = budget
        self._in_flight = in_flight
        self._settled = settled
        self._keep_stale = keep_stale
        self.cells = Cells()
        self.images = Images()
        self.counted = Counted()
        self._rest = Interned()
        self._histories = Interned()
        self._committed = Interned()
        self._messages = Interned()
        self._renamed: dict[tuple[str, int, int], int] = {}
        self._alike: dict[Any, Any] = {}
        self._agreeing: set[tuple[Any, Any]] = set()
        self._safe: set[tuple[int, ...]] = set()

    # ---- the first state ---------------------------------------------------------------------------------------------
    def first(self) -> World:
        """a leads, b and c follow and are idle; ``settled`` records have been published and are committed, on a at least. Each of them
        counts as one of the publishes."""
        bound, self._in_flight = self._in_flight, max(self._in_flight, 3)
        try:
            return self._settle(self._empty())
        finally:
            self._in_flight = bound

    def _settle(self, world: World) -> World:
        while True:
            by_kind: dict[str, World] = {}
            for action, reached in self.steps(world):
                if not isinstance(reached, Broken):
                    by_kind.setdefault(action[0], reached)
            published = self._budget.publishes - Budget(*self._rest[world[3]][1]).publishes
            calm = ("gets", "flush", "publish") if published < self._settled else ("gets", "flush")
            following = next((by_kind[kind] for kind in calm if kind in by_kind), None)
            if following is None:
                return world
            world = following

    def _empty(self) -> World:
        image = self.images.add(first_image())
        cells, sent = [], []
        for name in NODES:
            empty = self.cells.add(Cell(name, None, (), 0))
            stepped = self.cells.step(empty, ("restart", 1, 1, *self.images.state(image)))
            assert isinstance(stepped, Stepped)
            cells.append(stepped.cell)
            sent += stepped.sent
        left = astuple(self._budget)
        rest, history, none = ((0, 0, 0), left), self._histories.number((image,)), self._committed.number(())
        world = (*cells, self._rest.number(rest), history, none, self._messages.number(frozenset()))
        (first,) = self._reached(world, frozenset(), tuple(sent))
        return first

    # ---- steps -------------------------------------------------------------------------------------------------------
    def steps(self, state: World) -> Iterator[tuple[Action, World | Broken]]:
        """Everything that may happen next."""
        messages: frozenset[Message] = self._messages[state[6]]
        (behind, left), history = self._rest[state[3]], self._histories[state[4]]
        budget = Budget(*left)
        for i, name in enumerate(NODES):
            for event in self.cells.options(state[i]):
                yield from self._local(state, i, event, messages, budget, history)
            if behind[i]:
                learned = ("learn", *self.images.state(history[-behind[i]]))
                less = (*behind[:i], behind[i] - 1, *behind[i + 1 :])
                yield from self._step(state, i, learned, messages, less, left, ("learns", name, history[-behind[i]]))
        for message in sorted(messages, key=repr):
            rest = messages - {message}
            if message[2] == "M":
                yield from self._decided(state, message, message, rest, budget)
            else:
                i = NODES.index(message[2])
                yield from self._step(state, i, ("deliver", message), rest, behind, left, ("gets", message))
        yield from self._by_metadata(state, messages, budget, history[-1])

    def _local(
        self, state: World, i: int, event: Action, messages: frozenset[Message], budget: Budget, history: tuple[int, ...]
    ) -> Iterator[tuple[Action, World | Broken]]:
        """What a node does by itself."""
        name, kind, (behind, left) = NODES[i], event[0], self._rest[state[3]]
        action = (kind, name, *event[1:])
        spent = budget
        if kind == "restart":
            yield from self._restarts(state, i, messages, budget, history)
            return
        if kind == "publish":
            event = ("publish", self._budget.publishes - budget.publishes + 1)
            spent = _spend(budget, "publishes")
        elif kind == "timeout":
            on_its_way = any(m[0] in REQUESTS + ANSWERS and m[3] == event[1] and _asker(m) == name for m in messages)
            spent = _spend(budget, "lates") if on_its_way else budget
        elif kind == "wake":
            spent = budget if self._would_learn(state, i) else _spend(budget, "lates")
        elif kind == "lags":
            spent = _spend(budget, "lags")
        elif kind == "unanswered":
            asked = any((m[0] == "isr" and m[1] == name) or (m[0] == "isr_answer" and m[2] == name) for m in messages)
            spent = _spend(budget, "lates" if asked else "unanswered")
        elif kind == "report again" and any(m[0] == "promoted" and m[1] == name for m in messages):
            return
        elif kind == "crash":
            spent = _spend(budget, "crashes")
            messages = frozenset(m for m in messages if m[2] != name)
            behind = (*behind[:i], 0, *behind[i + 1 :])
        if spent is not None:
            yield from self._step(state, i, event, messages, behind, left if spent is budget else astuple(spent), action)

    def _restarts(
        self, state: World, i: int, messages: frozenset[Message], budget: Budget, history: tuple[int, ...]
    ) -> Iterator[tuple[Action, World | Broken]]:
        name, (behind, left) = NODES[i], self._rest[state[3]]
        decided = self.images.decide(history[-1], ("registers", name))
        if isinstance(decided, Broken):
            yield ("restart", name), decided
            return
        for image, _ in decided:
            if self._beyond(image):
                continue
            grown = tuple(
                0 if j == i else b + 1 if self.cells[state[j]].replica is not None else 0 for j, b in enumerate(behind)
            )
            known = [rid for j in range(3) for owner, rid in self.cells.request_ids(state[j]) if owner == name]
            known += [m[3] for m in messages if m[0] in REQUESTS + ANSWERS and _asker(m) == name]
            event = (
                "restart",
                self.images[image].nodes[name].incarnation,
                max(known, default=0) + 1,
                *self.images.state(image),
            )
            moved = (*state[:4], self._histories.number((*history, image)), *state[5:])
            yield from self._step(moved, i, event, messages, grown, left, ("restart", name, image))

    def _by_metadata(
        self, state: World, messages: frozenset[Message], budget: Budget, image: int
    ) -> Iterator[tuple[Action, World | Broken]]:
        """What timers of the metadata leader, and people, have it decide."""
        partition, nodes = self.images.partition(image), self.images[image].nodes
        asked: list[tuple[Message, Budget | None]] = []
        for i, name in enumerate(NODES):
            is_up = self.cells[state[i]].replica is not None
            if not nodes[name].fenced:
                asked.append((("session ends", name), _spend(budget, "fences") if is_up else budget))
            elif is_up:
                asked.append((("session is back", name), budget))
            if partition.status is PartitionStatus.ONLINE and name in partition.isr and name != partition.leader:
                asked.append((("leadership is moved to", name), _spend(budget, "moves")))
        if partition.status is PartitionStatus.ELECTION:
            asked.append((("positions are waited for no longer",), budget))
        elif partition.status is PartitionStatus.CANDIDATE_FOUND:
            asked.append((("candidate is passed over",), budget))
        for message, spent in asked:
            if spent is not None:
                yield from self._decided(state, message, message, messages, spent)

    def _decided(
        self, state: World, action: Action, message: Message, messages: frozenset[Message], budget: Budget
    ) -> Iterator[tuple[Action, World | Broken]]:
        history: tuple[int, ...] = self._histories[state[4]]
        decided = self.images.decide(history[-1], message)
        if isinstance(decided, Broken):
            yield action, decided
            return
        (behind, _), sent = self._rest[state[3]], ()
        for image, accepted in decided:
            spent: Budget | None = budget
            if message[0] == "isr" and not accepted:
                sent = (("isr_answer", "M", message[1], message[5]),)
                if self.cells[state[NODES.index(message[1])]].replica is None:
                    sent = ()
            if self._beyond(image):
                continue
            if image == history[-1]:
                told, grown = history, behind
            else:
                if set(self.images.partition(image).isr) - set(self.images.partition(history[-1]).isr):
                    spent = _spend(budget, "expands")
                    self.counted.count("ISR grows")
                if set(self.images.partition(history[-1]).isr) - set(self.images.partition(image).isr):
                    self.counted.count("ISR shrinks")
                told = (*history, image)
                grown = tuple(b + (self.cells[state[j]].replica is not None) for j, b in enumerate(behind))
            if spent is not None:
                rest = self._rest.number((grown, astuple(spent)))
                moved = (*state[:3], rest, self._histories.number(told), *state[5:])
                for reached in self._reached(moved, messages, sent):
                    yield action, self._checked(reached)

    def _beyond(self, image: int) -> bool:
        return self.images.partition(image).leader_epoch > self._budget.leader_epochs

    def _would_learn(self, state: World, i: int) -> bool:
        """Whether a node that has nothing outstanding would find out something, or is not kept as a waiter."""
        own = self.cells[state[i]]
        assert own.replica is not None
        role = own.replica._role
        idle = getattr(role, "_idle_request_id", 0)
        for j in range(3):
            other = self.cells[state[j]]
            if j != i and other.serves and other.replica is not None and other.replica.leader_epoch == own.replica.leader_epoch:
                return other.replica.high_watermark > own.replica.high_watermark or (own.name, idle) not in other.kept
        return not idle

    def _step(
        self,
        state: World,
        i: int,
        event: Action,
        messages: frozenset[Message],
        behind: tuple[int, ...],
        left: Any,
        action: Action,
    ) -> Iterator[tuple[Action, World | Broken]]:
        """One node takes an event."""
        stepped = self.cells.step(state[i], event)
        if isinstance(stepped, Broken):
            yield action, stepped
            return
        before, after = self.cells[state[i]], self.cells[stepped.cell]
        committed: tuple[Record, ...] = self._committed[state[5]]
        if stepped.raised:
            assert after.replica is not None
            seen = after.log[: after.replica.high_watermark + 1]
            if seen[: len(committed)] != committed[: len(seen)]:
                yield action, Broken(f"invariant D4 does not hold: {after.name} commits {seen}, committed is {committed}")
                return
            self.counted.count("HW rises")
            committed = max(committed, seen, key=len)
        if after.log[: len(before.log)] != before.log:
            self.counted.count("a log is cut")
            kept = _common(before.log, committed)
            if kept > _common(after.log, committed) and event[0] != "crash":
                yield action, Broken(f"invariant D9 does not hold: {after.name} cuts {before.log} to {after.log}")
                return
        cells = (*state[:i], stepped.cell, *state[i + 1 : 3])
        if stepped.acked >= 0:
            holders = sum(_common(self._durable(cell), committed) > stepped.acked for cell in cells)
            if holders < _MIN_ISR:
                yield action, Broken(f"invariant D21 does not hold: {stepped.acked} is acknowledged and flushed on {holders}")
                return
        world = (*cells, self._rest.number((behind, left)), state[4], self._committed.number(committed), state[6])
        for reached in self._reached(world, messages, stepped.sent):
            yield action, self._checked(reached)

    def _durable(self, cell: int) -> tuple[Record, ...]:
        held = self.cells[cell]
        return held.log[: held.durable]

    # ---- what is in flight, and the canonical form -------------------------------------------------------------------
    def _reached(self, world: World, messages: frozenset[Message], sent: tuple[Message, ...]) -> Iterator[World]:
        """The states that ``world`` is, for each choice of messages that are lost because too many are in flight."""
        found = set(messages)
        for message in sent:
            if message[2] == "*":
                listening = [name for i, name in enumerate(NODES) if name != message[1] and self.cells[world[i]].serves]
                found.update((message[0], message[1], name, *message[3:]) for name in listening)
            else:
                found.add(message)
        alive = [message for message in sorted(found, key=repr) if not self._is_dead(world, message)]
        world = self._forget_images(world)
        for chosen in combinations(alive, min(len(alive), self._in_flight)):
            yield self._canonical(world, frozenset(chosen))

    def _is_dead(self, world: World, message: Message) -> bool:
        """Whether its delivery could only lead to the state without it, now and for ever."""
        kind, src, dst = message[:3]
        if dst == "M":
            truth = self.images.partition(self._histories[world[4]][-1])
            if kind == "report":
                return bool(message[5] != truth.leader_epoch)
            return kind == "promoted" and (message[5] != truth.epoch or truth.candidate != src)
        cell = self.cells[world[NODES.index(dst)]]
        if cell.replica is None:
            return True
        if kind in REQUESTS:
            epoch = message[6] if kind == "fetch" else message[5]
            return not cell.serves or cell.replica.leader_epoch > epoch
        role = cell.replica._role
        if kind == "isr_answer":
            return cell.replica.role != "LEADER" or message[3] != cell.replica.state.epoch
        if self._keep_stale:
            return False
        return message[3] not in (getattr(role, "_request_id", 0), getattr(role, "_idle_request_id", 0))

    def _forget_images(self, world: World) -> World:
        history, (behind, _) = self._histories[world[4]], self._rest[world[3]]
        needed = max(behind) + 1
        return world if needed == len(history) else (*world[:4], self._histories.number(history[-needed:]), *world[5:])

    def _canonical(self, world: World, messages: frozenset[Message]) -> World:
        """The one of all states that are like this one."""
        behind, left = self._rest[world[3]]
        key = (*world[:3], behind, self._messages.number(messages))
        alike = self._alike.get(key)
        if alike is None:
            alike = self._alike[key] = self._likenesses(world, behind, messages)
        found = [
            (*cells, self._rest.number((order, left)), self._history_under(world[4], number), world[5], known)
            for number, cells, order, known in alike
        ]
        return found[0] if len(found) == 1 else min(found)

    def _likenesses(
        self, world: World, behind: tuple[int, int, int], messages: frozenset[Message]
    ) -> tuple[tuple[int, tuple[int, int, int], tuple[int, int, int], int], ...]:
        """(permutation, cells, behind, messages) of those orders of the nodes that what can be said without names leaves open."""
        world, messages = self._renumbered(self._forget_ids(world, messages), messages)
        key = self._messages.number(messages)
        sketches = [(self.cells.sketch(world[i]), behind[i]) for i in range(3)]
        in_order, alike = sorted(sketches), []
        for number, names in enumerate(PERMUTATIONS):
            place = [NODES.index(names[name]) for name in NODES]
            if all(in_order[place[i]] == sketches[i] for i in range(3)):
                cells, order = [0, 0, 0], [0, 0, 0]
                for i in range(3):
                    cells[place[i]] = self.cells.renamed(world[i], names, number) if number else world[i]
                    order[place[i]] = behind[i]
                alike.append((number, tuple(cells), tuple(order), self._messages_under(key, number)))
        return tuple(alike)  # type: ignore[arg-type]

    def _history_under(self, history: int, number: int) -> int:
        found = self._renamed.get(("history", history, number)) if number else history
        if found is None:
            renamed = tuple(self.images.renamed(image, number) for image in self._histories[history])
            found = self._renamed["history", history, number] = self._histories.number(renamed)
        return found

    def _messages_under(self, key: int, number: int) -> int:
        found = self._renamed.get(("messages", key, number)) if number else key
        if found is None:
            renamed = frozenset(rename_message(message, PERMUTATIONS[number]) for message in self._messages[key])
            found = self._renamed["messages", key, number] = self._messages.number(renamed)
        return found

    def _forget_ids(self, world: World, messages: frozenset[Message]) -> World:
        """Without ids of requests that have come and are not waited for: one that is sent later has a higher id, so it counts."""
        living = {(_asker(m), m[3]) for m in messages if m[0] in REQUESTS + ANSWERS}
        for i in range(3):
            living.update(pair for pair in self.cells.request_ids(world[i]) if pair[0] == NODES[i])
        cells = list(world[:3])
        for i in range(3):
            gone = frozenset(pair for pair in self.cells.request_ids(world[i]) if pair not in living)
            if gone:
                cells[i] = self.cells.forgetting(world[i], gone)
        return (cells[0], cells[1], cells[2], *world[3:])

    def _renumbered(self, world: World, messages: frozenset[Message]) -> tuple[World, frozenset[Message]]:
        """Request ids of each node from 1 on, in their order."""
        ids: dict[str, set[int]] = {name: set() for name in NODES}
        for i in range(3):
            for owner, rid in self.cells.request_ids(world[i]):
                ids[owner].add(rid)
        for message in messages:
            if message[0] in REQUESTS + ANSWERS:
                ids[_asker(message)].add(message[3])
        if all(not known or max(known) == len(known) for known in ids.values()):
            return world, messages
        numbers = {name: {rid: i for i, rid in enumerate(sorted(known), 1)} for name, known in ids.items()}
        key = tuple(tuple(sorted(known)) for known in ids.values())
        cells = [self.cells.renumbered(world[i], numbers, key) for i in range(3)]
        renumbered = frozenset(
            (*m[:3], numbers[_asker(m)][m[3]], *m[4:]) if m[0] in REQUESTS + ANSWERS else m for m in messages
        )
        return (cells[0], cells[1], cells[2], *world[3:]), renumbered

    # ---- invariants --------------------------------------------------------------------------------------------------
    def _checked(self, world: World) -> World | Broken:
        """What holds in every state."""
        image = self._histories[world[4]][-1]
        key = (*world[:3], image, world[5])
        if key in self._safe:
            return world
        cells, committed = [self.cells[world[i]] for i in range(3)], self._committed[world[5]]
        why = self._broken(cells, committed, image)
        if why:
            return Broken(f"invariant {why}")
        self._safe.add(key)
        return world

    def _broken(self, cells: list[Cell], committed: tuple[Record, ...], image: int) -> str:
        truth = self.images.partition(image)
        for name in self.images.electable_replicas(image):
            cell = cells[NODES.index(name)]
            if cell.log[: cell.durable][: len(committed)] != committed:
                what = "D2 does not hold: the leader" if name == truth.leader else "D3 does not hold:"
                return f"{what} {name} may lead and has {cell.log[: cell.durable]}, committed is {committed}"
        leaders = [
            (cell.replica.leader_epoch, cell.name)
            for cell in cells
            if cell.replica is not None and cell.replica.role == "LEADER"
        ]
        for one, other in combinations(leaders, 2):
            if one[0] == other[0]:
                return f"C1 does not hold: {one[1]} and {other[1]} lead in epoch {one[0]}"
        for one_log, other_log in combinations([*(cell.log for cell in cells), committed], 2):
            if (one_log, other_log) in self._agreeing:
                continue
            for i in range(min(len(one_log), len(other_log))):
                if one_log[i][0] == other_log[i][0] and one_log[: i + 1] != other_log[: i + 1]:
                    return f"D5 does not hold: {one_log} and {other_log}"
            self._agreeing.add((one_log, other_log))
        return ""

    # ---- for people --------------------------------------------------------------------------------------------------
    def told(self, state: World, action: Action) -> str:
        """What was done. Names may change from line to line: the nodes of a state are put in an order of their own."""
        if action[0] == "learns":
            return f"{action[1]} learns: {self._partition_shown(action[2])}"
        if action[0] == "gets" or (len(action) > 2 and action[2] == "M"):
            message = action[1] if action[0] == "gets" else action
            return f"{message[2]} gets of {message[1]}: {message[0]} {message[3:]}"
        return " ".join(str(part) for part in action)

    def shown(self, state: World) -> str:
        """The nodes, and what the metadata says."""
        image, committed = self._histories[state[4]][-1], self._committed[state[5]]
        nodes = "; ".join(_cell_shown(self.cells[state[i]]) for i in range(3))
        messages = ", ".join(f"{m[0]} {m[1]}>{m[2]}" for m in sorted(self._messages[state[6]], key=repr))
        return f"{nodes}; {self._partition_shown(image)}; committed {_log_shown(committed)}; [{messages}]"

    def _partition_shown(self, number: int) -> str:
        partition, nodes = self.images.partition(number), self.images[number].nodes
        who = partition.leader or f"{partition.status.name} {partition.candidate}".strip()
        fenced = "".join(name for name in NODES if nodes[name].fenced)
        return f"{who} e{partition.leader_epoch}/{partition.epoch} isr {''.join(partition.isr)}{' fenced ' + fenced if fenced else ''}"


def _spend(budget: Budget, what: str) -> Budget | None:
    left = getattr(budget, what)
    return None if left <= 0 else Budget(**{**{f: getattr(budget, f) for f in Budget.__slots__}, what: left - 1})


def _asker(message: Message) -> str:
    return str(message[1] if message[0] in REQUESTS else message[2])


def _common(log: tuple[Record, ...], committed: tuple[Record, ...]) -> int:
    """Up to where both are the same."""
    for i in range(min(len(log), len(committed))):
        if log[i] != committed[i]:
            return i
    return min(len(log), len(committed))


def _log_shown(log: tuple[Record, ...]) -> str:
    return "[" + " ".join(f"{number}@e{epoch}" for epoch, number in log) + "]"


def _cell_shown(cell: Cell) -> str:
    if cell.replica is None:
        return f"{cell.name} down {_log_shown(cell.log)}"
    replica = cell.replica
    flushed = "" if cell.durable == len(cell.log) else f" flushed {cell.durable}"
    return f"{cell.name} {replica.phase} e{replica.leader_epoch} {_log_shown(cell.log)}{flushed} hw {replica.high_watermark}"


__all__ = ["STRUCTURE", "Budget", "ReplicaModel"]
