"""A process that reads a stream through a client library: ``python -m sidecar.bench.consumer PORT STREAM SECONDS HOW``.

HOW: ``liftpy-batch`` (``batches()``, counts the records), ``liftpy-values`` (``batches()``, every value as ``bytes``),
``liftpy-record`` (``async for record``, reads its value), ``liftpy-many`` (``getmany``), ``py-pull`` (nats-py's pull
consumer without acks, many at a time) or ``py-ordered`` (its ordered consumer, message by message). A reader at the end
starts again at the first record. It prints one line of JSON: ``acked`` (records read), ``took_s``, ``cpu_s`` of this
process, ``rounds`` through the stream.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import nats
import nats.js.api

from liftpy.client import connect
from liftpy.client.consumer import Consumer

_TOGETHER = 1000
"""Maximum number of records or messages per request, and between two checks of the clock."""
_ANSWER_S = 10.0
Loop = Callable[[Consumer, float], Coroutine[Any, Any, int]]


async def _batches(consumer: Consumer, end: float) -> int:
    count = 0
    async for piece in consumer.batches():
        count += piece.record_count
        if time.perf_counter() >= end:
            break
    return count


async def _values(consumer: Consumer, end: float) -> int:
    count = 0
    async for piece in consumer.batches():
        count += len(piece.values())
        if time.perf_counter() >= end:
            break
    return count


async def _records(consumer: Consumer, end: float) -> int:
    count = 0
    async for record in consumer:
        if record.value:
            count += 1
        if not count % _TOGETHER and time.perf_counter() >= end:
            break
    return count


async def _many(consumer: Consumer, end: float) -> int:
    count = 0
    while (records := await consumer.getmany(_TOGETHER)) and time.perf_counter() < end:
        count += len(records)
    return count


OURS: dict[str, Loop] = {
    "liftpy-batch": _batches,
    "liftpy-values": _values,
    "liftpy-record": _records,
    "liftpy-many": _many,
}


async def ours(url: str, stream: str, end_s: float, how: str) -> dict[str, float]:
    """Read ``stream`` with liftpy over one connection, again and again, and return the measured values."""
    count = rounds = 0
    async with connect(url) as client:
        await client.consume(stream, start="earliest", until="end").begin()
        clock = Stopwatch(end_s)
        while clock.goes_on:
            count += await OURS[how](client.consume(stream, start="earliest", until="end"), clock.end)
            rounds += 1
        return clock.figures(count, rounds)


async def theirs(url: str, stream: str, end_s: float, how: str) -> dict[str, float]:
    """Read ``stream`` with nats-py from JetStream, again and again, and return the measured values."""
    count = rounds = 0
    connection = await nats.connect(url)
    jetstream = connection.jetstream()
    stored = (await jetstream.stream_info(stream)).state.messages
    clock = Stopwatch(end_s)
    while clock.goes_on:
        count += await (_pull if how == "py-pull" else _consume_in_order)(jetstream, stream, stored, clock.end)
        rounds += 1
    figures = clock.figures(count, rounds)
    await connection.close()
    return figures


async def _pull(jetstream: Any, stream: str, stored: int, end: float) -> int:
    config = nats.js.api.ConsumerConfig(ack_policy=nats.js.api.AckPolicy.NONE)
    subscription = await jetstream.pull_subscribe(stream, stream=stream, config=config)
    count = 0
    while count < stored and time.perf_counter() < end:
        for message in await subscription.fetch(min(_TOGETHER, stored - count), timeout=_ANSWER_S):
            if message.data:
                count += 1
    await subscription.unsubscribe()
    return count


async def _consume_in_order(jetstream: Any, stream: str, stored: int, end: float) -> int:
    subscription = await jetstream.subscribe(stream, stream=stream, ordered_consumer=True)
    count = 0
    while count < stored and (count % _TOGETHER or time.perf_counter() < end):
        if (await subscription.next_msg(_ANSWER_S)).data:
            count += 1
    await subscription.unsubscribe()
    return count


class Stopwatch:
    """Wall time and CPU time of this process since the object was created. ``seconds``: duration of the measurement."""

    def __init__(self, seconds: float) -> None:
        self._began, self._cpu_s = time.perf_counter(), _cpu_s()
        self.end = self._began + seconds

    @property
    def goes_on(self) -> bool:
        return time.perf_counter() < self.end

    def figures(self, count: int, rounds: int) -> dict[str, float]:
        return {
            "acked": count,
            "took_s": time.perf_counter() - self._began,
            "cpu_s": _cpu_s() - self._cpu_s,
            "rounds": rounds,
        }


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Run the reader and print its values (see the module docstring)."""
    port, stream, seconds, how = sys.argv[1:]
    run = ours if how in OURS else theirs
    print(json.dumps(asyncio.run(run(f"nats://127.0.0.1:{port}", stream, float(seconds), how))))


if __name__ == "__main__":
    main()
