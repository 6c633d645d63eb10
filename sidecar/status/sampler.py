"""Adds a row to the history of the node each second, with the changes since the last row.

The first 0.2 ms of a sample run at once, the rest in turns with other work of the loop. If a sample of many partitions
takes more than ``PART_OF_LOOP`` of the time, samples are taken less often, and each covers several seconds. A single
slow sample, such as one of a thousand new partitions, does not change the interval.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from math import nan
from operator import add
from typing import Any, NamedTuple

from liftpy.core.observe.history import MOST_COVERED_S, History, bands_of
from liftpy.core.observe.node_summary import percentile
from sidecar.partition.figures import BY_STREAM
from sidecar.runtime import clock
from sidecar.status.node_watch import watched_parts
from sidecar.status.report import Reporter

EVERY_S = 1.0
SLICE_S = 0.0002
PART_OF_LOOP = 0.005
MOST_REST_S = MOST_COVERED_S - 3.0
"""Maximum interval of samples, in seconds, so that a late sample still counts."""
_LED = ("led", "partitions_under_replicated", "led_short")


_COUNTED = ("counts", "acks", "flushes", "loop_lag")


class _CounterSample(NamedTuple):
    """Values of a node's counters at one moment. ``at_s``: monotonic time. ``second``: wall clock in s."""

    at_s: float
    second: int
    counts: tuple[float, ...]
    """Values of the counters, in the order of ``BY_STREAM``."""
    acks: tuple[int, ...]
    flushes: tuple[int, ...]
    loop_lag: tuple[int, ...]

    def sum_with(self, sample: ProcessSample) -> _CounterSample:
        counts, acks, flushes, loop_lag = (tuple(map(add, getattr(self, name), sample[name])) for name in _COUNTED)
        return self._replace(counts=counts, acks=acks, flushes=flushes, loop_lag=loop_lag)


ProcessSample = dict[str, Any]
"""Counters and current values of one process, as JSON. A worker process sends it to the first process of the node."""


class Sampler:
    """Samples the counters of a node each second, and adds the changes to its history.

    ``wall``: returns the wall clock in seconds. ``worker_samples``: returns samples of other processes. ``send_sample``: called
    with the samples of this process.
    """

    def __init__(
        self,
        history: History,
        reporter: Reporter,
        wall: Callable[[], float] = time.time,
        now: Callable[[], float] = time.monotonic,
        worker_samples: Callable[[], Sequence[ProcessSample]] = tuple,
        send_sample: Callable[[ProcessSample], None] | None = None,
    ) -> None:
        self._worker_samples = worker_samples
        self._send_sample = send_sample
        self._history = history
        self._reporter = reporter
        self._wall = wall
        self._now = now
        self._last_totals: _CounterSample | None = None
        self._loop: Any = None
        self._timer: asyncio.Handle | None = None
        self.took_s = 0.0
        """Duration of the last sample with all its slices, in seconds."""

    def start(self) -> None:
        self.on(asyncio.get_running_loop())

    def on(self, loop: Any) -> None:
        """Start to take samples on the event loop ``loop``."""
        self._loop = loop
        self._wait()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        rest_s = min(self.took_s / PART_OF_LOOP, MOST_REST_S)
        wall_s = self._wall() + max(0.0, rest_s - EVERY_S)
        self._timer = self._loop.call_later(max(0.0, rest_s - EVERY_S) + EVERY_S - wall_s % EVERY_S, self._begin)

    def _begin(self) -> None:
        self.took_s = 0.0
        self._continue(self.sample())

    def _continue(self, steps: Iterator[None]) -> None:
        began = self._now()
        for _ in steps:
            if self._now() - began > SLICE_S:
                self.took_s += self._now() - began
                self._timer = self._loop.call_soon(self._continue, steps)
                return
        self.took_s += self._now() - began
        self._wait()

    def sample(self) -> Iterator[None]:
        """Sample the node's counters once and add a row to its history. Each ``yield`` is a point where other work may run."""
        at_s, second, it = self._now(), int(self._wall()), self._reporter.instruments
        sums = _PartitionSums(self._reporter)
        yield from sums.all()
        acks = tuple(map(sum, zip(*(one.counts for one in it.acks.values()), strict=True)))
        totals = _CounterSample(at_s, second, tuple(sums.counts), acks, tuple(it.flushes.counts), tuple(it.loop_lag.counts))
        if self._send_sample is not None:
            sample = {name: getattr(totals, name) for name in _COUNTED} | {"lag_ns": sums.lag_ns, "isr": sums.isr}
            self._send_sample({**sample, "watched": watched_parts(self._reporter)})
        for sample in self._worker_samples():
            totals = totals.sum_with(sample)
            sums.add_process(sample)
        before, self._last_totals = self._last_totals, totals
        if before is not None and 0 < at_s - before.at_s <= MOST_COVERED_S:
            self._history.add_values(second, _row(before, totals, sums), covers=max(1, second - before.second))


class _PartitionSums:
    """Sums of the values of all partitions of a node, at the time of a sample."""

    def __init__(self, reporter: Reporter) -> None:
        self._partitions = reporter.partitions
        self._now_ns = clock.now_ns()
        self.counts = [0.0] * len(BY_STREAM)
        self.lag_ns = 0
        self.isr = [0, 0, 0]
        """Partitions led here: with all replicas in sync, with fewer, with fewer than min_isr."""

    def add_process(self, sample: ProcessSample) -> None:
        self.lag_ns = max(self.lag_ns, sample["lag_ns"])
        self.isr = list(map(add, self.isr, sample["isr"]))

    def all(self) -> Iterator[None]:
        partitions = self._partitions.counts
        here = partitions.here
        yield from here.update()
        for sums in partitions.all().by_stream.values():
            self.counts = list(map(add, self.counts, sums))
        led, short, short_and_under = map(here.total, _LED)
        self.isr = [led - short, short - short_and_under, short_and_under]
        self.lag_ns = here.lag_ns(self._now_ns)


def _row(before: _CounterSample, totals: _CounterSample, sums: _PartitionSums) -> list[float]:
    took_s = totals.at_s - before.at_s
    acks = _increase(before.acks, totals.acks)
    rates = [max(0.0, now - then) / took_s for then, now in zip(before.counts, totals.counts, strict=True)]
    return [
        *rates,
        _percentile(acks, 0.5),
        _percentile(acks, 0.99),
        _percentile(_increase(before.flushes, totals.flushes), 0.99),
        sums.lag_ns / 1e9,
        _percentile(_increase(before.loop_lag, totals.loop_lag), 0.99),
        *sums.isr,
        *(count / took_s for count in bands_of(acks)),
    ]


def _increase(before: Sequence[int], now: Sequence[int]) -> list[int]:
    return [b - a for a, b in zip(before, now, strict=True)]


def _percentile(counts: Sequence[int], part: float) -> float:
    value = percentile(counts, part)
    return nan if value is None else value
