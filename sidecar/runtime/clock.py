"""Clock of leases, sessions and deadlines. It also advances while the host is suspended.

CLOCK_MONOTONIC, which ``time.monotonic`` and the event loop read, stops during a suspension. A leader that wakes up would
trust its lease although its session has ended. On systems without such a clock (not Linux), this is the monotonic clock.
Short waits use ``time.monotonic``.
"""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_ns() -> int:
    """Return nanoseconds since some moment of this boot. The value never decreases."""
    return time.clock_gettime_ns(_CLOCK)
