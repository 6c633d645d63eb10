"""Takes samples of a node each second: a row of its history, and the state from which its events are made.

``NodeWatcher`` detects events that are not in the metadata log (``liftpy/core/observe/node_events.py``). ``Sampler`` adds a row with
the changes since the last one to the history. A worker process sends its samples to the first process of the node.

The first 0.2 ms of a row run at once, the rest in turns with other work of the loop. If a sample of many partitions
takes more than ``PART_OF_LOOP`` of the time, samples are taken less often, and each covers several seconds. A single
slow sample, such as one of a thousand new partitions, does not change the interval.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import nan
from operator import add
from typing import Any

from liftpy.core.base.ids import PartitionKey
from liftpy.core.observe.cluster_health import DISK_LOW, QUEUED_HIGH
from liftpy.core.observe.history import MOST_COVERED_S, History, bands_of
from liftpy.core.observe.node_events import Damage, NodeEvents, NodeSample, NodeWatch
from liftpy.core.observe.node_summary import percentile
from liftpy.nats.urls import without_secrets
from sidecar.partition.metric_sums import BY_STREAM
from sidecar.runtime import clock
from sidecar.runtime.timers import until_next_s
from sidecar.status.figures import disk_space
from sidecar.status.report import Reporter

EVERY_S = 1.0
"""Interval of the samples, in seconds."""
SLICE_S = 0.0002
PART_OF_LOOP = 0.005
MOST_REST_S = MOST_COVERED_S - 3.0
"""Maximum interval of samples, in seconds, so that a late sample still counts."""
_LED = ("led", "partitions_under_replicated", "led_short")
_COUNTED = ("counts", "acks", "flushes", "loop_lag", "isr")

ProcessSample = dict[str, Any]
"""Counters and current values of one process, as JSON. A worker process sends it to the first process of the node.

``counts``: values of the counters, in the order of ``BY_STREAM``. ``isr``: partitions led here with all replicas in sync, with
fewer, with fewer than min_isr. ``lag_ns``: greatest lag.
"""


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
        self._last: tuple[float, int, ProcessSample] | None = None
        """Monotonic time in seconds, wall clock in seconds, and sums over all processes, of the last sample."""
        self.took_s = 0.0
        """Duration of the last sample with all its slices, in seconds."""

    async def run(self) -> None:
        """Take samples until the call is canceled."""
        while True:
            await asyncio.sleep(self._until_next_s())
            self.took_s, began = 0.0, self._now()
            for _ in self.sample():
                if self._now() - began > SLICE_S:
                    self.took_s += self._now() - began
                    await asyncio.sleep(0)
                    began = self._now()
            self.took_s += self._now() - began

    def _until_next_s(self) -> float:
        rest_s = max(0.0, min(self.took_s / PART_OF_LOOP, MOST_REST_S) - EVERY_S)
        return rest_s + EVERY_S - (self._wall() + rest_s) % EVERY_S

    def sample(self) -> Iterator[None]:
        """Sample the node's counters once and add a row to its history. Each ``yield`` is a point where other work may run."""
        at_s, second, now_ns, it = self._now(), int(self._wall()), clock.now_ns(), self._reporter.instruments
        partitions = self._reporter.partitions.counts
        here = partitions.open
        yield from here.update()
        led, short, short_and_under = map(here.total, _LED)
        totals: ProcessSample = {
            "counts": list(map(sum, zip([0.0] * len(BY_STREAM), *partitions.all().by_stream.values(), strict=False))),
            "acks": list(map(sum, zip(*(one.counts for one in it.acks.values()), strict=True))),
            "flushes": [*it.flushes.counts],
            "loop_lag": [*it.loop_lag.counts],
            "isr": [led - short, short - short_and_under, short_and_under],
            "lag_ns": here.lag_ns(now_ns),
        }
        if self._send_sample is not None:
            self._send_sample({**totals, "watched": watched_parts(self._reporter)})
        for sample in self._worker_samples():
            sums = {name: list(map(add, totals[name], sample[name])) for name in _COUNTED}
            totals = {**sums, "lag_ns": max(totals["lag_ns"], sample["lag_ns"])}
        before, self._last = self._last, (at_s, second, totals)
        if before is not None and 0 < at_s - before[0] <= MOST_COVERED_S:
            row = _row(before[2], totals, at_s - before[0])
            self._history.add_values(second, row, covers=max(1, second - before[1]))


def _row(before: ProcessSample, totals: ProcessSample, took_s: float) -> list[float]:
    acks = _increase(before["acks"], totals["acks"])
    rates = [max(0.0, now - then) / took_s for then, now in zip(before["counts"], totals["counts"], strict=True)]
    return [
        *rates,
        _percentile(acks, 0.5),
        _percentile(acks, 0.99),
        _percentile(_increase(before["flushes"], totals["flushes"]), 0.99),
        totals["lag_ns"] / 1e9,
        _percentile(_increase(before["loop_lag"], totals["loop_lag"]), 0.99),
        *totals["isr"],
        *(count / took_s for count in bands_of(acks)),
    ]


def _increase(before: Sequence[int], now: Sequence[int]) -> list[int]:
    return [b - a for a, b in zip(before, now, strict=True)]


def _percentile(counts: Sequence[int], part: float) -> float:
    value = percentile(counts, part)
    return nan if value is None else value


# ---- events of the node ----------------------------------------------------------------------------------------------


SAMPLES_PER_CHECK = 5
"""Number of samples between two reads of services, damage and free disk space."""
MOST_WATCHED = 200
"""Maximum number of damaged replicas, and of services with one problem, that one process reports."""

Parts = Mapping[str, Any]
"""State of one process, as JSON."""


def watched_parts(reporter: Reporter) -> dict[str, Any]:
    """Return the damaged replicas, and the blocked or diverged services of this process, as a JSON object."""
    here = reporter.partitions.counts.open
    damage: list[list[Any]] = []
    blocked: list[list[Any]] = []
    differing: list[list[Any]] = []
    if here.total("partitions_with_quarantined_files"):
        for worker in [one for one in reporter.partitions if one.quarantined_files and one.damage_offset >= 0][:MOST_WATCHED]:
            leader = worker.state.leader if worker.state is not None else ""
            damage.append([*_json_key(worker.key), worker.damage_offset, "" if leader == reporter.node_id else leader])
    for worker in list(here.with_services):
        for service in worker.services.report():
            if service.get("failing") and len(blocked) < MOST_WATCHED:
                blocked.append([*_json_key(worker.key), service["service"], service["problem"]])
            if service.get("differs") and len(differing) < MOST_WATCHED:
                differing.append([*_json_key(worker.key), service["service"], service["problem"]])
    return {"damage": damage, "blocked": blocked, "differing": differing}


def _json_key(key: PartitionKey) -> list[Any]:
    return [key.stream, key.uid, key.partition]


class NodeWatcher:
    """Takes a sample of a node's state each second, from which events are made.

    Args:
        events: Receiver of the events.
        reporter: State of the node.
        others: Function that returns the damage and the services with problems in the other processes of the node.
    """

    def __init__(self, events: NodeEvents, reporter: Reporter, others: Callable[[], Iterable[Parts]] = tuple) -> None:
        self.watch = NodeWatch(events, leader_of=self._leader_of)
        self._reporter, self._others = reporter, others
        self._count = 0
        self._seen_lags: object = None
        self._parts: list[Parts] = []
        self._is_disk_low = False

    async def run(self) -> None:
        while True:
            self.sample(time.monotonic())
            await asyncio.sleep(until_next_s(EVERY_S))

    def sample(self, now_s: float) -> None:
        reporter = self._reporter
        if self._count % SAMPLES_PER_CHECK == 0:
            self._parts = [watched_parts(reporter), *self._others()]
            free, size = disk_space(reporter.settings.data)
            self._is_disk_low = bool(size) and free < DISK_LOW * size
        self._count += 1
        damage = [one for part in self._parts for one in part.get("damage", ())]
        blocked, differing = (
            {(PartitionKey(*key), service): problem for part in self._parts for *key, service, problem in part.get(name, ())}
            for name in ("blocked", "differing")
        )
        room = reporter.room
        self.watch.sampled(
            NodeSample(
                now_s=now_s,
                nats_problem=nats_problem(reporter),
                is_controller=reporter.group.is_controller,
                metadata_leader=reporter.group.leader,
                groups=self._new_groups(),
                damage={PartitionKey(*key): Damage(offset, source) for *key, offset, source in damage},
                blocked=blocked,
                differing=differing,
                is_disk_low=self._is_disk_low,
                is_overloaded=bool(room.limit_bytes) and room.used_bytes >= QUEUED_HIGH * room.limit_bytes,
            ),
            datetime.now(UTC),
        )

    def _leader_of(self, key: PartitionKey) -> str:
        stream = self._reporter.group.image.streams.get(key.stream)
        if stream is None or stream.uid != key.uid or key.partition >= len(stream.partitions):
            return ""
        leader = stream.partitions[key.partition].leader
        return "" if leader == self._reporter.node_id else leader

    def _new_groups(self) -> Mapping[str, tuple[int, float]] | None:
        """Return (lag in records, lag in seconds) of each consumer group. None: they were not measured since the last sample."""
        lags = self._reporter.lags_by_group()
        if lags is self._seen_lags:
            return None
        self._seen_lags = lags
        return {name: (lag.records, lag.seconds) for name, lag in lags.items()}


def nats_problem(reporter: Reporter) -> str:
    """Return the URL and the error of a NATS connection that is down. '': all are up."""
    down = next((link for link in reporter.links.all() if not link.is_connected), None)
    if down is None:
        return ""
    where = without_secrets(reporter.settings.nats)
    return f"{where}: {down.last_problem}" if down.last_problem else where
