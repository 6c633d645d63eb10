"""What the NATS server allows: a small max_payload bounds every response; a slow consumer is cut off and comes back."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from liftpy.core.wire.batch import split_batches
from sidecar.dev.cluster import DevCluster
from sidecar.dev.nats_server import NatsServer
from tests.integration.conftest import QUICK, close_bench, open_bench, show

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

NODES = ("n1", "n2", "n3")


@pytest.fixture
def narrow() -> Iterator[DevCluster]:
    with (
        NatsServer(max_payload_bytes=64 * 1024) as server,
        DevCluster(3, nats_url=server.url, on_line=show) as running,
    ):
        yield running


async def test_fetch_and_read_responses_fit_into_a_small_max_payload(narrow: DevCluster, stream_name: str) -> None:
    bench = await open_bench(narrow)
    await bench.create(stream_name)
    subject = f"data.{stream_name}"
    large = [bytes([number]) * 50_000 for number in range(20)]
    small = [b"%d" % number for number in range(20_000)]
    for payload in large + small:
        await bench.nc.publish(subject, payload)
    await bench.nc.flush()
    assert await bench.publish_acked(subject, [b"last"]) == [20_021]
    logs = [await bench.read_from(node, stream_name, 20_021) for node in NODES]
    assert logs[0] == logs[1] == logs[2]
    batches = split_batches(logs[0])
    assert [value for batch in batches for value in batch.values()] == [*large, *small, b"last"]
    assert all(batch.header.size_bytes <= 64 * 1024 - 100 for batch in batches)
    for node in NODES:
        assert (await bench.client.admin.node_status(node))["nats"]["errors"].get("too_large", 0) == 0
    await close_bench(bench)


@pytest.fixture(params=["1", "2"], ids=["one-process", "two-processes"])
def impatient(request: pytest.FixtureRequest) -> Iterator[DevCluster]:
    with (
        NatsServer(config='max_pending: 4MB\nwrite_deadline: "1s"\n') as server,
        DevCluster(3, nats_url=server.url, settings={**QUICK, "LIFTPY_WORKERS": request.param}, on_line=show) as running,
    ):
        yield running


async def test_node_disconnected_as_slow_consumer_reconnects_and_returns_to_the_isr(
    impatient: DevCluster, stream_name: str
) -> None:
    bench = await open_bench(impatient)
    await bench.create(stream_name)
    subject = f"data.{stream_name}"
    leader = await bench.leader(stream_name)
    await bench.publish_acked(subject, [b"before"])
    bench.cluster.nodes[leader].send(signal.SIGSTOP)
    for _ in range(600):
        await bench.nc.publish(subject, b"x" * 50_000)
    await bench.nc.flush(30)
    bench.cluster.nodes[leader].send(signal.SIGCONT)

    async def cut_off_and_back() -> bool:
        nats = (await bench.client.admin.node_status(leader))["nats"]
        return nats["errors"].get("disconnected", 0) >= 1 and bool(nats["connected"])

    await bench.until(cut_off_and_back, f"{leader} was cut off and is back")
    await bench.publish_acked(subject, [b"after"])

    async def healed() -> bool:
        return await bench.isr(stream_name) == set(NODES)

    await bench.until(healed, "all are in sync again")
    await close_bench(bench)
