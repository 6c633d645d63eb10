"""``Flush`` is one group commit of a log. ``FlushScheduler`` decides whether it runs on the event loop or in a thread.

A flush is created and completed on the thread of the log, and runs in any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from liftpy.core.log.recovery import mark_failed_flush
from liftpy.core.log.small_files import SegmentSummary, encode_index
from liftpy.core.log.storage import LogFile, Storage
from liftpy.errors import StorageError

SHORT_S = 0.001
"""Maximum duration of a short flush, in seconds. It is about the cost of a switch to a thread on a busy machine."""
SLOW_S = 0.002
"""Average duration of flushes above which they run in a thread, in seconds."""
LONG_S = 0.02
"""Duration in seconds above which one flush moves all flushes to a thread. It is a few time slices of the loop."""
LARGE_BYTES = 64 * 1024
"""Number of appended bytes since the last flush above which the flush runs in a thread."""
MOST_WAITING = 4
"""Maximum number of flushes on the loop in one turn."""
_FEWEST_POINTS, _MOST_POINTS = 32, 512
PROBES = _FEWEST_POINTS
"""Maximum number of flushes that a start measures. If all of them are short, flushes begin on the loop."""
_MISS = 3
_TRUSTED = 1024
_WEIGHT = 1 / 32
"""Share of the newest flush in the average."""


@dataclass(frozen=True, slots=True)
class SealJob:
    """A sealed segment whose ``file`` must be flushed before its index is written. ``summary``: content of the index."""

    file: LogFile
    index_name: str
    summary: SegmentSummary


@dataclass(slots=True)
class Flush:
    """One group commit of a log. It makes all records below ``end_offset`` (exclusive) durable."""

    storage: Storage
    active: LogFile
    seals: tuple[SealJob, ...]
    new_names: bool
    end_offset: int
    size_bytes: int = 0
    """Approximate number of bytes appended to the active file since the last flush."""
    waiter: Callable[[], None] | None = field(default=None)
    """Function that blocks until the run in another thread is over. A shell that calls ``run`` in a thread sets it."""

    @property
    def is_plain(self) -> bool:
        """True if the flush covers exactly one file and no new file name."""
        return not self.seals and not self.new_names

    def run(self) -> None:
        """Flush the files of this group commit to disk. Other threads may append to the same log at the same time.

        Raises StorageError. In that case it also stores a mark of the failure on the disk, for the next start [S4].
        """
        try:
            self._run()
        except StorageError as error:
            mark_failed_flush(self.storage, error)
            raise

    def _run(self) -> None:
        """Flush the files of sealed segments, then the active file. Write the index files last.

        At the next start, an index proves that its segment and the name of the segment are on disk [S12].
        """
        for job in self.seals:
            job.file.sync()
        self.active.sync()
        if self.new_names:
            self.storage.sync_folder()
        for job in self.seals:
            self.storage.replace(job.index_name, encode_index(job.summary))

    def wait(self) -> None:
        if self.waiter is None:
            raise StorageError("Internal error: the log cannot be truncated during a flush. Please report it.")
        self.waiter()


class FlushScheduler:
    """Decides whether the flushes of a node run on its event loop or in threads.

    On a fast disk, switching to a thread costs more than the flush. The node measures the duration of all flushes. Flushing
    starts in a thread. Each short flush (at most ``SHORT_S``) adds a point, and a longer one removes ``_MISS``. With enough
    points, flushing moves to the event loop. One flush of ``LONG_S`` moves it back at once, and so does an average above
    ``SLOW_S``. After such an error, twice as many points are needed, up to ``_MOST_POINTS``. Large flushes, sealing a segment,
    and more than ``MOST_WAITING`` logs in one turn always use threads.

    Durations are in seconds and do not include the wait for a thread.

    Example: a disk takes 0.1 ms. The 32 test flushes at the start take 3 ms, and the first publish is flushed on the loop. One
    flush takes 30 ms: the loop waits at most 20 ms, and the next 64 flushes run in threads.
    """

    def __init__(self) -> None:
        self.on_loop = False
        """True if short flushes run on the loop now."""
        self.waiting = 0
        """Number of logs that need a flush in this turn of the loop. The caller of ``takes`` sets it."""
        self.done_on_loop = 0
        """Number of flushes on the event loop since the node started."""
        self.done_in_thread = 0
        self.probed = 0
        """Number of test flushes at the start of the node."""
        self.probes_failed = 0
        """1 if a test flush at the start failed, otherwise 0."""
        self.moves = 0
        """Number of moves between loop and thread."""
        self._points = 0
        self._wanted_points = _FEWEST_POINTS
        self._average_s = 0.0
        """Average time of the flushes on the loop since they moved there, in seconds."""
        self._moved_at = 0
        """Value of ``done_on_loop`` when flushing moved to the event loop."""

    def takes(self, size_bytes: int, seals: bool) -> bool:
        """Return whether a flush of ``size_bytes`` should run on the event loop.

        ``seals``: True if it flushes more than one file.
        """
        return self.on_loop and not seals and size_bytes <= LARGE_BYTES and self.waiting <= MOST_WAITING

    def record_loop_flush(self, took_s: float) -> None:
        """Record that a flush on the event loop took ``took_s`` seconds. If flushes have become slow, move them to threads."""
        self.done_on_loop += 1
        self._average_s += (took_s - self._average_s) * _WEIGHT
        if not self.on_loop or (took_s < LONG_S and self._average_s <= SLOW_S):
            return
        trusted = self.done_on_loop - self._moved_at >= _TRUSTED
        self._wanted_points = _FEWEST_POINTS if trusted else min(self._wanted_points * 2, _MOST_POINTS)
        self.on_loop, self._points = False, 0
        self.moves += 1

    def record_thread_flush(self, took_s: float, size_bytes: int) -> None:
        """Record that a flush of ``size_bytes`` in a thread took ``took_s`` seconds. If enough were short, move flushes to the
        event loop.

        Large flushes are counted but do not influence the decision.
        """
        self.done_in_thread += 1
        if size_bytes <= LARGE_BYTES:
            self._count(took_s)

    def tried_out(self, times_s: Sequence[float] | None) -> None:
        """Record the durations of the test flushes at the start, in seconds. None: they failed, and flushes run in threads."""
        self.probes_failed += times_s is None
        for took_s in times_s or ():
            self.probed += 1
            self._count(took_s)

    def _count(self, took_s: float) -> None:
        if self.on_loop:
            return
        self._points = self._points + 1 if took_s <= SHORT_S else max(self._points - _MISS, 0)
        if self._points >= self._wanted_points:
            self.on_loop, self._average_s, self._moved_at = True, 0.0, self.done_on_loop
            self.moves += 1

    def report(self) -> dict[str, int | bool]:
        return {
            "on_loop": self.on_loop,
            "done_on_loop": self.done_on_loop,
            "done_in_thread": self.done_in_thread,
            "moves": self.moves,
            "probed": self.probed,
            "probes_failed": self.probes_failed,
        }
