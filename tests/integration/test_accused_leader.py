"""What a node answers when the metadata leader asks whether it serves, and what a report of one follower of two comes to."""

from __future__ import annotations

from typing import Any

import nats
import pytest

from liftpy.core.wire import frames
from liftpy.core.wire._pb import replication_pb2

pytestmark = pytest.mark.processes

TIMEOUT_S = 10.0


async def test_leadership_probe_is_confirmed_only_by_the_leader_of_the_given_epoch(bench: Any, stream_name: str) -> None:
    await bench.create(stream_name)
    stream = await bench.client.stream(stream_name)
    partition = stream.partitions[0]

    async def serves(node: str, leader_epoch: int, uid: str = stream.uid) -> bool:
        question = replication_pb2.LeaderQuestion(stream=stream_name, streamUid=uid, leaderEpoch=leader_epoch)
        async with await nats.connect(bench.cluster.nats_url, inbox_prefix="liftpy.inbox.another") as as_a_node:
            answer = await as_a_node.request(f"liftpy.notify.{node}", frames.encode(question), timeout=TIMEOUT_S)
        return frames.decode(answer.data, replication_pb2.LeaderTestimony).serves

    async def leader_serves() -> bool:
        return await serves(partition.leader, partition.leader_epoch)

    await bench.until(leader_serves, "the leader has a lease")
    assert not await serves(partition.leader, partition.leader_epoch + 1)
    assert not await serves(partition.leader, partition.leader_epoch, "another-uid")
    follower = next(node for node in partition.replicas if node != partition.leader)
    assert not await serves(follower, partition.leader_epoch)
