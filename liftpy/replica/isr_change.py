"""IsrChange: the leader's one ISR change in flight, and the maximal ISR while its outcome is not known [C4, C8].

A change may take the learner into the replica set, or a replica out of it. Until the image shows a higher Epoch the sets before and
after it both count as well: by ``quorum`` a majority of each is needed.

The metadata group decides by compare-and-set on the partition's Epoch, so of all attempts made on one Epoch at most one takes
effect. Until the image shows a higher Epoch, any of them may be the ISR that an election uses, so all their members count.
A refusal ends an attempt only when no earlier one on the same Epoch has an unknown outcome: the refusal may mean that the
earlier one took effect. An unsettled Epoch is settled by another attempt, which either wins or loses to the first; both
raise the Epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator


class IsrChange:
    """State of the attempts made on the current Epoch."""

    __slots__ = ("in_flight", "possible", "retry_at_ns", "sets", "unsettled")

    def __init__(self) -> None:
        self.possible: frozenset[str] = frozenset()
        """Members of every attempt on this Epoch whose outcome is not known."""
        self.sets: frozenset[frozenset[str]] = frozenset()
        """Other replica sets that there may be by an attempt on this Epoch."""
        self.in_flight = False
        """An answer, or after acceptance the image, is waited for."""
        self.unsettled = False
        """An attempt on this Epoch ended without an answer."""
        self.retry_at_ns = 0
        """Monotonic: no new attempt before."""

    def maximal(self, isr: frozenset[str]) -> frozenset[str]:
        """Everyone who is, or may have become, a member."""
        return isr | self.possible if self.possible else isr

    def replica_sets(self, replicas: Collection[str]) -> Iterator[Collection[str]]:
        """Every replica set that there is, or may be."""
        yield replicas
        yield from self.sets

    def proposed(self, isr: frozenset[str], replicas: frozenset[str] | None = None) -> None:
        """An attempt leaves; ``replicas``: the set that it leads to, None: the same."""
        self.possible |= isr
        if replicas is not None:
            self.sets |= {replicas}
        self.in_flight = True

    def refused(self, retry_at_ns: int) -> None:
        """The group refused the attempt."""
        self.in_flight = False
        self.retry_at_ns = retry_at_ns
        if not self.unsettled:
            self.possible, self.sets = frozenset(), frozenset()

    def unanswered(self, retry_at_ns: int) -> None:
        """Nobody knows: keep counting its members."""
        self.in_flight = False
        self.unsettled = True
        self.retry_at_ns = retry_at_ns

    def settled(self) -> None:
        """The image shows a higher Epoch: every attempt on the old one has won or lost, and the image says which."""
        self.possible, self.sets = frozenset(), frozenset()
        self.in_flight = self.unsettled = False
