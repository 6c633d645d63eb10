"""A process that publishes through the client's producer: ``python -m sidecar.bench.producer PORT STREAM SECONDS SIZE HOW``.

HOW: ``one`` publishes record by record, ``many`` a thousand at a time. Each ack means that the record is committed on all
in-sync replicas. It prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time

from liftpy.client import connect

_TOGETHER = 1000


async def run(url: str, stream: str, seconds: float, size_bytes: int, how: str) -> dict[str, float]:
    """Publish for ``seconds``, and return ``acked`` records, ``took_s`` until the last ack, and ``cpu_s`` of this process."""
    value = b"x" * size_bytes
    values, sent = [value] * _TOGETHER, 0
    async with connect(url) as client, client.producer(stream) as producer:
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        while time.perf_counter() - began < seconds:
            if how == "many":
                await producer.send_many(values)
            else:
                for _ in range(_TOGETHER):
                    await producer.send(value)
            sent += _TOGETHER
        await producer.flush()
        took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"acked": sent, "took_s": took, "cpu_s": cpu_s}


def main() -> None:
    """Run the producer and print its values (see the module docstring)."""
    port, stream, seconds, size_bytes, how = sys.argv[1:]
    print(json.dumps(asyncio.run(run(f"nats://127.0.0.1:{port}", stream, float(seconds), int(size_bytes), how))))


if __name__ == "__main__":
    main()
