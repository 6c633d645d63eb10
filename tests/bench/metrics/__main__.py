"""``python -m tests.bench.metrics``: what the instruments of the data path cost for a batch, and what a scrape costs a node."""

from __future__ import annotations

import asyncio
import time
import timeit

from liftpy.config import AckPolicy
from liftpy.instruments import Instruments, PublishTimes
from liftpy.replica.phases import RoleName
from sidecar import clock
from sidecar.status.figures import NodeFigures
from sidecar.status.metrics import exposition
from tests.unit.node.test_metrics import a_reporter, a_worker

_TIMES = 20_000


def instruments(record_count: int) -> float:
    """us for one batch: it arrives, is appended, committed and acknowledged."""
    times = PublishTimes(Instruments(), clock.now_ns)

    def one() -> None:
        arrived_ns = times.now_ns()
        times.appended(record_count - 1, record_count, arrived_ns)
        times.committed(record_count - 1)
        times.answered(AckPolicy.ALL, arrived_ns, record_count)

    return min(timeit.repeat(one, number=_TIMES, repeat=5)) / _TIMES * 1e6


async def scrape(count: int) -> tuple[float, float, float, float]:
    """ms of CPU to gather the figures of so many partitions for the first time and later, of the longest slice on the clock, and of
    CPU for the text."""
    workers = [a_worker(f"s{n % 100}", n, RoleName.LEADER if n % 3 == 0 else RoleName.FOLLOWER) for n in range(count)]
    for worker in workers[10:]:  # most have refused and dropped nothing
        worker.standby.has_counted = False
        worker.ingest.counters.refused.clear()
        worker.ingest.counters.dropped.clear()
    figures, longest_s = NodeFigures(a_reporter(workers)), 0.0

    async def beside() -> None:
        nonlocal longest_s
        before = time.perf_counter()
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            before, longest_s = now, max(longest_s, now - before)

    task = asyncio.ensure_future(beside())
    await asyncio.sleep(0)
    gathered_s = []
    for _ in range(6):
        began = time.process_time()
        found = await figures.gather()
        gathered_s.append(time.process_time() - began)
    task.cancel()
    began = time.process_time()
    exposition(found)
    return gathered_s[0] * 1e3, min(gathered_s[1:]) * 1e3, longest_s * 1e3, (time.process_time() - began) * 1e3


def main() -> None:
    """All of it."""
    for record_count in (1, 25, 100, 1000):
        cost_us = instruments(record_count)
        print(f"a batch of {record_count}: {cost_us:.2f} us, {cost_us / record_count:.4f} us a record")
    for count in (1, 1000, 10_000):
        first_ms, later_ms, longest_ms, text_ms = asyncio.run(scrape(count))
        print(
            f"{count} partitions: gathered in {first_ms:.1f} ms at first, {later_ms:.1f} ms later, "
            f"the longest slice {longest_ms:.1f} ms, text {text_ms:.1f} ms"
        )


if __name__ == "__main__":
    main()
