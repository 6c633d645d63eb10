"""What is checked of the controllers while they run; the ghost checks what they apply, ``nodes.py`` what becomes of it on nodes.

One leader per term [M1]; terms never fall over restarts [M2]; nobody cuts what the leader of the term has sent [M3]; what is committed
is flushed on a majority, and what a member has flushed it comes back with [M4]; nothing is committed, or applied, past the log [M9];
who grants a lease, or may, is the only leader there is [D22], and has applied all that was acknowledged before [M12].
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from liftpy.config import NS_PER_S
from liftpy.core.metadata.controller_list import ControllerList
from liftpy.core.metadata.sessions import DEFAULT_CONFIRMED_WITHIN_S
from tests.simulation.raft.ghost import Violation

if TYPE_CHECKING:
    from tests.simulation.raft.group_simulation import Run
    from tests.simulation.raft.member import SimMember


class Checks:
    """Of one run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.leaders: dict[int, str] = {}
        """Term -> who led in it."""
        self._terms: dict[str, int] = defaultdict(int)
        self._ends: dict[str, int] = defaultdict(int)
        """Of each member, the last index that it has flushed."""
        self._committed: dict[str, tuple[int, ControllerList]] = {}
        """Of each process after its last tick: its commit index, and the controllers as its log has them."""
        self._last: dict[str, tuple[int, int]] = {}
        """(index, term) of the last entry in the log of each process after its last tick."""

    def forgotten(self, name: str) -> None:
        """Its folder is emptied, or an older one was put back."""
        self._terms[name] = self._ends[name] = 0

    def started(self, member: SimMember) -> None:
        """A process has opened its folder: what the one before had flushed is in it."""
        name, end = member.node_id, member.log.journal.last_index
        self._last.pop(name, None)
        self._committed.pop(name, None)
        if end < self._ends[name]:
            raise Violation(f"M4: {name} had flushed its log up to {self._ends[name]}, and comes back with {end}")

    def died(self, member: SimMember) -> None:
        """Of its last tick, anything may be flushed or nothing."""
        self._ends[member.node_id] = min(member.log.journal.last_index, self._ends[member.node_id])

    def granted(self, member: SimMember) -> None:
        """A node is told that it holds a lease."""
        later = [m.node_id for m in self._run.up.values() if m.log.leads and m.log.term > member.log.term]
        if later:
            raise Violation(f"D22: {member.node_id} grants a lease in term {member.log.term}, {later[0]} leads a later one")
        last = max(self._run.acked.values(), default=0)
        if member.log.image.index < last:
            raise Violation(f"M12: {member.node_id} grants a lease on image {member.log.image.index}, {last} is acknowledged")

    def ticked(self, member: SimMember, *, flushed: bool) -> None:
        """After each tick of a controller; not ``flushed``: it dies before all of it is durable."""
        self._leadership(member)
        self._log_of(member, flushed=flushed)
        log, name = member.log, member.node_id
        stored = log.journal.getCurrentTerm()
        if log.probation.over:
            self._run.faults.votes(member)
        else:
            self._terms[name] = stored  # what it stores is no promise yet
        if flushed:
            if stored < self._terms[name]:
                raise Violation(f"M2: the term of {name} falls from {self._terms[name]} to {stored}")
            self._terms[name] = stored

    def _leadership(self, member: SimMember) -> None:
        log, name, run = member.log, member.node_id, self._run
        if log.leads and self.leaders.setdefault(log.term, name) != name:
            raise Violation(f"M1: {name} and {self.leaders[log.term]} lead in term {log.term}")
        granting = log.leads and run.now_ns() - log.confirmed_ns() <= DEFAULT_CONFIRMED_WITHIN_S * NS_PER_S
        run.seen["ticks in which a leader may grant leases"] += granting
        others = [m for m in run.up.values() if m.log.leads and m.log.term > log.term]
        if granting and others:
            raise Violation(f"D22: {name} may grant leases in term {log.term}, {others[0].node_id} leads a later one")
        run.seen["ticks of a stale metadata leader"] += log.leads and bool(others)

    def _log_of(self, member: SimMember, *, flushed: bool) -> None:
        log, name = member.log, member.node_id
        end, committed = log.journal.last_index, log.core.raftCommitIndex
        if committed > end:
            raise Violation(f"M9: {name} commits {committed}, its log ends at {end}")
        if log.applied_index > end:
            raise Violation(f"M9: {name} has applied {log.applied_index}, its log ends at {end}")
        before, before_term = self._last.get(name, (0, 0))
        if end < before and before_term == log.term:
            raise Violation(f"M3: {name} cuts {before} to {end}, which the leader of its term {log.term} had sent")
        self._last[name] = end, log.journal.last_term
        self._ends[name] = end if flushed else min(end, self._ends[name])
        was_committed, voted = self._committed.get(name, (committed - 1, log.core.controllers))
        self._committed[name] = committed, log.core.controllers
        if (
            flushed
            and log.leads
            and log.probation.over
            and (committed > was_committed or log.core.controllers.index <= committed)
        ):
            self._held_by_a_majority(name, committed, (voted, log.core.controllers))

    def _held_by_a_majority(self, name: str, committed: int, lists: tuple[ControllerList, ...]) -> None:
        """Of those that were voters when the tick began, or are since."""
        lost = self._run.faults.emptied
        holds = {node_id for node_id, end in self._ends.items() if end >= committed} | lost
        if not any(len(holds & {*one.voters}) >= one.majority for one in lists):
            raise Violation(f"M4: {name} commits {committed}, which is flushed on {sorted(holds)} of {lists[-1].voters}")
