"""Test deletions of data, permissions by subject, and the counters of a draft."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from liftpy.core.base.ids import PartitionKey
from liftpy.core.metadata.controller.admission import RequestAcl, refusal
from liftpy.core.metadata.controller.reassign import remove_replica
from liftpy.core.metadata.controller.request_batcher import decide_batch
from liftpy.core.metadata.data_deletion import may_delete
from liftpy.core.metadata.record_builder import RecordBuilder, Rules, refuse
from liftpy.core.metadata.records import CountersMoved, PartitionStateChanged
from liftpy.core.metadata.replay import replay_all
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.each import each
from tests.unit.metadata.small_images import a_partition, a_stream, an_image

KEY = PartitionKey("s", "u1", 0)


@each(
    ("response", "allowed"),
    [
        ({"error": pb.ControlResponse.NOT_FOUND}, True),
        ({"error": pb.ControlResponse.UNAVAILABLE}, None),
        ({"error": pb.ControlResponse.OUTCOME_UNKNOWN}, None),
        ({"error": pb.ControlResponse.INVALID}, None),
        ({}, None),
        ({"uid": "u2", "replicas": "bc"}, None),
        ({"uid": "u1", "replicas": "bc"}, True),
        ({"uid": "u1", "replicas": "ab"}, False),
        ({"uid": "u1", "replicas": "ab", "partition": 1}, None),
    ],
)
def test_replica_data_is_deletable_only_if_the_controllers_answer_that_the_node_has_no_replica(
    response: dict[str, Any], allowed: bool | None
) -> None:
    made = pb.ControlResponse(error=response.get("error", pb.ControlResponse.OK))
    if "uid" in response:
        made.stream.uid = response["uid"]
        made.stream.partitions.add(partition=response.get("partition", 0), replicas=list(response["replicas"]))
    assert may_delete(made, KEY, "a") is allowed


def fence(node: str) -> pb.ControlRequest:
    return pb.ControlRequest(fenceNode=pb.FenceNode(nodeId=node))


@pytest.mark.parametrize("others", [0, 1, 2])
def test_request_batch_with_the_id_of_another_node_is_rejected(others: int) -> None:
    requests = [pb.BatchedRequest(request=pb.ControlRequest(leaveIsr=pb.LeaveIsr(node="n1"))) for _ in range(3)]
    if others:
        requests[others].request.leaveIsr.node = "n2"
    assert bool(refusal(RequestAcl.NODE, "n1", pb.ControlRequest(batch=pb.Batch(requests=requests)))) is bool(others)


@pytest.mark.parametrize(
    ("door", "request_", "fits"),
    [
        (RequestAcl.NODE, fence("n1"), True),
        (RequestAcl.NODE, fence("n2"), False),
        (RequestAcl.ADMIN, fence("n1"), False),
        (RequestAcl.INFO, fence("n1"), False),
    ],
)
def test_control_request_of_a_node_is_accepted_only_on_the_subject_of_this_node(
    door: RequestAcl, request_: pb.ControlRequest, fits: bool
) -> None:
    assert (refusal(door, "n1", request_) == "") is fits


def test_record_builder_increments_leaderships_when_a_leader_or_leader_epoch_begins() -> None:
    stream = a_stream()
    for change, counted in (
        ({"isr": ("a", "b")}, 2),
        ({"leader": "b", "leader_epoch": 8}, 3),
        ({"leader": ""}, 2),
        ({"leader_epoch": 9}, 3),
    ):
        draft = RecordBuilder(an_image(stream), 1, Rules())
        changed = draft.change(stream, dataclasses.replace(stream.partitions[0], **change))
        assert changed.leaderships == counted, change
        assert changed.last_leader == (change.get("leader") or "a")
        assert changed.epoch == 14
    assert len(refuse(pb.ControlResponse.INVALID, "x" * 10_000).response.detail) < 700


def test_request_batch_response_has_one_answer_per_request_number() -> None:
    image = an_image(a_stream(a_partition(), a_partition(partition=1)))
    requests = [
        pb.BatchedRequest(
            number=n,
            request=pb.ControlRequest(leaveIsr=pb.LeaveIsr(stream="s", uid="u1", partition=n, node="b", incarnation=2)),
        )
        for n in range(2)
    ] + [pb.BatchedRequest(number=7, request=pb.ControlRequest(deleteStream=pb.DeleteStream(name="s")))]
    after, records, response, failures = decide_batch(image, pb.Batch(requests=requests), 5, Rules(elections=True))
    assert [(a.number, a.error) for a in response.batch.answers] == [(0, 0), (1, 0), (7, pb.ControlResponse.INVALID)]
    assert failures == 0
    assert "s" in after.streams
    assert replay_all(image, records) == after, "who follows the records gets the same"
    (moved,) = [record for record in records if isinstance(record, CountersMoved)]
    assert moved.counters.next_epoch == 14 + sum(isinstance(record, PartitionStateChanged) for record in records)


def test_record_builder_is_live_of_an_unknown_node_is_false() -> None:
    draft = RecordBuilder(an_image(a_stream(), "abc", "b"), 9, Rules())
    assert [draft.is_live(node_id) for node_id in ("a", "b", "z", "")] == [True, False, False, False]


def test_record_builder_leader_counts_include_leaders_appointed_in_the_same_decision() -> None:
    """Otherwise all leaderships of a fenced node go to one successor."""
    draft = RecordBuilder(an_image(a_stream()), 1, Rules())
    counts = []
    for node_id in ("b", "b", "a", "b"):
        draft.count_leader(node_id)
        counts.append([draft.leader_count(other) for other in "abc"])
    assert counts == [[1, 1, 0], [1, 2, 0], [2, 2, 0], [2, 3, 0]]


def test_remove_replica_removes_the_node_from_every_list_of_the_partition() -> None:
    partition = a_partition(
        replicas=("c", "a", "b", "d"), isr=("a", "b"), incomplete=("d", "b"), complete=("b", "c"), passed_over=("b", "a")
    )
    assert remove_replica(partition, "b") == dataclasses.replace(
        partition, replicas=("c", "a", "d"), isr=("a",), incomplete=("d",), complete=("c",), passed_over=("a",)
    )
    assert remove_replica(partition, "z") == partition
