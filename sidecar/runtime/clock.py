"""The clock of leases, sessions and deadlines: one that goes on while the host is suspended.

CLOCK_MONOTONIC, which ``time.monotonic`` and the event loop read, stands still meanwhile: a leader that wakes up would take its lease
for valid though everybody else has seen it end. Where there is no such clock (not Linux), it is the monotonic one. Durations of
waiting and of pauses stay with ``time.monotonic``.
"""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_ns() -> int:
    """Nanoseconds since some moment of this boot; never falls."""
    return time.clock_gettime_ns(_CLOCK)
