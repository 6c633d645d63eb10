"""Memory of this process: its limit, freed buffers, and the garbage collector.

The limit is that of the control group or of the machine.

glibc returns the top of its heap to the kernel when it has more than twice the size of the largest block that was ever
freed. A process whose largest blocks are batches of 1 MiB does so after nearly every batch, and has a page fault for every
4 KiB of the next one. Measured: joining 1 MB twice takes 540 us in this case, and 102 us after a larger block was freed.
With other C libraries ``retain_freed_memory`` does nothing.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path

_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
RETAINED_BYTES = 16 * 1024 * 1024
"""Number of freed bytes that the process keeps, at most 32 MiB. It may keep twice as many."""
OPENED = 128
"""Number of opened partitions after which their objects are hidden from the garbage collector."""
CLOSED = 256
"""Number of closed partitions after which hidden objects are checked once. It is higher if more are open."""
YOUNG = 10_000
"""Number of new objects after which the collector examines the young ones. This takes 0.5 ms, and every tenth time a few ms."""


def memory_bytes(limits: tuple[Path, ...] = _LIMITS) -> int:
    """Return the memory limit of this process, in bytes: the smallest of the machine's memory and the limits in ``limits``."""
    limits_bytes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in limits:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isascii() and text.isdigit() and int(text):
            limits_bytes.append(int(text))
    return min(limits_bytes)


def retain_freed_memory() -> None:
    """Make glibc keep freed memory for its next use. Call it once per process.

    It frees one block of ``RETAINED_BYTES``, which raises glibc's dynamic thresholds.
    """
    block = bytearray(RETAINED_BYTES)
    del block


# ---- garbage collector -----------------------------------------------------------------------------------------------


def make_collections_rare() -> None:
    """Let the garbage collector run less often in this process. Reference cycles may then use a few MB for longer.

    By default, young objects are examined every 700 allocations. The objects of a start, an election or a metadata change are
    long-lived, so these checks find nothing. They would be a tenth of the CPU time that the start of 5,000 partitions needs.
    """
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])


class GarbageCollection:
    """Runs the garbage collector after many partitions were opened or closed, and exempts long-lived objects from it.

    A full collection examines every object of the process: 0.1 ms for each partition, in which nothing else runs, Raft and
    heartbeats included. The objects of a partition live as long as the partition, so they are hidden from the collector
    (``gc.freeze``) after it was opened, some partitions at a time. Closed partitions leave reference cycles, which only a full
    collection finds. When enough partitions are closed, all objects are shown to the collector, collected and hidden again.
    """

    def __init__(self) -> None:
        self._opened = 0
        self._closed = 0
        self._open = 0

    def count_opened(self) -> None:
        """Count an opened partition. After a number of them, collect garbage and exempt the remaining objects from collections."""
        self._open += 1
        self._opened += 1
        if self._opened >= OPENED:
            self._opened = 0
            gc.collect(1)  # collect new garbage first, because hidden garbage would stay forever
            gc.freeze()

    def count_closed(self) -> None:
        """Count a closed partition. After a number of them, run a full collection."""
        self._open -= 1
        self._closed += 1
        if self._closed >= max(CLOSED, self._open // 4):
            self._closed = 0
            gc.unfreeze()
            gc.collect()
            gc.freeze()
