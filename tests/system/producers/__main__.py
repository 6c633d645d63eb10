"""``python -m tests.system.producers [--kills 30] [--from-stream]``: producers are killed, and leaders, and NATS is restarted.

Each round kills the leader of a partition and, a moment before or after it, the producing process, which comes back under its id; every
tenth round NATS is restarted as well. At the end one more process brings every partition to a round number of records. Right is: each
partition holds the numbers from 0 on, each once, in order. Exit code 1 otherwise.

``--from-stream``: the process that is killed makes a stream of two partitions from another one, which grows meanwhile. Right is: the
second stream holds what each record of the first yields, once, in order.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
from pathlib import Path

from liftpy.client import Client, connect
from liftpy.core.wire.partitioner import partition_of
from liftpy.errors import LiftError
from sidecar.dev.cluster import DevCluster
from tests.system.producers.process import yields

ROOT = Path(__file__).resolve().parents[3]
STREAM = "produced"
DERIVED = "derived"
PARTITIONS = 2
NATS_EVERY = 10
PATIENCE_S = 120.0


def _start(cluster: DevCluster, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.system.producers.process", cluster.nats_url, cluster.namespace, STREAM, *more]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


async def _ends(client: Client, stream: str = STREAM) -> list[int]:
    return [(await client.bounds(stream, partition)).high_watermark + 1 for partition in range(PARTITIONS)]


async def _grown(client: Client, before: list[int], name: str = STREAM) -> None:
    """Wait until every partition has grown, and is whole again."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                stream, ends = await client.stream(name), await _ends(client, name)
                whole = all(len(partition.isr) == 3 and partition.leader for partition in stream.partitions)
                if whole and all(end > start for end, start in zip(ends, before, strict=True)):
                    return
            except LiftError:
                pass
            await asyncio.sleep(0.1)


async def _round(
    cluster: DevCluster,
    client: Client,
    producer: subprocess.Popen[str],
    number: int,
    rng: random.Random,
    more: tuple[str, ...] = (),
) -> subprocess.Popen[str]:
    partition = (await client.stream(DERIVED if more else STREAM)).partitions[number % PARTITIONS]
    node = cluster.nodes[partition.leader]

    async def kill_node() -> None:
        await asyncio.sleep(rng.random() * 0.2)
        await asyncio.to_thread(node.kill)

    async def kill_producer() -> subprocess.Popen[str]:
        await asyncio.sleep(rng.random() * 0.4)
        producer.kill()
        await asyncio.to_thread(producer.wait)
        return _start(cluster, *more)

    _, another = await asyncio.gather(kill_node(), kill_producer())
    if number % NATS_EVERY == NATS_EVERY - 1 and cluster.nats is not None:
        await asyncio.to_thread(cluster.nats.restart)
    await asyncio.sleep(rng.random())
    node.start()
    await asyncio.to_thread(node.wait_ready)
    return another


async def _judge(client: Client) -> bool:
    """Print what each partition holds; whether that is right."""
    right = True
    for partition in range(PARTITIONS):
        values = [int(record.value or b"-1") async for record in client.consume(STREAM, partition, until="end")]
        wrong = next((at for at, value in enumerate(values) if value != at), None)
        twice = len(values) - len(set(values))
        said = "each once, in order" if wrong is None else f"{values[wrong]} at offset {wrong}, {twice} twice"
        print(f"partition {partition}: {len(values)} records, {said}")
        right = right and wrong is None
    return right


async def run(kills: int, seed: int) -> bool:
    """Whether every partition holds what it should."""
    rng = random.Random(seed)
    with DevCluster(3) as cluster:
        async with connect(cluster.nats_url, cluster.namespace) as client:
            await client.create_stream(STREAM, "data.produced", partitions=PARTITIONS)
            producer = _start(cluster)
            try:
                await _grown(client, [0] * PARTITIONS)
                for number in range(kills):
                    producer = await _round(cluster, client, producer, number, rng)
                    await _grown(client, await _ends(client))
                    print(f"{number + 1} of {kills}: {await _ends(client)}", flush=True)
                producer.kill()
                producer.wait()
                target = max(await _ends(client)) + 1000
                producer = _start(cluster, "--until", str(target))
                code = await asyncio.to_thread(producer.wait, PATIENCE_S)
            finally:
                producer.kill()
                producer.wait()
            right = await _judge(client)
            ends = await _ends(client)
            return right and code == 0 and ends == [target] * PARTITIONS


async def _made(client: Client) -> list[list[bytes]]:
    """What the derived stream's partitions are to hold."""
    found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    async for record in client.consume(STREAM, until="end"):
        for key, value in yields(int(record.value or b"-1")):
            found[partition_of(key, PARTITIONS)].append(value)
    return found


async def _whole(client: Client) -> list[list[bytes]]:
    """The same, once the derived stream is as long: what the feeder had on its way when it was killed may come yet."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            wanted = await _made(client)
            if await _ends(client, DERIVED) == [len(values) for values in wanted]:
                return wanted
            await asyncio.sleep(0.5)


async def run_from_stream(kills: int, seed: int) -> bool:
    """Whether the derived stream holds what it should."""
    rng, into = random.Random(seed), ("--into", DERIVED)
    with DevCluster(3) as cluster:
        async with connect(cluster.nats_url, cluster.namespace) as client:
            await client.create_stream(STREAM, "data.produced")
            await client.create_stream(DERIVED, "data.derived", partitions=PARTITIONS)
            feeder = _start(cluster, "--pause", "0.1")
            maker = _start(cluster, *into)
            try:
                await _grown(client, [0] * PARTITIONS, DERIVED)
                for number in range(kills):
                    maker = await _round(cluster, client, maker, number, rng, into)
                    await _grown(client, await _ends(client, DERIVED), DERIVED)
                    print(f"{number + 1} of {kills}: {await _ends(client, DERIVED)}", flush=True)
                feeder.kill()
                feeder.wait()
                wanted = await _whole(client)
            finally:
                for process in (feeder, maker):
                    process.kill()
                    process.wait()
            right = True
            for partition, values in enumerate(wanted):
                held = [record.value async for record in client.consume(DERIVED, partition, until="end")]
                print(f"partition {partition}: {len(held)} records, {len(held) - len(set(held))} twice, of {len(values)}")
                right = right and held == values
            return right


def main() -> int:
    """See the docstring above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--from-stream", action="store_true")
    given = parser.parse_args()
    return 0 if asyncio.run((run_from_stream if given.from_stream else run)(given.kills, given.seed)) else 1


if __name__ == "__main__":
    sys.exit(main())
