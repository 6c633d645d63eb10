"""Clusters of real processes for the integration tests: the same class as ``liftpy dev``, one cluster for all tests that only
use it, one per module for those that break it. Every wait is on a condition, with a deadline."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import count
from typing import Any

import nats
import pytest
from nats.aio.client import Client as NatsConnection

from liftpy.client import Client, connect
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import split_batches
from liftpy.spark.session import local_session, spark_problem
from sidecar.cli.dashboard import ClusterSite
from sidecar.dev.cluster import DevCluster
from tests.conftest import SHARED_CLUSTER

_numbers = count(1)

QUICK = {
    "LIFTPY_REPLICATION_MAX_LAG_TIME_S": "2.5",
    "LIFTPY_REPLICATION_MAX_LEADER_TIMEOUT_S": "1.5",
}
"""Shorter time-outs where nodes are broken, so that a test does not wait for production's patience."""


def show(node: str, line: str) -> None:
    """Into pytest's capture: shown when a test fails."""
    print(f"{node} | {line}")


_shared: list[DevCluster] = []
"""The cluster that runs for tests that break nothing, while there are any."""


@pytest.fixture
def shared_cluster() -> DevCluster:
    """Three nodes for tests that break nothing. Files with such tests come first (``tests/conftest.py``): behind the last one it ends,
    for even a cluster that idles takes a twelfth of a core."""
    if not _shared:
        running = DevCluster(3, on_line=show)
        running.start()
        _shared.append(running)
    return _shared[0]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """End the shared cluster with the last test that uses it."""
    if _shared and SHARED_CLUSTER not in getattr(nextitem, "fixturenames", ()):
        _shared.pop().stop()


@pytest.fixture(scope="module")
def fragile_cluster() -> Iterator[DevCluster]:
    """Three nodes of the module's own, to be killed and brought back."""
    with DevCluster(3, settings=QUICK, on_line=show) as running:
        yield running


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if problem := spark_problem():
        pytest.skip(problem)
    folder = tmp_path_factory.mktemp("spark")
    settings = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "local")}
    session = local_session("liftpy tests", settings=settings)
    from pyspark_liftpy import DefaultSource

    # Spark finds it by itself (the demo's test has it so), but gives workers of what it found and of what was registered, as the
    # archive's source is, other environments: then each kind of worker would be started twice.
    session.dataSource.register(DefaultSource)
    yield session
    session.stop()


@pytest.fixture
def stream_name() -> str:
    """A name that no other test has used."""
    return f"it{next(_numbers)}"


class Bench:
    """A plain NATS connection and a client on one cluster, with the questions that tests ask."""

    def __init__(self, cluster: DevCluster, nc: NatsConnection, client: Client) -> None:
        self.cluster = cluster
        self.nc = nc
        self.client = client

    async def until(self, condition: Callable[[], Awaitable[Any]], what: str, timeout_s: float = 60.0) -> Any:
        """Wait until ``condition`` is true and return it; fail with ``what`` and the last answer otherwise."""
        deadline = time.monotonic() + timeout_s
        last: Any = None
        while time.monotonic() < deadline:
            try:
                last = await condition()
            except Exception as error:  # a node that is down is part of what is waited out
                last = error
            if last and not isinstance(last, Exception):
                return last
            await asyncio.sleep(0.05)
        logs = {name: list(node.log)[-6:] for name, node in self.cluster.nodes.items()}
        return pytest.fail(f"{what}: not within {timeout_s:g} s; last: {last!r}; logs: {logs}")

    async def create(self, name: str, **settings: Any) -> Any:
        """A stream on the subject ``data.<name>``, ready to take publishes."""
        stream = await self.client.create_stream(name, f"data.{name}", **settings)
        await self.until(lambda: self.ready(name), f"{name} is led")
        return stream

    async def ready(self, name: str) -> bool:
        """Whether every partition has a leader that takes publishes."""
        stream = await self.client.stream(name)
        return all(
            [(await self.replica(p.leader, name, p.partition)).get("phase") == "LEADER_READY" for p in stream.partitions]
        )

    async def replica(self, node: str, name: str, partition: int = 0) -> dict[str, Any]:
        """What ``node`` says of its replica."""
        status = await self.client.admin.node_status(node)
        return next((p for p in status["partitions"] if (p["stream"], p["partition"]) == (name, partition)), {})

    async def leader(self, name: str) -> str:
        """The leader of partition 0 as the metadata has it, '' when there is none."""
        return (await self.client.stream(name)).partitions[0].leader

    async def isr(self, name: str) -> set[str]:
        """The ISR of partition 0."""
        return set((await self.client.stream(name)).partitions[0].isr)

    async def read_from(self, node: str, name: str, count: int, partition: int = 0) -> bytes:
        """The bytes of the first batches on ``node``, at least ``count`` records, read by hand as another language would."""
        found, offset = b"", 0
        deadline = time.monotonic() + 30
        while offset < count:
            assert time.monotonic() < deadline, f"{node} has {offset} of {count} committed records"
            request = client_pb2.ReadRequest(offset=offset, maxBytes=500_000, waitMs=500)
            try:
                answer = await self.nc.request(f"liftpy.{name}.{partition}.read.{node}", frames.encode(request), timeout=3)
            except Exception:
                await asyncio.sleep(0.05)
                continue
            head, batches = frames.decode_read_response(answer.data)
            if head.error:
                assert head.error == client_pb2.ReadResponse.NOT_READY, head
                await asyncio.sleep(0.05)
                continue
            found += bytes(batches)
            offset = head.nextOffset
        return found

    async def values_on(self, node: str, name: str, count: int) -> list[bytes | None]:
        """The values of the first ``count`` records on ``node``."""
        batches = split_batches(await self.read_from(node, name, count))
        return [value for batch in batches for value in batch.values()][:count]

    async def publish_acked(self, subject: str, payloads: list[bytes], timeout_s: float = 30.0) -> list[int]:
        """Publish each with ``nc.request``, again until it is acked; return the sequence numbers of the acks."""
        sequences = []
        for payload in payloads:
            sequences.append(
                await self.until(lambda payload=payload: self._once(subject, payload), f"{payload!r} acked", timeout_s)
            )
        return sequences

    async def _once(self, subject: str, payload: bytes) -> int:
        import json

        answer = json.loads((await self.nc.request(subject, payload, timeout=2)).data)
        return int(answer.get("seq", 0)) if "error" not in answer else 0


async def open_bench(cluster: DevCluster) -> Bench:
    """A Bench on ``cluster``; ``close_bench`` it."""
    nc = await nats.connect(cluster.nats_url, reconnect_time_wait=0.1, max_reconnect_attempts=-1)
    return Bench(cluster, nc, await connect(cluster.nats_url, cluster.namespace))


async def page_data(page: ClusterSite, view: str) -> dict[str, Any]:
    """Return the JSON of a view of the page, such as "cluster"."""
    answer = page.respond(b"GET /api/%s.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % view.encode())
    body = answer if isinstance(answer, bytes) else await answer
    assert isinstance(body, bytes)
    found: dict[str, Any] = json.loads(body.partition(b"\r\n\r\n")[2])
    return found


async def close_bench(bench: Bench) -> None:
    """Close its connections."""
    await bench.client.close()
    await bench.nc.close()


@pytest.fixture
async def bench(shared_cluster: DevCluster) -> AsyncIterator[Bench]:
    """On the cluster that all share."""
    opened = await open_bench(shared_cluster)
    yield opened
    await close_bench(opened)


@pytest.fixture
async def fragile(fragile_cluster: DevCluster) -> AsyncIterator[Bench]:
    """On the module's own cluster, with every node up."""
    for node in fragile_cluster.nodes.values():
        if not node.running:
            node.start()
            node.wait_ready()
    opened = await open_bench(fragile_cluster)
    yield opened
    await close_bench(opened)
