"""``CatchupThrottle``: limits how fast the learners of a node copy, so that publishers and readers are hardly affected.

A learner is a node that copies a partition before it becomes a replica. Learners copy small pieces in turns. A turn
lasts as long as the longest of:

- its bytes / ``bytes_per_second``,
- the time from its fetch to the end of its flush / ``share``, so that copies slow down when network, leader, CPU or
  disk are busy.

A turn never lasts longer than its bytes / ``least_bytes_per_second``, so a copy always ends.

Only the backlog counts, not new records. If an answer has ``n`` records and the leader's high watermark rose by ``g``
in the meantime, the share (n - g) / n of its bytes counts. A learner at the log end is not throttled.

Example: 10 MB/s and a share of 0.2. A piece of 100 kB is requested at 5.000 s and flushed at 5.006 s. Its bytes take 10
ms, its time 30 ms, so the next turn begins at 5.030 s.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from liftpy.config import NS_PER_S, ReplicationConfig

_TURNS_PER_S = 20
"""Minimum number of turns per second, so that turns are short if the rate is low."""
LEAST_PIECE_BYTES = 4096


@dataclass(slots=True, kw_only=True)
class CatchupThrottle:
    """Limits the total copy rate of all learners of a node. ``bytes_per_second``: maximum rate. 0: no limit."""

    bytes_per_second: int = 0
    least_bytes_per_second: int = 0
    """Minimum copy rate, in bytes per second. 0: a busy machine may delay a turn without limit."""
    share: float = 1.0
    """Maximum share of the time in which copies are in flight, from 0 to 1."""
    piece_bytes: int = 0
    """Maximum size of one fetch of a learner, in bytes. 0: as much as a follower requests."""
    copied_bytes: int = 0
    """Number of stored bytes that learners of this node have copied."""
    backlog_bytes: int = 0
    """Number of copied bytes that counted for the rate, because they were backlog."""
    waited_ns: int = 0
    """Total time by which fetches were delayed, in nanoseconds."""
    yielded_ns: int = 0
    """Total time that turns took in addition to the time for their bytes, in nanoseconds."""
    _free_ns: int = field(default=0, repr=False)
    _turn_ns: int = field(default=0, repr=False)
    """Duration of the last turn, in nanoseconds. The current turn is expected to take as long."""

    @classmethod
    def from_config(cls, config: ReplicationConfig) -> CatchupThrottle:
        throttle = cls()
        throttle.change(config)
        return throttle

    def change(self, config: ReplicationConfig) -> None:
        self.bytes_per_second, self.share = config.copy_bytes_per_s, config.copy_duty_cycle
        self.least_bytes_per_second, self.piece_bytes = config.copy_min_bytes_per_s, config.copy_fetch_bytes
        self._turn_ns = 0

    @property
    def fetch_bytes(self) -> int:
        """Maximum size of one fetch of a learner, in bytes, without the growth of its partition. 0: no special limit for learners."""
        if not self.bytes_per_second:
            return 0
        fetch_bytes = max(self.bytes_per_second // _TURNS_PER_S, LEAST_PIECE_BYTES)
        return min(fetch_bytes, self.piece_bytes) if self.piece_bytes else fetch_bytes

    def turn(self, now_ns: int) -> tuple[int, int]:
        """Reserve the next free turn for a learner. A turn is the time in which one learner copies one piece.

        Return (monotonic time at which the turn begins, its expected duration), in nanoseconds.
        """
        begins_ns = max(self._free_ns, now_ns)
        self._free_ns = begins_ns + self._turn_ns
        self.waited_ns += begins_ns - now_ns
        return begins_ns, self._turn_ns

    def record_copy(self, size_bytes: int, backlog_bytes: int) -> None:
        """Add the ``size_bytes`` of an answer to a learner to the totals. ``backlog_bytes``: the part that the rate limits."""
        self.copied_bytes += size_bytes
        self.backlog_bytes += backlog_bytes

    def release(self, reserved_ns: int) -> None:
        """Release a reserved turn that was not used. ``reserved_ns``: its expected duration."""
        self._free_ns -= reserved_ns

    def flushed(self, size_bytes: int, backlog_bytes: int, request_ns: int, now_ns: int, reserved_ns: int = 0) -> None:
        """End a turn, because the copied bytes are flushed. Compute from its length when the next turn may begin.

        Args:
            size_bytes: Size of the copied batches.
            backlog_bytes: Part of ``size_bytes`` that the rate limits.
            request_ns: Monotonic time at which the learner sent its fetch.
            now_ns: Monotonic time at the end of the flush.
            reserved_ns: Expected duration that ``turn`` reserved. 0: no turn was reserved.
        """
        if not self.bytes_per_second or not backlog_bytes:
            self.release(reserved_ns)
            return
        bytes_ns = turn_ns = backlog_bytes * NS_PER_S // self.bytes_per_second
        took_ns = round((now_ns - request_ns) * backlog_bytes / size_bytes / self.share)
        if took_ns > bytes_ns:
            most_ns = backlog_bytes * NS_PER_S // self.least_bytes_per_second if self.least_bytes_per_second else took_ns
            turn_ns = max(bytes_ns, min(took_ns, most_ns))
            self.yielded_ns += turn_ns - bytes_ns
        self._free_ns = max(self._free_ns - reserved_ns, request_ns) + turn_ns
        self._turn_ns = turn_ns


@dataclass(slots=True)
class LearnerCopy:
    """Copy of one learner: the turn that it has reserved, and the sizes of its last answer. ``throttle``: throttle of the node."""

    throttle: CatchupThrottle
    _asked_ns: int = 0
    _reserved_ns: int = 0
    _size_bytes: int = 0
    _backlog_bytes: int = 0
    _grown_bytes: int = 0
    """Approximate growth of the partition while the last piece was in flight, in bytes."""

    def fetch_sent(self, now_ns: int, most_bytes: int) -> int:
        """Note that the learner sends a fetch at ``now_ns``. Return the maximum size that it may request, in bytes.

        ``most_bytes``: maximum size that any follower may request.
        """
        self._asked_ns = now_ns
        self._size_bytes = self._backlog_bytes = 0
        fetch_bytes = self.throttle.fetch_bytes
        return min(most_bytes, fetch_bytes + self._grown_bytes) if fetch_bytes else most_bytes

    def answered(self, size_bytes: int, record_count: int, grown: int) -> None:
        """Record the answer to the learner's fetch: ``size_bytes`` with ``record_count`` records.

        ``grown``: number of records by which the leader's HW has risen since the fetch was sent.
        """
        self._size_bytes, self._backlog_bytes = size_bytes, backlog_part(size_bytes, record_count, grown)
        self._grown_bytes = size_bytes * grown // record_count if record_count > 0 else 0
        self.throttle.record_copy(size_bytes, self._backlog_bytes)

    def flushed(self, now_ns: int) -> None:
        self.throttle.flushed(self._size_bytes, self._backlog_bytes, self._asked_ns, now_ns, self._reserved_ns)
        self._reserved_ns = 0

    def turn(self, now_ns: int) -> int:
        """Reserve the learner's next turn. Return the monotonic time from which the learner may fetch, in nanoseconds."""
        self.release()
        begins_ns, self._reserved_ns = self.throttle.turn(now_ns)
        return begins_ns

    def release(self) -> None:
        """Release the turn that the learner has reserved, because the learner does not fetch."""
        self.throttle.release(self._reserved_ns)
        self._reserved_ns = 0


def backlog_part(size_bytes: int, record_count: int, grown: int) -> int:
    """Return how many of ``size_bytes`` belong to the backlog of a learner, and not to new records.

    The answer has ``record_count`` records. The partition grew by ``grown`` records while the fetch was in flight.
    """
    return size_bytes * max(record_count - grown, 0) // record_count if record_count > 0 else 0
