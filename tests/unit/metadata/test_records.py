"""Test that every kind of record survives its bytes, and follows only a fitting image."""

from __future__ import annotations

import pytest

from liftpy.config import NO_QUOTA, DefaultQuota, SessionTimes, StreamConfig
from liftpy.core.metadata.controller_list import ControllerList
from liftpy.core.metadata.idempotency import Operation
from liftpy.core.metadata.image import ClusterImage, ClusterRules, Counters, LeaderReport, NodeImage, StreamImage
from liftpy.core.metadata.records import (
    ControllersChanged,
    CountersMoved,
    DefaultQuotaSet,
    FeatureLevelSet,
    LeaderReported,
    NodeChanged,
    NodeRemoved,
    OperationDone,
    PartitionsAdded,
    PartitionStateChanged,
    Record,
    SessionTimesSet,
    StreamAltered,
    StreamCreated,
    StreamDeleted,
    record_from_pb,
    record_to_pb,
    replay,
)
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import InvariantError, ProtocolError
from tests.each import each
from tests.unit.metadata.small_images import a_partition, a_stream, an_image

REPORT = LeaderReport(
    witness="b", witness_incarnation=2, leader="a", leader_epoch=5, last_epoch=4, newest_offset=9, high_watermark=8, time_ns=7
)
MORE = (a_partition(partition=1, epoch=7), a_partition(partition=2, epoch=8))
NODE = NodeImage(node_id="d", incarnation=9, rack="r", weight=2.5, version="v", status_address="s", fenced=True)
UNKNOWN_FIELD = bytes.fromhex("c23e0161")  # number 1000, one byte
RECORDS: list[Record] = [
    StreamCreated(StreamImage("t", "u2", "other", StreamConfig(min_isr=2), (a_partition(),), 11)),
    StreamDeleted("s", "u1"),
    PartitionsAdded("s", "u1", MORE),
    StreamAltered("s", "u1", 5),
    StreamAltered("s", "u1", 5, StreamConfig(read_only=True, min_isr=1), 9),
    NodeChanged(NODE),
    NodeRemoved("d"),
    PartitionStateChanged("s", "u1", a_partition(epoch=7, isr=("a", "b"))),
    OperationDone(Operation(b"o" * 16, 12, b"answer")),
    CountersMoved(Counters(21, 22, 23, 24, 25)),
    LeaderReported("u1", 0, REPORT),
    ControllersChanged(ControllerList(("a", "b"), "d", "b", 3)),
    FeatureLevelSet(8, ClusterRules("shop", True)),
    FeatureLevelSet(8),
    DefaultQuotaSet(DefaultQuota(records_per_s=5, bytes_per_s=6, by_token=7)),
    DefaultQuotaSet(NO_QUOTA),
    FeatureLevelSet(9, ClusterRules("shop", True), SessionTimes(2000, 900)),
    SessionTimesSet(SessionTimes(5000, 3000, 2000, 900, 7)),
]


@each("record", RECORDS)
def test_metadata_record_decodes_to_an_equal_record(record: Record) -> None:
    assert record_from_pb(pb.Record.FromString(record_to_pb(record).SerializeToString())) == record


def test_metadata_record_of_an_unknown_kind_raises_protocol_error() -> None:
    kinds = {record_to_pb(record).WhichOneof("record") for record in RECORDS}
    assert kinds == {field.name for field in pb.Record.DESCRIPTOR.oneofs_by_name["record"].fields}
    with pytest.raises(ProtocolError, match="has a kind that this version of liftpy does not support"):
        record_from_pb(pb.Record())


@each("record", RECORDS)
def test_metadata_record_with_unknown_fields_is_rejected(record: Record) -> None:
    message = record_to_pb(record)
    kind = message.WhichOneof("record")
    assert kind is not None
    inner = getattr(message, kind)
    inner.MergeFromString(inner.SerializeToString() + UNKNOWN_FIELD)
    with pytest.raises(ProtocolError, match="has fields that this version of liftpy does not support"):
        record_from_pb(message)


@each(
    ("code", "record"),
    [
        ("R9", StreamCreated(a_stream())),
        ("M11", StreamDeleted("s", "old")),
        ("M11", StreamDeleted("t", "u1")),
        ("M11", PartitionsAdded("s", "old", MORE)),
        ("M11", PartitionsAdded("t", "u1", MORE)),
        ("C1", PartitionsAdded("s", "u1", MORE[1:])),
        ("C1", PartitionsAdded("s", "u1", (MORE[0], MORE[0]))),
        ("C3", PartitionsAdded("s", "u1", (a_partition(partition=1, isr=()),))),
        ("M11", StreamAltered("s", "old", 2)),
        ("M11", StreamAltered("t", "u1", 2)),
        ("M10", ControllersChanged(ControllerList(("a",)))),
        ("M5", NodeRemoved("x")),
        ("M5", NodeRemoved("a")),
        ("M5", PartitionStateChanged("s", "old", a_partition(epoch=7))),
        ("M5", PartitionStateChanged("s", "u1", a_partition(epoch=7, partition=1))),
        ("C2", PartitionStateChanged("s", "u1", a_partition(epoch=6))),
        ("C2", PartitionStateChanged("s", "u1", a_partition(epoch=7, leader_epoch=4))),
        ("C3", PartitionStateChanged("s", "u1", a_partition(epoch=7, isr=("b",)))),
    ],
)
def test_metadata_record_that_contradicts_the_image_raises_invariant_error(code: str, record: Record) -> None:
    with pytest.raises(InvariantError) as error:
        replay(an_image(a_stream()), record)
    assert str(error.value).split()[1] == code


def test_session_times_change_in_an_empty_image_raises_invariant_error() -> None:
    with pytest.raises(InvariantError, match="M5"):
        replay(ClusterImage(), SessionTimesSet(SessionTimes(2000, 900)))
