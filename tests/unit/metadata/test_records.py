"""Test metadata records: their encoding, the encoding of state, and records between two images."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import replace
from typing import Any

import pytest
from cluster_driver import Driver

from liftpy.config import NO_QUOTA, AckPolicy, Codec, CommitPolicy, DefaultQuota, FlushPolicy, SessionTimes, StreamConfig
from liftpy.core.base.partition import MoveReason, Pause, Purge, PurgeReport
from liftpy.core.metadata import codec
from liftpy.core.metadata.codec import CONFIG, decode_snapshot, encode_snapshot
from liftpy.core.metadata.controller_list import ControllerList
from liftpy.core.metadata.idempotency import Operation
from liftpy.core.metadata.image import ClusterImage, ClusterRules, Counters, LeaderReport, NodeImage, StreamImage
from liftpy.core.metadata.image_delta import entry_between, records_between
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
    replay_all,
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


def _shown(image: ClusterImage) -> tuple[object, ...]:
    """Return the part of an image that a worker process uses."""
    return (
        image.index, dict(image.nodes), dict(image.streams), image.controllers, image.feature_level, image.default_quota,
        {node: dict(streams) for node, streams in image.hosted.items()}, dict(image.leader_counts),
    )  # fmt: skip


def _led_on(old: ClusterImage, new: ClusterImage) -> ClusterImage:
    entry = entry_between(old, new)
    assert entry is not None
    read = pb.FeedEntry.FromString(entry.SerializeToString())
    assert read.previousIndex == old.index
    return replace(replay_all(old, [record_from_pb(record) for record in read.records]), index=read.index)


def _strike(driver: Driver, rng: random.Random, names: list[str]) -> None:
    match rng.randrange(9):
        case 0:
            name = f"s{len(names)}"
            driver.create(name, partitions=rng.randint(1, 4))
            names.append(name)
        case 1 if len(names) > 1:
            driver.ask(deleteStream=pb.DeleteStream(name=names.pop(rng.randrange(1, len(names)))))
        case 2:
            driver.restart(rng.choice("abc"))
        case 3:
            driver.fence("c")
        case 4:
            driver.register("d")
        case 5:
            driver.change_isr(["b", "c"], number=0)
        case 6:
            driver.ask(deleteStream=pb.DeleteStream(name="orders"))
            driver.create()
        case 7:
            quota = DefaultQuota(records_per_s=rng.randrange(3))
            driver.fsm.image = replace(driver.fsm.image, index=driver.fsm.image.index + 1, default_quota=quota)
            driver.log.append(b"")
        case _:
            driver.ask(addPartitions=pb.AddPartitions(name="orders", partitions=rng.randint(2, 6)))


def test_worker_that_replays_records_between_images_gets_an_equal_image() -> None:
    """The worker also gets only some of the images."""
    rng = random.Random(7)
    for _ in range(30):
        driver, names = Driver(("a", "b", "c")), ["orders"]
        driver.create(partitions=2)
        shown = decode_snapshot(encode_snapshot(driver.fsm.image, operations=False))
        at = driver.fsm.image
        for _ in range(25):
            _strike(driver, rng, names)
            if rng.random() < 0.5:
                new = driver.fsm.image
                shown, at = _led_on_from(shown, at, new), new
                assert _shown(shown) == _shown(new)


def _led_on_from(shown: ClusterImage, old: ClusterImage, new: ClusterImage) -> ClusterImage:
    """Replay the records between two images of the node on the image of the worker."""
    entry = entry_between(old, new)
    assert entry is not None
    return replace(replay_all(shown, [record_from_pb(record) for record in entry.records]), index=entry.index)


def test_records_between_images_remove_a_removed_node() -> None:
    driver = Driver(("a", "b", "c"))
    old = driver.fsm.image
    driver.fence("c")
    assert driver.ask(removeNode=pb.RemoveNode(nodeId="c")).error == pb.ControlResponse.OK
    assert sorted(_led_on(old, driver.fsm.image).nodes) == ["a", "b"]


def test_records_between_equal_images_is_empty() -> None:
    driver = Driver(("a",))
    driver.create()
    image = driver.fsm.image
    assert records_between(image, image) == []
    assert records_between(image, replace(image, index=image.index + 1)) == []


def test_records_between_an_image_and_an_older_image_requires_a_snapshot() -> None:
    driver = Driver(("a", "b", "c"))
    driver.create(partitions=2)
    old = driver.fsm.image
    driver.change_isr(["b", "c"], number=1)
    new = driver.fsm.image
    assert _shown(_led_on(old, new)) == _shown(new)
    assert records_between(replace(new, index=new.index + 1), new) is None, "an older index"
    assert records_between(new, replace(old, index=new.index)) is None, "the epoch of a partition has fallen"


def test_metadata_state_codec_restores_every_field() -> None:
    node = NodeImage(
        node_id="n",
        incarnation=2,
        rack="r",
        weight=3.0,
        version="v",
        status_address="a",
        host="h/1",
        fenced=True,
        session_time_ns=4,
        previous_incarnation=5,
        folder_id="f",
        start=6,
        nonce=7,
        earlier_nonces=(8, 9),
        partition_budget=10,
        weight_by_hand=True,
        rack_by_hand=True,
        leaving=True,
    )
    state = a_partition(
        unclean_elected=True,
        passed_over=("b",),
        incomplete=("c",),
        deposed="b",
        complete=("c",),
        target=("a", "b", "d"),
        joining="d",
        moved_for=MoveReason.DRAINED,
        copy_epoch=9,
        asked_start=10,
        purges=(Purge(number=12, subjects=("x.>",), keys=(b"k",), end_offset=13),),
        purged=(PurgeReport("a", 12),),
        pause=Pause.UNTIL_PUBLISH,
        pauses=12,
        isr=("a", "b"),
        leaderships=11,
    )
    report = LeaderReport(
        witness="b",
        witness_incarnation=1,
        leader="a",
        leader_epoch=2,
        last_epoch=3,
        newest_offset=4,
        high_watermark=5,
        time_ns=6,
        stamp_ns=7,
        stamp_term=8,
    )
    operation = Operation(b"0123456789abcdef", 5, b"answer", 6)
    counters = Counters(1, 2, 3, 4, 5)
    stream = dataclasses.replace(a_stream(state), placement="rack", replication_factor=3, waiting=2, config_version=4)
    codecs: tuple[tuple[Any, Any, Any], ...] = (
        (node, codec.NODE.to_pb, codec.NODE.from_pb),
        (state, codec.PARTITION.to_pb, codec.PARTITION.from_pb),
        (operation, codec.OPERATION.to_pb, codec.OPERATION.from_pb),
        (counters, codec.COUNTERS.to_pb, codec.COUNTERS.from_pb),
        (stream, codec.STREAM.to_pb, codec.STREAM.from_pb),
    )
    for value, there, back in codecs:
        assert back(there(value)) == value
        for field in dataclasses.fields(value):
            if field.name not in ("partition", "candidate", "status"):
                assert getattr(value, field.name), f"{field.name} has to be something, or it shows nothing"
    assert codec.REPORT.from_pb(codec.report_to_pb("u1", 3, report)) == report
    image = an_image(a_stream(state))
    image = dataclasses.replace(
        image,
        reports=image.reports.set(("u1", 0), (report, dataclasses.replace(report, witness="c"))),
        operations=image.operations.with_operation(operation),
        controllers=ControllerList(("a", "b", "c"), "d", "b", 6),
    )
    for field in dataclasses.fields(ControllerList):
        assert getattr(image.controllers, field.name)
    again = decode_snapshot(encode_snapshot(image))
    assert (again, again.reports["u1", 0]) == (image, image.reports["u1", 0])
    assert again.controllers == image.controllers, "who restores it knows who decides"
    assert decode_snapshot(encode_snapshot(an_image())).controllers == ControllerList()
    assert len(decode_snapshot(encode_snapshot(image, operations=False)).operations) == 0


CONFIGS = [
    StreamConfig(
        ack_policy=AckPolicy.LEADER,
        min_isr=3,
        flush=FlushPolicy.parse("interval:70"),
        commit_policy=CommitPolicy.QUORUM,
        segment_bytes=5000,
        segment_age_s=1.5,
        retention_age_s=2.5,
        retention_bytes=3,
        retention_records=4,
        compaction=True,
        delete_retention_s=5.5,
        codec=Codec.ZSTD,
        failover_standby=True,
        dedup_window_s=6.5,
    ),
    StreamConfig(delete_retention_s=0.0, dedup_window_s=0.0, segment_age_s=0.0),
    StreamConfig(),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_stream_settings_codec_restores_every_setting(config: StreamConfig) -> None:
    assert CONFIG.from_pb(CONFIG.to_pb(config)) == config
    assert CONFIG.from_pb(pb.StreamConfig()) == StreamConfig()
