"""``python -m tests.bench.metrics``: what the instruments of the data path cost for a batch, and what a scrape costs a node."""

from __future__ import annotations

import asyncio
import gc
import time
import timeit
from functools import partial
from typing import Any

from liftpy.config import AckPolicy
from liftpy.core.base.instruments import Instruments, PublishTimes
from liftpy.core.publish.log_state_part import NodeStateMemory
from liftpy.core.replication.catchup_throttle import CatchupThrottle
from liftpy.core.replication.phases import RoleName
from sidecar.partition.figures import NodeCounts
from sidecar.runtime import clock
from sidecar.status.figures import NodeFigures
from sidecar.status.metrics import exposition
from tests.unit.status.test_metrics import a_reporter, a_worker

_TIMES = 20_000
_STEPS = 7
"""Read, published, flushed, and fetched by two followers, twice."""


def instruments(record_count: int) -> float:
    """us for one batch: it arrives, is appended, committed and acknowledged; its partition is marked at each of its steps."""
    times, touched = PublishTimes(Instruments(), clock.now_ns), partial(set[object]().add, object())

    def one() -> None:
        for _ in range(_STEPS):
            touched()
        arrived_ns = times.now_ns()
        times.appended(record_count - 1, record_count, arrived_ns)
        times.committed(record_count - 1)
        times.answered(AckPolicy.ALL, arrived_ns, record_count)

    return min(timeit.repeat(one, number=_TIMES, repeat=5)) / _TIMES * 1e6


class Partitions(list[Any]):
    """Of a node; their figures are kept by change."""

    def __init__(self, workers: list[Any]) -> None:
        super().__init__(workers)
        self.counts, self.failed, self.standby_bytes = NodeCounts(), {}, 0
        self.copy_limit, self.derived = CatchupThrottle(), NodeStateMemory()
        for worker in workers:
            self.counts.begins(worker)


async def scrape(count: int) -> tuple[dict[str, float], float, float]:
    """ms of CPU to gather the figures of so many partitions, by how many of them something has happened in; of its longest
    slice; and for the text."""
    workers = [a_worker(f"s{n % 100}", n, RoleName.LEADER if n % 3 == 0 else RoleName.FOLLOWER) for n in range(count)]
    for worker in workers[10:]:  # most have refused and dropped nothing
        worker.standby.has_counted = False
        worker.ingest.counters.refused.clear()
        worker.ingest.counters.dropped.clear()
        worker.ingest.counters.throttled.clear()
    reporter = a_reporter([])
    reporter.partitions = held = Partitions(workers)
    gc.collect()
    gc.freeze()  # as a node does with what its partitions hold
    figures, longest_s, slice_began = NodeFigures(reporter), 0.0, 0.0

    async def beside() -> None:
        while True:
            await asyncio.sleep(0)
            look_at_slice()

    def look_at_slice() -> None:
        nonlocal longest_s, slice_began
        now = time.thread_time()
        slice_began, longest_s = now, max(longest_s, now - slice_began)

    async def gathered_ms() -> float:
        nonlocal slice_began
        task = asyncio.ensure_future(beside())
        await asyncio.sleep(0)
        slice_began = began = time.thread_time()
        await figures.gather()
        look_at_slice()
        task.cancel()
        return (time.thread_time() - began) * 1e3

    took = {"at first": await gathered_ms()}
    for _ in held.counts.here.update():  # a sample of the history
        await asyncio.sleep(0)
    for name, busy in (("of none", 0), ("of 1 %", count // 100), ("of 10 %", count // 10), ("of all", count)):
        tries = []
        for _ in range(5):
            for worker in workers[:busy]:  # a batch is appended
                worker.ingest.counters.records += 10
                worker.ingest.counters.size_bytes += 1000
                worker.log.size_bytes += 1000
                held.counts.changed_partitions.add(worker)
            tries.append(await gathered_ms())
        took[name] = min(tries)
        if unread := held.counts.here.unread_count:
            took[f"{name}, {unread} left unread"] = took.pop(name)
            for _ in held.counts.here.update():
                await asyncio.sleep(0)
    found = await figures.gather()
    began = time.process_time()
    exposition(found)
    return took, longest_s * 1e3, (time.process_time() - began) * 1e3


def main() -> None:
    """All of it."""
    for record_count in (1, 25, 100, 1000):
        cost_us = instruments(record_count)
        print(f"a batch of {record_count}: {cost_us:.2f} us, {cost_us / record_count:.4f} us a record")
    for count in (1, 1000, 10_000):
        took, longest_ms, text_ms = asyncio.run(scrape(count))
        changes = ", ".join(f"{name} {ms:.1f}" for name, ms in took.items())
        print(f"{count} partitions: gathered in ms, {changes}; the longest slice {longest_ms:.1f} ms, text {text_ms:.1f} ms")


if __name__ == "__main__":
    main()
