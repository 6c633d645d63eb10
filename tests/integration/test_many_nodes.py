"""Five nodes, three of them controllers: the others learn the image from the feed, lead and follow like them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from sidecar.dev.cluster import DevCluster
from tests.integration.conftest import QUICK, close_bench, open_bench, show

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


@pytest.fixture
def five() -> Iterator[DevCluster]:
    with DevCluster(5, settings=QUICK, on_line=show) as running:
        yield running


async def test_nodes_outside_the_metadata_group_lead_partitions_and_rejoin_the_isr_after_a_kill(
    five: DevCluster, stream_name: str
) -> None:
    bench = await open_bench(five)
    stream = await bench.create(stream_name, partitions=10)
    leaders = {p.leader for p in stream.partitions}
    assert leaders == {"n1", "n2", "n3", "n4", "n5"}
    own = next(p.partition for p in stream.partitions if p.leader == "n5")
    subject = f"data.{stream_name}" + (f".{own}" if own else "")
    assert await bench.publish_acked(subject, [b"one", b"two"]) == [1, 2]
    state = await bench.client.admin.describe_cluster()
    assert sorted(c.node_id for c in state.controllers) == ["n1", "n2", "n3"]
    await asyncio.to_thread(five.nodes["n5"].kill)
    await bench.publish_acked(subject, [b"three"])
    five.nodes["n5"].start()
    await asyncio.to_thread(five.nodes["n5"].wait_ready)

    async def whole() -> bool:
        found = (await bench.client.stream(stream_name)).partitions
        return all(set(p.isr) == set(p.replicas) and p.leader for p in found)

    await bench.until(whole, "every partition is whole again")
    for node in stream.partitions[own].replicas:
        batches = await bench.read_from(node, stream_name, 3, own)
        assert batches.count(b"three") >= 1
    await close_bench(bench)


async def test_node_planned_stop_transfers_all_its_leaderships_before_it_ends(five: DevCluster, stream_name: str) -> None:
    bench = await open_bench(five)
    await bench.create(stream_name, partitions=5)
    stopping = await bench.leader(stream_name)
    await asyncio.to_thread(five.nodes[stopping].terminate)
    stream = await bench.client.stream(stream_name)
    assert stopping not in {p.leader for p in stream.partitions}
    assert all(p.leader for p in stream.partitions)
    assert any("transferring leaderships" in line for line in five.nodes[stopping].log)
    assert await bench.publish_acked(f"data.{stream_name}", [b"x"], timeout_s=3) == [1]
    await close_bench(bench)


async def test_forged_metadata_feed_record_of_a_deleted_stream_deletes_no_data(five: DevCluster, stream_name: str) -> None:
    """Nodes that are no controllers know the cluster by the feed, on which whoever can publish may say that a stream is gone."""
    bench = await open_bench(five)
    stream = await bench.create(stream_name, partitions=5)
    subjects = [f"data.{stream_name}" + (f".{number}" if number else "") for number in range(5)]
    for subject in subjects:
        assert await bench.publish_acked(subject, [b"before"]) == [1]
    followers = ("n4", "n5")
    folders = [
        five.data / node / "streams" / f"{stream_name}-{stream.uid}" / str(p.partition)
        for node in followers
        for p in stream.partitions
        if node in p.replicas
    ]
    assert len(folders) == 6
    index = (await bench.client.admin.describe_cluster()).image.index
    gone = pb.Record(streamDeleted=pb.StreamDeleted(name=stream_name, uid=stream.uid))
    forged = pb.FeedEntry(index=index + 1, previousIndex=index, records=[gone])
    await bench.nc.publish("liftpy.feed", frames.seal(forged))

    async def noticed() -> bool:
        return all(any("Another client publishes on the feed" in line for line in five.nodes[node].log) for node in followers)

    async def whole() -> bool:
        found = (await bench.client.stream(stream_name)).partitions
        return all(set(p.isr) == set(p.replicas) and p.leader for p in found)

    await bench.until(noticed, "they have asked, and kept what they have")
    for subject in subjects:
        assert (await bench.publish_acked(subject, [b"after"]))[-1] >= 2
    await bench.until(whole, "every partition is whole again")
    for folder in folders:
        assert any(file.stat().st_size for file in folder.iterdir()), folder
    for node in followers:
        for p in stream.partitions:
            if node in p.replicas:
                assert b"before" in await bench.read_from(node, stream_name, 2, p.partition)
    await close_bench(bench)
