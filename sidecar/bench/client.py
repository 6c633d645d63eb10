"""Processes that publish or read through a client library. Each prints one line of JSON.

    python -m sidecar.bench.client produce PORT STREAM SECONDS SIZE
    python -m sidecar.bench.client consume PORT STREAM SECONDS HOW
    python -m sidecar.bench.client arrivals PORT STREAM liftpy|jetstream

``produce`` publishes with liftpy's producer, a thousand records at a time. Each ack means that the record is committed on all in-sync
replicas. It prints ``acked``, ``took_s`` and ``cpu_s`` of this process.

``consume`` reads a stream from its first record, again and again. HOW: ``liftpy-values`` (``batches()``, every value as ``bytes``),
``liftpy-record`` (``async for record``, reads its value), ``py-pull`` (nats-py's pull consumer without acks, many at a time) or
``py-ordered`` (its ordered consumer, message by message). It prints ``acked`` (records read), ``took_s``, ``cpu_s`` and ``rounds``
through the stream.

``arrivals`` measures the age of stamped messages. It prints ``go`` when it is ready for new records. When it gets a line on its
standard input, it prints ``acked`` (records read), ``cpu_s``, ``end_p50_ms``, ``end_p99_ms``, ``end_p999_ms``. The last three are the
time from when a message was due until it was read. liftpy's client reads batches of committed records. For JetStream, a push consumer
is read from a bare socket, which is its cheapest reader.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import nats
import nats.js.api

from liftpy.client import Client, connect
from sidecar.bench.load import SMALLEST_BYTES, STAMP, quantiles
from sidecar.runtime.tasks import start_attended

_TOGETHER = 1000
"""Maximum number of records or messages per request, and between two checks of the clock."""
_ANSWER_S = 10.0
_STAMPED = re.compile(rb"\r\nT(\d{19})")
_INBOX = "_INBOX.arrivals"


class Stopwatch:
    """Wall time and CPU time of this process since the object was created. ``seconds``: duration of the measurement."""

    def __init__(self, seconds: float) -> None:
        self._began, self._cpu_s = time.perf_counter(), time.process_time()
        self._end = self._began + seconds

    @property
    def goes_on(self) -> bool:
        return time.perf_counter() < self._end

    def figures(self, count: int, **more: float) -> dict[str, float]:
        took_s, cpu_s = time.perf_counter() - self._began, time.process_time() - self._cpu_s
        return {"acked": count, "took_s": took_s, "cpu_s": cpu_s, **more}


async def produce(port: int, stream: str, seconds: float, size_bytes: int) -> dict[str, float]:
    """Publish for ``seconds`` with liftpy's producer, wait for the last ack, and return the measured values."""
    values, sent = [b"x" * size_bytes] * _TOGETHER, 0
    async with connect(f"nats://127.0.0.1:{port}") as client, client.producer(stream) as producer:
        clock = Stopwatch(seconds)
        while clock.goes_on:
            await producer.send_many(values)
            sent += _TOGETHER
        await producer.flush()
        return clock.figures(sent)


# ---- read from the first record --------------------------------------------------------------------------------------


async def _values(client: Client, stream: str, clock: Stopwatch) -> int:
    count = 0
    async for piece in client.consume(stream, start="earliest", until="end").batches():
        count += len(piece.values())
        if not clock.goes_on:
            break
    return count


async def _records(client: Client, stream: str, clock: Stopwatch) -> int:
    count = 0
    async for record in client.consume(stream, start="earliest", until="end"):
        if record.value:
            count += 1
        if not count % _TOGETHER and not clock.goes_on:
            break
    return count


async def _pull(stored: int, jetstream: Any, stream: str, clock: Stopwatch) -> int:
    config = nats.js.api.ConsumerConfig(ack_policy=nats.js.api.AckPolicy.NONE)
    subscription = await jetstream.pull_subscribe(stream, stream=stream, config=config)
    count = 0
    while count < stored and clock.goes_on:
        for message in await subscription.fetch(min(_TOGETHER, stored - count), timeout=_ANSWER_S):
            if message.data:
                count += 1
    await subscription.unsubscribe()
    return count


async def _consume_in_order(stored: int, jetstream: Any, stream: str, clock: Stopwatch) -> int:
    subscription = await jetstream.subscribe(stream, stream=stream, ordered_consumer=True)
    count = 0
    while count < stored and (count % _TOGETHER or clock.goes_on):
        if (await subscription.next_msg(_ANSWER_S)).data:
            count += 1
    await subscription.unsubscribe()
    return count


_OURS = {"liftpy-values": _values, "liftpy-record": _records}
_THEIRS = {"py-pull": _pull, "py-ordered": _consume_in_order}


async def consume(port: int, stream: str, seconds: float, how: str) -> dict[str, float]:
    """Read ``stream`` over one connection, again and again, and return the measured values. ``how``: see the module docstring."""
    url = f"nats://127.0.0.1:{port}"
    if how in _OURS:
        async with connect(url) as client:
            await client.consume(stream, start="earliest", until="end").begin()
            return await _read_again(partial(_OURS[how], client, stream), seconds)
    connection = await nats.connect(url)
    jetstream = connection.jetstream()
    stored = (await jetstream.stream_info(stream)).state.messages
    figures = await _read_again(partial(_THEIRS[how], stored, jetstream, stream), seconds)
    await connection.close()
    return figures


async def _read_again(read: Callable[[Stopwatch], Awaitable[int]], seconds: float) -> dict[str, float]:
    count = rounds = 0
    clock = Stopwatch(seconds)
    while clock.goes_on:
        count += await read(clock)
        rounds += 1
    return clock.figures(count, rounds=rounds)


# ---- age of new records ----------------------------------------------------------------------------------------------


class Arrivals:
    """Number and ages of the received messages."""

    def __init__(self) -> None:
        self.count = 0
        self.times_ns: list[int] = []

    def figures(self) -> dict[str, float]:
        return {"acked": self.count, "cpu_s": time.process_time(), **quantiles(self.times_ns, "end_")}


async def read_liftpy(port: int, stream: str, arrivals: Arrivals) -> None:
    """Read batches of new records with liftpy forever, and add their number and ages to ``arrivals``."""
    async with connect(f"nats://127.0.0.1:{port}") as client:
        consumer = client.consume(stream, start="new")
        await consumer.begin()
        print("go", flush=True)
        async for piece in consumer.batches():
            now_ns, values = time.monotonic_ns(), piece.values()
            arrivals.count += len(values)
            arrivals.times_ns += [now_ns - int(value[1:SMALLEST_BYTES]) for value in values if value and value[:1] == STAMP]


async def read_jetstream(port: int, stream: str, arrivals: Arrivals) -> None:
    """Read a push consumer of JetStream forever, and add the number and ages of the messages to ``arrivals``."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    await reader.readline()
    writer.write(b'CONNECT {"verbose":false}\r\nSUB %s 1\r\nPING\r\n' % _INBOX.encode())
    while b"PONG" not in await reader.readline():
        pass
    connection = await nats.connect(f"nats://127.0.0.1:{port}")
    config = nats.js.api.ConsumerConfig(
        deliver_subject=_INBOX,
        deliver_policy=nats.js.api.DeliverPolicy.NEW,
        ack_policy=nats.js.api.AckPolicy.NONE,
        replay_policy=nats.js.api.ReplayPolicy.INSTANT,
    )
    await connection.jetstream().add_consumer(stream, config)
    print("go", flush=True)
    tail = b"\r\n"
    while received := await reader.read(1 << 20):
        now_ns, data = time.monotonic_ns(), tail + received
        if b"\r\nPING\r\n" in data:
            writer.write(b"PONG\r\n")
        data, tail = data[: (end := data.rfind(b"\r\n"))], data[end:]
        arrivals.count += data.count(b"\r\nMSG ")
        arrivals.times_ns += [now_ns - int(stamp) for stamp in _STAMPED.findall(data)]


async def measure_arrivals(port: int, stream: str, system: str) -> dict[str, float]:
    """Read until the standard input has a line or ends, and return the measured values.

    ``system``: ``liftpy`` or ``jetstream``.

    Raises:
        SystemExit: The system under test ended the reading.
    """
    arrivals, loop = Arrivals(), asyncio.get_running_loop()
    reading = start_attended((read_liftpy if system == "liftpy" else read_jetstream)(port, stream, arrivals))
    is_over = asyncio.Event()
    loop.add_reader(sys.stdin, is_over.set)
    waiting = start_attended(is_over.wait())
    await asyncio.wait({reading, waiting}, return_when=asyncio.FIRST_COMPLETED)
    loop.remove_reader(sys.stdin)
    has_ended = reading.done()
    for task in (reading, waiting):
        task.cancel()
    await asyncio.wait({reading, waiting})
    if not has_ended:
        return arrivals.figures()
    if (error := None if reading.cancelled() else reading.exception()) is not None:
        raise error
    raise SystemExit("The process that reads the records ended too early. Run the benchmark again.")


async def run(words: list[str]) -> dict[str, float]:
    """Run one of the processes, and return its values (see the module docstring)."""
    kind, port, stream, *more = words
    if kind == "produce":
        return await produce(int(port), stream, float(more[0]), int(more[1]))
    if kind == "consume":
        return await consume(int(port), stream, float(more[0]), more[1])
    if kind == "arrivals":
        return await measure_arrivals(int(port), stream, more[0])
    raise SystemExit(f"Unknown process {kind}. Use produce, consume or arrivals.")


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(sys.argv[1:]))))
