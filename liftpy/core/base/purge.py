"""Purges: records that operators delete by subject or key. Pure.

Tracks which replicas are done, and when the metadata can drop a purge.

Goal: no replica of a partition serves a purged record, not even a replica that is down now. No purge stays in the metadata
forever.

Rules: a purge has a number, and an end offset (exclusive) at or below HW + 1 at the time of the request. Each replica
cleans its own log (``liftpy/core/log/compaction.py``), and reports the largest number whose records it no longer has. The
report counts while the replica is in the ISR. A replica outside may copy the records again from one that is not clean yet.
A purge is forgotten when every holder, the learner included, has reported it. An unclean election forgets all purges,
because offsets are assigned again.

Worked example: holders a, b and c, all in the ISR, purge 7. a and b report 7. c is down and leaves the ISR, so the purge
stays. c returns and fetches the rest of the log. It drops the purged records that it has, joins the ISR and reports 7. The
purge is forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from liftpy.core.base.partition import PartitionState, Purge, PurgeReport

MAX_PURGES = 8
"""Maximum number of pending purges of a partition."""
MAX_PURGE_BYTES = 1024
"""Maximum size of the subjects and keys of all purges, in bytes. Every controller and every node keeps them."""


def with_purge(partition: PartitionState, purge: Purge) -> PartitionState | None:
    """Return ``partition`` with the pending purge ``purge`` added. None: there is no room for another purge.

    The purge replaces one with equal subjects and keys and a smaller end. If that one has the same or a larger end, the
    partition is returned unchanged.
    """
    same = [p for p in partition.purges if (p.subjects, p.keys) == (purge.subjects, purge.keys)]
    if any(p.end_offset >= purge.end_offset for p in same):
        return partition
    others = [p for p in partition.purges if p not in same]
    if len(others) >= MAX_PURGES or sum(p.size_bytes for p in (*others, purge)) > MAX_PURGE_BYTES:
        return None
    return replace(partition, purges=(*others, purge))


def with_report(partition: PartitionState, node: str, number: int) -> PartitionState:
    """Return ``partition`` with the report that ``node`` has completed all purges up to ``number``.

    It is returned unchanged if ``node`` is not in the ISR, or if the report is not new.
    """
    if node not in partition.isr or number <= reported_number(partition, node) or not partition.purges:
        return partition
    return replace(
        partition, purged=(*(report for report in partition.purged if report.node != node), PurgeReport(node, number))
    )


def reported_number(partition: PartitionState, node: str) -> int:
    """Return the highest purge number that ``node`` has reported. 0: none."""
    return next((report.number for report in partition.purged if report.node == node), 0)


def without_completed(partition: PartitionState) -> PartitionState:
    """Return ``partition`` without completed purges and without reports of nodes outside the ISR."""
    if not partition.purges:
        return replace(partition, purged=()) if partition.purged else partition
    reports = {s.node: s for s in partition.purged if s.node in partition.isr}
    done = min((reports[node].number if node in reports else 0 for node in partition.holders), default=0)
    purges = tuple(purge for purge in partition.purges if purge.number > done)
    purged = tuple(reports[node] for node in partition.holders if node in reports) if purges else ()
    if (purges, purged) == (partition.purges, partition.purged):
        return partition
    return replace(partition, purges=purges, purged=purged)


def to_report(partition: PartitionState, node: str, purged: Collection[int]) -> int:
    """Return the purge number that ``node`` should report to the controller. 0: there is nothing new.

    ``purged``: numbers of the purges whose records are no longer in the node's log.
    """
    number = 0
    for purge in partition.purges:
        if purge.number not in purged:
            break
        number = purge.number
    return number if number > reported_number(partition, node) and node in partition.isr else 0


def waits_for(partition: PartitionState, purge: Purge) -> Sequence[str]:
    """Return the holders that have not reported ``purge`` as completed."""
    return [node for node in partition.holders if reported_number(partition, node) < purge.number]
