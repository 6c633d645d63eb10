"""Metrics that a controller derives from images: elections, failovers, leaderless partitions. Pure.

Each controller counts from its own start. The value for the cluster is the largest value of all controllers, not the
sum. A failover lasts from the moment that this controller sees the partition without a leader until it is Online.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from liftpy.config import NS_PER_S
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.instruments import Histogram
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.image_delta import PartitionChange, diff

KINDS = ("clean", "transfer", "unclean")
_ELECTING = (PartitionStatus.ELECTION, PartitionStatus.CANDIDATE_FOUND)


class ControllerMetrics:
    """Counts elections and failovers from changes of the image.

    ``failovers``: histogram of their durations in seconds. ``tell``: called at each election with the partition, the kind, and
    the monotonic time in ns when the partition lost its leader.
    """

    def __init__(
        self, failovers: Histogram | None = None, tell: Callable[[PartitionKey, str, int], None] | None = None
    ) -> None:
        self.failovers = failovers or Histogram()
        self._tell = tell
        self.elections: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        self.folders_lost = 0
        """Number of nodes that registered with another data directory than before."""
        self.lost_directory_ns: dict[str, int] = {}
        """Node -> monotonic time when it last registered with another data directory, in nanoseconds. Removed nodes are left out."""
        self.offline = 0
        """Number of partitions that no node may lead."""
        self.electing = 0
        """Number of partitions with a running election."""
        self.suspect: dict[PartitionKey, PartitionState] = {}
        """Leaderless partitions whose last in-sync replicas may have lost records. An operator must decide [C10]."""
        self._without: dict[PartitionKey, int] = {}
        """Partition -> monotonic time since which it has no leader, in nanoseconds."""
        self._unclean: set[PartitionKey] = set()
        """Partitions in an unclean election: an operator chose a replica that may lack records."""
        self._seen = ClusterImage()

    def update(self, image: ClusterImage, now_ns: int) -> None:
        before, self._seen = self._seen, image
        if image.nodes is not before.nodes:
            known = {node_id: node.folder_id for node_id, node in before.nodes.items()}
            lost = [one.node_id for one in image.nodes.values() if known.get(one.node_id, "") not in ("", one.folder_id)]
            self.folders_lost += len(lost)
            self.lost_directory_ns |= dict.fromkeys(lost, now_ns)
            self.lost_directory_ns = {node_id: ns for node_id, ns in self.lost_directory_ns.items() if node_id in image.nodes}
        for change in diff(before, image).partitions:
            self._count(change, now_ns)

    def _count(self, change: PartitionChange, now_ns: int) -> None:
        old, new = change.old, change.new
        for state, step in ((old, -1), (new, 1)):
            if state is not None:
                self.offline += step * (state.status is PartitionStatus.OFFLINE)
                self.electing += step * (state.status in _ELECTING)
        if new is not None and new.status is PartitionStatus.OFFLINE and not set(new.isr).isdisjoint(new.incomplete):
            self.suspect[change.key] = new
        else:
            self.suspect.pop(change.key, None)
        if new is None or old is None:
            self._without.pop(change.key, None)
            self._unclean.discard(change.key)
            return
        if new.unclean_elected and not old.unclean_elected:
            self._unclean.add(change.key)
        if new.status is not PartitionStatus.ONLINE:
            self._without.setdefault(change.key, now_ns)
            return
        since_ns = self._without.pop(change.key, now_ns)
        if new.leaderships > old.leaderships or new.leader_epoch > old.leader_epoch or since_ns != now_ns:
            kind = "unclean" if change.key in self._unclean else _kind(old, new)
            self._unclean.discard(change.key)
            self.elections[kind] += 1
            if kind != "transfer":
                self.failovers.observe((now_ns - since_ns) / NS_PER_S)
                if self._tell is not None:
                    self._tell(change.key, kind, since_ns)


def _kind(old: PartitionState, new: PartitionState) -> str:
    before = old.deposed or old.leader or old.last_leader
    return "transfer" if before and before != new.leader and before in new.isr else "clean"
