"""Test that reasons and states have the same numbers in the code and in the protobuf files."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import pytest

from liftpy.core.base.partition import MoveReason, PartitionStatus, Pause
from liftpy.core.groups.queue import PieceKind
from liftpy.core.replication.messages import RefusalReason
from liftpy.core.services.snapshot import Section
from liftpy.core.wire._pb import client_pb2, cluster_pb2, replication_pb2
from liftpy.core.wire.envelope import MessageType
from liftpy.core.wire.producer_note import PartitioningMethod
from liftpy.core.wire.rejections import RejectReason
from liftpy.core.wire.worker_frames import FrameKind


def test_fetch_rejection_numbers_match_the_protocol() -> None:
    assert {reason.name: reason.value for reason in RefusalReason} == dict(replication_pb2.ReplicationRefusal.Reason.items())


def test_publish_rejection_numbers_match_the_protocol() -> None:
    known = dict(client_pb2.Ack.Error.items())
    assert {reason.name: reason.value for reason in RejectReason}.items() <= known.items()


@pytest.mark.parametrize(
    ("ours", "protocol"),
    [
        (PartitionStatus, cluster_pb2.PartitionStatus),
        (MoveReason, cluster_pb2.MoveReason),
        (Pause, cluster_pb2.Pause),
        (PartitioningMethod, client_pb2.Partitioning.Method),
    ],
)
def test_enum_numbers_match_the_protocol(ours: type[IntEnum], protocol: Any) -> None:
    assert {one.name: one.value for one in ours} == dict(protocol.items())


@pytest.mark.parametrize("kinds", [FrameKind, PieceKind, Section])
def test_enum_of_kinds_has_different_numbers(kinds: type[IntEnum]) -> None:
    assert len(kinds) == len(kinds.__members__)


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
