"""Test deletions of data, and permissions by subject."""

from __future__ import annotations

from typing import Any

import pytest

from liftpy.core.base.ids import PartitionKey
from liftpy.core.metadata.controller.admission import RequestAcl, refusal
from liftpy.core.metadata.data_deletion import may_delete
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.each import each

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
