"""Checks whether the services on all nodes have the same state, by comparing their snapshots at the same position. Pure.

Goal: a service that is not deterministic is found although it emits nothing by which it would be. Constraint: no node knows which state
is right; two against one is all that there is to go by.

Algorithm: a snapshot is a function of the log alone, so nodes tell each other (position, digest) of the newest ones that they have
stored. Where a position's digests differ, the service beside this node has diverged when more nodes agree on another digest than on
its own; when as many do, somebody has, and both are told so.

Worked example: n1 and n2 say (100, aa), n3 says (100, bb): n3's service stops, and never begins from that snapshot again. With n1 and
n3 alone, both say in their status that they differ at 100.

What a service is made with (``liftpy.core.services.rules``) is told as its digest at position 0: the state before any record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_POSITIONS = 16
"""Remembered of each service beside each node."""
MAX_NODES = 16
BEGINNING = 0
"""The position at which the digest is of the service's parameters."""
DIGEST_SIZE_BYTES = 16


@dataclass(frozen=True, slots=True)
class Difference:
    """A different snapshot at ``position``. ``nodes``: nodes with the other one. ``diverged``: this one is in the minority."""

    position: int
    nodes: tuple[str, ...]
    diverged: bool

    def __str__(self) -> str:
        whose = ", ".join(self.nodes)
        if self.position == BEGINNING:
            how = "this one stops: start it with theirs" if self.diverged else "give all nodes the same"
            return f"the service's parameters are not those beside {whose}; {how}"
        if self.diverged:
            return f"the state at {self.position} is not the one beside {whose}: this service has diverged"
        return f"the state at {self.position} is not the one beside {whose}: one of them is not deterministic"


@dataclass(slots=True)
class Agreement:
    """Known snapshots of one service."""

    _told: dict[str, dict[int, bytes]] = field(default_factory=dict)
    _lives: dict[str, int] = field(default_factory=dict)

    def told(self, node: str, life: int, snapshots: Mapping[int, bytes]) -> None:
        """``node`` has stored these: position -> digest. What it stored in another life is forgotten: it may have been of records
        that are gone."""
        if self._lives.get(node) != life:
            self._told.pop(node, None)
        if node not in self._told and len(self._told) >= MAX_NODES:
            return
        self._lives[node] = life
        known = self._told.setdefault(node, {}) | {p: d for p, d in snapshots.items() if len(d) == DIGEST_SIZE_BYTES}
        self._told[node] = {
            position: known[position] for position in sorted({*sorted(known)[-MAX_POSITIONS:], *(known.keys() & {BEGINNING})})
        }

    def difference(self, own: str) -> Difference | None:
        """The first position at which ``own``'s snapshot differs from others', None: at none that is known."""
        undecided = None
        for position, digest in self._told.get(own, {}).items():
            said = {node: digests[position] for node, digests in self._told.items() if position in digests}
            others = tuple(sorted(node for node, theirs in said.items() if theirs != digest))
            if not others:
                continue
            votes = Counter(said.values())
            found = Difference(position, others, max(votes[said[node]] for node in others) > votes[digest])
            if found.diverged:
                return found
            if votes[digest] == max(votes[said[node]] for node in others):
                undecided = undecided or found
        return undecided

    def agreed(self, own: str) -> dict[int, tuple[bytes, int]]:
        """Position -> (digest, nodes that have it) of the nodes beside ``own``; without positions at which as many have another."""
        told = [digests for node, digests in self._told.items() if node != own]
        found = {}
        for position in sorted({position for digests in told for position in digests} - {BEGINNING}):
            votes = Counter(digests[position] for digests in told if position in digests).most_common(2)
            if len(votes) == 1 or votes[0][1] > votes[1][1]:
                found[position] = votes[0]
        return dict(list(found.items())[-MAX_POSITIONS:])
