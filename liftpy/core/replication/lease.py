"""The lease: until when this node may speak for the partitions that it leads [D22].

Goal: a leader that has been replaced, but has not heard of it (paused, cut off), acknowledges nothing.
Constraint: the metadata leader gives a node's leaderships away only when its session has ended, ``session_s`` after the last
heartbeat that it RECEIVED. The lease runs ``lease_s < session_s`` from when that heartbeat was SENT, on this node's own
monotonic clock, so it ends before the session does, whatever the answer's way back took. An answer counts only when the
local image shows everything that the answer was made on (``MetadataHeard``). From feature level 5 on the answer says how long the
lease is: whoever answered knows of no other one.

Succession: a new leader says nothing while one before it may still speak [A2, D22, R4].

Goal: one speaker at a time. A leader that was deposed while its session lasted (by reports of its followers, or moved by command) and
that does not know it yet may acknowledge, refuse and answer "latest" until its lease ends.
Constraint: its lease can only come from answers made before the change that deposed it was recorded: later ones count only with
the image that shows the change. So it has ended ``lease_s`` after anybody heard of that change.
The lease is the longest that anybody may hold by the image that shows the change: those from before a change of the cluster's session
times count until that is settled.
Algorithm: every replica remembers whose leaderships have ended, each for ``lease_s`` from when it heard. It does not take the next
leader's word for it: leaderships may change faster than leases end, and a leader that was deposed before it opened knows
nothing of the one before. The metadata counts the leaderships of a partition; where this replica has missed one (it was down, or
heard only of the last of several changes), any other replica may have been the leader. A suspect is cleared when its session has
ended (fenced, or another incarnation), or when it asks for something in the new epoch: then it has stepped down.
So the usual fail-over, by a session that ended, waits for nothing; a planned transfer waits for one round trip.

Worked example: a leads in epoch 1 and is cut off from the metadata; the leadership is moved to c (epoch 2) and at once on to b
(epoch 3). c follows b and asks it at once, but a may speak for ``lease_s`` after b heard of epoch 2: b waits for a.
"""

from __future__ import annotations

from collections.abc import Mapping

from liftpy.core.base.partition import PartitionState, PartitionStatus


class Lease:
    """Times in ns, monotonic."""

    __slots__ = ("_length_ns", "_until_ns")

    def __init__(self, length_ns: int) -> None:
        self._length_ns = length_ns
        self._until_ns: int | None = None  # exclusive; None: never granted

    def heard(self, sent_ns: int, lease_ns: int = 0) -> None:
        """A heartbeat sent at ``sent_ns`` was answered, with a lease of ``lease_ns``; 0: of this node's own length. Answers may arrive
        in any order."""
        until_ns = sent_ns + (lease_ns or self._length_ns)
        if self._until_ns is None or until_ns > self._until_ns:
            self._until_ns = until_ns

    def is_current(self, now_ns: int) -> bool:
        """Whether acknowledgements may leave at ``now_ns``."""
        return self._until_ns is not None and now_ns < self._until_ns

    def until_ns(self, now_ns: int) -> int:
        """When it runs out, or ``now_ns`` if it has."""
        return self._until_ns if self._until_ns is not None and self._until_ns > now_ns else now_ns


class Succession:
    """Who led before and may still speak, as one replica knows it. Times in monotonic ns."""

    __slots__ = ("_ended", "_last", "_lease_ns", "_node_id", "_suspects")

    def __init__(self, node_id: str, lease_ns: int) -> None:
        self._node_id = node_id
        self._lease_ns = lease_ns
        self._ended = 0
        """Number of the last leadership that is known to have ended."""
        self._last = (0, "", 0)
        """(number of the leadership, leader, its incarnation) that was seen last."""
        self._suspects: dict[str, tuple[int, int]] = {}
        """Node -> (incarnation, until when it may speak)."""

    def partition_changed(self, state: PartitionState, live: Mapping[str, int], now_ns: int, longest_lease_ns: int = 0) -> None:
        """The metadata shows the partition in ``state``; ``live``: node -> incarnation; the lease as in HeldPartition."""
        online = state.status is PartitionStatus.ONLINE
        ended = state.leaderships - online
        if ended > self._ended:
            number, leader, incarnation = self._last
            seen = ended == self._ended + 1 == number
            suspects = {leader: incarnation} if seen else {node: live.get(node, 0) for node in state.replicas}
            until_ns = now_ns + (longest_lease_ns or self._lease_ns)
            for node, held in suspects.items():
                if node != self._node_id:
                    known = self._suspects.get(node)
                    until = until_ns if known is None or known[0] != held else max(until_ns, known[1])
                    self._suspects[node] = (held, until)
            self._ended = ended
        if online:
            self._last = (state.leaderships, state.leader, live.get(state.leader, 0))
        self._suspects = {node: held for node, held in self._suspects.items() if live.get(node, 0) == held[0] != 0}

    def asked_by(self, replica: str) -> None:
        """``replica`` asked for something in the newest epoch."""
        self._suspects.pop(replica, None)

    def is_over(self, now_ns: int) -> bool:
        """Whether a new leader may speak."""
        return all(until_ns <= now_ns for _, until_ns in self._suspects.values())

    def until_ns(self) -> int:
        """When it is over at the latest; 0: it is."""
        return max((until_ns for _, until_ns in self._suspects.values()), default=0)
