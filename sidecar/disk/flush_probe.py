"""What a short flush takes in a data folder, tried out when a node starts: ``FlushPlace`` need not learn it from its publishers' waits.

A few small appends, each flushed, to a file of its own, which is removed at the end. Its name is always the same, so what a process
left that was killed meanwhile is used and removed by the next one, and nobody else ever reads it.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from liftpy.log.flush_place import PROBES

PROBE_NAME = "flush-probe.tmp"
_WITHIN_S = 0.02
"""No flush begins later than this after the first one."""
_APPENDED = bytes(512)
"""About a batch of one small record."""


def probe_flushes(folder: Path) -> list[float] | None:
    """Seconds that each of at most ``PROBES`` short flushes took; None: the folder did not let itself be written to, which is for the
    logs to tell. Blocks for ``_WITHIN_S`` and one flush."""
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
    """As those of logs are measured: without the write before it."""
    if os.write(descriptor, _APPENDED) != len(_APPENDED):
        raise OSError("short write")
    began_s = time.monotonic()
    os.fdatasync(descriptor)
    return time.monotonic() - began_s
