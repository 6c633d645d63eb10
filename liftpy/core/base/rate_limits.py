"""Rate limits: the token bucket, the limit for log lines, and the wait after repeated failures. Pure.

Quotas of publishers, control requests, spans and log lines per event use ``TokenBucket``. ``LogRateLimit`` counts lines
in windows instead, so that one line per window tells how many were suppressed. ``CatchupThrottle`` reserves turns
instead, because a turn lasts at least as long as the flush of the copied bytes.

Example: a bucket with 10 tokens per second and a burst of 20. A caller takes 20 tokens at once. The next token is there
after 100 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from liftpy.config import NS_PER_S

_MS_PER_S = 1000

Key = TypeVar("Key")
Value = TypeVar("Value")


class TokenBucket:
    """Tokens that come back at a rate. A new bucket is full. Times are monotonic, in nanoseconds.

    Args:
        per_s: Number of new tokens per second (at least 0).
        burst: Maximum number of tokens.
    """

    __slots__ = ("burst", "per_s", "seen_ns", "tokens")

    def __init__(self, per_s: float, burst: float) -> None:
        self.per_s = per_s
        self.burst = float(burst)
        self.tokens = self.burst
        """Number of tokens at ``seen_ns``. A caller may make it negative. Then the bucket must be refilled first."""
        self.seen_ns = 0
        """Time of the last refill."""

    def refill(self, now_ns: int) -> None:
        """Add the tokens of the time since the last refill."""
        elapsed_ns = now_ns - self.seen_ns
        if elapsed_ns > 0:
            self.tokens = min(self.burst, self.tokens + elapsed_ns * self.per_s / NS_PER_S)
        self.seen_ns = now_ns

    def has(self, count: float, now_ns: int) -> bool:
        """Return whether there are ``count`` tokens at ``now_ns``. Take none."""
        self.refill(now_ns)
        return self.tokens >= count

    def take(self, count: float, now_ns: int) -> bool:
        """Take ``count`` tokens at ``now_ns``. Return False, and take none, if there are too few."""
        if not self.has(count, now_ns):
            return False
        self.tokens -= count
        return True

    def give_back(self, count: float) -> None:
        """Return ``count`` tokens that were taken and not used."""
        self.tokens = min(self.burst, self.tokens + count)

    def wait_ms(self, now_ns: int) -> int:
        """Return the milliseconds until one token is there. 0: now."""
        return 0 if self.has(1, now_ns) else int((1 - self.tokens) * _MS_PER_S / self.per_s) + 1


def touch_entry(entries: dict[Key, Value], key: Key, limit: int, make: Callable[[], Value]) -> Value:
    """Return the entry of ``key``, and make it the most recently used one.

    Args:
        entries: Entries in the order of their last use.
        key: Key of the entry.
        limit: Maximum number of entries. A new entry replaces the least recently used one.
        make: Returns a new entry.
    """
    entry = entries.pop(key, None)
    if entry is None:
        entry = make()
        if len(entries) >= limit:
            del entries[next(iter(entries))]
    entries[key] = entry
    return entry


class LogRateLimit:
    """Allows a number of log lines per window, and counts the suppressed ones. The first line after a window opens the next.

    Args:
        window_s: Length of a window in seconds.
        lines: Maximum number of lines in a window. Default 1.
    """

    __slots__ = ("_end_s", "_left", "_lines", "_suppressed", "_window_s")

    def __init__(self, window_s: float, lines: int = 1) -> None:
        self._window_s = window_s
        self._lines = self._left = lines
        self._end_s = float("-inf")
        self._suppressed = 0

    def admit(self, now_s: float) -> int | None:
        """Return how many lines were suppressed since the last admitted one. None: suppress this line, too.

        ``now_s``: monotonic time in seconds.
        """
        if now_s >= self._end_s:
            self._end_s, self._left = now_s + self._window_s, self._lines
        if not self._left:
            self._suppressed += 1
            return None
        self._left -= 1
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed


def doubled_wait_s(failures: int, first_s: float, longest_s: float) -> float:
    """Return the wait after ``failures`` failures in a row, in seconds. It doubles with each failure.

    Args:
        failures: Number of consecutive failures (at least 1).
        first_s: Wait after the first failure.
        longest_s: Maximum wait.
    """
    return min(first_s * 2.0 ** min(failures - 1, 16), longest_s)
