"""Whose disks hold everything that was committed, as the next election counts them: what a fault may take away. Part of the checkers.

By ISR one member that has everything is enough: it is elected. By quorum an election also needs so many eligible replicas that no
majority is without one of them (``cluster/election.py``): a fault that leaves fewer has taken the partition away, though one holds all.
"""

from __future__ import annotations

from collections.abc import Collection

from liftpy.cluster.image import StreamImage
from liftpy.config import CommitPolicy
from liftpy.partition import PartitionState


def others_hold_enough(
    stream: StreamImage, partition: PartitionState, left_out: Collection[str], whole: Collection[str]
) -> bool:
    """Whether the partition goes on without those that are ``left_out``; ``whole``: the nodes whose disk holds everything."""
    by_quorum = stream.config.commit_policy is CommitPolicy.QUORUM
    able = stream.may_lead(partition) if by_quorum else partition.isr
    needed = (len(partition.replicas) + 1) // 2 if by_quorum else 1
    return len({*able} & {*whole} - {*left_out}) >= needed
