"""Clock of leases, sessions and deadlines. It runs on while the host is suspended.

CLOCK_MONOTONIC, which ``time.monotonic`` and the event loop read, stops during a suspension. A leader that wakes up
would believe in its lease although all others have seen it end. On systems without such a clock (not Linux), it is the
monotonic one. Waits and pauses use ``time.monotonic``.
"""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_ns() -> int:
    """Return nanoseconds since some moment of this boot. The value never falls."""
    return time.clock_gettime_ns(_CLOCK)
