"""A worker of a queue for some seconds: ``python -m tests.bench.peer.queue_worker PORT STREAM SECONDS HOW BATCH``.

HOW: ``liftpy`` (``client.queue``, BATCH taken at a time and acknowledged together), ``py-pull`` (nats-py's durable pull consumer, BATCH
fetched at a time, an ``ack_sync`` for each, all at once). Every acknowledgement is waited for. Prints one line of JSON: ``acked``,
``took_s``, ``cpu_s`` of this process, ``p50_s`` and ``p99_s`` of how long acknowledging a batch took.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import nats
import nats.errors
import nats.js.api

from liftpy.client import QueueOptions, connect
from sidecar.bench.consumer import Stopwatch

_ANSWER_S = 20.0
Batch = tuple[int, Callable[[], Awaitable[object]]]
"""How many there are, and what acknowledges them."""


async def ours(url: str, stream: str, batch: int) -> AsyncGenerator[Batch, None]:
    """A group of its own for each run: it begins at the first record."""
    async with connect(url) as client:
        options = QueueOptions(ack_wait_s=60.0)
        async with client.queue(stream, f"bench{time.time_ns()}", options=options) as queue:
            while jobs := await queue.take(batch, timeout_s=_ANSWER_S):
                yield len(jobs), lambda jobs=jobs: queue.ack(jobs)  # type: ignore[misc]


async def theirs(url: str, stream: str, batch: int) -> AsyncGenerator[Batch, None]:
    """A durable of its own for each run, replicated as the stream is."""
    connection = await nats.connect(url)
    jetstream = connection.jetstream()
    config = nats.js.api.ConsumerConfig(ack_policy=nats.js.api.AckPolicy.EXPLICIT, max_ack_pending=20_000, ack_wait=60)
    subscription = await jetstream.pull_subscribe(stream, f"bench{time.time_ns()}", stream=stream, config=config)
    while True:
        messages = await subscription.fetch(batch, timeout=_ANSWER_S)
        yield len(messages), lambda some=messages: asyncio.gather(*(one.ack_sync(_ANSWER_S) for one in some))  # type: ignore[misc]


async def work(batches: AsyncGenerator[Batch, None], seconds: float) -> dict[str, float]:
    """Until the time is over; what comes first is not counted: a new queue, or consumer, is made with it."""
    async with aclosing(batches):  # it says goodbye while somebody answers
        return await _worked(batches, seconds)


async def _worked(batches: AsyncGenerator[Batch, None], seconds: float) -> dict[str, float]:
    _, acknowledge = await anext(batches)
    await acknowledge()
    clock, count, times_s = Stopwatch(seconds), 0, list[float]()
    async for size, acknowledge in batches:
        began = time.perf_counter()
        await acknowledge()
        times_s.append(time.perf_counter() - began)
        count += size
        if not clock.goes_on:
            break
    figures = clock.figures(count, 0)
    times_s.sort()
    return {
        "acked": figures["acked"], "took_s": figures["took_s"], "cpu_s": figures["cpu_s"],
        "p50_s": statistics.median(times_s), "p99_s": times_s[int(0.99 * (len(times_s) - 1))],
    }  # fmt: skip


def main() -> None:
    """See the docstring above."""
    port, stream, seconds, how, batch = sys.argv[1:]
    batches = (ours if how == "liftpy" else theirs)(f"nats://127.0.0.1:{port}", stream, int(batch))
    print(json.dumps(asyncio.run(work(batches, float(seconds)))))


if __name__ == "__main__":
    main()
