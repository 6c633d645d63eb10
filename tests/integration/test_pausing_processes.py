"""A paused stream under kill -9: of what is refused nothing is stored, whoever leads and after all processes were killed; what was
acknowledged is there, and it takes publishes again when it is resumed, or when somebody publishes [A2, A13]."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import nats.errors
import nats.js.errors
import pytest

from liftpy.config import StreamConfig
from liftpy.core.base.partition import Pause
from tests.integration.conftest import Bench

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]


class Publisher:
    """Publishes as any NATS client would, one after the other, and keeps who was told what."""

    def __init__(self, bench: Bench, subject: str) -> None:
        self.bench = bench
        self.subject = subject
        self.acked: list[bytes] = []
        self.refused: list[bytes] = []
        self.unknown: list[bytes] = []
        self._count = 0

    async def once(self) -> dict[str, Any]:
        """The error that it was answered; {}: it is stored, or nobody answered."""
        self._count += 1
        value = b"%d" % self._count
        try:
            answer = json.loads((await self.bench.nc.request(self.subject, value, timeout=2)).data)
        except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
            self.unknown.append(value)
            return {}
        (self.refused if "error" in answer else self.acked).append(value)
        return dict(answer.get("error", {}))

    async def until_refused(self) -> None:
        """As paused."""
        await self.bench.until(self._is_paused, "a publish is refused as paused")

    async def _is_paused(self) -> bool:
        return "paused" in (await self.once()).get("description", "")

    async def until_acked(self) -> None:
        before = len(self.acked)

        async def acked() -> bool:
            await self.once()
            return len(self.acked) > before

        await self.bench.until(acked, "a publish is acknowledged")

    async def go_on(self) -> None:
        """Until one is refused."""
        while not self.refused:
            await self.once()
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("standby", [False, True])
async def test_paused_stream_stays_paused_after_kills_of_the_leader_and_of_all_nodes(
    fragile: Bench, stream_name: str, standby: bool
) -> None:
    name, subject, nodes = stream_name, f"data.{stream_name}", fragile.cluster.nodes
    await fragile.create(name, partitions=1, replicas=3, config=StreamConfig(failover_standby=standby))
    publisher = Publisher(fragile, subject)
    await publisher.until_acked()
    flowing = asyncio.create_task(publisher.go_on())
    await publisher.until_acked()
    await fragile.client.admin.pause(name)
    await asyncio.wait_for(flowing, 60)
    old = await fragile.leader(name)
    nodes[old].kill()
    await fragile.until(lambda: led_by_another(fragile, name, old), "another leads")
    await publisher.until_refused()
    assert (await fragile.client.stream(name)).partitions[0].pause is Pause.UNTIL_RESUMED
    nodes[old].start()
    nodes[old].wait_ready()
    for node in nodes.values():
        node.kill()
    for node in nodes.values():
        node.start()
    for node in nodes.values():
        node.wait_ready()
    await publisher.until_refused()
    with pytest.raises(nats.js.errors.ServiceUnavailableError, match="paused"):
        await fragile.nc.jetstream().publish(subject, b"by a JetStream client")
    for _ in range(3):
        await fragile.nc.publish(subject, b"plain")
    await fragile.until(lambda: dropped_as_paused(fragile, name, 3), "plain messages are counted")
    shown = await fragile.replica(await fragile.leader(name), name)
    assert shown["paused"] == "until resumed"
    await fragile.client.admin.resume(name)
    await publisher.until_acked()
    await fragile.until(lambda: is_whole(fragile, name), "all nodes are in sync, and it is not paused")
    stored = [record.value async for record in fragile.client.consume(name, until="end")]
    assert set(publisher.acked) <= set(stored) <= {*publisher.acked, *publisher.unknown}
    assert [value for value in stored if value in publisher.acked] == publisher.acked, "each once, in order"


async def led_by_another(bench: Bench, name: str, old: str) -> bool:
    return await bench.leader(name) not in ("", old) and await bench.ready(name)


async def dropped_as_paused(bench: Bench, name: str, count: int) -> bool:
    return bool((await bench.replica(await bench.leader(name), name))["dropped"].get("paused", 0) >= count)


async def is_whole(bench: Bench, name: str) -> bool:
    partition = (await bench.client.stream(name)).partitions[0]
    return len(partition.isr) == 3 and partition.pause is Pause.NOT_PAUSED


async def test_partition_paused_until_publish_resumes_at_a_publish_after_its_leader_was_killed(
    fragile: Bench, stream_name: str
) -> None:
    await fragile.create(stream_name, partitions=2, replicas=3)
    publisher = Publisher(fragile, f"data.{stream_name}")
    await publisher.until_acked()
    await fragile.client.admin.pause(stream_name, resume_on_publish=True)
    old = await fragile.leader(stream_name)
    fragile.cluster.nodes[old].kill()
    await fragile.until(lambda: led_by_another(fragile, stream_name, old), "another leads")
    assert [p.pause for p in (await fragile.client.stream(stream_name)).partitions] == [Pause.UNTIL_PUBLISH] * 2
    await publisher.until_acked()

    async def states() -> list[Pause]:
        return [p.pause for p in (await fragile.client.stream(stream_name)).partitions]

    async def is_over() -> bool:
        return await states() == [Pause.NOT_PAUSED, Pause.UNTIL_PUBLISH]

    await fragile.until(is_over, "partition 0 is resumed, the other is not")
    assert publisher.refused == []
    stored = [record.value async for record in fragile.client.consume(stream_name, until="end")]
    assert [value for value in stored if value in publisher.acked] == publisher.acked
