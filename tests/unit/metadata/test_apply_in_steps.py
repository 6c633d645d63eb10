"""Test entries that concern thousands of partitions: they are applied in bounded steps, with one outcome."""

from __future__ import annotations

import pytest

from liftpy.core.base.cooperative_apply import PER_STEP
from liftpy.core.metadata.codec import encode_snapshot
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.records import Record, replay
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.born import born_fsm, registration

STREAMS, PARTITIONS = 100, 10


def register(node: str, start: int = 1) -> pb.ControlRequest:
    earlier = list(range(1, start))
    asked = registration(
        nodeId=node,
        previousIncarnation=start - 1,
        flushedAlways=True,
        folderId=node,
        start=start,
        nonce=start,
        earlierNonces=earlier,
    )
    return pb.ControlRequest(registerNode=asked)


class Driven:
    """A state machine, and its log."""

    def __init__(self) -> None:
        self.fsm = born_fsm(elections=True)
        self.index = 0

    def entry(self, request: pb.ControlRequest) -> bytes:
        self.index += 1
        request.operationId, request.timeNs = self.index.to_bytes(16, "big"), self.index
        return request.SerializeToString()

    def apply(self, request: pb.ControlRequest) -> pb.ControlResponse:
        response = pb.ControlResponse.FromString(self.fsm.apply(self.entry(request), self.index))
        assert response.error == pb.ControlResponse.OK, response.detail
        return response


def cluster() -> Driven:
    driven = Driven()
    for node in ("a", "b", "c"):
        driven.apply(register(node))
    for number in range(STREAMS):
        creation = pb.CreateStream(name=f"s{number}", subject=f"s{number}", partitions=PARTITIONS, replicationFactor=3)
        driven.apply(pb.ControlRequest(createStream=creation))
    return driven


def of_a_node(kind: str, driven: Driven) -> pb.ControlRequest:
    node = driven.fsm.image.nodes["a"]
    if kind == "register":
        again = register("a", start=2)
        again.registerNode.previousIncarnation = node.incarnation
        return again
    if kind == "emptied":
        return pb.ControlRequest(registerNode=registration(nodeId="a", folderId="another", start=1, nonce=9))
    if kind == "drain":
        return pb.ControlRequest(drainNode=pb.DrainNode(nodeId="a", incarnation=node.incarnation))
    if kind == "unfence":
        driven.apply(pb.ControlRequest(fenceNode=pb.FenceNode(nodeId="a", incarnation=node.incarnation)))
        return pb.ControlRequest(unfenceNode=pb.UnfenceNode(nodeId="a", incarnation=node.incarnation))
    return pb.ControlRequest(fenceNode=pb.FenceNode(nodeId="a", incarnation=node.incarnation))


@pytest.mark.parametrize("kind", ["register", "emptied", "fence", "unfence", "drain"])
def test_apply_of_a_large_entry_in_steps_changes_the_image_only_at_the_end(kind: str) -> None:
    in_one, in_steps = cluster(), cluster()
    entry = in_one.entry(of_a_node(kind, in_one))
    assert in_steps.entry(of_a_node(kind, in_steps)) == entry
    before = in_steps.fsm.image
    steps = 1
    while not in_steps.fsm.precompute(entry, in_steps.index):
        steps += 1
        assert in_steps.fsm.image is before
    assert in_steps.fsm.precompute(entry, in_steps.index)
    assert in_steps.fsm.image is before
    assert steps >= STREAMS * PARTITIONS // PER_STEP
    assert in_steps.fsm.apply(entry, in_steps.index) == in_one.fsm.apply(entry, in_one.index)
    assert in_steps.fsm.last_records == in_one.fsm.last_records
    assert encode_snapshot(in_steps.fsm.image) == encode_snapshot(in_one.fsm.image)


def test_apply_of_a_large_entry_in_steps_replays_a_bounded_number_of_records_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    driven = cluster()
    entry = driven.entry(of_a_node("emptied", driven))
    counted = 0

    def counting(image: ClusterImage, record: Record) -> ClusterImage:
        nonlocal counted
        counted += 1
        return replay(image, record)

    monkeypatch.setattr("liftpy.core.metadata.records.replay", counting)
    replayed = []
    while not driven.fsm.precompute(entry, driven.index):
        replayed.append(counted)
        counted = 0
    assert max(replayed) == PER_STEP
    assert sum(replayed) + counted > STREAMS * PARTITIONS


def test_apply_in_steps_discards_its_partial_result_on_a_snapshot_or_another_entry() -> None:
    driven, other = cluster(), cluster()
    snapshot = encode_snapshot(driven.fsm.image)
    driven.apply(pb.ControlRequest(deleteStream=pb.DeleteStream(name="s7")))
    entry = driven.entry(of_a_node("fence", driven))
    another = driven.entry(of_a_node("drain", driven))
    assert not driven.fsm.precompute(entry, driven.index)
    driven.fsm.restore(snapshot)  # of what was before the deletion
    assert driven.fsm.apply(entry, driven.index) == other.fsm.apply(entry, driven.index)
    assert encode_snapshot(driven.fsm.image) == encode_snapshot(other.fsm.image)
    driven.fsm.precompute(entry, driven.index + 1)
    assert driven.fsm.apply(another, driven.index + 1) == other.fsm.apply(another, driven.index + 1)
    assert encode_snapshot(driven.fsm.image) == encode_snapshot(other.fsm.image)
