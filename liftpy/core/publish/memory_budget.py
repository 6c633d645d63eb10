"""``MemoryBudget``: limits the memory for publishes in progress over a whole node. Pure.

Ten times a second it adds up the memory of unprocessed publishes, delayed publishes, uncommitted records, waiting
publishers, standby buffers and waiting readers. Standby buffers and readers count only up to a share. Up to 4/5 of
``limit_bytes`` the limits of the partitions stay unchanged. Above, they shrink linearly, to zero at the limit. So the
longest queues are limited first.

Time is limited too: ``QueueDelay`` rejects publishes with a reply subject when the oldest unprocessed one has waited too
long. ``AckDelay`` detects late acks of one partition.

Example: of a limit of 1,000 MiB, 900 are in use. Half of the last fifth is left, so a partition with a limit of 64 MiB
accepts publishes while it has less than 32 MiB in progress.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from liftpy.config import NS_PER_S

_SHORT_PARTS = 8
"""Divisor of the limit while publishes queue. They are rejected until the queue is half of that limit."""
_REGAINS_PARTS = 8
"""Divisor of the time since the last rejection. The result is added to the time limit."""
_FREE = 0.8
"""Share of the memory limit below which only the limits of the partitions apply."""
STANDBY_SHARE = 0.15
READERS_SHARE = 0.10
WAITING_PUBLISHER_BYTES = 200
"""Approximate memory of a publisher that waits for an ack, in bytes."""
_MAX_CHECKS = 600
_APART_NS = 10_000_000
_APART_PARTS = 100
"""Divisor of the oldest wait. The result is the interval of the checks, so longer waits need fewer checks."""
LEAST_WAIT_MS, LONGEST_WAIT_MS = 50, 2000
"""Bounds of the retry delay in a rejection, in ms. The delay is about the time that other publishes wait."""
LEAST_LIMIT_BYTES = 16 * 1024 * 1024
DEFAULT_SHARE = 0.25
"""Share of the process memory that is the limit if the setting is 0."""


class QueueDelay:
    """Decides when publishes have waited too long, so that new ones with a reply subject are rejected, as CoDel does.

    A burst is accepted, a lasting queue is not: in a lasting queue every publish is answered late, and the throughput does not
    increase. When the oldest unprocessed publish is older than ``late_ns``, publishes are rejected until the age is below 1/16
    of it, and then again above 1/8. The limit returns to ``late_ns`` gradually: by 1/8 of the time without a rejection.

    ``late_ns``: limit without overload. 0: no limit. All times are monotonic nanoseconds.

    Example with ``late_ns`` 1 s: a burst waits 900 ms and is accepted. At 1,001 ms publishes are rejected until the age is 62
    ms. During an overload, rejection starts again at about 140 ms. 4 s after the overload, a wait of 500 ms is accepted, and
    the limit is 625 ms.
    """

    __slots__ = ("_late_ns", "_refused_ns", "_short_ns", "is_late")

    def __init__(self, late_ns: int) -> None:
        self._late_ns = late_ns
        self._short_ns = late_ns // _SHORT_PARTS
        self._refused_ns = -1
        """Time of the last rejection for lateness. -1: there was none."""
        self.is_late = False

    def bound_ns(self, now_ns: int) -> int:
        """Return the longest time that a publish may wait to be processed at ``now_ns``. Above it, publishes are rejected."""
        if self._refused_ns < 0:
            return self._late_ns
        return min(self._short_ns + (now_ns - self._refused_ns) // _REGAINS_PARTS, self._late_ns)

    def note_rejection(self, now_ns: int) -> None:
        """Record that another check rejected publishes because of overload. The limit is then shorter for a time."""
        self._refused_ns = now_ns

    def check(self, waited_ns: int, now_ns: int) -> bool:
        """Check the wait of the oldest publish that is not processed, ``waited_ns``.

        Return whether publishes with a reply subject must be rejected now.
        """
        if self.is_late:
            self._refused_ns = now_ns
            self.is_late = 2 * waited_ns > self._short_ns
        elif self._late_ns:
            self.is_late = waited_ns > self.bound_ns(now_ns)
        return self.is_late


class AckDelay:
    """Decides whether the publishers of one partition get their acks too late, because followers are too slow.

    That is the case if the oldest publish without an ack was always older than ``late_ns`` for a quarter of ``late_ns``. Times
    are monotonic nanoseconds.
    """

    __slots__ = ("_moved_ns", "_oldest_ns", "is_late")

    def __init__(self) -> None:
        self.is_late = False
        self._oldest_ns = 0
        """Arrival time of the oldest publish without an ack, at the last check. 0: its wait was at most ``late_ns``."""
        self._moved_ns = 0
        """First time after that at which another publish was the oldest. 0: none yet."""

    def check(self, since_ns: int, now_ns: int, late_ns: int, *, is_pressed: bool) -> bool:
        """Check the oldest publish that waits for its ack. Return whether acks are too late.

        Args:
            since_ns: Arrival time of this publish. 0: none waits.
            now_ns: Current time.
            late_ns: Limit. 0: acks are never too late.
            is_pressed: True if the node rejects publishes now or has done so recently.
        """
        waited_ns = now_ns - since_ns
        if not since_ns or not late_ns or waited_ns <= late_ns // 4:
            self._oldest_ns, self.is_late = 0, False
            return False
        stands = self._is_lasting(since_ns, waited_ns, now_ns, late_ns)
        self.is_late = self.is_late or stands or (is_pressed and waited_ns > late_ns // 2)
        return self.is_late

    def _is_lasting(self, since_ns: int, waited_ns: int, now_ns: int, late_ns: int) -> bool:
        """Return whether the partition has sent acks for some time, but all of them too late. ``waited_ns``: wait of the oldest
        publish.
        """
        if waited_ns <= late_ns:
            self._oldest_ns = 0
        elif not self._oldest_ns:
            self._oldest_ns, self._moved_ns = since_ns, 0
        elif since_ns != self._oldest_ns:
            self._oldest_ns = since_ns
            self._moved_ns = self._moved_ns or now_ns
            return now_ns - self._moved_ns > late_ns // 4
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePublishMemory:
    """Memory of publishes in progress on a node, by kind, in bytes."""

    unread: int = 0
    held_back: int = 0
    uncommitted: int = 0
    publishers: int = 0
    standby: int = 0
    readers: int = 0


def limit_of(setting_bytes: int, memory_bytes: int) -> int:
    """Return the memory limit of a node in bytes: the setting, or a share of the memory of the process (``memory_bytes``)."""
    return setting_bytes or max(round(memory_bytes * DEFAULT_SHARE), LEAST_LIMIT_BYTES)


class MemoryBudget:
    """Memory limit and time limit for the publishes in progress on one node.

    ``limit_bytes`` 0: no memory limit. ``late_s``: longest time that a publish waits to be processed, in seconds. 0: no time
    limit.
    """

    __slots__ = (
        "_checks", "_lateness", "is_late", "is_limited", "is_pressed", "late_ns", "limit_bytes", "open_part", "used_bytes",
        "waited_ns",
    )  # fmt: skip

    def __init__(self, limit_bytes: int = 0, late_s: float = 0.0) -> None:
        self.limit_bytes = limit_bytes
        self.late_ns = round(late_s * NS_PER_S)
        self._lateness = QueueDelay(self.late_ns)
        self._checks: deque[tuple[int, int]] = deque(maxlen=_MAX_CHECKS)
        """(number of bytes that had arrived, time of the check), for checks whose bytes are not all processed."""
        self.waited_ns = 0
        """Approximate wait of the oldest unprocessed publish, in nanoseconds."""
        self.is_late = False
        """True if publishes with a reply subject are rejected."""
        self.is_pressed = False
        """True if publishes with a reply subject are rejected now, or were recently."""
        self.used_bytes = 0
        self.is_limited = False
        """True if the limits of the partitions are reduced."""
        self.open_part = 1.0
        """Share of its own limit that each partition may use now."""

    def update_wait(self, arrived_bytes: int, done_bytes: int, now_ns: int) -> None:
        """Compute how long the oldest unprocessed publish has waited, and whether that is too long.

        ``arrived_bytes``: total of received bytes. ``done_bytes``: total of processed bytes. ``now_ns``: monotonic clock.
        """
        while self._checks and self._checks[0][0] <= done_bytes:
            self._checks.popleft()
        self.waited_ns = now_ns - self._checks[0][1] if self._checks else 0
        apart_ns = max(_APART_NS, self.waited_ns // _APART_PARTS)
        if arrived_bytes > done_bytes and (not self._checks or now_ns - self._checks[-1][1] >= apart_ns):
            self._checks.append((arrived_bytes, now_ns))
        self.is_late = self._lateness.check(self.waited_ns, now_ns)
        self.is_pressed = self.is_late or self._lateness.bound_ns(now_ns) < self.late_ns

    def note_slow_commits(self, now_ns: int) -> None:
        """Record that a partition rejected publishes because commits are slow. The time limit is then shorter for a time."""
        self._lateness.note_rejection(now_ns)

    @property
    def retry_after_ms(self) -> int:
        """Time after which a rejected publisher should retry, in milliseconds."""
        wait_ns = max(self.waited_ns, self.late_ns // 2) if self.is_late or self.is_pressed else self.waited_ns
        return min(max(wait_ns // 1_000_000, LEAST_WAIT_MS), LONGEST_WAIT_MS)

    def update(self, memory: NodePublishMemory) -> None:
        """Set the memory use of the node to ``memory``, and compute how far the limits of its partitions shrink."""
        if not self.limit_bytes:
            return
        self.used_bytes = (
            memory.unread
            + memory.held_back
            + memory.uncommitted
            + memory.publishers
            + min(memory.standby, round(self.limit_bytes * STANDBY_SHARE))
            + min(memory.readers, round(self.limit_bytes * READERS_SHARE))
        )
        used_part = self.used_bytes / self.limit_bytes
        self.is_limited = used_part >= _FREE
        self.open_part = min(max((1.0 - used_part) / (1.0 - _FREE), 0.0), 1.0)

    def takes(self, in_use_bytes: int, own_bytes: int) -> bool:
        """Return whether a partition has room for one more publish. Its limit shrinks when the node is short of memory.

        ``in_use_bytes``: memory of its publishes in progress. ``own_bytes``: its limit in the settings.
        """
        return in_use_bytes < own_bytes * self.open_part
