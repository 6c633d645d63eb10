"""Test how a node reacts to each answer of the metadata leader."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from liftpy.core.base.ids import PartitionKey
from liftpy.core.metadata.data_deletion import DataDeletion
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.node_identity import stopped_cleanly
from liftpy.core.metadata.sessions import AnsweredHeartbeats, RegistrationOutcome, registration_result
from liftpy.core.wire._pb import cluster_pb2 as pb

E = pb.ControlResponse


def granted(index: int, lease_ms: int = 0) -> pb.ControlResponse:
    return pb.ControlResponse(index=index, leaseMs=lease_ms)


def test_heartbeat_answer_grants_the_lease_after_the_node_applied_the_image_of_the_answer() -> None:
    heartbeats = AnsweredHeartbeats()
    assert heartbeats.response_received(100, granted(7), 7) == (100, 0)
    assert heartbeats.response_received(200, granted(9, 5), 7) is None
    assert heartbeats.response_received(300, granted(10, 4), 7) is None
    assert heartbeats.image_seen(8) is None
    assert heartbeats.image_seen(9) == (200, 5_000_000), "with the length that its answer said"
    assert heartbeats.image_seen(12) == (300, 4_000_000)
    assert heartbeats.image_seen(13) is None


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
    assert not DataDeletion("n1").has_moved_away(key, ClusterImage())


def test_partition_data_deleted_in_the_image_is_deleted_unless_a_controller_denies_the_deletion() -> None:
    key, departures = PartitionKey("s", "uid", 0), DataDeletion("n1")
    departures.note_deleted_streams([SimpleNamespace(uid="uid")])  # type: ignore[list-item]
    assert departures.has_moved_away(key, ClusterImage())
    assert not departures.has_moved_away(PartitionKey("s", "another", 0), ClusterImage())
    departures.deletion_denied(key)
    assert not departures.has_moved_away(key, ClusterImage()), "else it is asked for ever"
