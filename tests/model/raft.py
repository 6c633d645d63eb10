"""The raft model: three controllers, the shipped code of the metadata group on each (``members.py``), and the links between them.

Anything may come at any time: heartbeats, elections, leaders that give up, commands, snapshots, deaths of a process or of the power
(also between two calls to the disk of one tick), the loss of a whole folder, and the barrier that ends probation. A message that is
lost is one that is never delivered. What a tick sends to one member comes in order, and as a whole unless ``append_bytes`` is given:
sessions see to that. More than ``queued`` of them on a link, or a start, begin the session anew: what was under way on it is gone, and
both say hello.

Of a group that has just been started for the first time, or (``led``) in which a leads and everybody has so many entries; and a
``story`` may have led on from there to where a bug that takes many steps is near.

A state is seven numbers: a cell for each node, what is under way, the budget that is left, who has led in which term, what is
committed.

**What is left out, and why nothing is lost by it.** States that differ in the names of nodes are one (``_canonical``): no rule looks at
more. Who takes whom for the leader, and what a role that is over knew, decides nothing. A message that changes nothing where it comes,
and whose answers change nothing either, is dropped when it is the next one: what makes a receiver deaf to it (a later term, a vote that
was given, an entry that is there) lasts as long as the session. Hellos are exchanged at once: one that is late is a message that is
late. The barrier is known to be committed as soon as it is: the earliest end of probation is the most dangerous one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from itertools import permutations
from typing import Any

from tests.model.members import NODES, Entry, Frames, Members, Stepped, View
from tests.model.search import Broken
from tests.model.structure import Interned

World = tuple[int, int, int, int, int, int, int]
Action = tuple[Any, ...]
Link = tuple[str, str]
Queues = tuple[tuple[Link, tuple[Frames, ...]], ...]
"""(from, to) -> what is under way, the oldest first; links with nothing left out; in their order."""
Committed = tuple[int, bytes, int]
"""(term, command, the term in which it was committed)."""
_PERMUTATIONS = tuple(dict(zip(NODES, order, strict=True)) for order in permutations(NODES))
_BARRIER = b"barrier"
_REGULAR = b"\x00"
_REMEMBERED = 1_000_000
"""States whose canonical form is kept: a large search would hold nothing else."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What may still happen, in all."""

    campaigns: int = 2
    """Elections that begin without a question, as those that a leader has asked for do: at any time. Each is a term."""
    asks: int = 0
    """Elections that begin with the question who would vote (pre-vote, ``sidecar/quorum/library.py``)."""
    commands: int = 1
    crashes: int = 1
    """Deaths of a process or of the power, each at any moment."""
    emptied: int = 0
    """Folders that are lost, with the process."""
    barriers: int = 1
    """For those who are on probation."""
    snapshots: int = 0
    resignations: int = 0
    """Leaders that give up because nobody has answered for too long."""


class RaftModel:
    """``queued``: on each link, in each direction. ``led``: entries that everybody has to begin with, the first one of a leader
    included; ``story``: what has happened since, see ``_retold``. Neither is part of the budget.

    ``append_bytes``: so many make a message full (0: as shipped); then what a tick sends may be cut off between any two messages.
    """

    def __init__(
        self, budget: Budget = Budget(), queued: int = 1, *, led: int = 0, story: tuple[str, ...] = (), append_bytes: int = 0
    ) -> None:
        self._budget = budget
        self._queued = queued
        self._led = led
        self._story = story
        self._in_parts = append_bytes > 0
        self.members = Members(append_bytes)
        self.counted: dict[str, int] = {}
        """How often something happened on the edges: what a model never does it can't find a bug in."""
        self._queues = Interned()
        self._left = Interned()
        self._leaders = Interned()
        self._committed = Interned()
        self._renamed: dict[tuple[str, int, int], int] = {}
        self._alike: dict[World, World] = {}
        self._dead: dict[tuple[int, int, str, Frames], bool] = {}
        self._agree: dict[tuple[int, int], str] = {}

    # ---- the first state -----------------------------------------------------------------------------------------------
    def first(self) -> World:
        """Nobody leads, everybody is a member that counts; or, with ``led``, a leads."""
        cells = tuple(self.members.new(name) for name in NODES)
        none = (
            self._queues.number(()),
            self._left.number(astuple(self._budget)),
            self._leaders.number(()),
            self._committed.number(()),
        )
        world: World = (*cells, *none)
        for i in range(3):
            world = self._sure(self._starts(world, i))
        for i in (0, 1, 2):  # those that were told that all are new look at it in their next tick
            world = self._sure(self._take(world, i, ("tick",)))
        assert all(self.members.view(world[i]).counts for i in range(3))
        world = self._lead(world) if self._led else world
        for told in self._story:
            world = self._sure(self._retold(world, *told.split()))
        return self._canonical(world)

    @staticmethod
    def _sure(reached: World | Broken) -> World:
        assert not isinstance(reached, Broken), reached
        return reached

    def _lead(self, world: World) -> World:
        """a is elected, and everybody has what it has."""
        world = self._calm(self._sure(self._take(world, 0, ("campaign",))))
        for number in range(1, self._led):
            world = self._calm(self._sure(self._take(world, 0, ("propose", b"settled %d" % number))))
        for _ in range(3):
            world = self._calm(self._sure(self._take(world, 0, ("beat",))))
        assert all(self.members.view(world[i]).applied_index == 1 + self._led for i in range(3))
        return world

    def _retold(self, world: World, who: str, does: str, what: str = "") -> World | Broken:
        """One step of the story: ``a campaigns``, ``a beats``, ``a compacts``, ``a proposes X``, ``b gets a`` (what is under way to it
        from a), ``a loses b`` (the session between them, with all that is under way)."""
        i = NODES.index(who)
        if does == "gets":
            return self._delivered(world, (what, who))
        if does == "loses":
            return self._new_session(world, i, NODES.index(what))
        event = {
            "campaigns": ("campaign",),
            "beats": ("beat",),
            "compacts": ("compact",),
            "proposes": ("propose", b"command %b" % what.encode()),
        }[does]
        return self._take(world, i, event)

    def _calm(self, world: World) -> World:
        while queues := self._queues[world[3]]:
            world = self._sure(self._delivered(world, queues[0][0]))
        return world

    # ---- steps ---------------------------------------------------------------------------------------------------------
    def steps(self, state: World) -> Iterator[tuple[Action, World | Broken]]:
        """Everything that may happen next."""
        budget, members = Budget(*self._left[state[4]]), self.members
        for action, i, event, spent in self._events(state, budget):
            world = self._with_budget(state, spent)
            if world is None:
                continue
            yield action, self._done(self._take(world, i, event))
            yield from self._dies_within(state, world, i, event, action)
        for link, _ in self._queues[state[3]]:
            yield ("gets", *link), self._done(self._delivered(state, link))
            j, batch = NODES.index(link[1]), self._head(state, link)
            yield from self._dies_within(state, self._without_head(state, link), j, ("gets", link[0], batch), ("gets", *link))
        for i, name in enumerate(NODES):
            if not members.view(state[i]).up:
                yield (name, "starts"), self._done(self._starts(state, i))
                continue
            for spent_on, left in (("crashes", members.crashed(state[i])), ("emptied", (members.emptied(state[i]),))):
                world = self._with_budget(state, spent_on)
                for number, cell in enumerate(left if world is not None else ()):
                    assert world is not None
                    what = "loses its folder" if spent_on == "emptied" else "loses power" if number else "dies"
                    yield (name, what), self._done(self._died(world, i, cell))

    def _events(self, state: World, budget: Budget) -> Iterator[tuple[Action, int, Action, str]]:
        """(action, node, event, what it is spent from) of all that a node does by itself."""
        members = self.members
        waiting = [i for i in range(3) if members.view(state[i]).up and not members.view(state[i]).counts]
        for i, name in enumerate(NODES):
            view = members.view(state[i])
            if not view.up:
                continue
            if view.leads:
                yield (name, "sends heartbeats"), i, ("beat",), ""
                yield (name, "gives up"), i, ("gives up",), "resignations"
                yield (name, "is given a command"), i, ("propose", b"command %d" % budget.commands), "commands"
                if any(not members[state[j]].asked for j in waiting):
                    yield (name, "is asked for a barrier"), i, ("propose", _BARRIER), "barriers"
            elif view.counts:
                yield (name, "campaigns"), i, ("campaign",), "campaigns"
                yield (name, "asks who would vote for it"), i, ("asks",), "asks"
            if view.applied_index > 1:
                yield (name, "writes a snapshot"), i, ("compact",), "snapshots"
            asked, committed = members[state[i]].asked, self._committed[state[6]]
            if asked and asked[0] <= min(view.applied_index, len(committed)) and committed[asked[0] - 1][0] == asked[1]:
                yield (name, "hears that its barrier is committed"), i, ("barrier",), ""

    def _with_budget(self, state: World, what: str) -> World | None:
        """Less of it; None: there is none left."""
        if not what:
            return state
        budget = Budget(*self._left[state[4]])
        left = getattr(budget, what)
        if left <= 0:
            return None
        spent = astuple(Budget(**{f.name: left - 1 if f.name == what else getattr(budget, f.name) for f in fields(Budget)}))
        return (*state[:4], self._left.number(spent), *state[5:])

    def _dies_within(
        self, state: World, world: World, i: int, event: Action, action: Action
    ) -> Iterator[tuple[Action, World | Broken]]:
        """In the middle of what it does to its disk; nothing has left."""
        crashing, stepped = self._with_budget(world, "crashes"), self.members.step(state[i], event)
        if crashing is not None and isinstance(stepped, Stepped):
            for number, cell in enumerate(stepped.moments):
                yield (*action, f"and dies within, {number}"), self._done(self._died(crashing, i, cell))

    def _delivered(self, world: World, link: Link) -> World | Broken:
        event = ("gets", link[0], self._head(world, link))
        return self._take(self._without_head(world, link), NODES.index(link[1]), event)

    def _died(self, world: World, i: int, cell: int) -> World:
        """What is on its way to it is gone; what it has sent is not."""
        queues = {link: batches for link, batches in self._queues_of(world).items() if link[1] != NODES[i]}
        return self._with(world, i, cell, queues)

    def _starts(self, world: World, i: int) -> World | Broken:
        """A process, which says hello to those that run."""
        reached = self._take(world, i, ("start",))
        for j in range(3):
            if j != i and not isinstance(reached, Broken) and self.members.view(reached[j]).up:
                reached = self._new_session(reached, i, j)
        return reached

    def _take(self, world: World, i: int, event: Action) -> World | Broken:
        """A node takes an event; what it sends is under way."""
        stepped = self.members.step(world[i], event)
        if isinstance(stepped, Broken):
            return stepped
        if stepped.settled and (why := self._lacks(world, i, stepped.cell)):
            return Broken(why)
        if event == ("beat",) and not stepped.settled:
            self._count("heartbeats at the shorter interval")
        if event == ("propose", _BARRIER):
            world = self._barrier_asked(world, self.members.view(stepped.cell).entries[-1])
        queues = self._queues_of(world)
        broken: list[str] = []
        for receiver, batch in stepped.sent:
            link = NODES[i], receiver
            if not self.members.view(world[NODES.index(receiver)]).up:
                continue
            queues[link] = (*queues.get(link, ()), batch)
            if len(queues[link]) > self._queued:
                broken.append(receiver)
        reached: World | Broken = self._with(world, i, stepped.cell, queues)
        reached = self._ghosts(reached, i, world)
        for receiver in broken:
            if not isinstance(reached, Broken):
                reached = self._new_session(reached, i, NODES.index(receiver))
        return reached

    def _lacks(self, world: World, i: int, cell: int) -> str:
        """Return a text about a voter that hears the leader at its longer append interval and lacks an entry of it. '': none does."""
        self._count("longer intervals taken")
        leader = self.members.view(cell)
        for j in range(3):
            view = self.members.view(world[j])
            hears = j != i and view.up and view.term <= leader.term
            if hears and view.entries[0][0] <= leader.entries[-1][0] and leader.entries[-1] not in view.entries:
                return f"M15: {NODES[i]} takes the longer interval with {_log_shown(leader)}, {NODES[j]} has {_log_shown(view)}"
        return ""

    def _barrier_asked(self, world: World, entry: Entry) -> World:
        cells = list(world[:3])
        for j in range(3):
            view = self.members.view(cells[j])
            if view.up and not view.counts and not self.members[cells[j]].asked:
                cells[j] = self.members.asked(cells[j], entry[:2])
        return (cells[0], cells[1], cells[2], *world[3:])

    def _new_session(self, world: World, i: int, j: int) -> World | Broken:
        """Between two: what is under way is gone, and each hears the other, the first one twice: what it is known by is new then."""
        self._count("sessions begun anew")
        queues = {link: batches for link, batches in self._queues_of(world).items() if set(link) != {NODES[i], NODES[j]}}
        world = self._with(world, i, world[i], queues)
        for one, other in ((i, j), (j, i)):
            ended = self.members.step(world[one], ("session ends", NODES[other]))
            if isinstance(ended, Broken):
                return ended
            world = self._with(world, one, ended.cell, queues)
        for one, other in ((i, j), (j, i), (i, j)):
            said = self.members.step(world[one], ("hello", NODES[other]))
            if isinstance(said, Broken):
                return said
            ((_, hello),) = said.sent
            heard = self.members.step(world[other], ("hears", NODES[one], hello))
            if isinstance(heard, Broken):
                return heard
            reached = self._ghosts(self._with(world, other, heard.cell, queues), other, world)
            if isinstance(reached, Broken):
                return reached
            world = reached
        return world

    # ---- what is under way -----------------------------------------------------------------------------------------------
    def _queues_of(self, world: World) -> dict[Link, tuple[Frames, ...]]:
        return dict(self._queues[world[3]])

    def _with(self, world: World, i: int, cell: int, queues: dict[Link, tuple[Frames, ...]]) -> World:
        number = self._queues.number(tuple(sorted((link, batches) for link, batches in queues.items() if batches)))
        cells = (*world[:i], cell, *world[i + 1 : 3])
        return (cells[0], cells[1], cells[2], number, *world[4:])

    def _head(self, world: World, link: Link) -> Frames:
        """What comes next on it."""
        oldest = self._queues_of(world)[link][0]
        return oldest[:1] if self._in_parts else oldest

    def _without_head(self, world: World, link: Link) -> World:
        queues = self._queues_of(world)
        rest = queues[link][0][1:] if self._in_parts else ()
        queues[link] = (*((rest,) if rest else ()), *queues[link][1:])
        return self._with(world, 0, world[0], queues)

    def _is_dead(self, world: World, link: Link, batch: Frames) -> bool:
        """Whether it changes nothing, nor do its answers."""
        i, j = NODES.index(link[0]), NODES.index(link[1])
        key = world[i], world[j], link[0], batch
        found = self._dead.get(key)
        if found is None:
            stepped = self.members.step(world[j], ("gets", link[0], batch))
            found = not isinstance(stepped, Broken) and stepped.cell == world[j]
            for receiver, answer in stepped.sent if found and isinstance(stepped, Stepped) else ():
                answered = self.members.step(world[i], ("gets", link[1], answer)) if self.members.view(world[i]).up else None
                is_quiet = isinstance(answered, Stepped) and answered.cell == world[i] and not answered.sent
                found = found and receiver == link[0] and (answered is None or is_quiet)
            self._dead[key] = found
        return found

    def _done(self, reached: World | Broken) -> World | Broken:
        """The canonical form, without what is dead."""
        if isinstance(reached, Broken):
            return reached
        found = self._alike.get(reached)
        if found is None:
            world, again = reached, True
            while again:
                again = False
                for link, _ in self._queues[world[3]]:
                    if self._is_dead(world, link, self._head(world, link)):
                        world, again = self._without_head(world, link), True
                        break
            if len(self._alike) >= _REMEMBERED:
                self._alike.clear()
            found = self._alike[reached] = self._canonical(world)
        return found

    def _canonical(self, world: World) -> World:
        """The one of all states that are like this one."""
        sketches = [self.members.sketch(world[i]) for i in range(3)]
        in_order, found = sorted(sketches), []
        for key, names in enumerate(_PERMUTATIONS):
            place = [NODES.index(names[name]) for name in NODES]
            if all(in_order[place[i]] == sketches[i] for i in range(3)):
                cells = [0, 0, 0]
                for i in range(3):
                    cells[place[i]] = self.members.renamed(world[i], names, key)
                queues, leaders = self._under("queues", world[3], key), self._under("leaders", world[5], key)
                found.append((cells[0], cells[1], cells[2], queues, world[4], leaders, world[6]))
        return min(found)

    def _under(self, what: str, number: int, key: int) -> int:
        found = self._renamed.get((what, number, key))
        if found is None:
            names = _PERMUTATIONS[key]
            if what == "queues":
                queues = [((names[link[0]], names[link[1]]), batches) for link, batches in self._queues[number]]
                found = self._queues.number(tuple(sorted(queues)))
            else:
                found = self._leaders.number(tuple((term, names[name]) for term, name in self._leaders[number]))
            self._renamed[what, number, key] = found
        return found

    # ---- invariants ------------------------------------------------------------------------------------------------------
    def _count(self, what: str) -> None:
        self.counted[what] = self.counted.get(what, 0) + 1

    def _ghosts(self, world: World, i: int, before: World) -> World | Broken:
        """What the node that has changed adds to what is known, and whether it fits."""
        if world[i] == before[i]:
            return world
        name, view, old = NODES[i], self.members.view(world[i]), self.members.view(before[i])
        committed = self._committed[world[6]]
        if view.commit > view.entries[-1][0]:
            return Broken(f"M9: {name} commits {view.commit}, its log ends at {view.entries[-1][0]}")
        if view.applied_index > view.entries[-1][0]:
            return Broken(f"M9: {name} has applied {view.applied_index}, its log ends at {view.entries[-1][0]}")
        why = self._not_committed(name, view, committed)
        if why:
            return Broken(why)
        known = tuple(
            (term, command, view.term) for index, term, command in view.entries if len(committed) < index <= view.commit
        )
        if known:
            self._count("entries committed")
            if view.leads and known[-1][0] != view.term:
                return Broken(f"M4: {name} leads in term {view.term} and commits by the copies of {known[-1]}, of an older one")
            committed = (*committed, *known)
        applied = tuple(
            (index, command[1:])
            for index, (_, command, _) in enumerate(committed[: view.applied_index], 1)
            if command[:1] == _REGULAR
        )
        if view.applied != applied:
            return Broken(f"M5: {name} has applied {view.applied} by {view.applied_index}, the group {applied}")
        leaders = self._leaders[world[5]]
        if view.leads and not old.leads:
            self._count("leaders elected")
            other = dict(leaders).setdefault(view.term, name)
            if other != name:
                return Broken(f"M1: {other} and {name} lead in term {view.term}")
            if view.entries[-1][0] < sum(by < view.term for _, _, by in committed):
                return Broken(f"M4: {name} leads in term {view.term} and has {_log_shown(view)}, committed is {committed}")
            leaders = tuple(sorted({*leaders, (view.term, name)}))
        self._seen(view, old)
        world = (*world[:5], self._leaders.number(leaders), self._committed.number(committed))
        return self._matched(world, i)

    def _seen(self, view: View, old: View) -> None:
        if old.up and view.entries[0][0] > old.entries[0][0]:
            self._count("snapshots taken or installed")
        if old.up and old.entries[-1][0] >= view.entries[0][0] and not set(old.entries[-1:]) <= set(view.entries):
            self._count("entries cut")
        if view.counts and old.up and not old.counts:
            self._count("probations ended")

    @staticmethod
    def _not_committed(name: str, view: View, committed: tuple[Committed, ...]) -> str:
        """What of its log is something else than what is committed: of that which it commits, or has as a leader of a later term."""
        if view.entries[0][0] > len(committed) + 1:
            return f"M5: the log of {name} begins at {view.entries[0][0]}, committed is {committed}"
        for index, term, command in view.entries[: len(committed) - view.entries[0][0] + 1]:
            leads = view.leads and committed[index - 1][2] < view.term
            if committed[index - 1][:2] != (term, command) and (leads or index <= max(view.commit, view.applied_index)):
                what = "leads with" if leads else "commits"
                return f"M4: {name} {what} {command!r} of term {term} at {index}, committed is {committed[index - 1]}"
        return ""

    def _matched(self, world: World, i: int) -> World | Broken:
        """Log matching, and that a majority holds what is committed."""
        for j in range(3):
            if j != i:
                key = min(world[i], world[j]), max(world[i], world[j])
                why = self._agree.get(key)
                if why is None:
                    why = self._agree[key] = _mismatch(self.members.view(key[0]), self.members.view(key[1]))
                if why:
                    return Broken(f"M3: {why}")
        return world

    # ---- for people ------------------------------------------------------------------------------------------------------
    def told(self, state: World, action: Action) -> str:
        """What was done. Names may change from line to line: the nodes of a state are put in an order of their own."""
        return f"{action[2]} gets of {action[1]}{' '.join(action[3:])}" if action[0] == "gets" else " ".join(map(str, action))

    def shown(self, state: World) -> str:
        """The nodes, what is under way and what is committed."""
        nodes = "; ".join(self._shown(NODES[i], self.members.view(state[i])) for i in range(3))
        queues = ", ".join(f"{link[0]}>{link[1]}" + f" x{len(b)}" * (len(b) > 1) for link, b in self._queues[state[3]])
        committed = " ".join(f"{command.decode('latin1')[1:] or '-'}@{term}" for term, command, _ in self._committed[state[6]])
        return f"{nodes}; committed [{committed}]; [{queues}]"

    @staticmethod
    def _shown(name: str, view: View) -> str:
        if not view.up:
            return f"{name} down {_log_shown(view)}"
        role = "leads" if view.leads else "counts" if view.counts else "on probation"
        return f"{name} {role} t{view.term} for {view.vote or '-'} {_log_shown(view)} commit {view.commit}"


def _log_shown(view: View) -> str:
    return (
        "[" + " ".join(f"{index}:{command.decode('latin1')[1:] or '-'}@{term}" for index, term, command in view.entries) + "]"
    )


def _mismatch(one: View, other: View) -> str:
    """Entries of one index and term are the same, and so is everything before them."""
    theirs = {index: (term, command) for index, term, command in other.entries}
    agree = False
    for index, term, command in reversed(one.entries):
        held = theirs.get(index)
        if held is not None and (held[0] == term or agree) and held != (term, command):
            return f"{index} is {command!r} of term {term} and {held[1]!r} of term {held[0]}"
        agree = agree or (held is not None and held[0] == term)
    return ""


__all__ = ["Budget", "RaftModel"]
