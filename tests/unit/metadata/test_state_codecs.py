"""Test that every field of every state and every setting survives its bytes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from liftpy.config import AckPolicy, Codec, CommitPolicy, FlushPolicy, StreamConfig
from liftpy.core.base.partition import MoveReason, Pause, Purge, PurgeReport
from liftpy.core.metadata import codec
from liftpy.core.metadata.codec import CONFIG, decode_snapshot, encode_snapshot
from liftpy.core.metadata.controller_list import ControllerList
from liftpy.core.metadata.idempotency import Operation
from liftpy.core.metadata.image import Counters, LeaderReport, NodeImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.unit.metadata.small_images import a_partition, a_stream, an_image


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
