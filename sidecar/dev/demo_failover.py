"""The demo's middle: the leader is killed while a plain NATS publisher waits for acknowledgements, and nothing is lost.

The publisher is nats-py alone. It asks for each flight to be stored at its offset (``Nats-Expected-Last-Sequence``), so one that was
stored though its acknowledgement was lost is not stored again: afterwards every flight lies where it should, once.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass

import nats
import nats.errors
from nats.aio.client import Client as NatsConnection

from liftpy.client import Client
from liftpy.errors import UnavailableError
from sidecar.dev.cluster import DevCluster

MAX_RECORDS = 4000
_WINDOW = 64
_ANSWER_TIMEOUT_S = 1.0
_PATIENCE_S = 60.0
_PAUSE_S = 0.01


@dataclass(frozen=True, slots=True)
class Failover:
    """Result of the failover step. ``next_ack_s``: time from the kill to the next ack. ``seconds``: total time."""

    killed: str
    leader: str
    acknowledged: int
    next_ack_s: float
    seconds: float


async def lose_the_leader(
    cluster: DevCluster, client: Client, stream: str, subject: str, lines: list[bytes], first: int
) -> Failover:
    """Publish ``lines``, acknowledged, from offset ``first`` on; kill the leader half-way; return when all nodes are in sync again."""
    began = time.monotonic()
    killed = (await client.stream(stream)).partitions[0].leader
    connection = await nats.connect(cluster.nats_url, name="demo-acknowledged", max_reconnect_attempts=-1)
    try:
        half, end = len(lines) // 2, first + len(lines)
        position = await _publish(connection, client, stream, subject, lines, first, first, first + half)
        await asyncio.to_thread(cluster.nodes[killed].kill)
        struck = time.monotonic()
        position = await _publish(connection, client, stream, subject, lines, first, position, position + 1)
        next_ack_s = time.monotonic() - struck
        await _publish(connection, client, stream, subject, lines, first, position, end)
    finally:
        await connection.close()
    leader = (await client.stream(stream)).partitions[0].leader
    cluster.nodes[killed].start()
    await asyncio.to_thread(cluster.nodes[killed].wait_ready)
    await _until_in_sync(client, stream)
    return Failover(killed, leader, len(lines), next_ack_s, time.monotonic() - began)


async def _publish(
    connection: NatsConnection, client: Client, stream: str, subject: str, lines: list[bytes], first: int, start: int, end: int
) -> int:
    """Publish the flights from offset ``start`` to ``end`` (exclusive) with acks, in windows. Return the next offset."""
    position, moved = start, time.monotonic()
    while position < end:
        window = range(position, min(position + _WINDOW, end))
        answers = await asyncio.gather(*(_ask(connection, subject, lines[i - first], i) for i in window))
        stored = next((number for number, answer in enumerate(answers) if not answer), len(answers))
        if stored < len(answers):
            await asyncio.sleep(_PAUSE_S)
            stored = max(stored, min(await _committed(client, stream), end) - position)
        if stored:
            position, moved = position + stored, time.monotonic()
        elif time.monotonic() - moved > _PATIENCE_S:
            raise UnavailableError(
                f"Offset {position} of {stream} was not acknowledged within {_PATIENCE_S:g} s. The machine may be "
                "overloaded: run the demo again."
            )
    return position


async def _ask(connection: NatsConnection, subject: str, line: bytes, offset: int) -> bool:
    """Whether ``line`` was acknowledged at ``offset``."""
    try:
        answer = await connection.request(
            subject, line, timeout=_ANSWER_TIMEOUT_S, headers={"Nats-Expected-Last-Sequence": str(offset)}
        )
    except (nats.errors.Error, TimeoutError):
        return False
    return bool(json.loads(answer.data).get("seq") == offset + 1)


async def _committed(client: Client, stream: str) -> int:
    """Return how many records are committed, with those whose ack was lost. 0: no answer."""
    try:
        return (await client.bounds(stream)).high_watermark + 1
    except UnavailableError:
        return 0


async def _until_in_sync(client: Client, stream: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        partition = (await client.stream(stream)).partitions[0]
        if set(partition.isr) == set(partition.replicas):
            return
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"The ISR is {', '.join(partition.isr)} after {_PATIENCE_S:g} s. `liftpy status` shows which replica is behind."
            )
        await asyncio.sleep(_PAUSE_S * 5)
