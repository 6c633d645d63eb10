"""A producing process: it goes on behind what is stored, for ever, until it is killed; or until ``--until`` records are stored.

The value of a record is its number in its partition, so that the log shows by itself whether one is missing, twice, or out of order.
"""

from __future__ import annotations

import argparse
import asyncio

from liftpy.client import ProducerOptions, Source, connect

_TOGETHER = 40
_PAUSE_S = 0.002


async def produce(url: str, namespace: str, stream: str, name: str, until: int, pause_s: float) -> None:
    """Send to all partitions in turn; some records one by one, some together."""
    options = ProducerOptions(buffer_records=2000)
    async with connect(url, namespace) as client, client.producer(stream, id=name, options=options) as producer:
        partitions = range(producer.partitions)
        numbers = [producer.next_sequence(partition) for partition in partitions]
        print("goes on at", numbers, flush=True)
        while not until or min(numbers) < until:
            for partition in partitions:
                if until and numbers[partition] >= until:
                    continue
                count = min(_TOGETHER, until - numbers[partition]) if until else _TOGETHER
                values = [b"%d" % n for n in range(numbers[partition], numbers[partition] + count)]
                numbers[partition] += count
                await producer.send(values[0], partition=partition)
                await producer.send_many(values[1:], partition=partition)
            await asyncio.sleep(pause_s)


async def derive(url: str, namespace: str, source: str, target: str) -> None:
    """Read ``source`` behind what all of ``target`` has, and send what each record yields: none, one or two records, by key."""
    async with (
        connect(url, namespace) as client,
        client.producer(target, id=f"derive/{source}-0", source=Source(source)) as producer,
    ):
        print("goes on behind", producer.begin_after, flush=True)
        async for record in client.consume(source, start=producer.begin_after + 1):
            made = yields(int(record.value or b"-1"))
            await producer.send_many([value for _, value in made], keys=[key for key, _ in made], positions=record.offset)


def yields(number: int) -> list[tuple[bytes, bytes]]:
    """(key, value) of what is made from a record."""
    return [(b"%d" % (number % 1009 + 5 * n), b"%d.%d" % (number, n)) for n in range(number % 3)]


def main() -> None:
    """See the docstring above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("namespace")
    parser.add_argument("stream")
    parser.add_argument("--into", default="", help="a stream that is made from this one")
    parser.add_argument("--name", default="killed")
    parser.add_argument("--pause", type=float, default=_PAUSE_S)
    parser.add_argument("--until", type=int, default=0)
    given = parser.parse_args()
    if given.into:
        asyncio.run(derive(given.url, given.namespace, given.stream, given.into))
        return
    asyncio.run(produce(given.url, given.namespace, given.stream, given.name, given.until, given.pause))


if __name__ == "__main__":
    main()
