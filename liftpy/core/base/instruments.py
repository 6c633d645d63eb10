"""Counters and histograms that a node updates while it works. Counting a batch takes one binary search, whatever its size.
Pure.

Bounds of buckets double: latencies from 0.25 ms to 8.2 s, failovers from 10 ms to 20.5 s, batches from one record to
4,096. A value counts in the first bucket whose bound is at or above it. No count decreases while a process lives.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from liftpy.config import AckPolicy

LATENCY_S = tuple(0.00025 * 2**n for n in range(16))
FAILOVER_S = tuple(0.01 * 2**n for n in range(12))
BATCH_RECORDS = tuple(float(4**n) for n in range(7))
_S = 1e-9
_TIMED_BATCHES = 1024
"""Maximum number of uncommitted batches of a partition whose times are kept. Older ones are not measured."""


class Histogram:
    """Counts values in buckets.

    ``counts[n]``: number of values above ``bounds[n - 1]`` and at most ``bounds[n]``. The last count has no upper bound.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        """Sum of all values."""

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


@dataclass(slots=True, kw_only=True)
class Instruments:
    """Counters and histograms of one node, summed over its partitions. Times are in seconds."""

    batch_records: Histogram = field(default_factory=lambda: Histogram(BATCH_RECORDS))
    """Number of records in each batch that leaders on this node have appended."""
    acks: dict[AckPolicy, Histogram] = field(
        default_factory=lambda: {AckPolicy.LEADER: Histogram(), AckPolicy.ALL: Histogram()}
    )
    """Time from the arrival of a publish until its ack was passed to the connection, by ack policy."""
    queued: Histogram = field(default_factory=Histogram)
    """Time from the arrival of a record until it was appended."""
    commits: Histogram = field(default_factory=Histogram)
    """Time from the append of a record until the high watermark reached it."""
    flushes: Histogram = field(default_factory=Histogram)
    """Duration of the log flushes for which publishers wait."""
    fetches: Histogram = field(default_factory=Histogram)
    """Time from a follower's fetch request until its answer."""
    reads: Histogram = field(default_factory=Histogram)
    """Time from the moment when records are available until they were passed to the connection."""
    proposals: Histogram = field(default_factory=Histogram)
    """Time from a request of this node to the metadata group until it is decided."""
    proposals_failed: Counter[str] = field(default_factory=Counter)
    """Number of failed requests to the metadata group, by error."""
    journal_flushes: Histogram = field(default_factory=Histogram)
    """Duration of the flushes of the metadata group's journal."""
    loop_lag: Histogram = field(default_factory=Histogram)
    """Delay of a timer that the event loop runs ten times a second."""
    failovers: Histogram = field(default_factory=lambda: Histogram(FAILOVER_S))
    """Time from the election of a partition until it was online again. Only controllers measure it."""
    replicated_in_bytes: int = 0
    """Number of bytes of the batches that followers on this node have fetched."""
    replicated_out_bytes: int = 0
    """Number of bytes of the batches that leaders on this node have sent to followers."""
    isr_shrinks: int = 0
    """Number of ISR shrinks of partitions that this node leads."""
    isr_expands: int = 0
    leader_changes: int = 0
    divergences: int = 0
    """Number of starts at which the controller's directory was marked, because its image differed from that of the majority."""
    damaged_segments: int = 0
    """Number of damaged segments that recovery or a read found on this node."""
    recovery_s: float = 0.0
    """Duration of the recovery at this start, in seconds."""


class PublishTimes:
    """Measures the publishes of one partition from arrival to append, commit and ack, for the node's histograms.

    ``now_ns``: function that returns a monotonic time in ns.
    """

    __slots__ = ("_instruments", "_uncommitted", "now_ns")

    def __init__(self, instruments: Instruments | None = None, now_ns: Callable[[], int] = lambda: 0) -> None:
        self._instruments = instruments or Instruments()
        self.now_ns = now_ns
        self._uncommitted: list[tuple[int, int, int]] = []
        """(last offset, inclusive, time of the append, number of records) of each uncommitted batch."""

    def appended(self, last_offset: int, record_count: int, arrived_ns: int) -> None:
        """Record the waiting time and the size of a batch in the histograms, and start to measure the time to its commit.

        ``last_offset``: offset of its last record. ``record_count``: number of its records. ``arrived_ns``: time of its arrival.
        """
        now_ns, instruments = self.now_ns(), self._instruments
        instruments.queued.observe((now_ns - arrived_ns) * _S, record_count)
        instruments.batch_records.observe(record_count)
        self._uncommitted.append((last_offset, now_ns, record_count))
        if len(self._uncommitted) > _TIMED_BATCHES:
            del self._uncommitted[0]

    def committed(self, high_watermark: int) -> None:
        """Record the commit times of all batches up to ``high_watermark`` (inclusive)."""
        waiting = self._uncommitted
        if waiting and waiting[0][0] <= high_watermark:
            now_ns, commits = self.now_ns(), self._instruments.commits
            committed_count = 0
            for last_offset, appended_ns, record_count in waiting:
                if last_offset > high_watermark:
                    break
                committed_count += 1
                commits.observe((now_ns - appended_ns) * _S, record_count)
            del waiting[:committed_count]

    def answered(self, policy: AckPolicy, arrived_ns: int, count: int) -> None:
        """Record the time from arrival to ack of ``count`` publishes in the histogram of their ack policy.

        ``arrived_ns``: time of their arrival.
        """
        self._instruments.acks[policy].observe((self.now_ns() - arrived_ns) * _S, count)

    def forget(self) -> None:
        """Drop the append times of batches that are not committed, because the leadership ended."""
        self._uncommitted.clear()
