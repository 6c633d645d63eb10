"""Which replica a leader has go, while its partition moves. Pure functions; what leads there is in ``cluster/decisions/moving.py``.

Goal: the replica that is not wanted any more goes, and the records lose neither a copy nor a majority by it.
Constraint: nobody goes while fewer complete copies than are wanted would stay, but for one that is outside the ISR: it is no copy.
And at least ``min.isr`` members stay, so that commits go on. By ``quorum`` any majority of the replicas elects the next leader, and
two sets that differ by one node have a replica in common in any two of their majorities; but that says nothing of a majority that has
lost something since: so a majority of those that stay must hold everything that is or may be committed, by what they told in
this LeaderEpoch (as of who joins the ISR, ``lag.may_join``).
A leader that is to go itself hands the leadership over first, under the same conditions.

Worked example: replicas a b d c, wanted a b d, ISR a b d c: c goes. ISR a b c, for d has died again: c stays, it is the third copy.
ISR a b d: c goes, whatever it has. Policy ``quorum``, HW 40, of a b d at 41, 17 and 39: c stays until b or d has caught up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from liftpy.partition import PartitionState


def next_to_go(state: PartitionState, isr: frozenset[str], min_isr: int) -> str:
    """The replica that may go now, the leader itself perhaps; '': none. ``isr``: as it is to be."""
    leaving = state.leaving
    if not leaving or state.joining in isr:  # one change of the replica set at a time
        return ""
    staying = isr - {leaving}
    enough = len(staying) >= min_isr and (leaving not in isr or len(staying) >= len(state.target))
    return leaving if enough else ""


def majority_holds(
    state: PartitionState, leaving: str, positions: Mapping[str, int | None], high_watermark: int, epoch_start_offset: int
) -> bool:
    """Whether without ``leaving`` a majority of the replicas holds everything that may be committed. ``positions``: newest flushed
    offset, inclusive, in this LeaderEpoch, this node's own included."""
    staying = [node for node in state.replicas if node != leaving]
    needed_offset = max(high_watermark, epoch_start_offset - 1)
    told = [positions.get(node) for node in staying if node not in state.incomplete]
    return sum(position is not None and position >= needed_offset for position in told) > len(staying) // 2


def heir(state: PartitionState, caught_up: Iterable[str]) -> str:
    """Toward whom a leader that is to go hands over: the first that is wanted; '': nobody is ready. ``caught_up``: live members
    of the ISR that are not behind."""
    ready = frozenset(caught_up)
    return next((node for node in state.target if node in ready and node in state.isr), "")
