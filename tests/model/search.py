"""The searcher: breadth first over every state that a model can reach, within bounds. Pure; tested on toy graphs.

A model gives a first state and, for each state, its steps. A state is a hashable value, and stands for all that are like it:
the model has brought it into its canonical form. Breadth first means that the first trace to a broken invariant is a shortest
one.

What is kept of a state that was seen is 64 bits of its hash and the number of the state that it came from; the states
themselves live as long as their level is worked on. Two states with one hash would be taken for one: with 10 million states the
chance of any such pair is about 3 in 10^6.
"""

from __future__ import annotations

import resource
import time
from array import array
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Broken:
    """A step that breaks an invariant, in the place of the state that it would lead to."""

    why: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where the search stops; 0: nowhere. ``depth`` counts steps from the first state."""

    states: int = 0
    depth: int = 0
    seconds: float = 0.0


class Model(Protocol[S]):
    """``steps`` gives (what is done, what it leads to) in an order that does not change; ``told`` says it for people."""

    def first(self) -> S: ...
    def steps(self, state: S) -> Iterable[tuple[Hashable, S | Broken]]: ...
    def told(self, state: S, action: Hashable) -> str: ...
    def shown(self, state: S) -> str: ...


@dataclass(frozen=True, slots=True)
class Trace:
    """A shortest way to what is broken: (what was done, the state after it) as people read it."""

    first: str
    steps: tuple[tuple[str, str], ...]
    why: str

    def __str__(self) -> str:
        lines = [f"      {self.first}"]
        for number, (told, shown) in enumerate(self.steps, 1):
            lines += [f"{number:4}  {told}", *([f"      {shown}"] if shown else [])]
        return "\n".join([*lines, f"      ==> {self.why}"])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search found. ``stopped``: the bound that ended it; '': it saw every state, or one that is broken."""

    states: int
    edges: int
    depth: int
    seconds: float
    peak_bytes: int
    stopped: str
    trace: Trace | None

    @property
    def exhausted(self) -> bool:
        """Whether every reachable state was seen."""
        return not self.stopped and self.trace is None

    def __str__(self) -> str:
        end = "BROKEN" if self.trace else "EXHAUSTED" if self.exhausted else f"stopped by the bound of {self.stopped}"
        rate = self.edges / self.seconds if self.seconds else 0
        return (
            f"{self.states:,} states, {self.edges:,} edges, depth {self.depth}, {self.seconds:.1f} s ({rate:,.0f} edges/s), "
            f"peak memory {self.peak_bytes >> 20} MiB: {end}"
        )


class Search(Generic[S]):
    """One search. ``on_level(depth, states, edges, frontier)`` is called before each level."""

    def __init__(
        self, model: Model[S], bounds: Bounds | None = None, on_level: Callable[[int, int, int, int], None] | None = None
    ) -> None:
        self._model = model
        self._bounds = bounds or Bounds()
        self._on_level = on_level
        self._hashes = array("q")
        """Of each state, by its number."""
        self._parents = array("q")
        self._seen: set[int] = set()
        self._edges = 0
        self._trace: Trace | None = None

    def run(self) -> Outcome:
        """Search until the end, a bound or a broken invariant."""
        begun, bounds = time.process_time(), self._bounds
        first = self._model.first()
        self._add(hash(first), -1)
        level, depth, stopped = [(0, first)], 0, ""
        while level and not stopped and self._trace is None:
            if self._on_level is not None:
                self._on_level(depth, len(self._hashes), self._edges, len(level))
            if bounds.depth and depth >= bounds.depth:
                stopped = f"depth {bounds.depth}"
                break
            level, stopped = self._next_level(level, begun)
            depth += bool(level) or self._trace is not None
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        seconds = time.process_time() - begun
        return Outcome(len(self._hashes), self._edges, depth, seconds, peak_bytes, stopped, self._trace)

    def _next_level(self, level: list[tuple[int, S]], begun: float) -> tuple[list[tuple[int, S]], str]:
        following: list[tuple[int, S]] = []
        steps, seen, bounds = self._model.steps, self._seen, self._bounds
        for position, (number, state) in enumerate(level):
            for action, reached in steps(state):
                self._edges += 1
                if isinstance(reached, Broken):
                    self._trace = self._traced(number, action, reached.why)
                    return following, ""
                digest = hash(reached)
                if digest not in seen:
                    following.append((len(self._hashes), reached))
                    self._add(digest, number)
            if bounds.states and len(self._hashes) >= bounds.states:
                return following, f"{bounds.states:,} states"
            if bounds.seconds and not position & 255 and time.process_time() - begun >= bounds.seconds:
                return following, f"{bounds.seconds:g} s"
        return following, ""

    def _add(self, digest: int, parent: int) -> None:
        self._seen.add(digest)
        self._hashes.append(digest)
        self._parents.append(parent)

    def _traced(self, number: int, last: Hashable, why: str) -> Trace:
        """Walk from the first state again, each time by the step that leads to the next state's hash."""
        path: list[int] = []
        while number > 0:
            path.append(number)
            number = self._parents[number]
        model, state, steps = self._model, self._model.first(), []
        first = model.shown(state)
        for following in reversed(path):
            wanted = self._hashes[following]
            action, reached = next((a, r) for a, r in model.steps(state) if not isinstance(r, Broken) and hash(r) == wanted)
            steps.append((model.told(state, action), model.shown(reached)))
            state = reached
        steps.append((model.told(state, last), ""))
        return Trace(first, tuple(steps), why)
