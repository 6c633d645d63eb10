"""Memory of this process: its limit, which is that of its control group or of the machine, and the garbage collector.

Keeping freed buffers: what glibc's allocator has to be told so that batches of a megabyte don't cost page faults.

glibc returns the top of its heap to the kernel when more than twice the largest block ever freed lies there; a process whose
largest blocks are 1 MiB batches does so after nearly every batch, and pays a page fault for every 4 KiB of the next one.
Measured: joining 1 MB twice takes 540 us so, 102 us once a larger block has been freed. Elsewhere than glibc this does nothing.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path

_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_bytes(limits: tuple[Path, ...] = _LIMITS) -> int:
    """Return the smallest known limit in bytes."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in limits:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isascii() and text.isdigit() and int(text):
            found.append(int(text))
    return min(found)


RETAINED_BYTES = 16 * 1024 * 1024
"""Number of freed bytes, up to twice as much, that stay with the process."""


def retain_freed_memory(size_bytes: int = RETAINED_BYTES) -> None:
    """Raise glibc's dynamic thresholds by freeing one block of ``size_bytes`` (at most 32 MiB count). Once per process."""
    block = bytearray(size_bytes)
    del block


# Tunes Python's garbage collector, so that it does not scan the objects of thousands of partitions.
#
# A full collection looks at every object of the process: 0.1 ms for each partition, in which nothing else runs, Raft and
# heartbeats included. What a partition holds lives as long as the partition, so it is put out of the collector's sight
# (``gc.freeze``) once it has been opened, some partitions at a time. Partitions that are closed leave cycles behind, which only
# a full collection finds: when enough of them are gone, everything is put back, collected, and put out of sight again.
#
# Young objects are looked at every 700 allocations by default. What a start, an election or a change of the image makes is
# there to stay, so that looking at it over and over finds nothing: a tenth of the CPU that 5,000 partitions take to come back.


OPENED = 128
"""Number of opened partitions after which their objects are hidden from the garbage collector."""
CLOSED = 256
"""Number of closed partitions after which hidden objects are checked once. It is higher if more are open."""


YOUNG = 10_000
"""Number of new objects (without freed ones) before the garbage collector checks the young ones. This takes 0.5 ms, and a few
ms every tenth time.
"""


def look_seldom() -> None:
    """Make full collections rare in this process. Young cycles may use a few MB longer."""
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])


class Garbage:
    """Counts ``opened`` and ``closed`` partitions to tune the collector. The counters are for the status."""

    def __init__(self) -> None:
        self._opened = 0
        self._closed = 0
        self._open = 0
        self.full_collection_count = 0

    def opened(self) -> None:
        """Count an opened partition."""
        self._open += 1
        self._opened += 1
        if self._opened >= OPENED:
            self._opened = 0
            gc.collect(1)  # what has just become garbage shall not stay for ever
            gc.freeze()

    def closed(self) -> None:
        """Count a closed partition."""
        self._open -= 1
        self._closed += 1
        if self._closed >= max(CLOSED, self._open // 4):
            self._closed = 0
            self.full_collection_count += 1
            gc.unfreeze()
            gc.collect()
            gc.freeze()
