"""NodeDerived: what all partitions of a node keep of their logs (message ids, producers, subjects) takes in memory, bounded. Pure.

Goal: many partitions with full windows do not add up without a bound. Constraint: what is inside a window is never forgotten in
silence: a repeat would be stored twice. A follower can't refuse what its leader has taken.

Algorithm: each part of each partition has a ``Share``, and says what it holds. Who leads takes something new up to seven eighths of
both bounds, that of the share and that of the node, and refuses it from there on: the rest is for what leaders on other nodes take, and
for what is not committed yet. Whoever grows beyond a bound all the same lets go of as much of its own as it has grown by, and no
more: nobody pays for his neighbours. He remembers up to when it was, and takes nothing as leader that it could have told him about,
until nothing is missing any more (``recent_ids.py``, ``producers.py``, ``last_of_subjects.py``).

Worked example: of 512 MiB 448 are taken, by ids of ten partitions. An eleventh is published to with ids: refused. A leader elsewhere
takes some, and this node follows: kept, up to 512 MiB. Behind that the follower's oldest ids go. If it is elected then, it answers
repeats that it knows, and refuses ids that it does not, until what it let go is older than the window.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

_OPEN_NUMERATOR, _OPEN_DENOMINATOR = 7, 8
_UNBOUNDED = 1 << 62


@dataclass(slots=True)
class NodeDerived:
    """Of one node. ``bound_bytes``: of memory."""

    bound_bytes: int = _UNBOUNDED
    size_bytes: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)
    """Part's name -> bytes of memory, of all partitions."""
    refused: Counter[str] = field(default_factory=Counter)
    """Part's name -> publishes, and questions of producers, that were refused for want of room or of knowledge; ever."""


class Share:
    """Of one part of one partition, named ``kind``. ``bound_bytes``: of its own; ``setting``: how that is called. All sizes are of
    memory, in bytes."""

    __slots__ = ("_node", "bound_bytes", "kind", "setting", "size_bytes")

    def __init__(self, node: NodeDerived | None, kind: str, bound_bytes: int = _UNBOUNDED, setting: str = "") -> None:
        self._node = NodeDerived() if node is None else node
        self.kind = kind
        self.bound_bytes = bound_bytes
        self.setting = setting
        self.size_bytes = 0

    def hold(self, size_bytes: int) -> None:
        """So much is held now."""
        node, grown_bytes = self._node, size_bytes - self.size_bytes
        self.size_bytes = size_bytes
        node.size_bytes += grown_bytes
        node.by_kind[self.kind] += grown_bytes

    def join(self, node: NodeDerived) -> None:
        """Count for ``node`` from now on, what is held included."""
        size_bytes = self.size_bytes
        self.hold(0)
        self._node = node
        self.hold(size_bytes)

    def beside(self) -> Share:
        """Another one of the same kind, without a bound of its own."""
        return Share(self._node, self.kind)

    def has_room(self, more_bytes: int, beside_bytes: int = 0) -> bool:
        """Whether a leader takes something new that needs ``more_bytes``. ``beside_bytes``: what stands beside this share, and goes
        into it; the node counts it already."""
        return not self.lacks(more_bytes, beside_bytes)

    def lacks(self, more_bytes: int, beside_bytes: int = 0) -> str:
        """Which setting says that there is no room for it; '': there is."""
        node = self._node
        if self.size_bytes + beside_bytes + more_bytes > self.bound_bytes * _OPEN_NUMERATOR // _OPEN_DENOMINATOR:
            return self.setting
        is_open = node.size_bytes + more_bytes <= node.bound_bytes * _OPEN_NUMERATOR // _OPEN_DENOMINATOR
        return "" if is_open else "node_dedup_state_bytes"

    def fits(self, more_bytes: int) -> bool:
        """Whether what belongs to something that is known already can grow by ``more_bytes``."""
        return self.size_bytes + more_bytes <= self.bound_bytes and self._node.size_bytes + more_bytes <= self._node.bound_bytes

    def excess_bytes(self, grown_bytes: int) -> int:
        """How much has to go, of a share that has just grown by ``grown_bytes``."""
        of_node = min(self._node.size_bytes - self._node.bound_bytes, grown_bytes)
        return max(self.size_bytes - self.bound_bytes, of_node, 0)

    def refused(self, count: int = 1) -> None:
        """So many were refused for want of it."""
        self._node.refused[self.kind] += count
