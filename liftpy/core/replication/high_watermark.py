"""The commit rule: up to which offset the records of a partition are committed. Pure functions.

A committed record survives every election that the metadata group can hold. Only positions that were
acknowledged in the current LeaderEpoch by the current incarnation of a follower count [D6]. The high watermark never
falls [D8], and does not move with fewer than ``min_isr`` members in the ISR [D20].

- ``isr``: the high watermark is the smallest position in the maximal ISR. While an ISR change is in flight, the old and
  the new set both count [C8].
- ``quorum``: it is the largest offset that a majority of the replica set has flushed, at least ``min_isr`` of them
  [D21]. It moves only to an offset of this epoch (figure 8 of the Raft paper), or to one that every electable replica
  has flushed in this epoch.

Example, ISR a b c at offsets 4, 3 and 2: the high watermark is 2. While the removal of c is in flight: still 2. With
ISR a b: 3. Policy ``quorum``: 3 at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from liftpy.config import CommitPolicy


def isr_high_watermark(
    positions: Mapping[str, int | None], maximal_isr: Collection[str], isr_count: int, min_isr: int, high_watermark: int
) -> int:
    """Return the new HW (inclusive). ``positions``: newest flushed offset (inclusive) by replica, None or absent when unknown."""
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
    """Return the new HW (inclusive) by quorum.

    ``epoch_start_offset``: log end of the leader when it began. ``may_lead``: nodes that may be elected next, also by a
    change in flight, empty: not known.
    """
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
    """Return the new HW from all positions, including the leader's own. It never falls."""
    if policy is CommitPolicy.QUORUM:
        heirs = frozenset(may_lead).union(maximal_isr) if may_lead else ()
        return quorum_high_watermark(positions, replicas, len(isr), min_isr, epoch_start_offset, high_watermark, heirs)
    return isr_high_watermark(positions, maximal_isr, len(isr), min_isr, high_watermark)
