"""The metadata group on real processes: what it acknowledged survives kills of its leader, of everybody, and of the bus."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from liftpy.client import Client, connect
from liftpy.errors import LiftError
from sidecar.dev.cluster import DevCluster

pytestmark = [pytest.mark.processes, pytest.mark.timeout(150)]

DEADLINE_S = 40.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(3, on_line=lambda node, line: print(f"{node} | {line}")) as running:
        yield running


@pytest.fixture
async def client(cluster: DevCluster) -> AsyncIterator[Client]:
    async with await connect(cluster.nats_url) as made:
        yield made


class Load:
    """Creates streams one after the other until it is told to stop; remembers what was acknowledged."""

    def __init__(self, client: Client, word: str) -> None:
        self.acked: list[str] = []
        self._client = client
        self._word = word
        self._stopped = False

    async def run(self) -> None:
        number = 0
        while not self._stopped:
            name = f"{self._word}-{number}"
            number += 1
            try:
                await self._client.create_stream(name, f"load.{name}")
            except LiftError:
                await asyncio.sleep(0.01)
                continue  # not acknowledged: it may be there or not
            self.acked.append(name)

    async def until_acked(self, more: int) -> None:
        wanted = len(self.acked) + more
        async with asyncio.timeout(DEADLINE_S):
            while len(self.acked) < wanted:
                await asyncio.sleep(0.01)

    def stop(self) -> None:
        self._stopped = True


@asynccontextmanager
async def load(client: Client, word: str) -> AsyncIterator[Load]:
    running = Load(client, word)
    task = asyncio.create_task(running.run())
    try:
        yield running
    finally:
        running.stop()
        await task


async def metadata_leader(client: Client, other_than: str = "") -> str:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                leader = (await client.admin.describe_cluster()).metadata_leader
                if leader not in ("", other_than):
                    return leader
            except LiftError:
                pass
            await asyncio.sleep(0.05)


async def all_there(client: Client, acked: list[str]) -> None:
    known = (await client.admin.describe_cluster()).image.streams
    assert [name for name in acked if name not in known] == []


async def back(cluster: DevCluster, *names: str) -> None:
    for name in names:
        await asyncio.to_thread(cluster.nodes[name].start)
    for name in names:
        await asyncio.to_thread(cluster.nodes[name].wait_ready)


async def test_kill_of_the_metadata_leader_under_load_loses_no_acknowledged_entry(cluster: DevCluster, client: Client) -> None:
    async with load(client, "killed") as running:
        await running.until_acked(20)
        old = await metadata_leader(client)
        await asyncio.to_thread(cluster.nodes[old].kill)
        new = await metadata_leader(client, old)
        assert new != old
        await running.until_acked(20)
    await all_there(client, running.acked)
    await back(cluster, old)


async def test_kill_of_all_controllers_at_the_same_time_loses_no_acknowledged_entry(
    cluster: DevCluster, client: Client
) -> None:
    async with load(client, "all") as running:
        await running.until_acked(20)
        for node in cluster.nodes.values():
            await asyncio.to_thread(node.kill)
        await back(cluster, *cluster.nodes)
        await running.until_acked(10)
    await all_there(client, running.acked)


@pytest.mark.long
async def test_metadata_group_after_a_nats_outage_has_every_acknowledged_entry(cluster: DevCluster, client: Client) -> None:
    assert cluster.nats is not None
    async with load(client, "bus") as running:
        await running.until_acked(20)
        await asyncio.to_thread(cluster.nats.kill)
        await asyncio.sleep(3)  # the fault itself: longer than any election time-out
        await asyncio.to_thread(cluster.nats.resume)
        await metadata_leader(client)
        await running.until_acked(10)
    await all_there(client, running.acked)


@pytest.mark.long
async def test_controller_process_with_an_emptied_directory_catches_up_and_votes(cluster: DevCluster, client: Client) -> None:
    leader = await metadata_leader(client)
    emptied = next(name for name in cluster.nodes if name != leader)
    await asyncio.to_thread(cluster.nodes[emptied].terminate)
    shutil.rmtree(cluster.data / emptied / "raft")
    await back(cluster, emptied)
    async with load(client, "emptied") as running:
        await running.until_acked(5)
        other = next(name for name in cluster.nodes if name not in (leader, emptied))
        await asyncio.to_thread(cluster.nodes[other].kill)  # now the emptied one is needed for a majority
        await running.until_acked(5)
    await all_there(client, running.acked)
    await back(cluster, other)
