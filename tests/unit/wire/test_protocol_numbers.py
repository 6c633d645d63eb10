"""Test that reasons and states have the same numbers in the code and in the protobuf files."""

from __future__ import annotations

from liftpy.core.base.partition import PartitionStatus
from liftpy.core.replication.effects import RejectReason
from liftpy.core.replication.events import RefusalReason
from liftpy.core.wire._pb import client_pb2, cluster_pb2, replication_pb2
from liftpy.core.wire.envelope import MessageType


def test_fetch_rejection_numbers_match_the_protocol() -> None:
    assert {reason.name: reason.value for reason in RefusalReason} == dict(replication_pb2.ReplicationRefusal.Reason.items())


def test_publish_rejection_numbers_match_the_protocol() -> None:
    known = dict(client_pb2.Ack.Error.items())
    assert {reason.name: reason.value for reason in RejectReason}.items() <= known.items()


def test_partition_status_numbers_match_the_protocol() -> None:
    assert {status.name: status.value for status in PartitionStatus} == dict(cluster_pb2.PartitionStatus.items())


def test_envelope_type_numbers_never_change() -> None:
    """Types may come, none may change: other nodes and clients of another version are told by them."""
    known = {
        "PUBLISH": 0, "ACK": 1, "REPLICATION_REQUEST": 2, "REPLICATION_RESPONSE": 3, "LEADER_EPOCH_OFFSET_REQUEST": 6,
        "LEADER_EPOCH_OFFSET_RESPONSE": 7, "PROPAGATED_REQUEST": 8, "PROPAGATED_RESPONSE": 9, "SERVER_INFO_REQUEST": 10,
        "SERVER_INFO_RESPONSE": 11, "PARTITION_STATUS_REQUEST": 12, "PARTITION_STATUS_RESPONSE": 13, "PARTITION_NOTIFICATION": 14,
        "REPLICATION_REFUSAL": 15, "LEADER_NOTICE": 16, "READ_REQUEST": 17, "READ_RESPONSE": 18, "CONTROL_REQUEST": 19,
        "CONTROL_RESPONSE": 20, "FEED_ENTRY": 21, "FEED_SNAPSHOT_REQUEST": 22, "FEED_SNAPSHOT_RESPONSE": 23, "STATUS_REQUEST": 24,
        "STATUS_RESPONSE": 25, "BATCH_PUBLISH": 26, "STEP_ASIDE": 27, "LEADER_QUESTION": 28, "LEADER_TESTIMONY": 29,
        "REPLICATION_PIECE": 30, "RAFT_FRAME": 31, "SERVICE_HELLO": 32, "JOIN_LOG": 33, "SERVICE_ACK": 34, "SERVICE_REFUSAL": 35,
        "QUIET_FETCHES": 36, "QUIET_FETCHES_ANSWER": 37, "SERVICE_REPORT": 38, "SNAPSHOT_REQUEST": 39,
        "PEER_SNAPSHOT_REQUEST": 44, "PEER_SNAPSHOT_ANSWER": 45,
    }  # fmt: skip
    assert {kind.name: kind.value for kind in MessageType if kind.name in known} == known
    assert len({kind.value for kind in MessageType}) == len(MessageType.__members__)
