"""A reader that measures the age of stamped messages: ``python -m sidecar.bench.arrivals PORT STREAM liftpy|jetstream``.

It prints ``go`` when it is ready for new records. When it gets a line on its standard input, it prints one line of JSON:
``acked`` (records read), ``cpu_s``, ``end_p50_ms``, ``end_p99_ms``, ``end_p999_ms``. The last three are the time from when
a message was due until it was read. liftpy's client reads batches of committed records. For JetStream, a push consumer is
read from a bare socket, which is its cheapest reader.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time

import nats
import nats.js.api

from liftpy.client import connect
from sidecar.bench.open_loop import SMALLEST_BYTES, STAMP, quantiles
from sidecar.runtime.tasks import start_attended

_STAMPED = re.compile(rb"\r\nT(\d{19})")
_INBOX = "_INBOX.arrivals"


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


async def run(port: int, stream: str, system: str) -> dict[str, float]:
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


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(int(sys.argv[1]), sys.argv[2], sys.argv[3]))))
