"""Test how a node reacts to each answer of the metadata leader."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.base.ids import PartitionKey
from liftpy.core.metadata.data_deletion import DepartedPartitions, may_delete
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.node_identity import stopped_cleanly
from liftpy.core.metadata.sessions import RegistrationOutcome, registration_result
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.each import each

E = pb.ControlResponse


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (E.OK, RegistrationOutcome.TAKEN_IN), (E.EXISTS, RegistrationOutcome.TAKEN), (E.INVALID, RegistrationOutcome.REFUSED),
        (E.STALE, RegistrationOutcome.REFUSED),
        (E.UNAVAILABLE, RegistrationOutcome.AGAIN),
        (E.OUTCOME_UNKNOWN, RegistrationOutcome.AGAIN),
    ],
)  # fmt: skip
def test_registration_result_of_each_error_code_is_retry_fenced_or_failed(
    error: pb.ControlResponse.Error, meaning: RegistrationOutcome
) -> None:
    assert registration_result(E(error=error)) is meaning


def test_node_stop_is_clean_only_if_the_node_was_opened_and_had_no_error() -> None:
    right = {"failed": False, "opened": True, "logs_are_clean": True, "repairs": False}
    assert stopped_cleanly(**right)
    assert not any(stopped_cleanly(**{**right, name: not value}) for name, value in right.items())


def test_partition_data_missing_in_the_image_is_not_deleted() -> None:
    key = PartitionKey("s", "uid", 0)
    assert not DepartedPartitions("n1").has_moved_away(key, ClusterImage())


def test_partition_data_deleted_in_the_image_is_deleted_unless_a_controller_denies_the_deletion() -> None:
    key, departures = PartitionKey("s", "uid", 0), DepartedPartitions("n1")
    departures.note_deleted_streams([SimpleNamespace(uid="uid")])  # type: ignore[list-item]
    assert departures.has_moved_away(key, ClusterImage())
    assert not departures.has_moved_away(PartitionKey("s", "another", 0), ClusterImage())
    departures.deletion_denied(key)
    assert not departures.has_moved_away(key, ClusterImage()), "else it is asked for ever"


# ---- deletions -------------------------------------------------------------------------------------------------------------
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
