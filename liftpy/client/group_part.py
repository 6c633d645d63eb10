"""``GroupPart``: the unit of work of a group member."""

from __future__ import annotations

from dataclasses import dataclass

from liftpy.client.batch_view import BatchSlice
from liftpy.core.base.ids import PartitionKey


@dataclass(frozen=True, slots=True)
class GroupPart:
    """Records of one partition, given to one group member.

    Attributes:
        key: The partition.
        generation: Generation of this member's ownership. A later owner has a higher one.
        slice: The records.
    """

    key: PartitionKey
    generation: int
    slice: BatchSlice
