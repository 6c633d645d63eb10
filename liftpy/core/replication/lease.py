"""The lease: how long this node may send acks for the partitions that it leads [D22].

A leader must not ack after it was replaced, even if it does not know it yet. The metadata leader moves its leaderships to other
nodes when its session ends, ``session_s`` after the last heartbeat that arrived. The lease lasts ``lease_s`` (shorter) from the
sending of that heartbeat, by the node's own clock. So it ends before the session. From feature level 5 on, the heartbeat answer
contains the length of the lease.

All replicas of a node share one lease. A heartbeat answer extends it without an event for each partition. A replica compares it
with the clock whenever it sends an ack, so a late timer does no harm. A replica that does not know the newest metadata of its
partition yet keeps the lease that it had before (``ReplicaLease``).

Succession: a new leader sends nothing while an earlier leader may still ack [A2, D22, R4]. A leader that was deposed during its
session may ack until its lease ends. Each replica therefore stores ended leaderships for the length of a lease. If it missed
one, any other replica may have been the leader. An earlier leader no longer counts when its session has ended, or when it sends
a request in the new epoch. So a normal failover waits for nothing, and a planned transfer waits for one round trip.

``DataPath`` decides whether a node can serve its leaderships with its current NATS connections.

Example: a leads in epoch 1 and loses its connection to the metadata group. The leadership moves to c (epoch 2) and then to b
(epoch 3). c contacts b at once, but a may ack for ``lease_s`` after b learned of epoch 2. So b waits for a.
"""

from __future__ import annotations

from collections.abc import Mapping

from liftpy.config import NS_PER_S
from liftpy.core.base.partition import PartitionState, PartitionStatus

REPLICATION, INGEST = "replication", "ingest"
"""Names of the connections that a leader needs."""
INGEST_GRACE_NS = 10 * NS_PER_S
GRACES_NS = {REPLICATION: 0, INGEST: INGEST_GRACE_NS}
"""Connection -> time that it may be down before the data path counts as down, in nanoseconds."""


class Lease:
    """Lease of this node for sending acks as a leader. All replicas of the node share it. All times are monotonic nanoseconds."""

    __slots__ = ("_length_ns", "_until_ns")

    def __init__(self, length_ns: int) -> None:
        self._length_ns = length_ns
        self._until_ns: int | None = None  # exclusive; None: never granted

    def extend(self, sent_ns: int, lease_ns: int, now_ns: int) -> bool:
        """Extend the lease after the answer to a heartbeat that was sent at ``sent_ns``. Answers may arrive in any order.

        The image must be as new as the answer, and each replica with a newer state must know of it (``announce_change``).

        Args:
            sent_ns: Time at which the heartbeat was sent.
            lease_ns: Length of the lease. 0: the length in this node's settings.
            now_ns: Time of the call.

        Returns:
            True if the lease had ended before. The leaders of the node then need the event LeaseChanged, because acks may wait.
        """
        had_ended = not self.is_current(now_ns)
        until_ns = sent_ns + (lease_ns or self._length_ns)
        if self._until_ns is None or until_ns > self._until_ns:
            self._until_ns = until_ns
        return had_ended

    def is_current(self, now_ns: int) -> bool:
        return self._until_ns is not None and now_ns < self._until_ns

    def until_ns(self, now_ns: int) -> int:
        """Return the monotonic time at which the lease ends. If it has already ended, return ``now_ns``."""
        return self._until_ns if self._until_ns is not None and self._until_ns > now_ns else now_ns


class ReplicaLease:
    """Lease of the node, as one replica of the node may use it [D22].

    The node's lease is valid for the newest image of the node. It may show that this replica no longer leads. The replica
    learns of that later, because partitions are updated one after the other and their events may wait for the disk. From
    ``announce_change`` until ``record_change``, the replica therefore has only the lease that it had before.
    """

    __slots__ = ("_announced", "_known", "_until_ns", "node_lease")

    def __init__(self, node_lease: Lease) -> None:
        self.node_lease = node_lease
        self._announced = 0
        """Number of changes of the partition that the image of the node has shown."""
        self._known = 0
        """Number of these changes that the replica has processed."""
        self._until_ns = 0
        """Time until which the replica has a lease while it lags behind, exclusive."""

    @property
    def announced(self) -> int:
        """Number of changes that the image of the node has shown. A PartitionChanged that is built now contains all of them."""
        return self._announced

    @property
    def lags(self) -> bool:
        """True if the image shows a change that the replica has not processed."""
        return self._known != self._announced

    def announce_change(self, now_ns: int) -> None:
        """Record that the image shows a change that the replica has not processed. The node's lease does not extend this one now."""
        self._until_ns = self.until_ns(now_ns)
        self._announced += 1

    def record_change(self, announced: int) -> None:
        """Record that the replica processes the changes up to the number ``announced``."""
        self._known = max(self._known, announced)

    def is_current(self, now_ns: int) -> bool:
        return now_ns < self._until_ns if self._known != self._announced else self.node_lease.is_current(now_ns)

    def until_ns(self, now_ns: int) -> int:
        """Return the monotonic time at which the lease ends. If it has already ended, return ``now_ns``."""
        return max(self._until_ns, now_ns) if self.lags else self.node_lease.until_ns(now_ns)


class EarlierLeaders:
    """Earlier leaders that may still send acks, as one replica knows them. Times are monotonic nanoseconds."""

    __slots__ = ("_ended", "_last", "_lease_ns", "_node_id", "_suspects")

    def __init__(self, node_id: str, lease_ns: int) -> None:
        self._node_id = node_id
        self._lease_ns = lease_ns
        self._ended = 0
        """Number of the newest leadership that is known to have ended."""
        self._last = (0, "", 0)
        """Newest known leadership: (number, leader, incarnation of the leader)."""
        self._suspects: dict[str, tuple[int, int]] = {}
        """Earlier leader -> (its incarnation, time until which it may send acks)."""

    def partition_changed(self, state: PartitionState, live: Mapping[str, int], now_ns: int, longest_lease_ns: int = 0) -> None:
        """Record a new state of the partition in the metadata. It may show that a leadership has ended.

        Args:
            state: New state of the partition.
            live: Node id -> incarnation of each node that is not fenced.
            now_ns: Monotonic time, in nanoseconds.
            longest_lease_ns: Longest lease that another node may have, in nanoseconds. 0: the lease in this node's
                settings.
        """
        online = state.status is PartitionStatus.ONLINE
        ended = state.leaderships - online
        if ended > self._ended:
            number, leader, incarnation = self._last
            seen = ended == self._ended + 1 == number
            suspects = {leader: incarnation} if seen else {node: live.get(node, 0) for node in state.replicas}
            until_ns = now_ns + (longest_lease_ns or self._lease_ns)
            for node, node_incarnation in suspects.items():
                if node != self._node_id:
                    known = self._suspects.get(node)
                    until = until_ns if known is None or known[0] != node_incarnation else max(until_ns, known[1])
                    self._suspects[node] = (node_incarnation, until)
            self._ended = ended
        if online:
            self._last = (state.leaderships, state.leader, live.get(state.leader, 0))
        self._suspects = {
            node: node_incarnation
            for node, node_incarnation in self._suspects.items()
            if live.get(node, 0) == node_incarnation[0] != 0
        }

    def record_fetch(self, replica: str) -> None:
        """Record that ``replica`` sent a request in the newest LeaderEpoch. It therefore no longer acts as an earlier leader."""
        self._suspects.pop(replica, None)

    def is_over(self, now_ns: int) -> bool:
        """Return whether no earlier leader can send acks at ``now_ns``, so that a new leader may send them."""
        return all(until_ns <= now_ns for _, until_ns in self._suspects.values())

    def until_ns(self) -> int:
        """Return the latest monotonic time until which an earlier leader may send acks. 0: no earlier leader may."""
        return max((until_ns for _, until_ns in self._suspects.values()), default=0)


class DataPath:
    """State of a node's data path: the connections for replication and for publishes that a leader needs.

    Without the replication connection, the node is cut off at once. Without the publish connection, it is cut off only after a
    while: NATS may close it as a slow consumer under load, it reconnects soon, and an election would not help.
    """

    def __init__(self) -> None:
        self._down_ns: dict[str, int] = {}
        """Lost connection -> monotonic time from which the data path counts as down."""
        self._is_up = True

    def link_changed(self, link: str, is_up: bool, now_ns: int) -> bool | None:
        """Record that the connection ``link`` (REPLICATION or INGEST) was restored (``is_up``) or lost.

        Return True if the data path is up now, False if it is down now, and None if that did not change.
        """
        if is_up:
            self._down_ns.pop(link, None)
        else:
            self._down_ns.setdefault(link, now_ns + GRACES_NS[link])
        return self.check_timeout(now_ns)

    def check_timeout(self, now_ns: int) -> bool | None:
        """Check whether a lost connection has reached the end of its tolerated time.

        Return True if the data path is up now, False if it is down now, and None if that did not change.
        """
        is_up = all(now_ns < at_ns for at_ns in self._down_ns.values())
        if is_up == self._is_up:
            return None
        self._is_up = is_up
        return is_up

    def next_ns(self, now_ns: int) -> int | None:
        """Return the monotonic time of the next call of ``check_timeout``. None: no call is needed until a connection changes."""
        return min((at_ns for at_ns in self._down_ns.values() if at_ns > now_ns), default=None)


def missed_by_all_nodes(known_servers: int, before: str, after: str) -> bool:
    """Return whether certainly no node has received the messages that this node missed.

    That is so if the cluster has only one NATS server and it was restarted. ``known_servers``: number of known servers.
    ``before`` and ``after``: server id before and after the reconnect.
    """
    return known_servers == 1 and before != after
