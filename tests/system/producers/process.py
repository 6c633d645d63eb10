"""A producing process: it goes on behind what is stored, for ever, until it is killed; or until ``--until`` records are stored.

The value of a record is its number in its partition, so that the log shows by itself whether one is missing, twice, or out of order.
"""

from __future__ import annotations

import argparse
import asyncio

from liftpy.client import ProducerOptions, connect

_TOGETHER = 40
_PAUSE_S = 0.002


async def produce(url: str, namespace: str, stream: str, name: str, until: int) -> None:
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
            await asyncio.sleep(_PAUSE_S)


def main() -> None:
    """See the docstring above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("namespace")
    parser.add_argument("stream")
    parser.add_argument("--name", default="killed")
    parser.add_argument("--until", type=int, default=0)
    given = parser.parse_args()
    asyncio.run(produce(given.url, given.namespace, given.stream, given.name, given.until))


if __name__ == "__main__":
    main()
