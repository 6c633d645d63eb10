"""Durations of flushes, of a node and of each partition.

A flush is measured from the request until the loop knows its end, with the wait for a thread, because a publisher waits
for all of it.
The last durations are kept and reported as medians and 99th percentiles. A flush of a second logs a warning.

At the start of a node, the module also measures a short flush in its data directory, so that ``FlushPlace`` need not
learn it from waiting
publishers. It flushes a few small appends to a file that it then removes. The name of the file is always the same, so
the next process
removes a file that a killed process left.
"""

from __future__ import annotations

import logging
import os
import time
from array import array
from collections import Counter
from contextlib import suppress
from pathlib import Path

from liftpy.core.base.instruments import Histogram
from liftpy.core.log.flush import PROBES

logger = logging.getLogger("liftpy.disk")

SLOW_S = 1.0
"""A flush from here on is warned of: publishers begin to give up, and commits of every stream with this replica in its ISR wait."""
WARN_EVERY_S = 10.0
KEPT_OF_NODE = 2048
KEPT_OF_PARTITION = 128


class FlushTimes:
    """The last ``kept`` durations, in seconds."""

    __slots__ = ("_at", "_kept", "_ring", "count")

    def __init__(self, kept: int = KEPT_OF_PARTITION) -> None:
        self._kept = kept
        self._ring = array("f")
        self._at = 0
        self.count = 0
        """All that there were."""

    def add(self, took_s: float) -> None:
        """Add a duration."""
        self.count += 1
        if len(self._ring) < self._kept:
            self._ring.append(took_s)
            return
        self._ring[self._at] = took_s
        self._at = (self._at + 1) % self._kept

    def report(self) -> dict[str, float]:
        """Return ``p50_ms``, ``p99_ms`` and ``max_ms``, all 0 without durations."""
        if not self._ring:
            return {"p50_ms": 0.0, "p99_ms": 0.0, "max_ms": 0.0}
        ordered = sorted(self._ring)
        last = len(ordered) - 1
        shares = {"p50_ms": ordered[last // 2], "p99_ms": ordered[round(last * 0.99)], "max_ms": ordered[-1]}
        return {name: round(seconds * 1000, 3) for name, seconds in shares.items()}


class NodeFlushTimes(FlushTimes):
    """Flush durations of all partitions of a node. ``counters``: counts slow ones. ``times``: all durations."""

    __slots__ = ("_counters", "_slow", "_times", "_warn_at")

    def __init__(self, counters: Counter[str], times: Histogram | None = None) -> None:
        super().__init__(KEPT_OF_NODE)
        self._times = times or Histogram()
        self._counters = counters
        self._warn_at = 0.0
        self._slow = 0

    def flushed(self, what: object, took_s: float) -> None:
        """A flush of ``what`` is done; a slow one is warned of, at most once in ``WARN_EVERY_S``, with how many there were."""
        self.add(took_s)
        self._times.observe(took_s)
        if took_s < SLOW_S:
            return
        self._counters["slow flushes"] += 1
        self._slow += 1
        now = time.monotonic()
        if now >= self._warn_at:
            self._warn_at = now + WARN_EVERY_S
            text = "%s: a flush took %.1f s; slow ones since the last such line: %d. The disk of this node is slow, and publishers wait"
            logger.warning(text, what, took_s, self._slow)
            self._slow = 0


PROBE_NAME = "flush-probe.tmp"
_WITHIN_S = 0.02
"""Time after the first flush in which further ones may begin, in seconds."""
_APPENDED = bytes(512)
"""About a batch of one small record."""


def probe_flushes(folder: Path) -> list[float] | None:
    """Return the seconds of at most ``PROBES`` short test flushes, None if the directory is not writable.

    Blocks for about ``_WITHIN_S``.
    """
    path = folder / PROBE_NAME
    try:
        return _timed_flushes(path)
    except OSError:
        return None
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _timed_flushes(path: Path) -> list[float]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o640)
    try:
        times_s: list[float] = []
        _timed_flush(descriptor)  # a new file's first one takes more, as a log's does: it says nothing of those after it
        end_s = time.monotonic() + _WITHIN_S
        while len(times_s) < PROBES and time.monotonic() < end_s:
            times_s.append(_timed_flush(descriptor))
        return times_s
    finally:
        os.close(descriptor)


def _timed_flush(descriptor: int) -> float:
    """Return the seconds of one flush, without the write before it."""
    if os.write(descriptor, _APPENDED) != len(_APPENDED):
        raise OSError("short write")
    began_s = time.monotonic()
    os.fdatasync(descriptor)
    return time.monotonic() - began_s
