"""What a NATS server takes is stored, replicated and read, up to its max_payload, and still after that was lowered [A10]."""

from __future__ import annotations

import signal

import pytest

from liftpy.client.consumer import ReadOptions
from sidecar.dev.cluster import DevCluster
from sidecar.dev.nats_server import NatsServer
from tests.integration.conftest import close_bench, open_bench, show

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

MAX_PAYLOAD = 1 << 20
KEY = "k" * 60_000
KEYED = MAX_PAYLOAD - len(f"NATS/1.0\r\nLift-Key: {KEY}\r\n\r\n")


async def test_records_above_a_lowered_max_payload_reach_every_replica(stream_name: str) -> None:
    subject = f"data.{stream_name}"
    with NatsServer() as server, DevCluster(3, nats_url=server.url, on_line=show) as cluster:
        bench = await open_bench(cluster)
        await bench.create(stream_name)
        leader_epoch = (await bench.client.stream(stream_name)).partitions[0].leader_epoch
        leader = await bench.leader(stream_name)
        late = next(node for node in cluster.nodes if node != leader)
        await bench.publish_acked(subject, [b"first"])
        cluster.nodes[late].send(signal.SIGKILL)
        wanted = [b"first", b"x" * 1_040_385, b"y" * MAX_PAYLOAD, b"z" * KEYED, b"last"]
        await bench.nc.publish(subject, wanted[1])
        await bench.nc.publish(subject, wanted[2])
        await bench.nc.publish(subject, wanted[3], headers={"Lift-Key": KEY})
        await bench.nc.flush()
        assert await bench.publish_acked(subject, [b"last"]) == [5]
        assert (await bench.client.stream(stream_name)).partitions[0].leader_epoch == leader_epoch
        server.restart(max_payload_bytes=32 * 1024)
        cluster.nodes[late].start()

        async def whole() -> bool:
            return await bench.isr(stream_name) == set(cluster.nodes)

        await bench.until(whole, f"{late} has fetched what no message can carry any more")
        for node in cluster.nodes:
            records = [
                record async for record in bench.client.consume(stream_name, until="end", options=ReadOptions(node=node))
            ]
            assert [record.value for record in records] == wanted
            assert records[3].key == KEY.encode()
        await close_bench(bench)
