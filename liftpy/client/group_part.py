"""What a member of a group is given at a time."""

from __future__ import annotations

from dataclasses import dataclass

from liftpy.client.batch_view import BatchSlice
from liftpy.core.base.ids import PartitionKey


@dataclass(frozen=True, slots=True)
class GroupPart:
    """Records of one partition. ``generation``: of this member's ownership of it; whoever owns it later has a greater one."""

    key: PartitionKey
    generation: int
    slice: BatchSlice
