"""The commit rule: from who has flushed what to the high watermark. Pure functions, no state.

Goal: a record at or below HW survives every election that the metadata group can hold, and is the same on each replica.
Constraint: positions count only when they were acknowledged in the current LeaderEpoch by the follower's current incarnation
(``progress.py`` sees to that; an unknown position is None) [D6]; HW never falls [D8]; with fewer than ``min_isr`` members in
the ISR it does not move [D20].

``isr``: a leader is elected from the ISR only, so HW is the smallest position in the MAXIMAL ISR: while an ISR change is in
flight the old and the new set both count, since either may be the one that an election uses [C8].

``quorum``: a leader is elected by the best (last epoch, newest offset) of any majority of the replica set, so HW is the
largest offset that a majority has flushed, at least ``min_isr`` of them [D21]. A majority that holds only records of EARLIER
epochs commits nothing: a replica outside of it may hold a record of a later, failed epoch at the same offset and win the next
election by it (the classical counter-example, figure 8 of the Raft paper). So HW moves only to an offset that lies in this
epoch; then everything before it is committed with it.
Or to one that EVERY replica which may be elected has flushed in this epoch: nobody is outside of it then, so that after an
election HW reaches the log's end without another record.

Worked example, isr {a, b, c} with newest offsets a=4, b=3, c=2: HW 2. While the removal of c is in flight: still 2. Once the
metadata shows isr {a, b}: 3. Policy quorum, majority 2 of 3: HW 3 at once, if the epoch began at or below offset 3.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from liftpy.config import CommitPolicy


def isr_high_watermark(
    positions: Mapping[str, int | None], maximal_isr: Collection[str], isr_count: int, min_isr: int, high_watermark: int
) -> int:
    """New HW, inclusive. ``positions``: newest flushed offset (inclusive) by replica, None or absent when unknown."""
    if isr_count < min_isr:
        return high_watermark
    lowest: int | None = None
    for replica in maximal_isr:
        position = positions.get(replica)
        if position is None:
            return high_watermark
        lowest = position if lowest is None or position < lowest else lowest
    return high_watermark if lowest is None else max(high_watermark, lowest)


def quorum_high_watermark(
    positions: Mapping[str, int | None],
    replicas: Collection[str],
    isr_count: int,
    min_isr: int,
    epoch_start_offset: int,
    high_watermark: int,
    may_lead: Collection[str] = (),
) -> int:
    """New HW, inclusive. ``epoch_start_offset``: the leader's log end when it began to lead; ``may_lead``: who may be elected
    next, or have become so by a change in flight; empty: not known."""
    if isr_count < min_isr:
        return high_watermark
    if len(may_lead) >= max(min_isr, 1):
        high_watermark = isr_high_watermark(positions, may_lead, isr_count, min_isr, high_watermark)
    needed = max(len(replicas) // 2 + 1, min_isr)
    known = sorted((p for p in map(positions.get, replicas) if p is not None), reverse=True)
    if len(known) < needed:
        return high_watermark
    flushed_by_enough = known[needed - 1]
    return max(high_watermark, flushed_by_enough) if flushed_by_enough >= epoch_start_offset else high_watermark


def new_high_watermark(
    policy: CommitPolicy,
    positions: Mapping[str, int | None],
    *,
    replicas: Collection[str],
    isr: Collection[str],
    maximal_isr: Collection[str],
    min_isr: int,
    epoch_start_offset: int,
    high_watermark: int,
    may_lead: Collection[str] = (),
) -> int:
    """HW after the leader looked at all positions, its own included; never below ``high_watermark``."""
    if policy is CommitPolicy.QUORUM:
        heirs = frozenset(may_lead).union(maximal_isr) if may_lead else ()
        return quorum_high_watermark(positions, replicas, len(isr), min_isr, epoch_start_offset, high_watermark, heirs)
    return isr_high_watermark(positions, maximal_isr, len(isr), min_isr, high_watermark)
