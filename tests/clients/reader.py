"""``python -m tests.clients.reader``: the reader that was written from docs/read-protocol.md, against a cluster of three nodes.

From the oldest record to the end, of plain and compressed batches; by subjects; and on, while the stream's leader is killed. What it
prints is what the client library reads.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from liftpy.client import Client, PublishOptions, connect
from liftpy.config import Codec, StreamConfig
from sidecar.dev.cluster import DevCluster
from tests.clients.build import READER, MissingError

_LIMIT_S = 60.0


async def started(url: str, stream: str, until: str, *subjects: str) -> asyncio.subprocess.Process:
    """The reader, from the oldest record of partition 0 on. Raises MissingError where it can't be built."""
    command, folder = await asyncio.to_thread(READER.ready)
    words = [str(Path(folder) / command[0]), url, stream, "0", until, *subjects]
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=pipe)


async def printed(process: asyncio.subprocess.Process) -> list[bytes]:
    """Its lines; AssertionError with what it said where it failed."""
    async with asyncio.timeout(_LIMIT_S):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.splitlines()


async def expected(client: Client, stream: str, subjects: tuple[str, ...] = ()) -> list[bytes]:
    """What it is to print up to the end."""
    records = client.consume(stream, until="end", subjects=subjects)
    return [b"%d\t%s\t%s" % (record.offset, record.key or b"", record.value or b"") async for record in records]


async def check(dev: DevCluster, name: str) -> None:
    """All of it, with streams whose names begin with ``name``. Raises AssertionError, MissingError."""
    url = dev.nats_url
    async with connect(url, dev.namespace) as client:
        for codec in (Codec.LZ4, Codec.ZSTD, Codec.NONE):
            stream = f"{name}-{codec.name.lower()}"
            await client.create_stream(stream, f"{stream}.>", config=StreamConfig(codec=codec))
            for country in ("eu", "us"):
                options = PublishOptions(message_ids=True)
                async with client.publisher(stream, subject=f"{stream}.{country}", options=options) as publisher:
                    for number in range(200):
                        key = b"k%d" % number if number % 3 else None
                        await publisher.send(b"%s %d" % (country.encode(), number) * 20, key=key, headers={"h": b"v"})
                    for number in range(300):
                        await publisher.send(b"x" * 1000 * (number % 3))
                    await publisher.send(None, key=b"deleted")
            for subjects in ((), (f"{stream}.us",), (f"{stream}.*", f"{stream}.no.such")):
                found = await printed(await started(url, stream, "end", *subjects))
                assert found == await expected(client, stream, subjects), f"{stream} {subjects}: {len(found)} records"
        count = (await client.bounds(stream)).end_offset
        follows = await started(url, stream, str(count + 200), f"{stream}.>", ">")
        leader = (await client.stream(stream)).partitions[0].leader
        async with client.publisher(stream, subject=f"{stream}.eu") as publisher:
            for number in range(600):
                if number == 300:
                    await asyncio.to_thread(dev.nodes[leader].kill)
                await publisher.publish(b"later %d" % number)
        assert await printed(follows) == (await expected(client, stream, (">",)))[: count + 200]
        dev.nodes[leader].start()
        await asyncio.to_thread(dev.nodes[leader].wait_ready)


async def main() -> bool:
    """Whether all holds."""
    with DevCluster(3) as dev:
        try:
            await check(dev, "read")
        except MissingError as missing:
            print(f"left out: {missing}")
            return True
    print("all that it printed is what the client library reads")
    return True


if __name__ == "__main__":
    sys.exit(not asyncio.run(main()))
