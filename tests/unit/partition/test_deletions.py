"""A node that knows the cluster by the feed alone deletes nothing that a controller does not confirm [M11]."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import sidecar.partition.deletions as asking
import sidecar.partition.set as module
from liftpy.cluster.fsm import ClusterFsm
from liftpy.cluster.image import ClusterImage
from liftpy.cluster.records import PartitionStateChanged, StreamDeleted
from liftpy.cluster.replay import replay
from liftpy.config import ReplicationConfig
from liftpy.wire._pb import cluster_pb2 as pb

UNAVAILABLE = pb.ControlResponse(error=pb.ControlResponse.UNAVAILABLE)


class Controllers:
    """The truth, and who asks it."""

    def __init__(self) -> None:
        self.fsm = ClusterFsm()
        self.count = self.asked = self.distrusted = 0
        self.answer: Callable[[pb.ControlResponse], pb.ControlResponse] = lambda response: response
        for node in "abc":
            self.do(registerNode=pb.RegisterNode(nodeId=node))
        self.do(createStream=pb.CreateStream(name="s", subject="s.x", replicationFactor=3, partitions=5))

    @property
    def image(self) -> ClusterImage:
        return self.fsm.image

    def do(self, **request: Any) -> pb.ControlResponse:
        self.count += 1
        entry = pb.ControlRequest(operationId=self.count.to_bytes(16, "big"), timeNs=self.count, **request)
        return pb.ControlResponse.FromString(self.fsm.apply(entry.SerializeToString(), self.count))

    async def propose(self, request: pb.ControlRequest, timeout_s: float) -> pb.ControlResponse:
        assert request.linearizable, "a controller that is behind knows nothing of the stream either"
        await asyncio.sleep(0)
        self.asked += 1
        return self.answer(self.do(describeStream=request.describeStream))

    def distrust(self) -> None:
        self.distrusted += 1


class Worker:
    leads = False

    def __init__(self, key: Any, deleted: list[bool]) -> None:
        self.key, self.deleted = key, deleted

    def update(self, state: Any, live: Any) -> None:
        pass

    async def stop(self, *, delete: bool) -> bool:
        self.deleted.append(delete)
        return True


@pytest.fixture
async def node(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Node ``a``, which holds five partitions, and what was stopped: whether with its data."""
    controllers, deleted = Controllers(), list[bool]()

    async def open_worker(node: Any, key: Any, subject: str, config: Any) -> Worker:
        return Worker(key, deleted)

    monkeypatch.setattr(module, "open_worker", open_worker)
    monkeypatch.setattr(asking, "_PAUSE_S", 0.001)
    monkeypatch.setattr(asking, "_GIVE_UP_AFTER_S", 0.05)
    settings = SimpleNamespace(node_id="a", replication=ReplicationConfig())
    deletions = asking.Deletions(controllers, "a", decides=lambda: False)  # type: ignore[arg-type]
    partitions = module.Partitions(SimpleNamespace(settings=settings, fatal=pytest.fail, deletions=deletions))  # type: ignore[arg-type]
    partitions.image_changed(ClusterImage(), controllers.image)
    async with asyncio.timeout(5):
        await partitions.settled()
        yield SimpleNamespace(controllers=controllers, deleted=deleted, partitions=partitions)
        assert await partitions.stop()


def without_stream(image: ClusterImage) -> ClusterImage:
    return replay(image, StreamDeleted("s", image.streams["s"].uid))


def held_elsewhere(image: ClusterImage) -> ClusterImage:
    stream = image.streams["s"]
    for p in stream.partitions:
        moved = replace(p, replicas=("b", "c"), isr=("b",), leader="b", last_leader="b", epoch=p.epoch + 1)
        image = replay(image, PartitionStateChanged("s", stream.uid, moved))
    return image


@pytest.mark.parametrize("forged", [without_stream, held_elsewhere])
async def test_a_forged_record_deletes_nothing_and_the_partition_comes_back(node: Any, forged: Any) -> None:
    true = node.controllers.image
    node.partitions.image_changed(true, forged(true))
    await node.partitions.settled()
    assert node.deleted == [False] * 5
    assert node.controllers.distrusted
    assert len(node.partitions) == 0
    node.partitions.image_changed(forged(true), true)
    await node.partitions.settled()
    assert len(node.partitions) == 5


async def test_a_deletion_that_a_controller_confirms_is_carried_out_after_one_question(node: Any) -> None:
    before = node.controllers.image
    node.controllers.do(deleteStream=pb.DeleteStream(name="s"))
    node.partitions.image_changed(before, node.controllers.image)
    await node.partitions.settled()
    assert node.deleted == [True] * 5
    assert (node.controllers.asked, node.controllers.distrusted) == (1, 0)


async def test_a_stream_that_was_made_again_under_its_name_is_another_one(node: Any) -> None:
    before = node.controllers.image
    node.controllers.do(deleteStream=pb.DeleteStream(name="s"))
    node.controllers.do(createStream=pb.CreateStream(name="s", subject="s.x", replicationFactor=3, partitions=5))
    node.partitions.image_changed(before, node.controllers.image)
    await node.partitions.settled()
    assert node.deleted == [True] * 5
    assert len(node.partitions) == 5


@pytest.mark.parametrize("answer", [UNAVAILABLE, pb.ControlResponse(), pb.ControlResponse(stream=pb.Stream(name="s"))])
async def test_without_an_answer_data_is_kept(node: Any, answer: pb.ControlResponse) -> None:
    node.controllers.answer = lambda _: answer
    before = node.controllers.image
    node.controllers.do(deleteStream=pb.DeleteStream(name="s"))
    node.partitions.image_changed(before, node.controllers.image)
    await node.partitions.settled()
    assert node.deleted == [False] * 5
    assert node.controllers.distrusted == 0


async def test_a_controller_that_is_elected_meanwhile_is_waited_for(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_GIVE_UP_AFTER_S", 30.0)
    answers = iter([UNAVAILABLE] * 3)
    node.controllers.answer = lambda response: next(answers, response)
    before = node.controllers.image
    node.controllers.do(deleteStream=pb.DeleteStream(name="s"))
    node.partitions.image_changed(before, node.controllers.image)
    await node.partitions.settled()
    assert node.deleted == [True] * 5
