"""``SlowFlushes``: detects replicas whose disk is far slower than the others, in one LeaderEpoch. Pure.

One slow disk must not slow down every publish. But availability comes first: nobody leaves an ISR that would become
smaller than ``min_isr``, or have only one member.

With each fetch, a follower reports the duration of its last flush. A flush is slow if it takes at least
``slow_flush_s`` and at least ``slow_flush_factor`` times the usual duration (a median) of the fastest other replica.
The durations of slow flushes add up, and faster flushes reduce the sum. Each slow flush counts for at most half of
``slow_flush_time_s``. A replica that reaches ``slow_flush_time_s`` is slow for ``slow_flush_isr_backoff_s`` after its
last slow flush, and twice as long each time that it happens again soon, up to 16 times.

Example with the defaults (0.2 s, factor 8, 5 s, 20 s): the others need 4 ms, one follower 1.5 s. After four flushes it
leaves the ISR. Its disk recovers, and 20 s later it is back. The next time it stays out for 40 s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low

from liftpy.config import NS_PER_S, ReplicationConfig
from liftpy.core.replication.follower_progress import FollowerProgress

_RECENT = 5
_KNOWN_FROM = 3
"""Flushes; before that nobody is compared with it."""
_LONGEST = 16
"""Times ``slow_flush_isr_backoff_s``."""


@dataclass(slots=True)
class _Record:
    """Flush durations of one replica, in nanoseconds."""

    recent: deque[int] = field(default_factory=lambda: deque(maxlen=_RECENT))
    slow_ns: int = 0
    """Spent in slow flushes, less the time since."""
    last_at_ns: int = 0
    slow_until_ns: int = 0
    judged: int = 0
    """How often in a row it was found slow."""


class SlowFlushes:
    """Flush durations of all replicas of a partition, and the slow ones among them."""

    def __init__(self, config: ReplicationConfig) -> None:
        self._factor = config.slow_flush_factor
        self._least_ns = round(config.slow_flush_s * NS_PER_S)
        self._time_ns = round(config.slow_flush_time_s * NS_PER_S)
        self._out_ns = round(config.slow_flush_isr_backoff_s * NS_PER_S)
        self._records: dict[str, _Record] = {}

    def flushed(self, replica: str, took_ns: int, now_ns: int, *, in_isr: bool = True) -> None:
        """Note the duration of a flush of ``replica``."""
        record = self._records.get(replica)
        if record is None:
            record = self._records[replica] = _Record()
        record.recent.append(took_ns)
        since_ns, record.last_at_ns = now_ns - record.last_at_ns, now_ns
        if took_ns < self._least_ns or not self._is_slow(replica, took_ns, now_ns):
            record.slow_ns = max(record.slow_ns - since_ns, 0)
            return
        record.slow_ns += min(took_ns, self._time_ns // 2)
        if record.slow_ns >= self._time_ns or record.slow_until_ns > now_ns or not in_isr:
            self._judge(record, now_ns)

    def waits(self, replica: str, age_ns: int, now_ns: int) -> None:
        """A flush of ``replica`` is not done after so long: it need not end to be slow."""
        record = self._records.get(replica)
        if record is not None and age_ns >= self._time_ns and self._is_slow(replica, age_ns, now_ns):
            self._judge(record, now_ns)

    def _judge(self, record: _Record, now_ns: int) -> None:
        if record.slow_until_ns <= now_ns:
            long_ago = now_ns - record.slow_until_ns > _LONGEST * self._out_ns
            record.judged = 1 if long_ago else record.judged + 1
        record.slow_ns = 0
        record.slow_until_ns = now_ns + self._out_ns * min(1 << (record.judged - 1), _LONGEST)

    def _is_slow(self, replica: str, took_ns: int, now_ns: int) -> bool:
        """Return whether it is slow compared with the fastest other replica. False if no other is known."""
        limit_ns = self._limit_ns(replica, now_ns)
        return limit_ns is not None and took_ns >= limit_ns

    def _limit_ns(self, replica: str, now_ns: int) -> int | None:
        others = [self.usual_ns(other) for other in self._records if other != replica and not self.is_slow(other, now_ns)]
        known = [usual_ns for usual_ns in others if usual_ns is not None]
        if not known or not self._factor:
            return None
        return max(self._least_ns, round(self._factor * min(known)))

    def usual_ns(self, replica: str) -> int | None:
        """Median of its last flushes; None: there were too few."""
        record = self._records.get(replica)
        return median_low(record.recent) if record is not None and len(record.recent) >= _KNOWN_FROM else None

    def last_ns(self, replica: str) -> int:
        """Return the duration of its last flush in ns, 0 for none."""
        record = self._records.get(replica)
        return record.recent[-1] if record is not None else 0

    def is_slow(self, replica: str, now_ns: int) -> bool:
        """Return whether it counts as slow now."""
        record = self._records.get(replica)
        return record is not None and record.slow_until_ns > now_ns

    def slow_until_ns(self) -> Sequence[int]:
        """Return until when each replica that was ever slow counts as slow."""
        return [record.slow_until_ns for record in self._records.values() if record.slow_until_ns]

    def slow(self, now_ns: int) -> frozenset[str]:
        """Return all slow replicas."""
        return frozenset(replica for replica, record in self._records.items() if record.slow_until_ns > now_ns)

    def fast(self, replicas: Iterable[str], now_ns: int) -> list[str]:
        """Return the replicas that are known to be fast."""
        found = []
        for replica in replicas:
            usual_ns, limit_ns = self.usual_ns(replica), self._limit_ns(replica, now_ns)
            if usual_ns is None or self.is_slow(replica, now_ns):
                continue
            if usual_ns < self._least_ns or limit_ns is None or usual_ns < limit_ns:
                found.append(replica)
        return found

    def keep(self, replicas: Iterable[str]) -> None:
        """Forget all replicas except ``replicas``."""
        kept = frozenset(replicas)
        for replica in [replica for replica in self._records if replica not in kept]:
            del self._records[replica]


def to_keep_out(leader: str, isr: frozenset[str], slow: frozenset[str]) -> frozenset[str]:
    """Return the slow replicas that should leave the ISR so that commits are faster. Empty if the leader itself is slow."""
    return slow - isr if leader in slow else slow


def successor(
    fast: Iterable[str],
    followers: Mapping[str, FollowerProgress],
    live: Mapping[str, int],
    *,
    needed: int,
    now_ns: int,
    max_lag_ns: int,
) -> str:
    """Return the node that should lead instead of a slow leader, '' for none: the ``fast`` ISR member with the most records.

    At least ``needed`` fast members must exist, otherwise the HW would not move faster.
    """
    able = [
        replica
        for replica in fast
        if replica in live
        and (progress := followers.get(replica)) is not None
        and progress.position is not None
        and now_ns - progress.caught_up_ns <= max_lag_ns
    ]
    if len(able) < needed:
        return ""
    return min(able, key=lambda replica: (-(followers[replica].position or 0), replica))
