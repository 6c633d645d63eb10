"""Publishing at a steady rate while the stream's leader is killed again and again: what the client was told, and what is stored.

Right is, at the client's default settings: nothing acknowledged is lost, each acknowledged value stands where its ack says, and with
message ids each is stored once. Time-outs, "nobody there" and refusals are counted and shown; with a standby there are none, and each
value is stored once without message ids, too.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter

from liftpy.client import Client, connect
from liftpy.config import StreamConfig
from sidecar.dev.cluster import DevCluster
from tests.clients.answered import Tap
from tests.clients.build import MissingError, Program
from tests.clients.protocol import Answer, Process

_BETWEEN_S = 1.0
_PATIENCE_S = 60.0


async def _wait_until_whole(client: Client, stream: str) -> str:
    """The leader, once all three replicas are in sync."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            partition = (await client.stream(stream)).partitions[0]
            if partition.leader and len(partition.isr) == 3:
                return partition.leader
            await asyncio.sleep(0.1)


async def _move_leader(client: Client, stream: str, times: int) -> None:
    """By command, to each replica in its turn."""
    for number in range(times):
        await _wait_until_whole(client, stream)
        await asyncio.sleep(_BETWEEN_S)
        image = await client.stream(stream)
        followers = [replica for replica in image.partitions[0].isr if replica != image.partitions[0].leader]
        await client.elect_leader(stream, 0, followers[number % 2])
    await _wait_until_whole(client, stream)
    await asyncio.sleep(_BETWEEN_S)


async def _kill_leaders(cluster: DevCluster, client: Client, stream: str, kills: int) -> None:
    for _ in range(kills):
        node = cluster.nodes[await _wait_until_whole(client, stream)]
        await asyncio.sleep(_BETWEEN_S)
        await asyncio.to_thread(node.kill)
        async with asyncio.timeout(_PATIENCE_S):
            while (await client.stream(stream)).partitions[0].leader in ("", node.node_id):
                await asyncio.sleep(0.05)
        node.start()
        await asyncio.to_thread(node.wait_ready)
    await _wait_until_whole(client, stream)


async def judged(client: Client, stream: str, said: Answer) -> dict[str, int | str]:
    """What is stored beside what was acknowledged."""
    stored = [int(record.value or b"-1") async for record in client.consume(stream, until="end")]
    times = Counter(stored)
    elsewhere = [number for number, seq in said["acked"] if seq > len(stored) or stored[seq - 1] != number]
    why = Counter(_kind(text) for _, text in said["failed"])
    return {
        "sent": said["sent"],
        "acked": len(said["acked"]),
        "failed": len(said["failed"]),
        "acked and lost": sum(not times[number] for number, _ in said["acked"]),
        "acked elsewhere": len(elsewhere),
        "stored twice": sum(count > 1 for count in times.values()),
        "never stored": said["sent"] - len(times),
        "why": ", ".join(f"{count} x {text}" for text, count in why.most_common(4)),
    }


def _kind(text: str) -> str:
    said = json.loads(text)
    return f"{said['err_code']} {said['description']}" if "err_code" in said else str(said.get("failed", said))[:60]


async def under_kills(programs: list[Program], kills: int, rate: int, *, standby: bool, msg_ids: bool, moves: int = 0) -> bool:
    """Print what each client was told and what is stored; whether nothing that was acknowledged is lost, or twice. ``moves``: the
    leadership moves so many times by command, and no leader is killed; then nobody is answered twice."""
    config = StreamConfig(failover_standby=standby)
    right = True
    with DevCluster(3) as cluster:
        async with await connect(cluster.nats_url, cluster.namespace) as client:
            for number, program in enumerate(programs):
                try:
                    command, folder = await asyncio.to_thread(program.ready)
                except MissingError as missing:
                    print(f"{program.name} is left out: {missing}")
                    continue
                if "many" in program.lacks:
                    print(f"{program.name} is left out: it is a process for each message")
                    continue
                stream, subject = f"kills-{number}", f"kills.{number}"
                await client.create_stream(stream, subject, config=config)
                async with Process([*command, cluster.nats_url], folder) as process, Tap(cluster.nats_url, subject) as tap:
                    await process.ask("steady", subject=subject, value="id-", rate=rate, msg_ids=msg_ids)
                    await (_move_leader(client, stream, moves) if moves else _kill_leaders(cluster, client, stream, kills))
                    found = await judged(client, stream, await process.ask("stop"))
                    found["answered twice"] = tap.twice()
                twice = found["stored twice"] if standby or msg_ids else 0
                right = right and not (found["acked and lost"] or twice or found["acked elsewhere"])
                right = right and not (standby and found["failed"]) and not (moves and found["answered twice"])
                print(f"{program.name}: " + ", ".join(f"{value} {what}" for what, value in found.items() if what != "why"))
                if found["why"]:
                    print(f"    {found['why']}")
    return right
