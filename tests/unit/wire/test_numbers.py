"""Reasons and states that travel as numbers have the same ones here and on the wire."""

from __future__ import annotations

from liftpy.partition import PartitionStatus
from liftpy.replica.effects import RejectReason
from liftpy.replica.events import RefusalReason
from liftpy.wire._pb import client_pb2, cluster_pb2, replication_pb2


def test_why_a_fetch_is_refused() -> None:
    assert {reason.name: reason.value for reason in RefusalReason} == dict(replication_pb2.ReplicationRefusal.Reason.items())


def test_why_a_publish_is_refused() -> None:
    known = dict(client_pb2.Ack.Error.items())
    assert {reason.name: reason.value for reason in RejectReason}.items() <= known.items()


def test_how_a_partition_is() -> None:
    assert {status.name: status.value for status in PartitionStatus} == dict(cluster_pb2.PartitionStatus.items())
