"""Plain publishes, which nobody answers, while the stream's leader is killed again and again, with a standby: what is stored of what
the survivors heard.

Several connections number their messages, each at a steady rate; one more sends the same thing each time. Right is: nothing is missing
that NATS gave to whoever listened, the order of each connection is kept, nothing is stored twice; of what is always the same at least
as many are stored as were sent (rather a duplicate than a loss), and those beyond are counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque

import nats

from liftpy.client import connect
from liftpy.config import StreamConfig
from sidecar.dev.cluster import DevCluster
from tests.clients.answered import Tap
from tests.clients.kills import Cluster

_CONNECTIONS = 4
_SAME = b"the same"


async def _publish(url: str, subject: str, values: list[bytes], number: int, rate: float, stop: asyncio.Event) -> None:
    """``number`` -1: always the same. ``values``: what was sent."""
    connection = await nats.connect(url, max_reconnect_attempts=-1)
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not stop.is_set():
        for index in range(len(values), int((loop.time() - began) * rate)):
            values.append(_SAME if number < 0 else b"%d:%d" % (number, index))
            await connection.publish(subject, values[-1])
        await asyncio.sleep(0.005)
    await connection.drain()


def judged(heard: list[bytes], stored: list[bytes]) -> dict[str, int]:
    """What is stored beside what was heard."""
    times, same = Counter(stored), heard.count(_SAME)
    last, inverted = dict[bytes, int](), 0
    for value in dict.fromkeys(stored):
        if value != _SAME:
            connection, index = value.split(b":")
            inverted += int(index) < last.get(connection, -1)
            last[connection] = max(last.get(connection, -1), int(index))
    return {
        "heard": len(heard),
        "missing": sum(value not in times for value in set(heard)) + max(0, same - times[_SAME]),
        "stored twice": sum(count > 1 for value, count in times.items() if value != _SAME),
        "out of order": inverted,
        "equal ones heard": same,
        "equal ones stored": times[_SAME],
    }


async def plain_under_kills(kills: int, rate: int) -> bool:
    """Print what is stored; whether it is right."""
    with DevCluster(3) as dev:
        async with await connect(dev.nats_url, dev.namespace) as client:
            await client.create_stream("plain", "plain", config=StreamConfig(failover_standby=True))
            cluster, heard, stop = Cluster(dev, client, deque(maxlen=1)), list[bytes](), asyncio.Event()
            await cluster.leader("plain")

            async def hear(message: nats.aio.client.Msg) -> None:
                heard.append(message.data)

            listening = await nats.connect(dev.nats_url)
            await listening.subscribe("plain", cb=hear, pending_msgs_limit=-1, pending_bytes_limit=-1)
            await listening.flush()
            each = rate / (_CONNECTIONS + 1)
            publishing = [
                asyncio.create_task(_publish(dev.nats_url, "plain", [], number, each, stop))
                for number in range(-1, _CONNECTIONS)
            ]
            await cluster.kill_leaders("plain", kills, Tap(dev.nats_url, "plain"), nats_restarts=False)
            stop.set()
            await asyncio.gather(*publishing)
            await listening.drain()
            await client.publish("plain", b"end:0")  # behind all of them
            stored = [record.value or b"" async for record in client.consume("plain", until="end")]
            found = judged(heard, [value for value in stored if value != b"end:0"])
            print("plain: " + ", ".join(f"{count} {what}" for what, count in found.items()))
            print(f"    standbys: {await cluster.heard() or 'none'}", flush=True)
    return not any(found[what] for what in ("missing", "stored twice", "out of order"))
