"""Preferred leaders: moves leaderships back to the first replica of a partition. Pure.

``misplaced`` lists partitions with another leader. If the setting is on, ``PreferredLeaders`` moves them by planned
transfers: when they were misplaced at two checks in a row, at most ``MOVES_AT_ONCE`` per check, and never during an
election.
"""

from __future__ import annotations

from liftpy.config import NS_PER_S
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionStatus
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb

MOVES_AT_ONCE = 32


def misplaced(image: ClusterImage) -> list[tuple[PartitionKey, str]]:
    """(partition, its preferred leader) of every partition that another one leads and that could go back without loss."""
    return [
        (stream.key(partition.partition), partition.replicas[0])
        for stream in sorted(image.streams.values(), key=lambda stream: stream.name)
        for partition in stream.partitions
        if partition.status is PartitionStatus.ONLINE
        and partition.leader != partition.replicas[0]
        and partition.replicas[0] in partition.isr
        and partition.replicas[0] not in partition.incomplete
        and image.is_live(partition.replicas[0])
        and not image.nodes[partition.replicas[0]].leaving
    ]


class PreferredLeaders:
    """The metadata leader's look at it, every ``every_s`` seconds; 0: never. ``now_ns`` is monotonic."""

    def __init__(self, every_s: float) -> None:
        self._every_ns = round(every_s * NS_PER_S)
        self._next_ns: int | None = None
        self._leads = False
        self._seen: frozenset[PartitionKey] = frozenset()

    def lead(self, now_ns: int) -> None:
        """Begin: this node is the metadata leader."""
        self._seen = frozenset()
        self._leads = True
        self._next_ns = now_ns + self._every_ns if self._every_ns else None

    def resign(self) -> None:
        """End: this node lost the metadata leadership."""
        self._next_ns = None
        self._leads = False

    def change(self, every_s: float) -> None:
        """Change the interval. The first check runs at once, the second one moves leaderships that are still misplaced."""
        self._every_ns = round(every_s * NS_PER_S)
        self._seen = frozenset()
        self._next_ns = 0 if self._every_ns and self._leads else None

    def due(self, image: ClusterImage, now_ns: int) -> list[pb.ElectLeader]:
        """The transfers to propose now."""
        if self._next_ns is None or now_ns < self._next_ns:
            return []
        self._next_ns = now_ns + self._every_ns
        found, before = misplaced(image), self._seen
        self._seen = frozenset(key for key, _ in found)
        if any(p.status is not PartitionStatus.ONLINE for stream in image.streams.values() for p in stream.partitions):
            return []
        moves = [(key, node) for key, node in found if key in before][:MOVES_AT_ONCE]
        return [pb.ElectLeader(stream=key.stream, uid=key.uid, partition=key.partition, node=node) for key, node in moves]

    def next_deadline_ns(self) -> int | None:
        """Return the time of the next call of ``due``."""
        return self._next_ns
