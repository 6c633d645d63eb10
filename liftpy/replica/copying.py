"""CopyPace: how fast a node's learners copy, all together. And what of an answer counts as copied.

Goal: a copy takes neither the network nor the disks from those who publish and read. Constraint: a copy ends, however much is published
meanwhile; and a learner that waits is no follower that lags: it is in no ISR, and nobody is reported for it.
Algorithm: a debt in time. What a learner fetched puts the node's next fetch of a learner off by size / rate; whoever is about to fetch
waits until the debt is paid. Learners ask for little at a time, so that the waits are short and even.
Only the backlog counts: of an answer with ``n`` records, while the leader's HW rose by ``g``, the part (n - g) / n. So the
backlog shrinks at the rate, whatever comes on top of it; and at the log end nothing is put off.

Worked example: 10 MB/s. An answer of 1 MB brings 1,000 records, and HW rose by 400 since the one before: 600 kB count, the next fetch
leaves 60 ms later, at the earliest.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from liftpy.config import NS_PER_S

LEAST_FETCH_BYTES = 64 * 1024
"""A learner asks for at least so much at a time."""
_FETCHES_PER_S = 20


@dataclass(slots=True)
class CopyPace:
    """One for a node. ``bytes_per_second`` 0: nothing is put off."""

    bytes_per_second: int = 0
    copied_bytes: int = 0
    """What learners were sent, ever, as it is stored."""
    backlog_bytes: int = 0
    """Of it, what counted."""
    waited_ns: int = 0
    """By how much fetches were put off, summed up."""
    _free_ns: int = field(default=0, repr=False)

    @property
    def fetch_bytes(self) -> int:
        """Bound of one answer to a learner; 0: none."""
        return max(LEAST_FETCH_BYTES, self.bytes_per_second // _FETCHES_PER_S) if self.bytes_per_second else 0

    def copied(self, size_bytes: int, backlog_bytes: int, now_ns: int) -> None:
        """A learner was sent ``size_bytes``, ``backlog_bytes`` of which count."""
        self.copied_bytes += size_bytes
        self.backlog_bytes += backlog_bytes
        if self.bytes_per_second and backlog_bytes:
            self._free_ns = max(self._free_ns, now_ns) + backlog_bytes * NS_PER_S // self.bytes_per_second

    def free_ns(self) -> int:
        """Monotonic: no learner fetches a backlog before."""
        return self._free_ns

    def waits(self, wait_ns: int) -> None:
        """A fetch is put off."""
        self.waited_ns += wait_ns


def backlog_part(size_bytes: int, record_count: int, grown: int) -> int:
    """Of an answer's ``size_bytes`` with ``record_count`` records, what counts when the partition has grown by ``grown`` records."""
    return size_bytes * max(record_count - grown, 0) // record_count if record_count > 0 else 0
