"""Planned transfers by command, on real processes: the leader steps aside first, and everybody who published is answered."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import nats
import nats.errors
import pytest

from liftpy.core.wire import frames
from liftpy.core.wire._pb import replication_pb2

pytestmark = pytest.mark.processes

TIMEOUT_S = 10.0


async def test_publishes_during_leadership_transfers_are_all_answered(bench: Any, stream_name: str) -> None:
    await bench.create(stream_name)
    subject = f"data.{stream_name}"
    answers = {"acks": 0, "No responders on this subject. Check that the nodes run: `liftpy health`.": 0}
    moving = True

    async def publish() -> None:
        while moving:
            try:
                await bench.nc.request(subject, b"x" * 100, timeout=TIMEOUT_S)  # a time-out fails the test
                answers["acks"] += 1
            except nats.errors.NoRespondersError:
                answers["No responders on this subject. Check that the nodes run: `liftpy health`."] += 1
                await asyncio.sleep(0.001)

    publishers = [asyncio.create_task(publish()) for _ in range(32)]
    nodes = (await bench.client.stream(stream_name)).partitions[0].replicas
    for node in itertools.islice(itertools.cycle(nodes[1:] + nodes[:1]), 6):
        before = answers["acks"]
        await bench.client.admin.elect_leader(stream_name, 0, node)
        await bench.until(lambda node=node: _leads(bench, stream_name, node), f"{node} leads")
        await bench.until(lambda before=before: _more(answers, before + 200), "publishes are acknowledged")
    moving = False
    await asyncio.gather(*publishers)
    assert (await bench.client.bounds(stream_name)).end_offset == answers["acks"], "what was not acknowledged was not stored"


async def test_leader_accepts_publishes_again_after_a_resign_request_without_a_transfer(bench: Any, stream_name: str) -> None:
    await bench.create(stream_name)
    partition, ask = await _asker(bench, stream_name)
    await ask(partition.leader, partition.leader_epoch)
    with pytest.raises(nats.errors.NoRespondersError):
        await bench.nc.request(f"data.{stream_name}", b"now", timeout=TIMEOUT_S)
    await ask(partition.leader, partition.leader_epoch)  # a second one is answered, too
    assert await bench.publish_acked(f"data.{stream_name}", [b"later"]) == [1]
    assert await bench.leader(stream_name) == partition.leader


async def test_resign_request_for_another_replica_or_leader_epoch_is_ignored(bench: Any, stream_name: str) -> None:
    await bench.create(stream_name)
    partition, ask = await _asker(bench, stream_name)
    follower = next(node for node in partition.replicas if node != partition.leader)
    await ask(follower, partition.leader_epoch)
    await ask(partition.leader, partition.leader_epoch + 1)
    assert (await bench.nc.request(f"data.{stream_name}", b"x", timeout=TIMEOUT_S)).data


async def _asker(bench: Any, stream_name: str) -> Any:
    stream = await bench.client.stream(stream_name)

    async def ask(node: str, leader_epoch: int) -> None:
        request = replication_pb2.StepAside(stream=stream_name, streamUid=stream.uid, partition=0, leaderEpoch=leader_epoch)
        async with await nats.connect(bench.cluster.nats_url, inbox_prefix="liftpy.inbox.another") as as_a_node:
            answer = await as_a_node.request(f"liftpy.notify.{node}", frames.encode(request), timeout=TIMEOUT_S)
        assert frames.decode(answer.data, replication_pb2.StepAside) == request

    return stream.partitions[0], ask


async def _leads(bench: Any, name: str, node: str) -> bool:
    return bool(await bench.leader(name) == node and await bench.ready(name))


async def _more(answers: dict[str, int], count: int) -> bool:
    return answers["acks"] >= count
